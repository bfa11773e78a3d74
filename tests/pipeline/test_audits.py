"""The audit over real stores without Spark: a RocksDB checkpoint after a real prune, and one with a writer forgotten too early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from basalt.api.bodies.operations import ExplainedWriter, PruneHold
from basalt.http.routes import pruning
from basalt.pruning import state
from basalt.settings import Settings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import DataDirectoryError, InputError
from basalt_engine.stores.hbase.regions import RegionSnapshot
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.system import SystemTable
from basalt_spark.jobs import audits
from basalt_spark.jobs.audits import (
    FAULTS_MAX,
    KEPT_MS_MAX,
    TABLES,
    CheckpointRows,
    TableRange,
    Tally,
    WriterFinding,
    Writers,
    only,
    read_writers,
    rows_of,
    tally,
    with_explained,
)
from basalt_spark.jobs.job_run import JobReport
from tests.pipeline.runner import in_this_process
from tests.pipeline.test_audits_of_writers import message
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio

LIFETIME_MS = 3_600_000
HOUR_MS = 3_600_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Wired]:
    settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS))
    wired = await Wired.start(RocksStore.open(tmp_path / "data"), ManualClock(), settings=settings)
    await wired.topics.create(A, {})
    yield wired
    await wired.services.close()


def _explained(writer: int, cause: str) -> ExplainedWriter:
    return ExplainedWriter(writer, 0, 0, False, (PruneHold(cause, "", "", None, None, None, None),), 0)


def copied(shop: Wired, directory: Path) -> CheckpointRows:
    shop.store.checkpoint(directory)
    return CheckpointRows(str(directory))


def audited(source: CheckpointRows, writers: Writers | None = None, now_ms: int = 0) -> JobReport:
    spans = source.spans(TABLES)
    if writers is None:
        with closing(source.open()) as store:
            writers = read_writers(store)
    ticks: list[int] = []
    report = audits.audit(source, writers, in_this_process, ticks.append, spans=spans, job_id="audit", now_ms=now_ms)
    assert sum(ticks) == len(spans)
    return report


async def failed(shop: Wired) -> int:
    tx = await shop.transactions.begin()
    await shop.publish(A, "lost", tx=tx)
    assert await shop.transactions.invalidate(tx.id)
    return int(tx.id)


async def test_after_a_real_prune_the_audit_passes(shop: Wired, tmp_path: Path):
    await shop.publish(A, "kept")
    writer = await failed(shop)
    before = audited(copied(shop, tmp_path / "before"))
    assert before.exit_code == 0
    shop.clock.advance(LIFETIME_MS + HOUR_MS + 1_000)
    await shop.services.scheduler.run_now("retention")
    assert (await shop.services.pruner.run()).pruned == (writer,)
    report = audited(copied(shop, tmp_path / "after"))
    assert (report.exit_code, report.faults, report.facts["forgotten"]) == (0, [], 1)
    assert report.facts["rows"] >= 1


async def test_a_writer_that_was_forgotten_with_a_row_left_is_named_and_ends_the_audit_with_1(
    shop: Wired, tmp_path: Path
):
    writer = await failed(shop)
    state.archive(shop.services.system, shop.clock.now_ms(), [writer])
    report = audited(copied(shop, tmp_path / "copy"))
    assert report.exit_code == 1
    (fault,) = report.faults
    assert f"writer {writer} was forgotten too early: it has 1 rows left" in fault
    assert report.tables["writers"][0]["table"] == "message"
    assert report.facts["forgotten_too_early"] == 1


async def test_a_writer_that_a_server_still_lists_is_no_fault_and_its_rows_are_found(shop: Wired, tmp_path: Path):
    writer = await failed(shop)
    state.archive(shop.services.system, shop.clock.now_ms(), [writer])
    source = copied(shop, tmp_path / "copy")
    with closing(source.open()) as store:
        writers = read_writers(store)
    assert not writers.invalid_known
    explained = [_explained(writer, "note")]
    listed = with_explained(writers, explained, LIFETIME_MS, invalid=len(explained))
    assert audited(source, listed).exit_code == 0
    report = audits.check(
        source, listed, only(listed, ()), in_this_process, lambda _n: None, spans=source.spans(TABLES), job_id="check"
    )
    (line,) = report.tables["writers_checked"]
    assert (line["writer"], line["message_rows"], line["payload_rows"]) == (writer, 1, 0)
    with pytest.raises(InputError, match="not on the invalid list"):
        only(listed, [writer + 1])


async def test_a_writer_that_the_server_did_not_get_to_may_be_asked_for(shop: Wired, tmp_path: Path):
    oldest, younger, youngest = [await failed(shop) for _ in range(3)]
    source = copied(shop, tmp_path / "copy")
    with closing(source.open()) as store:
        writers = read_writers(store)
    listed = with_explained(writers, [_explained(oldest, "note"), _explained(younger, "note")], LIFETIME_MS, invalid=3)
    assert only(listed, ()) == {oldest, younger}
    report = audits.check(
        source, listed, only(listed, [youngest]), in_this_process, lambda _n: None,
        spans=source.spans(TABLES), job_id="check",
    )  # fmt: skip
    assert [(line["writer"], line["message_rows"]) for line in report.tables["writers_checked"]] == [(youngest, 1)]
    assert audited(source, listed).facts["invalid"] == 3


async def test_a_writer_that_is_kept_without_a_row_ends_the_audit_with_1(shop: Wired, tmp_path: Path):
    await shop.publish(A, "kept")
    source = copied(shop, tmp_path / "copy")
    with closing(source.open()) as store:
        writers = read_writers(store)
    gone = shop.clock.now_ms() * 1_000_000
    explained = [_explained(gone, "note"), _explained(gone + 1, "lifetime")]
    listed = with_explained(writers, explained, LIFETIME_MS, invalid=len(explained))
    late_ms = shop.clock.now_ms() + LIFETIME_MS + HOUR_MS + KEPT_MS_MAX + 1_000
    report = audited(source, listed, late_ms)
    assert report.exit_code == 1
    assert report.faults == [f"writer {gone} is kept too long: it is on the invalid list, and no row of it is anywhere"]
    assert audited(source, listed, late_ms - KEPT_MS_MAX).exit_code == 0


async def test_a_writer_that_was_put_back_on_the_list_is_neither_a_fault_nor_kept_too_long(shop: Wired, tmp_path: Path):
    writer = await failed(shop)
    shop.clock.advance(LIFETIME_MS + HOUR_MS + 1_000)
    await shop.services.scheduler.run_now("retention")
    assert (await shop.services.pruner.run()).pruned == (writer,)
    shop.clock.advance(10 * KEPT_MS_MAX)
    await shop.transactions.begin()  # by whose pointer it is known when that was
    assert await shop.services.pruner.restore(0) == 1
    source = copied(shop, tmp_path / "copy")
    with closing(source.open()) as store:
        writers = read_writers(store)
    assert writers.restored > writer
    listed = with_explained(writers, [_explained(writer, "lifetime")], LIFETIME_MS, invalid=1)
    assert listed.judge(writer) is WriterFinding.LISTED
    assert audited(source, listed, shop.clock.now_ms() + 10 * KEPT_MS_MAX).exit_code == 0, "only time frees it"
    held = with_explained(writers, [_explained(writer, "file")], LIFETIME_MS, invalid=1)
    assert audited(source, held, shop.clock.now_ms()).exit_code == 0, "its time counts from when it was put back"


async def test_the_ranges_of_a_checkpoint_hold_every_row_once(shop: Wired, tmp_path: Path):
    for number in range(5):
        tx = await shop.transactions.begin()
        await shop.messaging.store(A, [b"stored %d" % number], tx.id)
        await shop.publish(A, f"message {number}")
    source = copied(shop, tmp_path / "copy")
    with closing(source.open()) as store:
        whole = {table: [row.key for row in store.table(table).scan(b"", None)] for table in TABLES}
    found: dict[str, list[bytes]] = {table: [] for table in TABLES}
    for span in source.spans(TABLES):
        found[span.table] += [row.key for row in rows_of(source, span)]
    assert found == whole
    assert len(whole["payload"]) == 5


async def test_a_directory_that_a_server_has_open_is_refused(shop: Wired, tmp_path: Path):
    with pytest.raises(DataDirectoryError, match="a server has"):
        CheckpointRows(str(tmp_path / "data")).open()
    with pytest.raises(DataDirectoryError, match="no data directory"):
        CheckpointRows(str(tmp_path)).open()


def test_the_lists_of_a_store_that_publishes_its_snapshot_are_read_as_one():
    store = MemoryStore()
    system = SystemTable(store.table("system"))
    snapshot = RegionSnapshot(1, 2, 3, 50, 60, 9, 9, 777, in_progress=(40, 41), invalid=(10, 20))
    system.write("snapshot", "latest", snapshot.encode())
    state.archive(system, 1, [5, 6])
    state.archive(system, 2, [20])
    system.write("external_writer", f"{10:019d}", b'{"owner":""}')
    found = read_writers(store)
    assert found == Writers(
        frozenset({10, 20}), frozenset({5, 6, 20}), frozenset({40, 41}), 60, 777, frozenset({10}), {}
    )


def reported(found: Tally, writers: Writers, now_ms: int = 0) -> JobReport:
    """The report of an audit whose one range has this result."""
    span = TableRange(found.table, b"", None, found.span)
    here = CheckpointRows("here")
    return audits.audit(
        here, writers, lambda *_work: [found], lambda _n: None, spans=[span], job_id="j", now_ms=now_ms, kept_ms_max=0
    )


def test_a_report_shows_some_of_each_sort_and_counts_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audits, "SHOWN_MAX", 2)
    writers = Writers(frozenset(), frozenset(range(1, 6)))
    found = tally(TableRange("message", b"", None, "all"), [message(writer) for writer in range(1, 6)], writers)
    report = reported(found, writers._replace(invalid=frozenset({11, 12, 13})), now_ms=2 * HOUR_MS)
    assert [fault.split()[1] for fault in report.faults] == ["1", "2", "11", "12", "4"]
    assert (report.exit_code, report.faults[-1]) == (1, "and 4 more")
    assert [len(report.tables[name]) for name in ("writers", "kept")] == [5, 3]


def test_as_many_writers_are_asked_for_as_a_server_explains():
    assert audits.EXPLAINED_MAX == pruning.EXPLAINED_MAX


def test_a_range_reports_a_bounded_list_of_faults_and_counts_all():
    writers = Writers(frozenset(), frozenset(range(1, FAULTS_MAX + 50)))
    rows = [message(writer) for writer in range(1, FAULTS_MAX + 50) for _ in range(2)]
    found = tally(TableRange("message", b"", None, "all"), rows, writers)
    assert len(found.faults) == FAULTS_MAX
    assert {fault.rows for fault in found.faults} == {2}
    assert found.counts == {WriterFinding.FORGOTTEN.value: 2 * (FAULTS_MAX + 49)}
    report = reported(found, writers)
    assert report.faults[-1] == "and 80 more"
    assert msgspec.json.encode(report.row())


def test_a_row_that_cannot_be_read_is_a_fault():
    found = tally(TableRange("cell", b"", None, "all"), [message(1)], Writers(frozenset(), frozenset()))
    assert isinstance(found, Tally)
    report = reported(found, Writers(frozenset(), frozenset()))
    assert report.exit_code == 1
    assert "cannot be read" in report.faults[0]
