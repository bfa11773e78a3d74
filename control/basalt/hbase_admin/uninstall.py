"""Removes Basalt's tables of one prefix, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from basalt.cluster.lease import LEASE
from basalt.errors import ConflictError
from basalt.hbase_admin.gateway import SystemRows
from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.tables import table_name
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.table import TABLE_NAMES


class LostTable(NamedTuple):
    """A table that goes."""

    name: str
    regions: int


class Uninstall:
    """The removal of one installation. Cut short, it is completed by the next run: the system table goes last."""

    def __init__(self, gateway: Thrift2, prefix: str, clock: Clock) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._clock = clock
        self._rows = SystemRows(gateway, prefix)

    def tables(self) -> list[LostTable]:
        """The tables that are there, in the order in which they go."""
        there = set(self._gateway.table_names(f"{self._prefix}."))
        names = [table_name(self._prefix, table) for table in TABLE_NAMES]
        assert names[-1] == self._rows.table, names
        return [LostTable(name, len(self._gateway.regions(name))) for name in names if name in there]

    def topics(self) -> int:
        """The number of entries in the metadata table, which go with the tables; deleted ones count too."""
        table = table_name(self._prefix, "metadata")
        if not self._serves(table):
            return 0
        return sum(1 for _ in self._gateway.scan(table, b"", b""))

    def check_nobody_leads(self) -> None:
        """`ConflictError` while a server holds the lease: it would go on writing to tables that are going."""
        lease = self._rows.record(LEASE) if self._serves(self._rows.table) else None
        if lease is not None and not lease.is_released and lease.expire_ms > self._clock.now_ms():
            raise ConflictError(
                f"{lease.holder} at {lease.url} leads on these tables",
                hint="stop every server of this installation first; a server that was killed is forgotten in seconds",
            )

    def drop(self, name: str) -> None:
        """Disable and drop one of the tables."""
        if self._gateway.table_enabled(name):
            self._gateway.disable(name)
        self._gateway.drop(name)

    def _serves(self, table: str) -> bool:
        return self._gateway.table_exists(table) and self._gateway.table_enabled(table)
