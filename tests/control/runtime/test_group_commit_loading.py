"""A stage that needs what is not in memory: it is undone, what it needs is read while others go on, and it runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from basalt.errors import BusyError, StoreError
from basalt.runtime import group_commit
from basalt.runtime.group_commit import Group, GroupCommit, NotLoadedError
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Memory:
    """What stages need: read when `gate` opens, and kept until it is released."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.writer = GroupCommit(self.store, ManualClock(1))
        self.gate = asyncio.Event()
        self.gate.set()
        self.loaded: set[str] = set()
        self.released: list[str] = []
        self.fails = False
        self.order: list[str] = []

    def stage(self, name: str, *needed: str, keeps: bool = True) -> Callable[[Group], str]:
        async def load(what: str) -> Callable[[], None]:
            await self.gate.wait()
            if self.fails:
                raise StoreError("the disk does not answer")
            if keeps:
                self.loaded.add(what)
            return lambda: self.released.append(what)

        def run(group: Group) -> str:
            group.add("message", Put(f"{name} begun".encode(), {b"c": b""}))
            for what in needed:
                if what not in self.loaded:
                    raise NotLoadedError(partial(load, what))
            group.add("message", Put(name.encode(), {b"c": b""}))
            self.order.append(name)
            return name

        return run

    def keys(self) -> set[bytes]:
        return {row.key for row in self.store.table("message").scan(b"", None)}


async def test_others_of_the_group_go_on_and_nothing_of_the_first_try_is_written() -> None:
    memory = Memory()
    memory.gate.clear()
    waiting = asyncio.ensure_future(memory.writer.run(memory.stage("slow", "topic"), 100))
    assert await memory.writer.run(memory.stage("quick")) == "quick"
    assert memory.keys() == {b"quick begun", b"quick"}
    assert memory.writer.loading == 1
    assert memory.writer.queue_bytes == 100 + group_commit.STAGE_BYTES  # it counts in the queue while it waits
    memory.gate.set()
    assert await waiting == "slow"
    assert memory.keys() == {b"quick begun", b"quick", b"slow begun", b"slow"}
    assert (memory.released, memory.writer.queue_bytes, memory.writer.loading) == (["topic"], 0, 0)


async def test_stages_that_waited_run_in_the_order_in_which_they_came() -> None:
    memory = Memory()
    memory.gate.clear()
    runs = [memory.writer.run(memory.stage(name, f"of {name}")) for name in "abcde"]
    waiting = asyncio.gather(*runs)
    while memory.writer.loading < 5:
        await asyncio.sleep(0)
    later = asyncio.ensure_future(memory.writer.run(memory.stage("later")))
    memory.gate.set()
    await asyncio.gather(waiting, later)
    assert [name for name in memory.order if name != "later"] == list("abcde")


async def test_each_try_keeps_what_the_ones_before_have_read() -> None:
    memory = Memory()
    assert await memory.writer.run(memory.stage("x", *"123")) == "x"
    assert memory.released == list("123")


@pytest.mark.parametrize("loads_max", [2, 3])
async def test_a_stage_that_never_finds_what_was_read_is_told_to_come_again(
    loads_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "STAGE_LOADS_MAX", loads_max)
    memory = Memory()
    with pytest.raises(BusyError, match="leaves memory faster than it is read"):
        await memory.writer.run(memory.stage("x", "topic", keeps=False))
    assert memory.released == ["topic"] * loads_max
    assert memory.keys() == set()
    assert await memory.writer.run(memory.stage("y")) == "y"


async def test_a_read_that_fails_is_told_to_its_caller_alone() -> None:
    memory = Memory()
    memory.fails = True
    answers = await asyncio.gather(
        memory.writer.run(memory.stage("x", "topic")), memory.writer.run(memory.stage("y")), return_exceptions=True
    )
    assert isinstance(answers[0], StoreError)
    assert answers[1] == "y"
    assert (memory.writer.queue_bytes, memory.keys()) == (0, {b"y begun", b"y"})


async def test_a_stage_whose_client_has_gone_is_not_run_again() -> None:
    memory = Memory()
    memory.gate.clear()
    waiting = asyncio.ensure_future(memory.writer.run(memory.stage("x", "topic")))
    while not memory.writer.loading:
        await asyncio.sleep(0)
    waiting.cancel()
    memory.gate.set()
    await memory.writer.stop()
    assert (memory.keys(), memory.released, memory.writer.queue_bytes) == (set(), ["topic"], 0)


async def test_a_writer_that_stops_waits_for_what_is_being_read() -> None:
    memory = Memory()
    memory.gate.clear()
    waiting = asyncio.ensure_future(memory.writer.run(memory.stage("x", "topic")))
    while not memory.writer.loading:
        await asyncio.sleep(0)
    stopping = asyncio.ensure_future(memory.writer.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    memory.gate.set()
    await stopping
    assert await waiting == "x"
