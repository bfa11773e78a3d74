"""The one writer: callers that meet in one turn of the event loop share one durable write.

A caller hands in a *stage*: a function that, in its turn, looks at the state as earlier stages left it, decides, and adds
its mutations to the `Group`. Stages run one after the other and never wait, so they see no races. Then the whole group
is written, and each caller gets what its own stage returned, or the error that its own stage raised. When the write
fails, every caller in it is told so: also one whose stage raised, for it may have done so because of a stage before it.

A stage never reads the store. One that needs what is not in memory raises `NotLoadedError` before it changes anything:
it is undone, what it needs is read while others go on, and it is run again.

On a store that is atomic over rows and tables there is one group commit, and a group is one batch. Elsewhere there are several,
the *lanes*: `runtime.write_lanes`. Within a lane the phases of a group are written one after the other.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from basalt.errors import BusyError, CoordinatorUnavailableError, StoppingError, UnknownOutcomeError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import STAGES, Clock, Durations, Stages
from basalt_engine.errors import BasaltError
from basalt_engine.table import Mutation, Store, TableWrite

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
PartT = TypeVar("PartT", bound="GroupPart")

MakeMutation = Callable[[], Mutation]

GROUP_BYTES_MAX = 8 << 20  # one write stays short enough that the next group does not wait long
QUEUE_BYTES_MAX = 64 << 20
# A group of so few, and of so few bytes, is written on the event loop, where the disk is quick: handing it to a thread and
# back costs as much as the write, and a third of the calls per second of eight clients.
INLINE_CALLERS_MAX = 16
INLINE_BYTES_MAX = 64 << 10
# Write on the event loop only if each of the last writes took at most this long: a disk that was slow once is about to be
# slow again, and everybody would wait for it.
INLINE_WRITE_MS_MAX = 3.0
INLINE_WRITES_SEEN = 4
STAGE_BYTES = 512  # what a stage costs beside its payloads; bounds the number of waiting stages too
# Loads for one stage before its caller is told to come again. What was read stays in memory until the
# stage has run, so that each time it gets further: topics, then what transactions stored in them, then their markers.
STAGE_LOADS_MAX = 8
SIZES = 14  # of the histogram of calls in a group: up to 1, 2, 4 and so on to 8,192, and more


log = logging.getLogger("basalt.group_commit")


class Phase(enum.IntEnum):
    """In which order a store without atomic batches gets the parts of a group: rows, and notes that must come before or after them."""

    BEFORE = 0
    ROWS = 1
    AFTER = 2


class NextGroupError(Exception):
    """Raised by a stage that must see what the group before it made durable: it is run again, in the next group."""


class NotLoadedError(Exception):
    """Raised by a stage that needs something that is not in memory, before it changes anything: it is undone, `load`
    reads it, and the stage is run again. What `load` returns is called when the stage has run: until then what was loaded
    stays in memory.
    """

    def __init__(self, load: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        super().__init__("a stage needs what is not in memory, and is run again")
        self.load = load


class GroupPart(Protocol):
    """The work that one service gathers over the stages of a group, and its duties before and after the write."""

    def closing(self, group: Group) -> None:
        """After the last stage, before the write: add what was gathered. Must not fail."""

    def durable(self) -> None:
        """The write succeeded: from here on others may see the effect."""

    def failed(self) -> None:
        """The write failed, or may have."""


class Waiter(Protocol[T_contra]):
    """The receiver of a stage's result, called once and in the event loop. A future is one."""

    def cancelled(self) -> bool:
        """Nobody wants the answer any more: a stage that has not run yet need not."""

    def done(self) -> bool:
        """Nothing is to be told any more."""

    def set_result(self, result: T_contra, /) -> None:
        """Take what the stage returned; it is durable."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Take what the stage raised, or the reason why the group was not written. See `GroupCommit.run`."""


def tell(waiter: Waiter[T], answer: T | BaseException) -> None:
    """Give the waiter an answer, or the reason why there is none, unless nothing is to be told any more."""
    if waiter.done():
        return
    if isinstance(answer, BaseException):
        waiter.set_exception(answer)
    else:
        waiter.set_result(answer)


class Group:
    """The mutations, parts and callbacks that the stages of one turn have added."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._mutations: tuple[list[tuple[str, Mutation | MakeMutation]], ...] = ([], [], [])
        self._parts: dict[object, Any] = {}
        self._done: list[Callable[[], None]] = []
        self._failed: list[Callable[[], None]] = []
        self._writing: list[Callable[[], None]] = []
        self._lists: tuple[list[Any], ...] = (*self._mutations, self._done, self._failed, self._writing)
        self._late_bytes = 0
        self._written_ms: tuple[float, float] | None = None  # from when until when it was written
        self._waits: Stages | None = None  # what that waited for, where the store is far away

    def add(self, table: str, *mutations: Mutation, phase: Phase = Phase.ROWS) -> None:
        """Mutations to write with the group, in this order."""
        added = self._mutations[phase]
        for mutation in mutations:
            added.append((table, mutation))

    def add_late(self, table: str, make: MakeMutation, phase: Phase = Phase.ROWS, size_bytes: int = 0) -> None:
        """A mutation that is made when the group is written: of a large group on the thread, where it holds up nobody. Must not fail.

        `size_bytes` count to the group's, as those of its callers do.
        """
        self._mutations[phase].append((table, make))
        self._late_bytes += size_bytes

    def part(self, owner: object, create: Callable[[], PartT]) -> PartT:
        """The part of `owner` in this group; made by `create` at the first call. It outlives a stage that raises."""
        found: PartT | None = self._parts.get(owner)
        if found is None:
            found = self._parts[owner] = create()
        return found

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call after the write; from here on others may see the effect."""
        self._done.append(call)

    def when_failed(self, call: Callable[[], None]) -> None:
        """Call when the write failed, or may have."""
        self._failed.append(call)

    def while_written(self, call: Callable[[], None]) -> None:
        """Call on the event loop while the writer's thread writes, before `when_durable` and `when_failed`.

        Not called where the group is written on the event loop, which can do nothing else meanwhile.
        """
        self._writing.append(call)

    def writing(self) -> None:
        """Tell those that the group is being written now."""
        for call in self._writing:
            call()

    def written(self, *, is_durable: bool) -> None:
        """Tell parts, and those who asked for it, that the group is durable; or that it may not be."""
        parts = self._parts.values()
        if is_durable:
            calls = [part.durable for part in parts] + self._done
        else:
            calls = [part.failed for part in parts] + self._failed
        for call in calls:
            try:
                call()
            except Exception:
                log.exception("a callback after a write failed")

    def _mark(self) -> list[int]:
        return list(map(len, self._lists))

    def _undo(self, mark: list[int]) -> None:
        for items, length in zip(self._lists, mark, strict=True):
            del items[length:]

    def _writes(self, atomic: bool) -> list[list[TableWrite]]:
        phases = [[item for phase in self._mutations for item in phase]] if atomic else list(self._mutations)
        return [_by_table(phase) for phase in phases if phase]


def _by_table(items: list[tuple[str, Mutation | MakeMutation]]) -> list[TableWrite]:
    tables: dict[str, list[Mutation]] = {}
    for table, mutation in items:
        tables.setdefault(table, []).append(mutation() if callable(mutation) else mutation)
    return [TableWrite(table, mutations) for table, mutations in tables.items()]


class _Caller(Generic[T]):
    __slots__ = (
        "must_run", "number", "queued_ms", "refusal", "releases", "result", "size_bytes", "stage", "stages", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        stage: Callable[[Group], T],
        size_bytes: int,
        waiter: Waiter[T],
        number: int,
        queued_ms: float,
        must_run: bool,
    ) -> None:
        self.must_run = must_run  # whoever waits: a later step of a call that has begun
        self.stage = stage
        self.size_bytes = size_bytes
        self.waiter = waiter
        self.number = number  # callers are numbered in the order in which they came
        self.result: Any = None  # the stage's, once it has run
        self.refusal: Exception | None = None  # or what it raised
        self.releases: Sequence[Callable[[], None]] = ()  # of what was loaded for the stage
        self.stages = STAGES.get()  # of the call that it is a part of, for which it waits
        self.queued_ms = queued_ms

    def release(self) -> None:
        """Let go of what was loaded for the stage."""
        releases, self.releases = self.releases, ()
        for release in releases:
            release()


class GroupCommit:
    """The writer of one store, or one lane of it. Everything runs on one event loop; only writes that take long are on a thread.

    `late_ms` is how long its callers wait for a write. Then they are told that nobody knows, and until the write has ended
    others are refused: so a call is answered in time though the store does not answer. None: as long as it takes.
    """

    def __init__(
        self, store: Store, clock: Clock, *, queue_bytes_max: int = QUEUE_BYTES_MAX, late_ms: float | None = None
    ) -> None:
        self._late_ms = late_ms
        self.is_late = False
        self._timer: asyncio.TimerHandle | None = None
        self._store = store
        self._calls = StoreCalls(store)
        self._clock = clock
        self._queue: deque[_Caller[Any]] = deque()
        self._queue_bytes_max = queue_bytes_max
        self.queue_bytes = 0
        self.groups = 0
        self.write_ms = 0.0  # all writes together
        self.calls = 0  # in all groups
        self.sizes = [0] * (SIZES + 1)  # groups, by the power of two up to which their calls come
        self.waits = Durations()  # of each group's first call, from its coming to the group's beginning
        self._recent_ms: deque[float] = deque(maxlen=INLINE_WRITES_SEEN)  # that the last writes took
        self._callers = 0  # of the last group
        self._number = 0  # of the last caller
        self.loading = 0  # callers for whose stages something is being read
        self._loop: asyncio.AbstractEventLoop
        self._busy = False  # from the first call that waits until there is none
        self._write_began_ms: float | None = None  # of the write that is under way on the thread
        self._pauses = 0
        self._resting: list[asyncio.Future[None]] = []  # who waits until no group is under way
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stage: Callable[[Group], T], size_bytes: int = 0, *, must_run: bool = False) -> T:
        """Run the stage in its turn; return what it returned once that is durable.

        Raises what the stage raised (then nothing of it is written, but what it relied on is), `BusyError` when the queue is full,
        `StoreError` when the write failed, `UnknownOutcomeError` when nobody can tell.
        """
        future: asyncio.Future[T] = self._running_loop().create_future()
        self.submit(stage, future, size_bytes, must_run=must_run)
        return await future

    async def passed(self, *, must_run: bool = False) -> None:
        """Return once all that was taken before is durable, or refused. Fails as `run`."""
        await self.run(_nothing, must_run=must_run)

    def submit(
        self, stage: Callable[[Group], T], waiter: Waiter[T], size_bytes: int = 0, *, must_run: bool = False
    ) -> None:
        """Run the stage in its turn, and tell the waiter, as `run` does. Raises only why the call is not taken.

        `must_run`: it is a later step of a call that was taken. It is never refused, and runs though its client has gone.
        """
        size_bytes += STAGE_BYTES
        if not must_run:
            self._check_taking(size_bytes)
        self._number += 1
        caller = _Caller(stage, size_bytes, waiter, self._number, self._clock.monotonic_ms(), must_run)
        self._queue.append(caller)
        self.queue_bytes += size_bytes
        # The step is taken when the write has ended; its client hears of it now, as the others did.
        if self.is_late and not waiter.done():
            self._answer_caller(caller, self._unknown())
        if not self._busy:
            self._wake()

    def _check_taking(self, size_bytes: int) -> None:
        if self._stopping:
            raise StoppingError("the server is shutting down", hint="send the call again to the next server")
        self.refuse_if_late()
        self._check_room(size_bytes)

    def _check_room(self, size_bytes: int) -> None:
        if self.queue_bytes and self.queue_bytes + size_bytes > self._queue_bytes_max:
            raise too_much_waits(self.queue_bytes, self._queue_bytes_max)

    def refuse_if_late(self) -> None:
        """`CoordinatorUnavailableError` while a write takes too long: for a call of which this lane has a later step."""
        if self.is_late:
            raise self._too_late()

    @property
    def waiting(self) -> int:
        """The calls that wait for their group."""
        return len(self._queue)

    @property
    def queue_bytes_max(self) -> int:
        """The bytes of calls beyond which none is taken."""
        return self._queue_bytes_max

    async def stop(self) -> None:
        """Take no more calls; return once all that were taken are answered, though a write that is late may go on."""
        self._stopping = True
        if not self.is_late:
            await self._idle.wait()

    async def pause(self) -> Callable[[], None]:
        """Return once no group is under way. None begins until what is returned is called; calls are taken meanwhile."""
        self._pauses += 1
        if self._busy:
            resting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._resting.append(resting)
            try:
                await resting
            except BaseException:
                self._go_on()
                raise
        return self._go_on

    def _go_on(self) -> None:
        self._pauses -= 1
        if not self._pauses and self._queue and not self._busy:
            self._wake()

    def _rest(self) -> None:
        self._busy = False
        resting, self._resting = self._resting, []
        for each in resting:
            tell(each, None)

    @property
    def write_ms_so_far(self) -> float:
        """The time that the write that is under way has taken until now; 0 without one."""
        began_ms = self._write_began_ms
        return 0.0 if began_ms is None else self._clock.monotonic_ms() - began_ms

    @property
    def is_idle(self) -> bool:
        """True when nothing that was taken is left to do."""
        return self._idle.is_set()

    def _wake(self) -> None:
        loop = self._running_loop()
        self._idle.clear()
        if self._pauses:
            return
        self._busy = True
        self._next_turn(loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if not self._busy:  # else it is that of the calls that wait; asking for it is a system call
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the next group soon: where several clients met in the last one, after the sockets were looked at once more."""
        if self._callers > 1:
            loop.call_soon(loop.call_soon, self._turn)
        else:
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._pauses:
            self._rest()
            return
        group = Group(self._clock.now_ms())
        began_ms = self._clock.monotonic_ms()
        if self._store.remote:
            group._waits = Stages()
        callers, group_bytes = self._stage(group)
        self._callers = len(callers)
        if callers:
            self._measure(len(callers), began_ms - callers[0].queued_ms)
        error = self._close(group)
        if error is not None:
            self._finish(group, callers, error)
            return
        small = len(callers) <= INLINE_CALLERS_MAX and group_bytes + group._late_bytes <= INLINE_BYTES_MAX
        slow = max(self._recent_ms, default=0.0) > INLINE_WRITE_MS_MAX
        if self._store.remote or not small or slow or self._store.busy:
            # Meanwhile the loop reads the requests that will make up the next group.
            if self._late_ms is not None:
                self._timer = self._loop.call_later(self._late_ms / 1_000, self._be_late, callers)
            self._write_began_ms = began_ms
            self._write_on_thread(group, callers)
            return
        self._finish(group, callers, self._try_write(group))

    def _measure(self, calls: int, wait_ms: float) -> None:
        """Count a group, once for all its calls, with the wait of the first."""
        self.calls += calls
        self.sizes[min((calls - 1).bit_length(), SIZES)] += 1
        self.waits.add(wait_ms / 1_000)

    def _close(self, group: Group) -> BasaltError | None:
        try:
            for part in group._parts.values():
                part.closing(group)
        except Exception:  # a bug, but its callers must be answered, and those after them served
            log.exception("a group could not be closed")
            return BasaltError("the write could not be put together; nothing of it was written")
        return None

    def _write_on_thread(self, group: Group, callers: list[_Caller[Any]]) -> None:
        def write() -> None:
            for (
                call
            ) in group._writing:  # not before the thread runs: what the event loop does until then delays the write
                with suppress(RuntimeError):  # as below
                    self._loop.call_soon_threadsafe(call)
            error = self._try_write(group)
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._finish, group, callers, error)

        try:
            self._calls.begin_write(write)
        except RuntimeError:  # the interpreter is about to end and starts no thread any more; nothing was tried
            self._finish(group, callers, self._try_write(group))

    def _try_write(self, group: Group) -> BasaltError | None:
        try:
            self._write(group)
        except BasaltError as error:
            return error
        except Exception:  # whatever a store raises, its callers must be answered
            log.exception("the store raised an error that is not its own")
            return UnknownOutcomeError(
                "the store failed while writing; the call took effect as a whole or not at all",
                hint="read before you repeat it",
            )
        return None

    def _stage(self, group: Group) -> tuple[list[_Caller[Any]], int]:
        """Run the stages that fit into the group; return the callers to tell when it is written, and its bytes."""
        staged: list[_Caller[Any]] = []
        group_bytes = 0
        while self._queue and (not staged or group_bytes + self._queue[0].size_bytes <= GROUP_BYTES_MAX):
            caller = self._queue.popleft()
            self.queue_bytes -= caller.size_bytes
            if caller.waiter.cancelled() and not caller.must_run:  # its client has gone; nothing was promised
                caller.release()
                continue
            mark = group._mark()
            try:
                caller.result = caller.stage(group)
            except NextGroupError:
                group._undo(mark)
                self._queue.appendleft(caller)
                self.queue_bytes += caller.size_bytes
                break
            except NotLoadedError as missing:
                group._undo(mark)
                self._load(caller, missing)
                continue
            except Exception as error:  # noqa: BLE001  # it is raised where the stage came from
                group._undo(mark)
                caller.release()
                if not staged:  # it has seen only what is durable
                    if not caller.waiter.done():
                        self._answer_caller(caller, error)
                    continue
                caller.refusal = error
            else:
                group_bytes += caller.size_bytes
                if caller.releases:
                    caller.release()
            staged.append(caller)
        return staged, group_bytes

    def _load(self, caller: _Caller[Any], missing: NotLoadedError) -> None:
        """Read what a stage needs, off the stage, and run it again; it counts in the queue meanwhile."""
        if len(caller.releases) >= STAGE_LOADS_MAX:
            caller.release()
            hint = "send the same call again after Retry-After"
            self._answer_caller(
                caller, BusyError("what the call needs leaves memory faster than it is read", hint=hint)
            )
            return
        self.queue_bytes += caller.size_bytes
        self.loading += 1
        task = self._loop.create_task(self._load_and_queue(caller, missing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_and_queue(self, caller: _Caller[Any], missing: NotLoadedError) -> None:
        STAGES.set(caller.stages)  # this task was made in the turn of another call
        error: Exception | None = None
        try:
            caller.releases = (*caller.releases, await missing.load())
        except Exception as raised:  # noqa: BLE001  # it is raised where the stage came from
            error = raised
        self.loading -= 1
        if error is None:
            self._queue_again(caller)
            return
        self.queue_bytes -= caller.size_bytes
        caller.release()
        if not caller.waiter.done():
            self._answer_caller(caller, error)
        if not self._busy and not self.loading:
            self._idle.set()

    def _queue_again(self, caller: _Caller[Any]) -> None:
        """Before all that came later; stages that wait are few, and most came later."""
        if self.is_late and not caller.must_run:
            self._drop(caller)
            return
        place = 0
        while place < len(self._queue) and self._queue[place].number < caller.number:
            place += 1
        self._queue.insert(place, caller)
        if not self._busy:
            self._wake()

    @staticmethod
    def _answer_caller(caller: _Caller[Any], error: Exception | None) -> None:
        try:
            if error is None:
                caller.waiter.set_result(caller.result)
            else:
                caller.waiter.set_exception(error)
        except Exception:  # a bug in who is told, of which the others must not suffer
            log.exception("a call could not be told what became of it")

    def _write(self, group: Group) -> None:
        start_ms = self._clock.monotonic_ms()
        token = STAGES.set(group._waits)
        phases: list[list[TableWrite]] = []
        try:
            phases = group._writes(self._store.atomic)
            for number, writes in enumerate(phases):
                try:
                    self._store.write(writes)
                except BasaltError as error:
                    if number == 0:
                        raise
                    # The first phase is durable, the rest is not: the caller can only be told "unknown".
                    raise UnknownOutcomeError(f"the store failed half-way: {error}") from error
        finally:
            STAGES.reset(token)
            stop_ms = self._clock.monotonic_ms()
            group._written_ms = (start_ms, stop_ms)
        if phases:
            self.groups += 1
            took_ms = stop_ms - start_ms
            self.write_ms += took_ms
            self._recent_ms.append(took_ms)

    def _be_late(self, callers: list[_Caller[Any]]) -> None:
        """The write takes too long: answer whoever waits for it, and for one behind it. What is a later step of a call stays."""
        self.is_late = True
        waiting, self._queue = self._queue, deque(caller for caller in self._queue if caller.must_run)
        unknown = self._unknown()
        for caller in (*callers, *self._queue):
            if not caller.waiter.done():
                self._answer_caller(caller, unknown)
        for caller in waiting:
            if not caller.must_run:
                self._drop(caller)
        if self._stopping:
            self._idle.set()

    def _drop(self, caller: _Caller[Any]) -> None:
        self.queue_bytes -= caller.size_bytes
        caller.release()
        if not caller.waiter.done():
            self._answer_caller(caller, self._too_late())

    def _unknown(self) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"the log of transactions has not answered for {self._late_ms:.0f} ms; the call took effect as a whole or not at all",
            hint="ask what became of it, or repeat it under the same request id",
        )

    def _too_late(self) -> CoordinatorUnavailableError:
        return CoordinatorUnavailableError(
            f"the log of transactions has not answered for {self._late_ms:.0f} ms; nothing was done",
            hint="send the same call again after Retry-After; publishing without a transaction goes on",
        )

    def _finish(self, group: Group, callers: list[_Caller[Any]], error: BasaltError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.is_late = None, False
        self._write_began_ms = None
        group.written(is_durable=error is None)
        for caller in callers:
            if caller.stages is not None and group._written_ms is not None:
                caller.stages.add_write(caller.queued_ms, *group._written_ms, group._waits)
            if not caller.waiter.done():
                self._answer_caller(caller, error or caller.refusal)
        if self._queue and not self._pauses:
            self._next_turn(self._loop)
            return
        self._rest()
        if not self._queue and not self.loading:
            self._idle.set()


def too_much_waits(queue_bytes: int, queue_bytes_max: int) -> BusyError:
    """The refusal of a call for which a queue has no room."""
    return BusyError(
        f"{queue_bytes} bytes wait to be written, the limit is {queue_bytes_max}",
        hint="send the same call again after Retry-After",
    )


def _nothing(_: Group) -> None:
    """A stage that waits for those before it."""
