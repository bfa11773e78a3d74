"""The administrators' calls to HBase's second Thrift gateway: make, alter and drop tables with their attributes.

The first gateway cannot do that. One connection, for one thread. The IDL beside this file holds just the calls that Basalt
makes. A call that HBase refuses raises a `StoreError` whose `refusal` names HBase's own exception; a gateway that is away
raises one without.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from basalt_engine.errors import InputError, StoreError, UnknownOutcomeError
from basalt_engine.table import prefix_stop

CONNECT_TIMEOUT_MS = 5_000  # a gateway that is there answers at once; whoever waits sits at a terminal
CALL_TIMEOUT_MS = 600_000  # altering a table reopens its regions one after the other, and answers when all are open
SCAN_ROWS = 1_000  # rows of one answer; system rows are small
META_TABLE = b"hbase:meta"
NAMESPACE = b"default"
SERVER_TYPE = 2  # the answer of a Thrift 2 gateway; the first one answers 1
_MISSING_METHOD = 1  # TApplicationException.UNKNOWN_METHOD


class TableDescriptor(NamedTuple):
    """A table as HBase describes it: options by the names that the HBase shell has for them."""

    name: str
    families: Mapping[str, Mapping[str, str]]
    attributes: Mapping[str, str]


class Region(NamedTuple):
    """A region as hbase:meta has it: its encoded name, where it starts, and the server that has it open, if one has."""

    name: str
    table: str
    start: bytes
    state: str
    server: str  # host,port,start code; empty when it was never opened


@functools.cache
def definitions() -> Any:
    """The types and the service of hbase2.thrift."""
    try:
        import thriftpy2
    except ImportError:
        raise InputError(
            "talking to HBase needs the library thriftpy2",
            field="store.kind",
            hint="install basalt-mq with its extra: basalt-mq[hbase]",
        ) from None
    return thriftpy2.load(str(Path(__file__).with_name("hbase2.thrift")), module_name="hbase2_thrift")


class Thrift2:
    """A connection to a Thrift 2 gateway. Use it in a `with` block, from one thread."""

    def __init__(self, address: str, *, timeout_ms: int = CALL_TIMEOUT_MS) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._types = definitions()
        from thriftpy2.protocol import TCyBinaryProtocolFactory
        from thriftpy2.thrift import TClient
        from thriftpy2.transport import TCyBufferedTransportFactory, TSocket, TTransportException

        socket: Any = TSocket(  # type: ignore[no-untyped-call]
            host.strip("[]"), int(port), socket_timeout=timeout_ms, connect_timeout=CONNECT_TIMEOUT_MS
        )
        self._transport = TCyBufferedTransportFactory().get_transport(socket)
        try:
            self._transport.open()
        except (TTransportException, OSError) as error:
            raise StoreError(
                f"the Thrift gateway at {address} cannot be reached",
                hint="start it with `hbase thrift2 start`, or set store.hbase.thrift2 to where it listens",
            ) from error
        protocols: Any = TCyBinaryProtocolFactory()  # type: ignore[no-untyped-call]
        protocol = protocols.get_protocol(self._transport)
        self._client = TClient(self._types.THBaseService, protocol)

    def __enter__(self) -> Thrift2:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; closing twice is fine."""
        self._transport.close()

    def server_type(self) -> int:
        """2 when this is a Thrift 2 gateway, 1 when it is the other one."""
        return int(self._call("getThriftServerType"))

    def cluster_id(self) -> str:
        """The cluster's own id. A gateway older than HBase 2.6 does not know the call: `StoreError`."""
        return str(self._call("getClusterId"))

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
        # hbase:meta sorts by table, start key and number, not by bytes; HBase's own code cuts a table out like this.
        rows = self.scan(META_TABLE.decode(), f"{table},,".encode(), f"{table} ,,".encode())
        return [
            _region(table, key, columns)
            for key, columns in rows
            if b"info:splitA" not in columns and b"info:regioninfo" in columns
        ]

    def get(self, table: str, key: bytes) -> dict[bytes, bytes] | None:
        """A row's columns as family:qualifier, or None."""
        found = self._call("get", table.encode(), self._types.TGet(row=key))
        return _columns(found) or None

    def scan(self, table: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """The rows from `start` up to, and not with, `stop`."""
        while True:
            scan = self._types.TScan(startRow=start, stopRow=stop, caching=SCAN_ROWS)
            found = self._call("getScannerResults", table.encode(), scan, SCAN_ROWS)
            yield from ((result.row, _columns(result)) for result in found)
            if len(found) < SCAN_ROWS:
                return
            start = found[-1].row + b"\0"

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
        from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
        from thriftpy2.protocol.exc import TProtocolException
        from thriftpy2.thrift import TApplicationException
        from thriftpy2.transport import TTransportException

        try:
            return getattr(self._client, method)(*arguments)
        except self._types.TIOError as error:
            raise StoreError(f"the call {method} was refused by HBase: {_first_line(error.message)}") from error
        except TApplicationException as error:
            if error.type != _MISSING_METHOD:
                raise StoreError(f"{method} failed at the gateway {self.address}: {error.message}") from error
            raise StoreError(
                f"the gateway at {self.address} does not know the call {method}",
                hint="use the Thrift 2 gateway of HBase 2.5 or later: `hbase thrift2 start`",
            ) from error
        except (TTransportException, TProtocolException, ProtocolError, OSError, EOFError) as error:
            self.close()  # an answer may still be on its way, and would be taken for the next call's
            raise UnknownOutcomeError(
                f"the connection to the Thrift gateway at {self.address} failed in {method}: {error}",
                hint="the gateway must speak the binary protocol over a buffered transport; its log may tell more",
            ) from error


def refusal(error: BaseException) -> str:
    """The simple name of the Java exception with which HBase refused a call, such as AccessDeniedException; else empty."""
    cause = error.__cause__
    if not isinstance(cause, definitions().TIOError):
        return ""
    head, colon, _ = (cause.message or "").partition(":")
    return head.rpartition(".")[2] if colon and " " not in head else "IOException"


def _first_line(message: str | None) -> str:
    """A Java exception without its package and its stack."""
    return without_package((message or "no reason given").partition("\n")[0].strip())


def without_package(line: str) -> str:
    """The line of a Java exception without the package of its class: `IOException: why`. Any other line as it is."""
    head, colon, rest = line.partition(": ")
    return f"{head.rpartition('.')[2]}: {rest}" if colon and " " not in head else line


def _java_pattern(prefix: str) -> str:
    return "".join(character if character.isalnum() else f"\\{character}" for character in prefix) + ".*"


def _region(table: str, key: bytes, columns: Mapping[bytes, bytes]) -> Region:
    """Row `table,start key,number.encoded name.`; only the start key may hold commas and dots."""
    head, _, encoded = key.rstrip(b".").rpartition(b".")
    start = head[len(table) + 1 :].rpartition(b",")[0]
    state = columns.get(b"info:state", b"").decode(errors="replace")
    server = server_name(columns.get(b"info:server"), columns.get(b"info:serverstartcode"))
    return Region(encoded.decode(errors="replace"), table, start, state, server or "")


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
