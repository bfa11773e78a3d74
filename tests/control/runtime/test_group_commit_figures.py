"""The figures of the group commit: how many calls share a write, and how long the first of them waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basalt.runtime.group_commit import GROUP_BYTES_MAX, SIZES, Group, GroupCommit
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def put(group: Group) -> None:
    group.add("message", Put(b"k", {b"c": b"v"}))


class Late(MemoryStore):
    """A store whose writes take a second of the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def write(self, writes: Any) -> None:
        self.clock.advance(1_000)
        super().write(writes)


async def test_groups_are_counted_by_the_power_of_two_up_to_which_their_calls_come():
    writer = GroupCommit(MemoryStore(), ManualClock())
    for calls in (1, 1, 2, 3, 4, 5, 9):
        await asyncio.gather(*(writer.run(put) for _ in range(calls)))
    assert writer.sizes == [2, 1, 2, 1, 1, *[0] * (SIZES - 4)]
    assert (writer.calls, sum(writer.sizes), writer.groups) == (25, 7, 7)


async def test_more_calls_than_any_bound_are_in_the_last_bucket():
    writer = GroupCommit(MemoryStore(), ManualClock())
    await asyncio.gather(*(writer.run(put) for _ in range((1 << (SIZES - 1)) + 1)))
    assert writer.sizes[SIZES] == 1


async def test_the_wait_is_that_of_the_call_which_came_first():
    clock = ManualClock()
    writer = GroupCommit(Late(clock), clock)
    await writer.run(put)
    assert writer.waits.sum_s == 0.0
    await asyncio.gather(*(writer.run(put, size_bytes=GROUP_BYTES_MAX // 2) for _ in range(2)))
    assert (sum(writer.waits.counts), writer.waits.sum_s) == (
        3,
        1.0,
    )  # the last one did not fit, and waited for the write


async def test_a_call_that_is_taken_later_does_not_count_the_time_before_it_came():
    clock = ManualClock()
    writer = GroupCommit(MemoryStore(), clock)
    await writer.run(put)
    clock.advance(60_000)
    await writer.run(put)
    assert writer.waits.sum_s == 0.0
    assert writer.waiting == 0
