"""The regions of a table, as hbase:meta has them: who serves which keys.

A region that was split stays in meta until its daughters have files of their own; it is offline then, and left out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.hbase.connection import types
from basalt_engine.stores.hbase.gateway import Gateway
from basalt_engine.stores.hbase.thrift2 import META_TABLE, server_name

INFO = b"info"
CHUNK_ROWS = 1_000
MAGIC = b"PBUF"  # before HBase's protocol buffers
START_KEY, STOP_KEY, OFFLINE, SPLIT, REPLICA = 3, 4, 5, 6, 7  # fields of its RegionInfo


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
    """The first key that no region, or more than one, has; None when they cover all keys, each once."""
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
