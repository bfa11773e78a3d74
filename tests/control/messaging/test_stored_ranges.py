"""What a server reads of a range by the leader's permit is what the leader would have answered, byte for byte, or nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn
from basalt.api.codecs.arrow import COLUMNS, Source
from basalt.errors import BasaltError
from basalt.http.routes.ranges import range_answer
from basalt.messaging.ranges import Range
from basalt.messaging.read.range_permit import Asked, RangePermit
from basalt.messaging.stored_ranges import StoredRanges
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.messages import MessageRow
from basalt_engine.metadata import TopicMetadata
from basalt_engine.stores.memory import MemoryStore
from tests.control.messaging.test_ranges_for_ever import write
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio

WHOLE_BYTES = 1 << 20
NO_PROPERTIES: Mapping[str, str] = {}


def answered(permit: RangePermit, found: Range | None) -> tuple[object, ...] | None:
    """The answer over HTTP."""
    if found is None:
        return None
    source = Source(permit.topic.encode(), permit.stored().generation)
    answer = range_answer(found, permit.columns, source, TransactionIds(permit.coordinator))
    return answer.status, answer.headers, b"".join(map(bytes, answer.body))  # type: ignore[arg-type]


async def permitted(
    shop: Wired, after: bytes | None, through: bytes, bytes_max: int = WHOLE_BYTES, *, committed: bool = True
) -> RangePermit:
    log = await shop.topics.open(A)
    asked = Asked(after, through, bytes_max, tuple(COLUMNS))
    made = shop.services.ranges.permit(log, asked, shop.services.ids.coordinator, committed=committed)
    assert made is not None
    return RangePermit.decode(made.encode())


async def by_leader(shop: Wired, permit: RangePermit, *, committed: bool = True) -> tuple[object, ...] | None:
    log = await shop.topics.open(A)
    return answered(
        permit,
        await shop.services.ranges.read(log, permit.after, permit.through, permit.bytes_max, committed=committed),
    )


async def elsewhere(shop: Wired, permit: RangePermit) -> tuple[object, ...] | None:
    """What another server reads, that has a handle of its own on the store and nothing else."""
    assert isinstance(shop.store, MemoryStore)
    return answered(permit, await StoredRanges(shop.store.another(), shop.clock).read(permit))


async def end_of(shop: Wired) -> bytes:
    end = (await shop.services.ranges.stable_end(A)).id
    assert end is not None
    return bytes(end)


@settings(max_examples=25, deadline=None)
@example(225, 1, False)  # what a failed writer left behind the answer is removed before the other server reads
@given(st.integers(0, 1 << 32), st.sampled_from([1, 4]), st.booleans())
def test_a_range_reads_as_the_leader_reads_it_whatever_is_written_in_between(seed: int, spread: int, cached: bool):
    async def story() -> None:
        chance = random.Random(seed)
        shop = await Wired.start(MemoryStore(atomic=False), cached=cached)
        await shop.topics.create(A, {"spread": str(spread)})
        await shop.topics.create(B, {})
        ends: list[bytes] = []
        open_ones: list = []

        async def something() -> None:
            try:
                await write(shop, chance, open_ones)
            except BasaltError:  # the transaction has timed out
                open_ones.clear()

        for _ in range(50):
            await something()
            end = (await shop.services.ranges.stable_end(A)).id
            if end is None:
                continue
            ends.append(bytes(end))
            committed = chance.random() < 0.8
            after, through = chance.choice([None, *ends]), chance.choice(ends)
            if after is not None and after > through:
                after, through = through, after
            permit = await permitted(shop, after, through, chance.choice([1, 15, 40, WHOLE_BYTES]), committed=committed)
            expected = await by_leader(shop, permit, committed=committed)
            if committed:
                for _ in range(chance.randrange(3)):
                    await something()
            found = await elsewhere(shop, permit)
            assert found is not None
            assert found[-1] == expected[-1], "other messages"
            # Rows of a failed writer may be gone by now, and the end of an answer may have lain behind them.
            assert found == await by_leader(shop, permit, committed=committed)

    asyncio.run(story())


async def test_messages_that_expire_are_gone_by_the_leaders_clock():
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {"ttl": "10"})
    await shop.publish(A, "old")
    shop.clock.advance(9_000)
    await shop.publish(A, "new")
    through = await end_of(shop)
    both = await permitted(shop, None, through)
    both_told = await by_leader(shop, both)
    shop.clock.advance(2_000)
    one = await permitted(shop, None, through)
    one_told = await by_leader(shop, one)
    assert both_told != one_told
    assert (await elsewhere(shop, both), await elsewhere(shop, one)) == (both_told, one_told)


async def test_messages_with_a_ttl_of_their_own_are_gone_by_the_leaders_clock():
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    await shop.messaging.publish_records(A, [RecordIn(b"short", ttl_ms=1_000), RecordIn(b"long", ttl_ms=9_000)])
    permit = await permitted(shop, None, await end_of(shop))
    told = await by_leader(shop, permit)
    shop.clock.advance(5_000)
    assert await by_leader(shop, permit) != told
    assert await elsewhere(shop, permit) == told


async def test_a_topic_that_was_deleted_since_or_created_anew_is_not_read():
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    await shop.publish(A, "first")
    permit = await permitted(shop, None, await end_of(shop))
    assert await elsewhere(shop, permit) is not None
    await shop.topics.delete(A)
    assert await elsewhere(shop, permit) is None
    await shop.topics.create(A, {})
    await shop.publish(A, "second")
    assert await elsewhere(shop, permit) is None
    again = await permitted(shop, None, await end_of(shop))
    assert await elsewhere(shop, again) == await by_leader(shop, again)


async def test_a_topic_that_was_truncated_since_is_not_read():
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    await shop.publish(A, "a")
    shop.clock.advance(1_000)
    permit = await permitted(shop, None, await end_of(shop))
    await shop.services.truncation.truncate(A, shop.clock.now_ms())
    assert await elsewhere(shop, permit) is None


async def test_a_row_that_is_undecided_against_the_permits_word_is_not_passed():
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    tx = await shop.transactions.begin()
    await shop.publish(A, "undecided", tx=tx)
    through = bytes([0xFF]) * 20  # no leader permits it
    assert await elsewhere(shop, await permitted(shop, None, through)) is None


async def test_the_topics_row_is_read_after_all_rows(monkeypatch: pytest.MonkeyPatch):
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    for number in range(2):
        await shop.publish(A, f"{number}")
        shop.clock.advance(1)
    permit = await permitted(shop, None, await end_of(shop))
    reads = StoredRanges(shop.store.another(), shop.clock)  # type: ignore[attr-defined]
    read: list[str] = []
    stored, topics_row = reads._messages.stored, reads._metadata.get

    def noted(*given: Any, **more: Any) -> Iterator[MessageRow]:
        for row in stored(*given, **more):
            read.append("a row")
            yield row

    def noted_topic(prefix: bytes) -> TopicMetadata | None:
        read.append("the topic")
        return topics_row(prefix)

    monkeypatch.setattr(reads._messages, "stored", noted)
    monkeypatch.setattr(reads._metadata, "get", noted_topic)
    assert await reads.read(permit) is not None
    assert read == ["a row", "a row", "the topic"]
