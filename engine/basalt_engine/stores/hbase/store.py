"""The store on an HBase cluster, reached through its Thrift 2 gateway. Tables and calls: docs/formats/hbase-store.md."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from basalt_engine.clock import Clock, SystemClock
from basalt_engine.errors import InputError, StoreError
from basalt_engine.stores.hbase.gateway import (
    CONNECT_TIMEOUT_MS,
    ConnectionPool,
    Gateway,
    GatewayConnection,
    LostError,
    NoTableError,
    no_table,
    parse_address,
)
from basalt_engine.stores.hbase.kerberos import KerberosLogin
from basalt_engine.stores.hbase.regions import WRITER_TABLES, Region
from basalt_engine.stores.hbase.scan import Prefetcher
from basalt_engine.stores.hbase.stamps import Stamps, encode_fence
from basalt_engine.stores.hbase.table import HBaseTable, WriteProgress
from basalt_engine.stores.hbase.tables import own_coprocessor, table_name
from basalt_engine.stores.hbase.thrift2 import Thrift2, read_regions
from basalt_engine.stores.shards import SHARDED_TABLES, Epochs
from basalt_engine.table import TABLE_NAMES, TableWrite, check_table

FIRST_KEY = b"\0"  # in the region that has no start key
FENCE_ROUNDS_MAX = 20  # regions that split while they are fenced turn up in the next round
# Regions are fenced so many at a time: a table of 256 takes a tenth of a second. Fewer than the connections for writes, so that other
# shards' writes go on.
FENCES_MAX = 8
DESCRIBE_TIMEOUT_MS = 10_000  # of the master, which has a table's descriptor in memory
PREFETCH_THREADS_MAX = 8  # the salt buckets of a topic are read side by side by as many
READ_CONNECTIONS_MAX = 32  # a server has 24 threads that read, and the store 8 that fetch ahead
# Writes, and the reads that a write needs, have connections of their own, because readers of a region that does not answer
# may hold all of theirs. A server has up to 8 writers of topics and one of the log, all of which may be stuck, and at most 8 other
# threads at a time that change a topic or a note.
WRITE_CONNECTIONS_MAX = 20
LOG = "transaction_log"
COMPACT_TIMEOUT_MS = 10_000  # the region server notes the wish, and answers


class HBaseStore:
    """The tables of one installation. Any thread may call it."""

    kind = "hbase"
    atomic = False
    remote = True
    busy = False

    def __init__(
        self,
        reads: Gateway,
        writes: Gateway,
        prefix: str,
        *,
        applies_retention: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.address = reads.address
        self.prefix = prefix
        self.applies_retention = applies_retention  # as Basalt's coprocessor does
        self._reads = reads
        self._writes = writes
        self._stamps = Stamps((clock or SystemClock()).now_ms)
        self._prefetcher = Prefetcher(PREFETCH_THREADS_MAX)
        self._tables = {
            name: HBaseTable(name, table_name(prefix, name), reads, writes, self._stamps, self._prefetcher)
            for name in TABLE_NAMES
        }

    @property
    def gateways(self) -> dict[str, Gateway]:
        """The pools of connections, by what they are for: figures of each are in the metrics."""
        return {"reads": self._reads, "writes": self._writes}

    @classmethod
    def open(
        cls,
        address: str,
        prefix: str = "basalt",
        *,
        read_connections_max: int = READ_CONNECTIONS_MAX,
        clock: Clock | None = None,
        login: KerberosLogin | None = None,
        again_ms: float | None = None,
    ) -> HBaseStore:
        """The tables whose names start with `prefix.`, through the Thrift 2 gateway at `host:port`. `again_ms`: as a `Gateway` has it.

        Raises `StoreError` when the gateway is away or the tables cannot be read, `NoTableError` when one is missing. The log of
        transactions may be away: all else goes on without it.
        """
        place = parse_address(address)
        store = cls(
            Gateway(
                ConnectionPool(place, connections_max=read_connections_max, login=login), address, again_ms=again_ms
            ),
            Gateway(
                ConnectionPool(place, connections_max=WRITE_CONNECTIONS_MAX, login=login), address, again_ms=again_ms
            ),
            prefix,
            applies_retention=_has_coprocessor(address, table_name(prefix, "message"), login),
            clock=clock,
        )
        try:
            for name in TABLE_NAMES:
                if name != LOG:
                    store.table(name).get(FIRST_KEY)
            if not store.regions(LOG):
                raise no_table(table_name(prefix, LOG))
        except BaseException:
            store.close()
            raise
        return store

    def table(self, name: str) -> HBaseTable:
        check_table(name)
        return self._tables[name]

    def write(self, writes: Sequence[TableWrite]) -> None:
        """Apply the writes in order, row by row."""
        progress = WriteProgress()
        for name, mutations in writes:
            self.table(name).apply(mutations, progress)

    def lead(self, epoch: int) -> None:
        """Write as the leader of this epoch; each region refuses lower ones from when it has this one's fence.

        The log of transactions needs none: a place in it is taken once. So a leader can begin while it is away.
        """
        self._fence([name for name in TABLE_NAMES if name != LOG], encode_fence(epoch, {}))
        self._stamps.lead(epoch)

    def take(self, shards: Epochs) -> None:
        """Write to these shards under these epochs; each region refuses lower ones from when it has this fence."""
        self._fence(SHARDED_TABLES, encode_fence(0, shards))
        self._stamps.take(shards)

    def _fence(self, tables: Sequence[str], fence: bytes) -> None:
        fenced: set[bytes] = set()

        def fence_one(found: tuple[str, Region]) -> None:
            name, region = found
            self.table(name).fence(region.start or FIRST_KEY, fence)

        with ThreadPoolExecutor(FENCES_MAX, thread_name_prefix="basalt-fence") as threads:
            for _ in range(FENCE_ROUNDS_MAX):
                listed = zip(tables, threads.map(self.regions, tables), strict=True)
                new = [(name, region) for name, regions in listed for region in regions if region.name not in fenced]
                if not new:
                    return
                for _ in threads.map(fence_one, new):
                    pass  # one that fails raises
                fenced.update(region.name for _, region in new)
        raise InputError(f"the regions of tables {', '.join(tables)} change faster than they can be fenced")

    def regions(self, name: str) -> list[Region]:
        """The regions of the table of this name, in order."""
        return read_regions(self._writes.read, self.table(name).hbase_name, name)

    def checkpoint(self, directory: Path) -> None:
        """`InputError`: a cluster's tables do not fit into a directory."""
        raise InputError(
            f"tables in HBase cannot be copied into {directory}",
            hint="take HBase snapshots of them, with the HBase shell's `snapshot`",
        )

    def close(self) -> None:
        """Hang up and end the threads; closing twice is fine."""
        self._reads.close()
        self._writes.close()
        self._prefetcher.close()


class HBaseCluster:
    """The calls that pruning makes to a cluster beside reading rows, through its gateways at `host:port`.

    Each opens its own connection: calls are few, and they need no lease on the store. A compaction is asked for through
    HBase's first Thrift gateway, for only that one has the call.
    """

    def __init__(
        self, thrift2: str, prefix: str, thrift: str | None = None, login: KerberosLogin | None = None
    ) -> None:
        self._thrift2 = thrift2
        self._prefix = prefix
        self._thrift = thrift
        self._login = login

    def regions(self) -> list[Region]:
        """The regions of the tables that rows with writers are in, without those that were split or merged away."""
        pool = ConnectionPool(parse_address(self._thrift2), connections_max=1, login=self._login)
        try:
            read = Gateway(pool, self._thrift2).read
            tables = [(table_name(self._prefix, table), table) for table in WRITER_TABLES]
            return [region for name, table in tables for region in read_regions(read, name, table)]
        finally:
            pool.close()

    def major_compact(self, region: Region) -> None:
        """Have all files of the region written anew, soon; returns at once. `StoreError` when they will not be."""
        if self._thrift is None:
            raise StoreError(
                "store.hbase.thrift is not set: HBase's second Thrift gateway cannot ask for a compaction",
                hint="name the first gateway, or set store.hbase.prune_compactions to 0",
            )
        import happybase  # noqa: F401  # which makes the next module of its IDL
        from Hbase_thrift import IOError as HBaseIOError
        from thriftpy2.thrift import TException

        try:
            connection = _first_gateway(parse_address(self._thrift), self._login)
            try:
                connection.compact_table(region.name, major=True)  # HBase takes the name of either
            finally:
                connection.close()
        except HBaseIOError as error:
            raise StoreError(f"HBase does not compact region {region.name!r}: {_reason(error)}") from error
        except (OSError, EOFError, TException, LostError) as error:
            hint = error.hint if isinstance(error, LostError) else None
            raise StoreError(
                f"HBase's Thrift gateway at {self._thrift} does not answer: {_reason(error)}",
                hint=hint or "see that `hbase thrift start` runs there, and that store.hbase.thrift names it",
            ) from error


def _first_gateway(address: tuple[str, int], login: KerberosLogin | None) -> Any:
    """happybase's connection to HBase's first Thrift gateway, on a socket of ours: its own speaks no SASL."""
    import happybase
    from Hbase_thrift import Hbase

    class FirstGateway(happybase.Connection):  # type: ignore[misc]  # it has no types
        def _refresh_thrift_client(self) -> None:
            self.gateway = GatewayConnection(address, CONNECT_TIMEOUT_MS, SystemClock(), login, service=Hbase)
            self.client = self.gateway.begun(COMPACT_TIMEOUT_MS)

        def open(self) -> None:
            """It is open since it was made."""

        def close(self) -> None:
            self.gateway.close()

    return FirstGateway()


def _has_coprocessor(address: str, table: str, login: KerberosLogin | None) -> bool:
    with Thrift2(address, timeout_ms=DESCRIBE_TIMEOUT_MS, login=login) as gateway:
        descriptor = gateway.descriptor(table)
    if descriptor is None:
        raise no_table(table)
    return own_coprocessor(descriptor.attributes) is not None


def _reason(error: Any) -> str:
    """The first line of the error's text, which may be a whole Java stack."""
    text = getattr(error, "message", None) or str(error) or repr(error)
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).partition("\n")[0]


__all__ = ["HBaseStore", "NoTableError"]
