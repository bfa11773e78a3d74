"""Answers about pruning: made of one look at the store, which all share that ask before it begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.wiring import Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wired() -> AsyncIterator[Wired]:
    started = await Wired.start()
    yield started
    await started.services.close()


class Looks:
    """The surveys of a pruner, each of which waits until it is let go on."""

    def __init__(self, wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.has_begun = asyncio.Event()
        pruner = wired.services.pruner
        survey = pruner.survey

        async def slow() -> object:
            self.begun += 1
            self.has_begun.set()
            await self.go_on.wait()
            return await survey()

        monkeypatch.setattr(pruner, "survey", slow)


async def test_who_asks_before_a_look_begins_shares_it_and_who_asks_later_gets_a_later_one(wired: Wired, monkeypatch):
    looks, reports = Looks(wired, monkeypatch), wired.services.prune_reports
    first = [asyncio.create_task(ask()) for ask in (reports.status, lambda: reports.invalid(0, 10, None))]
    await looks.has_begun.wait()
    assert looks.begun == 1
    later = [asyncio.create_task(reports.status()) for _ in range(3)]
    await asyncio.sleep(0)
    assert looks.begun == 1, "one at a time"
    looks.go_on.set()
    await asyncio.gather(*first, *later)
    assert looks.begun == 2


async def test_a_look_goes_on_for_the_others_when_one_of_them_is_gone(wired: Wired, monkeypatch):
    looks, reports = Looks(wired, monkeypatch), wired.services.prune_reports
    gone, left = asyncio.create_task(reports.status()), asyncio.create_task(reports.status())
    await looks.has_begun.wait()
    gone.cancel()
    looks.go_on.set()
    assert (await left).invalid == 0
    assert (gone.cancelled(), looks.begun) == (True, 1)


async def test_a_look_that_fails_is_told_to_all_that_shared_it_and_the_next_one_is_made(wired: Wired, monkeypatch):
    reports, pruner = wired.services.prune_reports, wired.services.pruner
    works: Callable[[], object] = pruner.survey

    async def fails() -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(pruner, "survey", fails)
    told = await asyncio.gather(reports.status(), reports.status(), return_exceptions=True)
    assert list(map(str, told)) == ["the disk is gone"] * 2
    monkeypatch.setattr(pruner, "survey", works)
    assert (await reports.status()).invalid == 0
