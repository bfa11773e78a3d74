"""Readers that skip what they read: `bench.readers`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench import processes
from bench.captured import captured
from bench.cases import CASES
from bench.load import drive
from bench.readers import AVRO, BATCHES, Polls, Reader, next_position, read_all

TOPIC = "topic-000000"
PLAIN = b"HTTP/1.1 200 OK\r\nBasalt-Next: 0a0b\r\nContent-Length: 12\r\n\r\nhello\r\n\r\nyou"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1_000])
@pytest.mark.parametrize(("answer", "body_bytes"), [(PLAIN, 12), (CHUNKED, 15), (EMPTY, 0)])
def test_an_answer_is_over_with_its_last_byte_however_it_is_cut(answer: bytes, body_bytes: int, piece_bytes: int):
    async def read() -> None:
        reader = Reader()
        for _ in range(2):  # the second time the connection is as it was the first time
            asked = asyncio.get_running_loop().create_future()
            reader._answered, before = asked, reader.body_bytes
            for start in range(0, len(answer), piece_bytes):
                assert not asked.done()
                piece = answer[start : start + piece_bytes]
                reader.get_buffer(-1)[: len(piece)] = piece
                reader.buffer_updated(len(piece))
            assert asked.result() == answer.partition(b"\r\n\r\n")[0] + b"\r\n"
            assert reader.body_bytes - before == body_bytes

    asyncio.run(read())


def test_the_position_to_go_on_from_is_in_the_head():
    assert next_position(b"HTTP/1.1 200 OK\r\nBasalt-Next: 0a0B\r\n") == b"\x0a\x0b"
    assert next_position(b"HTTP/1.1 200 OK\r\nNot-Basalt-Next: 0a0b\r\n") is None


def test_polls_are_those_of_the_client_with_another_accept():
    batches, avro = Polls.of(TOPIC), Polls.of(TOPIC, AVRO)
    assert BATCHES.encode() in batches.first
    assert BATCHES.encode() not in avro.first + avro.following
    position = bytes(range(20))
    assert position in avro.after(position)
    assert avro.after(None) == avro.first


@pytest.mark.parametrize("accept", [BATCHES, AVRO])
def test_every_reader_comes_to_the_end_of_the_topic(tmp_path: Path, accept: str):
    create = captured(lambda client: client.topics.create(TOPIC))
    publish = captured(lambda client: client.topic(TOPIC).publish([bytes(1_000)]))
    with processes.basalt(tmp_path / "data") as server:
        drive(server.port, 1, 1, create)
        drive(server.port, 4, 1_200, publish)
        once = read_all(server.port, 1, 1, Polls.of(TOPIC, accept))
        assert 1_200_000 <= once < 1_500_000
        assert read_all(server.port, 3, 2, Polls.of(TOPIC, accept)) >= 6 * 1_200_000


@pytest.mark.parametrize(
    "case", ["singles-8", "read-singles-cold-1", "read-singles-once", "delivery", "poll-committed"]
)
def test_a_case_tells_its_cost_again_and_again(tmp_path: Path, case: str):
    rounds = CASES[case][0](tmp_path, 100)
    for _ in range(2):
        found = next(rounds)
        assert found.cost > 0
        assert found.per_s
        assert found.load_us
        assert found.rss_mib
    rounds.close()
