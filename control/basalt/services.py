"""Everything that runs in one server process, as the faces and jobs are given it. Wired in `basalt.server.wiring`."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from basalt.catalog.topics import TopicName
from basalt.cluster.leader import Leadership
from basalt.commits.coordinator import Coordinator
from basalt.messaging.index.topic_stats import Usage
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers.topic_markers import TopicMarkers
from basalt.messaging.peek import Peek
from basalt.messaging.publish import Messages
from basalt.messaging.ranges.ranges import Ranges
from basalt.messaging.read.blocked_readers import Blocking
from basalt.messaging.truncation import Truncation
from basalt.operations.audit import Audit
from basalt.operations.backups import Backups
from basalt.operations.scheduler import Scheduler
from basalt.pruning.prune import Pruner
from basalt.runtime.group_commit import GroupCommit
from basalt.runtime.store_calls import StoreCalls
from basalt.settings import Settings
from basalt.tables.tables import Tables
from basalt.transactions.rules.pointers import TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.installation import FACTS
from basalt_engine.system import SystemTable
from basalt_engine.table import Store


class Part(NamedTuple):
    """Whether one part of the server works, and how long it took to tell."""

    name: str
    ok: bool
    latency_ms: float
    detail: str = ""


@dataclass(slots=True)
class ThriftFigures:
    """What the Thrift face counts. `calls` by method and outcome; `refused` are connections that did not speak its protocol.

    `registered`: whether it is to be found in ZooKeeper; None where it need not be.
    """

    connections: int = 0
    refused: int = 0
    registered: bool | None = None
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class Services:
    """The running services of one store."""

    settings: Settings
    clock: Clock
    store: Store
    system: SystemTable
    writer: GroupCommit
    topics: TopicLogs
    messaging: Messages
    markers: TopicMarkers
    tables: Tables
    peek: Peek
    usage: Usage
    blocking: Blocking
    ranges: Ranges
    truncation: Truncation
    transactions: Coordinator
    ids: TransactionIds
    pruner: Pruner
    scheduler: Scheduler
    backups: Backups
    audit: Audit
    started_ms: int
    instance: str
    leadership: Leadership | None = None  # of a server that shares its store with others
    thrift: ThriftFigures = field(default_factory=ThriftFigures)
    stopping: bool = field(default=False)

    async def readiness(self) -> list[Part]:
        """Each part that a request may need, tried."""
        parts = [await self._store_part(), self._transactions_part(), self._server_part()]
        if self.leadership is not None:
            leads = self.leadership.is_leader
            parts.append(
                Part("leader", leads, 0.0, f"{'leads' if leads else 'led'} under epoch {self.leadership.epoch}")
            )
        return parts

    async def _store_part(self) -> Part:
        start_ms = self.clock.monotonic_ms()
        try:
            await StoreCalls(self.store)(FACTS.get, self.system)
        except BasaltError as error:
            return Part("store", False, self.clock.monotonic_ms() - start_ms, error.message)
        return Part("store", True, self.clock.monotonic_ms() - start_ms, self.store.kind)

    def _transactions_part(self) -> Part:
        try:
            count = self.transactions.state.in_progress_count
        except BasaltError as error:
            return Part("transactions", False, 0.0, error.message)
        return Part("transactions", True, 0.0, f"{count} in progress")

    def _server_part(self) -> Part:
        return Part("server", not self.stopping, 0.0, "stopping" if self.stopping else "running")

    async def join_topic(self, transaction_id: int, title: TopicName) -> None:
        """The topic takes part in the transaction from now on."""
        log = await self.topics.open(title)  # held, so that the stage finds it
        await self.transactions.join_topic(transaction_id, log.topic)

    def holder(self, write_pointer: int) -> str:
        """The id, as it is shown, of the transaction that makes a reader wait at a row of this writer."""
        return self.ids.text(self.transactions.manager.id_of(write_pointer))

    def stop_waiting(self) -> None:
        """The server is about to stop: fetches that wait are answered with what there is."""
        self.stopping = True
        self.markers.stop_waiting()
        self.messaging.stop_waiting()

    async def close(self) -> None:
        """Answer what was taken, then let go of the store."""
        self.stop_waiting()
        await self.scheduler.stop()
        if self.leadership is None or self.leadership.is_leader:  # who leads no more writes no more
            with contextlib.suppress(BasaltError):  # counts that are not saved are counted again
                await self.markers.save(everything=True)
                await self.usage.save(None, everything=True)
        await self.writer.stop()
        self.store.close()
