"""Everything that runs in one server process, and how it ends. Wired in `basalt.server.wiring`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from basalt.errors import BasaltError
from basalt.http import services
from basalt.thrift.calls import Served
from basalt.thrift.face import ThriftFace
from basalt.thrift.metrics import ThriftMetrics
from basalt_engine.system import SystemTable


@dataclass(slots=True, kw_only=True)
class Services(services.Services):
    """The running services of one store."""

    system: SystemTable
    thrift: ThriftMetrics = field(default_factory=ThriftMetrics)

    def __post_init__(self) -> None:
        self.collectors.append(self.thrift)

    async def start_thrift(self, host: str) -> ThriftFace:
        """The Thrift face, where the settings ask for one."""
        served = Served(self.clock, self.transactions, self.scheduler, self.audit, self.thrift, lambda: self.stopping)
        return await ThriftFace.start(self.settings, served, host)

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
                await self.topic_stats.save(None, everything=True)
        await self.writer.stop()
        self.store.close()
