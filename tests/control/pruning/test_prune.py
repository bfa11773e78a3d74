"""Prune runs over a store with regions on paper: what is logged, archived, published and compacted, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from basalt.errors import ConflictError, UnavailableError
from basalt.pruning import prune as module
from basalt.pruning import state
from basalt.pruning.rule import ASK_AGAIN_MS
from basalt.pruning.state import STATE, archived, change_state
from basalt.settings import DayWindow, HBaseSettings, Settings
from basalt.transactions.manager import EXTERNAL_WRITERS, ExternalWriter, external_writers
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.snapshot import POINTERS_PER_MS, PointerRun, PointerRuns
from basalt_engine.stores.hbase.regions import REPORT_KIND, UNKNOWN_ORIGIN, RegionSnapshot
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable, number_name
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, PaperCluster, failed_writer, file, paper, region
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


def published(wired: Wired) -> RegionSnapshot:
    body = wired.services.system.get("snapshot", "latest")
    assert body is not None
    return RegionSnapshot.decode(body)


async def ended_writer(wired: Wired) -> int:
    """A failed writer whose lifetime has been over for a second."""
    await wired.services.pruner.publisher.publish()
    writer = await failed_writer(wired)
    wired.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    return writer


async def test_a_writer_is_forgotten_archived_and_gone_from_the_published_snapshot(clustered: Wired):
    writer = await ended_writer(clustered)
    pruner, now_ms = clustered.services.pruner, clustered.clock.now_ms()
    paper(clustered).report_all(now_ms)
    result = await pruner.run()
    assert (result.pruned, result.waiting, result.held, result.regions) == ((writer,), 0, 0, 4)
    assert clustered.transactions.manager.current().invalid.pointers == ()
    assert published(clustered).invalid == ()
    assert [(entry.pruned_ms, entry.pointers) for entry in archived(clustered.services.system)] == [(now_ms, [writer])]
    assert STATE.get(clustered.services.system).newest_pruned == writer
    assert (await pruner.run()).pruned == ()
    assert pruner.pruned_total == 1


async def test_what_was_pruned_stays_so_after_a_restart(clustered: Wired):
    await ended_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())
    await clustered.services.pruner.run()
    again = await clustered.restarted()
    assert again.transactions.manager.current().invalid.pointers == ()


async def test_a_dry_run_tells_and_changes_nothing(clustered: Wired):
    writer = await ended_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())
    before = list(clustered.store.table("system").scan(b"", None))
    assert (await clustered.services.pruner.run(dry_run=True)).pruned == (writer,)
    assert list(clustered.store.table("system").scan(b"", None)) == before
    assert clustered.transactions.manager.current().invalid.pointers == (writer,)
    assert paper(clustered).compacted == []


async def test_a_young_writer_waits_and_one_that_a_file_may_hold_is_held(clustered: Wired):
    old = await ended_writer(clustered)
    young = await failed_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())
    paper(clustered).report(clustered.clock.now_ms(), file(old - 1, old))
    result = await clustered.services.pruner.run()
    assert (result.pruned, result.waiting, result.held) == ((), 1, 1)
    assert clustered.transactions.manager.current().invalid.pointers == (old, young)


async def test_a_hole_in_the_key_space_stops_the_run(clustered: Wired):
    await ended_writer(clustered)
    cluster = paper(clustered)
    cluster.report_all(clustered.clock.now_ms())
    del cluster.listed[1]
    with pytest.raises(UnavailableError, match="no region from key 08 on"):
        await clustered.services.pruner.run()
    run = await clustered.services.scheduler.run_now("prune")
    assert (run.outcome, run.error and "nothing is pruned" in run.error) == ("failed", True)


async def test_a_region_that_moves_while_reports_are_read_vouches_for_nothing(clustered: Wired):
    await ended_writer(clustered)
    cluster = paper(clustered)
    cluster.report_all(clustered.clock.now_ms())
    elsewhere = [each._replace(server="rs2,16020,1") for each in cluster.listed]
    cluster.moves = [elsewhere]  # what the first of the two looks sees
    assert (await clustered.services.pruner.run()).held == 1
    assert len((await clustered.services.pruner.run()).pruned) == 1


async def test_a_report_that_cannot_be_read_is_as_good_as_none(clustered: Wired, caplog: pytest.LogCaptureFixture):
    await ended_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())
    clustered.services.system.write(REPORT_KIND, "m2", b"\x02")
    assert (await clustered.services.pruner.run()).held == 1
    assert "m2" in caplog.text


async def test_a_crash_before_the_log_entry_leaves_the_writer_invalid(
    clustered: Wired, monkeypatch: pytest.MonkeyPatch
):
    writer = await ended_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())

    async def fails(*pointers: object) -> int:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(clustered.services.pruner._transactions, "prune", fails)
        with pytest.raises(StoreError):
            await clustered.services.pruner.run()
    assert [entry.pointers for entry in archived(clustered.services.system)] == [[writer]], "archived before it goes"
    assert STATE.get(clustered.services.system).newest_pruned == writer
    assert (await clustered.services.pruner.run()).pruned == (writer,)


async def test_many_writers_go_in_parts(clustered: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "EDIT_POINTERS_MAX", 2)
    monkeypatch.setattr(state, "ARCHIVE_POINTERS_MAX", 2)
    await clustered.services.pruner.publisher.publish()
    writers = [await failed_writer(clustered) for _ in range(5)]
    clustered.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    paper(clustered).report_all(clustered.clock.now_ms())
    assert (await clustered.services.pruner.run()).pruned == tuple(writers)
    kept = [entry.pointers for entry in archived(clustered.services.system)]
    assert kept == [writers[:2], writers[2:4], writers[4:]]
    newest_first = [entry.pointers for entry in archived(clustered.services.system, newest_first=True)]
    assert newest_first == kept[::-1]
    assert clustered.transactions.manager.current().invalid.pointers == ()


# Compactions.


async def held_by_two_files(wired: Wired) -> None:
    writer = await ended_writer(wired)
    cluster, now_ms = paper(wired), wired.clock.now_ms()
    cluster.report_all(now_ms)
    for name in ("m1", "p1"):
        cluster.report(now_ms, file(UNKNOWN_ORIGIN, writer), of=name)


async def test_regions_whose_files_are_in_the_way_are_compacted_and_not_asked_twice(clustered: Wired):
    await held_by_two_files(clustered)
    pruner, cluster = clustered.services.pruner, paper(clustered)
    assert set((await pruner.run()).compactions) == {"m1", "p1"} == set(cluster.compacted)
    assert (await pruner.run()).compactions == ()
    clustered.clock.advance(ASK_AGAIN_MS)
    assert len((await pruner.run()).compactions) == 2


async def test_a_compaction_that_would_free_nobody_is_not_asked_for(clustered: Wired):
    tx = await clustered.transactions.begin()
    await held_by_two_files(clustered)
    assert tx.id <= clustered.transactions.manager.current().invalid.pointers[0]
    assert clustered.transactions.state.in_progress_count == 1
    assert (await clustered.services.pruner.run()).compactions == (), "an older writer is undecided"


async def test_a_gateway_that_is_away_costs_the_compaction_and_nothing_else(clustered: Wired):
    await held_by_two_files(clustered)
    paper(clustered).refuses = True
    await clustered.services.pruner.run()
    paper(clustered).refuses = False
    assert len((await clustered.services.pruner.run()).compactions) == 2, "it was not noted as asked for"


@pytest.mark.parametrize(("count", "minute", "expected"), [(1, 30, 1), (0, 30, 0), (9, 30, 2), (9, 90, 0)])
async def test_compactions_are_few_and_within_the_window(settings: Settings, count: int, minute: int, expected: int):
    window = DayWindow(0, 60)
    settings = with_compactions(settings, count, window)
    wired = await _with_cluster(settings)
    await held_by_two_files(wired)
    day_ms = 86_400_000
    into_day_ms = wired.clock.now_ms() % day_ms
    wired.clock.advance((minute * 60_000 - into_day_ms) % day_ms)
    assert len((await wired.services.pruner.run()).compactions) == expected
    await wired.services.close()


def with_compactions(settings: Settings, count: int, window: DayWindow) -> Settings:
    jobs = replace(settings.jobs, prune=replace(settings.jobs.prune, window=window))
    store = replace(settings.store, hbase=HBaseSettings(prune_compactions=count))
    return replace(settings, jobs=jobs, store=store)


async def _with_cluster(settings: Settings) -> Wired:
    store = MemoryStore(atomic=False)
    cluster = PaperCluster(SystemTable(store.table("system")))
    wired = await Wired.start(store, ManualClock(), settings=settings, cluster=cluster)
    await wired.topics.create(A, {})
    return wired


# Runs of writers.


async def failed_run(wired: Wired, writers: int) -> PointerRun:
    """So many pointers of a failed server, on the list as one run."""
    first = (await wired.transactions.begin()).id + 1
    await wired.transactions.abort(first - 1)
    wired.clock.advance(1)
    await wired.transactions.abort((await wired.transactions.begin()).id)  # so they have been given out
    run = PointerRun(first, first + writers - 1)
    assert await wired.transactions.restore((), PointerRuns([run])) == writers
    return run


async def test_a_run_is_forgotten_whole_and_comes_back_whole_after_a_restore(clustered: Wired):
    await clustered.services.pruner.publisher.publish()
    run, pruner = await failed_run(clustered, 4_096), clustered.services.pruner
    copied_ms = clustered.clock.now_ms()
    paper(clustered).report_all(clustered.clock.now_ms())
    result = await pruner.run()
    assert (result.invalid, result.waiting, result.pruned_count, result.held) == (4_096, 4_096, 0, 0)
    clustered.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    paper(clustered).report_all(clustered.clock.now_ms())
    result = await pruner.run()
    assert (result.pruned, list(result.pruned_runs), result.waiting, result.held) == ((), [run], 0, 0)
    assert not clustered.transactions.state.invalid
    (entry,) = archived(clustered.services.system)
    assert (entry.pointers, entry.runs, entry.count, entry.last) == ([], [tuple(run)], 4_096, run.last)
    assert STATE.get(clustered.services.system).newest_pruned == run.last
    assert pruner.pruned_total == 4_096
    again = await clustered.restarted()
    assert not again.transactions.state.invalid
    pruner = again.services.pruner
    assert await pruner.restore(copied_ms, dry_run=True) == 4_096
    assert await pruner.restore(copied_ms) == 4_096
    assert list(again.transactions.state.invalid.runs) == [run]
    assert await pruner.restore(copied_ms) == 0


async def test_of_a_run_that_a_file_may_hold_in_part_the_rest_is_forgotten(clustered: Wired):
    await clustered.services.pruner.publisher.publish()
    run, pruner = await failed_run(clustered, 100), clustered.services.pruner
    clustered.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    paper(clustered).report_all(clustered.clock.now_ms())
    paper(clustered).report(clustered.clock.now_ms(), file(run.first + 29, run.last))  # filtered up to the 30th
    result = await pruner.run()
    assert list(result.pruned_runs) == [(run.first, run.first + 29)]
    assert (result.pruned_count, result.held) == (30, 70)
    assert list(clustered.transactions.state.invalid.runs) == [(run.first + 30, run.last)]
    assert pruner.worth_compacting(await pruner.survey())[0].id == "m1", "a run holds a file back as one writer does"
    paper(clustered).report(clustered.clock.now_ms(), file(run.last, run.last))
    assert (await pruner.run()).pruned_count == 70
    assert not clustered.transactions.state.invalid


# Reports of regions that are gone.


async def test_reports_of_regions_that_are_gone_are_removed_after_a_week(clustered: Wired):
    cluster, system = paper(clustered), clustered.services.system
    cluster.listed.append(region("message", "gone"))
    cluster.report(clustered.clock.now_ms(), of="gone")
    cluster.listed.pop()
    cluster.report_all(clustered.clock.now_ms())
    clustered.clock.advance(module.GONE_REGION_MS)
    await clustered.services.pruner.run()
    assert system.get(REPORT_KIND, "gone") is not None
    clustered.clock.advance(1)
    await clustered.services.pruner.run()
    assert system.get(REPORT_KIND, "gone") is None
    assert system.get(REPORT_KIND, "m1") is not None, "an old report of a region that there is stays true"


@pytest.mark.parametrize("limit", [2, 3])
async def test_one_run_removes_so_many_old_reports_and_the_next_ones_the_others(
    clustered: Wired, monkeypatch: pytest.MonkeyPatch, limit: int
):
    monkeypatch.setattr(module, "GONE_REPORTS_MAX", limit)
    cluster, system = paper(clustered), clustered.services.system
    for number in range(5):
        cluster.listed.append(region("message", f"gone{number}"))
        cluster.report(clustered.clock.now_ms(), of=f"gone{number}")
        cluster.listed.pop()
    clustered.clock.advance(module.GONE_REGION_MS + 1)
    cluster.report_all(clustered.clock.now_ms())
    left = []
    for _ in range(3):
        await clustered.services.pruner.run()
        left.append(sum(name.startswith("gone") for name, _ in system.scan(REPORT_KIND)))
    assert left == [5 - limit, max(5 - 2 * limit, 0), 0]


@pytest.mark.parametrize("limit", [2, 3])
async def test_one_run_removes_so_many_notes_about_writers_that_are_gone(
    clustered: Wired, monkeypatch: pytest.MonkeyPatch, limit: int
):
    monkeypatch.setattr(module, "NOTES_MAX", limit)
    system = clustered.services.system
    for pointer in range(1, 6):  # long ago, and on no list
        EXTERNAL_WRITERS.write(system, ExternalWriter("job"), number_name(pointer))
    left = []
    for _ in range(3):
        await clustered.services.pruner.run()
        left.append(len(external_writers(system)))
    assert left == [5 - limit, max(5 - 2 * limit, 0), 0]


# Tables restored from a copy.


async def test_pruned_writers_come_back_after_a_restore_and_need_a_later_snapshot(clustered: Wired):
    writer = await ended_writer(clustered)
    pruner, cluster = clustered.services.pruner, paper(clustered)
    copied_ms = clustered.clock.now_ms()
    clustered.clock.advance(SKEW_MS + 1_000)
    cluster.report_all(clustered.clock.now_ms())
    await pruner.run()
    assert await pruner.restore(copied_ms, dry_run=True) == 1
    assert clustered.transactions.manager.current().invalid.pointers == ()
    assert await pruner.restore(copied_ms) == 1
    assert clustered.transactions.manager.current().invalid.pointers == (writer,) == published(clustered).invalid
    assert await pruner.restore(copied_ms) == 0, "again: no change"
    # A file that was filtered when the writer was forgotten may hold its row now.
    restored = STATE.get(clustered.services.system).restored
    clustered.clock.advance(SKEW_MS + 1_000)
    cluster.report_all(clustered.clock.now_ms())
    newest = clustered.transactions.state.last_pointer  # a snapshot from before the restore may be decided on it
    for decided in (newest, restored - 1):
        cluster.report(clustered.clock.now_ms(), file(decided, restored))
        assert (await pruner.run()).held == 1
    cluster.report(clustered.clock.now_ms(), file(restored, restored + 1))
    assert (await pruner.run()).pruned == (writer,)


async def test_writers_that_were_pruned_before_the_copy_stay_forgotten_if_no_clock_can_be_wrong(clustered: Wired):
    await ended_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())
    await clustered.services.pruner.run()
    clustered.clock.advance(SKEW_MS + 1)
    restore = clustered.services.pruner.restore
    assert await restore(clustered.clock.now_ms(), dry_run=True) == 0
    assert await restore(clustered.clock.now_ms() - 1, dry_run=True) == 1


async def test_a_region_may_still_know_a_longer_lifetime_or_none(clustered: Wired):
    await clustered.services.pruner.publisher.publish()
    published_ms = clustered.clock.now_ms()
    terms = (await clustered.services.pruner.survey()).terms
    assert (terms.lifetime_ms, terms.since_ms) == (LIFETIME_MS, published_ms)
    change_state(clustered.services.system, lambda old: replaced(old, lifetime_ms=LIFETIME_MS + 7))
    assert (await clustered.services.pruner.survey()).terms.lifetime_ms == LIFETIME_MS + 7
    clustered.clock.advance(5)
    await clustered.services.pruner.publisher.publish()
    assert (await clustered.services.pruner.survey()).terms.since_ms == published_ms
    paper(clustered).report_all(clustered.clock.now_ms())
    assert (await clustered.services.pruner.survey()).terms.lifetime_ms == LIFETIME_MS + 7, "reports of snapshot 1"
    for each in paper(clustered).listed:
        paper(clustered).report(clustered.clock.now_ms(), of=each.id, snapshot_sequence=2)
    assert (await clustered.services.pruner.survey()).terms.lifetime_ms == LIFETIME_MS, "all know of the lower one"


async def test_a_restore_that_was_interrupted_lets_nothing_go(clustered: Wired, monkeypatch: pytest.MonkeyPatch):
    await ended_writer(clustered)
    pruner = clustered.services.pruner
    paper(clustered).report_all(clustered.clock.now_ms())
    await pruner.run()
    other = await ended_writer(clustered)

    async def fails(*pointers: object) -> int:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(pruner._transactions, "restore", fails)
        with pytest.raises(StoreError):
            await pruner.restore(0)
    paper(clustered).report_all(clustered.clock.now_ms())
    assert (await pruner.run()).waiting == 1
    await pruner.restore(0)
    clustered.clock.advance(SKEW_MS + 1_000)
    paper(clustered).report_all(clustered.clock.now_ms())
    assert other in (await pruner.run()).pruned


async def test_an_archive_that_is_newer_than_the_log_is_not_restored(clustered: Wired):
    clustered.services.system.write("pruned", "x", b'{"pruned_ms":1,"pointers":[%d]}' % (1 << 62))
    with pytest.raises(ConflictError, match="knows no writer above"):
        await clustered.services.pruner.restore(0)
    assert STATE.get(clustered.services.system) is None, "pruning goes on as before"


async def test_a_restored_writer_is_in_the_log(clustered: Wired):
    writer = await ended_writer(clustered)
    paper(clustered).report_all(clustered.clock.now_ms())
    await clustered.services.pruner.run()
    await clustered.services.pruner.restore(0)
    again = await clustered.restarted()
    assert again.transactions.manager.current().invalid.pointers == (writer,)
    assert writer // POINTERS_PER_MS < again.clock.now_ms()


async def test_the_terms_survive_damage_as_an_error(clustered: Wired):
    clustered.services.system.write("prune", "state", b"{")
    with pytest.raises(Exception, match="prune:state is not what it should be"):
        await clustered.services.pruner.run()
