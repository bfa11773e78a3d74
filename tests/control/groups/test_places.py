"""Messages that are named by their ids: found in their rows, and refused where nothing is decided yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from basalt.api.bodies.groups import SeekRequest
from basalt.errors import (
    ConflictError,
    MessageNotFoundError,
)
from basalt.groups import places
from basalt_engine.spans.spans import ZERO_ID
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired, texts

pytestmark = pytest.mark.anyio


async def test_single_ids_are_acknowledged_and_neighbours_become_one_span(shop: Wired) -> None:
    for batch in ("abc", "d", "ef"):
        await shop.publish(A, *batch)
    billing = await Billing.made(shop)
    known = list[bytes]()
    while (page := await billing.fetch()).claim:
        known += ids_of(page)
    assert len(known) == 6
    await billing.groups.seek(A, "billing", SeekRequest("start"))
    for index in (1, 4, 3, 0, 2, 5):
        await billing.acknowledge(ids=[known[index]])
    assert list(billing.live.state.acknowledged) == [(ZERO_ID, known[5])]


async def test_ids_behind_an_undecided_row_are_refused_and_dealing_stops_there(shop: Wired) -> None:
    await shop.publish(A, "a")
    tx = await shop.transactions.begin()
    await shop.publish(A, "held", tx=tx)
    await shop.publish(A, "b")
    billing = await Billing.made(shop)
    page = await billing.fetch()
    assert texts(page.fetch) == ["a"]
    waits = await billing.fetch()
    assert waits.waiting_for == f"held {shop.services.ids.text(tx.id)}"
    behind = (await shop.messaging.fetch(A, None, True)).slices[-1].last_id()
    for refused in (billing.acknowledge(ids=[behind]), billing.acknowledge(up_to=behind)):
        with pytest.raises(ConflictError, match=shop.services.ids.text(tx.id)):
            await refused
    await billing.acknowledge(page.claim)
    await shop.transactions.commit(tx.id)
    assert await billing.handled() == ["held", "b"]


async def test_ids_that_no_message_has_are_refused(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    page = await billing.fetch()
    other = bytes([*ids_of(page)[0][:19], 7])
    with pytest.raises((MessageNotFoundError, ConflictError)):
        await billing.acknowledge(ids=[other])
    with pytest.raises(ConflictError):
        await billing.acknowledge(up_to=b"\xff" * 20)


async def test_a_span_begins_later_where_the_message_before_is_far_and_the_gap_is_closed(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "ROWS_BEFORE_MAX", 2)
    await shop.publish(A, "a")
    for _ in range(4):
        tx = await shop.transactions.begin()
        await shop.publish(A, "never", tx=tx)
        await shop.transactions.abort(tx.id)
    await shop.publish(A, "b")
    billing = await Billing.made(shop)
    known = list[bytes]()
    while (page := await billing.fetch()).claim:
        known += ids_of(page)
    await billing.groups.seek(A, "billing", SeekRequest("start"))
    for message_id in known:
        await billing.acknowledge(ids=[message_id])
    assert await billing.read() == []
    await billing.groups.upkeep.run()
    assert list(billing.live.state.acknowledged) == [(ZERO_ID, known[-1])]


async def test_ids_are_found_by_the_head_of_a_row_as_they_are_in_its_messages(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every row in memory, in every order, and of ids that are no message's: the place is that of the messages themselves."""
    for batch in ("abc", "d", "efgh"):
        await shop.publish(A, *batch)
    committed, aborted = await shop.transactions.begin(), await shop.transactions.begin()
    await shop.publish(A, "ij", tx=committed)
    await shop.publish(A, "never", tx=aborted)
    await shop.publish(A, "k", "l")
    await shop.transactions.commit(committed.id)
    await shop.transactions.abort(aborted.id)
    billing = await Billing.made(shop)
    log, _ = await billing.live.open()
    find = billing.groups._places.find
    page = await shop.messaging.fetch(A, None, True)  # uncommitted ones too
    known = [message_id for each in page.slices for message_id in each.ids()]
    asked = [*known, *(each[:19] + b"\x07" for each in known), *(each[:9] + b"\xfe" + each[10:] for each in known)]
    random.Random(7).shuffle(asked)
    found = await find(log, asked)
    monkeypatch.setattr(places, "_run_at", lambda *_: None)
    assert found == await find(log, asked)
    assert [each.id for each in found] == asked


async def test_ids_of_one_row_are_looked_up_together(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in (map(str, range(50)), map(str, range(50, 100))):
        await shop.publish(A, *batch)
    billing = await Billing.made(shop)
    log, _ = await billing.live.open()
    page = await shop.messaging.fetch(A, None, True)
    known = [message_id for each in page.slices for message_id in each.ids()]
    looked = list[object]()

    def counted(look: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: looked.append(given) or look(*given)

    monkeypatch.setattr(places, "_run_at", counted(places._run_at))
    monkeypatch.setattr(places.MessagePlaces, "_slice_of", counted(places.MessagePlaces._slice_of))
    found = await billing.groups._places.find(log, random.Random(7).sample(known, 100))
    assert all(place.is_known for place in found)
    assert len(looked) <= 4, "once or twice for each row, not for each id"


def test_an_id_before_the_first_of_its_row_is_no_message() -> None:
    """The rows that it was in may be gone."""
    run = places._Run(bytes(7) + b"\x05", 3, bytes(7) + b"\x05\x00\x08" + bytes(10))
    found = {number: run.place(run.head + number.to_bytes(2, "big") + bytes(10)) for number in (2, 3, 4)}
    assert found[2] is not None
    assert not found[2].is_known
    assert found[3] is None
    assert found[4] == (run.head + b"\x00\x03" + bytes(10), run.head + b"\x00\x04" + bytes(10), True)
