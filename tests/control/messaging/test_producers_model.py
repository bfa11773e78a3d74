"""Any publishes of any producers, over failed writes, saves and restarts: what is there is what a model of the rule says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.errors import ProducerUnknownError, SequenceGapError
from basalt.messaging.producers import Sequenced
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import A, Wired

STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("pq"), st.integers(0, 6), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.sampled_from(["refuse", "lose"])),
    st.tuples(st.sampled_from(["save", "restart", "shed", "plain"])),
)


class Faulty(MemoryStore):
    """A store whose next write of messages is refused, or made without an answer."""

    fault = ""

    def write(self, writes: Any) -> None:
        fault = self.fault if any(write.table == "message" for write in writes) else ""
        if fault:
            self.fault = ""
        if fault == "refuse":
            raise StoreError("the disk is full")
        super().write(writes)
        if fault == "lose":
            raise UnknownOutcomeError("the connection broke")


class Model:
    """The rule, in a few lines."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.messages: list[str] = []

    def send(self, by: str, first: int, count: int, after: int) -> str:
        known = self.last.get(by, -1)
        new = range(max(first, known + 1), first + count)
        if not new:
            return "duplicate"
        if first > known and after != known:
            return "refused"
        self.messages += [f"{by}{number}" for number in new]
        self.last[by] = new[-1]
        return "written"


@settings(deadline=None, max_examples=150)
@given(st.booleans(), st.lists(STEPS, max_size=25))
def test_what_is_there_is_what_the_rule_says(atomic: bool, steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(follow(atomic, steps))


async def follow(atomic: bool, steps: list[tuple[Any, ...]]) -> None:
    store, model = Faulty(atomic), Model()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    for what, *given_with in steps:
        if what == "send":
            await send(shop, store, model, *given_with)
        elif what in ("refuse", "lose"):
            store.fault = what
        elif what == "save":
            await shop.services.producers.save(everything=True)
        elif what == "restart":
            shop = await shop.restarted()
        elif what == "shed" and (log := shop.topics.find(A)) is not None:
            log.memory.shed(log)
        elif what == "plain":
            store.fault = ""
            await shop.publish(A, "plain")
            model.messages.append("plain")
        shop.clock.advance(1)
    store.fault = ""
    assert await shop.read(A) == model.messages
    states = await shop.services.producers.of_topic(A)
    assert {each.name: each.last for each in states} == model.last


async def send(shop: Wired, store: Faulty, model: Model, by: str, first: int, count: int, gap: int) -> None:
    """Send until there is an answer; the model does it once, where the first try was not refused."""
    asked = Sequenced(by.encode(), first, first - 1 - gap if first > gap else -1)
    payloads = [f"{by}{number}".encode() for number in range(first, first + count)]
    expected = model.send(by, first, count, asked.after)
    lost = False
    told = "refused"
    for _ in range(3):
        fault = store.fault
        with suppress(StoreError, UnknownOutcomeError, SequenceGapError, ProducerUnknownError):
            placed = await shop.messaging.publish_numbered(A, payloads, asked)
            told = "duplicate" if placed is None else "written"
            break
        lost = lost or (fault == "lose" and store.fault == "")
    assert told == ("duplicate" if lost and expected == "written" else expected)
