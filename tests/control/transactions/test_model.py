"""The manager and its log against a naive model: dicts, linear scans, every commit ever made kept for ever.

Each step is logged as the coordinator logs it; clocks step, snapshots of the log are cut short by crashes, and the state
is read back from the log at any point.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basalt.errors import (
    BasaltError,
    ConflictError,
    RequestReusedError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.log import TableTransactionLog
from basalt.transactions.snapshot_format import decode_snapshot, encode_snapshot
from basalt.transactions.states import NO_SHORT, Join, Kind, State
from basalt.transactions.transaction_state import Proposal
from basalt_engine.stores.memory import MemoryStore

LIVE = (State.OPEN, State.COMMITTING, State.ABORTING)
KEYS = st.sampled_from([frozenset(), *map(frozenset, ([b"a"], [b"b"], [b"a", b"b"]))])
PICKS = st.integers(0, 63)
TOPICS = st.sampled_from([Join(b"n:x:", 1, 5), Join(b"n:x:", 1, 3), Join(b"n:y:", 2, 4)])


@dataclass
class Naive:
    """One transaction as the model knows it; it is never forgotten."""

    id: int
    kind: Kind
    deadline_ms: int
    outside: bool
    pointers: list[int]
    snapshot: tuple[int, tuple[int, ...], tuple[int, ...], int]
    state: State = State.OPEN
    topics: dict[tuple[bytes, int], int] = field(default_factory=dict)
    changes: frozenset[bytes] = frozenset()
    doomed: bool = False
    hidden: bool = False  # its pointers are, or were until they were pruned, on the invalid list
    settled_at: int = 0  # the newest pointer when its commit became visible


class TransactionsMatchTheModel(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.store = MemoryStore()
        self.table = self.store.table("transaction_log")
        self.log = TableTransactionLog(self.table)
        self.state = self.log.recover()
        self.now_ms = 1_000_000
        self.all: list[Naive] = []
        self.invalid: set[int] = set()
        self.last = self.read = 0
        self.requests: dict[str, tuple[str, int]] = {}

    # The model.

    def pointer(self) -> int:
        self.last = max(self.last + 1, self.now_ms * 1_000_000)
        return self.last

    def progress(self) -> list[int]:
        return sorted(p for one in self.all if one.state in LIVE and not one.hidden for p in one.pointers)

    def first_short(self) -> int:
        shorts = [one.id for one in self.all if one.state in LIVE and not one.hidden and one.kind is Kind.SHORT]
        return min(shorts, default=NO_SHORT)

    def loses(self, one: Naive, changes: frozenset[bytes]) -> bool:
        if one.kind is Kind.LONG:
            return False
        return any(
            other.changes & changes and other.kind is Kind.SHORT and other is not one
            for other in self.all
            if other.state is State.COMMITTING or (other.state is State.COMMITTED and other.settled_at >= one.id)
        )

    def end(self, one: Naive, state: State):
        one.state = state
        if state is State.INVALID:
            one.hidden = True
            self.invalid |= set(one.pointers)
        if state is State.COMMITTED:
            one.settled_at = self.last
            self.read = max(self.read, one.pointers[-1])
        if state is State.ABORTED:
            self.invalid -= set(one.pointers)

    def time_out(self, one: Naive):
        if one.outside:
            self.end(one, State.INVALID)
        else:
            self.end(one, State.ABORTING if one.topics else State.ABORTED)

    def expected_of_work(self, one: Naive | None) -> type[BasaltError] | None:
        """Why an open transaction may not go on working, if so; a time-out happens on the way."""
        if one is None:
            return TransactionNotFoundError
        if one.state is not State.OPEN:
            return TransactionEndedError
        if one.doomed:
            return TransactionConflictError
        if self.now_ms >= one.deadline_ms:
            self.time_out(one)
            return TransactionEndedError
        return None

    # How calls are made and compared.

    def pick(self, number: int) -> tuple[Naive | None, int]:
        """A transaction, mostly an open one; now and then an unknown id."""
        open_ones = [one for one in self.all if one.state is State.OPEN]
        live = [one for one in self.all if one.state in LIVE]
        which, place = divmod(number, 8)
        among = (open_ones, live, self.all)[min(which // 2, 2)] or live or self.all
        if not among or number == 63:
            return None, 17
        return among[place % len(among)], among[place % len(among)].id

    def call(self, propose, expected: type[BasaltError] | None, edits: bool | None = None) -> int:
        error: BasaltError | None = None
        proposal = Proposal(())
        try:
            proposal = propose()
        except BasaltError as caught:
            error = caught
        self.done(proposal)
        error = error or proposal.refusal
        assert type(error) is (type(None) if expected is None else expected), error
        if edits is not None and error is None:
            assert bool(proposal.edits) == edits
        return proposal.transaction_id

    def done(self, proposal: Proposal):
        if proposal.edits:
            self.table.write([self.log.encode_next(proposal.edits)])
        for edit in proposal.edits:
            self.state.apply(edit)

    # What clients do.

    @rule(
        kind=st.sampled_from([Kind.SHORT, Kind.SHORT, Kind.LONG]),
        timeout_ms=st.sampled_from([5, 100, 10_000, 20_000]),
        outside=st.booleans(),
    )
    def begin(self, kind: Kind, timeout_ms: int, outside: bool):
        self.begun(kind, timeout_ms, outside)

    def begun(self, kind: Kind, timeout_ms: int = 10_000, outside: bool = False) -> Naive:
        snapshot = (self.read, tuple(self.progress()), tuple(sorted(self.invalid)), self.first_short())
        key = self.call(lambda: self.state.begin(self.now_ms, kind, timeout_ms, "o", outside), None, edits=True)
        one = Naive(self.pointer(), kind, self.now_ms + timeout_ms, outside, [], snapshot)
        one.pointers.append(one.id)
        assert key == one.id
        self.all.append(one)
        return one

    @rule(request_id=st.sampled_from(["r1", "r2", "r3"]), one_shot=st.booleans())
    def repeat_a_request(self, request_id: str, one_shot: bool):
        kind, first = self.requests.get(request_id, ("", 0))
        wanted = "one-shot" if one_shot else "begin"
        expected = RequestReusedError if first and kind != wanted else None
        snapshot = (self.read, tuple(self.progress()), tuple(sorted(self.invalid)), self.first_short())
        propose = (
            (lambda: self.state.begin_committed(self.now_ms, "o", request_id))
            if one_shot
            else (lambda: self.state.begin(self.now_ms, Kind.SHORT, 10, "o", False, request_id))
        )
        key = self.call(propose, expected, edits=not first)
        if expected is not None:
            return
        if first:
            assert key == first
            return
        one = Naive(self.pointer(), Kind.SHORT, self.now_ms + 10, False, [], snapshot)
        one.pointers.append(one.id)
        self.all.append(one)
        self.requests[request_id] = (wanted, one.id)
        if one_shot:
            self.end(one, State.COMMITTED)
        assert key == one.id

    @rule(number=PICKS)
    def checkpoint(self, number: int):
        one, key = self.pick(number)
        expected = self.expected_of_work(one)
        self.call(lambda: self.state.checkpoint(key, self.now_ms), expected, edits=True)
        if expected is None:
            one.pointers.append(self.pointer())

    @rule(number=PICKS, join=TOPICS)
    def join(self, number: int, join: Join):
        self.joined(*self.pick(number), join)

    def joined(self, one: Naive | None, key: int, join: Join):
        expected = self.expected_of_work(one)
        known = None if one is None else one.topics.get(join[:2])
        news = known is None or join.from_ms < known
        self.call(lambda: self.state.join(key, join, self.now_ms), expected, edits=news)
        if expected is None and news:
            one.topics[join[:2]] = join.from_ms

    @rule(number=PICKS, changes=KEYS)
    def set_changes(self, number: int, changes: frozenset[bytes]):
        self.changed(*self.pick(number), changes)

    def changed(self, one: Naive | None, key: int, changes: frozenset[bytes]):
        expected = self.expected_of_work(one)
        if expected is None:
            one.outside = one.outside or bool(changes)
            if self.loses(one, changes):
                one.doomed = True
                expected = TransactionConflictError
            elif one.kind is Kind.SHORT:
                one.changes = changes
        self.call(lambda: self.state.set_changes(key, changes, self.now_ms), expected)

    @rule(number=PICKS, inline=st.booleans())
    def commit(self, number: int, inline: bool):
        self.committed(*self.pick(number), inline)

    def committed(self, one: Naive | None, key: int, inline: bool):
        repeated = one is not None and one.state in (State.COMMITTING, State.COMMITTED)
        expected = None if repeated else self.expected_of_work(one)
        if expected is None and not repeated:
            if self.loses(one, one.changes):
                one.doomed = True
                expected = TransactionConflictError
            else:
                self.end(one, State.COMMITTED if inline else State.COMMITTING)
        self.call(lambda: self.state.commit(key, self.now_ms, inline=inline), expected, edits=not repeated)

    @rule(number=PICKS, inline=st.booleans())
    def abort(self, number: int, inline: bool):
        self.aborted(*self.pick(number), inline)

    def aborted(self, one: Naive | None, key: int, inline: bool):
        expected, moves = self.expected_of_end(one), False
        if expected is None and (one.state is State.OPEN or (one.state is State.INVALID and one.kind is Kind.SHORT)):
            moves = True
            if one.kind is Kind.LONG:
                self.end(one, State.INVALID)
            else:
                self.end(one, State.ABORTED if inline or not one.topics else State.ABORTING)
        self.call(lambda: self.state.abort(key, self.now_ms, inline=inline), expected, edits=moves)

    def expected_of_end(self, one: Naive | None) -> type[BasaltError] | None:
        if one is None:
            return TransactionNotFoundError
        return TransactionEndedError if one.state in (State.COMMITTING, State.COMMITTED) else None

    @rule(number=PICKS)
    def invalidate(self, number: int):
        self.invalidated(*self.pick(number))

    def invalidated(self, one: Naive | None, key: int):
        expected = self.expected_of_end(one)
        moves = expected is None and one.state in (State.OPEN, State.ABORTING)
        if moves:
            self.end(one, State.INVALID)
        self.call(lambda: self.state.invalidate(key, self.now_ms), expected, edits=moves)

    @rule(number=PICKS)
    def finish(self, number: int):
        one, key = self.pick(number)
        expected: type[BasaltError] | None = None
        moves = False
        if one is None:
            expected = TransactionNotFoundError
        elif one.state is State.OPEN:
            expected = TransactionEndedError
        elif one.state in (State.COMMITTING, State.ABORTING):
            moves = True
            self.end(one, State.COMMITTED if one.state is State.COMMITTING else State.ABORTED)
        self.call(lambda: self.state.finish(key, self.now_ms), expected, edits=moves)

    @rule(number=PICKS)
    def give_up(self, number: int):
        one, key = self.pick(number)
        expected: type[BasaltError] | None = None
        if one is None:
            expected = TransactionNotFoundError
        elif one.state in (State.OPEN, State.COMMITTED):
            expected = TransactionEndedError
        moves = one is not None and one.state is State.COMMITTING
        if moves:
            self.end(one, State.ABORTING)
        self.call(lambda: self.state.give_up(key), expected, edits=moves)

    # What chance alone would seldom bring about.

    @rule(kinds=st.sampled_from([(Kind.SHORT, Kind.SHORT), (Kind.SHORT, Kind.LONG)]), inline=st.booleans())
    def two_writers_meet(self, kinds: tuple[Kind, Kind], inline: bool):
        one, other = (self.begun(kind) for kind in kinds)
        for writer in (one, other):
            self.changed(writer, writer.id, frozenset([b"a"]))
        self.committed(one, one.id, inline)

    @rule()
    def a_commit_is_given_up(self):
        one, other, before = (self.begun(Kind.SHORT) for _ in range(3))
        for writer, inline in ((before, True), (one, False)):
            self.changed(writer, writer.id, frozenset([b"a"]) if writer is one else frozenset([b"b"]))
            self.committed(writer, writer.id, inline)
        if one.state is State.COMMITTING:
            self.end(one, State.ABORTING)
            self.call(lambda: self.state.give_up(one.id), None, edits=True)
        self.changed(other, other.id, frozenset([b"a"]))

    @rule(join=TOPICS, inline=st.booleans())
    def an_abort_comes_late(self, join: Join, inline: bool):
        one = self.begun(Kind.SHORT)
        self.joined(one, one.id, join)
        self.invalidated(one, one.id)
        self.aborted(one, one.id, inline)

    # What operators, time and the machine do.

    @rule()
    def expire(self):
        due = [one for one in self.all if one.state is State.OPEN and one.deadline_ms <= self.now_ms]
        for one in due:
            self.time_out(one)
        self.call(lambda: self.state.expire(self.now_ms), None, edits=bool(due))

    @rule(number=PICKS)
    def prune(self, number: int):
        gone = set(sorted(self.invalid)[: number % 3])
        self.call(lambda: self.state.prune(gone), None, edits=bool(gone))
        self.invalid -= gone

    @rule(number=PICKS, later_ms=st.integers(-1, 1))
    def truncate(self, number: int, later_ms: int):
        near = sorted(self.invalid) or [self.now_ms * 1_000_000]
        before_ms = near[number % len(near)] // 1_000_000 + later_ms
        before = before_ms * 1_000_000
        gone = {pointer for pointer in self.invalid if pointer < before}
        refused = any(pointer < before for pointer in self.progress())
        expected = ConflictError if refused else None
        self.call(lambda: self.state.truncate(before_ms), expected, edits=bool(gone))
        if not refused:
            self.invalid -= gone

    @rule(duration_ms=st.integers(1, 5))
    def time_passes(self, duration_ms: int):
        self.now_ms += duration_ms

    @rule(step_ms=st.sampled_from([-200, -7, 90, 9_000]))
    def the_clock_steps(self, step_ms: int):
        self.now_ms += step_ms

    @rule(written=st.integers(0, 3))
    def the_log_is_snapshot_and_a_crash_may_cut_it_short(self, written: int):
        self.table.write(self.log.snapshot(self.state)[:written])

    @rule()
    def the_process_crashes(self):
        before = self.state.image()
        self.log = TableTransactionLog(self.table)
        self.state = self.log.recover()
        assert self.state.image() == before

    @rule()
    def a_write_fails(self):
        """What was encoded and not written is forgotten by recovery, and its numbers are used again."""
        before = self.state.image()
        proposal = self.state.begin(self.now_ms)
        self.log.encode_next(proposal.edits)
        self.state.apply(proposal.edits[0])
        self.state = self.log.recover()
        assert self.state.image() == before

    # What must hold.

    @invariant()
    def the_view_is_the_model_s(self):
        view = self.state.view()
        assert (view.read_pointer, view.in_progress) == (self.read, tuple(self.progress()))
        assert view.invalid.pointers == tuple(sorted(self.invalid))
        assert self.state.last_pointer == self.last

    @invariant()
    def every_transaction_stands_where_the_model_says(self):
        for one in self.all:
            assert self.state.outcome(one.id).state is one.state
        live = [one for one in self.all if one.state in LIVE]
        assert [found.id for found in self.state.transactions()] == [one.id for one in live]
        for one in live:
            found = self.state.get(one.id)
            assert list(found.pointers) == one.pointers
            assert {join[:2]: join.from_ms for join in found.topics} == one.topics
            if not found.was_invalid:
                seen = (found.read_pointer, found.in_progress, found.invalid.pointers, found.first_short)
                assert seen == one.snapshot
                assert found.outside == one.outside
        decided = [one.id for one in live if one.state is not State.OPEN]
        assert [found.id for found in self.state.unfinished()] == decided
        deadlines = [one.deadline_ms for one in live if one.state is State.OPEN]
        assert self.state.next_deadline_ms() == min(deadlines, default=None)

    @precondition(lambda self: self.all)
    @invariant()
    def nothing_that_was_not_committed_is_visible(self):
        view = self.state.view()
        hidden = [one for one in self.all if one.state in (*LIVE, State.INVALID)]
        for one in hidden:
            pruned = one.hidden and not set(one.pointers) <= self.invalid
            assert pruned or not any(view.is_visible(pointer) for pointer in one.pointers)
        for one in self.all:
            if one.state is State.COMMITTED:
                assert all(view.is_visible(pointer) for pointer in one.pointers)

    @rule()
    def a_snapshot_of_the_state_is_the_state(self):
        image = self.state.image()
        assert decode_snapshot(encode_snapshot(image), "test") == image


TestTransactionsMatchTheModel = TransactionsMatchTheModel.TestCase
TestTransactionsMatchTheModel.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
