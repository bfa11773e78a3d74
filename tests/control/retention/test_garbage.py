"""Rolled back rows and rows of failed writers go, as the topic's property onInvalid says, and nothing else does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from basalt.api.bodies.messages import PublishResponse
from basalt.messaging.log import garbage_notes, roll_back, stored_log
from basalt.messaging.log.topic_log import TopicLog
from basalt.retention import garbage
from basalt.runtime.group_commit import Group
from basalt_engine.keys import MessageId
from basalt_engine.messages import MessageTable
from tests.control.retention.readers import HIDDEN, HOUR_MS, entries, lose_log, rows, run, seen
from tests.counted_reads import CountedReads
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


async def early(shop: Wired, *messages: str, end: str) -> None:
    """A transaction that publishes to A before it ends this way."""
    tx = await shop.transactions.begin()
    await shop.publish(A, *messages, tx=tx)
    await getattr(shop.transactions, end)(tx.id)


@pytest.mark.parametrize(("end", "reason"), [("abort", "rolled_back"), ("invalidate", "invalid")])
async def test_rows_that_no_snapshot_shows_go(shop: Wired, end: str, reason: str):
    await shop.publish(A, "before")
    await early(shop, "hidden", end=end)
    await early(shop, "after", end="commit")
    held = [shop.transactions.manager.current()]
    before = await seen(shop, A, held)
    assert (await run(shop)).report == {reason: 1}
    after = await seen(shop, A, held)
    assert after[:2] == before[:2]
    assert after.plain == [message for message in before.plain if message[2] not in HIDDEN]
    assert len(rows(shop, "message", A)) == 2
    assert entries(shop, garbage_notes.GARBAGE.kind) == []
    assert await seen(await shop.restarted(), A, held) == after


@pytest.mark.parametrize(("end", "reason"), [("abort", "rolled_back_retained"), ("invalidate", "invalid_retained")])
async def test_a_topic_may_keep_them_for_plain_readers_until_they_expire(shop: Wired, end: str, reason: str):
    await shop.topics.update(A, {"onInvalid": "retain", "ttl": "3600"})
    await early(shop, "hidden", end=end)
    before = await seen(shop, A)
    assert (await run(shop)).report == {reason: 1}
    after = await seen(shop, A)
    assert after.committed == before.committed == []
    assert [message[:2] for message in after.plain] == [message[:2] for message in before.plain]
    assert [state for *_, state in after.plain] == ["rolled back"]  # it needs no invalid list any more
    assert entries(shop, garbage_notes.GARBAGE.kind) == []
    assert await seen(await shop.restarted(), A) == after
    shop.clock.advance(2 * HOUR_MS)
    await run(shop)
    assert rows(shop, "message", A) == []


async def test_an_open_writer_keeps_its_rows_and_their_note(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "taken back", tx=tx)
    published = await shop.messaging.publish(A, [b"mistake"], tx.write_pointer)
    await shop.messaging.roll_back(A, published)
    await shop.publish(A, "late", tx=tx)
    await run(shop)
    assert [state for *_, state in (await seen(shop, A)).plain] == ["open", "open"]
    await shop.commit(tx)
    assert [payload for _, payload in (await seen(shop, A)).committed] == [b"taken back", b"late"]


async def test_a_roll_back_touches_nothing_but_its_own_range(shop: Wired):
    tx = await shop.transactions.begin()
    placed: list[PublishResponse] = []
    for payload in (b"1", b"2", b"3"):
        placed.append(await shop.messaging.publish(A, [payload], tx.write_pointer))
        await shop.publish(A, "between")
    await shop.messaging.roll_back(A, placed[1])
    await run(shop)
    await shop.commit(tx)
    assert [payload for _, payload in (await seen(shop, A)).committed] == [
        b"1",
        b"between",
        b"between",
        b"3",
        b"between",
    ]


async def test_payloads_go_with_the_rows_that_refer_to_them(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    await shop.messaging.publish(A, [], tx.write_pointer)
    await shop.store_aside(A, "left", tx=tx)
    await shop.transactions.abort(tx.id)
    before = await seen(shop, A)
    assert [payload for _, payload, _ in before.plain] == [b"aside"]
    await run(shop)
    assert rows(shop, "message", A) == []
    stored = rows(shop, "payload", A)
    assert all(key.endswith(b"\xff" * 10) for key in stored)  # only the note of what was published


async def test_all_payloads_of_a_failed_writer_go(shop: Wired):
    tx = await shop.transactions.begin()
    other = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    await shop.messaging.publish(A, [], tx.write_pointer)
    await shop.store_aside(A, "never published", tx=tx)
    await shop.store_aside(A, "other", tx=other)
    await shop.transactions.invalidate(tx.id)
    await run(shop)
    assert len(rows(shop, "payload", A)) == 1
    await shop.commit(other)
    assert [payload for _, payload in (await seen(shop, A)).committed] == [b"other"]


async def test_a_failed_writer_that_is_aborted_later_leaves_nothing(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await shop.store_aside(A, "aside", tx=tx)
    await shop.transactions.invalidate(tx.id)
    await run(shop)
    await shop.transactions.abort(tx.id)
    await run(shop)
    assert (rows(shop, "message", A), rows(shop, "payload", A), entries(shop, garbage_notes.GARBAGE.kind)) == (
        [],
        [],
        [],
    )


async def test_rows_of_a_failed_writer_are_looked_for_only_where_they_may_lie(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "joined early", tx=tx)
    await shop.publish(A, "before")
    await shop.publish(A, "early", tx=tx)
    await shop.publish(A, "after")
    await shop.transactions.invalidate(tx.id)
    (note,) = garbage_notes.read(shop.services.system, 9)
    topic = await shop.topics.get(A)
    between = MessageTable(shop.store.table(MessageTable.name)).scan(
        topic.read_keys, bytes.fromhex(note.start), bytes.fromhex(note.last)
    )
    assert [row.written_by for row in between] == [tx.write_pointer]
    await run(shop)
    assert (len(rows(shop, "message", A)), rows(shop, "payload", A)) == (2, [])


async def test_rows_of_a_failed_writer_from_before_a_restart_are_found(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await shop.publish(A, "after")
    again = await shop.restarted()
    await again.transactions.invalidate(tx.id)
    assert (await run(again)).report == {"invalid": 1}
    assert [payload for _, payload, _ in (await seen(again, A)).plain] == [b"after"]


async def test_nothing_is_decided_while_the_manager_reads_its_log(shop: Wired):
    await early(shop, "invalid", end="invalidate")
    await shop.publish(A, "plain")
    lose_log(shop)
    assert (await run(shop)).report == {"undecided": 1}
    assert len(rows(shop, "message", A)) == 2
    assert len(entries(shop, garbage_notes.GARBAGE.kind)) == 1
    await shop.transactions.recover()
    assert (await run(shop)).report == {"invalid": 1}


async def test_a_row_whose_writer_is_still_open_in_the_newest_snapshot_keeps_its_note(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    stale = shop.transactions.manager.current()
    await shop.transactions.invalidate(tx.id)
    monkeypatch.setattr(
        shop.transactions.manager, "snapshots", lambda: (stale, stale)
    )  # as while a remote store answers
    assert (await run(shop)).report == {"undecided": 1}
    monkeypatch.undo()
    assert (await run(shop)).report == {"invalid": 1}


async def test_no_place_is_given_out_again_when_the_newest_row_is_gone_and_the_clock_went_back(shop: Wired):
    await shop.publish(A, "kept")
    shop.clock.advance(1_000)
    await early(shop, "gone", end="abort")
    newest = (await seen(shop, A)).plain[-1][0]
    await run(shop)
    shop.clock.step(MessageId.decode(newest).publish_ms - 1_000)
    again = await shop.restarted()
    await again.publish(A, "next")
    assert (await seen(again, A)).plain[-1][0] > newest


async def test_notes_of_a_generation_that_is_gone_are_removed(shop: Wired):
    await early(shop, "hidden", end="abort")
    await shop.topics.delete(A)
    await run(shop)
    assert entries(shop, garbage_notes.GARBAGE.kind) == []
    await shop.topics.create(A, {})
    await shop.publish(A, "new")
    await run(shop)
    assert [payload for _, payload, _ in (await seen(shop, A)).plain] == [b"new"]


async def test_a_long_note_is_worked_off_a_page_at_a_time(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_log, "PAGE_ROWS", 5)
    monkeypatch.setattr(garbage, "ROWS_MAX", 10)
    tx = await shop.transactions.begin()
    for number in range(30):
        await shop.publish(A, f"early{number}", tx=tx)
        await shop.publish(A, f"plain{number}")
    await shop.transactions.invalidate(tx.id)
    reports = []
    for _ in range(20):
        reports.append((await run(shop)).report)
        if not entries(shop, garbage_notes.GARBAGE.kind):
            break
    assert sum(int(report.get("invalid", 0)) for report in reports) == 30
    assert all(int(report.get("invalid", 0)) <= 10 for report in reports)
    assert [payload for _, payload, _ in (await seen(shop, A)).plain] == [f"plain{n}".encode() for n in range(30)]


@pytest.mark.parametrize(
    ("name", "limit"), [("GROUP_ROWS", 2), ("GROUP_ROWS", 3), ("GROUP_BYTES", 3), ("NOTES_MAX", 2)]
)
async def test_no_write_judges_more_rows_than_its_limit_and_a_page(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
):
    monkeypatch.setattr(stored_log, "PAGE_ROWS", 2)
    monkeypatch.setattr(garbage, name, limit)
    for number in range(5):
        tx = await shop.transactions.begin()
        for each in range(3):
            await shop.publish(A, f"early {number} {each}", tx=tx)
        await shop.publish(A, f"plain {number}")
        await shop.transactions.invalidate(tx.id)
    judged: list[int] = []
    stage = garbage.GarbageRows._stage

    def counting(self: garbage.GarbageRows, group: Group, log: TopicLog, found: list[Any]) -> Counter[str]:
        judged.append(sum(each.looked_at for each in found))
        return stage(self, group, log, found)

    monkeypatch.setattr(garbage.GarbageRows, "_stage", counting)
    assert (await run(shop)).report == {"invalid": 15}, "also what lies behind a note's first page goes in one run"
    assert max(judged) <= {"GROUP_ROWS": limit, "GROUP_BYTES": 2, "NOTES_MAX": 2 * limit}[name]
    assert [payload for _, payload, _ in (await seen(shop, A)).plain] == [f"plain {n}".encode() for n in range(5)]
    assert entries(shop, garbage_notes.GARBAGE.kind) == []


async def test_many_notes_are_worked_off_in_few_writes(shop: Wired):
    for _ in range(100):
        await early(shop, "hidden", end="abort")
    groups = shop.services.writer.groups
    assert (await run(shop)).report == {"rolled_back": 100}
    assert shop.services.writer.groups - groups <= 2
    assert rows(shop, "message", A) == []


async def test_rows_of_a_spread_topic_are_found_in_all_their_buckets(shop: Wired):
    tx = await shop.transactions.begin()
    for number in range(9):
        await shop.publish(B, f"early{number}", tx=tx)
        shop.clock.advance(1)
    await shop.transactions.abort(tx.id)
    assert (await run(shop)).report == {"rolled_back": 9}
    assert rows(shop, "message", B) == []


async def test_a_roll_back_waits_for_a_removal_so_that_no_half_row_comes_into_being(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    """Were a row removed after a roll back has found it, only its column t would be written again."""
    tx = await shop.transactions.begin()
    published = await shop.messaging.publish(A, [b"x"], tx.write_pointer)
    log = await shop.topics.open(A)
    topic, judged = log.topic, []

    def read_page(*args: Any) -> stored_log.LogPage:
        judged.append(log.locks.rows.locked())
        return stored_log.read_page(*args)

    monkeypatch.setattr(roll_back, "read_page", read_page)
    await shop.messaging.roll_back(A, published)
    (row,) = MessageTable(shop.store.table("message")).scan(topic.read_keys)
    assert row.written_by == -tx.write_pointer
    assert set(judged) == {True}


async def test_a_large_reference_is_counted_a_page_at_a_time_before_it_is_removed(monkeypatch: pytest.MonkeyPatch):
    store = CountedReads()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.publish(A, "kept")
    tx = await shop.transactions.begin()
    for _ in range(40):
        await shop.messaging.store(A, [b"x" * 1_000], tx.write_pointer)
    await shop.messaging.publish(A, [], tx.write_pointer)
    await shop.transactions.invalidate(tx.id)
    assert (await shop.services.topic_stats.stats(A)).messages == 41
    monkeypatch.setattr(stored_log, "PAGE_BYTES", 5_000)
    async with store.watched():
        assert (await run(shop)).report == {"invalid": 1}
    assert store.read_bytes > 40_000
    assert store.most_bytes < 5_000 + 2 * 1_100
    assert (await shop.services.topic_stats.stats(A)).messages == 1
    assert rows(shop, "payload", A) == []
    await shop.services.close()
