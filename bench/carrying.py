"""Begin and commit at a server that does not lead, which has the leader decide over its link, beside the same calls passed on to the leader.

    python -m bench.carrying [--transactions N]

Ten messages of 1 KB are for a topic of the server that is asked. Both servers are in this process, over one store by row in memory, with ports and a link on the loopback. Processor time is
counted for each server by what its event loop runs; that of the leader matters, for all transactions of an installation meet there. The ways take turns, and what is told are medians of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from asyncio import events
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from statistics import median
from typing import Any

import basalt
from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs.avro import encode_work
from basalt.http.asgi.requests import Head
from bench.load import Connection, request
from bench.setting_up import messages
from tests.control.server.sharing_servers import Sharers, sharers

MESSAGES = 10
CALLERS = 8
ROUNDS = 7
TRANSACTIONS = 400
JSON = "application/json"
WAYS = ("linked", "passed on", "asked of the leader")

RUNS: ContextVar[str] = ContextVar("RUNS", default="callers")
spent_ns: Counter[str] = Counter()  # by server


def count_processor_time() -> None:
    """Have the processor time of each turn of the event loop counted for the server that it is of."""
    run = events.Handle._run

    def counted(handle: events.Handle) -> None:
        began_ns = time.thread_time_ns()
        run(handle)
        spent_ns[handle._context.get(RUNS, "callers")] += time.thread_time_ns() - began_ns  # type: ignore[attr-defined]

    setattr(events.Handle, "_run", counted)  # noqa: B010


def _passed(choose: Callable[..., Any], head: Head, **_: bool) -> Any:
    return choose(head)


async def add(world: Sharers, name: str) -> None:
    """Begin one more server, whose work counts for this name."""
    context = copy_context()
    context.run(RUNS.set, name)
    server = await asyncio.get_running_loop().create_task(world.add(name), context=context)
    links = server.member.links
    links.tend = partial(context.run, links.tend)  # type: ignore[method-assign]
    if links.to_leader is not None:  # it was dialed for another
        links.to_leader.close("another one counts for the server")
        await world.until(lambda: links.to_leader is not None)


async def transactions(port: int, body: bytes, count: int) -> list[float]:
    """Begin and commit so often; the milliseconds of each commit."""
    took_ms: list[float] = []

    async def client() -> None:
        _, caller = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        for _ in range(count // CALLERS):
            begun = await caller.call(request("/v1/transactions", b'{"snapshot":false}', JSON))
            transaction = json.loads(begun.partition(b"\r\n\r\n")[2])["id"]
            began_s = time.perf_counter()
            await caller.call(request(f"/v1/transactions/{transaction}/commit", body, "avro/binary"))
            took_ms.append((time.perf_counter() - began_s) * 1_000)
        caller.close()

    await asyncio.gather(*(client() for _ in range(CALLERS)))
    return took_ms


async def measure(count: int) -> None:
    """Print the medians of each way."""
    count_processor_time()
    async with sharers(0) as world:
        for name in ("leader", "member"):
            await add(world, name)
        leader, (member,) = world.leader, world.members
        await world.give("orders", member)
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await client.topics.create("orders")
        body = encode_work(Work(publish=[WorkPublish("shop", "orders", messages(MESSAGES))]))
        server, choose = member.member, member.member._application
        cpu_us: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        took_ms: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(ROUNDS + 1):
            for way in WAYS if turn % 2 else reversed(WAYS):
                # Without a body that is looked at, the server that is asked finds that the call is the leader's.
                server._application = partial(_passed, choose) if way == "passed on" else choose  # type: ignore[method-assign]
                before = spent_ns.copy()
                port = leader.port if way == "asked of the leader" else member.port
                took = await transactions(port, body, count)
                if turn:  # the first round warms up
                    spent = spent_ns - before
                    cpu_us[way].append((spent["leader"] / count / 1e3, spent["member"] / count / 1e3))
                    took_ms[way] += took
    for way in WAYS:
        leads, other = (median(each) for each in zip(*cpu_us[way], strict=True))
        print(f"{way:20} leader {leads:6.0f} us  member {other:6.0f} us  commit p50 {median(took_ms[way]):6.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.carrying", description=__doc__)
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS, help="of each round, by eight callers")
    logging.disable(logging.ERROR)
    asyncio.run(measure(parser.parse_args().transactions))


if __name__ == "__main__":
    main()
