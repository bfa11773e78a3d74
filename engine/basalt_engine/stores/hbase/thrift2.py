"""The administrators' calls to HBase's second Thrift gateway: make, alter and drop tables with their attributes.

The first gateway cannot do that. One connection, for one thread. The IDL beside this file holds just the calls that Basalt
makes. A call that HBase refuses raises a `StoreError` whose `refusal` names HBase's own exception; a gateway that is away
raises one without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from basalt_engine.clock import SystemClock
from basalt_engine.errors import CorruptionError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase import definitions, without_package
from basalt_engine.stores.hbase.kerberos import KerberosLogin
from basalt_engine.stores.hbase.regions import Region
from basalt_engine.table import prefix_stop

CONNECT_TIMEOUT_MS = 5_000  # a gateway that is there answers at once, and a user at a terminal waits for it
CALL_TIMEOUT_MS = 600_000  # altering a table reopens its regions one after the other, and answers when all are open
SCAN_ROWS = 1_000  # rows of one answer; system rows are small
META_TABLE = b"hbase:meta"
INFO = b"info"  # its family
MAGIC = b"PBUF"  # before HBase's protocol buffers
START_KEY, STOP_KEY, OFFLINE, SPLIT, REPLICA = 3, 4, 5, 6, 7  # fields of its RegionInfo
NAMESPACE = b"default"
SERVER_TYPE = 2  # the answer of a Thrift 2 gateway; the first one answers 1
_MISSING_METHOD = 1  # TApplicationException.UNKNOWN_METHOD


class TableDescriptor(NamedTuple):
    """A table as HBase describes it: options by the names that the HBase shell has for them."""

    name: str
    families: Mapping[str, Mapping[str, str]]
    attributes: Mapping[str, str]


class Thrift2:
    """A connection to a Thrift 2 gateway. Use it in a `with` block, from one thread."""

    def __init__(self, address: str, *, timeout_ms: int = CALL_TIMEOUT_MS, login: KerberosLogin | None = None) -> None:
        self.address = address
        self._types = definitions()
        self._timeout_ms = timeout_ms
        from basalt_engine.stores.hbase.gateway import GatewayConnection, LostError, parse_address

        try:
            self._connection = GatewayConnection(parse_address(address), CONNECT_TIMEOUT_MS, SystemClock(), login)
        except LostError as error:
            raise StoreError(
                f"the Thrift gateway at {address} cannot be reached" + (f": {error}" if error.hint else ""),
                hint=error.hint
                or "start it with `hbase thrift2 start`, or set store.hbase.thrift2 to where it listens",
            ) from error

    def __enter__(self) -> Thrift2:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; closing twice is fine."""
        self._connection.close()

    def server_type(self) -> int:
        """2 when this is a Thrift 2 gateway, 1 when it is the other one."""
        return int(self._call("getThriftServerType"))

    def cluster_id(self) -> str:
        """The cluster's own id. A gateway older than HBase 2.6 does not know the call: `StoreError`."""
        return str(self._call("getClusterId").decode())

    def table_names(self, prefix: str) -> list[str]:
        """The tables of the default namespace whose names start so, sorted."""
        found = self._call("getTableNamesByPattern", _java_pattern(prefix), False)
        return sorted(name.qualifier.decode() for name in found if name.ns in (None, b"", NAMESPACE))

    def table_exists(self, table: str) -> bool:
        """True when there is such a table, enabled or not."""
        return bool(self._call("tableExists", self._name(table)))

    def table_enabled(self, table: str) -> bool:
        """True when the table serves reads and writes; `StoreError` when there is none."""
        return bool(self._call("isTableEnabled", self._name(table)))

    def descriptor(self, table: str) -> TableDescriptor | None:
        """The table's options and attributes; None when there is no such table."""
        if not self.table_exists(table):
            return None
        found = self._call("getTableDescriptor", self._name(table))
        families = {family.name.decode(): _text(family.attributes) for family in found.columns or []}
        return TableDescriptor(table, families, _text(found.attributes))

    def create(self, descriptor: TableDescriptor, splits: Sequence[bytes] = ()) -> None:
        """Make the table, cut into regions at `splits`; returns when they are open."""
        self._call("createTable", self._descriptor(descriptor), list(splits) or None)

    def modify(self, descriptor: TableDescriptor) -> None:
        """Make the table as described; options that are not mentioned are dropped. Returns when every region was reopened so."""
        self._call("modifyTable", self._descriptor(descriptor))

    def enable(self, table: str) -> None:
        self._call("enableTable", self._name(table))

    def disable(self, table: str) -> None:
        self._call("disableTable", self._name(table))

    def drop(self, table: str) -> None:
        """Remove a disabled table and all that is in it."""
        self._call("deleteTable", self._name(table))

    def regions(self, table: str) -> list[Region]:
        """The table's regions in order, without those that were split or merged away."""
        return read_regions(self._call, table, table)

    def get(self, table: str, key: bytes) -> dict[bytes, bytes] | None:
        """A row's columns as family:qualifier, or None."""
        found = self._call("get", table.encode(), self._types.TGet(row=key))
        return _columns(found) or None

    def scan(self, table: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """The rows from `start` up to, and not with, `stop`."""
        for result in _scanned(self._call, table.encode(), start, stop):
            yield result.row, _columns(result)

    def scan_prefix(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """The rows whose keys start with the prefix."""
        yield from self.scan(table, prefix, prefix_stop(prefix) or b"")

    def check_and_put(self, table: str, key: bytes, column: bytes, expected: bytes | None, value: bytes) -> bool:
        """Put `value` into the row's `column` (family:qualifier) iff it now is `expected` (None: absent)."""
        family, _, qualifier = column.partition(b":")
        cell = self._types.TColumnValue(family=family, qualifier=qualifier, value=value)
        put = self._types.TPut(row=key, columnValues=[cell])
        return bool(self._call("checkAndPut", table.encode(), key, family, qualifier, expected, put))

    def _name(self, table: str) -> Any:
        return self._types.TTableName(ns=NAMESPACE, qualifier=table.encode())

    def _descriptor(self, descriptor: TableDescriptor) -> Any:
        families = [
            self._types.TColumnFamilyDescriptor(name=name.encode(), attributes=_bytes(options))
            for name, options in descriptor.families.items()
        ]
        return self._types.TTableDescriptor(
            tableName=self._name(descriptor.name), columns=families, attributes=_bytes(descriptor.attributes)
        )

    def _call(self, method: str, *arguments: object) -> Any:
        from basalt_engine.stores.hbase.gateway import LostError, RefusedError

        try:
            return self._connection.call(method, arguments, self._timeout_ms)
        except RefusedError as refused:
            error: Any = refused.__cause__
            if isinstance(error, self._types.TIOError):
                told = without_package(str(refused).partition("\n")[0].strip())
                raise StoreError(f"the call {method} was refused by HBase: {told}") from error
            if error.type != _MISSING_METHOD:
                raise StoreError(f"{method} failed at the gateway {self.address}: {refused}") from error
            raise StoreError(
                f"the gateway at {self.address} does not know the call {method}",
                hint="use the Thrift 2 gateway of HBase 2.5 or later: `hbase thrift2 start`",
            ) from error
        except LostError as error:
            raise UnknownOutcomeError(
                f"the connection to the Thrift gateway at {self.address} failed in {method}: {error}",
                hint="the gateway must speak the binary protocol over a buffered transport, and store.hbase.sasl be what it asks for; "
                "its log may tell more",
            ) from error


def refusal(error: BaseException) -> str:
    """The simple name of the Java exception with which HBase refused a call, such as AccessDeniedException; else empty."""
    cause = error.__cause__
    if not isinstance(cause, definitions().TIOError):
        return ""
    head, colon, _ = (cause.message or b"").decode(errors="replace").partition(":")
    return head.rpartition(".")[2] if colon and " " not in head else "IOException"


def _java_pattern(prefix: str) -> str:
    return "".join(character if character.isalnum() else f"\\{character}" for character in prefix) + ".*"


def read_regions(call: Callable[..., Any], hbase_table: str, table: str) -> list[Region]:
    """The regions of the table of this name in HBase, in the order of their keys, by calls of this kind.

    The list comes from hbase:meta. A region that was split stays there until its daughters have files of their own; it is
    offline then, and left out here, as replicas are.
    """
    info = [definitions().TColumn(family=INFO)]
    # Meta is sorted by table, start key and number rather than by bytes; this is how HBase cuts a table out of it.
    start, stop = f"{hbase_table},,".encode(), f"{hbase_table} ,,".encode()
    found = (_region(table, result) for result in _scanned(call, META_TABLE, start, stop, columns=info))
    return sorted((region for region in found if region is not None), key=lambda region: region.start)


def _scanned(call: Callable[..., Any], table: bytes, start: bytes, stop: bytes, **options: object) -> Iterator[Any]:
    while True:
        scan = definitions().TScan(startRow=start, stopRow=stop, limit=SCAN_ROWS, caching=SCAN_ROWS, **options)
        found = call("getScannerResults", table, scan, SCAN_ROWS)
        yield from found
        if len(found) < SCAN_ROWS:
            return
        start = found[-1].row + b"\0"


def _region(table: str, result: Any) -> Region | None:
    info = {cell.qualifier: cell.value for cell in result.columnValues}
    packed = info.get(b"regioninfo")
    if packed is None:
        return None
    name: bytes = result.row
    fields = _fields(name, packed)
    if fields.get(OFFLINE) or fields.get(SPLIT) or fields.get(REPLICA):
        return None
    start, stop = fields.get(START_KEY, b""), fields.get(STOP_KEY, b"")
    assert isinstance(start, bytes)
    assert isinstance(stop, bytes)
    encoded = name.rstrip(b".").rpartition(b".")[2].decode(errors="replace")
    server = server_name(info.get(b"server"), info.get(b"serverstartcode")) or ""
    return Region(table, encoded, name, start, stop, server, info.get(b"state", b"").decode(errors="replace"))


def _fields(name: bytes, packed: bytes) -> dict[int, int | bytes]:
    """The fields of a protocol buffer: numbers and byte strings by their numbers."""
    if not packed.startswith(MAGIC):
        raise CorruptionError(f"region {name!r} is not described as HBase 2 does it")
    fields: dict[int, int | bytes] = {}
    offset = len(MAGIC)
    try:
        while offset < len(packed):
            tag, offset = _varint(packed, offset)
            value, offset = _varint(packed, offset)
            if tag & 7 == 2:
                if offset + value > len(packed):
                    raise IndexError
                fields[tag >> 3] = packed[offset : offset + value]
                offset += value
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


def server_name(address: bytes | None, start_code: bytes | None) -> str | None:
    """A region server as HBase names it, "host,port,start code", from two columns of hbase:meta; None without them."""
    if not address or not start_code:
        return None
    host, _, port = address.decode().rpartition(":")
    return f"{host},{port},{int.from_bytes(start_code, 'big')}"


def _columns(result: Any) -> dict[bytes, bytes]:
    return {cell.family + b":" + cell.qualifier: cell.value for cell in result.columnValues or []}


def _text(attributes: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {name.decode(): value.decode(errors="replace") for name, value in (attributes or {}).items()}


def _bytes(attributes: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in attributes.items()}
