"""The jobs that only ask a service: time-outs, log snapshots, statistics."""

from __future__ import annotations

import pytest

from basalt.operations import jobs
from basalt.settings import JobsSettings
from basalt.transactions.log.transaction_log import TransactionLog
from tests.control.retention.readers import lose_log, run, seen
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def test_all_jobs_have_names_that_the_settings_know(shop: Wired):
    jobs = await shop.services.scheduler.jobs()
    for_regions = {"snapshot"} if shop.store.kind == "hbase" else set()
    assert [job.name for job in jobs] == sorted({"expiry", "log-snapshot", "prune", "retention", "stats"} | for_regions)
    for job in jobs[1:]:
        assert job.interval_ms == getattr(JobsSettings(), job.name.replace("-", "_")).interval_ms
    assert jobs[0].interval_ms == shop.services.settings.transactions.expiry_interval_ms


async def test_a_transaction_past_its_deadline_is_ended_and_holds_nobody_up(shop: Wired):
    tx = await shop.transactions.begin(timeout_ms=5_000)
    await shop.publish(A, "early", tx=tx)
    await shop.publish(A, "plain")
    shop.clock.advance(4_999)
    assert (await run(shop, "expiry")).report == {}
    assert (await seen(shop, A)).committed == []
    shop.clock.advance(1)
    assert (await run(shop, "expiry")).report == {"expired": 1}
    assert [payload for _, payload in (await seen(shop, A)).committed] == [b"plain"]


async def test_looking_for_transactions_to_end_writes_nothing_and_asks_nobody(shop: Wired):
    await shop.transactions.begin()
    groups, expire = shop.services.writer.groups, shop.transactions.expire
    shop.transactions.expire = None  # type: ignore[assignment, method-assign]
    assert await jobs.end_late(shop.transactions, shop.clock) == {}
    shop.transactions.expire = expire  # type: ignore[method-assign]
    assert shop.services.writer.groups == groups


async def test_time_outs_bring_back_a_manager_that_lost_its_log(shop: Wired):
    await shop.transactions.begin(timeout_ms=5_000)
    lose_log(shop)
    assert (await run(shop, "expiry")).report == {}
    assert shop.transactions.state.in_progress_count == 1


async def test_a_log_snapshot_is_written_once_enough_was_logged(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "SNAPSHOT_ENTRIES_MIN", 3)
    for _ in range(2):
        await shop.transactions.begin()
    assert (await run(shop, "log-snapshot")).report == {}
    await shop.transactions.begin()
    report = (await run(shop, "log-snapshot")).report
    assert report["entries"] == 3
    assert int(report["snapshot_bytes"]) > 0
    assert (await run(shop, "log-snapshot")).report == {}
    log = TransactionLog(shop.store.table("transaction_log"))
    assert log.recover().in_progress_count == 3
    assert log.entries_since_snapshot == 0


async def test_large_entries_are_enough_for_a_snapshot_too(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "SNAPSHOT_BYTES_MIN", 10)
    await shop.transactions.begin(owner="somebody with a name")
    assert (await run(shop, "log-snapshot")).report["entries"] == 1


async def test_counts_are_saved_by_the_stats_job(shop: Wired):
    await shop.publish(A, "x")
    assert (await run(shop, "stats")).report == {}
    shop.clock.advance(3_600_000)
    assert (await run(shop, "stats")).report == {"topics": 1}
