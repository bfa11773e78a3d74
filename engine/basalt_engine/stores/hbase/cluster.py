"""What pruning asks of a cluster beside its rows: which regions there are, and to write some of them anew.

Its own connections, opened for each call: calls are few, and they need no lease on the store.
"""

from __future__ import annotations

from basalt_engine.errors import InputError
from basalt_engine.stores.hbase.compactions import Compactor
from basalt_engine.stores.hbase.connection import parse_address
from basalt_engine.stores.hbase.gateway import Gateway
from basalt_engine.stores.hbase.pool import ConnectionPool
from basalt_engine.stores.hbase.regions import Region, read_regions
from basalt_engine.stores.hbase.tables import table_name


class ClusterCalls:
    """Calls to the gateways at `host:port`; `thrift`, the first one's address, is needed for compactions alone."""

    def __init__(self, thrift2: str | None, prefix: str, thrift: str | None = None) -> None:
        self._thrift2 = thrift2
        self._prefix = prefix
        self.compactor = None if thrift is None else Compactor(parse_address(thrift))

    def regions(self, name: str) -> list[Region]:
        """The regions of the table of this name, in order; `StoreError` when they cannot be listed."""
        if self._thrift2 is None:
            raise InputError("the regions are listed through HBase's Thrift 2 gateway", field="store.hbase.thrift2")
        pool = ConnectionPool(parse_address(self._thrift2), connections_max=1)
        try:
            return read_regions(Gateway(pool, self._thrift2), table_name(self._prefix, name))
        finally:
            pool.close()
