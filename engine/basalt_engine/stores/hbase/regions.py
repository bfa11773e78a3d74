"""The regions of a table: who serves which keys, and a major compaction of one of them.

The list comes from hbase:meta. A region that was split stays there until its daughters have files of their own; it is
offline then, and left out here. A compaction is asked for through HBase's first Thrift gateway, for only that one has
the call; the library happybase is made for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from basalt_engine.errors import CorruptionError, InputError, StoreError
from basalt_engine.stores.hbase.connections import ConnectionPool, parse_address, types
from basalt_engine.stores.hbase.gateway import Gateway
from basalt_engine.stores.hbase.tables import table_name
from basalt_engine.stores.hbase.thrift2 import META_TABLE, server_name

INFO = b"info"
CHUNK_ROWS = 1_000
MAGIC = b"PBUF"  # before HBase's protocol buffers
START_KEY, STOP_KEY, OFFLINE, SPLIT, REPLICA = 3, 4, 5, 6, 7  # fields of its RegionInfo
COMPACT_TIMEOUT_MS = 10_000  # the region server notes the wish, and answers


class Region(NamedTuple):
    """One region. `name` is its whole name, table and start key included; `server` is None while none has it open."""

    name: bytes
    start: bytes
    stop: bytes | None
    server: str | None  # host,port,start code

    @property
    def encoded_name(self) -> str:
        """The part of its name that is unique by itself, in hex digits."""
        return self.name.rstrip(b".").rpartition(b".")[2].decode()


def read_regions(gateway: Gateway, table: str) -> list[Region]:
    """The table's regions in the order of their keys; parents of splits and replicas are left out."""
    regions = [region for name, info in _rows(gateway, table) if (region := _region(name, info)) is not None]
    return sorted(regions, key=lambda region: region.start)


def find_hole(regions: list[Region]) -> bytes | None:
    """The first key that no region has, or more than one; None when they cover all keys, each once."""
    start: bytes | None = b""
    for region in regions:
        if region.start != start:
            return start
        start = region.stop
    return start


def _rows(gateway: Gateway, table: str) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    # Meta is sorted by table, start key and number rather than by bytes; this is how HBase cuts a table out of it.
    start, stop = f"{table},,".encode(), f"{table} ,,".encode()
    while True:
        scan = types.TScan(
            startRow=start, stopRow=stop, limit=CHUNK_ROWS, caching=CHUNK_ROWS, columns=[types.TColumn(family=INFO)]
        )
        found: list[Any] = gateway.read("getScannerResults", META_TABLE, scan, CHUNK_ROWS)
        for result in found:
            yield result.row, {cell.qualifier: cell.value for cell in result.columnValues}
        if len(found) < CHUNK_ROWS:
            return
        start = found[-1].row + b"\0"


def _region(name: bytes, info: dict[bytes, bytes]) -> Region | None:
    packed = info.get(b"regioninfo")
    if packed is None:
        return None
    fields = _fields(name, packed)
    if fields.get(OFFLINE) or fields.get(SPLIT) or fields.get(REPLICA):
        return None
    start, stop = fields.get(START_KEY, b""), fields.get(STOP_KEY, b"")
    assert isinstance(start, bytes)
    assert isinstance(stop, bytes)
    server = server_name(info.get(b"server"), info.get(b"serverstartcode"))
    return Region(name, start, stop or None, server)


def _fields(name: bytes, packed: bytes) -> dict[int, int | bytes]:
    """The fields of a protocol buffer: numbers and byte strings by their numbers."""
    if not packed.startswith(MAGIC):
        raise CorruptionError(f"region {name!r} is not described as HBase 2 does it")
    fields: dict[int, int | bytes] = {}
    at = len(MAGIC)
    try:
        while at < len(packed):
            tag, at = _varint(packed, at)
            value, at = _varint(packed, at)
            if tag & 7 == 2:
                if at + value > len(packed):
                    raise IndexError
                fields[tag >> 3] = packed[at : at + value]
                at += value
            elif tag & 7 == 0:
                fields[tag >> 3] = value
            else:
                raise IndexError
    except IndexError:
        raise CorruptionError(f"region {name!r} has a description that cannot be read") from None
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class ClusterCalls:
    """The calls that pruning makes to a cluster beside reading rows, through the gateways at `host:port`.

    Listing regions opens its own connection for each call: calls are few, and they need no lease on the store. `thrift`,
    the first gateway's address, is needed for compactions alone.
    """

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


class Compactor:
    """Major compactions of single regions, through the first Thrift gateway at an address; a connection for each call."""

    def __init__(self, address: tuple[str, int], timeout_ms: int = COMPACT_TIMEOUT_MS) -> None:
        self._address = address
        self._timeout_ms = timeout_ms

    def major_compact(self, region_name: bytes) -> None:
        """Have the region of this whole name compacted soon; returns at once. `StoreError` when it will not be."""
        import happybase
        from Hbase_thrift import IOError as HBaseIOError  # the module that happybase makes of its IDL
        from thriftpy2.thrift import TException

        host, port = self._address
        try:
            connection = happybase.Connection(host, port, timeout=self._timeout_ms)
            try:
                connection.compact_table(region_name, major=True)  # HBase takes the name of either
            finally:
                connection.close()
        except HBaseIOError as error:
            raise StoreError(f"HBase does not compact region {region_name!r}: {_reason(error)}") from error
        except (OSError, EOFError, TException) as error:
            raise StoreError(
                f"HBase's Thrift gateway at {host}:{port} does not answer: {_reason(error)}",
                hint="see that `hbase thrift start` runs there, and that store.hbase.thrift names it",
            ) from error


def _reason(error: Any) -> str:
    """The first line of the error's text, which may be a whole Java stack."""
    text = getattr(error, "message", None) or repr(error)
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).partition("\n")[0]
