"""Retention across its limits: with two or three where thousands are usual, it removes the same."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import pytest

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import table_name
from basalt.catalog.topics import TopicName
from basalt.retention import cells, expired, job
from basalt.tables import garbage_cells
from basalt.tables.tables import CellWrites
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.retention.readers import HOUR_MS, LIFETIME_MS, entries, rows, run
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio

T = TypeVar("T")

TOPICS = [TopicName("shop", f"topic{number}") for number in range(7)]
TABLES = [table_name("shop", f"table{number}") for number in range(5)]
LIMITS = [
    (job, "TOPICS_PAGE"),
    (expired, "GROUP_TOPICS"),
    (expired, "TOPICS_REMEMBERED_MAX"),
    (expired, "PAYLOAD_LOOKS_MAX"),
    (expired, "OLD_TOPICS_MAX"),
    (cells, "GROUP_NOTES"),
    (cells, "PAGE_ROWS"),
    (cells, "PAGE_BYTES"),
    (cells, "ROWS_MAX"),
    (cells, "BYTES_MAX"),
]

# Each limit alone, and on HBase, where a run of the job takes a hundred times as long, all at once.
CASES = [
    *(pytest.param(store, [limit], id=f"{store}-{limit[1]}") for store in ("atomic", "by-row") for limit in LIMITS),
    pytest.param("hbase", LIMITS, id="hbase-all", marks=pytest.mark.hbase),
]


async def fill(shop: Wired) -> None:
    """Messages that expire and payloads of writers that never published them, in topics; superseded and failed cells."""
    for title in TOPICS:
        await shop.topics.create(title, {"ttl": "60"})
        await shop.publish(title, "expires")
        tx = await shop.transactions.begin()
        await shop.messaging.store(title, [b"left behind"], tx.id)
        await shop.transactions.abort(tx.id)
    for title in TABLES:
        await shop.services.tables.catalog.create(title)
        for value in (b"1", b"2", b"3"):
            tx = await shop.transactions.begin()
            await shop.services.tables.write(title, tx.id, CellWrites(puts=[CellPut(b"row", b"column", value)]))
            await shop.transactions.commit(tx.id)
        for _ in range(4):
            tx = await shop.transactions.begin()
            await shop.services.tables.write(title, tx.id, CellWrites(puts=[CellPut(b"row", b"column", b"failed")]))
            await shop.transactions.invalidate(tx.id)


@pytest.mark.parametrize("limit", [2, 3])
@pytest.mark.parametrize(("shop", "limits"), CASES, indirect=["shop"])
async def test_a_job_across_its_limits_removes_the_same_in_more_runs(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, limits: list[tuple[ModuleType, str]], limit: int
):
    for module, name in limits:
        monkeypatch.setattr(module, name, limit)
    await fill(shop)
    shop.clock.advance(2 * LIFETIME_MS + 3 * HOUR_MS)
    left = ([[]] * len(TOPICS), [], len(TABLES), [])  # of cells the newest version of each
    assert await run_until(shop, 60, left, lambda: (
        [rows(shop, "message", title) for title in TOPICS], rows(shop, "payload"), len(rows(shop, "cell")),
        entries(shop, garbage_cells.GARBAGE.kind),
    )) == left  # fmt: skip
    for title in TOPICS:
        await shop.topics.delete(title)
    for table in TABLES:
        await shop.services.tables.catalog.delete(table)
    swept = ([], len(TOPICS) + len(TABLES))
    assert await run_until(shop, 10, swept, lambda: (
        rows(shop, "cell"), len(entries(shop, expired.SWEPT.kind))
    )) == swept  # fmt: skip


async def run_until(shop: Wired, runs_max: int, expected: T, found: Callable[[], T]) -> T:
    """What is found once it is as expected and two runs more have left it so, or after the most runs."""
    unchanged_runs = 0
    for _ in range(runs_max):
        await run(shop)
        unchanged_runs = unchanged_runs + 1 if found() == expected else 0
        if unchanged_runs > 2:
            break
    return found()


async def test_notes_about_cells_are_removed_some_at_a_time(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    removed: list[int] = []
    stage = cells._stage_notes
    monkeypatch.setattr(cells, "GROUP_NOTES", 3)
    monkeypatch.setattr(
        cells, "_stage_notes", lambda group, noted, done: removed.append(len(done)) or stage(group, noted, done)
    )
    await fill(shop)
    await run(shop)
    assert set(removed) <= {1, 3}
    assert sum(removed) == (0 if shop.store.applies_retention else 4 * len(TABLES))


async def test_what_another_server_owns_is_left_to_it(shop: Wired):
    tx = await shop.transactions.begin()
    for title in (A, B):
        await shop.topics.update(title, {"ttl": "60"})
        await shop.publish(title, "expires")
        await shop.messaging.store(title, [b"rolled back"], tx.id)
    await shop.transactions.abort(tx.id)
    before = rows(shop, "message", A)
    shop.clock.advance(LIFETIME_MS + 3 * HOUR_MS)
    gate, shards = shop.topics.gate, [shard_of(topic_prefix(*A))]
    gate.close(shards)
    await run(shop)
    assert (rows(shop, "message", A), rows(shop, "message", B)) == (before, [])
    gate.call_off(shards)
    await run(shop)
    assert rows(shop, "message", A) == []
