"""Calls that are answered without a coroutine: told as all others are, and only where nothing is unusual."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from dataclasses import replace

import pytest

from basalt.api.bodies.messages import PublishRequest, Work, WorkPublish
from basalt.api.codecs import avro
from basalt.errors import BusyError, StoreError
from basalt.http.asgi import requests
from basalt.http.asgi.requests import Head
from basalt.http.routes import transactions
from basalt.runtime import group_commit


@pytest.fixture(autouse=True)
def same_ids(monkeypatch):
    """Each request gets an id of the same length."""
    monkeypatch.setattr(requests, "_ID_NUMBERS", itertools.repeat(7))


AVRO_TYPE = {b"content-type": b"avro/binary"}
PUBLISH = avro.encode_publish_request(PublishRequest(None, [b"a", b"bc"]))


class Prompt:
    """The way to a client that takes everything; `gone` is one that takes nothing any more."""

    client, internal, scheme, is_admitted, id_is_clients = "192.0.2.7", False, "http", False, True

    def __init__(self, body: bytes = b"", gone: bool = False) -> None:
        self.parts = [body]
        self.gone = gone
        self.answers = []

    async def receive(self):
        return self.parts.pop(), False

    async def until_gone(self):
        await asyncio.Event().wait()

    async def send(self, request, status, headers, parts):
        self.send_now(request, status, headers, list(parts))

    def break_off(self):
        self.answers.append("broken off")

    def send_now(self, request, status, headers, parts):
        request.sent_bytes = sum(map(len, parts))
        if not self.gone:
            headers = [(name, value) for name, value in headers if name != b"basalt-request-id"]
            self.answers.append((status, headers, b"".join(parts).replace(request.id.encode(), b"ID")))


def head_of(path: str, headers=AVRO_TYPE, query: bytes = b"") -> Head:
    return Head("POST", path, path.encode(), query, {b"host": b"localhost", **headers})


async def answered(client, head: Head, body: bytes, *, whole: bool, exchange=None):
    """The answers of one way, and whether it needed a coroutine."""
    exchange = exchange or Prompt(body)
    if not whole:
        await client.app.begin(head, exchange)
        return exchange.answers, True
    answering = client.app.begin_whole(head, exchange, None, body)
    if answering is not None:
        await answering
        return exchange.answers, True
    assert exchange.answers == []  # before it is durable
    await asyncio.wait_for(settled(client), 10)
    return exchange.answers, False


def opened(client) -> str:
    """The path of a topic that is in memory."""
    path = client.topic()
    assert client.payloads(path) == []
    return path


async def settled(client):
    """The writer has written all that waited."""
    await client.services.writer.each[0]._idle.wait()


def both(client, path, headers=AVRO_TYPE, body=PUBLISH, query=b""):
    """The one answer of both ways, and whether the second needed a coroutine too."""
    first, _ = client.run(answered(client, head_of(path, headers, query), body, whole=False))
    second, needed = client.run(answered(client, head_of(path, headers, query), body, whole=True))
    assert first == second
    assert len(first) == 1
    return first[0], needed


def test_a_plain_publish_needs_no_coroutine_and_is_answered_once_it_is_durable(client):
    path = client.topic()
    (status, headers, body), needed = both(client, f"{path}/publish")
    assert (status, headers, body, needed) == (200, [(b"content-length", b"0")], b"", False)
    assert client.payloads(path) == ["a", "bc"] * 2


@pytest.mark.parametrize(
    ("headers", "body", "query", "status"),
    [
        (AVRO_TYPE, avro.encode_publish_request(PublishRequest(1 << 50, [b"a"])), b"", 400),
        (AVRO_TYPE, b"nonsense", b"", 400),
        (AVRO_TYPE, b"", b"", 400),
        (AVRO_TYPE, PUBLISH + b"x", b"", 400),
        (AVRO_TYPE, PUBLISH, b"transactionWritePointer=1", 400),
        (AVRO_TYPE, PUBLISH, b"other=1", 400),
        ({b"content-type": b"application/json"}, b'{"messages": ["\\u0100"]}', b"", 400),
        ({b"content-type": b"application/json"}, b'{"messages": ["a"], "transactionWritePointer": 7}', b"", 400),
        ({b"content-type": b"avro/binary; a=b"}, PUBLISH, b"", 200),
        ({b"content-type": b"text/plain"}, PUBLISH, b"", 415),
        ({}, PUBLISH, b"", 415),
        ({**AVRO_TYPE, b"content-encoding": b"identity"}, PUBLISH, b"", 200),
        ({**AVRO_TYPE, b"content-encoding": b"br"}, PUBLISH, b"", 415),
        ({**AVRO_TYPE, b"basalt-request-id": b"no id!"}, PUBLISH, b"", 400),
    ],
)
def test_what_is_unusual_is_answered_as_ever(client, headers, body, query, status):
    path = client.topic()
    answer, needed = both(client, f"{path}/publish", headers, body, query)
    assert (answer[0], needed) == (status, True)


RECORDS = {
    "records": [{"payload": "a", "key": "k", "headers": [{"name": "n", "value": "v"}]}, {"payload": "b", "ttlMs": 5000}]
}


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("publish", b'{"messages": ["a", "bc"]}'),
        ("records", json.dumps(RECORDS).encode()),
        ("records", json.dumps({"records": []}).encode()),
        ("records", b"{"),
        ("records", json.dumps({**RECORDS, "transactionWritePointer": 7}).encode()),
    ],
)
def test_json_and_records_are_published_alike_in_both_ways(client, call, body):
    path = opened(client)
    (status, _, _), needed = both(client, f"{path}/{call}", {b"content-type": b"application/json"}, body)
    assert needed is (status != 200)
    read = client.call("GET", f"{path}/records").json()["records"]
    once, again = read[: len(read) // 2], read[len(read) // 2 :]
    assert [{**each, "id": ""} for each in once] == [{**each, "id": ""} for each in again]
    assert len(once) == 2 * (status == 200)


def test_a_topic_that_is_not_in_memory_is_opened_as_ever(client):
    path = client.topic()
    client.services.topics.memory.recent.clear()
    client.services.topics._open.clear()
    exchange = Prompt(PUBLISH)
    assert client.run(answered(client, head_of(f"{path}/publish"), PUBLISH, whole=True, exchange=exchange))[1]
    assert exchange.answers[0][0] == 200
    assert not client.run(answered(client, head_of(f"{path}/publish"), PUBLISH, whole=True))[1]
    assert client.payloads(path) == ["a", "bc"] * 2


@pytest.mark.parametrize(
    "path", ["/v1/namespaces/shop/topics/none/publish", "/v1/namespaces/$/topics/a/publish", "/v1/none"]
)
def test_what_is_not_there_is_told_as_ever(client, path):
    answer, needed = both(client, path)
    assert (answer[0] in (400, 404), needed) == (True, True)


def test_a_body_over_the_limit_is_refused_as_ever(small):
    path = opened(small)
    answer, needed = both(
        small, f"{path}/publish", body=avro.encode_publish_request(PublishRequest(None, [b"a" * 2_000]))
    )
    assert (answer[0], needed) == (413, True)


def test_a_body_of_the_limit_needs_no_coroutine(small):
    path = opened(small)
    body = avro.encode_publish_request(PublishRequest(None, [b"a" * 1_000]))
    body = avro.encode_publish_request(PublishRequest(None, [b"a" * (2_024 - len(body))]))
    assert len(body) == 1_024
    assert not both(small, f"{path}/publish", body=body)[1]


def test_a_full_queue_is_told_as_ever(client, monkeypatch):
    path = opened(client)

    async def story():
        monkeypatch.setattr(client.services.writer.each[0], "_queue_bytes_max", 600)
        held = [Prompt(PUBLISH) for _ in range(2)]
        answering = [client.app.begin_whole(head_of(f"{path}/publish"), each, None, PUBLISH) for each in held]
        assert answering[0] is None
        await answering[1]
        await settled(client)
        return [each.answers[0] for each in held]

    first, second = client.run(story())
    assert (first[0], second[0]) == (200, 503)
    assert BusyError.code.encode() in second[2]


def test_a_server_that_stops_refuses_as_ever(client):
    path = opened(client)
    client.services.writer.each[0]._stopping = True
    try:
        answer, needed = both(client, f"{path}/publish")
    finally:
        client.services.writer.each[0]._stopping = False
    assert (answer[0], needed) == (503, True)


def test_a_write_that_fails_is_told_as_ever(client, monkeypatch):
    path = opened(client)

    def fail(writes):
        raise StoreError("no disk today", hint="look at the disk")

    monkeypatch.setattr(client.services.store, "write", fail)
    answer, needed = both(client, f"{path}/publish")
    assert (answer[0], needed) == (503, False)
    assert b"no disk today" in answer[2]
    assert client.app.metrics._problems[StoreError.code] == 2


def test_a_bug_in_a_stage_is_told_as_ever_and_logged(client, monkeypatch, caplog):
    path = opened(client)
    monkeypatch.setattr(client.services.messaging, "_open_log", lambda log: 1 / 0)
    answer, needed = both(client, f"{path}/publish")
    assert (answer[0], needed) == (500, False)
    assert caplog.text.count("ZeroDivisionError") == 2
    assert b"ZeroDivisionError" not in answer[2]


WORK = avro.encode_work(Work([WorkPublish("shop", "orders", [b"a", b"bc"])]))
TRANSACTION_ID = re.compile(rb'("transaction"|"id"|"writePointer"):("[^"]*"|[0-9]+)')


@pytest.mark.parametrize(
    ("headers", "body", "status", "needs"),
    [
        (AVRO_TYPE, WORK, 200, False),
        (AVRO_TYPE, b"nonsense", 400, True),
        (AVRO_TYPE, WORK + b"x", 400, True),
        (AVRO_TYPE, avro.encode_work(Work([WorkPublish("shop", "none", [b"a"])])), 404, True),
        ({b"content-type": b"application/json"}, b"{}", 200, True),
        ({}, b"", 200, True),
    ],
)
def test_a_one_shot_transaction_needs_no_coroutine_where_nothing_is_unusual(client, headers, body, status, needs):
    opened(client)
    answers = [
        client.run(answered(client, head_of("/v1/transactions", headers), body, whole=whole)) for whole in (False, True)
    ]
    assert [needed for _, needed in answers] == [True, needs]
    (first,), (second,) = ([(status, TRANSACTION_ID.sub(b"", body)) for status, _, body in each] for each, _ in answers)
    assert first == second
    assert first[0] == status


def test_a_one_shot_that_is_sent_again_is_answered_again_and_done_once(client):
    path = opened(client)

    async def story():
        told = []
        for _ in range(2):
            exchange = Prompt(WORK)
            assert client.app.begin_whole(head_of("/v1/transactions"), exchange, "shot-1", WORK) is None
            await settled(client)
            told += exchange.answers
        return told

    first, second = client.run(story())
    assert first == second
    assert first[0] == 200
    assert client.payloads(path) == ["a", "bc"]


def test_a_client_that_has_gone_does_not_undo_its_publish(client):
    path = client.topic()
    client.run(answered(client, head_of(f"{path}/publish"), PUBLISH, whole=True, exchange=Prompt(PUBLISH, gone=True)))
    assert client.payloads(path) == ["a", "bc"]


def test_an_answer_that_cannot_be_sent_spoils_nobody_elses(client):
    path = opened(client)

    class Broken(Prompt):
        def send_now(self, request, status, headers, parts):
            raise RuntimeError("a bug")

    async def story():
        others = [Prompt(PUBLISH), Broken(PUBLISH), Prompt(PUBLISH)]
        for each in others:
            assert client.app.begin_whole(head_of(f"{path}/publish"), each, None, PUBLISH) is None
        await settled(client)
        return [each.answers[0][0] for each in others]

    assert client.run(story()) == [200, "b", 200]


def test_an_answer_that_cannot_be_made_is_told_as_ever(client, monkeypatch):
    opened(client)
    monkeypatch.setattr(transactions, "_outcome", lambda request, outcome: 1 / 0)
    answers = [client.run(answered(client, head_of("/v1/transactions"), WORK, whole=whole)) for whole in (False, True)]
    assert [needed for _, needed in answers] == [True, False]
    assert answers[0][0] == answers[1][0]
    assert answers[0][0][0][0] == 500


def test_metrics_and_the_log_have_both_alike(client, caplog):
    path = opened(client)
    caplog.set_level(logging.INFO, "basalt.access")
    settings = client.services.settings
    client.services.settings = replace(settings, log=replace(settings.log, access="all"))
    both(client, f"{path}/publish")
    lines = [record.fields for record in caplog.records if record.name == "basalt.access"]
    first, second = ({**line, "requestId": "", "durationMs": 0} for line in lines[-2:])
    assert first == second
    assert first["route"].endswith("/publish")
    counted = client.app.metrics.durations[(first["route"], "POST", 2)]
    assert sum(counted.counts) == 2


def test_many_that_come_together_are_one_group(client):
    path = opened(client)

    async def story():
        groups = client.services.writer.groups
        exchanges = [Prompt(PUBLISH) for _ in range(group_commit.INLINE_CALLERS_MAX)]
        for each in exchanges:
            assert client.app.begin_whole(head_of(f"{path}/publish"), each, None, PUBLISH) is None
        await settled(client)
        assert [each.answers[0][0] for each in exchanges] == [200] * len(exchanges)
        return client.services.writer.groups - groups

    assert client.run(story()) == 1
