"""Waiting for something new: who is woken, and that nobody who left is remembered."""

from __future__ import annotations

import asyncio

import pytest

from basalt.messaging.log.waiting_fetches import Arrivals

pytestmark = pytest.mark.anyio

A, B = (b"shop:a:", 1), (b"shop:a:", 2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_notice_wakes_all_who_wait_for_the_topic_and_nobody_else() -> None:
    arrivals = Arrivals()
    mine, others = [arrivals.waiter(A) for _ in range(3)], arrivals.waiter(B)
    arrivals.notify(A)
    await asyncio.gather(*mine)
    assert not others.done()
    assert arrivals.waiters == 1
    arrivals.notify(A)
    arrivals.notify((b"nobody:waits:", 1))
    arrivals.notify_all()
    await others
    await asyncio.sleep(0)
    assert (arrivals.waiters, arrivals._waiting) == (0, {})


async def test_what_arrives_after_the_waiter_was_taken_is_not_missed() -> None:
    arrivals = Arrivals()
    waiter = arrivals.waiter(A)
    arrivals.notify(A)
    arrivals.notify(A)
    await asyncio.wait_for(waiter, 5)


async def test_a_waiter_that_leaves_is_forgotten() -> None:
    arrivals = Arrivals()
    leaving, staying = arrivals.waiter(A), arrivals.waiter(A)
    leaving.cancel()
    await asyncio.sleep(0)
    assert arrivals.waiters == 1
    arrivals.notify(A)
    await staying
    await asyncio.sleep(0)
    assert (arrivals.waiters, arrivals._waiting) == (0, {})
