"""Up to where a topic is settled: nothing at or below its stable end can still appear, or change who sees it.

So a range of a topic that ends there reads the same for ever, but for the TTL. It is the newest durable row, or lies before
the first row of a writer that has not durably ended. A place that was given out and holds no row is left out: after a
restart it might be given out again. One of a row that retention has removed will not, and counts.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.errors import BusyError
from basalt.messaging.log import stored_log
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.first_unstable import FirstUnstable, FirstUnstableRow
from basalt.messaging.read.log_reader import LogReader, before, end_of
from basalt.messaging.read.views import Views
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.manager import Transactions
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.system import SystemTable
from basalt_engine.table import Store


class Settled(NamedTuple):
    """The last position of which all is decided (empty: there is none), and the snapshot that says how.

    Without a manager there is no snapshot, and every durable row counts.
    """

    position: bytes
    snapshot: TransactionSnapshot | None

    @property
    def id(self) -> bytes:
        """The last id of which all is decided; empty when there is none."""
        return end_of(self.position) if self.position else b""


class _Moment(NamedTuple):
    """A log at one moment: `stop` is behind the newest durable place, `newest` the newest row where that is known."""

    stop: bytes
    newest: bytes
    snapshot: TransactionSnapshot | None


class StableEnds:
    """The stable ends of one store's topics."""

    def __init__(
        self, store: Store, reader: LogReader, first_unstable: FirstUnstable, manager: Transactions, views: Views
    ) -> None:
        self._call = StoreCalls(store)
        self._system = SystemTable(store.table(SystemTable.name))
        self._reader = reader
        self._first_unstable = first_unstable
        self._manager = manager
        self._views = views

    async def newest_row(self, log: TopicLog) -> bytes:
        """The position of the newest durable row; empty when there is none."""
        stop = await self._durable_stop(log)
        return await self._newest_before(log, stop, log.newest_row or b"")

    async def settled(self, log: TopicLog, known: bytes = b"") -> Settled:
        """Up to where everything is decided. `known` is a position of which the caller knows that it is.

        It never goes back, over the owners of a topic too. `CoordinatorUnavailableError` while it could.
        """
        await self._views.catch_up(log)
        known = max(known, log.stable)
        moment, found = await self._searched(log, known)
        if found.held_by is not None and self._views.may_be_old and await self._views.newer():
            moment, found = await self._searched(log, known)
        if found.held_by is not None and log.waiting:
            self._views.note_held(log, found.held_by)
        end = await self._newest_before(log, moment.stop, moment.newest)
        if found.held_at is not None:
            end = min(end, before(found.held_at[:POSITION_BYTES]))
        elif found.searched_to is not None:
            end = min(end, found.searched_to[:POSITION_BYTES])
        end = max(end, known)
        log.stable = max(end, log.stable)
        if found.searched_to is not None and (log.unknown_up_to or self._views.may_be_old):
            raise BusyError(  # whoever had the topic before may have told of a later end
                f"topic {log.topic.title} is still being searched for messages of transactions in progress",
                hint="send the same call again: it goes on from there",
            )
        return Settled(end, moment.snapshot)

    async def _searched(self, log: TopicLog, known: bytes) -> tuple[_Moment, FirstUnstableRow]:
        """The log as it is now, and the first row behind what is known at which readers stop."""
        moment = await self._moment(log)
        return moment, await self._first_unstable.of_topic(log, known + b"\0" if known else b"")

    async def _durable_stop(self, log: TopicLog) -> bytes:
        if log.unconfirmed:
            await log.confirm_or_delete()
        return log.durable_stop

    async def _moment(self, log: TopicLog) -> _Moment:
        """Take everything in one turn of the event loop, in which the working state has ended nothing that may yet fail."""
        while True:
            await self._manager.ensure_known()
            stop = await self._durable_stop(log)
            newest = log.newest_row or b""
            durable, working = self._manager.snapshots()
            # The search for held rows goes by the working state. A writer that has ended only there may still come back.
            if durable is None or working is None or self._knows_all(durable, working):
                return _Moment(stop, newest, durable)
            await self._manager.flush()

    def _knows_all(self, durable: TransactionSnapshot, working: TransactionSnapshot) -> bool:
        """True when all that is in progress durably is so in the working state, or a one-shot transaction that is still in flight."""
        if durable is working:
            return True
        if not set(durable.in_progress) <= set(working.in_progress):
            return False
        settled = durable.in_progress_runs.without(working.in_progress_runs)
        if not settled:
            return True
        settled = settled.without(self._manager.lent_elsewhere())  # which are searched for by the durable snapshot
        if not settled:
            return True
        # A loan is settled from below. So those pointers of it that are settled in the working state alone are in flight if the first is.
        in_flight = {each.id for each in self._first_unstable.known_transactions.in_flight()}
        return all(run.first in in_flight for run in settled)

    async def _newest_before(self, log: TopicLog, stop: bytes, known: bytes) -> bytes:
        """The newest row before `stop`, which is `known` unless that is empty."""
        if known:
            return min(known, stop[:POSITION_BYTES])
        log.newest_row = log.newest_row or b""  # from now on rows that become durable are noted
        found = await self._call(self._read_newest, log.topic, stop)
        if log.newest_row is not None:  # else a write failed meanwhile
            log.newest_row = max(log.newest_row, found)
        return found

    def _read_newest(self, topic: Topic, stop: bytes) -> bytes:
        rows = self._reader.messages.scan(topic.read_keys, b"", stop, reverse=True)
        row = next(iter(rows), None)
        # When the last rows have expired, only a note is left of how far the topic had come.
        gone = min(stored_log.newest(self._system, topic), stop[:POSITION_BYTES])
        return gone if row is None else max(row.position, gone)
