"""Faults to plant in the product, each of which the simulation must find. Some are bugs that were there once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, cast
from unittest.mock import patch

from msgspec.structs import replace

from basalt.catalog.topics import Topic, TopicName
from basalt.commits.carrier import Carrier
from basalt.commits.commit_stage import CommitAsked, CommitStage
from basalt.commits.one_shot_decisions import OneShotDecisions, OwnDecisions
from basalt.commits.one_shots import Borrowing, _PlacedTogether
from basalt.commits.owning.owner import Owner
from basalt.commits.owning.topic_plan import TopicPlan
from basalt.commits.recovery import Recovery
from basalt.errors import ProducerUnknownError, SequenceGapError
from basalt.groups.acknowledgements import Acknowledging
from basalt.messaging.log import stored_log
from basalt.messaging.log.packing import Packing
from basalt.messaging.log.staged_payloads import StagedPayloads
from basalt.messaging.log.staged_writers import StagedWriter, StagedWriters
from basalt.messaging.log.topic_log import LogMemory, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.messages import Messages
from basalt.messaging.producers import LogProducers, Producers, Sequenced
from basalt.messaging.read.log_reader import LogReader, Reading, RowsAhead
from basalt.messaging.rows_in_doubt import RowsInDoubt
from basalt.operations.shard_holding import ShardHolding
from basalt.pruning.prune import read_notes
from basalt.runtime.group_commit import Group, GroupCommit, NotLoadedError, Phase, tell
from basalt.tables import garbage_cells
from basalt.thrift.deferred_change_sets import DeferredChangeSets
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.manager import TransactionManager
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.protocol import Admitted, Decide, Intended, JoinedTransaction, Joining
from basalt.transactions.rules import edits
from basalt.transactions.rules.acknowledgements import GroupRules
from basalt.transactions.rules.edits import Proposal
from basalt.transactions.rules.groups import GroupTable
from basalt.transactions.rules.loans import LoanInUse, LoanTable, OneShotsInFlight
from basalt.transactions.rules.sessions import SessionState, SessionTable
from basalt.transactions.rules.transaction import Join, TableJoin
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt.transactions.rules.transaction_table import TransactionTable
from basalt_engine.messages import PRODUCERS, MessageRow, MessageTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.snapshot import NO_RUNS, PointerRuns
from basalt_engine.spans.spans import Spans
from basalt_engine.system import SystemTable
from basalt_engine.table import Put

# Of topics.


def aborts_search_nothing() -> AbstractContextManager[object]:
    """The abort of a transaction that had become invalid does not search for its rows."""
    knows = LogMemory.knows
    return patch.object(LogMemory, "knows", lambda memory, tx: knows(memory, replace(tx, was_invalid=False)))


@contextmanager
def moves_forget_doubts() -> Iterator[None]:
    """A shard moves though rows are in doubt, and forgets them."""

    async def nothing(_logs: TopicLogs, _shards: object) -> None: ...

    with (
        patch.object(TopicLogs, "in_doubt", lambda _logs, _shards: False),
        patch.object(TopicLogs, "confirm_or_delete", nothing),
    ):
        yield


def moves_forget_what_is_staged() -> AbstractContextManager[object]:
    """After a move nothing is taken for staged by transactions of before it."""
    return patch.object(StagedPayloads, "_unknown_up_to", lambda staged, _log: staged._writers.unknown_up_to)


def moves_forget_early_rows() -> AbstractContextManager[object]:
    """After a move transactions of before it are taken to have no rows but those that were noted since."""
    return patch.object(TopicLog, "knows", lambda log, transaction: log.memory.knows(transaction))


def moves_drain_no_lane() -> AbstractContextManager[object]:
    """A shard moves while writes of it are under way."""

    async def release(holding: ShardHolding, shards: frozenset[int], release: object) -> None:
        await holding.gate.left(shards)
        holding._logs.suspend(shards)
        holding._tables.forget(shards)
        holding._forget_released(shards, release)

    return patch.object(ShardHolding, "_release", release)


def bounds_count_at_once() -> AbstractContextManager[object]:
    """A bound counts before the reference that it announces is there."""
    unbound = PayloadTable.unbound
    return patch.object(PayloadTable, "unbound", lambda table, keys, pointer, *_: unbound(table, keys, pointer))


def references_in_doubt_count_as_absent() -> AbstractContextManager[object]:
    """Rows in doubt are no more in doubt, and nobody has decided which of them there will be."""

    async def undecided(log: TopicLog) -> None:
        log.unconfirmed = ()
        log.memory.with_unconfirmed.discard(log)
        log.in_flight = None

    return patch.object(TopicLog, "confirm_or_delete", undecided)


@contextmanager
def what_is_being_written_is_forgotten() -> Iterator[None]:
    """A topic that is not among those used last is read again though a group is changing it."""

    def forgetful(logs: TopicLogs, title: TopicName) -> TopicLog | None:
        if title not in logs.memory.recent:
            logs._open.pop(title, None)
        return find(logs, title)

    find = TopicLogs.find
    with patch.object(TopicLogs, "find", forgetful):
        yield


@contextmanager
def writers_that_left_memory_pass_for_new_ones() -> Iterator[None]:
    """What a writer has staged is not asked of the store when it has left memory."""

    def touch(writers: StagedWriters, writer: StagedWriter) -> None:
        unknown_up_to = writers.unknown_up_to
        original(writers, writer)
        writers.unknown_up_to = unknown_up_to

    original = StagedWriters.touch
    with patch.object(StagedWriters, "touch", touch):
        yield


# Of producers.


def gaps_are_accepted() -> AbstractContextManager[object]:
    """What does not follow a producer's last number is appended."""
    admit = Producers.admit

    def lenient(producers: Producers, group: Group, log: TopicLog, asked: Sequenced, count: int) -> int:
        try:
            return admit(producers, group, log, asked, count)
        except (SequenceGapError, ProducerUnknownError):
            return 0

    return patch.object(Producers, "admit", lenient)


def failed_writes_leave_their_numbers() -> AbstractContextManager[object]:
    """What a write that failed would have added is known all the same."""
    return patch.object(TopicLog, "forget_producers", lambda log: None)


def numbers_in_doubt_are_read() -> AbstractContextManager[object]:
    """Numbers are read while rows are in doubt, and nobody decides about these before."""

    async def ready(producers: Producers, log: TopicLog) -> None:
        if log.producers is None and not log.ended:
            producers._keep(log, producers._read(log.topic))

    def required(producers: Producers, log: TopicLog) -> LogProducers:
        state: LogProducers | None = log.producers
        if state is None:
            raise NotLoadedError(partial(producers._hold, log))
        return state

    def find(logs: TopicLogs, title: TopicName) -> TopicLog | None:
        log = logs.memory.recent.get(title)
        return log if log is not None and log.live else original(logs, title)

    original = TopicLogs.find
    patches = ExitStack()
    patches.enter_context(patch.multiple(Producers, ready=ready, _required=required))
    patches.enter_context(patch.object(TopicLogs, "find", find))
    return patches


def numbers_come_in_a_put_of_their_own() -> AbstractContextManager[object]:
    """Column d is put behind the row, not with it."""

    def add(packing: Packing, group: Group, topic: Topic, row: MessageRow) -> None:
        original(packing, group, topic, row._replace(producers=None))
        if row.producers is not None:
            put = MessageTable.put(topic.keys, row)
            group.add(MessageTable.name, Put(put.key, {PRODUCERS: put.columns[PRODUCERS]}))

    original = Packing.add
    return patch.object(Packing, "add", add)


def rows_of_a_producer_are_written_side_by_side() -> AbstractContextManager[object]:
    """One write has several rows of a producer also where any of them may be lost."""
    return patch.object(TopicLog, "has_numbered", lambda *_: False)


def entries_come_before_their_rows() -> AbstractContextManager[object]:
    """A topic's entry is written before the rows that it counts."""
    put_entry = stored_log.put_entry

    def early(group: Group, record: Any, topic: Topic, entry: Any, phase: Phase = Phase.ROWS) -> None:
        put_entry(group, record, topic, entry, Phase.BEFORE if record is stored_log.PRODUCERS else phase)

    return patch.object(stored_log, "put_entry", early)


def repetitions_are_answered_at_once() -> AbstractContextManager[object]:
    """A repetition is answered when its stage has run: what it repeats may be in the same group, and that may fail."""

    async def eager(writer: GroupCommit, stage: Callable[[Group], Any], size_bytes: int = 0) -> Any:
        if getattr(getattr(stage, "func", None), "__func__", None) is not Messages._publish_numbered:
            return await run(writer, stage, size_bytes)
        repeated: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def telling(group: Group) -> object:
            placed = stage(group)
            if placed is None and not repeated.done():
                repeated.set_result(None)
            return placed

        call = asyncio.ensure_future(run(writer, telling, size_bytes))
        either: list[asyncio.Future[Any]] = [call, repeated]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not repeated.done():
            return await call
        call.add_done_callback(lambda told: told.cancelled() or told.exception())
        return None

    run = GroupCommit.run
    return patch.object(GroupCommit, "run", eager)


def nothing_announces_numbers() -> AbstractContextManager[object]:
    """A topic has rows with numbers, and no entry that says so."""
    return patch.object(Producers, "_announce", lambda *_: None)


def deletes_in_doubt_are_forgotten() -> AbstractContextManager[object]:
    """A row that was in doubt and is there stays, though its delete was sent."""

    decided = RowsInDoubt.decide

    async def decide(in_doubt: RowsInDoubt, rows: Sequence[bytes]) -> None:
        in_doubt.condemned.clear()
        await decided(in_doubt, rows)

    return patch.object(RowsInDoubt, "decide", decide)


# Of one-shot transactions.


def loans_of_the_dead_stay() -> AbstractContextManager[object]:
    """Who takes over leaves the loans of those before it as they are."""
    return patch.object(LoanTable, "end", lambda *_: Proposal(()))


def loans_of_the_dead_are_forgotten() -> AbstractContextManager[object]:
    """Who takes over takes what the loans of those before it left undecided for pointers of which there is no row."""
    return patch.object(LoanTable, "member_ended", _settled_as_never_used(LoanTable.member_ended))


def unknown_writes_count_as_never_made() -> AbstractContextManager[object]:
    """The pointers of a write of which nobody knows are not put on the invalid list."""
    return patch.object(LoanTable, "given_up", _settled_as_never_used(LoanTable.given_up))


def _settled_as_never_used(settle: Callable[[LoanTable, Any], PointerRuns]) -> Callable[[LoanTable, Any], PointerRuns]:
    def settled(loans: LoanTable, edit: Any) -> PointerRuns:
        settle(loans, edit)
        return NO_RUNS

    return settled


def snapshots_have_no_runs() -> AbstractContextManager[object]:
    """No snapshot says that the pointers of loans are in progress."""
    return patch.object(LoanTable, "in_progress", NO_RUNS)


@contextmanager
def pointers_are_used_before_the_log_has_their_loan() -> Iterator[None]:
    """A loan is used from when it is decided, and not from when the log has it."""

    async def borrow(loans: Borrowing) -> None:
        own = cast("OwnDecisions", loans._coordinator)

        def lend(group: Group) -> None:
            lent = own._decisions.lend(own._manager.member, group)
            loans._know(own.basis)
            loans._loans.append(LoanInUse(lent.first, lent.last, 0.0 + loans._clock.monotonic_ms()))

        await own._manager.run(lend)

    with patch.object(Borrowing, "_borrow", borrow):
        yield


@contextmanager
def repeated_requests_are_carried_out_again() -> Iterator[None]:
    """Nobody waits for the one-shot transaction of the same request, nor looks for it at the decision."""

    def decide(decisions: OneShotDecisions, *asked: Any) -> Any:
        with patch.object(TransactionProposals, "first_one_shot", lambda *_: None):
            return original(decisions, *asked)

    original = OneShotDecisions.decide
    with (
        patch.object(OneShotDecisions, "decide", decide),
        patch.object(OneShotsInFlight, "has_request", lambda *_: False),
    ):
        yield


# Of the two write lanes.


@contextmanager
def rows_come_before_committing() -> Iterator[None]:
    """The rows of a commit are written when the log does not have its intent yet."""

    def commit(stages: CommitStage, asked: CommitAsked, started_ms: float, group: Group) -> Any:
        answer = original(stages, asked, started_ms, group)
        if isinstance(answer, Intended):  # rows come before the entry of their group
            stages._owner.commit_prepared(group, asked.prepared.number, answer.transaction)
        return answer

    async def placed(*_: object) -> None:
        return

    original = CommitStage._commit
    with patch.object(CommitStage, "_commit", commit), patch.object(Owner, "place", placed):
        yield


@contextmanager
def committed_comes_before_rows() -> Iterator[None]:
    """The outcome of a commit is logged, and then its rows are written."""

    async def carry(
        carrier: Carrier, transaction: JoinedTransaction, asked: CommitAsked, told: Any, started_ms: float
    ) -> None:
        def place(group: Group) -> None:
            carrier._owner.commit_prepared(group, asked.prepared.number, transaction)

        try:
            answer = await carrier._lanes.log.run(
                partial(carrier._stages.decide, Decide(transaction.id, placed=True), started_ms, None), must_run=True
            )
            await carrier._lanes.topics.each[0].run(place, must_run=True)
        except Exception as error:  # it is raised where the commit was called
            answer = error
        tell(told, answer)

    with patch.object(Carrier, "_carry", carry):
        yield


def joins_come_after_rows() -> AbstractContextManager[object]:
    """Rows and cells of a transaction are written without waiting until the log has it that it joined."""

    def ask_later(pointers: OpenPointers, write_pointer: int, **joins: Any) -> None:
        manager = pointers._manager
        told: asyncio.Future[Admitted] = asyncio.get_running_loop().create_future()
        told.add_done_callback(lambda call: call.cancelled() or call.exception())
        manager.lanes.log.submit(lambda group: manager.admit(group, Joining(write_pointer, **joins)), told)

    def join(pointers: OpenPointers, group: Group, write_pointer: int, topic: Topic, from_ms: int) -> None:
        if pointers._atomic:
            return original(pointers, group, write_pointer, topic, from_ms)
        cast("TransactionManager", pointers._manager)._open_writer(write_pointer, group.now_ms)
        return ask_later(pointers, write_pointer, topic=Join(topic.keys.prefix, topic.generation, from_ms))

    def join_table(pointers: OpenPointers, group: Group, write_pointer: int, table: TableJoin) -> None:
        if pointers._atomic:
            return of_tables(pointers, group, write_pointer, table)
        cast("TransactionManager", pointers._manager)._open_writer(write_pointer, group.now_ms)
        return ask_later(pointers, write_pointer, table=table)

    original, of_tables = OpenPointers.join, OpenPointers.join_table
    return patch.multiple(OpenPointers, join=join, join_table=join_table)


def pointers_stay_open() -> AbstractContextManager[object]:
    """An owner takes writes under a pointer until it is told the outcome."""
    return patch.object(OpenPointers, "close", lambda *_: None)


def rows_are_older_than_the_view() -> AbstractContextManager[object]:
    """A reader is shown rows that were read before the view that judges them."""
    before: dict[tuple[int, bytes], RowsAhead] = {}

    def rows_ahead(reader: LogReader, log: TopicLog, reading: Reading) -> RowsAhead:
        rows = original(reader, log, reading).rows
        now = RowsAhead(None, None if rows is None else list(rows))
        key = id(log), reading.start.position
        older, before[key] = before.get(key, now), now
        return older

    original = LogReader.rows_ahead
    return patch.object(LogReader, "rows_ahead", rows_ahead)


def one_shots_are_decided_with_their_rows() -> AbstractContextManager[object]:
    """The outcome of a one-shot transaction is logged while its rows are being written."""

    def closing(placed: _PlacedTogether, _: Group) -> None:
        if placed.one_shots:
            placed._carrier.decide(placed.one_shots, placed._loans)

    return patch.multiple(_PlacedTogether, closing=closing, durable=lambda _: None, failed=lambda _: None)


@contextmanager
def nobody_waits_for_rows_under_way() -> Iterator[None]:
    """A roll back, and whoever reads the log, do not wait for the rows that are being written."""

    async def hasty(writer: GroupCommit, *, must_run: bool = False) -> None:
        callers = [sys._getframe(depth).f_code for depth in (1, 2, 3)]  # the lanes hand it on
        if Owner.roll_back.__code__ not in callers and Recovery._read_log.__code__ not in callers:
            await passed(writer, must_run=must_run)

    passed = GroupCommit.passed
    with patch.object(GroupCommit, "passed", hasty):
        yield


@contextmanager
def a_lost_state_goes_on() -> Iterator[None]:
    """Recovery does not give up what has no outcome."""
    with patch.object(TransactionProposals, "give_up", lambda *_: Proposal(())):
        yield


# Of markers.


def roll_backs_are_not_told() -> AbstractContextManager[object]:
    """What is known of a topic's markers outlives their roll back."""
    return patch.object(TopicLog, "roll_back", lambda *_: None)


# Of cells.


@contextmanager
def aborted_cells_show() -> Iterator[None]:
    """The abort of a writer of cells leaves it out of the invalid list."""

    def abort(state: TransactionProposals, transaction_id: int, now_ms: int, **_: Any) -> Proposal:
        found = state.find(transaction_id)
        if found is not None and found.tables:
            return Proposal((edits.Aborted(transaction_id, now_ms, False),), transaction_id)
        return original(state, transaction_id, now_ms)

    original = TransactionProposals.abort
    with (
        patch.object(TransactionProposals, "abort", abort),
        patch.object(TransactionTable, "_undone", lambda _, found: found),
    ):
        yield


def pruning_overlooks_cells() -> AbstractContextManager[object]:
    """Pruning forgets failed writers whose cells are still there."""

    def read_others(system: SystemTable) -> Any:
        with patch.object(garbage_cells, "notes", lambda *_: iter(())):
            return read_notes(system)

    return patch("basalt.pruning.prune.read_notes", read_others)


# Of sessions and change sets.


@contextmanager
def versions_are_not_logged() -> Iterator[None]:
    """A session's committed version is known to the process, and not to the next one that reads the log."""
    committed, recover = SessionTable.committed, TransactionLog.recover
    replaying: list[bool] = []

    def not_replayed(sessions: SessionTable, *given: Any) -> None:
        if not replaying:
            committed(sessions, *given)

    def replayed(log: TransactionLog, *given: Any) -> Any:
        replaying.append(True)
        try:
            return recover(log, *given)
        finally:
            replaying.pop()

    with patch.object(SessionTable, "committed", not_replayed), patch.object(TransactionLog, "recover", replayed):
        yield


def lost_sets_pass_for_empty() -> AbstractContextManager[object]:
    """A commit whose change set was lost passes for one without changes."""

    get = DeferredChangeSets.get
    return patch.object(DeferredChangeSets, "get", lambda sets, key: get(sets, key) or frozenset())


# Of named transactions.


def replaced_runs_come_back() -> AbstractContextManager[object]:
    """A session does not remember which runs were replaced."""
    held_by = SessionState.held_by
    return patch.object(SessionState, "held_by", lambda session, *given: replace(held_by(session, *given), replaced=()))


def every_segment_is_published() -> AbstractContextManager[object]:
    """A commit publishes what every attempt has stored, in the order of the segments."""
    commit = Owner.commit

    def all_of_them(owner: Owner, group: Any, plan: Any, transaction: JoinedTransaction) -> None:
        commit(owner, group, plan._replace(segments=None), transaction)

    return patch.object(Owner, "commit", all_of_them)


def losers_stay() -> AbstractContextManager[object]:
    """What the attempts have stored that lost is left where it is."""
    return patch.object(StagedPayloads, "remove_unpublished", lambda *_: None)


def versions_are_committed_twice() -> AbstractContextManager[object]:
    """A version that was committed before is begun again, and committed again."""
    return patch.object(SessionState, "covers", lambda *_: False)


# Of consumer groups.


@contextmanager
def acknowledgements_come_before_the_outcome() -> Iterator[None]:
    """What a one-shot transaction acknowledges is logged while its rows are being written."""

    def closing(placed: _PlacedTogether, _: Group) -> None:
        stages, log = placed._carrier.stages, placed._carrier._lanes.log
        for each in placed.one_shots:
            if each.plan.acknowledgements:
                log.submit(partial(early, each.plan, stages), asyncio.get_running_loop().create_future(), must_run=True)

    def early(plan: TopicPlan, stages: CommitStage, group: Group) -> None:
        stages._groups.check(plan.acknowledgements, None, group.now_ms)
        stages._manager.apply(group, stages._groups.stage(group, plan.acknowledgements, None, group.now_ms))

    def decide(decisions: OneShotDecisions, group: Group, placed: Any, plan: TopicPlan) -> Any:
        return original(decisions, group, placed, plan._replace(acknowledgements=()))

    original = OneShotDecisions.decide
    with patch.object(_PlacedTogether, "closing", closing), patch.object(OneShotDecisions, "decide", decide):
        yield


def plain_acknowledgements_swallow_what_is_pending() -> AbstractContextManager[object]:
    """Nobody looks whether a message is pending in another transaction."""
    return patch.object(GroupTable, "pending_holder", lambda *_: None)


def snapshots_forget_what_is_pending() -> AbstractContextManager[object]:
    """A snapshot of the log does not say what open transactions have acknowledged."""
    return patch.object(GroupTable, "pending_images", lambda _: ())


def aborts_keep_what_was_pending() -> AbstractContextManager[object]:
    """What a transaction acknowledged is the group's, however it ends."""
    return patch.object(GroupTable, "dropped", lambda table, key: table.committed(key, 0))


def what_is_acknowledged_may_be_again() -> AbstractContextManager[object]:
    """Nobody looks whether a message is acknowledged already."""
    return _all_of(
        patch.object(GroupRules, "_loss", lambda *_: None),
        patch.object(Spans, "overlaps", lambda *_: False),
    )


@contextmanager
def _all_of(*patches: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def order_is_not_checked() -> AbstractContextManager[object]:
    """A commit may leave an earlier message of its lane unacknowledged."""
    return patch.object(Acknowledging, "_check_order", lambda *_: None)
