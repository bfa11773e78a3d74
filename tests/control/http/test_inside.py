"""Calls from within the process: made for a caller, judged as over a socket, and answered as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import parse_principal
from basalt.http.app import ANYBODY
from basalt.http.asgi import inside
from basalt.http.asgi.inside import ANSWER_BYTES_MAX, InsideCall, InsideExchange
from basalt.http.asgi.requests import BodyBudget, RequestHead

ETL = parse_principal("token:etl")


def test_a_call_from_within_is_made_for_its_caller_with_the_rights_that_they_have(client):
    path = client.topic()
    reading = Caller(ETL, Policy([parse_grant("token:etl", ["observe"], "topic:shop:*")]))
    assert client.run(client.app.ask(reading, InsideCall("GET", path))).status == 200
    refused = client.run(client.app.ask(reading, InsideCall("DELETE", path)))
    assert refused.status == 403
    assert refused.header(b"content-type") == b"application/problem+json"
    assert client.call("GET", path).status == 200


def test_a_body_and_the_address_of_who_looks_at_the_page_go_along(client):
    call = InsideCall("POST", "/v1/admin/backups", b'{"name": "b1"}', address="203.0.113.5", agent=b"browser")
    client.run(client.app.ask(ANYBODY, call))
    (line,) = client.call("GET", "/v1/admin/audit").json()
    assert (line["act"], line["address"], line["agent"]) == ("back up", "203.0.113.5", "browser")


def test_an_answer_that_no_page_could_show_is_not_kept(client, monkeypatch):
    assert ANSWER_BYTES_MAX >= 1 << 20
    monkeypatch.setattr(inside, "ANSWER_BYTES_MAX", 10)
    refused = client.run(client.app.ask(ANYBODY, InsideCall("GET", "/openapi.json")))
    assert (refused.status, refused.header(b"content-type")) == (413, b"application/problem+json")
    assert b"too_large" in refused.body


def test_a_call_with_a_key_is_done_once(client):
    path = client.topic()
    call = InsideCall("POST", f"{path}/records", b'{"records":[{"payload":"a"}]}', once="k1")
    for _ in range(2):
        assert client.run(client.app.ask(ANYBODY, call)).status == 200
    assert client.payloads(path) == ["a"]


def test_an_answer_that_another_server_gives_is_kept_as_it_comes_and_no_longer_than_one_of_here(client, monkeypatch):
    monkeypatch.setattr(inside, "ANSWER_BYTES_MAX", 10)
    taken: list[bytes] = []

    async def parts(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            taken.append(b"four")
            yield b"four"

    for count, status in ((2, 200), (1_000, 413)):
        exchange, taken[:] = InsideExchange(InsideCall("GET", "/v1")), []
        request = RequestHead(InsideCall("GET", "/v1").head(), exchange, 0.0, BodyBudget(0))
        client.run(exchange.send(request, 200, [], parts(count)))
        assert (exchange.reply.status, len(taken)) == (status, min(count, 3))
