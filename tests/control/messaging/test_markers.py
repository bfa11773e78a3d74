"""Markers in the log: who may emit what, what counts for readers of committed messages, and what a restart knows."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.api.markers import Marker
from basalt.catalog.topics import topic_name
from basalt.errors import CoordinatorUnavailableError, InputError, MarkerRefusedError, TransactionEndedError
from basalt.messaging import markers as topic_markers
from basalt.messaging.log.stored_log import MARKERS, entry_name
from basalt.messaging.read.log_reader import SliceLimits, start_from
from basalt_engine.records import RecordKind
from basalt_engine.system import SystemTable
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


async def said(wired: Wired, title=A) -> tuple[int | None, bool]:
    found = await wired.services.markers.facts(title)
    return found.watermark_ms, found.ended


async def emit(wired: Wired, task: str, event_time_ms: int | None = None, tasks: int = 2, title=A) -> None:
    await wired.services.markers.publish(title, Marker(task, tasks, event_time_ms))


def work(*markers: tuple[str, int | None], messages: tuple[str, ...] = ()) -> Work:
    kinds = {True: "end_of_stream", False: "watermark"}
    return Work(
        publish=[WorkPublish(*A, [message.encode() for message in messages])] if messages else [],
        markers=[WorkMarker(*A, task, 2, kinds[at is None], at) for task, at in markers],
    )


async def kinds(wired: Wired) -> list[str]:
    """What a committed reader who asks for markers is given, in order."""
    log = await wired.topics.open(A)
    found = await wired.services.peek._reader.read(
        log, start_from(None, True), SliceLimits(100, 10_000), None, markers=True
    )
    return [
        bytes(payload).decode() if piece.batch.kind is RecordKind.USER else piece.batch.kind.name
        for piece in found.slices
        for payload in piece.payloads()
    ]


async def test_a_topic_is_as_far_as_its_slowest_task_and_ends_with_its_last(shop: Wired):
    assert await said(shop) == (None, False)
    await emit(shop, "a", 100)
    assert await said(shop) == (None, False)
    await emit(shop, "b", 70)
    assert await said(shop) == (70, False)
    await emit(shop, "b")
    assert await said(shop) == (100, False)
    await emit(shop, "a")
    assert await said(shop) == (100, True)
    assert await said(shop, B) == (None, False)


async def test_markers_are_no_messages_but_for_those_who_ask_for_them(shop: Wired):
    await shop.publish(A, "one")
    await emit(shop, "a", 100, 1)
    await shop.publish(A, "two")
    await emit(shop, "a", None, 1)
    assert await shop.read(A) == await shop.read(A, committed=True) == ["one", "two"]
    assert await shop.page_through(A, 1) == ["one", "two"]
    assert await kinds(shop) == ["one", "WATERMARK", "two", "END_OF_STREAM"]
    stats = await shop.services.topic_stats.stats(A)
    assert (stats.messages, stats.payload_bytes) == (2, 6)
    page = await shop.services.peek.peek(A, None, True)
    assert [message.kind for message in page.messages] == [0, 1, 0, 2]


async def test_markers_count_for_no_limit(shop: Wired):
    for number in range(3):
        await emit(shop, "a", number, 1)
        await shop.publish(A, str(number))
    found = await shop.messaging.fetch(A, None, True, messages_max=2, markers=True)
    assert (found.messages, found.payload_bytes) == (2, 2)
    assert [piece.batch.kind for piece in found.slices] == [1, 0, 1, 0]
    rest = await shop.messaging.fetch(A, found.next_id, False, messages_max=2, markers=True)
    assert [piece.batch.kind for piece in rest.slices] == [1, 0]


@pytest.mark.parametrize("cached", [True, False])
async def test_reading_on_from_a_marker_loses_and_repeats_nothing(cached: bool):
    shop = await Wired.start(cached=cached)
    await shop.topics.create(A, {})
    for number in range(4):
        await shop.publish(A, str(number))
        await emit(shop, "a", number, 1)
    everything = await shop.messaging.fetch(A, None, True, markers=True)
    ids = [message_id for piece in everything.slices for message_id in piece.ids()]
    for index, message_id in enumerate(ids):
        after = await shop.messaging.fetch(A, message_id, False, markers=True)
        assert [each for piece in after.slices for each in piece.ids()] == ids[index + 1 :]
        plain = await shop.messaging.fetch(A, message_id, False)
        assert [bytes(p).decode() for s in plain.slices for p in s.payloads()] == [
            str(n) for n in range(index // 2 + 1, 4)
        ]


async def test_a_late_task_is_refused_by_name_and_leaves_nothing(shop: Wired):
    await emit(shop, "a")
    await emit(shop, "b")
    await emit(shop, "b")  # its end again: nothing new
    for task, at, count, says in [("a", 5, 2, "'a' has ended"), ("c", 5, 2, "'c'"), ("a", None, 3, "3 tasks")]:
        with pytest.raises(MarkerRefusedError, match=says):
            await emit(shop, task, at, count)
    assert await kinds(shop) == ["END_OF_STREAM"] * 3
    with pytest.raises(InputError, match="1 to 255"):
        await emit(shop, "x" * 256, 5)


async def test_the_topic_may_say_how_many_tasks_there_are(shop: Wired):
    await shop.topics.update(A, {"tasks": "2"})
    with pytest.raises(MarkerRefusedError, match="knows 2"):
        await emit(shop, "a", 1, 1)
    await emit(shop, "a", 1, 2)
    assert await said(shop) == (None, False)
    with pytest.raises(InputError):
        await shop.topics.update(A, {"tasks": "0"})


async def test_a_commit_brings_markers_behind_its_messages(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    assert await said(shop) == (None, False)
    await shop.transactions.commit(tx.id, work(("a", 5), ("b", None), messages=("late",)))
    assert await kinds(shop) == ["stored", "late", "WATERMARK", "END_OF_STREAM"]
    assert await said(shop) == (5, False)
    await shop.transactions.one_shot(work(("a", None)))
    assert await said(shop) == (5, True)


async def test_a_commit_whose_marker_is_refused_changes_nothing_and_stays_open(shop: Wired):
    await emit(shop, "a")
    tx = await shop.transactions.begin()
    with pytest.raises(MarkerRefusedError, match="'a' has ended") as refused:
        await shop.transactions.commit(tx.id, work(("b", 1), ("a", 7), messages=("lost",)))
    assert refused.value.field == "markers[1].task"
    assert await shop.read(A) == []
    await shop.transactions.commit(tx.id, work(("b", 1)))
    assert await said(shop) == (1, False)


async def test_the_markers_of_one_work_are_checked_one_after_the_other(shop: Wired):
    with pytest.raises(MarkerRefusedError, match="'a' has ended"):
        await shop.transactions.one_shot(work(("a", None), ("a", 7)))
    assert await kinds(shop) == []


async def test_a_commit_that_is_repeated_emits_once_and_is_not_refused(shop: Wired):
    tx = await shop.transactions.begin()
    ends = work(("a", 1), ("a", None), ("b", None))
    await shop.transactions.commit(tx.id, ends, "request")
    await shop.transactions.commit(tx.id, ends, "request")
    assert await kinds(shop) == ["WATERMARK", "END_OF_STREAM", "END_OF_STREAM"]


async def test_markers_of_an_aborted_transaction_never_were(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.transactions.abort(tx.id)
    with pytest.raises(TransactionEndedError):
        await shop.transactions.commit(tx.id, work(("a", None), ("b", None)))
    assert await said(shop) == (None, False)
    await emit(shop, "a", 3, 1)
    assert await said(shop) == (3, False)


async def test_nothing_behind_an_open_row_counts_until_that_is_decided(shop: Wired):
    await emit(shop, "a", 1, 1)
    tx = await shop.transactions.begin()
    await shop.publish(A, "before")
    await shop.publish(A, "early", tx=tx)
    await emit(shop, "a", 9, 1)
    await emit(shop, "a", None, 1)
    assert await said(await shop.restarted()) == (1, False)
    assert await said(shop) == (1, False)
    with pytest.raises(MarkerRefusedError):  # though not yet readable, it is there
        await emit(shop, "a", 10, 1)
    await shop.transactions.abort(tx.id)
    assert await said(shop) == (9, True)


async def test_two_ends_in_one_group_are_seen_by_each_other(shop: Wired):
    results = await asyncio.gather(
        emit(shop, "a", None, 1), emit(shop, "b", None, 1), emit(shop, "a", 1, 1), return_exceptions=True
    )
    # Where the store is far away, whichever of the calls is ready first has its turn first.
    assert results[:2].count(None) == 1
    assert all(each is None or isinstance(each, MarkerRefusedError) for each in results)


@pytest.mark.parametrize("saved", [True, False])
async def test_a_restart_knows_the_same(shop: Wired, saved: bool):
    await emit(shop, "a", 5)
    await shop.publish(A, "between")
    if saved:
        assert await shop.services.markers.save(everything=True) == 1
        assert await shop.services.markers.save(everything=True) == 0
    await emit(shop, "b", 7)
    await emit(shop, "b")
    before = await shop.services.markers.facts(A)
    again = await shop.restarted()
    assert await again.services.markers.facts(A) == before
    with pytest.raises(MarkerRefusedError):
        await emit(again, "b", 9)


async def test_what_is_settled_is_saved_though_nobody_tells_what_became_of_the_rest(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    async def away(*_: object) -> None:
        raise CoordinatorUnavailableError("the coordinator does not answer")

    await emit(shop, "a", 5)
    await emit(shop, "b", 6)
    assert await said(shop) == (5, False)
    await emit(shop, "a", 9)
    with monkeypatch.context() as patched:
        patched.setattr(shop.services.markers._ends, "settled", away)
        assert await shop.services.markers.save(everything=True) == 1
    assert await said(await shop.restarted()) == (6, False)


async def test_runs_of_a_bounded_number_of_topics_save_all_in_turn(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_markers, "SAVE_TOPICS_MAX", 2)
    titles = [topic_name("shop", f"many{number}") for number in range(5)]
    for title in titles:
        await shop.topics.create(title, {})
        await emit(shop, "a", 5, 1, title)
    shop.clock.advance(topic_markers.SAVE_AGE_MS)
    total = 0
    # Those that were saved change again at once, and yet the others have their turn first.
    for event_time_ms in (6, 7, 8):
        total += await shop.services.markers.save()
        for title in titles[:2]:
            await emit(shop, "a", event_time_ms, 1, title)
        shop.clock.advance(topic_markers.SAVE_AGE_MS)
    assert total > 2
    for number in range(5):
        assert shop.services.system.get(MARKERS.kind, entry_name(b"shop:many%d:" % number)) is not None, number
    await shop.services.markers.save(everything=True)
    assert await shop.services.markers.save(everything=True) == 0
    for title in titles:
        assert await said(await shop.restarted(), title) == await said(shop, title)


async def test_an_end_stays_when_its_marker_has_expired(shop: Wired):
    await shop.topics.update(A, {"ttl": "10"})
    await emit(shop, "a", 5, 1)
    await emit(shop, "a", None, 1)
    assert await said(shop) == (5, True)
    await shop.services.markers.save(everything=True)
    shop.clock.advance(60_000)
    assert await kinds(shop) == []
    assert await said(shop) == (5, True)
    assert await said(await shop.restarted()) == (5, True)


async def test_a_new_generation_knows_nothing(shop: Wired):
    await emit(shop, "a", None, 1)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    assert await said(shop) == (None, False)
    await emit(shop, "b", 1, 3)
    assert await said(await shop.restarted()) == (None, False)


async def test_a_wait_for_the_end_ends_with_it(shop: Wired):
    waiting = asyncio.create_task(shop.services.markers.facts(A, wait_ms=60_000))
    await asyncio.sleep(0.01)
    await emit(shop, "a", 1, 1)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await emit(shop, "a", None, 1)
    assert (await asyncio.wait_for(waiting, 60)).ended


async def test_a_topic_without_markers_is_not_searched_for_any(shop: Wired):
    await shop.publish(A, "one", "two")
    assert await said(shop) == (None, False)
    system = SystemTable(shop.store.table("system"))
    assert system.get(MARKERS.kind, "shop:orders:") is None
    await emit(shop, "a", 1, 1)
    assert system.get(MARKERS.kind, "shop:orders:") is not None


async def test_a_marker_is_alone_in_its_row_among_messages_of_its_group(shop: Wired):
    log, markers = await shop.topics.open(A), shop.services.markers
    await markers.ready(log)

    def stage(group):
        log.append(group, [b"one"])
        markers.emit(group, log, Marker("a", 1, 5), None)
        log.append(group, [b"two"])

    await shop.services.writer.each[0].run(stage)
    assert await kinds(shop) == ["one", "WATERMARK", "two"]
