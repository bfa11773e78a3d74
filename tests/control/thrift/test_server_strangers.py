"""What the Thrift face does to clients that do not speak its protocol, or stop in the middle, or send too much."""

from __future__ import annotations

import logging
import random
import socket
import struct
import threading
import time

import pytest

from basalt.thrift import server as bounds
from tests.control.thrift.conftest import WAIT_S, Serving, application_error, frame, message, receive

UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, INTERNAL_ERROR, PROTOCOL_ERROR = 1, 2, 6, 7
STATUS = frame(message("status"))


def answered(connection: socket.socket, sent: bytes) -> bytes:
    connection.sendall(sent)
    return receive(connection)


def rest(connection: socket.socket) -> bytes:
    """All that the server sends until it hangs up."""
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_an_http_client_is_told_in_http(serving: Serving):
    for request in (b"GET / HTTP/1.1\r\n\r\n", b"POST /v1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"):
        with serving.socket() as connection:
            connection.sendall(request)
            assert rest(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_client_without_frames_is_told_without_frames(serving: Serving):
    with serving.socket() as connection:
        connection.sendall(message("status"))
        name, _, kind, text = application_error(rest(connection))
    assert (name, kind) == ("", PROTOCOL_ERROR)
    assert "framed transport" in text


@pytest.mark.parametrize("size", [0, -1, (16 << 20) + 1, 0x16030100, -(1 << 31)], ids=str)
def test_a_frame_of_an_impossible_size_ends_the_connection_at_its_length(serving: Serving, size: int):
    with serving.socket() as connection:
        _, _, kind, text = application_error(answered(connection, struct.pack(">i", size)))
        assert kind == PROTOCOL_ERROR
        assert str(size) in text
        assert rest(connection) == b""


@pytest.mark.parametrize(
    "body",
    [b"x", b"x" * 12, message("status")[:8], message("x" * 129), message(""), b"\x80\x01\x00\x01\x7f\xff\xff\xffst",
     b"\x00\x00\x00\x06status\x01\x00\x00\x00\x00\x00", b"\x82\x21\x01\x00", message("st\u00e9")],
    ids=["short", "noise", "cut name", "long name", "no name", "name beyond", "not strict", "compact", "not ascii"],
)  # fmt: skip
def test_a_frame_without_a_message_header_ends_the_connection(serving: Serving, body: bytes):
    with serving.socket() as connection:
        _, _, kind, _ = application_error(answered(connection, frame(body)))
        assert kind == INVALID_MESSAGE_TYPE
        assert rest(connection) == b""


@pytest.mark.parametrize("kind", [2, 3, 4, 0, 9])
def test_only_calls_are_answered(serving: Serving, kind: int):
    with serving.socket() as connection:
        connection.sendall(frame(message("status", kind=kind)))
        assert application_error(receive(connection))[2] == INVALID_MESSAGE_TYPE
        assert rest(connection) == b""


def test_an_unknown_method_is_said_to_be_one_and_the_connection_goes_on(serving: Serving):
    with serving.socket() as connection:
        name, sequence, kind, text = application_error(answered(connection, frame(message("startMedium", sequence=-5))))
        assert (name, sequence, kind) == ("startMedium", -5, UNKNOWN_METHOD)
        assert "startMedium" in text
        assert b"OK" in answered(connection, STATUS)


I64, STRUCT, SET, LIST = b"\x0a", b"\x0c", b"\x0e", b"\x0f"
ID_7 = I64 + b"\x00\x01" + (7).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("status", b""),
        ("status", b"\x00\x00"),
        ("invalidateTx", b"\x00"),
        ("invalidateTx", ID_7),
        ("invalidateTx", ID_7 + ID_7 + b"\x00"),
        ("invalidateTx", b"\x08\x00\x01\x00\x00\x00\x07\x00"),
        ("invalidateTx", b"\x01\x00\x09\x00"),
        ("abortTx", STRUCT + b"\x00\x01" + b"\x00\x00"),
        ("abortTx", STRUCT + b"\x00\x01" + ID_7 + LIST + b"\x00\x03\x0a\x7f\xff\xff\xff\x00\x00"),
        ("abortTx", STRUCT + b"\x00\x01" + ID_7 + LIST + b"\x00\x03\x0a\xff\xff\xff\xff\x00\x00"),
        ("canCommitOrThrow", ID_7 + b"\x00"),
        ("canCommitOrThrow", ID_7 + SET + b"\x00\x02\x0b\x00\x00\x00\x01\x7f\xff\xff\xff\x00"),
        ("canCommitOrThrow", ID_7 + SET + b"\x00\x02\x0b\xff\xff\xff\xff\x00"),
        ("canCommitOrThrow", ID_7 + SET + b"\x00\x02\x0a\x00\x00\x00\x01" + bytes(8) + b"\x00"),
        ("truncateInvalidTx", SET + b"\x00\x01\x0a\x00\x00\x00\x02" + bytes(8) + b"\x00"),
        ("startShortClientId", b"\x0b\x00\x01\x00\x00\x00\x02\xc3\x28\x00"),
        ("status", STRUCT + b"\x00\x09" + (STRUCT + b"\x00\x01") * 100_000),
        ("status", (b"\x02\x00\x09\x01") * 100_000 + b"\x00"),
        ("status", LIST + b"\x00\x09\x0f\x7f\xff\xff\xff" + b"\x0f\x00\x00\x00\x00" * 100_000 + b"\x00"),
        ("status", b"\x0d\x00\x09\x0a\x0a\x7f\xff\xff\xff\x00"),
    ],
)
def test_arguments_that_are_not_those_of_the_method_are_a_protocol_error_and_the_connection_goes_on(
    serving: Serving, method: str, arguments: bytes
):
    with serving.socket() as connection:
        start_s = time.monotonic()  # a loop over all that they announce takes minutes
        name, sequence, kind, _ = application_error(answered(connection, frame(message(method, arguments))))
        assert (name, sequence, kind) == (method, 7, PROTOCOL_ERROR)
        assert b"OK" in answered(connection, STATUS)
        assert time.monotonic() - start_s < WAIT_S


def test_fields_of_a_later_version_are_passed_over(serving: Serving):
    later = b"".join(
        (
            b"\x02\x00\x09\x01",
            b"\x0b\x00\x0a\x00\x00\x00\x03abc",
            STRUCT + b"\x00\x0b" + ID_7 + b"\x00",
            b"\x0d\x00\x0c\x0a\x0b\x00\x00\x00\x01" + bytes(8) + b"\x00\x00\x00\x01x",
            LIST + b"\x00\x0d\x08\x00\x00\x00\x02" + bytes(8),
        )
    )
    with serving.socket() as connection:
        assert (
            answered(connection, frame(message("invalidateTx", later + ID_7 + b"\x00")))[-5:] == b"\x02\x00\x00\x00\x00"
        )


def test_a_flood_of_changes_is_refused_before_it_is_read(serving: Serving):
    with serving.client() as client:
        tx = client.startShort()
    count = 3_000_000
    announced = SET + b"\x00\x02\x0b" + struct.pack(">i", count)
    with serving.socket() as connection:
        for changes in (bytes(4 * count) + b"\x00", b"\xff" * 20):  # there is no set in the second one
            body = message("canCommitOrThrow", I64 + b"\x00\x01" + struct.pack(">q", tx.id) + announced + changes)
            connection.sendall(frame(body))
            answer = receive(connection)
            assert b"org.apache.tephra.TransactionSizeException" in answer
            assert b"limit is 50000" in answer
            assert b"OK" in answered(connection, STATUS)


def test_a_set_of_ids_over_the_limit_is_refused(serving: Serving):
    count = 250_001
    ids = SET + b"\x00\x01\x0a" + struct.pack(">i", count) + bytes(8 * count) + b"\x00"
    with serving.socket() as connection:
        connection.sendall(frame(message("truncateInvalidTx", ids)))
        assert "limit is 250000" in application_error(receive(connection))[3]


def test_the_largest_frame_is_read(serving: Serving):
    size = (16 << 20) - len(message("status")) - 7
    padding = b"\x0b\x00\x09" + struct.pack(">i", size) + bytes(size) + b"\x00"
    body = message("status", padding)
    assert len(body) == bounds.FRAME_BYTES_MAX
    with serving.socket() as connection:
        assert b"OK" in answered(connection, frame(body))


def test_calls_sent_ahead_are_answered_one_at_a_time_in_their_order(serving: Serving):
    with serving.socket() as connection:
        ahead = b"".join(frame(message("startShort", sequence=sequence)) for sequence in range(5_000))
        sender = threading.Thread(target=connection.sendall, args=(ahead,))
        sender.start()
        ids = []
        for sequence in range(5_000):
            body = receive(connection)
            start = 8 + len("startShort")
            assert struct.unpack_from(">i", body, start) == (sequence,)
            ids.append(body[start + 10 : start + 18])
            if sequence % 500 == 499:  # keep the lists short
                serving.do(end_all)
        sender.join()
    assert ids == sorted(ids)


def test_an_answer_waits_for_the_one_before_it(serving: Serving):
    slow, quick = frame(message("getSnapshot", sequence=1)), frame(message("status", sequence=2))
    serving.do(make_invalid)
    with serving.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(5):
            connection.sendall(slow)
            time.sleep(0.001)  # so that it comes by itself, while the first is worked on
            connection.sendall(quick)
            for name, sequence in (("getSnapshot", 1), ("status", 2)):
                body = receive(connection)
                assert body[8 : 8 + len(name)].decode() == name
                assert struct.unpack_from(">i", body, 8 + len(name)) == (sequence,)


def test_who_sends_far_ahead_is_read_when_it_is_time(serving: Serving):
    padding = b"\x0b\x00\x09" + struct.pack(">i", 10_000) + bytes(10_000) + b"\x00"
    calls = frame(message("getSnapshot", padding)) * 300
    with serving.socket() as connection:
        sender = threading.Thread(target=connection.sendall, args=(calls,))
        sender.start()
        for _ in range(300):
            assert b"getSnapshot" in receive(connection)
        sender.join()


async def end_all(services):
    for transaction in await services.transactions.list():
        await services.transactions.abort(transaction.id)


def test_a_frame_may_come_in_any_pieces(serving: Serving):
    with serving.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in STATUS:
            connection.sendall(bytes((byte,)))
        assert b"OK" in receive(connection)


def test_who_stops_in_the_middle_of_a_frame_is_turned_out(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "HALF_SECONDS_MAX", 0.05)
    for half in (STATUS[:2], STATUS[:9]):
        with serving.socket() as connection, serving.socket() as idle:
            connection.sendall(half)
            assert "no whole frame" in application_error(receive(connection))[3]
            assert rest(connection) == b""
            assert b"OK" in answered(idle, STATUS), "one that sends nothing may wait"


def test_an_idle_client_is_let_go_after_its_time_without_a_word(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    with serving.socket() as connection:
        assert b"OK" in answered(connection, STATUS)
        monkeypatch.setattr(bounds, "IDLE_SECONDS_MAX", 0.05)
        assert rest(connection) == b""
    assert serving.services.thrift.refused == 0


def test_who_never_reads_its_answers_is_cut_off(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "STALL_SECONDS_MAX", 0.05)
    serving.do(make_invalid)
    with serving.socket() as connection:
        connection.settimeout(10)
        with pytest.raises((ConnectionError, TimeoutError)):
            for _ in range(100_000):
                connection.sendall(frame(message("startShort")) * 100)
    serving.until(lambda: serving.services.thrift.connections == 0)
    assert serving.services.thrift.calls["startShort", "answered"] < 1_000, "calls wait while their answers do"


async def make_invalid(services):
    for _ in range(4_000):
        transaction = await services.transactions.begin(external_writes=True)
        await services.transactions.invalidate(transaction.id)


def test_there_are_so_many_connections_and_no_more(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "CONNECTIONS_MAX", 2)
    with serving.socket() as first, serving.socket() as second:
        assert b"OK" in answered(first, STATUS)
        assert b"OK" in answered(second, STATUS)
        with serving.socket() as third:
            assert rest(third) == b""
        assert b"OK" in answered(first, STATUS)
    serving.until(lambda: serving.services.thrift.connections == 0)
    with serving.socket() as after:
        assert b"OK" in answered(after, STATUS)


def test_who_is_idle_for_longest_makes_room(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(bounds, "IDLE_SECONDS_MIN", 0.0)
    with serving.socket() as first, serving.socket() as second:
        for connection in (first, second, first):
            assert b"OK" in answered(connection, STATUS)
            time.sleep(0.02)  # the event loop's clock counts milliseconds
        with serving.socket() as third:
            assert b"OK" in answered(third, STATUS)
            assert rest(second) == b""
            assert b"OK" in answered(first, STATUS)


def test_half_requests_of_all_clients_together_have_a_limit(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "HELD_BYTES_MAX", 100_000)
    half = struct.pack(">i", 90_000) + bytes(60_000)
    with serving.socket() as first, serving.socket() as second:
        first.sendall(half)
        server = serving.face._server
        assert server is not None
        serving.until(lambda: server._held_bytes == len(half))
        second.sendall(half)
        assert "half received" in application_error(receive(second))[3]
        first.sendall(bytes(30_000))
        assert application_error(receive(first))[2] == INVALID_MESSAGE_TYPE, "it was read to its end"


def test_a_peer_that_keeps_coming_is_logged_once(serving: Serving, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "basalt.tephra"):
        for _ in range(20):
            with serving.socket() as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                rest(connection)
    assert [record.message for record in caplog.records] == ["a client at 127.0.0.1 is turned out: it speaks HTTP"]
    assert serving.services.thrift.refused == 20


def test_peers_beyond_the_limit_are_logged_again_and_each_is_counted(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(bounds, "TOLD_MAX", 2)
    server = serving.face._server
    assert server is not None
    with caplog.at_level(logging.INFO, "basalt.tephra"):
        for peer in "abbaacca":
            server.refuse(peer, "it speaks HTTP")
    assert [record.message.split()[3] for record in caplog.records] == ["a", "b", "c", "a"]
    assert serving.services.thrift.refused == 8
    assert len(server._told_s) == 2


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_who_sends_far_ahead_of_its_answers_gets_each_of_them(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
):
    monkeypatch.setattr(bounds, "AHEAD_BYTES_MAX", 2)
    sent = frame(message("startShort")) * 30 + STATUS
    with serving.socket() as connection:
        for start in range(0, len(sent), piece_bytes):
            connection.sendall(sent[start : start + piece_bytes])
        begun = [receive(connection) for _ in range(30)]
        assert b"OK" in receive(connection)
    assert len(set(begun)) == 30
    assert serving.services.thrift.calls["startShort", "answered"] == 30


def test_noise_of_any_kind_leaves_the_server_as_it_was(serving: Serving):
    randomness = random.Random(7)
    good = [message("startShort"), message("invalidateTx", ID_7 + b"\x00"), message("canCommitOrThrow", ID_7 + b"\x00")]
    for _ in range(300):
        body = bytearray(randomness.choice(good))
        for _ in range(randomness.randrange(4)):
            body[randomness.randrange(len(body))] = randomness.randrange(256)
        data = frame(bytes(body[: randomness.randrange(1, len(body) + 1)]))
        with serving.socket() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            rest(connection)
    with serving.client() as client:
        assert client.status() == "OK"
    assert not [key for key in serving.services.thrift.calls if key[1] == "failed"]
