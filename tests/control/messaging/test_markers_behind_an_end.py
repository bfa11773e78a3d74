"""Messages behind the end of a stream: refused wherever one would take a place, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from basalt.api.bodies.messages import RecordIn, Work, WorkMarker, WorkPublish
from basalt.api.markers import NAMED_TASKS_MAX, Marker, MarkerState, TaskState, closed
from basalt.errors import MarkerRefusedError, TopicEndedError
from basalt.messaging.log.topic_log import LogLimits
from tests.control.messaging.test_markers import emit, kinds, said
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


def work(*messages: str, ends: str | None = None, title=A) -> Work:
    markers = [] if ends is None else [WorkMarker(*A, ends, 1, "end_of_stream")]
    return Work(
        [WorkPublish(title.namespace, title.name, [message.encode() for message in messages])] if messages else [],
        markers,
    )


async def stored(shop: Wired) -> Callable[[], Awaitable[object]]:
    """What commits messages that are stored before the stream ends."""
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    return lambda: shop.transactions.commit(tx.id)


async def published_by_hand(shop: Wired) -> Callable[[], Awaitable[object]]:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    return lambda: shop.messaging.publish(A, [], tx.write_pointer)


async def of_a_segment(shop: Wired) -> Callable[[], Awaitable[object]]:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    return lambda: shop.transactions.commit(tx.id, Work([], [], [tx.write_pointer]))


async def with_a_pointer(shop: Wired) -> Callable[[], Awaitable[object]]:
    tx = await shop.transactions.begin()
    return lambda: shop.publish(A, "late", tx=tx)


async def with_a_commit(shop: Wired) -> Callable[[], Awaitable[object]]:
    tx = await shop.transactions.begin()
    return lambda: shop.transactions.commit(tx.id, work("late"))


async def plainly(shop: Wired) -> Callable[[], Awaitable[object]]:
    return lambda: shop.publish(A, "late")


async def as_a_record(shop: Wired) -> Callable[[], Awaitable[object]]:
    return lambda: shop.messaging.publish_records(A, [RecordIn(b"late", key=b"k")])


async def in_one_shot(shop: Wired) -> Callable[[], Awaitable[object]]:
    return lambda: shop.transactions.one_shot(work("late"))


WAYS = [plainly, as_a_record, with_a_pointer, in_one_shot, with_a_commit, stored, published_by_hand, of_a_segment]


@pytest.mark.parametrize("way", WAYS)
async def test_a_message_behind_the_end_is_refused_whichever_way_it_comes(shop: Wired, way):
    late = await way(shop)
    await shop.publish(A, "before")
    await emit(shop, "a", None, 1)
    with pytest.raises(
        TopicEndedError, match="shop:orders: it has ended: task 'a' said that nothing more comes"
    ) as raised:
        await late()
    assert raised.value.hint is not None
    assert "set its property `tasks` to 2" in raised.value.hint
    for tx in shop.transactions.state.transactions():
        await shop.transactions.abort(tx.id)
    assert await kinds(shop) == ["before", "END_OF_STREAM"], "readers and followers agree"
    await shop.publish(B, "elsewhere")


@pytest.mark.parametrize("way", [plainly, in_one_shot, stored])
async def test_it_is_refused_after_a_restart_too(shop: Wired, way):
    await emit(shop, "a", None, 1)
    again = await shop.restarted()
    late = await way(again)
    with pytest.raises(TopicEndedError):
        await late()


async def test_it_is_refused_when_memory_has_forgotten_the_markers():
    shop = await Wired.start(memory=LogLimits(logs=1, detailed=1))
    for title in (A, B):
        await shop.topics.create(title, {})
    await emit(shop, "a", None, 1)
    for _ in range(3):
        await shop.publish(B, "other")
        with pytest.raises(TopicEndedError):
            await shop.publish(A, "late")


async def test_while_a_task_goes_on_every_message_passes(shop: Wired):
    await emit(shop, "a")
    await shop.publish(A, "of b")
    await emit(shop, "b")
    with pytest.raises(TopicEndedError, match="tasks 'a', 'b' said"):
        await shop.publish(A, "of nobody")


async def test_messages_and_the_end_of_one_commit_stand_in_this_order(shop: Wired):
    await shop.transactions.one_shot(work("last", ends="a"))
    assert await kinds(shop) == ["last", "END_OF_STREAM"]
    with pytest.raises(TopicEndedError):
        await shop.transactions.one_shot(work("late", ends="a"))
    await emit(shop, "a", None, 1)  # said again it changes nothing
    assert await said(shop) == (None, True)


async def test_what_repeats_a_call_gets_its_answer(shop: Wired):
    tx = await shop.transactions.begin()
    first = await shop.transactions.commit(tx.id, work("last", ends="a"), request_id="r1")
    assert await shop.transactions.commit(tx.id, work("last", ends="a"), request_id="r1") == first
    shot = await shop.transactions.one_shot(work("other", title=B), request_id="r2")
    assert await shop.transactions.one_shot(work("other", title=B), request_id="r2") == shot


async def test_what_took_its_place_before_the_end_commits(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await emit(shop, "a", None, 1)
    await shop.transactions.commit(tx.id)
    assert await shop.read(A, committed=True) == ["early"]
    assert await said(shop) == (None, True)


async def test_a_refused_commit_leaves_its_transaction_open_and_nothing_in_other_topics(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "late", tx=tx)
    await shop.store_aside(B, "in time", tx=tx)
    await emit(shop, "a", None, 1)
    with pytest.raises(TopicEndedError):
        await shop.transactions.commit(tx.id)
    assert await shop.read(B) == []
    await shop.transactions.abort(tx.id)
    assert await shop.read(B) == []


async def test_an_end_that_failed_closes_nothing(shop: Wired):
    tx = await shop.transactions.begin()
    with pytest.raises(MarkerRefusedError):
        wrong = [WorkMarker(*A, "a", 1, "end_of_stream"), WorkMarker(*A, "b", 1, "watermark", 5)]
        await shop.transactions.commit(tx.id, Work([], wrong))
    await shop.publish(A, "after all")
    assert await shop.read(A) == ["after all"]


async def test_one_more_task_opens_it_again(shop: Wired):
    await emit(shop, "a", None, 1)
    await shop.topics.merge(A, {"tasks": 2})
    await shop.publish(A, "of b")
    await emit(shop, "b", None, 2)
    with pytest.raises(TopicEndedError):
        await shop.publish(A, "late")


async def test_the_next_generation_is_a_new_stream(shop: Wired):
    await emit(shop, "a", None, 1)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    await shop.publish(A, "first")
    assert await said(shop) == (None, False)


async def test_of_an_end_and_messages_that_race_none_comes_behind_it(shop: Wired):
    async def publish(number: int) -> bool:
        try:
            await shop.publish(A, str(number))
        except TopicEndedError:
            return False
        return True

    tasks = [asyncio.ensure_future(publish(number)) for number in range(10)]
    tasks.insert(5, asyncio.ensure_future(shop.services.markers.publish(A, Marker("a", 1))))
    came = await asyncio.gather(*tasks)
    assert (await kinds(shop))[-1] == "END_OF_STREAM"
    assert len(await shop.read(A)) == sum(one is True for one in came)


def test_few_tasks_are_named():
    tasks = {f"task-{number:02}": TaskState(ended=True) for number in range(NAMED_TASKS_MAX + 2)}
    refused = closed(MarkerState(len(tasks), tasks))
    assert refused is not None
    assert refused.what.endswith("'task-09' and 2 more said that nothing more comes")
