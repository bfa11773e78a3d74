"""The manager and its log against a naive model: dicts, linear scans, every commit ever made kept for ever.

Each step is logged as the coordinator logs it; clocks step, snapshots of the log are cut short by crashes, and the state
is read back from the log at any point.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basalt.errors import (
    BasaltError,
    ChangesLostError,
    ConflictError,
    RequestReusedError,
    SessionFencedError,
    SessionForeignError,
    SessionNotFoundError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.log import snapshot_format, transaction_log
from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.rules import (
    outcomes,
    session_rules,
    sessions,
    transaction,
    transaction_proposals,
)
from basalt.transactions.rules.conflicts import memory_bytes
from basalt.transactions.rules.edits import Proposal, Restored
from basalt.transactions.rules.sessions import WorkVersion
from basalt.transactions.rules.transaction import (
    NO_SHORT,
    Join,
    Kind,
    SessionBinding,
    State,
    TableJoin,
    TransactionLimits,
)
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.whole_bytes import encode_snapshot, snapshot_mutations

LIMITS = TransactionLimits(allow_reset=True, session_ms_max=9_000)
LIVE = (State.OPEN, State.COMMITTING, State.ABORTING)
KEYS = st.sampled_from([frozenset(), *map(frozenset, ([b"a"], [b"b"], [b"a", b"b"]))])
PICKS = st.integers(0, 63)
COMMITS = (State.COMMITTING, State.COMMITTED)
TABLES = st.sampled_from([TableJoin(b"n:~x:", 1), TableJoin(b"n:~x:", 2), TableJoin(b"n:~y:", 1)])
NAMES, RUNS = (
    st.sampled_from(["billing", "import", "export"]),
    st.sampled_from(["monday", "tuesday", "friday", "sunday"]),
)
TOPICS = st.sampled_from(
    [Join(b"n:x:", 1, 5), Join(b"n:x:", 1, 3), Join(b"n:y:", 2, 4), Join(b"n:y:", 2, 1), Join(b"n:z:", 1, 9)]
)


@dataclass(eq=False)
class Naive:
    """One transaction as the model knows it; it is never forgotten."""

    id: int
    kind: Kind
    deadline_ms: int
    external_writes: bool
    pointers: list[int]
    snapshot: tuple[int, tuple[int, ...], tuple[int, ...], int]
    state: State = State.OPEN
    topics: dict[tuple[bytes, int], int] = field(default_factory=dict)
    tables: set[TableJoin] = field(default_factory=set)
    session: SessionBinding | None = None
    changes: frozenset[bytes] = frozenset()
    unlogged: bool = False  # `changes` is not in the log
    lost: bool = False  # and not in memory any more
    doomed: bool = False
    hidden: bool = False  # its pointers are, or were until they were pruned, on the invalid list
    visible_at: int = 0  # the newest pointer when its commit became visible
    principal: str = ""

    @property
    def cannot_roll_back(self) -> bool:
        return self.external_writes or bool(self.tables)


@dataclass
class NaiveSession:
    """A session as the model knows it."""

    run: str
    epoch: int
    used_ms: int
    version: int | None = None
    counter_owner: str | None = None
    replaced: list[str] = field(default_factory=list)


class TransactionsMatchTheModel(RuleBasedStateMachine):
    limits = LIMITS
    checkpoints_max = topics_max = tables_max = replaced_max = forgotten_max = looked_at_max = expired_max = 1 << 30

    @initialize()
    def start(self):
        self.store = MemoryStore()
        self.table = self.store.table("transaction_log")
        self.log = TransactionLog(self.table, self.limits)
        self.state = self.log.recover()
        self.sessions: dict[str, NaiveSession] = {}
        self.epochs_over: dict[str, set[int]] = {}
        self.now_ms = 1_000_000
        self.all: list[Naive] = []
        self.invalid: set[int] = set()
        self.last = self.read = 0
        self.requests: dict[str, tuple[str, int]] = {}

    # The model.

    def pointer(self) -> int:
        self.last = max(self.last + 1, self.now_ms * 1_000_000)
        return self.last

    def next_principal(self) -> str:
        return ("", "token:etl", "jwt:alice")[len(self.all) % 3]

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
            if other.state is State.COMMITTING or (other.state is State.COMMITTED and other.visible_at >= one.id)
        )

    def end(self, one: Naive, state: State):
        one.state = state
        if state is State.INVALID:
            one.hidden = True
            self.invalid |= set(one.pointers)
        if state is State.COMMITTED:
            one.visible_at = self.last
            self.read = max(self.read, one.pointers[-1])
            session = self.sessions.get(one.session.name) if one.session else None
            if session is not None:
                session.used_ms = max(session.used_ms, self.now_ms)
                versions = [known for known in (session.version, one.session.version) if known is not None]
                session.version = max(versions, default=None)
        if state is State.ABORTED:
            self.invalid -= set(one.pointers)

    def time_out(self, one: Naive):
        if one.cannot_roll_back:
            self.end(one, State.INVALID)
        else:
            self.end(one, State.ABORTING if one.topics else State.ABORTED)

    def covered(self, one: Naive) -> bool:
        """Whether another transaction has committed, or is committing, the version of this one."""
        if one.session is None or one.session.version is None:
            return False
        name, version = one.session.name, one.session.version
        session = self.sessions.get(name)
        committing = [
            other.session.version
            for other in self.all
            if other.state is State.COMMITTING and other.session and other.session.name == name
        ]
        known = [*committing, session.version if session else None]
        return any(other is not None and other >= version for other in known)

    def expected_of_what_is_over(self, one: Naive) -> type[BasaltError]:
        """Whoever was replaced since must not begin again, and is told so."""
        session = None if one.session is None else self.sessions.get(one.session.name)
        replaced = session is not None and session.epoch > one.session.epoch
        return TransactionEndedError if one.state in COMMITS or not replaced else SessionFencedError

    def expected_of_work(self, one: Naive | None) -> type[BasaltError] | None:
        """Why an open transaction may not go on working, if so; a time-out happens on the way."""
        if one is None:
            return TransactionNotFoundError
        if one.state is not State.OPEN:
            return self.expected_of_what_is_over(one)
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
        external_writes=st.booleans(),
    )
    def begin(self, kind: Kind, timeout_ms: int, external_writes: bool):
        self.begun(kind, timeout_ms, external_writes)

    def begun(
        self,
        kind: Kind,
        timeout_ms: int = 10_000,
        external_writes: bool = False,
        session: SessionBinding | None = None,
        unlogged: bool = False,
        named: WorkVersion | None = None,
    ) -> Naive:
        snapshot = (self.read, tuple(self.progress()), tuple(sorted(self.invalid)), self.first_short())
        asked, principal = (kind, timeout_ms, "o", external_writes), self.next_principal()
        if named is not None:
            key = self.call(
                lambda: self.state.sessions.begin_named(self.now_ms, named, *asked, principal), None, edits=True
            )
        else:
            key = self.call(
                lambda: self.state.begin(
                    self.now_ms, *asked, principal=principal, session=session, changes_deferred=unlogged
                ),
                None,
                edits=True,
            )
        one = Naive(self.pointer(), kind, self.now_ms + timeout_ms, external_writes, [], snapshot, session=session)
        one.unlogged, one.principal = unlogged, principal
        one.pointers.append(one.id)
        assert key == one.id
        self.all.append(one)
        return one

    @rule(request_id=st.sampled_from(["r1", "r2", "r3"]), one_shot=st.booleans())
    def repeat_a_request(self, request_id: str, one_shot: bool):
        kind, first = self.requests.get(request_id, ("", 0))
        wanted, principal = "one-shot" if one_shot else "begin", self.next_principal()
        expected = RequestReusedError if first and kind != wanted else None
        snapshot = (self.read, tuple(self.progress()), tuple(sorted(self.invalid)), self.first_short())
        propose = (
            (lambda: self.state.begin_committed(self.now_ms, "o", request_id, principal))
            if one_shot
            else (lambda: self.state.begin(self.now_ms, Kind.SHORT, 10, "o", False, request_id, principal))
        )
        key = self.call(propose, expected, edits=not first)
        if expected is not None:
            return
        if first:
            assert key == first
            return
        one = Naive(self.pointer(), Kind.SHORT, self.now_ms + 10, False, [], snapshot, principal=principal)
        one.pointers.append(one.id)
        self.all.append(one)
        self.requests[request_id] = (wanted, one.id)
        if one_shot:
            self.end(one, State.COMMITTED)
        assert key == one.id

    @rule(number=PICKS)
    def checkpoint(self, number: int):
        self.checkpointed(*self.pick(number))

    def checkpointed(self, one: Naive | None, key: int):
        expected = self.expected_of_work(one)
        if expected is None and len(one.pointers) > self.checkpoints_max:
            expected = TooLargeError
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
        if expected is None and known is None and len(one.topics) >= self.topics_max:
            expected = TooLargeError
        self.call(lambda: self.state.join(key, join, self.now_ms), expected, edits=news)
        if expected is None and news:
            one.topics[join[:2]] = join.from_ms

    @rule(number=PICKS, join=TABLES)
    def join_table(self, number: int, join: TableJoin):
        self.joined_table(*self.pick(number), join)

    def joined_table(self, one: Naive | None, key: int, join: TableJoin):
        expected = self.expected_of_work(one)
        news = one is None or join not in one.tables
        if expected is None and news and len(one.tables) >= self.tables_max:
            expected = TooLargeError
        self.call(lambda: self.state.join_table(key, join, self.now_ms), expected, edits=news)
        if expected is None:
            one.tables.add(join)

    @rule(number=PICKS, changes=KEYS, external_writes=st.booleans())
    def set_changes(self, number: int, changes: frozenset[bytes], external_writes: bool):
        self.changed(*self.pick(number), changes, external_writes)

    def changed(self, one: Naive | None, key: int, changes: frozenset[bytes], external_writes: bool = True):
        expected = self.expected_of_work(one)
        if expected is None:
            one.external_writes = one.external_writes or (external_writes and bool(changes))
            one.unlogged = one.lost = False
            if self.loses(one, changes):
                one.doomed = True
                expected = TransactionConflictError
            elif one.kind is Kind.SHORT:
                one.changes = changes
        self.call(lambda: self.state.set_changes(key, changes, self.now_ms, external_writes=external_writes), expected)

    @rule(kind=st.sampled_from([Kind.SHORT, Kind.SHORT, Kind.LONG]), changes=st.none() | KEYS)
    def begin_with_changes_that_are_not_logged(self, kind: Kind, changes: frozenset[bytes] | None):
        one = self.begun(kind, external_writes=True, unlogged=kind is Kind.SHORT)
        if changes is not None:
            self.told(one, one.id, changes)

    @rule(number=PICKS, changes=KEYS)
    def tell_changes(self, number: int, changes: frozenset[bytes]):
        self.told(*self.pick(number), changes)

    def told(self, one: Naive | None, key: int, changes: frozenset[bytes]):
        usable = one is not None and one.state is State.OPEN and not one.doomed and self.now_ms < one.deadline_ms
        kept = usable and one.unlogged and not self.loses(one, changes)
        assert self.state.may_defer_changes(key, changes, self.now_ms, memory_bytes(changes)) == kept
        if kept:
            one.changes, one.lost = changes, False

    @rule(number=PICKS, inline=st.booleans())
    def commit(self, number: int, inline: bool):
        self.committed(*self.pick(number), inline)

    def committed(self, one: Naive | None, key: int, inline: bool):
        repeated = one is not None and one.state in (State.COMMITTING, State.COMMITTED)
        expected = None if repeated else self.expected_of_work(one)
        if expected is None and not repeated:
            if one.lost:
                expected = ChangesLostError
            elif self.loses(one, one.changes) or self.covered(one):
                one.doomed = True
                expected = TransactionConflictError
            else:
                self.end(one, State.COMMITTED if inline else State.COMMITTING)
        kept = one.changes if one is not None and one.unlogged and not one.lost else None
        commit = lambda: self.state.commit(key, self.now_ms, inline=inline, deferred_changes=kept)  # noqa: E731
        self.call(commit, expected, edits=not repeated)

    @rule(number=PICKS, inline=st.booleans())
    def abort(self, number: int, inline: bool):
        self.aborted(*self.pick(number), inline)

    def aborted(self, one: Naive | None, key: int, inline: bool):
        expected, moves = self.expected_of_end(one), False
        of_a_session = (
            one is not None and one.state is State.OPEN and one.session is not None and not one.external_writes
        )
        undoable = one is not None and not one.tables and (one.kind is Kind.SHORT or of_a_session)
        if expected is None and (one.state is State.OPEN or (one.state is State.INVALID and undoable)):
            moves = True
            if not undoable:
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
        self.given_up(*self.pick(number))

    def given_up(self, one: Naive | None, key: int):
        expected: type[BasaltError] | None = None
        if one is None:
            expected = TransactionNotFoundError
        elif one.state in (State.OPEN, State.COMMITTED):
            expected = TransactionEndedError
        moves = one is not None and one.state is State.COMMITTING
        if moves:
            self.end(one, State.INVALID if one.cannot_roll_back else State.ABORTING)
        self.call(lambda: self.state.give_up(key, self.now_ms), expected, edits=moves)

    # What runs of a session do, zombies among them.

    @rule(name=NAMES, run=RUNS)
    def open_session(self, name: str, run: str):
        self.taken(name, run)
        self.call(lambda: self.state.sessions.open(name, run, self.now_ms), None, edits=True)

    def taken(self, name: str, run: str):
        """The run holds the session."""
        known = self.sessions.get(name)
        by_use = [known.name for known in self.state.sessions.all()][: self.looked_at_max]
        idle = [
            other
            for other in by_use
            if other != name
            and self.sessions[other].used_ms <= self.now_ms - LIMITS.session_ms_max
            and not self.live_in(other)
            and (self.sessions[other].counter_owner is None or self.sessions[other].version is None)
        ]
        for other in idle[: self.forgotten_max]:
            self.forget(other)
        if known is None:
            known = self.sessions[name] = NaiveSession(run, 1 + self.epoch_over(), self.now_ms)
        elif known.run != run:
            replaced = [other for other in known.replaced if other != run] + [known.run]
            known.replaced = replaced[-self.replaced_max :]
            known.run, known.epoch = run, known.epoch + 1
            self.end_all_in(name)
        known.used_ms = self.now_ms

    @rule(
        name=NAMES,
        run=RUNS,
        version=st.integers(0, 4),
        counter_owner=st.sampled_from([None, None, "a", "b"]),
        kind=st.sampled_from([Kind.SHORT, Kind.LONG]),
        external_writes=st.booleans(),
    )
    def begin_by_name(
        self, name: str, run: str, version: int, counter_owner: str | None, kind: Kind, external_writes: bool
    ):
        """A process of a run begins; of one that was replaced, or of another counter owner, too."""
        named, known = WorkVersion(name, run, version, counter_owner), self.sessions.get(name)
        refused = None if known is None else self.refused_by_name(known, named)
        if refused is not None:
            self.call(lambda: Proposal((), int(self.state.sessions.done_before(named) is None)), refused)
            return
        done = self.state.sessions.done_before(named)
        assert (done is not None) == (known is not None and known.version is not None and version <= known.version)
        if done is not None:
            return
        joined = None if known is None or known.run != run else self.joinable(name, version)
        claims = counter_owner is not None and (known is None or known.counter_owner != counter_owner)
        if joined is None:
            if known is None or known.run != run:
                self.taken(name, run)
            known = self.sessions[name]
            at = SessionBinding(name, known.epoch, version)
            self.begun(kind, 10_000 if kind is Kind.SHORT else 20_000, external_writes, at, named=named)
            known.used_ms = max(known.used_ms, self.now_ms)
        else:
            key = self.call(
                lambda: self.state.sessions.begin_named(self.now_ms, named, kind, 1, "o", external_writes),
                None,
                edits=claims,
            )
            assert key == joined.id
        if claims:
            self.sessions[name].counter_owner = counter_owner

    def refused_by_name(self, known: NaiveSession, named: WorkVersion) -> type[BasaltError] | None:
        if named.run in known.replaced:
            return SessionFencedError
        counted = known.version is not None or (known.run == named.run and known.counter_owner is not None)
        return SessionForeignError if counted and named.counter_owner not in (None, known.counter_owner) else None

    def joinable(self, name: str, version: int) -> Naive | None:
        for one in self.live_in(name):
            usable = one.state is State.OPEN and not one.doomed and self.now_ms < one.deadline_ms
            if one.session.version == version and usable:
                return one
        return None

    @rule(name=NAMES)
    def delete_session(self, name: str):
        known = name in self.sessions
        if known:
            self.end_all_in(name)
            self.forget(name)
        self.call(lambda: self.state.sessions.delete(name, self.now_ms), None if known else SessionNotFoundError)

    @rule(name=NAMES, behind=st.sampled_from([0, 0, 0, 1, 2, -1]), version=st.none() | st.integers(0, 4))
    def begin_in_a_session(self, name: str, behind: int, version: int | None):
        """A run begins, or a zombie of some epoch before; or one who took an epoch out of the air."""
        known = self.sessions.get(name)
        session = SessionBinding(name, max(1, (known.epoch if known else 1) - behind), version)
        expected: type[BasaltError] | None = None
        if known is None or session.epoch > known.epoch:
            expected = SessionNotFoundError
        elif session.epoch < known.epoch:
            expected = SessionFencedError
        if expected is not None:
            for refused in (
                lambda: self.state.begin(self.now_ms, session=session),
                lambda: Proposal((), int(self.state.sessions.is_done(session))),
            ):
                self.call(refused, expected)
            return
        done = version is not None and known.version is not None and version <= known.version
        assert self.state.sessions.is_done(session) == done
        if not done:
            self.begun(Kind.SHORT, session=session)
            known.used_ms = max(known.used_ms, self.now_ms)

    def live_in(self, name: str) -> list[Naive]:
        return [one for one in self.all if one.state in LIVE and one.session and one.session.name == name]

    def end_all_in(self, name: str):
        for one in self.live_in(name):
            if one.state is State.OPEN:
                self.time_out(one)

    def epoch_over(self) -> int:
        return max((epoch for epochs in self.epochs_over.values() for epoch in epochs), default=0)

    def forget(self, name: str):
        self.epochs_over.setdefault(name, set()).add(self.sessions.pop(name).epoch)

    # What chance alone would seldom bring about.

    @rule(versions=st.sampled_from([(3, 3), (2, 3), (3, 2)]), inline=st.booleans(), hand_over=st.booleans())
    def two_of_one_session_meet(self, versions: tuple[int, int], inline: bool, hand_over: bool):
        self.open_session("billing", "monday")
        at = self.sessions["billing"].epoch
        if (self.sessions["billing"].version or 0) >= 2:
            self.delete_session("billing")
            self.open_session("billing", "monday")
            at = self.sessions["billing"].epoch
        pair = [self.begun(Kind.SHORT, session=SessionBinding("billing", at, version)) for version in versions]
        if hand_over:
            self.open_session("billing", "tuesday")
        for one in pair:
            self.committed(one, one.id, inline)

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
            self.end(one, State.INVALID)
            self.call(lambda: self.state.give_up(one.id, self.now_ms), None, edits=True)
        self.changed(other, other.id, frozenset([b"a"]))

    @rule(join=TABLES, how=st.sampled_from(["abort", "expire", "give up", "commit"]), inline=st.booleans())
    def a_writer_of_cells_ends(self, join: TableJoin, how: str, inline: bool):
        one = self.begun(Kind.SHORT, timeout_ms=5)
        self.joined(one, one.id, Join(b"n:x:", 1, 5))
        self.joined_table(one, one.id, join)
        if how == "expire":
            self.now_ms += 5
            self.expire()
        elif how == "give up":
            self.committed(one, one.id, False)
            self.given_up(one, one.id)
        elif how == "commit":
            self.committed(one, one.id, inline)
        self.aborted(one, one.id, inline)

    @rule(joins=st.lists(TOPICS, min_size=4, max_size=6), tables=st.lists(TABLES, min_size=3, max_size=3))
    def a_transaction_takes_all_it_can(self, joins: list[Join], tables: list[TableJoin]):
        one = self.begun(Kind.SHORT)
        for join in joins:
            self.joined(one, one.id, join)
        for table in tables:
            self.joined_table(one, one.id, table)
        for _ in range(3):
            self.checkpointed(one, one.id)

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
        for _ in range(0, len(due), self.expired_max):
            self.call(lambda: self.state.expire(self.now_ms), None, edits=True)
        self.call(lambda: self.state.expire(self.now_ms), None, edits=False)

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

    @rule()
    def restore(self):
        """Pointers that were pruned come back with a copy of a table."""
        pruned = [p for one in self.all if one.state is State.INVALID for p in one.pointers if p not in self.invalid]
        if pruned:
            self.done(Proposal((Restored(tuple(sorted(pruned))),)))
            self.invalid |= set(pruned)

    @precondition(lambda self: len(self.all) > 6)
    @rule()
    def reset(self):
        self.call(lambda: self.state.reset(self.now_ms), None, edits=True)
        for name in [*self.sessions]:
            self.forget(name)
        self.all.clear()
        self.invalid.clear()
        self.requests.clear()

    @rule(duration_ms=st.integers(1, 5))
    def time_passes(self, duration_ms: int):
        self.now_ms += duration_ms

    @rule(step_ms=st.sampled_from([-200, -7, 90, 9_000]))
    def the_clock_steps(self, step_ms: int):
        self.now_ms += step_ms

    @rule(written=st.integers(0, 3))
    def the_log_is_snapshot_and_a_crash_may_cut_it_short(self, written: int):
        self.table.write(snapshot_mutations(self.log.draft(self.state))[:written])

    @rule()
    def the_process_crashes(self):
        before = self.state.image()
        self.log = TransactionLog(self.table, self.limits)
        self.read_the_log()
        assert self.state.image() == before

    def read_the_log(self):
        self.state = self.log.recover()
        for one in self.all:
            one.lost = one.unlogged

    @rule()
    def a_write_fails(self):
        """What was encoded and not written is forgotten by recovery, and its numbers are used again."""
        before = self.state.image()
        proposal = self.state.begin(self.now_ms)
        self.log.encode_next(proposal.edits)
        self.state.apply(proposal.edits[0])
        self.read_the_log()
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
            assert self.state.outcome(one.id).principal == one.principal
        live = [one for one in self.all if one.state in LIVE]
        assert [found.id for found in self.state.transactions()] == [one.id for one in live]
        for one in live:
            found = self.state.get(one.id)
            assert list(found.pointers) == one.pointers
            assert {owner.principal for owner in map(self.state.belonging, one.pointers)} == {one.principal}
            assert {join[:2]: join.from_ms for join in found.topics} == one.topics
            assert set(found.tables) == one.tables
            assert found.was_invalid or found.session == one.session
            if not found.was_invalid:
                seen = (found.read_pointer, found.in_progress, found.invalid.pointers, found.first_short)
                assert seen == one.snapshot
                assert found.external_writes == one.external_writes
        decided = [one.id for one in live if one.state is not State.OPEN]
        assert [found.id for found in self.state.unfinished()] == decided
        deadlines = [one.deadline_ms for one in live if one.state is State.OPEN]
        assert self.state.next_deadline_ms() == min(deadlines, default=None)

    @invariant()
    def every_session_stands_where_the_model_says(self):
        found = {
            one.name: (one.run, one.epoch, one.version, one.used_ms, one.counter_owner, list(one.replaced))
            for one in self.state.sessions.all()
        }
        assert found == {
            name: (one.run, one.epoch, one.version, one.used_ms, one.counter_owner, one.replaced)
            for name, one in self.sessions.items()
        }
        for name in found:
            assert [one.id for one in self.state.sessions.transactions(name)] == [
                one.id for one in self.live_in(name) if not one.hidden
            ]

    @invariant()
    def nobody_of_an_older_epoch_is_open(self):
        for one in self.all:
            if one.state is State.OPEN and one.session is not None:
                assert self.sessions[one.session.name].epoch == one.session.epoch

    @invariant()
    def of_one_version_one_commit_is_visible(self):
        committed = [one.session for one in self.all if one.state is State.COMMITTED and one.session is not None]
        for name in self.sessions:
            since = max(self.epochs_over.get(name, ()), default=0)  # what a deleted session has committed is forgotten
            versions = [one.version for one in committed if one.name == name and one.epoch > since]
            counted = [version for version in versions if version is not None]
            assert len(counted) == len(set(counted))

    @invariant()
    def a_writer_of_cells_is_never_undone(self):
        assert not [one for one in self.all if one.tables and one.state in (State.ABORTING, State.ABORTED)]

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
TestTransactionsMatchTheModel.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


class MatchAcrossLimits(TransactionsMatchTheModel):
    """The same where everything that is kept together has room for two or three: nothing is forgotten, only kept otherwise."""

    limits = replace(LIMITS, outcomes_max=2)
    checkpoints_max = topics_max = tables_max = replaced_max = looked_at_max = expired_max = 2
    forgotten_max = 1
    small = (
        (outcomes, {"BLOCK_OUTCOMES": 2}),
        (session_rules, {"FORGOTTEN_MAX": forgotten_max, "IDLE_LOOKED_AT_MAX": looked_at_max}),
        (sessions, {"REPLACED_RUNS_MAX": replaced_max}),
        (transaction, {"CHUNK_POINTERS_MAX": 2}),
        (
            transaction_proposals,
            {
                "CHECKPOINTS_MAX": checkpoints_max,
                "EXPIRED_MAX": expired_max,
                "TOPICS_MAX": topics_max,
                "TABLES_MAX": tables_max,
            },
        ),
        (outcomes, {"PACKED_TOGETHER": 3}),
        (snapshot_format, {"PIECE_BYTES_MIN": 3}),
        (transaction_log, {"PART_BYTES_MAX": 64, "SEGMENT_ENTRIES": 3}),
    )

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        for module, values in self.small:
            for name, value in values.items():
                self.patches.enter_context(patch.object(module, name, value))

    def teardown(self) -> None:
        self.patches.close()


TestMatchAcrossLimits = MatchAcrossLimits.TestCase
TestMatchAcrossLimits.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
