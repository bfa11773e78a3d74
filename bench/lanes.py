"""Measures a server whose rows and log are not one batch, over a store by row in memory whose writes take a while, as HBase's do.

`lanes`: plain publishing while the log of transactions fails after 2 s, and while it is stuck, beside the same with a log that answers. Two
servers work in turns, and clients that begin transactions are there in both. The cases are for `bench.versus`: two trees side by side.
`topic-lanes`: publishing to many topics with `messaging.topic_lanes` 8, while writes to one bucket hang, beside the same while all answer;
and what eight lanes cost beside one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import TopicName, topic_name
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import MessagingSettings, Settings
from basalt_engine.clock import SystemClock
from basalt_engine.errors import BasaltError, StoreError
from basalt_engine.keys import base_bucket, topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put, Table, TableWrite
from bench.cases import Round, Rounds
from bench.figures import Figure

WRITE_S = 0.002  # as long as a write through a gateway takes on a quiet machine
FAILS_AFTER_S = 2.0
STUCK_S = 15.0  # the limit of a gateway
CLIENTS = 16
BEGINNERS = 4
ROUND_S = 3.0
PAIRS = 5
CALLS = 2_000
MESSAGE = b"m" * 1_024
TITLES = [topic_name("bench", f"topic-{number}") for number in range(4)]
LOG = "transaction_log"
MANY_TITLES = [topic_name("bench", f"many-{number}") for number in range(64)]
CALLERS = (1, 16, 64)
LANES = 8
CALLS_OF_EACH = 60


class SlowStore:
    """A store by row. Each write takes a while; one of the log may take longer, and fail after all."""

    kind = "memory"
    atomic = False
    remote = True
    applies_retention = False
    busy = False

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.log_s: float | None = None  # a write of the log fails after this time; None: it succeeds
        self.stuck_bucket: int | None = None  # writes of messages to this bucket hang

    def table(self, name: str) -> Table:
        return self._inner.table(name)

    def write(self, writes: Sequence[TableWrite]) -> None:
        away_s = self.log_s
        if away_s is not None and any(write.table == LOG for write in writes):
            ends_s = time.monotonic() + away_s
            while self._is_away() and time.monotonic() < ends_s:
                time.sleep(0.01)
            raise StoreError("the region of the log is away")
        while self._is_stuck(writes):
            time.sleep(0.01)
        time.sleep(WRITE_S)
        self._inner.write(writes)

    def _is_stuck(self, writes: Sequence[TableWrite]) -> bool:
        stuck = self.stuck_bucket
        return stuck is not None and any(
            isinstance(row, Put) and row.key[0] == stuck for write in writes for row in write.mutations
        )

    def _is_away(self) -> bool:
        return self.log_s is not None

    def lead(self, epoch: int) -> None:
        self._inner.lead(epoch)

    def checkpoint(self, directory: Path) -> None:
        self._inner.checkpoint(directory)

    def close(self) -> None:
        self._inner.close()


async def _opened(topic_lanes: int = 1, titles: Sequence[TopicName] = TITLES) -> tuple[RunningServices, SlowStore]:
    store: Any = SlowStore(MemoryStore(atomic=False))
    # A tree of before, which `bench.versus` may be given, has one and no setting.
    settings = Settings() if topic_lanes == 1 else Settings(messaging=MessagingSettings(topic_lanes=topic_lanes))
    services = await open_services(settings, None, store=store, clock=SystemClock())
    for title in titles:
        await services.topics.create(title, {})
    return services, store


async def _together(clients: int, calls: int, call: Callable[[int], Awaitable[object]]) -> tuple[float, list[float]]:
    """The seconds of so many calls by several clients, and how long each took in milliseconds."""
    took_ms: list[float] = []

    async def client(number: int) -> None:
        for turn in range(number, calls, clients):
            began_s = time.perf_counter()
            await call(turn)
            took_ms.append((time.perf_counter() - began_s) * 1_000)

    start_s = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return time.perf_counter() - start_s, took_ms


# A log that is away.


def lanes(_folder: Path, quick: bool) -> Iterator[Figure]:
    """Plain publishing beside transactions whose log fails after 2 s, or is stuck."""
    with asyncio.Runner() as runner:
        for name, log_s in (("fails after 2 s", FAILS_AFTER_S), ("is stuck", STUCK_S)):
            away, there, failed = runner.run(_away_and_there(log_s, ROUND_S / 3 if quick else ROUND_S, PAIRS))
            assert not failed, f"{failed} publishes failed with the log"
            yield Figure(f"publish while the log {name}", away, "calls/s", "calls/s with the log", there, 0.9)


async def _away_and_there(log_s: float, round_s: float, pairs: int) -> tuple[float, float, int]:
    """The rates of the middle pair, and how many publishes failed."""
    rates: list[tuple[float, float]] = []
    failed = 0
    (faulty, store), (sound, _) = await _opened(), await _opened()
    for _ in range(pairs):
        store.log_s = log_s
        away, lost = await _publishing(faulty, round_s)
        store.log_s = None
        there, _ = await _publishing(sound, round_s)
        rates.append((away, there))
        failed += lost
    for services in (faulty, sound):
        await services.close()
    away, there = sorted(rates, key=lambda pair: pair[0] / pair[1])[pairs // 2]
    return away, there, failed


async def _publishing(services: RunningServices, seconds: float) -> tuple[float, int]:
    """How many publishes a second clients make, while others begin transactions; and how many fail."""
    done = failed = 0
    ends_s = time.perf_counter() + seconds

    async def publish(number: int) -> None:
        nonlocal done, failed
        while time.perf_counter() < ends_s:
            try:
                await services.messaging.publish(TITLES[number % len(TITLES)], [MESSAGE])
                done += 1
            except BasaltError:
                failed += 1

    async def begin() -> None:
        while time.perf_counter() < ends_s:
            with suppress(BasaltError):
                tx = await services.transactions.begin()
                await services.transactions.abort(tx.id)
            await asyncio.sleep(0.01)

    beginners = [asyncio.ensure_future(begin()) for _ in range(BEGINNERS)]
    start_s = time.perf_counter()
    await asyncio.gather(*(publish(number) for number in range(CLIENTS)))
    rate = done / (time.perf_counter() - start_s)
    for beginner in beginners:
        beginner.cancel()
    await asyncio.wait(beginners)
    return rate, failed


# A bucket that hangs.


def topic_lanes(_folder: Path, quick: bool) -> Iterator[Figure]:
    """Publishing to the topics of other lanes while one bucket hangs, and the cost of many lanes."""
    with asyncio.Runner() as runner:
        hung, sound = runner.run(_one_hangs(ROUND_S / 3 if quick else ROUND_S, PAIRS))
        yield Figure(
            "publish to other topics while a bucket hangs", hung, "calls/s", "calls/s while it answers", sound, 0.9
        )
        for callers in CALLERS:
            eight, one = runner.run(_costs(callers, PAIRS))
            yield Figure(
                f"publish to 64 topics, {callers} callers, 8 lanes",
                eight,
                "CPU us",
                "CPU us, 1 lane",
                one,
                2.5,
                at_most=True,
            )


async def _one_hangs(round_s: float, pairs: int) -> tuple[float, float]:
    """The rates of the middle pair: of callers of the other lanes, while those of one lane hang, and while they do not."""
    rates: list[tuple[float, float]] = []
    for _ in range(pairs):
        services, store = await _opened(LANES, MANY_TITLES)
        lanes = services.writer
        stuck = topic_prefix(*MANY_TITLES[0])
        others = [title for title in MANY_TITLES if lanes.lane_of(topic_prefix(*title)) is not lanes.lane_of(stuck)]
        sound = await _rate(services, others[:CLIENTS], round_s)
        store.stuck_bucket = base_bucket(stuck, services.topics.catalog.buckets)
        hanging = [asyncio.ensure_future(services.messaging.publish(MANY_TITLES[0], [MESSAGE])) for _ in range(CLIENTS)]
        hung = await _rate(services, others[:CLIENTS], round_s)
        assert not any(call.done() for call in hanging), "nothing hung"
        store.stuck_bucket = None
        await asyncio.gather(*hanging)
        await services.close()
        rates.append((hung, sound))
    return sorted(rates, key=lambda pair: pair[0] / pair[1])[pairs // 2]


async def _rate(services: RunningServices, titles: Sequence[TopicName], seconds: float) -> float:
    done, ends_s = 0, time.perf_counter() + seconds

    async def publish(title: TopicName) -> None:
        nonlocal done
        while time.perf_counter() < ends_s:
            await services.messaging.publish(title, [MESSAGE])
            done += 1

    await asyncio.gather(*map(publish, titles))
    return done / seconds


async def _costs(callers: int, pairs: int) -> tuple[float, float]:
    """The CPU time of a publish in the middle pair: with eight lanes, and with one."""
    both = [(await _opened(number, MANY_TITLES))[0] for number in (LANES, 1)]
    costs: list[list[float]] = []
    for _ in range(pairs):
        costs.append([])
        for services in both:
            before_s, calls = time.process_time(), max(300, callers * CALLS_OF_EACH)
            await _together(callers, calls, partial(_publish_to_many, services))
            costs[-1].append((time.process_time() - before_s) * 1e6 / calls)
    for services in both:
        await services.close()
    eight, one = sorted(costs, key=lambda pair: pair[0] / pair[1])[pairs // 2]
    return eight, one


async def _publish_to_many(services: RunningServices, turn: int) -> None:
    await services.messaging.publish(MANY_TITLES[turn % len(MANY_TITLES)], [MESSAGE])


# Cases of fixed work.


def _case(clients: int, calls: int, call: Callable[[RunningServices, int], Awaitable[object]]) -> Any:
    def rounds(_folder: Path, scale: int) -> Rounds:
        some = calls // scale
        with asyncio.Runner() as runner:
            services, _ = runner.run(_opened())
            runner.run(_together(clients, some, lambda turn: call(services, turn)))
            while True:
                before_s = time.process_time()
                took_s, took_ms = runner.run(_together(clients, some, lambda turn: call(services, turn)))
                yield Round((time.process_time() - before_s) * 1e6 / some, some / took_s, median(took_ms))

    return rounds, "CPU us/call"


async def _publish(services: RunningServices, turn: int) -> None:
    await services.messaging.publish(TITLES[turn % len(TITLES)], [MESSAGE])


async def _one_shot(services: RunningServices, turn: int) -> None:
    await services.transactions.one_shot(Work([WorkPublish(*TITLES[turn % len(TITLES)], [MESSAGE])]))


async def _transaction(services: RunningServices, turn: int) -> None:
    title = TITLES[turn % len(TITLES)]
    tx = await services.transactions.begin()
    await services.messaging.store(title, [MESSAGE], tx.write_pointer)
    await services.transactions.commit(tx.id)


async def _mixed(services: RunningServices, turn: int) -> None:
    await (_publish, _one_shot, _transaction)[turn % 3](services, turn)


BY_ROW = {
    "by-row-publish-1": _case(1, CALLS // 8, _publish),
    "by-row-publish-16": _case(16, CALLS, _publish),
    "by-row-one-shot-1": _case(1, CALLS // 8, _one_shot),
    "by-row-one-shot-16": _case(16, CALLS, _one_shot),
    "by-row-transaction-1": _case(1, CALLS // 16, _transaction),
    "by-row-transaction-16": _case(16, CALLS // 2, _transaction),
    "by-row-mixed-24": _case(24, CALLS, _mixed),
}
