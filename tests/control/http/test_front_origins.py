"""A web page in somebody's browser: it cannot change anything on a server but from that server's own origin, or one let in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from basalt.errors import CrossOriginError
from basalt.http.asgi.front import Front
from basalt.http.asgi.requests import BodyBudget, Head, RequestHead
from tests.control.http.raw_line import FACES, RawLine, request

APP = "https://app.example"
RUN = "POST /v1/admin/jobs/stats/run"
FOREIGN = {
    "another site": ["Origin: http://evil.example"],
    "a page without an origin": ["Origin: null"],
    "a frame of ours, in a sandbox": ["Origin: null", "Sec-Fetch-Site: same-origin"],
    "another port": ["Origin: http://localhost:1"],
    "the default port": ["Origin: http://localhost"],
    "another scheme": ["Origin: https://localhost:PORT"],
    "another name of this machine": ["Origin: http://127.0.0.1:PORT"],
    "a name that begins like ours": ["Origin: http://localhost:PORT.evil.example"],
    "a name that ends like ours": ["Origin: http://evil.localhost:PORT"],
    "our name as a user": ["Origin: http://localhost:PORT@evil.example"],
    "ours and another": ["Origin: http://localhost:PORT, http://evil.example"],
    "ours, with a path": ["Origin: http://localhost:PORT/"],
    "nothing": ["Origin: "],
    "another site's page, by the browser's word": ["Sec-Fetch-Site: cross-site"],
    "a sister site's page": ["Sec-Fetch-Site: same-site"],
    "a word of a later browser": ["Sec-Fetch-Site: near-by"],
    "ours, but not by the browser's word": ["Origin: http://localhost:PORT", "Sec-Fetch-Site: cross-site"],
}  # fmt: skip
OWN = {
    "no browser": [],
    "the person at it": ["Sec-Fetch-Site: none"],
    "our own page": ["Origin: http://localhost:PORT", "Sec-Fetch-Site: same-origin"],
    "our own page, of an older browser": ["Origin: http://localhost:PORT"],
    "our own page, by a name in capitals": ["Origin: HTTP://LOCALHOST:PORT"],
}


@pytest.fixture(params=FACES)
def line(request, client):
    return RawLine(client, request.param)


@pytest.fixture(params=FACES)
def open_line(request, connect, settings):
    """A line to a server that lets pages of `APP` in."""
    http = replace(settings.http, cors_origins=(APP,), hosts=("basalt.example",))
    return RawLine(connect(replace(settings, http=http)), request.param)


@pytest.mark.parametrize("page", FOREIGN)
def test_a_page_of_another_origin_runs_no_job_and_ends_no_transaction(line, page):
    begun = line.client.begin()
    abort = f"POST /v1/transactions/{begun['id']}/abort"
    asked = [request(each, *FOREIGN[page]) for each in (RUN, abort) for _ in range(2)]
    replies = line.ask(*asked)
    assert [(reply.status, reply.code) for reply in replies] == [(403, "cross_origin")] * 4
    assert line.client.call("GET", f"/v1/transactions/{begun['id']}").json()["state"] == "OPEN"
    assert line.client.call("GET", "/v1/admin/jobs/stats/history").json() == []


@pytest.mark.parametrize("page", OWN)
def test_who_is_no_other_origins_page_may(line, page):
    assert line.status(*[request(RUN, *OWN[page])] * 2) == [200, 200]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "TRACE", "PROPFIND"])
def test_any_method_that_may_change_something_is_looked_at(line, method):
    target = "/v1/namespaces/shop/topics/orders"
    assert line.status(request(f"{method} {target}", "Origin: null")) == [403]


def test_a_page_that_only_looks_gets_an_answer_that_its_browser_does_not_show_it(line):
    (reply,) = line.ask(request("GET /v1", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"))
    assert reply.status == 200
    assert not [name for name, _ in reply.headers if name.startswith(b"access-control") or name == b"vary"]


def test_a_preflight_lets_nobody_in_by_default(line):
    (reply,) = line.ask(request("OPTIONS /v1", f"Origin: {APP}", "Access-Control-Request-Method: POST"))
    assert reply.status == 204
    assert not [name for name, _ in reply.headers if name.startswith(b"access-control")]


def test_a_head_that_was_admitted_opens_nothing_to_one_that_differs_in_its_origin(line):
    own, foreign = (request(RUN, f"Origin: {origin}") for origin in ("http://localhost:PORT", "http://evil.example"))
    assert line.status(own, own, foreign, own, foreign, foreign) == [200, 200, 403, 200, 403, 403]


def test_the_default_port_needs_no_saying(line):
    assert line.status(
        request(RUN, "Origin: http://localhost", host="localhost"),
        request(RUN, "Origin: http://localhost:80", host="localhost."),
        request(RUN, "Origin: http://localhost", host="localhost:80"),
        request(RUN, "Origin: http://[::1]", host="[0:0::1]"),
        request(RUN, "Origin: https://localhost", host="localhost:443"),
    ) == [200, 200, 200, 200, 403]


@pytest.mark.parametrize(("scheme", "origin", "is_own"), [
    ("https", b"https://localhost", True), ("https", b"https://localhost:443", True), ("https", b"http://localhost", False),
    ("https", b"http://localhost:443", False), ("http", b"https://localhost", False), ("http", b"http://localhost:443", False),
])  # fmt: skip
def test_a_page_that_came_in_the_clear_is_not_one_that_came_over_tls(scheme, origin, is_own):
    caller = SimpleNamespace(internal=False, is_admitted=False, scheme=scheme)
    head = Head("POST", RUN, b"", b"", {b"host": b"localhost", b"origin": origin})
    asking = RequestHead(head, caller, 0.0, BodyBudget(1))  # type: ignore[arg-type]
    if is_own:
        Front().admit(asking)
    else:
        with pytest.raises(CrossOriginError, match="Origin"):
            Front().admit(asking)


def test_an_old_client_without_a_host_has_no_pages(line):
    assert line.status(request(f"{RUN} HTTP/1.0", host=None)) == [200]
    assert line.status(request(f"{RUN} HTTP/1.0", "Origin: http://localhost:PORT", host=None)) == [403]


def test_a_page_of_an_origin_that_is_let_in_may_ask_call_and_read(open_line):
    page = [f"Origin: {APP}", "Sec-Fetch-Site: cross-site"]
    asked, called, called_again, failed = open_line.ask(
        request("OPTIONS /v1/admin/jobs/stats/run", *page, "Access-Control-Request-Method: POST"),
        request(RUN, *page),
        request(RUN, *page),
        request("GET /v1/none", *page),
    )
    assert (asked.status, called.status, called_again.status, failed.status) == (204, 200, 200, 404)
    assert asked.header("access-control-allow-methods") == asked.header("allow") == "POST, OPTIONS"
    assert asked.header("access-control-allow-headers") == "authorization, *"
    assert asked.header("access-control-max-age") == "600"
    for reply in (asked, called, called_again, failed):
        assert reply.header("access-control-allow-origin") == APP
        assert reply.header("vary") == "origin"
        assert reply.header("access-control-allow-credentials") is None


@pytest.mark.parametrize(
    "origin",
    ["null", "*", "http://app.example", "https://app.example:444", "https://app.example.evil", "https://x.app.example"],
)
def test_no_other_origin_is_let_in_with_it(open_line, origin):
    called, looked, asked = open_line.ask(
        request(RUN, f"Origin: {origin}"),
        request("GET /v1", f"Origin: {origin}"),
        request("OPTIONS /v1", f"Origin: {origin}", "Access-Control-Request-Method: POST"),
    )
    assert (called.status, looked.status, asked.status) == (403, 200, 204)
    for reply in (called, looked, asked):
        assert [name for name, _ in reply.headers if name.startswith(b"access-control")] == []
        assert reply.header("vary") == "origin"  # or a shared cache would show it to the page that is let in


def test_an_origin_that_is_let_in_is_known_with_its_port_said(open_line):
    assert open_line.status(request(RUN, f"Origin: {APP}:443"), request(RUN, "Origin: HTTPS://App.Example")) == [
        200,
        200,
    ]


def test_an_origin_that_is_let_in_does_not_let_in_another_host(open_line):
    assert open_line.status(request(RUN, f"Origin: {APP}", host="evil.example")) == [421]


def test_our_own_page_under_a_name_of_the_settings_is_our_own(open_line):
    host = "Basalt.Example:8080"
    assert open_line.status(
        request(RUN, "Origin: http://basalt.example:8080", host=host),
        request(RUN, "Origin: https://basalt.example:8080", host=host),
    ) == [200, 403]
