"""Jobs run at their times, never twice at once, and a failing one hurts nobody."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import BusyError, CorruptionError, JobNotFoundError, StoppingError
from basalt.operations import scheduler as module
from basalt.operations.jobs import Job, Report
from basalt.operations.scheduler import RUNS_MAX, JobFigures, Run, Scheduler, next_start_ms, within
from basalt.settings import DayWindow, JobSettings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Row

pytestmark = pytest.mark.anyio

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
FAR_MS = 4_000_000_000_000  # in the year 2096


class Tally:
    """A job that counts its runs, and waits, fails or reports as it is told."""

    def __init__(self, name: str = "retention", interval_ms: int = MINUTE_MS) -> None:
        self.name = name
        self.help = f"count the runs of {name}"
        self.settings = JobSettings(interval_ms=interval_ms)
        self.started = 0
        self.running = 0
        self.most_at_once = 0
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.report: Report = {"done": 1}

    async def run(self) -> Report:
        self.started += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.error is not None:
                raise self.error
            return self.report
        finally:
            self.running -= 1


class Bench:
    """Schedulers over one store, as over restarts."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock(FAR_MS)  # ahead of the timer's own clock: nothing starts by itself
        self.tally = Tally()
        self.other = Tally("expiry", 1_000)
        self.opened: list[Scheduler] = []

    def scheduler(self, **settings: JobSettings) -> Scheduler:
        jobs = [
            Job(each.name, each.help, settings.get(each.name, each.settings), each.run)
            for each in (self.tally, self.other)
        ]
        self.opened.append(Scheduler(self.store, self.clock, jobs))
        return self.opened[-1]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    for scheduler in made.opened:
        await scheduler.stop()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_job_is_listed_with_how_it_is_scheduled_and_how_it_ran(bench: Bench):
    scheduler = bench.scheduler(retention=JobSettings(interval_ms=HOUR_MS, window=DayWindow(60, 120)))
    bench.clock.step(bench.clock.now_ms() // DAY_MS * DAY_MS)
    await scheduler.start()
    expiry, retention = await scheduler.jobs()
    assert (expiry.name, expiry.interval_ms, expiry.window, expiry.running) == ("expiry", 1_000, None, False)
    assert (retention.name, retention.help, retention.window) == ("retention", bench.tally.help, "01:00-02:00")
    assert (retention.last_started_ms, retention.last_outcome) == (None, None)
    assert retention.next_run_ms == bench.clock.now_ms() + HOUR_MS
    ran = await scheduler.run_now("retention")
    assert (ran.outcome, ran.report, ran.started_ms) == ("ok", {"done": 1}, bench.clock.now_ms())
    assert (await scheduler.jobs())[1].last_outcome == "ok"


async def test_a_job_that_is_changed_while_it_is_planned_keeps_its_new_times(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    await scheduler.run_now("retention")
    now_ms = bench.clock.now_ms()
    scheduler.change("retention", JobSettings(interval_ms=HOUR_MS))
    assert (await scheduler.jobs())[1].next_run_ms == now_ms + HOUR_MS
    scheduler.change("retention", JobSettings(interval_ms=HOUR_MS, enabled=False))
    assert (await scheduler.jobs())[1].next_run_ms is None
    scheduler.change("retention", JobSettings(interval_ms=MINUTE_MS))
    assert (await scheduler.jobs())[1].next_run_ms == now_ms + MINUTE_MS
    scheduler.change("none-of-ours", JobSettings(interval_ms=MINUTE_MS))


async def test_a_job_that_is_changed_while_it_runs_is_planned_by_its_new_times(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    bench.tally.gate = asyncio.Event()
    run = asyncio.ensure_future(scheduler.run_now("retention"))
    await turns()
    scheduler.change("retention", JobSettings(interval_ms=HOUR_MS, enabled=False))
    bench.tally.gate.set()
    await run
    assert (await scheduler.jobs())[1].next_run_ms is None


async def test_a_run_by_hand_joins_the_one_that_is_under_way(bench: Bench):
    scheduler = bench.scheduler()
    bench.tally.gate = asyncio.Event()
    runs = [asyncio.ensure_future(scheduler.run_now("retention")) for _ in range(3)]
    runs.append(asyncio.ensure_future(scheduler.fire("retention")))
    await turns()
    assert (await scheduler.jobs())[1].running
    bench.tally.gate.set()
    first, second, third, _ = await asyncio.gather(*runs)
    assert first is second is third
    assert (bench.tally.started, bench.tally.most_at_once) == (1, 1)
    assert len(await scheduler.history("retention")) == 1


async def test_a_run_goes_on_when_who_asked_for_it_has_gone(bench: Bench):
    scheduler = bench.scheduler()
    bench.tally.gate = asyncio.Event()
    asked = asyncio.ensure_future(scheduler.run_now("retention"))
    await turns()
    asked.cancel()
    await turns()
    bench.tally.gate.set()
    await turns()
    assert [run.outcome for run in await scheduler.history("retention")] == ["ok"]


async def test_a_host_that_slept_over_three_runs_makes_up_for_one(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    planned = (await scheduler.jobs())[1].next_run_ms
    assert planned is not None
    bench.clock.step(planned)
    await scheduler.fire("retention")
    bench.clock.advance(MINUTE_MS * 7 // 2)
    await scheduler.fire("retention")
    assert bench.tally.started == 2
    assert (await scheduler.jobs())[1].next_run_ms == planned + 4 * MINUTE_MS


async def test_a_run_that_takes_longer_than_its_interval_is_not_overtaken(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    bench.tally.gate = asyncio.Event()
    bench.clock.advance(MINUTE_MS)
    firing = [asyncio.ensure_future(scheduler.fire("retention")) for _ in range(3)]
    await turns()
    assert (await scheduler.jobs())[1].next_run_ms is None
    bench.clock.advance(10 * MINUTE_MS)
    bench.tally.gate.set()
    await asyncio.gather(*firing)
    assert bench.tally.started == 1
    planned = (await scheduler.jobs())[1].next_run_ms
    assert planned is not None
    assert bench.clock.now_ms() <= planned <= bench.clock.now_ms() + MINUTE_MS


async def test_the_timer_runs_jobs_by_itself(bench: Bench):
    """With a clock that stands still in the past, every planned time has come for the timer."""
    bench.clock.step(FAR_MS // 4)
    ran = asyncio.Event()
    bench.tally.gate = asyncio.Event()
    run = bench.tally.run

    async def told() -> Report:
        ran.set()
        return await run()

    bench.tally.run = told  # type: ignore[method-assign]
    await bench.scheduler().start()
    await asyncio.wait_for(ran.wait(), 60)
    bench.tally.gate.set()


async def test_a_job_goes_on_by_itself_where_noting_a_run_takes_longer_than_its_interval(bench: Bench):
    bench.clock.step(FAR_MS // 4)  # every planned time has come
    noted, again = asyncio.Event(), asyncio.Event()
    run = bench.tally.run

    async def told() -> Report:
        if bench.tally.started:
            again.set()
        return await run()

    bench.tally.run = told  # type: ignore[method-assign]
    scheduler = bench.scheduler()
    assert module.CALLS_MAX > 1  # the next start may come before the timer has seen that its call is over
    note = scheduler._note

    async def note_late(*given: Any) -> Run:
        await noted.wait()
        return await note(*given)

    scheduler._note = note_late  # type: ignore[method-assign]
    await scheduler.start()
    try:
        await asyncio.wait_for(again.wait(), 60)
    finally:
        noted.set()


async def test_a_failing_job_is_kept_in_history_and_tried_again(bench: Bench, caplog: pytest.LogCaptureFixture):
    scheduler = bench.scheduler()
    await scheduler.start()
    bench.tally.error = BusyError("the queue is full")
    await scheduler.fire("retention")
    (failed,) = await scheduler.history("retention")
    assert (failed.outcome, failed.error) == ("failed", "busy: the queue is full")
    assert "job retention failed" in caplog.text
    assert (await scheduler.jobs())[1].next_run_ms is not None
    bench.tally.error = None
    await scheduler.fire("retention")
    assert [run.outcome for run in await scheduler.history("retention")] == ["ok", "failed"]
    assert scheduler.run_totals()["retention"] == {"ok": 1, "failed": 1}


async def test_an_unforeseen_error_is_logged_with_its_trace(bench: Bench, caplog: pytest.LogCaptureFixture):
    scheduler = bench.scheduler()
    bench.tally.error = ZeroDivisionError("oops")
    assert (await scheduler.run_now("retention")).error == "ZeroDivisionError: oops"
    assert "Traceback" in caplog.text


async def test_a_job_that_fails_for_hours_fills_neither_history_nor_log(bench: Bench, caplog: pytest.LogCaptureFixture):
    scheduler = bench.scheduler()
    bench.tally.error = BusyError("the queue is full")
    for _ in range(1_000):
        await scheduler.fire("retention")
    (failed,) = await scheduler.history("retention")
    assert failed.times == 1_000
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 10


async def test_a_run_that_had_nothing_to_do_is_not_kept_unless_it_was_asked_for(bench: Bench):
    scheduler = bench.scheduler()
    bench.tally.report = {}
    await scheduler.fire("retention")
    assert await scheduler.history("retention") == []
    assert (await scheduler.jobs())[1].last_outcome == "ok"
    await scheduler.run_now("retention")
    assert len(await scheduler.history("retention")) == 1


async def test_the_history_is_bounded_and_survives_a_restart(bench: Bench):
    scheduler = bench.scheduler()
    for number in range(RUNS_MAX + 10):
        bench.tally.report = {"number": number}
        await scheduler.fire("retention")
    again = await bench.scheduler().history("retention")
    assert [run.report["number"] for run in again] == list(range(RUNS_MAX + 9, 9, -1))
    assert [run.report["number"] for run in await scheduler.history("retention", 2)] == [RUNS_MAX + 9, RUNS_MAX + 8]


async def test_a_pause_holds_over_a_restart_until_it_is_taken_back(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    paused = await scheduler.pause("retention")
    assert (paused.paused, paused.next_run_ms) == (True, None)
    await scheduler.stop()
    again = bench.scheduler()
    await again.start()
    await again.fire("retention")
    assert bench.tally.started == 0
    await again.run_now("retention")  # by hand it always may
    assert bench.tally.started == 1
    resumed = await again.resume("retention")
    assert resumed.next_run_ms is not None
    await again.fire("retention")
    assert bench.tally.started == 2


async def test_a_job_that_the_settings_disable_runs_by_hand_only(bench: Bench):
    scheduler = bench.scheduler(retention=JobSettings(interval_ms=MINUTE_MS, enabled=False))
    await scheduler.start()
    status = (await scheduler.jobs())[1]
    assert (status.enabled, status.next_run_ms) == (False, None)
    assert (await scheduler.run_now("retention")).outcome == "ok"
    assert (await scheduler.jobs())[1].next_run_ms is None


async def test_an_unknown_job_is_told_with_the_nearest_name(bench: Bench):
    scheduler = bench.scheduler()
    with pytest.raises(JobNotFoundError, match="retenton") as caught:
        await scheduler.run_now("retenton")
    assert caught.value.hint == "did you mean retention?"
    with pytest.raises(JobNotFoundError) as caught:
        await scheduler.pause("zzz")
    assert caught.value.hint == "the jobs are expiry, retention"


async def test_a_restart_keeps_the_rhythm_and_makes_up_for_what_was_missed(bench: Bench):
    scheduler = bench.scheduler(retention=JobSettings(interval_ms=HOUR_MS))
    await scheduler.fire("retention")
    ran_ms = bench.clock.now_ms()
    bench.clock.advance(HOUR_MS // 2)
    again = bench.scheduler(retention=JobSettings(interval_ms=HOUR_MS))
    await again.start()
    assert (await again.jobs())[1].next_run_ms == ran_ms + HOUR_MS
    bench.clock.advance(DAY_MS)
    late = bench.scheduler(retention=JobSettings(interval_ms=HOUR_MS))
    await late.start()
    assert (await late.jobs())[1].next_run_ms == bench.clock.now_ms() + module.START_DELAY_MS


async def test_a_clock_that_is_set_back_delays_no_job_by_more_than_its_interval(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    bench.clock.step(bench.clock.now_ms() - DAY_MS)
    scheduler.keep_time()
    for status in await scheduler.jobs():
        assert status.next_run_ms is not None
        assert status.next_run_ms <= bench.clock.now_ms() + status.interval_ms


async def test_a_job_whose_time_came_late_waits_for_its_window(bench: Bench):
    bench.clock.step(bench.clock.now_ms() // DAY_MS * DAY_MS + 90 * MINUTE_MS)
    scheduler = bench.scheduler(retention=JobSettings(interval_ms=HOUR_MS, window=DayWindow(60, 120)))
    await scheduler.start()
    bench.clock.advance(HOUR_MS)
    await scheduler.fire("retention")
    assert bench.tally.started == 0
    assert (await scheduler.jobs())[1].next_run_ms == bench.clock.now_ms() // DAY_MS * DAY_MS + DAY_MS + HOUR_MS


async def test_stopping_waits_for_a_run_and_starts_no_other(bench: Bench):
    scheduler = bench.scheduler()
    await scheduler.start()
    bench.tally.gate = asyncio.Event()
    run = asyncio.ensure_future(scheduler.run_now("retention"))
    await turns()
    stopping = asyncio.ensure_future(scheduler.stop())
    await turns()
    assert not stopping.done()
    with pytest.raises(StoppingError):
        await scheduler.run_now("expiry")
    bench.tally.gate.set()
    await stopping
    assert (await run).outcome == "ok"
    await scheduler.fire("retention")
    assert bench.tally.started == 1


async def test_stopping_gives_up_on_a_run_that_does_not_end(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STOP_WAIT_S", 0.01)
    scheduler = bench.scheduler()
    await scheduler.start()
    bench.tally.gate = asyncio.Event()
    firing = asyncio.ensure_future(scheduler.fire("retention"))
    await turns()
    await scheduler.stop()
    await firing
    assert bench.tally.running == 0
    assert scheduler.run_totals()["retention"] == {"stopped": 1}


async def test_stopping_what_never_started_is_fine(bench: Bench):
    await bench.scheduler().stop()


async def test_a_history_that_does_not_decode_is_told_and_not_dropped(bench: Bench):
    SystemTable(bench.store.table("system")).write("job-runs", "retention", b"[]")
    with pytest.raises(CorruptionError, match="job-runs:retention"):
        await bench.scheduler().start()


async def test_a_history_that_cannot_be_written_stops_no_job(bench: Bench, caplog: pytest.LogCaptureFixture):
    scheduler = bench.scheduler()
    await scheduler.history("retention")
    bench.store.close()
    assert (await scheduler.run_now("retention")).outcome == "ok"
    assert "history of job retention was not written" in caplog.text


times = st.integers(1_600_000_000_000, 1_800_000_000_000)
windows = st.none() | st.tuples(st.integers(0, 1_439), st.integers(0, 1_439)).filter(
    lambda both: both[0] != both[1]
).map(lambda both: DayWindow(*both))


@given(times, windows)
def test_the_first_moment_in_a_window_is_the_first(time_ms: int, window: DayWindow | None):
    found = within(window, time_ms)
    assert found >= time_ms
    if window is None:
        assert found == time_ms
    else:
        assert window.contains(found)
        assert found == time_ms or not window.contains(found - 1)
        assert found - time_ms < DAY_MS


@given(times, times, st.integers(100, 30 * DAY_MS))
def test_missed_starts_are_made_up_for_by_keeping_the_rhythm(planned_ms: int, now_ms: int, interval_ms: int):
    found = next_start_ms(planned_ms, now_ms, interval_ms, None)
    assert found >= planned_ms
    assert (found - planned_ms) % interval_ms == 0
    assert found == planned_ms or now_ms <= found < now_ms + interval_ms


@pytest.mark.parametrize("limit", [2, 3])
def test_an_error_is_cut_for_the_history(monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(module, "ERROR_CHARS_MAX", limit)
    assert module.error_text(ValueError("long")) == "ValueError: long"[:limit]


@pytest.mark.parametrize("limit", [2, 3])
def test_the_history_keeps_the_newest_runs(limit: int):
    runs: deque[Run] = deque(maxlen=limit)
    for number in range(5):
        module.add_run(runs, Run(number, 1, "ok"))
    assert [run.started_ms for run in runs] == list(range(5 - limit, 5))


async def test_the_figures_of_a_job_tell_when_it_last_went_well_and_how_often_it_failed_since(bench: Bench):
    scheduler = bench.scheduler()
    assert scheduler.figures()["retention"] == JobFigures(None, None, 0)
    await scheduler.run_now("retention")
    well_ms = bench.clock.now_ms()
    bench.tally.error = BusyError("the queue is full")
    for failures in (1, 2):
        bench.clock.advance(MINUTE_MS)
        await scheduler.run_now("retention")
        assert scheduler.figures()["retention"] == JobFigures(well_ms, 0, failures)
    restarted = bench.scheduler()
    await restarted.jobs()  # reads what was kept
    assert restarted.figures()["retention"] == JobFigures(well_ms, 0, 2)
    bench.tally.error = None
    await restarted.run_now("retention")
    assert restarted.figures()["retention"] == JobFigures(bench.clock.now_ms(), 0, 0)


async def test_a_member_runs_its_jobs_unless_the_leader_has_paused_them_and_writes_no_row(bench: Bench):
    leader = bench.scheduler()
    await leader.start()
    before = _rows(bench)
    job = Job(bench.tally.name, bench.tally.help, bench.tally.settings, bench.tally.run)
    member = Scheduler(bench.store, bench.clock, [job], is_member=True)
    bench.opened.append(member)
    await member.start()
    await member.fire("retention")
    assert bench.tally.started == 1
    assert [run.report for run in await member.history("retention")] == [{"done": 1}]
    assert _rows(bench) == before
    await leader.pause("retention")
    bench.clock.advance(MINUTE_MS)
    await member.fire("retention")
    assert bench.tally.started == 1
    assert (await member.job("retention")).next_run_ms == bench.clock.now_ms() + MINUTE_MS
    await leader.resume("retention")
    bench.clock.advance(MINUTE_MS)
    await member.fire("retention")
    assert bench.tally.started == 2


async def test_a_member_that_cannot_read_whether_a_job_is_paused_runs_it_and_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    job = Job(bench.tally.name, bench.tally.help, bench.tally.settings, bench.tally.run)
    member = Scheduler(bench.store, bench.clock, [job], is_member=True)
    bench.opened.append(member)
    await member.start()
    bench.clock.advance(MINUTE_MS)
    bench.tally.error = BusyError("the store is away")

    def away(*_: object) -> None:
        raise StoreError("the network is down")

    monkeypatch.setattr(module.DEFINITIONS, "get", away)
    await member.fire("retention")
    assert [run.error for run in await member.history("retention")] == ["busy: the store is away"]
    assert ((await member.job("retention")).next_run_ms or 0) > bench.clock.now_ms()


def _rows(bench: Bench) -> list[Row]:
    return list(bench.store.table("system").scan(b"", None))
