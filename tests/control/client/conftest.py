"""What the client's tests share: plans played against given results, and a server that answers by script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import basalt
from basalt.client.asynchronous import client as asynchronous
from basalt.client.asynchronous.transport import AsyncRedirectingTransport
from basalt.client.attempts import RetryPolicy, Send
from basalt.client.blocking import client as blocking
from basalt.client.blocking.transport import RedirectingTransport
from basalt.client.http_transport import HttpTransport
from basalt.client.plans import AnswerLost, Call, ClientScope, Reply, Steps, TopicScope
from basalt.client.servers import Servers, parse_urls, shown
from basalt.embedded import AsyncEmbeddedTransport, EmbeddedServer, EmbeddedTransport
from basalt.errors import BasaltError
from basalt_engine.clock import SystemClock
from tests.control.client.scripted import ScriptedServer

MEMORY = {"store.kind": "memory"}
NOW_MS = 1_700_000_000_000


@pytest.fixture
def scope() -> ClientScope:
    """A client's scope at a fixed time."""
    return ClientScope("shop", lambda: NOW_MS)


@pytest.fixture
def topic_scope() -> TopicScope:
    """The scope of one topic at a fixed time."""
    return TopicScope("shop", "orders", lambda: NOW_MS)


@dataclass
class Played:
    """The calls that a plan made, in order, and what came out of it: a result or an exception."""

    calls: list[Call[Any]] = field(default_factory=list)
    result: Any = None
    raised: BaseException | None = None

    @property
    def paths(self) -> list[str]:
        return [f"{call.method} {call.path}" for call in self.calls]


@pytest.fixture
def play() -> Callable[..., Played]:
    """Run a plan; its calls get these results one by one (an exception is raised in the plan). Without results: None."""

    def run(steps: Steps[Any], *results: object) -> Played:
        played = Played()
        left = list(results)
        try:
            call = next(steps)
            while True:
                played.calls.append(call)
                result = left.pop(0) if left else None
                call = steps.throw(result) if isinstance(result, BaseException) else steps.send(result)
        except StopIteration as stop:
            played.result = stop.value
        except BasaltError as error:
            played.raised = error
        assert not left, f"the plan made {len(played.calls)} calls, and {len(left)} results are left"
        return played

    return run


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server that answers by script."""
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@dataclass
class Side:
    """One of the two clients, used alike: `do(client.topic("a").poll())`."""

    name: str
    runner: asyncio.Runner
    clients: list[Any] = field(default_factory=list)

    def connect(
        self,
        url: str,
        *,
        timeout_ms: int = 60_000,
        attempts_max: int = 4,
        headers: Mapping[str, str] | None = None,
        dedup: bool = True,
    ) -> Any:
        """A client that hardly pauses between attempts."""
        retries = RetryPolicy(timeout_ms, attempts_max, backoff_ms_base=1, backoff_ms_max=2)
        clock = SystemClock()
        servers, now_ms = parse_urls(url), clock.monotonic_ms
        if self.name == "blocking":
            transport = RedirectingTransport(
                Servers(
                    servers, lambda at: HttpTransport(at, headers=headers or {}, tls=None, monotonic_ms=now_ms), now_ms
                )
            )
            return self.keep(blocking.client_of(transport, shown(servers), "shop", retries, clock, dedup=dedup))
        from basalt.client.aiohttp_transport import AiohttpTransport

        over = AsyncRedirectingTransport(
            Servers(servers, lambda at: AiohttpTransport(at, headers=headers or {}, tls=None), now_ms)
        )
        return self.keep(asynchronous.client_of(over, shown(servers), "shop", retries, clock, dedup=dedup))

    def keep(self, client: Any) -> Any:
        """Close this client at the end of the test."""
        self.clients.append(client)
        return client

    def do(self, result: Any) -> Any:
        """The result of a call of either client."""
        if isinstance(result, Awaitable):
            return self.runner.run(_awaited(result))
        return result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


@pytest.fixture(params=["blocking", "async"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """Both clients, one after the other."""
    with asyncio.Runner() as runner:
        both = Side(request.param, runner)
        yield both
        for client in both.clients:
            both.do(client.close())


class Losing:
    """A transport that loses the answer of the next call whose path ends so; the server has done it all the same."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.loses: str | None = None
        self.sent: list[str] = []

    def send(self, request: Send) -> Any:
        self.sent.append(request.target)
        lost = self.loses is not None and request.target.endswith(self.loses)
        self.loses = None if lost else self.loses
        reply = self.inner.send(request)
        if not isinstance(self.inner, AsyncEmbeddedTransport):
            return AnswerLost("cut by the test") if lost else reply

        async def later() -> Reply:
            got: Reply = await reply
            return AnswerLost("cut by the test") if lost else got

        return later()

    def close(self) -> Any:
        return self.inner.close()


@pytest.fixture
def connected(side) -> Iterator[Any]:
    """A client of an empty memory store, whose transport can lose answers (`client.losing`)."""
    server = EmbeddedServer(None, MEMORY)
    retries = RetryPolicy(timeout_ms=10_000, backoff_ms_base=1, backoff_ms_max=2)
    if side.name == "blocking":
        losing = Losing(EmbeddedTransport(server, {}))
        client: Any = blocking.client_of(losing, "embedded:", "shop", retries, SystemClock())
    else:
        losing = Losing(AsyncEmbeddedTransport(server, {}))
        client = asynchronous.client_of(losing, "embedded:", "shop", retries, SystemClock())
    client.losing = losing
    side.do(client.topics.create("orders"))
    side.do(client.topics.create("invoices"))
    yield client
    side.do(client.close())


@pytest.fixture
def no_token_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment variable says what proves who calls."""
    for name in ("BASALT_TOKEN", "BASALT_TOKEN_FILE", "BASALT_CA_FILE", "BASALT_CERT_FILE", "BASALT_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def opened(side, no_token_around) -> Callable[..., Any]:
    """A client through the front door, as a program opens it."""

    def opens(url: str, **options: Any) -> Any:
        connect = basalt.connect if side.name == "blocking" else basalt.aio.connect
        return side.keep(connect(url, **{"attempts_max": 1, **options}))

    return opens
