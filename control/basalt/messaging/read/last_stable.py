"""Up to where a topic is settled: nothing at or below its stable end can still appear, or change who sees it.

So a range of a topic that ends there reads the same for ever, but for the TTL. It is the newest durable row, or lies before
the first row of a writer that has not durably ended. A place that was given out and holds no row is left out: after a
restart it might be given out again. One of a row that retention has removed will not, and counts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.messaging.log import log_bounds as removed
from basalt.messaging.log.append import Appended
from basalt.messaging.log.tail import TopicKey
from basalt.messaging.publish import Messaging
from basalt.messaging.read.fetch import end_of
from basalt.messaging.read.first_unstable import Holds
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.manager import Transactions
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

TOPICS_MAX = 10_000  # topics whose newest row and stable end are in memory; the least recently asked for go


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
    """What holds at one moment: `stop` is behind the newest durable place, `newest` the newest row where that is known."""

    stop: bytes
    newest: bytes
    snapshot: TransactionSnapshot | None


class StableEnds:
    """The stable ends of one store's topics."""

    def __init__(self, store: Store, messaging: Messaging, holds: Holds, manager: Transactions) -> None:
        self._call = StoreCalls(store)
        self._system = SystemTable(store.table(SystemTable.name))
        self._messaging = messaging
        self._holds = holds
        self._manager = manager
        self._newest: OrderedDict[TopicKey, bytes] = OrderedDict()  # rows; empty: unknown, or none
        self._settled: OrderedDict[TopicKey, bytes] = OrderedDict()  # what was settled once stays so
        messaging.appender.observers.append(self._observe)
        messaging.appender.doubts.append(self._doubt)

    def forget(self, topic: Topic) -> None:
        """The generation has ended."""
        self._newest.pop(topic.keys[:2], None)
        self._settled.pop(topic.keys[:2], None)

    async def newest_row(self, topic: Topic) -> bytes:
        """The position of the newest durable row; empty when there is none."""
        stop = await self._messaging.durable_stop(topic)
        return await self._newest_before(topic, stop, self._newest.get(topic.keys[:2], b""))

    async def settled(self, topic: Topic, known: bytes = b"") -> Settled:
        """Up to where everything is decided. `known` is a position of which the caller knows that it is."""
        key = topic.keys[:2]
        known = max(known, self._settled.get(key, b""))
        moment = await self._moment(topic)
        found = await self._holds.first(topic, known + b"\0" if known else b"")
        end = await self._newest_before(topic, moment.stop, moment.newest)
        if found.held_at is not None:
            end = min(end, before(found.held_at[:POSITION_BYTES]))
        elif found.searched_to is not None:
            end = min(end, found.searched_to[:POSITION_BYTES])
        end = max(end, known)
        _keep(self._settled, key, max(end, self._settled.get(key, b"")))
        return Settled(end, moment.snapshot)

    async def _moment(self, topic: Topic) -> _Moment:
        """Take everything in one turn of the event loop, in which the working state has ended nothing that may yet fail."""
        while True:
            await self._manager.known()
            stop = await self._messaging.durable_stop(topic)
            newest = self._newest.get(topic.keys[:2], b"")
            durable, working = self._manager.snapshots()
            # The search for held rows goes by the working state. A writer that has ended only there may still come back.
            if durable is None or working is None or set(durable.in_progress) <= set(working.in_progress):
                return _Moment(stop, newest, durable)
            await self._manager.flush()

    async def _newest_before(self, topic: Topic, stop: bytes, known: bytes) -> bytes:
        """The newest row before `stop`, which is `known` unless that is empty."""
        if known:
            return min(known, stop[:POSITION_BYTES])
        key = topic.keys[:2]
        _keep(self._newest, key, self._newest.get(key, b""))  # from now on rows that become durable are noted
        found = await self._call(self._read_newest, topic, stop)
        if key in self._newest:
            self._newest[key] = max(self._newest[key], found)
        return found

    def _read_newest(self, topic: Topic, stop: bytes) -> bytes:
        rows = self._messaging.messages.scan(topic.read_keys, b"", stop, reverse=True)
        row = next(iter(rows), None)
        # When the last rows have expired, only a note is left of how far the topic had come.
        gone = min(removed.newest(self._system, topic), stop[:POSITION_BYTES])
        return gone if row is None else max(row.position, gone)

    def _observe(self, appended: Appended) -> None:
        key = appended.topic.keys[:2]
        if key in self._newest:
            self._newest[key] = appended.row.position

    def _doubt(self, key: TopicKey) -> None:
        """A row may have been written or not: whoever asks next looks."""
        self._newest.pop(key, None)


def before(where: bytes) -> bytes:
    """The last position before this one; empty when there is none."""
    number = int.from_bytes(where, "big")
    return (number - 1).to_bytes(POSITION_BYTES, "big") if number else b""


def _keep(kept: OrderedDict[TopicKey, bytes], key: TopicKey, value: bytes) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > TOPICS_MAX:
        kept.popitem(last=False)
