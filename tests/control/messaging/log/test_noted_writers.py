"""The writers that notes are about, in memory: what is told there is what a read of all notes would find."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from basalt.catalog.topics import TopicName
from basalt.messaging.log import garbage_notes, noted_writers
from basalt.messaging.log.noted_writers import Names, NotedWriters
from basalt.pruning.prune import read_notes
from basalt.runtime.group_commit import Group
from basalt_engine.keys import position
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio
B = TopicName("shop", "bills")


@pytest.fixture
async def wired() -> AsyncIterator[Wired]:
    started = await Wired.start()
    yield started
    await started.services.close()


class World:
    """Notes of one store, and what is remembered of them."""

    def __init__(self, wired: Wired) -> None:
        self.wired = wired
        self.noted = NotedWriters()
        self.reads = 0

    async def read(self) -> Names:
        self.reads += 1
        return self.stored()

    def stored(self) -> Names:
        return read_notes(self.wired.services.system)

    async def note(self, writers: list[int], title: TopicName = A) -> garbage_notes.GarbageRange:
        made = garbage_notes.GarbageRange(*title, 1, writers, position(1, 0).hex(), position(9, 0).hex())
        await self.wired.services.writer.each[0].run(
            lambda group: garbage_notes.note(group, self.noted, title, 1, writers, position(1, 0), position(9, 0))
        )
        return made

    async def remove(self, note: garbage_notes.GarbageRange, start: bytes | None = None) -> None:
        await self.wired.services.writer.each[0].run(lambda group: garbage_notes.remove(group, self.noted, note, start))

    async def told(self) -> dict[int, list[str]]:
        return _sorted(await self.noted.notes(self.read))


def _sorted(names: Names) -> dict[int, list[str]]:
    return {writer: sorted(found) for writer, found in names.items()}


async def test_notes_are_read_once_and_those_that_come_and_go_are_told(wired: Wired):
    world = World(wired)
    first = await world.note([5, 6])
    assert set(await world.told()) == {5, 6}
    second = await world.note([6, 7], B)
    assert await world.told() == _sorted(world.stored()) == {
        5: [first.name], 6: sorted((first.name, second.name)), 7: [second.name],
    }  # fmt: skip
    await world.remove(first, position(5, 0))
    assert await world.told() == _sorted(world.stored())
    assert first.left(position(5, 0)).name in (await world.told())[5]
    await world.remove(second)
    assert await world.told() == _sorted(world.stored())
    assert world.reads == 1


async def test_what_happens_while_they_are_read_counts(wired: Wired):
    world = World(wired)
    gone = await world.note([5])
    go_on, is_read = asyncio.Event(), asyncio.Event()

    async def slow() -> Names:
        found = world.stored()
        is_read.set()
        await go_on.wait()
        return found

    reading = asyncio.create_task(world.noted.notes(slow))
    await is_read.wait()
    await world.note([7])
    await world.remove(gone)
    go_on.set()
    assert set(await reading) == {7}
    assert await world.told() == _sorted(world.stored())
    assert world.reads == 0


async def test_an_answer_does_not_change_any_more(wired: Wired):
    world = World(wired)
    await world.note([5])
    before = await world.noted.notes(world.read)
    again = await world.noted.notes(world.read)
    await world.note([7])
    assert set(before) == set(again) == {5}


async def test_after_a_write_that_failed_they_are_read_anew(wired: Wired):
    world = World(wired)
    await world.note([5])
    await world.told()

    group = Group(0)
    garbage_notes.note(group, world.noted, B, 1, [7], position(1, 0), position(9, 0))
    for call in group._failed:
        call()
    assert await world.told() == _sorted(world.stored())
    assert world.reads == 2


async def test_more_than_fit_are_not_remembered(wired: Wired, monkeypatch):
    monkeypatch.setattr(noted_writers, "NOTED_WRITERS_MAX", 2)
    world = World(wired)
    await world.note([5, 6])
    await world.told()
    await world.note([7], B)
    for reads in (2, 3):
        assert set(await world.told()) == {5, 6, 7}
        assert world.reads == reads


async def test_where_other_servers_write_notes_they_are_read_for_each_answer(wired: Wired):
    world = World(wired)
    world.noted.is_shared = True
    await world.note([5])
    assert set(await world.told()) == {5}
    await wired.services.writer.each[0].run(  # as another server does it
        lambda group: garbage_notes.note(group, NotedWriters(), B, 1, [6], position(1, 0), position(9, 0))
    )
    assert set(await world.told()) == {5, 6}
    assert world.reads == 2
