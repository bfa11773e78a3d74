"""The name that a request asks for: one that an outsider has point to this server opens nothing."""

from __future__ import annotations

import socket
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from basalt.access.policy import Caller
from basalt.access.principal import internal
from basalt.errors import InputError, WrongHostError
from basalt.http.app import build_app
from basalt.http.asgi import front
from basalt.http.asgi.front import Front
from basalt.http.asgi.requests import BodyBudget, Head, RequestHead
from basalt.settings import ServerSettings
from basalt.settings.auth import AuthSettings
from basalt.settings.cluster import LeaderSettings
from tests.control.http.raw_line import FACES, RawLine, request

OURS = [
    "127.0.0.1", "127.0.0.1:PORT", "localhost", "localhost:PORT", "LocalHost:PORT", "localhost.", "localhost.:PORT", "localhost:1",
    "10.1.2.3:80", "[::1]", "[::1]:PORT", "[2001:DB8::7]:80", "0.0.0.0", "alpha", "ALPHA.:4780", "listens.example", "leads.example:9",
    "basalt", "Basalt.Example.", "basalt.example:8080",
]  # fmt: skip
STRANGE = [
    "evil.example", "evil.example:PORT", "localhost.evil.example", "localhostile", "localhost..", "xlocalhost", "127.0.0.1.evil.example",
    "127.0.0.1.nip.example", "127.1", "2130706433", "0x7f000001", "127.0.0.01", "127.0.0.256", "basalt.evil.example", "basalt-evil",
    "basal", "basalt.example.evil", "evil.basalt.example", "alpha.evil.example", "alphabet", "leads.example.evil", "example",
]  # fmt: skip
NO_HOSTS = [
    "", ":PORT", "localhost:", "localhost:x", "localhost:-1", "localhost:65536", "localhost:123456", "localhost, evil.example",
    "localhost evil.example", "user@localhost", "localhost@evil.example", "localhost/", "http://localhost", "[::1", "::1", "[127.0.0.1]",
    "[::1%25lo]", "[::1%lo]", "[::1]x", "localhost#", "loc\xe4lhost", "*",
]  # fmt: skip


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Alpha")


@pytest.fixture
def named(settings):
    """Settings that give the server some names."""
    return replace(
        settings,
        server=ServerSettings(host="listens.example"),
        leader=LeaderSettings(url="https://leads.example:4780/below"),
        http=replace(settings.http, hosts=("basalt", "basalt.example")),
    )


@pytest.fixture(params=FACES)
def line(request, connect, named):
    return RawLine(connect(named), request.param)


def test_a_server_goes_by_its_addresses_its_machines_name_and_those_of_its_settings(line):
    assert line.status(*[request("GET /v1", host=host) for host in OURS for _ in range(2)]) == [200] * 2 * len(OURS)


def test_any_other_name_is_another_servers(line):
    replies = line.ask(*[request("GET /v1", host=host) for host in STRANGE for _ in range(2)])
    assert [(reply.status, reply.code) for reply in replies] == [(421, "wrong_host")] * 2 * len(STRANGE)
    assert replies[0].json()["field"] == "Host"
    assert "evil.example" in replies[0].json()["detail"]
    assert "http.hosts" in replies[0].json()["hint"]


@pytest.mark.parametrize("target", ["/livez", "/readyz", "/metrics", "/openapi.json", "/v1/none", "/v1/transactions"])
def test_nothing_is_told_under_another_name(line, target):
    assert line.status(request(f"GET {target}", host="evil.example")) == [421]
    assert line.status(request(f"OPTIONS {target}", host="evil.example")) == [421]
    assert line.status(request(f"POST {target}", host="evil.example", body=b"{}")) == [421]


def test_what_is_no_host_is_malformed(line):
    replies = line.ask(*[request("GET /v1", host=host) for host in NO_HOSTS])
    assert [(reply.status, reply.code) for reply in replies] == [(400, "invalid_input")] * len(NO_HOSTS)
    assert {reply.json()["field"] for reply in replies} == {"Host"}


def test_a_request_without_a_host_is_malformed_unless_it_is_of_an_old_client(line):
    (missing,) = line.ask(request("GET /v1", host=None))
    assert (missing.status, missing.json()["field"]) == (400, "Host")
    assert line.status(request("GET /v1 HTTP/1.0", host=None)) == [200]
    assert line.status(request("GET /v1 HTTP/1.0", host="evil.example")) == [421]


def test_the_host_of_an_absolute_target_is_looked_at_too(connect, named):
    line = RawLine(connect(named), "our own protocol")  # plain ASGI does not tell it
    asked = [
        ("http://localhost:PORT/v1", "localhost", 200),
        ("http://basalt.example/v1", "localhost", 200),
        ("http://[::1]:PORT/v1", "localhost", 200),
        ("http://evil.example/v1", "localhost", 421),
        ("http://evil.example:PORT/v1", "127.0.0.1", 421),
        ("http://localhost.evil.example/v1", "localhost", 421),
        ("http://localhost/v1", "evil.example", 421),
        ("http://user@localhost/v1", "localhost", 400),
        ("http://localhost@evil.example/v1", "localhost", 400),
    ]
    requests = [request(f"GET {target}", host=host) for target, host, _ in asked for _ in range(2)]
    assert line.status(*requests) == [status for *_, status in asked for _ in range(2)]
    assert line.status(request("GET http://localhost/v1", host=None)) == [400]


def test_an_absolute_target_says_whose_page_is_our_own(connect, named):
    line = RawLine(connect(named), "our own protocol")
    run = "POST http://basalt.example/v1/admin/jobs/stats/run"
    assert line.status(
        request(run, "Origin: http://basalt.example"), request(run, "Origin: http://localhost:PORT")
    ) == [200, 403]


def test_a_name_that_was_accepted_opens_nothing_to_another(line):
    ours, strange = request("GET /v1"), request("GET /v1", host="evil.example")
    assert line.status(ours, ours, strange, ours, strange, strange) == [200, 200, 421, 200, 421, 421]


def test_a_head_that_was_seen_before_is_admitted_without_a_look(connect, named, monkeypatch):
    line = RawLine(connect(named), "our own protocol")
    looks = []
    admit = Front.admit
    monkeypatch.setattr(Front, "admit", lambda self, request: (looks.append(1), admit(self, request)))
    assert line.status(*[request("GET /v1")] * 9) == [200] * 9
    assert len(looks) == 2  # parsed and answered; then kept, and found with what was found for it


def test_the_names_that_are_kept_have_a_limit(monkeypatch, line):
    monkeypatch.setattr(front, "AUTHORITIES_KEPT_MAX", 2)
    assert line.status(*[request("GET /v1", host=f"10.0.0.{number}") for number in range(9)]) == [200] * 9
    assert len(line.client.app._routes._front._known) <= 2


PIECES = ["localhost", "basalt", "evil", "example", "127.0.0.1", "::1", "4780", "\xe4", *".:@[]/%#? ,\\-_\t0"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("localhost:80@evil.example")
@example("basalt..")
def test_what_is_accepted_is_a_name_of_ours_to_any_other_reader_too(text):
    head = Head("GET", "/v1", b"/v1", b"", {b"host": text.encode("latin-1")})
    try:
        Front(["basalt"]).admit(
            RequestHead(head, SimpleNamespace(internal=False, is_admitted=False), 0.0, BodyBudget(1))
        )  # type: ignore[arg-type]
    except (InputError, WrongHostError):
        return
    read = urlsplit(f"http://{text}/").hostname or ""
    assert read.removesuffix(".") in ("localhost", "basalt") or ip_address(read.removesuffix("."))


def test_a_name_without_end_is_told_shortened(line, monkeypatch):
    monkeypatch.setattr(front, "SHOWN_CHARS_MAX", 7)
    strange, none = line.ask(request("GET /v1", host="evil.example"), request("GET /v1", host="evil .example"))
    assert "for evil.ex, which" in strange.json()["detail"]
    assert "'evil .e' is no host" in none.json()["detail"]


def test_a_call_without_an_address_is_no_call_from_inside(client):
    async def ask(app):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": "/v1", "raw_path": b"/v1", "query_string": b"", "client": None,
            "headers": [], "http_version": "1.1",
        }  # fmt: skip
        await app(scope, receive, send)
        return sent[0]["status"]

    assert client.run(ask(client.app)) == 400
    assert client.run(ask(build_app(client.services, Caller(internal("embedded"), None)))) == 200


@pytest.mark.parametrize(
    ("auth", "hosts", "status"),
    [
        (AuthSettings(kinds=("token",)), (), 200),
        (AuthSettings(kinds=("token", "kerberos")), (), 200),
        (AuthSettings(kinds=("none",)), (), 421),
        (AuthSettings(kinds=("token",), enforce=False), (), 421),  # who sends no credential is let in
        (AuthSettings(kinds=("token", "cert")), (), 421),  # which browsers send by themselves
        (AuthSettings(kinds=("token",)), ("basalt",), 421),
    ],
)
def test_names_need_not_be_known_where_every_call_brings_a_credential_that_no_browser_sends_by_itself(
    settings, auth, hosts, status
):
    named = Front.of(replace(settings, auth=auth, http=replace(settings.http, hosts=hosts)))
    head = Head("GET", "/v1", b"/v1", b"", {b"host": b"elsewhere.example"})
    asked = RequestHead(head, SimpleNamespace(internal=False, is_admitted=False, scheme="http"), 0, BodyBudget(1))
    if status == 421:
        with pytest.raises(WrongHostError):
            named.admit(asked)
    else:
        named.admit(asked)
