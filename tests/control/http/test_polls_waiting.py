"""A call that waits ends with its answer, or with its client, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from basalt.http.asgi.requests import ClientGoneError
from basalt.http.routes.polls import unless_gone

pytestmark = pytest.mark.anyio


class Call:
    """A request whose client goes when `gone` is set, and the answer that it waits for."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ended = False
        self.request: Any = SimpleNamespace(
            route="poll",
            exchange=SimpleNamespace(until_gone=self.gone.wait),
            one_more=lambda _quota: nullcontext(),
        )

    async def answered(self) -> str:
        try:
            return await self.answer
        finally:
            self.ended = True


async def test_an_answer_ends_the_wait_and_the_look_out_for_the_client():
    call, others = Call(), asyncio.all_tasks()
    waiting = asyncio.ensure_future(unless_gone(call.request, call.answered()))
    await asyncio.sleep(0)
    call.answer.set_result("found")
    assert await waiting == "found"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == others


async def test_a_client_that_has_gone_ends_the_wait():
    call = Call()
    waiting = asyncio.ensure_future(unless_gone(call.request, call.answered()))
    await asyncio.sleep(0)
    call.gone.set()
    with pytest.raises(ClientGoneError):
        await waiting
    assert call.ended
    assert call.answer.cancelled()


async def test_a_server_that_cancels_the_call_is_told_so():
    call = Call()
    waiting = asyncio.ensure_future(unless_gone(call.request, call.answered()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert call.ended


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("gone_first", [True, False])
async def test_a_client_that_goes_while_the_answer_comes_cancels_nothing_that_follows(gone_first: bool, turns: int):
    call = Call()

    async def followed() -> str:
        try:
            found = await unless_gone(call.request, call.answered())
        except ClientGoneError:
            found = "gone"
        for _ in range(5):
            await asyncio.sleep(0)
        return found

    waiting = asyncio.ensure_future(followed())
    await asyncio.sleep(0)
    events = [call.gone.set, lambda: call.answer.done() or call.answer.set_result("found")]
    for event in events if gone_first else reversed(events):
        event()
        for _ in range(turns):
            await asyncio.sleep(0)
    assert await waiting in ("found", "gone")
    assert call.ended
