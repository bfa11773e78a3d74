"""Signing in: a credential becomes a login in a cookie that no script reads and no other site sends; it ends, and nobody is sent elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

import pytest

from basalt.access.authentication import IDLE_MS, SEEN_AGAIN_MS
from basalt.access.principal import parse_principal
from basalt.access.proofs.certificate import ClientCertificate
from basalt.access.proofs.kerberos import Accepted
from basalt.access.proofs.proof import Proof
from basalt.console.sign_in import CERTIFICATE_PATH, LOGIN_MS, NOTHING_SENT, TICKET_PATH
from basalt.errors import BusyError, UnauthenticatedError
from basalt.http.asgi.plain_asgi import AsgiExchange
from basalt.settings import Settings
from tests.control.console.conftest import ASKED, BOOTSTRAP, FORM, Api, Browser, Page
from tests.control.console.test_page import over
from tests.control.http.conftest import Client, Reply

LOGIN = "/console/login"


def sign_in(client: Client, token: str, following: str = "/console/topics", **headers: str) -> Reply:
    return client.call("POST", LOGIN, urlencode({"token": token, "next": following}).encode(), FORM, **headers)


def press(client: Client, path: str, following: str = "/console/topics", **headers: str) -> Reply:
    return client.call("POST", path, urlencode({"next": following}).encode(), FORM, **headers)


def cookie_of(reply: Reply) -> str:
    return reply.header("set-cookie").partition(";")[0].partition("=")[2]


def kinds(*names: str, **more: Any) -> Settings:
    return replace(ASKED, auth=replace(ASKED.auth, kinds=names, superusers=("token:bootstrap",), **more))


class Tickets:
    """Kerberos, as far as a server asks it: a token stands for its sender, once."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def prove(self, token: str, now_ms: int, end_point: bytes | None) -> Accepted:
        if token in self.seen or not token.startswith("of-"):
            raise UnauthenticatedError("the Kerberos token is invalid: it was sent before")
        self.seen.add(token)
        principal = parse_principal(f"krb:{token.removeprefix('of-')}@EXAMPLE.TEST")
        return Accepted(Proof(principal, "kerberos ticket", now_ms + 3_600_000), "proof-of-server")


@pytest.fixture
def with_tickets(connect: Callable[[Settings], Client]) -> Client:
    client = connect(kinds("token"))
    authentication = client.services.authentication
    authentication._rules = replace(authentication._rules, kinds=frozenset(("kerberos", "token")))
    client.services.settings = kinds("token", "kerberos")
    authentication._kerberos = Tickets()
    return client


@pytest.fixture
def with_certificate(connect: Callable[[Settings], Client], monkeypatch: pytest.MonkeyPatch) -> Client:
    client = connect(kinds("token", "cert"))
    fields = {"subject": ((("commonName", "ada"),),), "notAfter": "Jan  1 00:00:00 2040 GMT", "serialNumber": "07"}
    monkeypatch.setattr(AsgiExchange, "certificate", ClientCertificate(fields, b"der"))
    return client


@pytest.mark.parametrize(("scheme", "name"), [("http", "basalt"), ("https", "__Host-basalt")])
def test_a_token_becomes_a_login_in_a_cookie_that_no_script_and_no_other_site_has(asked, scheme, name):
    asked.app = over(asked.app, scheme)
    reply = sign_in(asked, BOOTSTRAP)
    assert (reply.status, reply.header("location")) == (303, "/console/topics")
    cookie = SimpleCookie(reply.header("set-cookie"))[name]
    assert (cookie["path"], cookie["httponly"], cookie["samesite"], cookie["domain"]) == ("/", True, "Strict", "")
    assert cookie["max-age"] == str(LOGIN_MS // 1_000)
    assert bool(cookie["secure"]) == (scheme == "https")
    assert BOOTSTRAP not in reply.header("set-cookie")
    assert asked.call("GET", "/console", Cookie=f"{name}={cookie.value}").status == 200


def test_over_tls_a_cookie_that_another_host_could_have_set_does_not_count(asked):
    login = cookie_of(sign_in(asked, BOOTSTRAP))
    asked.app = over(asked.app, "https")
    assert asked.call("GET", "/console", Cookie=f"basalt={login}").header("location").startswith(LOGIN)
    assert asked.call("GET", "/console", Cookie=f"basalt=x; __Host-basalt={login}").status == 200


def test_behind_a_proxy_that_speaks_tls_the_cookie_is_a_secure_one(connect):
    client = connect(replace(ASKED, http=replace(ASKED.http, tls_elsewhere=True)))
    reply = sign_in(client, BOOTSTRAP)
    assert reply.header("set-cookie").startswith("__Host-basalt=")
    assert reply.header("set-cookie").endswith("; Secure")
    login = cookie_of(reply)
    assert client.call("GET", "/console", Cookie=f"basalt={login}").status == 303
    gone = client.call("GET", "/console", Cookie="__Host-basalt=basalt_gone")
    assert gone.header("set-cookie").startswith("__Host-basalt=; Path=/; Max-Age=0")


@pytest.mark.parametrize("token", ["", "wrong", "basalt_0123", "é", "a\r\nb: c"])
def test_a_bad_token_is_told_and_there_is_no_cookie(asked, token):
    reply = sign_in(asked, token)
    page = Page(reply)
    assert (page.status, reply.header("set-cookie")) == (401, None)
    assert page.all("p", role="alert")
    assert page.fields["next"] == "/console/topics"
    assert token not in page.fields.values() or token == ""


def test_a_login_that_an_attacker_has_planted_is_replaced_by_a_new_one(asked, root):
    planted = root("POST", "/v1/auth/logins", {})["token"]
    first, second = (sign_in(asked, BOOTSTRAP, Cookie=f"basalt={planted}") for _ in range(2))
    assert len({planted, cookie_of(first), cookie_of(second)}) == 3
    assert sign_in(asked, planted).status == 401  # and no login makes another one


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}],
)  # fmt: skip
def test_another_site_signs_nobody_in_or_out(asked, headers):
    login = cookie_of(sign_in(asked, BOOTSTRAP))
    for path in (LOGIN, TICKET_PATH, CERTIFICATE_PATH, "/console/logout"):
        body = urlencode({"token": BOOTSTRAP}).encode()
        reply = asked.call("POST", path, body, FORM, Cookie=f"basalt={login}", **headers)
        assert (reply.status, reply.code, reply.header("set-cookie")) == (403, "cross_origin", None)
    assert Browser(asked, login).page("/console").status == 200


@pytest.mark.parametrize(
    "following", ["https://evil.example", "//evil.example", "/\\evil.example", "/v1/auth/whoami", "/console/login?next=/console", "/console\r\na: b"]
)  # fmt: skip
def test_whoever_signs_in_goes_on_to_a_page_of_the_console_alone(asked, following):
    assert sign_in(asked, BOOTSTRAP, following).header("location") == "/console"
    shown = Page(asked.call("GET", f"{LOGIN}?{urlencode({'next': following})}")) if following.isprintable() else None
    assert shown is None or shown.fields["next"] == "/console"


def test_the_sign_in_is_framed_by_no_other_page_and_kept_nowhere(asked):
    headers = dict(asked.call("GET", LOGIN).headers)
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]
    assert b"form-action 'self'" in headers[b"content-security-policy"]
    assert (headers[b"cache-control"], headers[b"referrer-policy"]) == (b"no-store", b"same-origin")


def test_signing_out_ends_the_login_at_the_server_too(asked, root):
    login = cookie_of(sign_in(asked, BOOTSTRAP))
    reply = Browser(asked, login).post("/console/logout")
    assert (reply.status, reply.header("location")) == (303, LOGIN)
    assert reply.header("set-cookie").startswith("basalt=; Path=/; Max-Age=0;")
    assert asked.call("GET", "/v1/auth/whoami", Authorization=f"Bearer {login}").status == 401
    assert Browser(asked, login).get("/console").header("location").startswith(LOGIN)


def test_where_the_server_cannot_end_the_login_it_says_so(asked, monkeypatch):
    login = cookie_of(sign_in(asked, BOOTSTRAP))

    async def busy(*_: object) -> None:
        raise BusyError("the store is full")

    monkeypatch.setattr(asked.services.directory, "change_token", busy)
    reply = Browser(asked, login).post("/console/logout")
    assert (reply.status, "could not end it" in Page(reply).text) == (503, True)
    assert reply.header("set-cookie").startswith("basalt=; Path=/; Max-Age=0;")


def test_a_login_ends_after_an_hour_in_which_nobody_went_to_a_page(asked):
    login = cookie_of(sign_in(asked, BOOTSTRAP))
    ada = Browser(asked, login)
    for _ in range(3):
        asked.clock.advance(int(IDLE_MS - SEEN_AGAIN_MS))
        assert ada.get("/console").status == 200
    asked.clock.advance(int(IDLE_MS + SEEN_AGAIN_MS))
    assert ada.get("/console").header("location").startswith(LOGIN)
    assert ada.get("/console").header("location").startswith(LOGIN)
    # What is no browser's sends it elsewhere, and says itself how long it needs it.
    assert asked.call("GET", "/v1/auth/whoami", Authorization=f"Bearer {login}").status == 200


def test_a_page_that_renews_itself_keeps_no_login_alive(asked):
    login = cookie_of(sign_in(asked, BOOTSTRAP))
    assert asked.call("GET", "/console", Cookie=f"basalt={login}", Sec_Fetch_Mode="navigate").status == 200
    statuses = []
    for _ in range(7):
        asked.clock.advance(600_000)
        renewed = asked.call("GET", "/console?panel=jobs", Cookie=f"basalt={login}", Sec_Fetch_Mode="cors")
        statuses.append(renewed.status)
    assert statuses == [200] * 5 + [303] * 2


def test_a_login_ends_after_twelve_hours_whatever_is_done_with_it(asked):
    login = cookie_of(sign_in(asked, BOOTSTRAP))
    for _ in range(LOGIN_MS // 1_800_000 - 1):
        asked.clock.advance(1_800_000)
        assert Browser(asked, login).get("/console").status == 200
    asked.clock.advance(1_800_000)
    assert Browser(asked, login).get("/console").status == 303


def test_a_button_is_there_for_each_kind_that_is_on(connect, with_tickets, with_certificate):
    def offered(client: Client) -> set[str]:
        page = Page(client.call("GET", LOGIN))
        return {each["action"] for each in page.all("form", method="post")}

    assert offered(connect(kinds("token"))) == {LOGIN}
    assert offered(with_tickets) == {LOGIN, TICKET_PATH}
    assert offered(with_certificate) == {LOGIN, CERTIFICATE_PATH}
    token = connect(kinds("token"))
    for path in (TICKET_PATH, CERTIFICATE_PATH):
        assert press(token, path).status == 404


def test_a_ticket_becomes_a_login_when_the_browser_is_asked_for_one(with_tickets):
    asked_first = press(with_tickets, TICKET_PATH)
    assert (asked_first.status, asked_first.header("www-authenticate")) == (401, "Negotiate")
    assert NOTHING_SENT[TICKET_PATH].partition("`")[0].strip() in Page(asked_first).text
    reply = press(with_tickets, TICKET_PATH, Authorization="Negotiate of-ada")
    assert (reply.status, reply.header("location")) == (303, "/console/topics")
    assert reply.header("www-authenticate") == "Negotiate proof-of-server"
    assert "krb:ada@EXAMPLE.TEST" in Browser(with_tickets, cookie_of(reply)).page("/console").text
    again = press(with_tickets, TICKET_PATH, Authorization="Negotiate of-ada")
    assert (again.status, again.header("location")) == (303, f"{LOGIN}?failed=true")
    failed = Page(with_tickets.call("GET", f"{LOGIN}?failed=true"))
    assert (failed.status, "does not count" in failed.text) == (401, True)


def test_a_certificate_becomes_a_login_and_is_none_by_itself(with_certificate):
    assert with_certificate.call("GET", "/console").header("location") == f"{LOGIN}?next=%2Fconsole"
    assert with_certificate.call("GET", "/v1/auth/whoami").json()["principal"] == "cert:CN=ada"
    reply = press(with_certificate, CERTIFICATE_PATH)
    assert (reply.status, reply.header("location")) == (303, "/console/topics")
    ada = Browser(with_certificate, cookie_of(reply))
    assert "cert:CN=ada" in ada.page("/console").text
    assert ada.post("/console/logout").status == 303
    assert with_certificate.call("GET", "/console").header("location").startswith(LOGIN)


def test_without_a_certificate_the_button_says_what_is_missing(connect):
    page = Page(press(connect(kinds("token", "cert")), CERTIFICATE_PATH))
    assert (page.status, NOTHING_SENT[CERTIFICATE_PATH] in page.text) == (401, True)


def test_who_comes_through_a_proxy_needs_no_login_and_gets_none(connect):
    proxy = replace(ASKED.auth.proxy, principals=("token:gateway",))
    client = connect(kinds("token", "proxy", proxy=proxy))
    root = Api(client, BOOTSTRAP)
    gateway = root("POST", "/v1/admin/tokens", {"name": "gateway"})["token"]
    through = functools.partial(client.call, Authorization=f"Bearer {gateway}", X_Forwarded_User="ada")
    page = Page(through("GET", f"{LOGIN}?next=/console/topics"))
    assert "You come through token:gateway" in page.text
    assert "/console/topics" in page.links
    assert "proxy:ada" in Page(through("GET", "/console")).text
    assert not Page(through("GET", "/console")).all("form", action="/console/logout")
    assert "through a proxy" in Page(client.call("GET", LOGIN)).text
    assert sign_in(client, gateway).status == 401  # the proxy itself is nobody


def test_where_nobody_is_asked_there_is_nothing_to_sign_in_to_and_every_page_says_so(browser, client):
    assert "asks nobody who they are" in browser.page("/console").text
    assert "nothing to sign in to" in browser.page(LOGIN).text
    assert sign_in(client, "anything").header("location") == "/console/topics"
    assert browser.post("/console/logout").status == 303
