"""Renewals from the side, by a thread and by a task: until they are stopped, or there is nothing to renew."""

from __future__ import annotations

import asyncio
import threading

import pytest

from basalt.client.consumer.renewal import AsyncRenewal, Renewal

SOON_MS = 1
NEVER_MS = 600_000
WAIT_SECONDS_MAX = 60.0  # a bound for a hang


class Told:
    """Counts renewals, and says when there were three; after `ends` of them there is nothing to renew.

    `wait_ms` is how long it then says to wait for the next one.
    """

    def __init__(self, ends: int | None = None, wait_ms: int = SOON_MS) -> None:
        self.count = 0
        self.wait_ms = wait_ms
        self.ends = ends
        self.thrice = threading.Event()

    def __call__(self) -> int | None:
        self.count += 1
        if self.count == 3:
            self.thrice.set()
        return None if self.count == self.ends else self.wait_ms

    async def later(self) -> int | None:
        await asyncio.sleep(0)
        return self()


def test_a_thread_renews_until_it_is_stopped():
    told = Told()
    renewal = Renewal(told, SOON_MS)
    assert told.thrice.wait(WAIT_SECONDS_MAX)
    renewal.stop()
    stopped_at = told.count
    renewal.stop()
    assert told.count == stopped_at
    assert not renewal._thread.is_alive()


def test_a_thread_ends_with_what_it_renews():
    told = Told(ends=3)
    renewal = Renewal(told, SOON_MS)
    renewal._thread.join(WAIT_SECONDS_MAX)
    assert (told.count, renewal._thread.is_alive()) == (3, False)


def test_a_stop_does_not_wait_for_the_next_renewal():
    told = Told()
    Renewal(told, NEVER_MS).stop()
    assert told.count == 0


def test_the_next_renewal_comes_when_the_last_one_says():
    told = Told(wait_ms=NEVER_MS)
    renewal = Renewal(told, SOON_MS)
    told.thrice.wait(0.05)
    renewal.stop()
    assert told.count <= 1
    often = Told()
    soon = Renewal(often, SOON_MS)
    assert often.thrice.wait(WAIT_SECONDS_MAX)
    soon.stop()


def test_a_stop_waits_for_a_renewal_that_is_on_its_way():
    begun, may_end = threading.Event(), threading.Event()
    ended: list[str] = []

    def renew() -> int:
        begun.set()
        may_end.wait(WAIT_SECONDS_MAX)
        ended.append("renewed")
        return SOON_MS

    renewal = Renewal(renew, SOON_MS)
    assert begun.wait(WAIT_SECONDS_MAX)
    stopping = threading.Thread(target=lambda: (renewal.stop(), ended.append("stopped")))
    stopping.start()
    may_end.set()
    stopping.join(WAIT_SECONDS_MAX)
    assert ended == ["renewed", "stopped"]


def test_a_task_renews_until_it_is_stopped():
    async def run() -> None:
        told = Told()
        renewal = AsyncRenewal(told.later, SOON_MS)
        while told.count < 3:
            await asyncio.sleep(0)
        await renewal.stop()
        stopped_at = told.count
        await renewal.stop()
        assert told.count == stopped_at

    asyncio.run(asyncio.wait_for(run(), WAIT_SECONDS_MAX))


def test_a_task_ends_with_what_it_renews_and_stops_at_once():
    async def run() -> None:
        told = Told(ends=3)
        await AsyncRenewal(told.later, SOON_MS)._task
        assert told.count == 3
        waiting = Told()
        await AsyncRenewal(waiting.later, NEVER_MS).stop()
        assert waiting.count == 0

    asyncio.run(asyncio.wait_for(run(), WAIT_SECONDS_MAX))


def test_what_goes_wrong_in_a_task_is_seen_at_its_end():
    async def run() -> None:
        async def renew() -> int:
            raise ValueError("a bug")

        renewal = AsyncRenewal(renew, SOON_MS)
        await asyncio.wait([renewal._task])
        with pytest.raises(ValueError, match="a bug"):
            await renewal.stop()

    asyncio.run(asyncio.wait_for(run(), WAIT_SECONDS_MAX))


def test_a_task_that_was_cancelled_with_all_others_stops_none_the_less():
    """As `asyncio.run` cancels every task at its end: who leaves then must still get to leave."""

    async def run() -> None:
        renewal = AsyncRenewal(Told().later, NEVER_MS)
        await asyncio.sleep(0)
        renewal._task.cancel()
        await asyncio.wait([renewal._task])
        await renewal.stop()
        assert renewal._task.cancelled()

    asyncio.run(asyncio.wait_for(run(), WAIT_SECONDS_MAX))
