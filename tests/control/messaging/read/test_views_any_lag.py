"""Any history, and a view any way behind it: readers there are shown a part of what the coordinator's own are shown, and all of it once it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.codecs.encoded import BatchedMessages
from basalt.errors import CoordinatorUnavailableError
from basalt.messaging.log.topic_log import TopicLog
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.stores.memory import MemoryStore
from tests.control.messaging.behind import Behind
from tests.wiring import A, Wired, shop_work, texts

WHICH = st.integers(0, 3)
STEPS = st.one_of(
    st.sampled_from([("begin",), ("plain",), ("one shot",), ("reign",), ("end",), ("end",)]),
    st.tuples(st.sampled_from(["early", "store", "commit", "abort", "invalidate", "checkpoint"]), WHICH),
    st.tuples(st.just("hear"), st.integers(1, 5)),
    st.tuples(st.just("link"), st.booleans()),
    st.tuples(st.just("read"), st.integers(1, 9)),
    st.tuples(st.just("read"), st.just(1_000)),
)


class Story:
    """A shop, and a reader behind it."""

    def __init__(self, shop: Wired) -> None:
        self.shop, self.behind = shop, Behind(shop)
        self.open: list[Transaction] = []
        self.number = 0
        self.told_end = b""

    async def step(self, what: str, *given_with: Any) -> None:
        shop, behind = self.shop, self.behind
        self.number += 1
        message = str(self.number)
        if what == "begin":
            self.open.append(await shop.transactions.begin())
        elif what == "plain":
            await shop.publish(A, message)
        elif what == "one shot":
            await shop.transactions.one_shot(shop_work(orders=[message]))
        elif what == "reign":
            behind.begin_reign()
        elif what == "hear":
            behind.manager.hear(*given_with)
        elif what == "link":
            (behind.manager.answers,) = given_with
        elif what == "read":
            await self.read(*given_with)
        elif what == "end":
            await self.end()
        elif self.open:
            await self.of_transaction(what, given_with[0] % len(self.open), message)

    async def of_transaction(self, what: str, index: int, message: str) -> None:
        shop, tx = self.shop, self.open[index]
        if what == "early":
            await shop.publish(A, message, tx=tx)
        elif what == "store":
            await shop.store_aside(A, message, tx=tx)
        elif what == "checkpoint":
            self.open[index] = await shop.transactions.checkpoint(tx.id)
        else:
            del self.open[index]
            await getattr(shop.transactions, what)(tx.id)

    async def read(self, limit: int) -> None:
        shop, behind = self.shop, self.behind
        there = await shop.messaging.fetch(A, None, True, messages_max=limit, committed=True)
        asked, was_old = behind.manager.asked, bool(behind.manager.behind)
        here = await behind.messaging.fetch(A, None, True, messages_max=limit, committed=True)
        assert texts(here) == texts(there)[: here.messages]
        if behind.manager.answers:
            assert (here.messages, here.held_by, here.view_age_ms) == (there.messages, there.held_by, None)
        else:
            assert (here.view_age_ms is None) == (here.held_by is None)
        assert behind.manager.asked - asked <= 1
        assert was_old or here.messages == there.messages
        encoded = await behind.messaging.fetch(
            A, None, True, messages_max=limit, committed=True, encoding=BatchedMessages
        )
        assert encoded.messages == here.messages

    async def end(self) -> None:
        behind = self.behind
        log = await self.shop.topics.open(A)
        try:
            end = (await behind.ranges.stable_end(A)).id or b""
        except CoordinatorUnavailableError:
            assert not behind.manager.answers
            assert not log.is_caught_up
            return
        assert end >= self.told_end
        self.told_end = end
        settled = await behind.ranges.advance(A, None)  # which reads all of it, and finds nothing undecided
        log.stable = b""  # which both share
        there = (await self.shop.services.ranges.stable_end(A)).id or b""
        assert end <= there
        assert not behind.manager.answers or end == there
        log.stable = end[:10]
        assert settled.through in (end, None)


@settings(deadline=None, max_examples=400)
@given(st.booleans(), st.lists(STEPS, max_size=40))
def test_an_old_view_never_shows_more_and_a_newer_one_shows_all(cached: bool, steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as kept:
        # An owner forgets where a writer's rows lie when its view has the end; the shop's own would do so sooner.
        kept.setattr(TopicLog, "end_writers", lambda log, write_pointers: None)
        asyncio.run(follow(cached, steps))


async def follow(cached: bool, steps: list[tuple[Any, ...]]) -> None:
    shop = await Wired.start(MemoryStore(atomic=False), cached=cached)
    await shop.topics.create(A, {})
    await shop.publish(A, "0")
    story = Story(shop)
    for step in steps:
        await story.step(*step)
    story.behind.manager.answers = True
    await story.read(1_000)
    await story.end()
    await shop.services.close()
