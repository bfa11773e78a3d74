"""The scheduler: runs jobs at their times, one run of each at a time, and keeps their history. See docs/reference/jobs.md.
Which jobs there are stands in `jobs`.

APScheduler is the timer. When a job starts next is decided here (`next_start_ms`, a pure rule), and that it never
overlaps itself. A failing job is logged, kept in its history, and tried again at its next time.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from basalt.api.bodies.operations import JobInfo
from basalt.errors import JobNotFoundError, StoppingError
from basalt.operations.jobs import Job, Report
from basalt.runtime.store_calls import StoreCalls
from basalt.settings import DayWindow, JobSettings
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.system import SystemRecord, SystemTable
from basalt_engine.table import Store

STOP_WAIT_S = 1.5  # how long `stop` waits for runs under way; a server has ten seconds to stop, connections included
CANCEL_WAIT_S = 0.5
KEEP_TIME_S = 1.0
START_DELAY_MS = 5_000  # a server that has just started has its clients to serve first
MINUTE_MS = 60_000
DAY_MINUTES = 24 * 60

RUNS_MAX = 50  # kept of each job, the newest; some ten KiB
CALLS_MAX = 100  # of the timer for one job, each over in a turn of the event loop
ERROR_CHARS_MAX = 1_000

log = logging.getLogger("basalt.scheduler")

Outcome: TypeAlias = Literal["ok", "failed", "stopped"]


class Definition(msgspec.Struct, frozen=True):
    """The schedule of a job: all of it from the settings, but `paused`, which an operator sets at run time."""

    interval_ms: int
    window: str | None
    enabled: bool
    paused: bool


class Run(msgspec.Struct, frozen=True):
    """One run of a job; of failures in a row for the same reason the last one, and how many `times` they came."""

    started_ms: int
    duration_ms: int
    outcome: Outcome
    report: Report = {}
    error: str | None = None
    times: int = 1


class JobFigures(NamedTuple):
    """The health of a job in numbers. Times are in milliseconds since 1970; None: no run that is known of."""

    success_ms: int | None
    duration_ms: int | None
    failures: int  # in a row, up to now


class Runs(msgspec.Struct):
    """The last runs of a job, the oldest first."""

    runs: list[Run]


# By the job's name. Formats: docs/formats/system-table.md
DEFINITIONS = SystemRecord("job", "", Definition)
RUNS = SystemRecord("job-runs", "", Runs)


def next_start_ms(planned_ms: int, now_ms: int, interval_ms: int, window: DayWindow | None) -> int:
    """The start of a job that was planned for `planned_ms`: then, or at the first of its later times that is not past.

    However many starts were missed, one is made up for at most. With a window: the first moment within it from then on.
    """
    missed = max(0, -(-(now_ms - planned_ms) // interval_ms))
    return within(window, planned_ms + missed * interval_ms)


def add_run(runs: deque[Run], run: Run) -> Run:
    """Add a run at the end; one that failed as the last one did takes its place. The entry as it is kept."""
    last = runs[-1] if runs else None
    if last is not None and run.outcome == "failed" and (last.outcome, last.error) == (run.outcome, run.error):
        runs.pop()
        run = msgspec.structs.replace(run, times=last.times + 1)
    runs.append(run)
    return run


def error_text(error: Exception) -> str:
    """An error for the history: its code or class, and its message."""
    kind, text = (error.code, error.message) if isinstance(error, BasaltError) else (type(error).__name__, str(error))
    return f"{kind}: {text}"[:ERROR_CHARS_MAX]


def within(window: DayWindow | None, time_ms: int) -> int:
    """The first moment from `time_ms` on that lies in the window."""
    if window is None or window.contains(time_ms):
        return time_ms
    minute = time_ms // MINUTE_MS
    return (minute + (window.start_minute - minute) % DAY_MINUTES) * MINUTE_MS


class _Scheduled:
    """One job and its state."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.settings
        self.paused = False
        self.runs: deque[Run] = deque(maxlen=RUNS_MAX)
        self.last: Run | None = None  # also one that did nothing, and is not in the history
        self.task: asyncio.Task[Run] | None = None
        self.by_hand = False
        self.next_ms: int | None = None
        self.totals: Counter[str] = Counter()
        self.success_ms: int | None = None  # when a run last ended well
        self.failures = 0  # in a row, up to now

    def ended(self, run: Run) -> None:
        """A run has ended, or the history says so."""
        self.last = run
        if run.outcome == "ok":
            self.success_ms, self.failures = run.started_ms + run.duration_ms, 0
        elif run.outcome == "failed":
            self.failures += run.times

    @property
    def figures(self) -> JobFigures:
        return JobFigures(self.success_ms, None if self.last is None else self.last.duration_ms, self.failures)

    @property
    def definition(self) -> Definition:
        window = self.settings.window
        return Definition(
            self.settings.interval_ms, None if window is None else str(window), self.settings.enabled, self.paused
        )

    @property
    def status(self) -> JobInfo:
        last, kept = self.last, self.definition
        return JobInfo(
            self.job.name, self.job.help, kept.interval_ms, kept.window, kept.enabled, kept.paused,
            running=self.task is not None,
            last_started_ms=None if last is None else last.started_ms,
            last_outcome=None if last is None else last.outcome,
            next_run_ms=self.next_ms,
        )  # fmt: skip


class Scheduler:
    """Runs the jobs of one server. All of it on one event loop. `is_member`: another server leads, and has the rows of jobs."""

    def __init__(self, store: Store, clock: Clock, jobs: Sequence[Job], *, is_member: bool = False) -> None:
        self._is_member = is_member
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._jobs = {job.name: _Scheduled(job) for job in jobs}
        self._timer: AsyncIOScheduler | None = None
        self._keeping_time: asyncio.TimerHandle | None = None
        self._loading = asyncio.Lock()
        self._loaded = False
        self._stopping = False
        self._fired: set[asyncio.Task[None]] = set()  # runs by the timer, until they are noted in the history too

    async def start(self) -> None:
        """Read what was kept of the jobs, and begin to run them at their times."""
        await self._load()
        for name, scheduled in {} if self._is_member else self._jobs.items():
            if await self._call(DEFINITIONS.get, self._system, name) != scheduled.definition:
                await self._call.write(DEFINITIONS.write, self._system, scheduled.definition, name)
        # Each run is our own log's business; APScheduler would tell of every one.
        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        # No two runs of a job overlap: `fire` sees to it. The timer would drop a start for good that comes while a call of it goes on.
        defaults = {"coalesce": True, "max_instances": CALLS_MAX, "misfire_grace_time": None}
        self._timer = AsyncIOScheduler(timezone=UTC, job_defaults=defaults)
        self._timer.start()
        for scheduled in self._jobs.values():
            self._plan_from_last(scheduled)
        self.keep_time()

    async def stop(self) -> None:
        """Start no more runs; wait for those under way, but not long."""
        self._stopping = True
        if self._keeping_time is not None:
            self._keeping_time.cancel()
        running = [scheduled.task for scheduled in self._jobs.values() if scheduled.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=STOP_WAIT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_WAIT_S)
        if self._timer is not None:
            self._timer.shutdown(wait=False)
            self._timer = None

    async def jobs(self) -> list[JobInfo]:
        await self._load()
        return [self._jobs[name].status for name in sorted(self._jobs)]

    async def job(self, name: str) -> JobInfo:
        """One job; `JobNotFoundError` for a name that none has."""
        return (await self._find(name)).status

    async def run_now(self, name: str) -> Run:
        """Run a job, also one that is paused, and return how it ended; joins a run that is under way."""
        scheduled = await self._find(name)
        if self._stopping:
            raise StoppingError("the server is shutting down: no job is started")
        return await self._run(scheduled, by_hand=True)

    async def pause(self, name: str) -> JobInfo:
        """Run the job no more by itself, also after a restart, until it is resumed."""
        return await self._set_paused(await self._find(name), True)

    async def resume(self, name: str) -> JobInfo:
        """Run the job at its times again."""
        return await self._set_paused(await self._find(name), False)

    def change(self, name: str, settings: JobSettings) -> None:
        """Run the job at these times from now on; nothing where this server has no such job, or has it so already."""
        scheduled = self._jobs.get(name)
        if scheduled is not None and scheduled.settings != settings:
            scheduled.settings = settings
            self._plan_from_last(scheduled)

    async def history(self, name: str, limit: int = RUNS_MAX) -> list[Run]:
        """The last runs that did something, failed, or were asked for; newest first."""
        runs = (await self._find(name)).runs
        return list(reversed(runs))[: max(limit, 0)]

    def run_totals(self) -> dict[str, dict[str, int]]:
        """Count the runs of each job since the server started, by how they ended."""
        return {name: dict(scheduled.totals) for name, scheduled in self._jobs.items()}

    def figures(self) -> dict[str, JobFigures]:
        """The health of each job."""
        return {name: scheduled.figures for name, scheduled in self._jobs.items()}

    async def fire(self, name: str) -> None:
        """The job's time has come: run it, unless it runs."""
        scheduled = await self._find(name)
        if self._is_member and await self._rests_at_the_leader(name):
            self._plan_after(scheduled, self._clock.now_ms())
            return
        if self._stopping or scheduled.task is not None or scheduled.paused:
            return
        planned_ms, now_ms = scheduled.next_ms, self._clock.now_ms()
        window = scheduled.settings.window
        if window is not None and not window.contains(now_ms):  # the time came late, as after a host's sleep
            self._plan(scheduled, now_ms)
            return
        try:
            await self._run(scheduled, by_hand=False, planned_ms=planned_ms)
        except asyncio.CancelledError:
            if not self._stopping:  # else the run was told to stop, and nobody needs to hear of it
                raise

    async def _rests_at_the_leader(self, name: str) -> bool:
        """True where an operator has paused the job, who does so at the leader: it is to rest here, too."""
        try:
            kept = await self._call(DEFINITIONS.get, self._system, name)
        except BasaltError:  # its run fails for the same reason, says so, and is planned again
            return False
        return kept is not None and kept.paused

    async def _time_has_come(self, name: str) -> None:
        """Fire, and let the timer go at once, however long it takes to note the run."""
        fired = asyncio.get_running_loop().create_task(self.fire(name))
        self._fired.add(fired)
        fired.add_done_callback(self._fired.discard)

    def keep_time(self) -> None:
        """Every second: plan anew what a clock that was set back has moved out of reach."""
        now_ms = self._clock.now_ms()
        for scheduled in self._jobs.values():
            latest_ms = within(scheduled.settings.window, now_ms + scheduled.settings.interval_ms)
            if scheduled.next_ms is not None and scheduled.next_ms > latest_ms:
                self._plan(scheduled, latest_ms)
        if not self._stopping:
            self._keeping_time = asyncio.get_running_loop().call_later(KEEP_TIME_S, self.keep_time)

    async def _load(self) -> None:
        async with self._loading:
            if self._loaded:
                return
            for name, scheduled in self._jobs.items():
                kept = await self._call(DEFINITIONS.get, self._system, name)
                scheduled.paused = kept is not None and kept.paused and not self._is_member
                runs = None if self._is_member else await self._call(RUNS.get, self._system, name)
                for run in [] if runs is None else runs.runs:
                    scheduled.runs.append(run)
                    scheduled.ended(run)
            self._loaded = True

    async def _find(self, name: str) -> _Scheduled:
        await self._load()
        found = self._jobs.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self._jobs, 1)
            hint = f"did you mean {close[0]}?" if close else f"the jobs are {', '.join(sorted(self._jobs))}"
            raise JobNotFoundError(f"there is no job {name[:40]!r}", field="name", hint=hint)
        return found

    async def _set_paused(self, scheduled: _Scheduled, paused: bool) -> JobInfo:
        if scheduled.paused != paused:
            wanted = msgspec.structs.replace(scheduled.definition, paused=paused)
            await self._call.write(DEFINITIONS.write, self._system, wanted, scheduled.job.name)
            scheduled.paused = paused
            self._plan_from_last(scheduled)
        return scheduled.status

    def _plan_from_last(self, scheduled: _Scheduled) -> None:
        """Plan the next start an interval after the last one, or soon when that is past; but see `_plan`."""
        now_ms, last = self._clock.now_ms(), scheduled.last
        interval_ms = scheduled.settings.interval_ms
        due_ms = now_ms if last is None else last.started_ms + interval_ms
        soon_ms = now_ms + min(interval_ms, START_DELAY_MS)
        self._plan(scheduled, min(max(due_ms, soon_ms), now_ms + interval_ms))

    def _plan(self, scheduled: _Scheduled, start_ms: int) -> None:
        """Have the timer fire then, or when the job's window opens; never while it is paused, disabled or running."""
        name, timer = scheduled.job.name, self._timer
        scheduled.next_ms = None
        if timer is None or self._stopping:
            return
        if scheduled.settings.enabled and not scheduled.paused and scheduled.task is None:
            scheduled.next_ms = within(scheduled.settings.window, start_ms)
            start_at = datetime.fromtimestamp(scheduled.next_ms / 1_000, UTC)
            timer.add_job(self._time_has_come, "date", run_date=start_at, args=[name], id=name, replace_existing=True)
        elif timer.get_job(name) is not None:
            timer.remove_job(name)

    async def _run(self, scheduled: _Scheduled, *, by_hand: bool, planned_ms: int | None = None) -> Run:
        scheduled.by_hand = scheduled.by_hand or by_hand
        if scheduled.task is None:
            planned_ms = scheduled.next_ms if planned_ms is None else planned_ms
            scheduled.task = asyncio.get_running_loop().create_task(self._execute(scheduled, planned_ms))
            self._plan(scheduled, 0)
        return await asyncio.shield(scheduled.task)  # the caller may go away; the run goes on

    async def _execute(self, scheduled: _Scheduled, planned_ms: int | None) -> Run:
        started_ms, start_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        outcome: Outcome = "stopped"
        error: Exception | None = None
        report: Report = {}
        try:
            report = await scheduled.job.run()
            outcome = "ok"
        except Exception as caught:
            outcome, error = "failed", caught
            log.debug("job %s failed", scheduled.job.name, exc_info=caught)
        finally:
            duration_ms = round(self._clock.monotonic_ms() - start_ms)
            text = None if error is None else error_text(error)
            run = Run(started_ms, duration_ms, outcome, report, text)
            scheduled.ended(run)
            scheduled.totals[outcome] += 1
            noted, scheduled.by_hand = bool(report) or outcome == "failed" or scheduled.by_hand, False
            scheduled.task = None
            self._plan_after(scheduled, started_ms if planned_ms is None else planned_ms)
        return await self._note(scheduled, run, error) if noted else run

    def _plan_after(self, scheduled: _Scheduled, planned_ms: int) -> None:
        interval_ms = scheduled.settings.interval_ms
        self._plan(scheduled, next_start_ms(planned_ms + interval_ms, self._clock.now_ms(), interval_ms, None))

    async def _note(self, scheduled: _Scheduled, run: Run, error: Exception | None) -> Run:
        """Add a run to the history. A failure for the same reason is written and logged less and less often."""
        name = scheduled.job.name
        run = add_run(scheduled.runs, run)
        if run.times & (run.times - 1):
            return run
        if error is not None:
            trace = None if isinstance(error, BasaltError) else error
            log.error("job %s failed %d times in a row: %s", name, run.times, run.error, exc_info=trace)
        if self._is_member:
            return run
        try:
            await self._call.write(RUNS.write, self._system, Runs(list(scheduled.runs)), name)
        except BasaltError as failure:
            log.error("the history of job %s was not written: %s", name, failure)
        return run
