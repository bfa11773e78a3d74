"""Two ends of one link in this process, over a real connection; and kinds of calls that only tests make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from basalt.cluster.links.frames import CallKind
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello
from basalt.cluster.links.link import Handlers, Link, opened

HANG_S = 60.0  # nothing waits that long
SECRET = b"a secret of thirty-two characters"
ECHO: CallKind[bytes, bytes] = CallKind(200, "echo", bytes, bytes)
COUNT: CallKind[int, int] = CallKind(201, "count", int, int)
NOBODYS: CallKind[int, int] = CallKind(202, "nobody's", int, int)


class Ends:
    """`asks` has dialed, `answers` was dialed; each has handlers of its own."""

    def __init__(self) -> None:
        self.asks_handlers, self.answers_handlers = Handlers(), Handlers()
        self.answers_handlers.add(ECHO, lambda _, question: question)
        self.asks: Link
        self.answers: Link

    def accept(self) -> Link:
        """The end that is dialed."""
        own = Acceptor(SECRET, "installation", "leader", 7, 7)
        self.answers = Link(Accept(bytes(NONCE_BYTES), "a test"), self.answers_handlers, lambda: own)
        return self.answers

    def dial(self, secret: bytes = SECRET) -> Link:
        """The end that dials."""
        hello = Hello(VERSION, "installation", "member", "leader", 7, LEADER, bytes(NONCE_BYTES))
        self.asks = Link(Dial(secret, hello, "a test"), self.asks_handlers)
        return self.asks


@asynccontextmanager
async def link_pair() -> AsyncIterator[Ends]:
    """Both ends, linked."""
    loop, ends = asyncio.get_running_loop(), Ends()
    server = await loop.create_server(ends.accept, "127.0.0.1", 0)
    try:
        await loop.create_connection(ends.dial, "127.0.0.1", server.sockets[0].getsockname()[1])
        assert await opened(ends.asks, HANG_S)
        assert await opened(ends.answers, HANG_S)
        yield ends
    finally:
        for link in (ends.asks, ends.answers):
            link.close("the test is over")
        server.close()


def run(story: Callable[[Ends], Awaitable[None]]) -> None:
    """Run a story of two ends."""

    async def all_of_it() -> None:
        async with link_pair() as ends:
            await story(ends)

    asyncio.run(all_of_it())


async def until(is_so: Callable[[], bool]) -> None:
    """Let the event loop work until it is so."""
    async with asyncio.timeout(HANG_S):
        while not is_so():
            await asyncio.sleep(0.001)
