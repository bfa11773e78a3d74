"""Waiting for something new in a topic: who is woken, how many may wait, and that nobody who left is remembered."""

from __future__ import annotations

import asyncio

import pytest

from basalt.errors import BusyError
from basalt.messaging.log.topic_log import LogLimits, TopicLog
from tests.wiring import A, B, Wired, texts

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def two_logs(waiting_max: int = 100) -> tuple[Wired, TopicLog, TopicLog]:
    shop = await Wired.start(memory=LogLimits(waiting=waiting_max))
    await shop.topics.create(A, {})
    await shop.topics.create(B, {})
    return shop, await shop.topics.open(A), await shop.topics.open(B)


async def test_a_notice_wakes_all_who_wait_for_the_topic_and_nobody_else() -> None:
    shop, log, other = await two_logs()
    mine, others = [log.waiter() for _ in range(3)], other.waiter()
    log.notify()
    await asyncio.gather(*mine)
    assert not others.done()
    assert (shop.topics.memory.waiting, log.waiting, other.waiting) == (1, 0, 1)
    log.notify()
    shop.topics.wake_all()
    await others
    await asyncio.sleep(0)
    assert (shop.topics.memory.waiting, shop.topics.memory.with_waiting) == (0, set())


async def test_what_arrives_after_the_waiter_was_taken_is_not_missed() -> None:
    _, log, _ = await two_logs()
    waiter = log.waiter()
    log.notify()
    log.notify()
    await asyncio.wait_for(waiter, 60)


async def test_a_waiter_that_leaves_is_forgotten() -> None:
    shop, log, _ = await two_logs()
    leaving, staying = log.waiter(), log.waiter()
    leaving.cancel()
    await asyncio.sleep(0)
    assert shop.topics.memory.waiting == 1
    log.notify()
    await staying
    await asyncio.sleep(0)
    assert (shop.topics.memory.waiting, shop.topics.memory.with_waiting) == (0, set())


async def test_a_topic_that_is_deleted_wakes_who_waits_for_it() -> None:
    shop, log, _ = await two_logs()
    waiter = log.waiter()
    await shop.topics.delete(A)
    await asyncio.wait_for(waiter, 60)


async def test_a_fetch_that_would_be_one_more_than_may_wait_is_told_so_and_others_go_on_waiting() -> None:
    shop, *_ = await two_logs(waiting_max=2)
    waiting = [asyncio.ensure_future(shop.messaging.fetch(title, None, True, wait_ms=30_000)) for title in (A, B)]
    while shop.topics.memory.waiting < 2:
        await asyncio.sleep(0)
    with pytest.raises(BusyError, match="2 fetches wait for messages, the limit is 2"):
        await shop.messaging.fetch(A, None, True, wait_ms=1)
    with pytest.raises(BusyError):
        await shop.services.markers.facts(A, wait_ms=1)
    assert (await shop.messaging.fetch(A, None, True)).slices == []  # it does not wait
    await shop.publish(A, "news")
    assert texts(await asyncio.wait_for(waiting[0], 60)) == ["news"]
    assert texts(await shop.messaging.fetch(A, None, True, wait_ms=1)) == ["news"]
    shop.services.stop_waiting()
    await waiting[1]
    await asyncio.sleep(0)
    assert shop.topics.memory.waiting == 0
