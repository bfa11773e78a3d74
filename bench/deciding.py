"""One-shot transactions of a server that has them decided over a link, beside those of the server that decides.

    python -m bench.deciding [--calls N] [--write-ms MS]

Both servers are in this process, over one store by row in memory whose writes take a while, and a connection on the loopback; the member follows the log, too. So
the processor time is that of both. The two ways take turns, and what is told are the medians of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any, NamedTuple, cast

import uvloop

from basalt.catalog.topics import topic_name
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello
from basalt.cluster.links.link import Link, opened
from basalt_engine.clock import SystemClock
from basalt_engine.table import TableWrite
from tests.control.commits.linked_shops import Installation, Member
from tests.control.commits.test_recovery_lost_one_shots import LosingStore
from tests.wiring import A, Wired, shop_work

ROUNDS = 7
CALLERS = (1, 32)
WARM_UP_CALLS = 200
HANG_S = 60.0
MESSAGE = "m" * 1_024
AWAY = topic_name("shop", "away")

OneShot = Callable[[], Awaitable[object]]


class SlowStore(LosingStore):
    """A store by row whose writes take a while, on a thread of their own."""

    remote = True

    def __init__(self, write_s: float) -> None:
        super().__init__()
        self._write_s = write_s
        self.remote = write_s > 0

    def another(self) -> SlowStore:
        made = SlowStore(self._write_s)
        made._open(self._shared)
        return made

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self._write_s:
            time.sleep(self._write_s)
        super().write(writes)


class LinkedMember(Member):
    """A member with a link over a connection."""

    async def connect(self) -> None:
        loop, secret = asyncio.get_running_loop(), secrets.token_bytes(32)
        own, accepted = Acceptor(secret, "bench", "leader", 1, 1), list[Link]()

        def accept() -> Link:
            accepted.append(
                Link(Accept(secrets.token_bytes(NONCE_BYTES), "bench"), self.installation.handlers, lambda: own)
            )
            return accepted[-1]

        server = await loop.create_server(accept, "127.0.0.1", 0)
        hello = Hello(VERSION, "bench", self.name, "leader", 1, LEADER, secrets.token_bytes(NONCE_BYTES))
        link = Link(Dial(secret, hello, "bench"), self.links.handlers)
        await loop.create_connection(lambda: link, *server.sockets[0].getsockname())
        assert await opened(link, HANG_S)
        assert await opened(accepted[0], HANG_S)
        self.installation.links.of_members[self.name] = accepted[0]
        self.links.linked(link)
        await self.followed.ensure_known()


class Measured(NamedTuple):
    """Of one transaction: half of them took no longer than so many milliseconds, and the processor's microseconds."""

    p50_ms: float
    cpu_us: float


async def ways(write_s: float) -> dict[str, OneShot]:
    """The same transaction at the server that decides, and at a member."""
    store, clock = SlowStore(write_s), SystemClock()
    shop = Installation(store, cast("Any", clock), await Wired.start(store, cast("Any", clock)))
    for title in (A, AWAY):
        await shop.leader.topics.create(title, {})
    member = LinkedMember(shop, "member")
    await member.connect()
    work = shop_work(orders=[MESSAGE])
    return {
        "in the leader": lambda: shop.leader.transactions.one_shot(work),
        "away from it": lambda: member.one_shot(AWAY, MESSAGE),
    }


async def measure(one_shot: OneShot, callers: int, calls: int) -> Measured:
    """So many transactions of so many callers at a time."""
    times_s: list[float] = []

    async def work() -> None:
        for _ in range(calls // callers):
            began_s = time.perf_counter()
            await one_shot()
            times_s.append(time.perf_counter() - began_s)

    began_s = time.process_time()
    await asyncio.gather(*(work() for _ in range(callers)))
    return Measured(1e3 * median(times_s), 1e6 * (time.process_time() - began_s) / len(times_s))


async def compare(calls: int, write_ms: float) -> None:
    """Both ways in turns, and the figures with their ratios."""
    both = await ways(write_ms / 1_000)
    print("callers  way            p50 ms  CPU µs of both servers")
    for callers in CALLERS:
        got: dict[str, list[Measured]] = {name: [] for name in both}
        for one_shot in both.values():
            await measure(one_shot, callers, WARM_UP_CALLS)
        for _ in range(ROUNDS):
            for name, one_shot in both.items():
                got[name].append(await measure(one_shot, callers, calls))
        figures = {
            name: Measured(median(each.p50_ms for each in rounds), median(each.cpu_us for each in rounds))
            for name, rounds in got.items()
        }
        for name, each in figures.items():
            print(f"{callers:7}  {name:13}  {each.p50_ms:6.3f}  {each.cpu_us:6.1f}")
        here, away = figures.values()
        print(f"{callers:7}  ratio          {away.p50_ms / here.p50_ms:6.2f}  {away.cpu_us / here.cpu_us:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--write-ms", type=float, default=2.0, help="0: the event loop writes by itself")
    given = parser.parse_args()
    logging.getLogger("basalt").setLevel(logging.ERROR)
    uvloop.run(compare(given.calls, given.write_ms))


if __name__ == "__main__":
    main()
