"""The frame around every call: ids, paths, query parameters, methods."""

from __future__ import annotations

import pytest

from basalt.http.asgi import requests

NAMESPACE = "/v1/namespaces/shop/topics"


def test_every_answer_has_a_request_id_of_its_own(client):
    first, second = (client.call("GET", "/v1").header("basalt-request-id") for _ in range(2))
    assert first
    assert second
    assert first != second


@pytest.mark.parametrize("target", ["/v1", "/nowhere", f"{NAMESPACE}/none"])
def test_the_clients_own_request_id_is_echoed(client, target):
    request_id = "a:b_c.d-" + "7" * 120
    assert client.call("GET", target, basalt_request_id=request_id).header("basalt-request-id") == request_id


@pytest.mark.parametrize("request_id", ["", " ", "a b", "x" * 129, "a\u00e9", '"', "a,b", "a;b", "../../x"])
def test_a_request_id_with_other_characters_is_refused_and_not_echoed(client, request_id):
    reply = client.call("GET", "/v1", basalt_request_id=request_id)
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert reply.json()["field"] == "Basalt-Request-Id"
    assert reply.header("basalt-request-id") != request_id


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/", 404, "route_not_found"),
        ("/v2", 404, "route_not_found"),
        ("/v1/", 404, "route_not_found"),
        (f"{NAMESPACE}/", 404, "route_not_found"),
        (f"{NAMESPACE}/orders/", 404, "route_not_found"),
        (f"{NAMESPACE}/orders/unknown", 404, "route_not_found"),
        ("//v1", 404, "route_not_found"),
        ("/v1/namespaces//topics", 404, "route_not_found"),
        (f"{NAMESPACE}/a%2Fb", 400, "invalid_input"),
        (f"{NAMESPACE}/a%2fproperties", 400, "invalid_input"),
        (f"{NAMESPACE}/a%5Cb", 400, "invalid_input"),
        (f"{NAMESPACE}/%2e%2e", 400, "invalid_name"),
        (f"{NAMESPACE}/..", 400, "invalid_name"),
        (f"{NAMESPACE}/%00", 400, "invalid_name"),
        (f"{NAMESPACE}/a%00b", 400, "invalid_name"),
        (f"{NAMESPACE}/a%0Ab", 400, "invalid_name"),
        (f"{NAMESPACE}/%7F", 400, "invalid_name"),
        (f"{NAMESPACE}/%E2%80%AE", 400, "invalid_name"),
        (f"{NAMESPACE}/%FF%FE", 400, "invalid_input"),
        (f"{NAMESPACE}/%C0%AF", 400, "invalid_input"),
        (f"{NAMESPACE}/a%", 400, "invalid_input"),
        (f"{NAMESPACE}/a%2", 400, "invalid_input"),
        (f"{NAMESPACE}/a%zz", 400, "invalid_input"),
        (f"{NAMESPACE}/a%3Ab", 400, "invalid_name"),
        (f"{NAMESPACE}/.b", 400, "invalid_name"),
        (f"{NAMESPACE}/..", 400, "invalid_name"),
        (f"{NAMESPACE}/{'n' * 256}", 400, "invalid_name"),
        (f"{NAMESPACE}/{'n' * 5_000}", 400, "invalid_name"),
        (f"{NAMESPACE}/{'n' * 9_000}", 414, "uri_too_long"),
        (f"/v1/namespaces/{'n' * 256}/topics/orders", 400, "invalid_name"),
        ("/v1/namespaces/a%20b/topics", 400, "invalid_name"),
        (f"{NAMESPACE}/orders/messages/{'0' * 39}", 400, "invalid_input"),
        ("/v1/transactions/0", 400, "invalid_input"),
        ("/v1/transactions/-1", 400, "invalid_input"),
        ("/v1/transactions/x", 400, "invalid_input"),
        (f"/v1/transactions/{2**63}", 400, "invalid_input"),
        ("/v1/transactions/%D9%A1", 400, "invalid_input"),
    ],
)
def test_a_path_that_means_nothing_is_refused(client, target, status, code):
    reply = client.call("GET", target)
    assert (reply.status, reply.code) == (status, code)


def test_a_name_of_255_characters_is_a_name(client):
    assert client.call("PUT", f"{NAMESPACE}/{'n' * 255}").status == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("colour=red", "colour"),
        ("isolation=committed&colour=red", "colour"),
        ("isolation=committed&isolation=committed", "isolation"),
        ("isolation=dirty", "isolation"),
        ("isolation=", "isolation"),
        ("isolation", "isolation"),
        ("Isolation=committed", "Isolation"),
        ("waitMs=-1", "waitMs"),
        ("waitMs=60001", "waitMs"),
        ("waitMs=1.5", "waitMs"),
        ("waitMs=1_0", "waitMs"),
        ("waitMs=+1", "waitMs"),
        ("waitMs=%D9%A1", "waitMs"),
        ("waitMs=" + "9" * 5_000, "waitMs"),
        ("waitMs=0x10", "waitMs"),
        ("waitMs=", "waitMs"),
        ("transaction=abc", "transaction"),
        ("transaction=0", "transaction"),
        ("transaction=9999999999999999999", "transaction"),
        ("%69solation=dirty", "isolation"),
        ("isolation=%FF", "query"),
        ("isolation=%", "query"),
        ("&", ""),
        ("=committed", ""),
    ],
)
def test_a_query_parameter_that_is_unknown_doubled_or_malformed_is_refused_by_name(client, query, field):
    reply = client.poll(client.topic(), f"?{query}")
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert reply.json()["field"] == field


def test_a_call_without_parameters_takes_none(client):
    reply = client.call("GET", f"{NAMESPACE}?namespace=x")
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert reply.json()["field"] == "namespace"


def test_a_long_query_is_too_long(client):
    assert client.poll(client.topic(), "?isolation=" + "x" * 8_000).code == "uri_too_long"


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("POST", NAMESPACE, "GET, HEAD, OPTIONS"),
        ("PATCH", f"{NAMESPACE}/orders", "DELETE, GET, HEAD, PUT, OPTIONS"),
        ("GET", f"{NAMESPACE}/orders/publish", "POST, OPTIONS"),
        ("DELETE", "/v1/transactions", "GET, HEAD, POST, OPTIONS"),
        ("POST", "/metrics", "GET, HEAD, OPTIONS"),
        ("TRACE", "/v1", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1", "GET, HEAD, OPTIONS"),
        ("get", "/v1", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_is_told_which_ones_there_are(client, method, target, allowed):
    reply = client.call(method, target)
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.header("allow") == allowed


def test_options_answers_the_methods_without_a_body(client):
    reply = client.call("OPTIONS", f"{NAMESPACE}/orders")
    assert (reply.status, reply.body) == (204, b"")
    assert reply.header("allow") == "DELETE, GET, HEAD, PUT, OPTIONS"
    assert reply.header("content-length") is None


def test_head_answers_what_get_would_but_for_the_body(client):
    path = client.topic()
    got, head = client.call("GET", path), client.call("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.header(name) == got.header(name)


def test_head_of_what_is_not_there_is_a_404_without_a_body(client):
    reply = client.call("HEAD", f"{NAMESPACE}/none")
    assert (reply.status, reply.body) == (404, b"")


def test_a_path_matches_only_with_its_own_case(client):
    client.topic("orders")
    assert client.call("GET", f"{NAMESPACE}/Orders").code == "topic_not_found"
    assert client.call("GET", "/V1").code == "route_not_found"


def test_a_websocket_is_turned_away(client):
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    client.run(client.app({"type": "websocket", "path": "/v1", "headers": []}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_server_that_asks_for_start_and_stop_is_answered(client):
    asked = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent = []

    async def receive():
        return asked.pop(0)

    async def send(message):
        sent.append(message["type"])

    client.run(client.app({"type": "lifespan", "state": {}}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_target_of_the_limit_is_taken_and_one_byte_more_is_not(client, monkeypatch):
    path = client.topic()
    monkeypatch.setattr(requests, "URI_BYTES_MAX", len(path))
    assert client.call("GET", path).status == 200
    assert client.call("GET", f"{path}x").code == "uri_too_long"


def test_a_request_id_of_the_limit_is_taken_and_a_character_more_is_not(client, monkeypatch):
    monkeypatch.setattr(requests, "REQUEST_ID_CHARS_MAX", 3)
    assert client.call("GET", "/v1", basalt_request_id="abc").header("basalt-request-id") == "abc"
    refused = client.call("GET", "/v1", basalt_request_id="abcd")
    assert (refused.code, refused.json()["field"]) == ("invalid_input", "Basalt-Request-Id")
    assert "1 to 3 letters" in refused.json()["detail"]
