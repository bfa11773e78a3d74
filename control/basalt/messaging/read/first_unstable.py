"""The one answer to who holds readers up: the first row of a writer that has not ended, of a topic or of one transaction.

Only a transaction that published before its commit makes readers of committed messages wait, so just the stretch of the
log is searched in which its rows may lie. For transactions of this process that is known. Those that began before it
started are searched for from where they joined the topic, a bounded number of rows at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.messaging.log.topic_log import Range, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.log_reader import NO_LIMIT, LogReader, ReadBudget
from basalt.messaging.read.slices import row_slices
from basalt.messaging.read.views import Views
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.manager import Transactions
from basalt.transactions.protocol import JoinedTransaction
from basalt.transactions.rules.loans import OneShotInFlight
from basalt.transactions.rules.transaction import Join, Transaction
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.keys import MESSAGE_ID_BYTES, position
from basalt_engine.messages import MessageRow
from basalt_engine.snapshot import POINTER_MAX, POINTERS_PER_MS, TransactionSnapshot, Visibility
from basalt_engine.table import Store

# A loan's pointers tell when it was made, by the coordinator's clock; rows under them lie where the owner's clock was, which may be behind.
CLOCKS_APART_MS_MAX = 3_600_000
ROWS_MAX = 20_000  # rows that one search, or one count, reads; a second or so where they are large


class KnownTransactions:
    """The transactions as the manager of this process knows them: for retention, peeks and statistics, not for readers.

    Nothing is known while the manager reads its log, nor where transactions are managed elsewhere: then every answer is
    empty, and a caller must not take that for "all have ended".
    """

    def __init__(self, manager: Transactions) -> None:
        self._manager = manager

    def snapshot(self) -> TransactionSnapshot | None:
        """The snapshot of all that is decided durably; None while it is not known."""
        try:
            durable, _ = self._manager.snapshots()
        except RetryError:
            return None
        return durable

    def in_flight(self) -> list[OneShotInFlight]:
        """The one-shot transactions of which rows may be there, and no outcome."""
        try:
            return list(self._manager.in_flight)
        except RetryError:
            return []

    def first_lent_elsewhere(self) -> int | None:
        """The lowest undecided pointer of other members' loans; None: there is none."""
        return next(iter(self._manager.lent_elsewhere().edges), None)

    def in_progress(self) -> list[Transaction]:
        """The transactions that have not ended, oldest first."""
        try:
            return self._manager.state.transactions()
        except RetryError:
            return []


class FirstUnstableRow(NamedTuple):
    """The writer that readers wait for and the id of its row's first message; None when there is none.

    `searched_to` is the position from which to search on; None when nothing is left to search.
    """

    held_by: int | None = None
    held_at: bytes | None = None
    searched_to: bytes | None = None


class FirstRow(NamedTuple):
    """A transaction's first row in a topic, and the id of its first message; None when the search was given up before."""

    log: TopicLog
    position: bytes | None = None
    first_id: bytes | None = None


class _Search(NamedTuple):
    """The row that was found, or the position from which to search on; neither: there is no such row."""

    row: MessageRow | None = None
    rest: bytes | None = None


class FirstUnstable:
    """Searches topics for what makes readers of committed messages wait."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, reader: LogReader, known_transactions: KnownTransactions, views: Views
    ) -> None:  # fmt: skip
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._reader = reader
        self.known_transactions = known_transactions
        self._views = views

    async def of_topic_now(self, log: TopicLog, start: bytes = b"") -> FirstUnstableRow:
        """The same as `of_topic`, by a newer view where there is one that may have the writer's end: for people, who are told its name."""
        found = await self.of_topic(log, start)
        if found.held_by is not None and self._views.may_be_old and await self._views.newer():
            return await self.of_topic(log, start)
        return found

    async def of_topic(self, log: TopicLog, start: bytes = b"") -> FirstUnstableRow:
        """The first row, from a position on, at which a reader of committed messages stops."""
        snapshot = self.known_transactions.snapshot()
        ranges = [] if snapshot is None else self._ranges(log, snapshot)
        if snapshot is None or not ranges:
            return FirstUnstableRow()
        stops = [stop for _, stop in ranges if stop is not None]
        stop = max(stops) if len(stops) == len(ranges) else None
        found = await self._search(
            log, max(start, min(first for first, _ in ranges)), stop, snapshot, ReadBudget(ROWS_MAX)
        )
        if found.row is None:
            return FirstUnstableRow(searched_to=found.rest)
        return FirstUnstableRow(found.row.written_by, await self._first_id(log, found.row))

    def surely(self, transaction: Transaction) -> bool:
        """True when it has published rows since this server started, by memory alone; costs its topics and pointers."""
        if not transaction.topics:
            return False
        logs = map(self._logs.find_joined, transaction.topics)
        pointers = frozenset(transaction.pointers)
        return any(log.uncommitted_writers(pointers) for log in logs if log is not None)

    async def of_transaction(self, transaction: Transaction, join: Join, budget: ReadBudget) -> FirstRow | None:
        """The transaction's first row in one topic; None when it holds nobody up there. The search uses up the budget."""
        log = await self._logs.joined(join)
        stretch = (
            None if log is None else log.uncommitted_range(JoinedTransaction.of(transaction), position(join.from_ms, 0))
        )
        if log is None or stretch is None:
            return None
        alone = TransactionSnapshot(POINTER_MAX, in_progress=tuple(sorted(transaction.pointers)))
        share = share_of(budget)
        found = await self._search(log, *stretch, alone, share)
        budget.rows += share.rows
        if found.row is None:
            return None if found.rest is None else FirstRow(log)
        return FirstRow(log, found.row.position, await self._first_id(log, found.row))

    async def _search(
        self, log: TopicLog, start: bytes, stop: bytes | None, snapshot: TransactionSnapshot, budget: ReadBudget
    ) -> _Search:
        """The first row in the range, of those that have not expired, at which a reader under the snapshot stops."""
        rest: bytes | None = max(start, position(log.oldest_ms(self._clock.now_ms()), 0))
        while rest is not None and not budget.is_spent:
            rows, rest = await self._reader.page(log, rest, stop, budget)
            for row in rows:
                if snapshot.judge(row.written_by) is Visibility.HOLD:
                    return _Search(row)
        return _Search(rest=rest)

    def _ranges(self, log: TopicLog, snapshot: TransactionSnapshot) -> list[Range]:
        """The ranges of the topic in which rows of transactions may lie that are undecided, by this snapshot too."""
        noted = log.uncommitted or {}
        # Also one-shot transactions of this server's own, where another one is the coordinator.
        ranges: list[Range | None] = [noted[each] for each in noted if snapshot.judge(each) is Visibility.HOLD]
        lent = self.known_transactions.first_lent_elsewhere() if log.unknown_up_to else None
        if lent is not None and lent <= log.unknown_up_to:  # the topic may have been theirs who have the loan
            ranges.append((position(max(lent // POINTERS_PER_MS - CLOCKS_APART_MS_MAX, 0), 0), None))
        for one_shot in self.known_transactions.in_flight() if noted or log.unknown_up_to else ():
            is_unknown = one_shot.id <= log.unknown_up_to  # it may have placed rows before this reign
            ranges.append(noted.get(one_shot.id, (b"", None) if is_unknown else None))
        ranges += [
            log.uncommitted_range(JoinedTransaction.of(transaction), position(join.from_ms, 0))
            for transaction in self.known_transactions.in_progress()
            for join in transaction.topics
            if join.topic == log.topic.keys.prefix and join.generation == log.topic.generation
        ]
        return [known for known in ranges if known is not None]

    async def _first_id(self, log: TopicLog, row: MessageRow) -> bytes:
        """The id of a row's first message; reads payload rows where it refers to some."""

        def first_id() -> bytes:
            rows = row_slices(row, lambda reference: self._reader.stored_rows(log.topic, reference), verify=True)
            found = next(rows, None)
            return row.position.ljust(MESSAGE_ID_BYTES, b"\0") if found is None else found.first_id()

        return await self._call.about(log.topic.keys, first_id)


def share_of(budget: ReadBudget, bytes_max: int = NO_LIMIT) -> ReadBudget:
    """The part of the budget for the next search or count. It costs a row even when it finds none."""
    share = ReadBudget(min(max(budget.rows, 0), ROWS_MAX), bytes_max)
    budget.rows -= share.rows + 1
    return share
