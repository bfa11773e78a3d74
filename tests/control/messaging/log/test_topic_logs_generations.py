"""A topic that is deleted and created again while a call still reads for its past generation: the new one loses nothing.

What the system table keeps of a topic has one name for all its generations. Each story is told once for every read of the
call at which the topic can go, and every read at which it can be there again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from basalt.api.bodies.messages import Work, WorkMarker
from basalt.api.markers import Marker
from basalt.errors import BasaltError, GenerationError
from basalt.messaging.index import SAVED
from basalt.messaging.log import stored_log
from basalt_engine.keys import TopicKeys
from basalt_engine.messages import MessageTable
from basalt_engine.system import SystemTable
from tests.paused_reads import READS_MAX, PausedCall, PausedReads
from tests.wiring import A, B, Wired, texts

pytestmark = pytest.mark.anyio

ENTRY = "shop:orders:"
Opened = Callable[[], Awaitable[Wired]]
Call = Callable[[Wired], Coroutine[Any, Any, Any]]
Story = Callable[[Wired, PausedCall], Awaitable[None]]


async def at_every_moment(opened: Opened, call: Call, story: Story) -> None:
    """Tell the story over fresh services, with A deleted before one read of the call, and there again before that or a later one."""
    for gone in range(READS_MAX):
        back = 0
        while await at_one_moment(opened, call, story, gone, back):
            back += 1
        if not back:
            assert gone, "the call reads nothing"
            return
    raise AssertionError(f"the call makes more than {READS_MAX} reads")


async def at_one_moment(opened: Opened, call: Call, story: Story, gone: int, back: int) -> bool:
    """Delete A before the call's read number `gone`, create it `back` reads later; False where there are no such reads."""
    shop = await opened()
    paused = PausedCall(call(shop))
    try:
        if not await paused.at_read(gone):
            return False
        await shop.topics.delete(A)
        if not await paused.on_by(back):
            return False
        await shop.topics.create(A, {})
        await story(shop, paused)
        return True
    finally:
        await paused.finish()
        await shop.services.close()


async def emit(shop: Wired, task: str, event_time_ms: int | None = None) -> None:
    await shop.services.markers.publish(A, Marker(task, 1, event_time_ms))


async def with_markers_and_an_open_row() -> Wired:
    """The first generation of A has said something, and who asks how far it is settled must read."""
    shop = await Wired.start(PausedReads(), cached=False)
    await shop.topics.create(A, {})
    await emit(shop, "first", 1)
    shop.clock.advance(1_000)
    await shop.publish(A, "early", tx=await shop.transactions.begin())
    return shop


async def save(shop: Wired) -> None:
    await shop.services.markers.save(everything=True)


async def truncate(shop: Wired) -> None:
    await shop.services.truncation.truncate(A, shop.clock.now_ms() - 500)


async def publish(shop: Wired) -> None:
    await emit(shop, "first", 2)


async def one_shot(shop: Wired) -> None:
    await shop.transactions.one_shot(Work(markers=[WorkMarker(*A, "first", 1, "watermark", 2)]))


@pytest.mark.parametrize("call", [save, truncate, publish, one_shot])
async def test_an_end_of_stream_that_was_shown_is_there_after_a_crash(call: Call):
    async def story(shop: Wired, paused: PausedCall) -> None:
        await emit(shop, "second")
        assert (await shop.services.markers.facts(A)).ended
        await paused.finish()
        again = await shop.restarted()
        assert (await again.services.markers.facts(A)).ended

    await at_every_moment(with_markers_and_an_open_row, call, story)


@pytest.mark.parametrize("act", ["keep", "emit"])
async def test_markers_of_a_past_generation_are_refused_before_anything_is_written(act: str):
    shop = await with_markers_and_an_open_row()
    past, markers = await shop.topics.open(A), shop.services.markers
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    await emit(shop, "second")
    await markers.ready(past)

    def stage(group: Any) -> None:
        markers.check([(past, Marker("first", 1, 2))])
        markers.emit(group, past, Marker("first", 1, 2), None)

    with pytest.raises(GenerationError):
        await (markers.keep(past) if act == "keep" else shop.services.writer.each[0].run(stage))
    assert entry(shop, stored_log.MARKERS.kind) == 2
    assert (await (await shop.restarted()).services.markers.facts(A)).ended


@pytest.mark.parametrize("given", [1, None])
async def test_a_truncation_never_reaches_the_generation_that_came_after_the_one_it_looked_at(given: int | None):
    async def cut(shop: Wired) -> None:
        await shop.services.truncation.truncate(A, shop.clock.now_ms() - 500, given)

    async def story(shop: Wired, paused: PausedCall) -> None:
        assert isinstance(await paused.finish(), BasaltError)
        assert (await shop.topics.get(A)).metadata.truncated_before_ms == 0

    await at_every_moment(with_markers_and_an_open_row, cut, story)


async def with_counts_to_complete() -> Wired:
    """Of B and A, in this order, rows are known that came since a restart."""
    shop = await Wired.start(PausedReads(), cached=False)
    for title in (B, A):
        await shop.topics.create(title, {})
        await shop.publish(title, "before")
    again = await shop.restarted(cached=False)
    for title in (B, A):
        await again.publish(title, "after")
    return again


async def test_counts_that_are_saved_are_those_of_the_present_generation():
    async def save_counts(shop: Wired) -> None:
        await shop.services.topic_stats.save(everything=True)

    async def story(shop: Wired, paused: PausedCall) -> None:
        await shop.publish(A, "new")
        await paused.finish()
        assert entry(shop, SAVED.kind) is None
        await save_counts(shop)
        assert entry(shop, SAVED.kind) == 2
        stats = await (await shop.restarted()).services.topic_stats.stats(A)
        assert (stats.messages, stats.payload_bytes) == (1, 3)

    await at_every_moment(with_counts_to_complete, save_counts, story)


async def with_early_rows() -> Wired:
    """A transaction has published in A, in a store that drops rows by itself."""
    shop = await Wired.start(PausedReads(applies_retention=True), cached=False)
    await shop.topics.create(A, {})
    for number in range(3):
        await shop.publish(A, str(number), tx=await shop.transactions.begin())
    return shop


async def test_a_place_is_not_given_out_again_for_a_roll_back_in_the_generation_before():
    async def abort(shop: Wired) -> None:
        await shop.transactions.abort(min(each.id for each in shop.transactions.state.transactions()))

    async def story(shop: Wired, paused: PausedCall) -> None:
        tx = await shop.transactions.begin()
        for number in range(5):  # later than all of the generation before, though the clock stands
            await shop.publish(A, str(number), tx=tx)
        given_out = (await shop.topics.open(A)).newest
        await shop.transactions.abort(tx.id)
        await paused.finish()
        drop_rows(shop)
        again = await shop.restarted()
        assert (await again.topics.open(A)).newest == given_out
        await again.publish(A, "next")
        assert texts(await again.messaging.fetch(A, given_out, False)) == ["next"]

    await at_every_moment(with_early_rows, abort, story)


def drop_rows(shop: Wired) -> None:
    """What a store does by itself to rows that were rolled back."""
    keys = TopicKeys(ENTRY.encode(), 0, shop.topics.catalog.buckets)
    for salt in range(shop.topics.catalog.buckets):
        shop.store.table(MessageTable.name).write([MessageTable.whole_generations(keys, salt, 3)])


def entry(shop: Wired, kind: str) -> int | None:
    """Of which generation of A the system table has an entry."""
    body = SystemTable(shop.store.table(SystemTable.name)).get(kind, ENTRY)
    return None if body is None else int(msgspec.json.decode(body)["generation"])
