"""The console as a browser without scripts meets it: pages of an application in this process, read as HTML."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest

from basalt.console.app import PAGES
from basalt.http.app import build_app
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt.settings.tree import TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from tests.control.http.conftest import Client, Reply
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, PaperCluster

FORM = "application/x-www-form-urlencoded"
BOOTSTRAP = "b" * 40
ASKED = Settings(auth=AuthSettings(kinds=("token",), bootstrap_token=BOOTSTRAP))
TERMS = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS))
BLOCKS = frozenset(("td", "th", "dt", "dd", "li", "p", "h1", "h2", "h3", "label", "button"))
VOID = frozenset(("meta", "link", "input", "img", "br", "hr"))


class Page(HTMLParser):
    """A page: its text, its links, forms and buttons. Markup that is not closed as it was opened fails."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(convert_charrefs=True)
        self.status = reply.status
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.lines: list[str] = []  # to be copied
        self._open: list[str] = []
        self._line = False
        self._parts: list[str] = []
        assert reply.header("content-type") == "text/html; charset=utf-8", (reply.status, reply.body)
        assert b"default-src 'none'" in dict(reply.headers)[b"content-security-policy"]
        self.feed(reply.body.decode())
        self.close()
        assert self._open == []
        self.text = " ".join("".join(self._parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        assert tag != "script" or given.get("src", "").startswith("/console/assets/")
        self.tags.append((tag, given))
        if "data-copy" in given:
            self.lines.append("")
            self._line = True
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._line = self._line and tag != "code"
        if tag in BLOCKS:
            self._parts.append(" ")

    def handle_data(self, data: str) -> None:
        self._parts.append(data)
        if self._line:
            self.lines[-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """The attributes of the elements of this kind that have these."""
        return [each for name, each in self.tags if name == tag and wanted.items() <= each.items()]

    @property
    def links(self) -> list[str]:
        return [each["href"] for each in self.all("a")]

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the page's forms, as a browser would send them."""
        return {each["name"]: each.get("value", "") for each in self.all("input") if "name" in each}


class Browser:
    """Somebody who looks at pages and sends forms; `token` is that of a login."""

    def __init__(self, client: Client, token: str | None = None) -> None:
        self.client = client
        self.token = token
        self._headers = {} if token is None else {"Cookie": f"basalt={token}"}

    def get(self, path: str) -> Reply:
        return self.client.call("GET", path, **self._headers)

    def page(self, path: str) -> Page:
        return Page(self.get(path))

    def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Reply:
        return self.client.call("POST", path, urlencode(fields or {}).encode(), FORM, **self._headers, **headers)

    def plan(self, path: str) -> Page:
        """The first step of an act."""
        return Page(self.post(f"{path}?step=plan"))

    def act(self, path: str, **fields: str) -> Page:
        """Both steps of an act."""
        planned = self.plan(path)
        assert planned.status == 200, planned.text
        return Page(self.post(path, {**planned.fields, **fields}))


class Api:
    """Somebody who makes calls, with a credential or none."""

    def __init__(self, client: Client, token: str | None = None) -> None:
        self.client = client
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __call__(self, method: str, path: str, body: Any = b"", status: int = 200) -> Any:
        reply = self.client.call(method, path, body, **self._headers)
        assert reply.status == status, reply.body
        return reply.json() if reply.body else None


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def connect(runner: asyncio.Runner) -> Iterator[Callable[[Settings], Client]]:
    """Open services over a memory store, and a client of their application with its pages."""
    opened: list[RunningServices] = []

    def open_one(settings: Settings) -> Client:
        services = runner.run(open_services(settings, None, store=MemoryStore(), clock=ManualClock()))
        opened.append(services)
        client = Client(services, runner)
        client.app = build_app(services, further_routes=PAGES)
        return client

    yield open_one
    for services in opened:
        runner.run(services.close())


@pytest.fixture
def connect_cluster(runner: asyncio.Runner) -> Iterator[Callable[[Settings], tuple[Client, PaperCluster]]]:
    """Open services over a store that has regions, if only on paper, and a client of their application with its pages."""
    opened: list[RunningServices] = []

    def open_one(settings: Settings) -> tuple[Client, PaperCluster]:
        store = MemoryStore(atomic=False)
        cluster = PaperCluster(SystemTable(store.table("system")))
        services = runner.run(open_services(settings, None, store=store, clock=ManualClock(), cluster=cluster))
        opened.append(services)
        client = Client(services, runner)
        client.app = build_app(services, further_routes=PAGES)
        return client, cluster

    yield open_one
    for services in opened:
        runner.run(services.close())


@pytest.fixture
def clustered(
    connect_cluster: Callable[[Settings], tuple[Client, PaperCluster]],
) -> tuple[Client, PaperCluster]:
    """A client of a server whose store has regions, if only on paper."""
    return connect_cluster(TERMS)


def failed_writer(api: Api) -> int:
    """A writer on the invalid list, with a row in a topic; its pointer."""
    if "orders" not in api("GET", "/v1/namespaces/shop/topics"):
        api("PUT", "/v1/namespaces/shop/topics/orders")
    begun = api("POST", "/v1/transactions", {"snapshot": False})
    sent = {"transactionWritePointer": begun["writePointer"], "messages": ["lost"]}
    api("POST", "/v1/namespaces/shop/topics/orders/publish", sent)
    assert api("POST", f"/v1/transactions/{begun['id']}/invalidate") == {"invalidated": True}
    return int(begun["writePointer"])


def outlive(client: Client) -> None:
    """Let the time pass until the lifetime of no writer goes on."""
    assert isinstance(client.clock, ManualClock)
    client.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)


@pytest.fixture
def client(connect: Callable[[Settings], Client]) -> Client:
    return connect(Settings())


@pytest.fixture
def browser(client: Client) -> Browser:
    return Browser(client)


@pytest.fixture
def api(client: Client) -> Api:
    return Api(client)


@pytest.fixture
def asked(connect: Callable[[Settings], Client]) -> Client:
    """A client of a server that asks who is there."""
    return connect(ASKED)


@pytest.fixture
def root(asked: Client) -> Api:
    return Api(asked, BOOTSTRAP)


@pytest.fixture
def signed_in(asked: Client, root: Api) -> Callable[..., Browser]:
    """A browser of somebody with these rights, who has signed in."""

    def sign_in(name: str, *rights: tuple[str, str]) -> Browser:
        for verb, resource in rights:
            root("POST", "/v1/admin/grants", {"subject": f"token:{name}", "verbs": [verb], "resource": resource})
        token = root("POST", "/v1/admin/tokens", {"name": name})["token"]
        return Browser(asked, Api(asked, token)("POST", "/v1/auth/logins", {"ttlMs": 3_600_000})["token"])

    return sign_in
