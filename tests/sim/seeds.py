"""Running seeds, one after the other, in a process of their own."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import secrets
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar
from unittest.mock import patch

from basalt.messaging.log.topic_log import LogLimits, TopicLog
from basalt.retention import cells
from basalt.runtime import group_commit
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import LOG_LATE_MS_MAX, TOPIC_LANES_MAX, TopicLanes
from basalt.server import wiring
from basalt.settings import Settings
from basalt.thrift import deferred_change_sets
from basalt.transactions.log import transaction_log
from basalt.transactions.rules import (
    history,
    outcomes,
)
from basalt.transactions.rules.transaction import TransactionLimits
from basalt_engine.clock import Clock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Store, TableWrite
from tests import small_limits
from tests.sim.consumer_world import ConsumerWorld
from tests.sim.groups_world import GroupsWorld
from tests.sim.job_world import JobWorld
from tests.sim.late_writers_world import LateWritersWorld
from tests.sim.linked_world import LinkedWorld
from tests.sim.marked_world import MarkedWorld
from tests.sim.moving_world import MovingWorld
from tests.sim.one_shot_world import LateDeletesWorld, OneShotWorld
from tests.sim.owners_world import OwnersWorld
from tests.sim.producer_world import ProducerWorld, SharedProducerWorld
from tests.sim.shared_world import SharedWorld
from tests.sim.simulated_loop import SimulatedLoop
from tests.sim.world import World

T = TypeVar("T")

HANGS = 0.02  # how many of the writes that are made on a thread take longer than the log may
HURRY = 0.01  # so that some dozens of turns lie between two steps of the clock
WORLDS = (World, OneShotWorld, MovingWorld, MarkedWorld, JobWorld, ConsumerWorld, SharedWorld, ProducerWorld)


def first_failure(seeds: Iterable[int]) -> str | None:
    """The first seed that breaks a promise, and how; None when none does."""
    return _first_failure(seeds, World)


def first_failure_of_several_servers(seeds: Iterable[int]) -> str | None:
    """The same of servers that lead one store in turn."""
    return _first_failure(seeds, SharedWorld)


def first_failure_of_one_shots(seeds: Iterable[int]) -> str | None:
    """The same of one-shot transactions on a store that is not atomic."""
    return _first_failure(seeds, OneShotWorld)


def first_failure_of_several_lanes(seeds: Iterable[int]) -> str | None:
    """The same of stores that are not atomic, and topics in lanes of their own: each kind of one-shot, move, marker and group."""
    of = TopicLanes.of

    def several(store: Store, clock: Clock, buckets: int, **settings: int) -> TopicLanes:
        return of(store, clock, buckets, **{**settings, "number": TOPIC_LANES_MAX})

    worlds = (World, OneShotWorld, MovingWorld, MarkedWorld, OwnersWorld, GroupsWorld)
    with patch.object(TopicLanes, "of", several):
        failures = (_first_failure([seed], worlds[seed % len(worlds)]) for seed in seeds)
        return next((failure for failure in failures if failure is not None), None)


def first_failure_of_late_deletes(seeds: Iterable[int]) -> str | None:
    """The same of rows in doubt whose deletes come late."""
    return _first_failure(seeds, LateDeletesWorld)


def first_failure_of_late_writers(seeds: Iterable[int]) -> str | None:
    """The same of clients that write while their transaction is being ended, and after."""
    return _first_failure(seeds, LateWritersWorld)


def first_failure_of_moves(seeds: Iterable[int]) -> str | None:
    """The same while shards move."""
    return _first_failure(seeds, MovingWorld)


def first_failure_of_owners(seeds: Iterable[int]) -> str | None:
    """The same of commits over the topics of several servers."""
    return _first_failure(seeds, OwnersWorld)


def first_failure_of_markers(seeds: Iterable[int]) -> str | None:
    """The same of markers, some of one-shot transactions."""
    return _first_failure(seeds, MarkedWorld)


def first_failure_of_jobs(seeds: Iterable[int]) -> str | None:
    """The same of jobs whose runs follow each other, and that write in segments of named transactions."""
    return _first_failure(seeds, JobWorld)


def first_failure_of_producers(seeds: Iterable[int]) -> str | None:
    """The same of producers that send again until there is an answer."""
    return _first_failure(seeds, ProducerWorld)


def first_failure_of_producers_of_several_servers(seeds: Iterable[int]) -> str | None:
    """The same of producers, and servers that lead one store in turn."""
    return _first_failure(seeds, SharedProducerWorld)


def first_failure_of_consumers(seeds: Iterable[int]) -> str | None:
    """The same of clients that consume with a group."""
    return _first_failure(seeds, ConsumerWorld)


def first_failure_with_little_memory(seeds: Iterable[int]) -> str | None:
    """The same in every world, of servers that keep one to three topics and writers in memory."""
    seeds = tuple(seeds)
    failures = (_first_failure(seeds, partial(forgetful, world)) for world in WORLDS)
    return next((failure for failure in failures if failure is not None), None)


def forgetful(world: Callable[[int], World], seed: int) -> World:
    """The world of a seed, in which servers keep one to three topics and writers in memory; of each second seed time passes amid work."""
    made = world(seed)
    made.memory = LogLimits(1 + seed % 3, 1 + seed // 3 % 3, 1 + seed // 9 % 3)
    made.hurry = HURRY if seed % 2 else 0.0
    return made


def first_failure_across_limits(seeds: Iterable[int]) -> str | None:
    """The same in every world, where each limit is crossed."""
    seeds = tuple(seeds)
    with small_limits.of_a_simulation():
        return first_failure_with_little_memory(seeds)


def first_failure_with(
    fault: AbstractContextManager[object], world: Callable[[int], World | OwnersWorld], seeds: Iterable[int]
) -> str | None:
    """The same in one of these worlds when a fault (`tests.sim.faults`) is planted."""
    with fault:
        return _first_failure(seeds, world)


def first_failure_without_epochs(seeds: Iterable[int]) -> str | None:
    """The same on a store that lets former leaders write."""
    return _first_failure(seeds, lambda seed: SharedWorld(seed, fenced=False))


def first_failure_of_linked_servers(seeds: Iterable[int]) -> str | None:
    """The same of servers that have one-shot transactions decided over links."""
    return _first_failure(seeds, LinkedWorld)


def first_failure_of_groups(seeds: Iterable[int]) -> str | None:
    """The same of consumer groups that their owners deal."""
    return _first_failure(seeds, GroupsWorld)


def _first_failure(
    seeds: Iterable[int], world: Callable[[int], World | LinkedWorld | OwnersWorld | GroupsWorld]
) -> str | None:
    with _as_the_seed_decides():
        return _first_failure_here(seeds, world)


@contextmanager
def _as_the_seed_decides() -> Iterator[None]:
    """What must be so while seeds run, and not for the tests that come after them in this process."""
    log = logging.getLogger("basalt")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with (
            # No threads, whose order no seed decides.
            patch.multiple(
                group_commit, INLINE_CALLERS_MAX=1 << 30, INLINE_BYTES_MAX=1 << 30, INLINE_WRITE_MS_MAX=float("inf")
            ),
            # Sets of logs have an order of their own in each process otherwise: that of addresses.
            patch.object(TopicLog, "__hash__", lambda log: zlib.crc32(log.topic.keys.prefix)),
            # What is remembered of transactions is packed and cut all the time.
            patch.object(wiring, "transaction_limits", _with_few_outcomes(wiring.transaction_limits)),
            patch.multiple(outcomes, PACKED_TOGETHER=3),
            patch.multiple(outcomes, BLOCK_OUTCOMES=2),
            patch.multiple(history, PAGE_ITEMS=2),
            patch.multiple(transaction_log, PART_BYTES_MAX=200, SEGMENT_ENTRIES=3),
            patch.multiple(deferred_change_sets, ENDED_SETS_MAX=2, LOGGED_TOGETHER_MAX=2),
            # A pass over a table is many steps, and takes several runs.
            patch.multiple(cells, PAGE_ROWS=2, ROWS_MAX=5),
        ):
            yield
    finally:
        log.setLevel(level)


def _first_failure_here(
    seeds: Iterable[int], world: Callable[[int], World | LinkedWorld | OwnersWorld | GroupsWorld]
) -> str | None:
    for seed in seeds:
        try:
            _run(world(seed), seed)
        except BaseException:
            return f"seed {seed}:\n{traceback.format_exc(limit=-4)}"
    return None


def writes_of(world: Callable[[int], World], seed: int) -> list[str]:
    """What the servers of a run wrote, and when."""
    made, write = world(seed), MemoryStore.write
    writes: list[str] = []

    def noted(store: MemoryStore, batch: Sequence[TableWrite]) -> None:
        writes.append(f"{made.clock.monotonic_ms()} {[(each.table, list(each.mutations)) for each in batch]}")
        write(store, batch)

    with _as_the_seed_decides(), patch.object(MemoryStore, "write", noted):
        _run(made, seed)
    return writes


def _run(world: World | LinkedWorld | OwnersWorld | GroupsWorld, seed: int) -> None:
    """One run, with a loop of its own: nothing of another seed's servers is left on it."""
    secret, writes = random.Random(seed), random.Random(seed)

    def begin_write(_: StoreCalls, write: Callable[[], None]) -> None:
        """What a thread of a write lane does: the loop goes on meanwhile, and sometimes for longer than callers wait."""
        if writes.random() < HANGS and not world.steady:
            asyncio.get_running_loop().call_later(2 * LOG_LATE_MS_MAX / 1_000, write)
        else:
            _after_turns(writes.randint(0, 8), write)

    loop = SimulatedLoop(world.clock, random.Random(seed), world.hurry)
    loop.set_exception_handler(lambda *_: None)  # a process that dies is part of the play
    gc.disable()  # a log leaves memory with its last reference: what a cycle holds is freed when the loop says so
    try:
        with (
            patch.object(asyncio, "to_thread", _at_once),
            patch.object(StoreCalls, "begin_write", begin_write),
            patch.multiple(
                secrets, randbits=secret.getrandbits, token_hex=lambda size=32: secret.randbytes(size).hex()
            ),
        ):
            try:
                loop.run_until_complete(world.run())
            finally:
                loop.run_until_complete(_end_all())
    finally:
        gc.enable()
        loop.close()


def _after_turns(turns: int, call: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(_after_turns, turns - 1, call)
    else:
        call()


async def _end_all() -> None:
    """End what servers that died have left on the loop."""
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _at_once(call: Callable[..., T], *arguments: object) -> T:
    """What else runs on a thread, when the event loop comes by again."""
    await asyncio.sleep(0)
    return call(*arguments)


def _with_few_outcomes(limits: Callable[[Settings], TransactionLimits]) -> Callable[[Settings], TransactionLimits]:
    return lambda settings: replace(limits(settings), outcomes_max=2)
