"""The one writer: who meets in a group, what each is answered, and what is written when something fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from basalt.errors import BusyError, StoppingError, UnknownOutcomeError
from basalt.runtime.group_commit import (
    GROUP_BYTES_MAX,
    INLINE_BYTES_MAX,
    INLINE_CALLERS_MAX,
    INLINE_WRITE_MS_MAX,
    INLINE_WRITES_SEEN,
    STAGE_BYTES,
    Group,
    GroupCommit,
    NextGroupError,
    Phase,
)
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import ManualClock
from basalt_engine.errors import BasaltError, DiskFullError, InputError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put, TableWrite

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class RecordingStore(MemoryStore):
    """Notes each write; raises what is put into `errors`, in turn (None: the write is made)."""

    def __init__(self, atomic: bool = True, remote: bool = False) -> None:
        super().__init__(atomic)
        self.remote = remote
        self.writes: list[list[tuple[str, list[bytes]]]] = []
        self.errors: list[Exception | None] = []
        self.threads: set[int] = set()
        self.begun = False
        self.gate = threading.Event()
        self.gate.set()

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.begun = True
        self.gate.wait(60)
        self.threads.add(threading.get_ident())
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.writes.append([(table, [getattr(each, "key", b"") for each in mutations]) for table, mutations in writes])
        super().write(writes)

    def keys(self, table: str = "message") -> list[bytes]:
        return [row.key for row in self.table(table).scan(b"", None)]


class Notes:
    """A part that notes what becomes of its group."""

    def __init__(self, group: Group | None = None) -> None:
        self.seen: list[str] = []

    def closing(self, group: Group) -> None:
        self.seen.append("closing")
        group.add("message", Put(b"gathered", {b"c": b"%d" % len(self.seen)}))

    def durable(self) -> None:
        self.seen.append("durable")

    def failed(self) -> None:
        self.seen.append("failed")


def put(key: str, answer: Any = None, *, table: str = "message", phase: Phase = Phase.ROWS) -> Callable[[Group], Any]:
    """A stage that writes one row and answers with its key, or `answer`."""

    def stage(group: Group) -> Any:
        group.add(table, Put(key.encode(), {b"c": b""}), phase=phase)
        return key if answer is None else answer

    return stage


def raising(error: Exception) -> Callable[[Group], Any]:
    """A stage that raises after it has added something."""

    def stage(group: Group) -> Any:
        put("never")(group)
        group.when_durable(lambda: pytest.fail("a stage that raised has no effect"))
        group.when_failed(lambda: pytest.fail("a stage that raised has no effect"))
        raise error

    return stage


async def together(writer: GroupCommit, *stages: Callable[[Group], Any], sizes: Sequence[int] = ()) -> list[Any]:
    """Run stages that meet in one turn of the event loop; answers and errors, in their order."""
    sizes = sizes or [0] * len(stages)
    calls = (writer.run(stage, size) for stage, size in zip(stages, sizes, strict=True))
    return await asyncio.gather(*calls, return_exceptions=True)


# Answers.


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("remote", [True, False])
async def test_callers_that_meet_share_one_write_and_get_their_own_answers(atomic: bool, remote: bool) -> None:
    store = RecordingStore(atomic, remote)
    writer = GroupCommit(store, ManualClock())
    names = [f"{number:02}" for number in range(30)]
    assert await together(writer, *map(put, names)) == names
    assert store.writes == [[("message", [name.encode() for name in names])]]
    assert (writer.groups, writer.queue_bytes) == (1, 0)


async def test_a_caller_is_answered_only_after_its_write() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    answered: list[list[bytes]] = []
    for name in ("a", "b"):
        await writer.run(put(name))
        answered.append(store.keys())
    assert answered == [[b"a"], [b"a", b"b"]]


async def test_stages_run_in_the_order_of_their_calls_and_see_what_earlier_ones_left() -> None:
    writer = GroupCommit(RecordingStore(), ManualClock())
    seen: list[int] = []

    def stage(group: Group) -> int:
        seen.append(len(seen))
        return len(seen)

    assert await together(writer, *[stage] * 5) == [1, 2, 3, 4, 5]


async def test_a_group_has_one_time() -> None:
    clock = ManualClock(7)

    def stage(group: Group) -> int:
        clock.advance(1)
        return group.now_ms

    writer = GroupCommit(RecordingStore(), clock)
    assert await together(writer, stage, stage) == [7, 7]
    assert await writer.run(stage) == 9


async def test_a_stage_that_adds_nothing_is_answered_without_a_write() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    told: list[str] = []
    assert await writer.run(lambda group: group.when_durable(lambda: told.append("durable"))) is None
    assert (store.writes, writer.groups, told) == ([], 0, ["durable"])


async def test_none_is_an_answer_too() -> None:
    assert await GroupCommit(RecordingStore(), ManualClock()).run(lambda group: None) is None


# Stages that raise.


async def test_a_stage_that_raises_fails_its_own_caller_and_writes_nothing() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    first, error, last = await together(writer, put("a"), raising(ValueError("mine")), put("b"))
    assert (first, last) == ("a", "b")
    assert isinstance(error, ValueError)
    assert store.keys() == [b"a", b"b"]
    assert store.writes == [[("message", [b"a", b"b"])]]


async def test_a_group_of_nothing_but_errors_writes_nothing() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    errors = await together(writer, raising(KeyError("a")), raising(InputError("b")))
    assert [type(error) for error in errors] == [KeyError, InputError]
    assert store.writes == []
    assert await writer.run(put("later")) == "later"


# Stores that fail.


@pytest.mark.parametrize("remote", [True, False])
@pytest.mark.parametrize("error", [StoreError("no"), DiskFullError("full"), UnknownOutcomeError("lost")])
async def test_a_write_that_fails_is_told_to_every_caller_of_its_group(error: BasaltError, remote: bool) -> None:
    store = RecordingStore(remote=remote)
    writer = GroupCommit(store, ManualClock())
    store.errors = [error]
    told: list[str] = []

    def observed(group: Group) -> None:
        group.when_failed(lambda: told.append("failed"))
        group.when_durable(lambda: told.append("durable"))

    assert await together(writer, put("a"), observed, put("b")) == [error] * 3
    assert (store.keys(), told, writer.groups) == ([], ["failed"], 0)
    assert await writer.run(put("later")) == "later"


async def test_a_stage_that_raised_before_all_others_keeps_its_own_error_when_the_write_fails() -> None:
    store = RecordingStore()
    store.errors = [StoreError("no")]
    errors = await together(GroupCommit(store, ManualClock()), raising(ValueError("mine")), put("a"))
    assert [type(error) for error in errors] == [ValueError, StoreError]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_refusal_that_may_rely_on_an_earlier_stage_is_told_when_that_is_durable(fails: bool) -> None:
    store = RecordingStore(remote=True)
    writer = GroupCommit(store, ManualClock())
    store.errors = [StoreError("no") if fails else None]
    store.gate.clear()
    calls = [asyncio.ensure_future(writer.run(stage)) for stage in (put("a"), raising(ValueError("because of a")))]
    await asyncio.wait(calls, timeout=0.05)
    assert not any(call.done() for call in calls)
    store.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(answer) for answer in answers] == (["no", "no"] if fails else ["a", "because of a"])


async def test_whatever_else_a_store_raises_is_an_unknown_outcome(caplog: pytest.LogCaptureFixture) -> None:
    store = RecordingStore()
    store.errors = [ZeroDivisionError("a bug")]
    writer = GroupCommit(store, ManualClock())
    errors = await together(writer, put("a"), put("b"))
    assert [type(error) for error in errors] == [UnknownOutcomeError] * 2
    assert "a bug" in caplog.text
    assert await writer.run(put("later")) == "later"


async def test_a_callback_that_fails_keeps_nobody_from_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    writer = GroupCommit(RecordingStore(), ManualClock())
    told: list[str] = []

    def broken() -> None:
        raise ValueError("in a callback")

    def stage(group: Group) -> str:
        group.when_durable(broken)
        group.when_durable(lambda: told.append("next"))
        return "answer"

    assert await together(writer, stage, put("a")) == ["answer", "a"]
    assert (told, "in a callback" in caplog.text) == (["next"], True)


# Parts.


async def test_a_part_gathers_over_a_group_and_is_made_anew_for_the_next() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    parts: list[Notes] = []

    def stage(group: Group) -> Notes:
        parts.append(group.part("owner", Notes))
        return parts[-1]

    first, second = await together(writer, stage, stage)
    third = await writer.run(stage)
    assert first is second
    assert first is not third
    assert first.seen == third.seen == ["closing", "durable"]
    assert store.writes == [[("message", [b"gathered"])]] * 2


async def test_a_part_is_told_of_a_failed_write_before_its_callers_are() -> None:
    store = RecordingStore()
    store.errors = [StoreError("no")]
    writer = GroupCommit(store, ManualClock())
    notes = Notes()
    with pytest.raises(StoreError):
        await writer.run(lambda group: group.part("owner", lambda: notes))
    assert notes.seen == ["closing", "failed"]


async def test_a_part_outlives_a_stage_that_raises() -> None:
    notes = Notes()

    def stage(group: Group) -> None:
        group.part("owner", lambda: notes)
        raise ValueError("after it")

    (error,) = await together(GroupCommit(RecordingStore(), ManualClock()), stage)
    assert isinstance(error, ValueError)
    assert notes.seen == ["closing", "durable"]


async def test_a_part_that_cannot_close_fails_its_group_and_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    notes = Notes()

    class Broken(Notes):
        def closing(self, group: Group) -> None:
            raise OverflowError("a value that no format holds")

    def stage(group: Group) -> None:
        group.part("first", lambda: notes)
        group.part("second", Broken)

    errors = await together(writer, put("a"), stage)
    assert all(isinstance(error, BasaltError) for error in errors)
    assert (store.writes, notes.seen) == ([], ["closing", "failed"])
    assert "no format holds" in caplog.text
    assert await asyncio.wait_for(writer.run(put("later")), 60) == "later"
    await asyncio.wait_for(writer.stop(), 60)


# Phases.


def three_phases(group: Group) -> str:
    for table, phase in (("message", Phase.ROWS), ("system", Phase.AFTER), ("payload", Phase.BEFORE)):
        group.add(table, Put(table.encode(), {b"c": b""}), phase=phase)
    return "done"


async def test_an_atomic_store_gets_all_phases_as_one_batch() -> None:
    store = RecordingStore(atomic=True)
    assert await GroupCommit(store, ManualClock()).run(three_phases) == "done"
    assert store.writes == [[("payload", [b"payload"]), ("message", [b"message"]), ("system", [b"system"])]]


async def test_another_store_gets_intents_then_rows_then_outcomes() -> None:
    store = RecordingStore(atomic=False)
    writer = GroupCommit(store, ManualClock())
    assert await together(writer, three_phases, put("more", table="message"), put("log", phase=Phase.BEFORE)) == [
        "done",
        "more",
        "log",
    ]
    assert store.writes == [
        [("payload", [b"payload"]), ("message", [b"log"])],
        [("message", [b"message", b"more"])],
        [("system", [b"system"])],
    ]
    assert writer.groups == 1


async def test_the_mutations_of_a_table_keep_their_order() -> None:
    store = RecordingStore()
    await together(GroupCommit(store, ManualClock()), put("b"), put("s", table="system"), put("a"), put("b"))
    assert store.writes == [[("message", [b"b", b"a", b"b"]), ("system", [b"s"])]]


@pytest.mark.parametrize("remote", [True, False])
async def test_a_mutation_that_is_made_late_is_made_where_the_group_is_written_and_keeps_its_place(
    remote: bool,
) -> None:
    store, threads = RecordingStore(remote=remote), set[int]()

    def late() -> Put:
        threads.add(threading.get_ident())
        return Put(b"b", {b"c": b"late"})

    def stage(group: Group) -> None:
        group.add("message", Put(b"a", {b"c": b""}))
        group.add_late("message", late)
        group.add("message", Put(b"c", {b"c": b""}))

    await together(GroupCommit(store, ManualClock(1)), stage)
    assert store.writes == [[("message", [b"a", b"b", b"c"])]]
    assert threads == store.threads
    assert (threading.get_ident() in threads) is not remote


async def test_a_stage_that_raises_takes_back_what_was_to_be_made_late() -> None:
    store = RecordingStore()

    def stage(group: Group) -> None:
        group.add_late("message", lambda: Put(b"late", {}))
        raise InputError("no")

    await together(GroupCommit(store, ManualClock(1)), stage, put("a"))
    assert store.writes == [[("message", [b"a"])]]


async def test_a_failure_in_the_first_phase_is_what_the_store_says() -> None:
    store = RecordingStore(atomic=False)
    error = StoreError("no")
    store.errors = [error]
    assert await together(GroupCommit(store, ManualClock()), three_phases, three_phases) == [error] * 2
    assert store.writes == []


@pytest.mark.parametrize("error", [StoreError("no"), InputError("too long"), UnknownOutcomeError("lost")])
@pytest.mark.parametrize("phases", [1, 2])
async def test_a_failure_in_a_later_phase_is_an_unknown_outcome_and_ends_the_write(
    phases: int, error: BasaltError
) -> None:
    """What was written before stays; nobody may be told that the call had no effect."""
    store = RecordingStore(atomic=False)
    writer = GroupCommit(store, ManualClock())
    store.errors = [*[None] * phases, error]
    errors = await together(writer, three_phases, put("more"))
    assert [type(each) for each in errors] == [UnknownOutcomeError] * 2
    assert [writes[0][0] for writes in store.writes] == ["payload", "message"][:phases]
    assert await writer.run(put("later")) == "later"


# The next group.


@pytest.mark.parametrize("remote", [True, False])
async def test_a_stage_can_wait_for_what_its_group_makes_durable(remote: bool) -> None:
    store = RecordingStore(remote=remote)
    writer = GroupCommit(store, ManualClock())
    seen: list[list[bytes]] = []

    def stage(group: Group) -> str:
        seen.append(store.keys())
        if b"a" not in seen[-1]:
            put("never")(group)
            raise NextGroupError
        return put("b")(group)

    assert await together(writer, put("a"), stage, put("c")) == ["a", "b", "c"]
    assert seen == [[], [b"a"]]
    assert store.writes == [[("message", [b"a"])], [("message", [b"b", b"c"])]]
    assert writer.queue_bytes == 0


# Back pressure.


async def test_a_full_queue_refuses_a_call_before_it_takes_anything() -> None:
    store = RecordingStore(remote=True)
    writer = GroupCommit(store, ManualClock(), queue_bytes_max=3_000)
    answers = await together(writer, put("a"), put("b"), put("c"), sizes=[1_000, 600, 100])
    assert (answers[0], answers[1]) == ("a", "b")
    assert isinstance(answers[2], BusyError)
    assert str(1_600 + 2 * STAGE_BYTES) in str(answers[2])
    assert store.keys() == [b"a", b"b"]
    assert await writer.run(put("c"), 100) == "c"


async def test_a_call_that_is_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    writer = GroupCommit(RecordingStore(), ManualClock(), queue_bytes_max=1_000)
    assert await writer.run(put("a"), 50_000) == "a"
    answers = await together(writer, put("b"), put("c"), sizes=[50_000, 0])
    assert answers[0] == "b"
    assert isinstance(answers[1], BusyError)


async def test_many_calls_without_payload_fill_a_queue_too() -> None:
    writer = GroupCommit(RecordingStore(), ManualClock(), queue_bytes_max=10 * STAGE_BYTES)
    answers = await together(writer, *map(put, "abcdefghijkl"))
    assert [isinstance(answer, BusyError) for answer in answers] == [False] * 10 + [True] * 2


async def test_what_is_too_much_for_one_group_goes_into_the_next_in_order() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    half = GROUP_BYTES_MAX // 2
    assert await together(writer, *map(put, "abcd"), sizes=[half, half, half + 1, 10 * half]) == list("abcd")
    assert store.writes == [[("message", [key])] for key in (b"a", b"b", b"c", b"d")]
    await together(writer, *map(put, "abc"), sizes=[half - STAGE_BYTES, half - STAGE_BYTES, 0])
    assert store.writes[4:] == [[("message", [b"a", b"b"])], [("message", [b"c"])]]


# Threads.


async def test_a_local_stores_write_is_made_at_once_and_a_remote_ones_on_a_thread() -> None:
    for remote in (False, True):
        store = RecordingStore(remote=remote)
        await GroupCommit(store, ManualClock()).run(put("a"))
        assert (threading.get_ident() in store.threads) != remote


async def test_calls_that_come_during_a_write_make_up_the_next_group() -> None:
    store = RecordingStore(remote=True)
    writer = GroupCommit(store, ManualClock())
    store.gate.clear()
    first = asyncio.ensure_future(writer.run(put("a")))
    while not store.begun:
        await asyncio.sleep(0)
    others = [asyncio.ensure_future(writer.run(put(name))) for name in "bc"]
    await asyncio.sleep(0)
    assert not first.done()
    assert writer.queue_bytes == 2 * STAGE_BYTES
    store.gate.set()
    assert await asyncio.gather(first, *others) == ["a", "b", "c"]
    assert store.writes == [[("message", [b"a"])], [("message", [b"b", b"c"])]]


@pytest.mark.parametrize(
    ("callers", "size_bytes", "on_thread"),
    [
        (1, 0, False),
        (INLINE_CALLERS_MAX, 0, False),
        (INLINE_CALLERS_MAX + 1, 0, True),
        (1, INLINE_BYTES_MAX - STAGE_BYTES, False),
        (1, INLINE_BYTES_MAX - STAGE_BYTES + 1, True),
    ],
)
async def test_what_takes_a_local_store_long_is_written_on_a_thread(
    callers: int, size_bytes: int, on_thread: bool
) -> None:
    store = RecordingStore()
    names = [f"{number:02}" for number in range(callers)]
    writer = GroupCommit(store, ManualClock())
    assert await together(writer, *map(put, names), sizes=[size_bytes] * callers) == names
    assert (threading.get_ident() not in store.threads) == on_thread
    assert writer.groups == 1


@pytest.mark.parametrize(("size_bytes", "on_thread"), [(0, False), (INLINE_BYTES_MAX, True)])
async def test_what_takes_long_to_be_made_late_is_made_on_a_thread(size_bytes: int, on_thread: bool) -> None:
    store = RecordingStore()

    def stage(group: Group) -> None:
        group.add_late("message", lambda: Put(b"late", {}), size_bytes=size_bytes)

    await together(GroupCommit(store, ManualClock()), stage)
    assert (threading.get_ident() not in store.threads) == on_thread


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_to_be_done_during_a_write_is_done_once_the_thread_has_begun_and_before_the_outcome_is_told(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[Callable[[], None]] = []
    monkeypatch.setattr(StoreCalls, "begin_write", lambda _, write: writes.append(write))
    store = RecordingStore(remote=True)
    store.errors = [StoreError("no")] if fails else []
    store.gate.clear()
    seen, meanwhile = list[str](), asyncio.Event()

    def stage(group: Group) -> None:
        put("a")(group)
        group.when_durable(lambda: seen.append("durable"))
        group.when_failed(lambda: seen.append("failed"))
        group.while_written(lambda: seen.append("meanwhile"))
        group.while_written(meanwhile.set)

    call = asyncio.ensure_future(GroupCommit(store, ManualClock()).run(stage))
    while not writes:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not seen, "no thread writes yet"
    thread = asyncio.ensure_future(asyncio.to_thread(writes[0]))
    await meanwhile.wait()
    assert not call.done()
    store.gate.set()
    await asyncio.gather(call, thread, return_exceptions=True)
    assert seen == ["meanwhile", "failed" if fails else "durable"]


async def test_during_a_write_on_the_event_loop_nothing_else_is_done() -> None:
    seen = list[str]()

    def stage(group: Group) -> None:
        group.while_written(lambda: seen.append("meanwhile"))
        put("a")(group)

    store = RecordingStore()
    await GroupCommit(store, ManualClock()).run(stage)
    await asyncio.sleep(0)
    assert (store.keys(), seen) == ([b"a"], [])


async def test_what_a_stage_wants_done_during_the_write_is_forgotten_when_it_raises() -> None:
    seen = list[str]()

    def stage(group: Group) -> None:
        group.while_written(lambda: seen.append("meanwhile"))
        raise InputError("refused")

    answers = await together(GroupCommit(RecordingStore(remote=True), ManualClock()), put("a"), stage)
    assert answers[0] == "a"
    assert isinstance(answers[1], InputError)
    assert not seen


@pytest.mark.parametrize("remote", [False, True])
async def test_all_groups_that_take_long_are_written_on_one_thread(remote: bool) -> None:
    store = RecordingStore(remote=remote)
    writer = GroupCommit(store, ManualClock())
    for name in ("a", "b", "c"):
        assert await together(writer, put(name), sizes=[INLINE_BYTES_MAX]) == [name]
    assert len(store.threads) == 1
    assert store.threads != {threading.get_ident()}


async def test_a_group_is_written_though_no_thread_starts_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(StoreCalls, "begin_write", refuse)
    store = RecordingStore(remote=True)
    assert await GroupCommit(store, ManualClock()).run(put("a")) == "a"
    assert store.threads == {threading.get_ident()}


class SlowStore(RecordingStore):
    """Each write takes as long as the clock is told."""

    def __init__(self, clock: ManualClock, write_ms: int) -> None:
        super().__init__()
        self.clock = clock
        self.write_ms = write_ms

    def write(self, writes: Sequence[TableWrite]) -> None:
        super().write(writes)
        self.clock.advance(self.write_ms)


async def test_a_slow_disk_is_written_to_on_a_thread_until_it_is_quick_again() -> None:
    clock = ManualClock()
    store = SlowStore(clock, write_ms=int(INLINE_WRITE_MS_MAX) + 1)
    writer = GroupCommit(store, clock)

    async def was_on_a_thread() -> bool:
        store.threads.clear()
        await writer.run(put("a"))
        return threading.get_ident() not in store.threads

    assert not await was_on_a_thread()  # nothing is known of the disk yet
    assert await was_on_a_thread()
    store.write_ms = 1
    assert [await was_on_a_thread() for _ in range(INLINE_WRITES_SEEN)] == [True] * INLINE_WRITES_SEEN
    assert not await was_on_a_thread()
    store.write_ms = 300
    assert not await was_on_a_thread()
    assert [await was_on_a_thread() for _ in range(3 * INLINE_WRITES_SEEN)] == [True] * 3 * INLINE_WRITES_SEEN


async def test_one_slow_write_in_a_few_keeps_the_others_from_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("basalt.runtime.group_commit.INLINE_WRITES_SEEN", 2)
    clock = ManualClock()
    store = SlowStore(clock, write_ms=1)
    writer = GroupCommit(store, clock)
    waited_ms = []
    for number in range(20):
        store.write_ms = 300 if number % 2 else 1
        store.threads.clear()
        await writer.run(put("a"))
        if threading.get_ident() in store.threads:
            waited_ms.append(store.write_ms)
    assert waited_ms == [1, 300], "after the first slow one nobody waits on the event loop any more"


async def test_a_store_that_is_busy_is_not_waited_for_on_the_event_loop() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    for busy in (False, True, False):
        store.busy = busy
        store.threads.clear()
        await writer.run(put("a"))
        assert (threading.get_ident() in store.threads) == (not busy)


# Who is told without a coroutine.


class Told:
    """A waiter that notes what it is told, and may then call again."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.results: list[Any] = []
        self.then = then

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self.results.append(result)
        if self.then is not None:
            self.then()

    def set_exception(self, exception: BaseException, /) -> None:
        self.results.append(exception)
        if self.then is not None:
            self.then()


async def test_a_waiter_is_told_what_a_coroutine_would_get_once_it_is_durable() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    good, bad = Told(), Told()
    error = InputError("no")
    writer.submit(put("a"), good)
    writer.submit(raising(error), bad)
    assert (good.results, bad.results, store.writes) == ([], [], [])
    assert await writer.run(put("b")) == "b"
    assert (good.results, bad.results) == (["a"], [error])
    store.errors = [StoreError("the disk is full")]
    lost = Told()
    writer.submit(put("c"), lost)
    with pytest.raises(StoreError):
        await writer.run(put("d"))
    assert [type(result) for result in lost.results] == [StoreError]


async def test_a_waiter_that_calls_again_when_it_is_told_is_in_a_later_group() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    second = Told()
    first = Told(then=lambda: writer.submit(put("b"), second))
    writer.submit(put("a"), first)
    while not second.results:
        await asyncio.sleep(0)
    assert (first.results, second.results) == (["a"], ["b"])
    assert store.writes == [[("message", [b"a"])], [("message", [b"b"])]]


async def test_a_waiter_that_fails_takes_nobody_else_along() -> None:
    writer = GroupCommit(RecordingStore(), ManualClock())
    writer.submit(put("a"), Told(then=lambda: 1 // 0))
    writer.submit(raising(InputError("no")), Told(then=lambda: 1 // 0))
    assert await writer.run(put("b")) == "b"
    assert await writer.run(put("c")) == "c"


async def test_a_waiter_is_refused_as_a_coroutine_is() -> None:
    writer = GroupCommit(RecordingStore(), ManualClock(), queue_bytes_max=STAGE_BYTES)
    writer.submit(put("a"), Told())
    with pytest.raises(BusyError):
        writer.submit(put("b"), Told())
    await writer.stop()
    with pytest.raises(StoppingError):
        writer.submit(put("c"), Told())


# Callers that go away.


async def test_a_caller_that_left_before_its_turn_leaves_no_trace() -> None:
    store = RecordingStore()
    writer = GroupCommit(store, ManualClock())
    leaving = asyncio.ensure_future(writer.run(raising(AssertionError("its stage must not run"))))
    staying = asyncio.ensure_future(writer.run(put("a")))
    leaving.cancel()
    assert await staying == "a"
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await asyncio.sleep(0)
    left_in_the_queue = asyncio.ensure_future(writer.run(put("b")))
    await asyncio.sleep(0)
    left_in_the_queue.cancel()
    await writer.stop()
    assert (store.keys(), writer.queue_bytes) == ([b"a"], 0)


async def test_a_caller_that_leaves_during_the_write_takes_nothing_back_and_nobody_along() -> None:
    store = RecordingStore(remote=True)
    writer = GroupCommit(store, ManualClock())
    store.gate.clear()
    leaving, staying = (asyncio.ensure_future(writer.run(put(name))) for name in "ab")
    while not store.begun:
        await asyncio.sleep(0)
    leaving.cancel()
    store.gate.set()
    assert await staying == "b"
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert store.keys() == [b"a", b"b"]


# Stopping.


@pytest.mark.parametrize("remote", [True, False])
async def test_stopping_answers_what_was_taken_and_takes_no_more(remote: bool) -> None:
    store = RecordingStore(remote=remote)
    writer = GroupCommit(store, ManualClock())
    big = GROUP_BYTES_MAX
    taken = [asyncio.ensure_future(writer.run(put(name), big)) for name in "abc"]
    await asyncio.sleep(0)
    await writer.stop()
    with pytest.raises(StoppingError):
        await writer.run(put("d"))
    assert await asyncio.gather(*taken) == list("abc")
    assert store.keys() == [b"a", b"b", b"c"]
    await writer.stop()


async def test_an_idle_writer_stops_at_once() -> None:
    await asyncio.wait_for(GroupCommit(RecordingStore(), ManualClock()).stop(), 60)
