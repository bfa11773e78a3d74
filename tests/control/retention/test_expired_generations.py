"""Rows of past generations go from every bucket of both tables; the present generation stays."""

from __future__ import annotations

import pytest

from basalt.catalog.topics import topic_name
from basalt.messaging.log.append import EMPTY_LOG
from basalt.messaging.log.topic_log import TopicLog
from basalt.retention import expired
from basalt_engine.keys import MessageKey
from tests.control.retention.readers import entries, rows, run, seen
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


async def filled(shop: Wired) -> None:
    """Messages and stored payloads in A and B, of several writers."""
    for title in (A, B):
        for number in range(5):
            tx = await shop.transactions.begin()
            await shop.publish(title, f"m{number}")
            await shop.store_aside(title, "aside", tx=tx)
            shop.clock.advance(1)


async def test_rows_of_a_deleted_topic_go(shop: Wired):
    await filled(shop)
    before = await seen(shop, A)
    await shop.topics.delete(B)
    assert (await run(shop)).report == {"old_generations": 1}
    assert (rows(shop, "message", B), rows(shop, "payload", B)) == ([], [])
    assert await seen(shop, A) == before
    assert len(rows(shop, "payload", A)) == 5


async def test_rows_of_a_topic_that_was_created_again_stay(shop: Wired):
    await filled(shop)
    await shop.topics.delete(B)
    await shop.topics.create(B, {})  # with another spread than before
    await filled(shop)
    before = await seen(shop, B)
    await run(shop)
    assert await seen(shop, B) == before
    assert {MessageKey.decode(key).generation for key in rows(shop, "message", B)} == {2}
    assert len(rows(shop, "payload", B)) == 5


async def test_a_topic_whose_name_begins_like_another_keeps_its_rows(shop: Wired):
    longer = topic_name("shop", "invoices-2")
    await shop.topics.create(longer, {})
    await shop.publish(longer, "x")
    await filled(shop)
    await shop.topics.delete(B)
    await run(shop)
    assert [payload for _, payload, _ in (await seen(shop, longer)).plain] == [b"x"]


async def test_several_generations_go_at_once(shop: Wired):
    for _ in range(3):
        await shop.publish(A, "x")
        await shop.topics.delete(A)
        await shop.topics.create(A, {})
    await shop.publish(A, "newest")
    await run(shop)
    assert len(rows(shop, "message", A)) == 1


async def test_a_generation_is_swept_once(shop: Wired):
    await filled(shop)
    await shop.topics.delete(B)
    await run(shop)
    groups = shop.services.writer.groups
    assert (await run(shop)).report == {}
    again = await shop.restarted()
    await run(again)
    assert shop.services.writer.groups == groups
    assert again.services.writer.groups == 0
    await again.topics.create(B, {})
    await again.publish(B, "x")
    await again.topics.delete(B)
    assert (await run(again)).report == {"old_generations": 1}


async def test_one_run_sweeps_a_bounded_number_of_topics(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expired, "OLD_TOPICS_MAX", 1)
    await filled(shop)
    await shop.topics.delete(A)
    await shop.topics.delete(B)
    await run(shop)
    assert len({key[1:].split(b":")[1] for key in rows(shop, "message")}) == 1
    await run(shop)
    assert rows(shop, "message") == []


async def test_a_topic_created_again_during_the_sweep_keeps_what_is_noted_of_it(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    await shop.topics.update(A, {"ttl": "60"})
    await shop.topics.delete(A)
    sweep = expired.OldGenerations._ranges

    def meanwhile(self: expired.OldGenerations, prefix: bytes, living: int) -> object:
        monkeypatch.undo()
        again = TopicLog(shop.topics.catalog.at(A, metadata), EMPTY_LOG, shop.topics.memory)
        shop.topics._keep(again)
        return sweep(self, prefix, living)

    await shop.topics.create(A, {"ttl": "60"})
    await shop.publish(A, "x")
    shop.clock.advance(3_600_000)
    await run(shop)
    assert entries(shop, "newest") == ["shop:orders:"]
    metadata = (await shop.topics.get(A)).metadata
    await shop.topics.delete(A)
    monkeypatch.setattr(expired.OldGenerations, "_ranges", meanwhile)
    await run(shop)
    assert entries(shop, "newest") == ["shop:orders:"]
