"""The transaction manager: applies edits and logs them; readers see only what is durable.

Stages of the group commit move a working state; the edits that they apply become one entry of the log. Readers see the
state only once the entry is durable (`current`). When a write fails, what the log holds is unknown: no call may build on
the working state until `basalt.commits` has read the log again and given up what has no outcome there.

Where the store is atomic over tables, a commit's rows and its edit are one batch. Elsewhere the log has a lane of its own,
and only stages of that lane move the state. A stage of the lane of topics reads it: rows of a transaction are added when
the log has it that their topic takes part. After a crash nobody can tell which rows of a commit there are, so one without an
outcome is rolled back. The intent of one-shot transactions is the loan that has their pointers (rules/loans.py): what it leaves
without an outcome is on the invalid list once the log was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from basalt.cluster.links.links import Links
from basalt.errors import (
    InputError,
    TransactionEndedError,
    TransactionNotFoundError,
    UnavailableError,
)
from basalt.runtime.group_commit import (
    INLINE_BYTES_MAX,
    Group,
    NextGroupError,
    Phase,
    Waiter,
)
from basalt.runtime.write_lanes import WriteLanes
from basalt.transactions.followers import Followers
from basalt.transactions.log.transaction_log import ENTRY, SnapshotDraft, TransactionLog
from basalt.transactions.log_state import EndedTransaction, LogState, ManagerSnapshot
from basalt.transactions.protocol import Admitted, Joining
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit, Proposal
from basalt.transactions.rules.loans import LOAN_POINTERS, OneShotsInFlight
from basalt.transactions.rules.transaction import Join, State, TableJoin, Transaction
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import Clock
from basalt_engine.snapshot import NO_RUNS, PointerRuns, TransactionSnapshot
from basalt_engine.spans.spans import Spans
from basalt_engine.system import SystemRecord, SystemTable, number_name
from basalt_engine.table import Insert, Put, Store

ENDS = frozenset((edits.Committed, edits.Aborted, edits.Invalidated, edits.Reset))
_ABOUT_GROUPS = frozenset((
    edits.Acknowledged, edits.GroupSought, edits.GroupsForgotten, edits.Returned, edits.Reset,
))  # fmt: skip

_WITH_SPANS = (edits.Acknowledged, edits.AcknowledgedIn, edits.Returned)
_SPAN_BYTES = 40  # before it is encoded

T = TypeVar("T")


class LogRow(NamedTuple):
    """An entry that is being written: its place, and its row unless that is made by whoever writes it."""

    place: int
    row: Insert | None


class ExternalWriter(msgspec.Struct, frozen=True):
    """A failed writer that wrote outside Basalt, too: noted, because pruning cannot look there. `owner` is for people.

    The note is written with the entry of the invalid list, or before it. A writer on that list that has none wrote to
    Basalt's own tables alone. docs/formats/system-table.md.
    """

    owner: str


EXTERNAL_WRITERS = SystemRecord("external_writer", "", ExternalWriter)  # by `number_name` of the write pointer


def external_writers(system: SystemTable) -> frozenset[int]:
    """All writers that have a note. Read them after the invalid list for which they are asked."""
    return frozenset(int(name) for name, _ in EXTERNAL_WRITERS.scan(system))


class _GroupEdits:
    """The edits that one group logs."""

    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager
        self._now_ms = 0
        self._row: LogRow | None = None
        self.edits: list[Edit] = []
        self._acknowledged: dict[int, Spans] = {}  # by group, of the logged edit to which more may come

    def merged(self, edit: Edit) -> bool:
        """True when a plain acknowledgement is logged with one before it: a group commit has one for each group.

        Not over an edit that takes something back: a replay must find it before or after what it was before or after.
        """
        if not isinstance(edit, edits.Acknowledged):
            if isinstance(edit, edits.GroupSought | edits.GroupsForgotten | edits.Returned | edits.Reset):
                self._acknowledged.clear()
            return False
        known = None if edit.writer else self._acknowledged.get(edit.number)
        if known is not None:
            known.update(edit.spans)
        return known is not None

    def logged(self, edit: Edit) -> Edit:
        """The edit as it is kept for the log: of a plain acknowledgement a copy, to which more may come."""
        if not isinstance(edit, edits.Acknowledged) or edit.writer:
            return edit
        spans = self._acknowledged[edit.number] = edit.spans.copy()
        return edits.Acknowledged(0, edit.number, edit.at_ms, spans)

    def closing(self, group: Group) -> None:
        self._now_ms = group.now_ms
        self._row = self._manager.write(group, self.edits)

    def durable(self) -> None:
        self._manager.written(self.edits, self._now_ms, self._row)

    def failed(self) -> None:
        self._manager.lost()


class TransactionManager(LogState):
    """The working state of one store's transactions, and the newest durable snapshot of it.

    Knows nothing of topics: what commits, roll backs and recovery do there is done by `basalt.commits`, above.
    """

    def __init__(
        self, store: Store, clock: Clock, lanes: WriteLanes, transaction_log: TransactionLog, *, epoch: int = 0
    ) -> None:
        super().__init__(store, lanes, transaction_log)
        self._epoch = epoch
        self._clock = clock
        self._writer = lanes.log
        self._followers: Followers | None = None
        self._recover: Callable[[], Awaitable[None]]

    def recovered_by(self, recover: Callable[[], Awaitable[None]]) -> None:
        """Name what makes the state known whenever somebody needs it and it is not: `commits.recovery`, which knows topics."""
        self._recover = recover

    async def ensure_known(self) -> None:
        """Return once `state` answers: after a failed write the log is read first."""
        if self._state is None:
            await self._recover()

    async def snapshot(self) -> ManagerSnapshot:
        """Pointers and lists that belong together and are durable."""

        def stage(group: Group) -> ManagerSnapshot:
            if not self.is_untouched(group):
                raise NextGroupError  # what older entries made is durable once this group is
            state = self.state
            return ManagerSnapshot(state.leader_epoch, state.last_pointer, state.visibility_upper_bound(), state.view())

        found = await self.run(stage)
        if not self.atomic:
            await self.lanes.topics.passed()  # rows of writers that have ended are there, or never come
        # Counted now: a reader that begins later has a snapshot at least as new as this one.
        bound = self._readers.bound(found.visibility_upper_bound)
        if self._followers is not None:
            bound = self._followers.bound(bound)
        return found._replace(visibility_upper_bound=bound)

    # For stages.

    async def run(self, stage: Callable[[Group], T], size_bytes: int = 0) -> T:
        """Run a stage of the group commit over a state that is known; read it from the log first if need be."""
        if self._state is None:
            await self._recover()
        return await self._writer.run(stage, size_bytes)

    async def flush(self) -> None:
        """Return once all that was decided before is durable."""
        await self.ensure_known()
        await self._writer.passed()

    def submit(self, stage: Callable[[Group], T], waiter: Waiter[T], size_bytes: int = 0) -> bool:
        """Run a stage, and tell the waiter, if the state is known."""
        if self._state is not None:
            self._writer.submit(stage, waiter, size_bytes)
        return self._state is not None

    @property
    def coming_place(self) -> int:
        """In a stage: the place of the entry that its group will write."""
        return self._log.position

    @property
    def entries_durable(self) -> int:
        """So many entries of the log are known to be durable, and on their way to those that follow; all, once what was decided before is."""
        return 0 if self._followers is None else self._followers.entries

    def is_untouched(self, group: Group) -> bool:
        """True when no earlier stage of the group has moved the state."""
        return not self._entry(group).edits

    @property
    def member(self) -> str:
        """The name under which this server has loans. A leader of a later epoch ends those of the ones before."""
        return f"leader {self._epoch}"

    def apply(self, group: Group, made: Sequence[Edit]) -> list[EndedTransaction]:
        """In a stage: make the edits true in the working state, and log them with the group. Returns the transactions that they ended."""
        entry, state = self._entry(group), self.state
        ended: list[EndedTransaction] = []
        for edit in made:
            kind = type(edit)
            if kind in _ABOUT_GROUPS and entry.merged(edit):
                state.apply_more(edit)
                continue
            if kind in ENDS:
                ended += self._ended_by(edit, group)
            state.apply(edit)
            entry.edits.append(entry.logged(edit))
        return ended

    def _ended_by(self, edit: Edit, group: Group) -> list[EndedTransaction]:
        if isinstance(edit, edits.Committed | edits.Aborted):
            ending = self.state.find(edit.id)
            end = State.COMMITTED if isinstance(edit, edits.Committed) else State.ABORTED
            return [] if ending is None else [EndedTransaction(ending, end)]
        if not isinstance(edit, edits.Invalidated):
            return [EndedTransaction(transaction, None) for transaction in self.state.transactions()]
        invalid = [transaction for transaction in map(self.state.find, edit.ids) if transaction is not None]
        for transaction in invalid:
            if transaction.external_writes:
                note = ExternalWriter(transaction.owner)
                notes = (EXTERNAL_WRITERS.put(note, number_name(pointer)) for pointer in transaction.pointers)
                group.add(SystemTable.name, *notes)
        return [EndedTransaction(transaction, State.INVALID) for transaction in invalid]

    def _entry(self, group: Group) -> _GroupEdits:
        return group.part(self, lambda: _GroupEdits(self))

    def write(self, group: Group, entry: list[Edit]) -> LogRow | None:
        """Add the entry to the group, behind the notes about writers that it makes invalid. Returns its row, where it has one by now."""
        if not entry:
            return None
        size_bytes = _SPAN_BYTES * sum([len(edit.spans) for edit in entry if isinstance(edit, _WITH_SPANS)])
        if size_bytes > INLINE_BYTES_MAX:  # encoding it takes more than some two milliseconds
            place = self._log.position
            group.add_late(self._log.table_name, self._log.next_entry(entry), Phase.AFTER, size_bytes)
            return LogRow(place, None)
        place, row = self._log.position, self._log.encode_next(entry)
        group.add(self._log.table_name, row, phase=Phase.AFTER)
        return LogRow(place, row)

    def written(self, entry: list[Edit], now_ms: int, row: LogRow | None) -> None:
        """The edits are in the log: readers may see what they made, and members that follow hear of them."""
        if self._state is not None:
            self._current = self._state.view()
            self.view_moved()
        if entry:
            self.totals.count(entry)
            self.journal.add(now_ms, entry)
        if self._followers is not None and row is not None:
            self._followers.add(row.place, None if row.row is None else row.row.columns[ENTRY])

    def lost(self) -> None:
        """Drop the working state: the log may hold something else, and must be read again before the next call."""
        self._state = None
        if self._followers is not None:
            self._followers.forget()

    # For recovery, which `basalt.commits` drives.

    async def read_log(self) -> TransactionProposals:
        """The state that the log holds, which nobody sees before `adopt`. `FencedError` when another server leads."""
        state = await self._call(self._log.recover, self.journal)
        state.lead(self._epoch)
        return state

    def adopt(self, group: Group, state: TransactionProposals) -> None:
        """In the stage that takes over: the state counts from here on, and this server leads."""
        self._state, self._current, self.known_since = state, state.view(), state.last_pointer
        self._has_view = True
        if self._followers is not None:
            self._followers.begin(self._log.position)
        self.apply(group, state.lead(self._epoch).edits)

    # For members that follow.

    def lead(self, links: Links) -> None:
        """Push each entry of the log to the members that follow over these links, until `close`."""
        self._followers = Followers(links, self._epoch, self._join_of_member, self.snapshot)
        if self._state is not None:
            self._followers.begin(self._log.position)

    def close(self) -> None:
        """Push no more."""
        if self._followers is not None:
            self._followers.close()
            self._followers = None

    # Writers of messages and cells.

    def admit(self, group: Group, joining: Joining) -> Admitted:
        """In a stage of the log: something of an owner takes part in the transaction of this pointer.

        `TransactionEndedError` when the pointer is not in progress.
        """
        transaction = self._open_writer(joining.write_pointer, group.now_ms)
        for joined in (joining.topic, joining.table):
            if joined is not None:
                self._apply_or_refuse(group, self._proposed_join(transaction.id, joined, group.now_ms))
        return Admitted(transaction.id, transaction.deadline_ms)

    def join_in_log(self, group: Group, write_pointer: int, joined: Join | TableJoin) -> None:
        """In a stage that adds rows and log: the topic or table takes part."""
        transaction_id = self._open_writer(write_pointer, group.now_ms).id
        self._apply_or_refuse(group, self._proposed_join(transaction_id, joined, group.now_ms))

    def _proposed_join(self, transaction_id: int, joined: Join | TableJoin, now_ms: int) -> Proposal:
        if isinstance(joined, Join):
            return self.state.join(transaction_id, joined, now_ms)
        return self.state.join_table(transaction_id, joined, now_ms)

    async def join(self, joining: Joining, admitted: Callable[[Joining, Admitted], None] | None = None) -> Admitted:
        def stage(group: Group) -> Admitted:
            found = self.admit(group, joining)
            if admitted is not None:  # with the entry of the log, not with the answer: what is told later is to find it
                group.when_durable(partial(admitted, joining, found))
            return found

        return await self.run(stage)

    def _join_of_member(self, joining: Joining, told: Waiter[Admitted]) -> Awaitable[Admitted] | None:
        return None if self.submit(partial(self.admit, joining=joining), told) else self.join(joining)

    async def ask(self) -> None:
        return

    def lent_elsewhere(self) -> PointerRuns:
        runs = self._current.in_progress_runs
        if not runs or self._state is None:
            return runs
        # By the loans that there are now: what an entry ends that is not durable yet, its owner is told of once it is.
        others = sorted(loan.last for loan in self._state.loans if loan.member != self.member)
        return runs.without(runs.without(PointerRuns((last - LOAN_POINTERS + 1, last) for last in others)))

    async def until_decided(self) -> Callable[[], None]:
        """Return once the one-shot transactions that are in flight now are decided."""
        await self.lanes.topics.passed()
        await self.lanes.log.passed()
        return _nothing_to_release

    def _open_writer(self, write_pointer: int, now_ms: int) -> Transaction:
        try:
            return self.state.writer(write_pointer, now_ms)
        except TransactionNotFoundError as error:
            raise TransactionEndedError(error.message, field="transactionWritePointer", hint=error.hint) from None

    def _apply_or_refuse(self, group: Group, proposal: Proposal) -> None:
        if proposal.refusal is not None:
            raise proposal.refusal
        self.apply(group, proposal.edits)

    # The log's own snapshot.

    def draft_log_snapshot(self, group: Group) -> SnapshotDraft:
        """In a stage: a snapshot of the log, to be encoded later."""
        if not self.is_untouched(group):
            raise NextGroupError  # the snapshot holds just what older entries made
        return self._log.draft(self.state)

    async def write_log_snapshot(self) -> int:
        """Write the whole state, so that a restart replays only what follows; the bytes of it.

        Each part is a group of its own, so that no other call waits for more than one of them. It counts with part 0.
        """
        draft = await self.run(self.draft_log_snapshot)
        # Encoding a hundred thousand outcomes takes a second; meanwhile the state moves on, and its entries follow.
        first, *others = await asyncio.to_thread(draft.parts)
        for part in others:
            await self._writer.run(partial(self._add_part, part), _size_bytes(part))

        def finish(group: Group) -> None:
            self._add_part(first, group)
            group.add(self._log.table_name, *draft.replaced(), phase=Phase.AFTER)
            group.when_durable(partial(self._log.snapshot_written, draft))

        await self._writer.run(finish, _size_bytes(first))
        return sum(map(_size_bytes, (first, *others)))

    def _add_part(self, part: Put, group: Group) -> None:
        group.add(self._log.table_name, part)


class ExternalTransactions:
    """For `transactions.manager = external`: clients bring their own manager, and pointers are taken as given.

    The face of `TransactionManager` as messaging knows it, and nothing is known of any transaction.
    """

    @property
    def state(self) -> TransactionProposals:
        raise UnavailableError("transactions are managed elsewhere, and transactions.manager is external")

    @property
    def in_flight(self) -> OneShotsInFlight:
        return self.state.in_flight

    def current(self) -> TransactionSnapshot:
        raise InputError(
            "isolation=committed needs a transaction manager here, and transactions.manager is external",
            field="isolation",
            hint="send your transaction's bytes with the poll, or isolation=uncommitted",
        )

    def snapshots(self) -> tuple[TransactionSnapshot | None, TransactionSnapshot | None]:
        return None, None

    follows = False
    view_age_ms = 0.0

    async def ask(self) -> None:
        return

    def when_view_moves(self, told: Callable[[], None]) -> None:
        """Nobody is ever told: there is no view."""

    def lent_elsewhere(self) -> PointerRuns:
        return NO_RUNS

    async def ensure_known(self) -> None:
        return

    async def flush(self) -> None:
        return

    def check_view(self) -> None:
        return


Transactions = LogState | ExternalTransactions  # whichever the setting `transactions.manager` names


def _nothing_to_release() -> None:
    """Do nothing: there is nothing in memory to let go of."""


def _size_bytes(part: Put) -> int:
    return sum(map(len, part.columns.values()))
