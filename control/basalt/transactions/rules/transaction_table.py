"""The state of all transactions, and the change that each edit makes to it. Only `TransactionTable.apply` writes it.
Which event a state of one transaction allows stands in `transaction.TRANSITIONS`.

Costs: an edit costs neither the length of the invalid list nor, but for copying a few hundred pointers, the number of
transactions in progress. Only edits that change the invalid list copy it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.conflicts import CommittedChanges, CommittedSet, memory_bytes
from basalt.transactions.rules.edits import Edit, Proposal
from basalt.transactions.rules.groups import GroupState, GroupTable, PendingSpans
from basalt.transactions.rules.history import Items
from basalt.transactions.rules.loans import LoanImage, LoanTable, OneShotsInFlight
from basalt.transactions.rules.outcomes import (
    Memory,
    Outcome,
    OutcomeMemory,
    RememberedOutcomes,
    RequestCall,
    RequestUse,
)
from basalt.transactions.rules.sessions import PrincipalCounts, SessionState, SessionTable
from basalt.transactions.rules.transaction import (
    NO_SHORT,
    Belonging,
    Event,
    Join,
    Kind,
    PointerSet,
    SessionBinding,
    State,
    Transaction,
    TransactionLimits,
    check_owner,
    checked_timeout_ms,
    next_pointer,
    step,
)
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import NO_INVALID, InvalidList, PointerRuns, TransactionSnapshot

ENDED_CHECKPOINTS_MAX = 10_000  # all of one transaction's, at least: their writers hear of its end; 0.1 KiB each


class StateImage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state as one immutable value: what a log snapshot holds and two states compare by.

    It is the state after `edits_applied` edits since the log began.

    `leader_epoch` is that of the newest leader, 0 where there was never but one server. `transactions` ascend by id;
    `committed` and `requests` are oldest first, `sessions` by their last use,
    `groups` by number, which are not to be changed, and `acknowledging` by transaction.
    `session_epoch_over` is the highest epoch of a forgotten session. `invalid_version` is that of `invalid`, named apart because two lists of equal
    pointers count as equal.
    """

    edits_applied: int = 0
    last_pointer: int = 0
    read_pointer: int = 0
    leader_epoch: int = 0
    invalid: InvalidList = NO_INVALID
    invalid_version: int = 0
    transactions: tuple[Transaction, ...] = ()
    committed: Items[CommittedSet] = ()
    outcomes: RememberedOutcomes = RememberedOutcomes()
    requests: Items[RequestUse] = ()
    session_epoch_over: int = 0
    sessions: tuple[SessionState, ...] = ()
    loans: tuple[LoanImage, ...] = ()
    groups_made: int = 0
    groups: tuple[GroupState, ...] = ()
    acknowledging: tuple[PendingSpans, ...] = ()


class TransactionTable:
    """All transactions that have not ended, and what is remembered of those that have."""

    def __init__(self, limits: TransactionLimits, image: StateImage | None = None) -> None:
        self.limits = limits
        self.in_flight = OneShotsInFlight()  # no part of the state that the log makes
        self._start(image or StateImage())

    def _start(self, image: StateImage) -> None:
        self.edits_applied = image.edits_applied
        self.last_pointer = image.last_pointer
        self.read_pointer = image.read_pointer
        self.leader_epoch = image.leader_epoch
        self.invalid = image.invalid
        self.by_id = {transaction.id: transaction for transaction in image.transactions}
        self.open_of = PrincipalCounts(transaction.principal for transaction in image.transactions)  # those in `by_id`
        self.conflicts = CommittedChanges()
        self.deadlines = Deadlines()
        self.outcomes = OutcomeMemory(self.limits, image.outcomes)
        self.requests = Memory(self.limits.requests_max, self.limits.memory_ms_max, image.requests)
        self.in_progress = PointerSet()
        self._shorts: deque[int] = deque()  # ids of short transactions as they began; the first is still in progress
        self._checkpoints: dict[int, int] = {}  # the transaction of each checkpoint pointer
        # The same of transactions that ended, the newest of them, since this process began: those that belong to somebody, for that
        # may be asked for again, and those of sessions that did not commit.
        self._ended_checkpoints: dict[int, int] = {}
        self._unfinished: set[int] = set()  # ids of those whose end is decided: few among thousands of open ones
        self._for_one_shots: set[int] = set()  # ids of those that were begun for one-shot transactions: likewise
        self._change_bytes: dict[int, int] = {}  # what the change set of each transaction in progress takes
        self._open_changes_bytes = 0  # all of them
        self._view: TransactionSnapshot | None = None
        self._flat: tuple[PointerSet, tuple[int, ...]] = (self.in_progress, ())
        self.session_table = SessionTable(image.sessions, image.session_epoch_over)
        self.last_one_shot = 0  # the one that the last edit about one-shot transactions has committed
        self.loans = LoanTable(image.loans)
        self.groups = self._group_table(image)
        self._apply = self._appliers()
        self._index(image)

    def _appliers(self) -> dict[type, Callable[[Any], None]]:
        """Methods that make each kind of edit true; anew with the tables of a new state."""
        groups = self.groups
        return {
            edits.Began: self._began,
            edits.Owned: self._owned,
            edits.Checkpointed: self._checkpointed,
            edits.Joined: self._joined,
            edits.Changed: self._changed,
            edits.Doomed: self._doomed,
            edits.Committing: self._committing,
            edits.Committed: self._committed,
            edits.Aborting: self._aborting,
            edits.Aborted: self._aborted,
            edits.Invalidated: self._invalidated,
            edits.OneShot: self._one_shot,
            edits.Pruned: self._pruned,
            edits.Truncated: self._truncated,
            edits.Led: self._led,
            edits.Restored: self._restored,
            edits.Reset: self._reset,
            edits.TableJoined: self._table_joined,
            edits.SessionOpened: self._session_opened,
            edits.SessionBegan: self._session_began,
            edits.SessionsForgotten: self._sessions_forgotten,
            edits.CounterOwnerClaimed: self.session_table.claimed,
            edits.ChangesUnlogged: self._changes_unlogged,
            edits.ForOneShot: self._for_one_shot,
            edits.Lent: self._lent,
            edits.LoanReturned: self._loan_returned,
            edits.GivenUp: self._given_up,
            edits.MemberEnded: self._member_ended,
            edits.GroupMade: groups.made,
            edits.GroupChanged: groups.options_changed,
            edits.GroupSought: groups.sought,
            edits.GroupsForgotten: groups.forgotten,
            edits.Acknowledged: self._acknowledged,
            edits.AcknowledgedIn: self._acknowledged_in,
            edits.Returned: groups.returned,
        }

    def _group_table(self, image: StateImage) -> GroupTable:
        return GroupTable(image.groups_made, image.groups, image.acknowledging)

    def _index(self, image: StateImage) -> None:
        pointers: list[int] = []
        for committed in image.committed:
            self.conflicts.show(committed, memory_bytes(committed.changes))
        for transaction in image.transactions:
            if transaction.session is not None:
                self.session_table.entered(transaction.session.name, transaction.id)
            if transaction.changes:
                self._change_bytes[transaction.id] = memory_bytes(transaction.changes)
                self._open_changes_bytes += self._change_bytes[transaction.id]
            if transaction.state is not State.OPEN:
                self._unfinished.add(transaction.id)
            if transaction.for_one_shot:
                self._for_one_shots.add(transaction.id)
            if transaction.was_invalid:
                continue
            pointers += transaction.pointers
            self._checkpoints |= dict.fromkeys(transaction.checkpoints, transaction.id)
            if transaction.kind is Kind.SHORT:
                self._shorts.append(transaction.id)
            if transaction.state is State.OPEN:
                self.deadlines.add(transaction.id, transaction.deadline_ms)
            if transaction.state is State.COMMITTING and transaction.changes:
                self.conflicts.reserve(transaction.id, transaction.owner, transaction.changes)
        self.in_progress = PointerSet.of(pointers)

    def image(self) -> StateImage:
        """The whole state as an immutable value; costs a shallow copy, so that it can be encoded elsewhere."""
        return StateImage(
            edits_applied=self.edits_applied,
            last_pointer=self.last_pointer,
            read_pointer=self.read_pointer,
            leader_epoch=self.leader_epoch,
            invalid=self.invalid,
            invalid_version=self.invalid.version,
            transactions=tuple(map(self.by_id.__getitem__, sorted(self.by_id))),
            committed=self.conflicts.visible(),
            outcomes=self.outcomes.remembered(),
            requests=self.requests.entries(),
            session_epoch_over=self.session_table.epoch_over,
            sessions=tuple(self.session_table),
            loans=self.loans.image(),
            groups_made=self.groups.groups_made,
            groups=self.groups.images(),
            acknowledging=self.groups.pending_images(),
        )

    def view(self) -> TransactionSnapshot:
        """The snapshot for a reader without a transaction; made anew only after it changed."""
        if self._view is None:
            if self._flat[0] is not self.in_progress:
                self._flat = (self.in_progress, self.in_progress.as_tuple())
            runs = self.loans.in_progress
            self._view = TransactionSnapshot(
                self.read_pointer, in_progress=self._flat[1], invalid=self.invalid, in_progress_runs=runs
            )
        return self._view

    def visibility_upper_bound(self) -> int:
        """The pointer up to which every present and coming reader sees all that was committed."""
        # A reader sees all up to its read pointer but what was in progress when it began. This is about cells, and nobody writes one under
        # a pointer of a loan. An invalid transaction that is aborted after all has no snapshot any more, and reads nothing.
        readers = [(self.read_pointer, self.in_progress.first)]
        readers += [
            (transaction.read_pointer, transaction.concurrent.first)
            for transaction in self.by_id.values()
            if not transaction.was_invalid
        ]
        return min(read_pointer if first is None else min(read_pointer, first - 1) for read_pointer, first in readers)

    @property
    def change_memory_bytes(self) -> int:
        """The memory of all change sets: of transactions in progress, and of committed ones that may still clash."""
        return self._open_changes_bytes + self.conflicts.memory_bytes

    def check_room(self, ending: int = 0) -> None:
        """`BusyError` when no further write pointer may be in progress. `ending`: the number of them that are about to end."""
        if len(self.in_progress) - ending >= self.limits.in_progress_max:
            raise refusals.too_many(len(self.in_progress), self.limits.in_progress_max, self.oldest)

    def check_change_memory(self, added_bytes: int) -> None:
        """`BusyError` when there is no room for these bytes in change sets."""
        held_bytes, maximum = self.change_memory_bytes, self.limits.change_memory_bytes_max
        if added_bytes > 0 and held_bytes + added_bytes > maximum:
            oldest = self.by_id[self._shorts[0]] if self._shorts else None
            raise refusals.too_many_changes(held_bytes, added_bytes, maximum, oldest)

    @property
    def in_progress_count(self) -> int:
        return len(self.in_progress)

    def propose_begin(
        self, now_ms: int, kind: Kind, timeout_ms: int | None, owner: str, external_writes: bool, request_id: str | None,
        session: SessionBinding | None, principal: str = "",
    ) -> Proposal:  # fmt: skip
        """A new transaction, for a client, or a run by the name of its session. Check for room first.

        `InputError` for a bad time-out or owner.
        """
        check_owner(owner)
        timeout_ms = checked_timeout_ms(self.limits, kind, timeout_ms)
        pointer = next_pointer(self.last_pointer, now_ms)
        began = edits.Began(pointer, kind, external_writes, now_ms, now_ms + timeout_ms, owner, request_id)
        made: tuple[Edit, ...] = (began, edits.Owned(pointer, principal)) if principal else (began,)
        return Proposal(made if session is None else (*made, edits.SessionBegan(pointer, session)), pointer)

    def belonging(self, write_pointer: int) -> Belonging | None:
        """Whose the transaction with this write pointer is, or was; None where nothing is known of it."""
        transaction = self.by_id.get(self._checkpoints.get(write_pointer, write_pointer))
        if transaction is not None:
            return transaction.belonging
        outcome = self.outcomes.get(self._ended_checkpoints.get(write_pointer, write_pointer))
        return None if outcome is None else outcome.belonging

    @property
    def oldest(self) -> Transaction | None:
        first = self.in_progress.first
        return None if first is None else self.by_id[first]

    @property
    def first_short(self) -> int:
        """The oldest short transaction in progress, or `NO_SHORT`."""
        return self._shorts[0] if self._shorts else NO_SHORT

    def transactions(self, *states: State) -> list[Transaction]:
        """The transactions that have not ended (in these states, if any are given), oldest first."""
        found = [transaction for transaction in self.by_id.values() if not states or transaction.state in states]
        return sorted(found, key=lambda transaction: transaction.id)

    def unfinished(self) -> list[Transaction]:
        """The transactions that are COMMITTING or ABORTING, oldest first; costs their number."""
        return [self.by_id[key] for key in sorted(self._unfinished)]

    def begun_for_one_shots(self) -> list[Transaction]:
        """The open transactions that were begun for one-shot transactions, oldest first; costs their number.

        One in which somebody who found its id wrote cells ends when its time is up: as invalid.
        """
        found = [self.by_id[key] for key in sorted(self._for_one_shots)]
        return [each for each in found if each.state is State.OPEN and not each.cannot_roll_back]

    def apply(self, edit: Edit) -> None:
        """Make the edit true. `CorruptionError`, and nothing changed, when the state does not allow it."""
        self._apply[type(edit)](edit)
        self.edits_applied += 1

    def apply_more(self, edit: Edit) -> None:
        """Make true what comes to an edit that is applied already, and is logged as one with it."""
        self._apply[type(edit)](edit)

    def _began(self, edit: edits.Began) -> None:
        self._advance(edit.id)
        self.by_id[edit.id] = Transaction(
            id=edit.id, kind=edit.kind, read_pointer=self.read_pointer, began_ms=edit.began_ms,
            deadline_ms=edit.deadline_ms, owner=edit.owner, external_writes=edit.external_writes, request_id=edit.request_id,
            concurrent=self.in_progress, concurrent_runs=self.loans.in_progress, invalid=self.invalid, first_short=self.first_short,
        )  # fmt: skip
        self.open_of.move(None, "")
        self.in_progress = self.in_progress.with_added(edit.id)
        self.deadlines.add(edit.id, edit.deadline_ms)
        if edit.kind is Kind.SHORT:
            self._shorts.append(edit.id)
        self._remember(edit.request_id, RequestCall.BEGIN, edit.id, edit.began_ms)
        self._view = None

    def _owned(self, edit: edits.Owned) -> None:
        transaction = self.by_id.get(edit.id)
        began: Transaction | Outcome | None = self.outcomes.get(edit.id) if transaction is None else transaction
        newest = edit.id in (self.last_pointer, self.last_one_shot)
        if began is None or began.principal or not edit.principal or not newest:
            raise CorruptionError(f"transaction {edit.id} gets an owner, and did not just begin, or has one")
        principal = sys.intern(edit.principal)  # of a hundred thousand transactions few differ
        if isinstance(began, Transaction):
            self.by_id[edit.id] = replace(began, principal=principal)
            self.open_of.move("", principal)
        else:
            self.outcomes.put(replace(began, principal=principal))

    def _checkpointed(self, edit: edits.Checkpointed) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.CHECKPOINT)
        self._advance(edit.write_pointer)
        self.by_id[edit.id] = replace(transaction, checkpoints=(*transaction.checkpoints, edit.write_pointer))
        self.in_progress = self.in_progress.with_added(edit.write_pointer)
        self._checkpoints[edit.write_pointer] = edit.id
        self._view = None

    def _joined(self, edit: edits.Joined) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.JOIN)
        topic, generation, from_ms = edit.join
        others = []
        for join in transaction.topics:
            if (join.topic, join.generation) == (topic, generation):
                from_ms = min(from_ms, join.from_ms)
            else:
                others.append(join)
        self.by_id[edit.id] = replace(transaction, topics=(*others, Join(topic, generation, from_ms)))

    def _table_joined(self, edit: edits.TableJoined) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.JOIN)
        if edit.join in transaction.tables:
            raise CorruptionError(f"transaction {edit.id} joins table {edit.join.table!r} a second time")
        self.by_id[edit.id] = replace(transaction, tables=(*transaction.tables, edit.join))

    def _changed(self, edit: edits.Changed) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.CHANGE)
        size_bytes = memory_bytes(edit.changes)
        self._open_changes_bytes += size_bytes - self._change_bytes.get(edit.id, 0)
        self._change_bytes[edit.id] = size_bytes
        self.by_id[edit.id] = replace(
            transaction, changes=edit.changes, external_writes=edit.external_writes, changes_unlogged=False
        )

    def _changes_unlogged(self, edit: edits.ChangesUnlogged) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.CHANGE)
        self.by_id[edit.id] = replace(transaction, changes_unlogged=True)

    def _for_one_shot(self, edit: edits.ForOneShot) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.CHANGE)
        if edit.id != self.last_pointer or transaction.for_one_shot:
            raise CorruptionError(f"transaction {edit.id} is to be a one-shot one, and did not just begin, or is one")
        self.by_id[edit.id] = replace(transaction, for_one_shot=True)
        self._for_one_shots.add(edit.id)

    def _doomed(self, edit: edits.Doomed) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.LOSE)
        self.by_id[edit.id] = replace(transaction, doomed=edit.loss)
        self._remember(edit.request_id, RequestCall.COMMIT, edit.id, edit.at_ms)

    def _committing(self, edit: edits.Committing) -> None:
        transaction = self._moved(edit.id, State.COMMITTING, Event.COMMIT)
        self.by_id[edit.id] = replace(transaction, state=State.COMMITTING)
        self._unfinished.add(edit.id)
        self.deadlines.remove(edit.id)
        if transaction.changes and transaction.kind is Kind.SHORT:
            self.conflicts.reserve(edit.id, transaction.owner, transaction.changes)
        self._remember(edit.request_id, RequestCall.COMMIT, edit.id, edit.at_ms)

    def _committed(self, edit: edits.Committed) -> None:
        transaction = self._moved(edit.id, State.COMMITTED, Event.COMMIT_INLINE, Event.FINISH)
        if transaction.changes and transaction.kind is Kind.SHORT:
            seen_from = self.last_pointer + 1  # whoever begins next
            committed = CommittedSet(edit.id, transaction.owner, seen_from, transaction.changes)
            self.conflicts.show(committed, self._change_bytes[edit.id])
        self.read_pointer = max(self.read_pointer, transaction.write_pointer)
        # The request of a commit comes with its intent, if it has one; that of a one-shot transaction over several owners only now.
        call = RequestCall.ONE_SHOT if transaction.state is State.COMMITTING else RequestCall.COMMIT
        self._remember(edit.request_id, call, edit.id, edit.ended_ms)
        if transaction.session is not None:
            self.session_table.committed(transaction.session, transaction.id, edit.ended_ms)
        self.groups.committed(edit.id, edit.ended_ms)
        self._leave(transaction, State.COMMITTED, edit.ended_ms, timed_out=False)

    def _aborting(self, edit: edits.Aborting) -> None:
        transaction = self._undone(self._moved(edit.id, State.ABORTING, Event.ABORT, Event.GIVE_UP))
        if transaction.state is State.COMMITTING and transaction.changes:
            self.conflicts.release(edit.id, transaction.changes)
        self.groups.dropped(edit.id)
        if edit.id not in self.by_id:
            self.open_of.move(None, transaction.principal)  # it was invalid
        timed_out = edit.timed_out or transaction.timed_out
        self.by_id[edit.id] = replace(transaction, state=State.ABORTING, timed_out=timed_out)
        self._unfinished.add(edit.id)
        self.deadlines.remove(edit.id)

    def _aborted(self, edit: edits.Aborted) -> None:
        transaction = self._undone(self._moved(edit.id, State.ABORTED, Event.ABORT_INLINE, Event.FINISH))
        if any(pointer in self.invalid for pointer in transaction.pointers):
            self.invalid = self.invalid.without(transaction.pointers)
        self._leave(transaction, State.ABORTED, edit.ended_ms, edit.timed_out or transaction.timed_out)

    def _invalidated(self, edit: edits.Invalidated) -> None:
        moved = [self._moved(key, State.INVALID, Event.INVALIDATE, Event.GIVE_UP_HIDDEN) for key in edit.ids]
        for transaction in moved:
            if transaction.state is State.COMMITTING and transaction.changes:
                self.conflicts.release(transaction.id, transaction.changes)
        fresh = [pointer for transaction in moved for pointer in transaction.pointers if pointer not in self.invalid]
        if fresh:
            self.invalid = self.invalid.with_added(fresh)
        for transaction in moved:
            self._leave(transaction, State.INVALID, edit.ended_ms, edit.timed_out or transaction.timed_out)

    def _one_shot(self, edit: edits.OneShot) -> None:
        if not self.loans.decided(edit.id):
            self._advance(edit.id)
        self.outcomes.put(Outcome(edit.id, edit.id, State.COMMITTED, Kind.SHORT, edit.owner, edit.ended_ms))
        self.read_pointer = max(self.read_pointer, edit.id)
        self.last_one_shot = edit.id
        self._remember(edit.request_id, RequestCall.ONE_SHOT, edit.id, edit.ended_ms)
        self._view = None

    def _lent(self, edit: edits.Lent) -> None:
        self.loans.lent(edit, self.last_pointer)
        self.last_pointer, self._view = edit.last, None

    def _loan_returned(self, edit: edits.LoanReturned) -> None:
        self.loans.returned(edit)
        self._view = None

    def _given_up(self, edit: edits.GivenUp) -> None:
        self._relist(self.invalid.with_added(runs=self.loans.given_up(edit)))

    def _member_ended(self, edit: edits.MemberEnded) -> None:
        self._relist(self.invalid.with_added(runs=self.loans.member_ended(edit)))

    def _pruned(self, edit: edits.Pruned) -> None:
        self._relist(self.invalid.without(edit.pointers, edit.runs))

    def _truncated(self, edit: edits.Truncated) -> None:
        self._relist(self.invalid.without(runs=PointerRuns(((0, max(edit.before - 1, 0)),))))

    def _restored(self, edit: edits.Restored) -> None:
        self._relist(self.invalid.with_added(edit.pointers, edit.runs))

    def _session_opened(self, edit: edits.SessionOpened) -> None:
        self.session_table.opened(edit, self._is_open(edit.name))

    def _sessions_forgotten(self, edit: edits.SessionsForgotten) -> None:
        self.session_table.forgotten(edit, map(self._is_open, edit.names))

    def _acknowledged(self, edit: edits.Acknowledged) -> None:
        self.groups.acknowledged(edit, self.last_one_shot)

    def _acknowledged_in(self, edit: edits.AcknowledgedIn) -> None:
        self.groups.acknowledged_in(edit, self.by_id.get(edit.id))

    def _relist(self, invalid: InvalidList) -> None:
        self.invalid, self._view = invalid, None

    def _led(self, edit: edits.Led) -> None:
        if edit.epoch <= self.leader_epoch:
            raise CorruptionError(f"epoch {edit.epoch} comes after epoch {self.leader_epoch}")
        self.leader_epoch = edit.epoch

    def _reset(self, edit: edits.Reset) -> None:
        kept = StateImage(
            edits_applied=self.edits_applied,
            last_pointer=self.last_pointer,
            read_pointer=self.read_pointer,
            leader_epoch=self.leader_epoch,
            invalid=InvalidList((), self.invalid.version + 1),
            session_epoch_over=max([self.session_table.epoch_over, *(session.epoch for session in self.session_table)]),
            loans=self.loans.image(),
            groups_made=self.groups.groups_made,
        )
        self._start(kept)

    def _session_began(self, edit: edits.SessionBegan) -> None:
        transaction = self._moved(edit.id, State.OPEN, Event.JOIN)
        known = self.session_table.get(edit.session.name)
        if transaction.session is not None or known is None or known.epoch != edit.session.epoch:
            raise CorruptionError(f"transaction {edit.id} began in session {edit.session.name!r}, where it cannot")
        self.by_id[edit.id] = transaction = replace(transaction, session=edit.session)
        self.session_table.began(edit, transaction)

    def _is_open(self, session: str) -> bool:
        """True when the session has an open transaction, which may still commit by a call of its client."""
        return any(self.by_id[key].state is State.OPEN for key in self.session_table.open_in(session))

    def _advance(self, pointer: int) -> None:
        if pointer <= self.last_pointer:
            raise CorruptionError(f"write pointer {pointer} does not follow {self.last_pointer}: they only rise")
        self.last_pointer = pointer

    def _moved(self, transaction_id: int, becomes: State, *events: Event) -> Transaction:
        """The transaction, if one of the events takes it from where it is to `becomes`."""
        transaction = self.by_id.get(transaction_id) or self._revived(transaction_id)
        if transaction is None:
            raise CorruptionError(f"an edit is about transaction {transaction_id}, which is not in progress")
        for event in events:
            if step(transaction.state, event) is becomes and (
                transaction.state is not becomes or becomes is State.OPEN
            ):
                return transaction
        raise CorruptionError(
            f"an edit makes transaction {transaction_id} {becomes.name}, which it cannot be: it is {transaction.state.name}"
        )

    def _undone(self, transaction: Transaction) -> Transaction:
        """The transaction, if what it did can be undone: cells cannot."""
        if transaction.tables:
            raise CorruptionError(
                f"an edit aborts transaction {transaction.id}, which has cells: it can only be hidden"
            )
        return transaction

    def _revived(self, transaction_id: int) -> Transaction | None:
        """An invalid transaction, with what is left to know of it, for the abort that takes it off the invalid list."""
        outcome = self.outcomes.get(transaction_id)
        return None if outcome is None or outcome.state is not State.INVALID else outcome.revived()

    def _leave(self, transaction: Transaction, state: State, ended_ms: int, timed_out: bool) -> None:
        if self.by_id.pop(transaction.id, None) is not None:
            self.open_of.move(transaction.principal, None)
        self.groups.dropped(transaction.id)
        self._open_changes_bytes -= self._change_bytes.pop(transaction.id, 0)
        self._unfinished.discard(transaction.id)
        self._for_one_shots.discard(transaction.id)
        self.deadlines.remove(transaction.id)
        if transaction.session is not None:
            self.session_table.left(transaction.session.name, transaction.id)
        for pointer in transaction.pointers:
            self.in_progress = self.in_progress.without(pointer)
        for pointer in transaction.checkpoints:
            self._checkpoints.pop(pointer, None)
            if transaction.principal or (transaction.session is not None and state is not State.COMMITTED):
                self._ended_checkpoints[pointer] = transaction.id
        while len(self._ended_checkpoints) > ENDED_CHECKPOINTS_MAX:
            del self._ended_checkpoints[next(iter(self._ended_checkpoints))]
        while self._shorts and self._shorts[0] not in self.in_progress:
            self._shorts.popleft()
        if self.conflicts.memory_bytes:
            self.conflicts.forget(self.first_short)
        self.outcomes.put(Outcome.of(transaction, state, ended_ms, timed_out))
        self._view = None

    def _remember(self, request_id: str | None, call: RequestCall, transaction_id: int, at_ms: int) -> None:
        if request_id is not None:
            self.requests.put(RequestUse(request_id, call, transaction_id, at_ms))


class Deadlines:
    """The deadlines of open transactions. Once a second somebody asks, and all are looked at: 20,000 in some milliseconds."""

    def __init__(self) -> None:
        self._deadlines: dict[int, int] = {}

    def add(self, transaction_id: int, deadline_ms: int) -> None:
        self._deadlines[transaction_id] = deadline_ms

    def remove(self, transaction_id: int) -> None:
        """The transaction is not open any more; nothing happens if it was not."""
        self._deadlines.pop(transaction_id, None)

    def next_ms(self) -> int | None:
        return min(self._deadlines.values(), default=None)

    def due(self, now_ms: int) -> list[int]:
        """The ids whose deadline has come, earliest deadline first. Changes nothing."""
        found = [(deadline_ms, key) for key, deadline_ms in self._deadlines.items() if deadline_ms <= now_ms]
        return [key for _, key in sorted(found)]
