"""Faults to plant in the product, each of which the simulation must find. Some are bugs that were there once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from basalt.catalog.topics import TopicName
from basalt.commits.commit_stage import TopicParticipant
from basalt.messaging.log.staged_payloads import StagedPayloads
from basalt.messaging.log.staged_writers import StagedWriter, StagedWriters
from basalt.messaging.log.topic_log import LogMemory, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.pruning.prune import read_notes
from basalt.tables import garbage_cells
from basalt.thrift.deferred_change_sets import DeferredChangeSets
from basalt.transactions import manager as durable_state
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Proposal
from basalt.transactions.rules.one_shots import OneShotTopics, TopicUseEdits
from basalt.transactions.rules.sessions import SessionState, SessionTable
from basalt.transactions.rules.transaction import Join, Transaction
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt.transactions.rules.transaction_table import TransactionTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.system import SystemTable

# Of topics.


def aborts_search_nothing() -> AbstractContextManager[object]:
    """The abort of a transaction that had become invalid does not search for its rows."""
    knows = LogMemory.knows
    return patch.object(LogMemory, "knows", lambda memory, tx: knows(memory, replace(tx, was_invalid=False)))


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


# Of one-shot transactions.


def recovery_does_not_look() -> AbstractContextManager[object]:
    """Recovery does not look for rows that the log does not know."""

    async def nothing(*_: object) -> dict[int, list[Join]]:
        return {}

    return patch.object(TopicParticipant, "unknown_writers", nothing)


def topics_in_use_are_not_told() -> AbstractContextManager[object]:
    """The log is not told which topics are in use."""
    return patch.object(OneShotTopics, "use", lambda *_: TopicUseEdits())


def recovery_takes_no_place() -> AbstractContextManager[object]:
    """Recovery leaves its place in the log to whoever comes."""
    recover = OneShotTopics.roll_back_unknown

    def recover_only(topics: OneShotTopics, last_pointer: int, found: Mapping[int, Sequence[Join]]) -> Proposal:
        made = recover(topics, last_pointer, found).edits
        return Proposal(tuple(edit for edit in made if not isinstance(edit, edits.TopicsUsed)))

    return patch.object(OneShotTopics, "roll_back_unknown", recover_only)


# Of markers.


def roll_backs_are_not_told() -> AbstractContextManager[object]:
    """What is known of a topic's markers outlives their roll back."""
    return patch.object(TopicLog, "roll_back", lambda *_: None)


# Of cells.


def cells_come_before_the_log() -> AbstractContextManager[object]:
    """Cells are written before the log knows that their writer has any."""
    return patch.object(durable_state, "OUTCOMES", (*durable_state.OUTCOMES, edits.TableJoined))


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
    commit = TopicParticipant.commit

    def all_of_them(
        participant: TopicParticipant, group: Any, plan: Any, pointer: int, transaction: Transaction | None
    ) -> None:
        commit(participant, group, plan._replace(segments=None), pointer, transaction)

    return patch.object(TopicParticipant, "commit", all_of_them)


def losers_stay() -> AbstractContextManager[object]:
    """What the attempts have stored that lost is left where it is."""
    return patch.object(StagedPayloads, "remove_unpublished", lambda *_: None)


def versions_are_committed_twice() -> AbstractContextManager[object]:
    """A version that was committed before is begun again, and committed again."""
    return patch.object(SessionState, "covers", lambda *_: False)
