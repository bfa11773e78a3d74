"""The console's buttons for who has no token: with a ticket of a real KDC, and with a certificate over a real line of TLS."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from tests.certificates import Authority
from tests.kdc import Kdc, negotiate_token, running_kdc
from tests.system.server_process import ANSWER_SECONDS_MAX, ServerProcess

pytestmark = pytest.mark.system

LOGIN = "/console/login"
TOPICS = "/console/topics"
WITH_KERBEROS, WITH_CERTIFICATE = "Sign in with Kerberos", "Sign in with a certificate"


class Shown(NamedTuple):
    """An answer, as a browser takes it."""

    status: int
    headers: http.client.HTTPMessage
    text: str


class Button(NamedTuple):
    """A form that has one button."""

    path: str
    fields: dict[str, str]


class Forms(HTMLParser):
    """The buttons of a page by what is on them, each with the form that it sends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.buttons: dict[str, Button] = {}
        self._form = Button("", {})
        self._is_in_button = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Button(given.get("action", ""), {})
        elif tag == "input" and "name" in given:
            self._form.fields[given["name"]] = given.get("value", "")
        self._is_in_button = tag == "button"

    def handle_data(self, data: str) -> None:
        if self._is_in_button and data.strip():
            self.buttons[data.strip()] = self._form

    def handle_endtag(self, tag: str) -> None:
        self._is_in_button = False


class Browser:
    """As much of a browser as signing in needs: it keeps cookies, and shows a certificate where it has one."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._tls = tls
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, target: str, body: str = "", **headers: str) -> Shown:
        given = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **headers}
        if body:
            given["Content-Type"] = "application/x-www-form-urlencoded"
        connection = (
            http.client.HTTPConnection("localhost", self._port, timeout=ANSWER_SECONDS_MAX)
            if self._tls is None
            else http.client.HTTPSConnection("localhost", self._port, timeout=ANSWER_SECONDS_MAX, context=self._tls)
        )
        try:
            connection.request(method, target, body or None, {name: text for name, text in given.items() if text})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for cookie in answer.headers.get_all("set-cookie") or ():
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies |= {name: value}
            if not value:  # the server takes it back
                del self.cookies[name]
        return Shown(answer.status, answer.headers, text)

    def press(self, label: str, **headers: str) -> Shown:
        """Press this button of the page for signing in, on the way to the topics."""
        button = Forms(self.ask("GET", f"{LOGIN}?next={TOPICS}").text).buttons[label]
        return self.ask("POST", button.path, urlencode(button.fields), **headers)


def is_in(browser: Browser, pressed: Shown, principal: str, cookie: str) -> None:
    """The button led to a login in this cookie, with which pages are shown to this principal, until that one signs out."""
    assert (pressed.status, pressed.headers["location"]) == (303, TOPICS)
    assert set(browser.cookies) == {cookie}
    flags = {flag.strip() for flag in pressed.headers["set-cookie"].split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= flags
    assert ("Secure" in flags) is cookie.startswith("__Host-")
    page = browser.ask("GET", TOPICS)
    assert page.status == 200
    assert principal in page.text
    kept = dict(browser.cookies)
    assert browser.ask("POST", "/console/logout", "next=").status == 303
    assert browser.cookies == {}
    browser.cookies = kept
    assert browser.ask("GET", TOPICS).headers["location"].startswith(LOGIN), "the login has ended at the server, too"
    browser.cookies = {}


def is_refused(browser: Browser, pressed: Shown) -> None:
    """What was sent does not count: the page for signing in says so, and there is no login."""
    assert pressed.status == 303
    assert pressed.headers["location"].startswith(LOGIN)
    page = browser.ask("GET", pressed.headers["location"])
    assert page.status == 401
    assert "does not count" in page.text
    assert WITH_KERBEROS in Forms(page.text).buttons, "who has another ticket tries again"
    assert not any(browser.cookies.values())
    assert browser.ask("GET", TOPICS).headers["location"].startswith(LOGIN)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A realm of these tests' own: its HTTP/localhost is theirs."""
    with running_kdc(tmp_path_factory.mktemp("realm")) as realm, pytest.MonkeyPatch.context() as patch:
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        realm.principal("alice", "of alice")
        yield realm


@pytest.fixture(scope="module")
def keytab(realm: Kdc) -> Path:
    return realm.keytab("HTTP/localhost")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path)
    yield made
    made.kill()


def start(process: ServerProcess, **given: object) -> None:
    process.start(*(word for key, value in given.items() for word in ("--set", f"{key.replace('__', '.')}={value}")))


def start_with_kerberos(process: ServerProcess, keytab: Path) -> None:
    start(
        process, auth__kinds="kerberos", auth__superusers="krb:alice@EXAMPLE.TEST", auth__kerberos__keytab=keytab,
        auth__kerberos__realms="EXAMPLE.TEST",
    )  # fmt: skip


def negotiate(cache: Path) -> str:
    return f"Negotiate {base64.b64encode(negotiate_token(cache)).decode()}"


def test_a_ticket_becomes_a_login_when_the_button_asks_the_browser_for_it(process, realm, keytab):
    start_with_kerberos(process, keytab)
    browser = Browser(process.port)
    asked = browser.press(WITH_KERBEROS)
    assert (asked.status, asked.headers["www-authenticate"]) == (401, "Negotiate")
    assert "kinit" in asked.text, "what a browser shows that has no ticket"
    # A browser that has one sends the form again, and its ticket with it.
    ticket = negotiate(realm.ticket("alice", "of alice"))
    is_in(browser, browser.press(WITH_KERBEROS, Authorization=ticket), "krb:alice@EXAMPLE.TEST", "basalt")
    is_refused(browser, browser.press(WITH_KERBEROS, Authorization=ticket))  # for it counts once


def test_a_ticket_of_another_realm_is_no_login(process, keytab, tmp_path_factory, realm, monkeypatch):
    start_with_kerberos(process, keytab)
    with running_kdc(tmp_path_factory.mktemp("elsewhere"), "ELSEWHERE.TEST") as elsewhere:
        elsewhere.principal("alice", "of alice")
        elsewhere.keytab("HTTP/localhost")
        for name, value in elsewhere.environment.items():
            monkeypatch.setenv(name, value)
        foreign = negotiate(elsewhere.ticket("alice", "of alice"))
    browser = Browser(process.port)
    is_refused(browser, browser.press(WITH_KERBEROS, Authorization=foreign))


def test_a_certificate_becomes_a_login_over_tls_and_who_shows_none_is_told(process, tmp_path):
    authority = Authority(tmp_path / "pki")
    own, client = authority.server(), authority.client("etl")
    start(
        process, tls__certificate=own.certificate, tls__key=own.key, tls__client="optional", tls__client_ca=authority.file,
        auth__kinds="cert", auth__superusers="cert:CN=etl",
    )  # fmt: skip
    stranger = Browser(process.port, authority.trusting())
    pressed = stranger.press(WITH_CERTIFICATE)
    assert pressed.status == 401
    assert "sent no certificate" in pressed.text
    assert stranger.cookies == {}
    browser = Browser(process.port, authority.trusting(client))
    is_in(browser, browser.press(WITH_CERTIFICATE), "cert:CN=etl", "__Host-basalt")
