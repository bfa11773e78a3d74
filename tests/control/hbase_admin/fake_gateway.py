"""A Thrift 2 gateway over dicts, behind a real socket: what Basalt's administration calls of HBase, as HBase answers it.

Every refusal, and every oddity of reading hbase:meta, is as HBase 2.6.1 was seen to do it; tests/hbase/test_hbase_admin.py
shows the same commands to a real one.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TBufferedTransportFactory, TSocket, TTransportException

from basalt_engine.stores.hbase import definitions

STACK = "\n\tat org.apache.hadoop.hbase.master.HMaster.run(HMaster.java:1)\n"
START_CODE = 1_795_316_763_554
FAMILY_DEFAULTS = {
    b"VERSIONS": b"1", b"MIN_VERSIONS": b"0", b"KEEP_DELETED_CELLS": b"FALSE", b"BLOOMFILTER": b"ROW",
    b"TTL": b"2147483647", b"COMPRESSION": b"NONE", b"IN_MEMORY": b"false", b"BLOCKSIZE": b"65536",
}  # fmt: skip


class FakeTable:
    """A table's descriptor, state, regions (start key to state and server) and rows."""

    def __init__(self, descriptor: Any, splits: list[bytes], servers: list[str]) -> None:
        self.descriptor = descriptor
        self.enabled = True
        starts = [b"", *splits]
        self.regions = {start: ["OPEN", servers[number % len(servers)]] for number, start in enumerate(starts)}
        self.rows: dict[bytes, dict[bytes, bytes]] = {}


class FakeHBase:
    """A cluster: what both of its gateways show. Tests change `tables`, `refusals` and `hooks` as they like."""

    def __init__(self) -> None:
        self.tables: dict[str, FakeTable] = {}
        self.servers = ["one,16020,1", "two,16020,2"]
        self.cluster = "77671831-78e2-4772-a5b4-4c67924ceb81"
        self.refusals: dict[str, str] = {}  # by method: the Java exception with which it is refused
        self.hooks: dict[str, Callable[[], None]] = {}  # by method: called after it was done
        self.calls: list[str] = []

    def region_name(self, table: str, start: bytes) -> str:
        """The encoded name that hbase:meta has for a region."""
        return hashlib.md5(table.encode() + b"," + start).hexdigest()

    def put(self, table: str, key: bytes, column: bytes, value: bytes) -> None:
        """Store a cell, as a Basalt server or a region server would."""
        self.tables[table].rows.setdefault(key, {})[column] = value

    @property
    def writes(self) -> list[str]:
        """The calls that changed something, in order."""
        reading = ("get", "table", "is")
        return [call for call in self.calls if not call.startswith(reading)]


class Handler:
    """The calls of the service."""

    def __init__(self, hbase: FakeHBase, server_type: int) -> None:
        self._hbase = hbase
        self._server_type = server_type
        self._types = definitions()

    def __getattr__(self, name: str) -> Any:
        do = getattr(type(self), f"do_{name}", None)
        if do is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self._hbase.calls.append(name)
            if name in self._hbase.refusals:
                raise self._refused(self._hbase.refusals[name])
            answer = do(self, *arguments)
            self._hbase.hooks.get(name, lambda: None)()
            return answer

        return call

    def do_getThriftServerType(self) -> int:
        return self._server_type

    def do_getClusterId(self) -> str:
        return self._hbase.cluster

    def do_getTableNamesByPattern(self, regex: str, system: bool) -> list[Any]:
        import re

        return [self._name(name) for name in self._hbase.tables if re.fullmatch(regex, name)]

    def do_tableExists(self, name: Any) -> bool:
        return name.qualifier.decode() in self._hbase.tables

    def do_isTableEnabled(self, name: Any) -> bool:
        return self._table(name).enabled

    def do_getTableDescriptor(self, name: Any) -> Any:
        return copy.deepcopy(self._table(name).descriptor)

    def do_createTable(self, descriptor: Any, splits: list[bytes] | None) -> None:
        name = descriptor.tableName.qualifier.decode()
        if name in self._hbase.tables:
            raise self._refused(f"org.apache.hadoop.hbase.TableExistsException: {name}")
        self._check_jar(descriptor)
        self._hbase.tables[name] = FakeTable(self._stored(descriptor), splits or [], self._hbase.servers)

    def do_modifyTable(self, descriptor: Any) -> None:
        self._check_jar(descriptor)
        self._table(descriptor.tableName).descriptor = self._stored(descriptor)

    def do_enableTable(self, name: Any) -> None:
        if self._table(name).enabled:
            raise self._refused(f"tableName={name.qualifier.decode()}, state=ENABLED", stack="")
        self._set_enabled(name, True)

    def do_disableTable(self, name: Any) -> None:
        if not self._table(name).enabled:
            raise self._refused(f"org.apache.hadoop.hbase.TableNotEnabledException: {name.qualifier.decode()}")
        self._set_enabled(name, False)

    def do_deleteTable(self, name: Any) -> None:
        text = name.qualifier.decode()
        if self._table(name).enabled:
            told = f"Not DISABLED; tableName={text}, state=ENABLED"
            raise self._refused(f"org.apache.hadoop.hbase.TableNotDisabledException: {told}")
        del self._hbase.tables[text]

    def do_get(self, table: bytes, get: Any) -> Any:
        columns = self._enabled(table).rows.get(get.row, {})
        return self._result(get.row if columns else None, columns)

    def do_checkAndPut(
        self, table: bytes, row: bytes, family: bytes, qualifier: bytes, value: bytes | None, put: Any
    ) -> bool:
        columns = self._enabled(table).rows.get(row, {})
        if columns.get(family + b":" + qualifier) != value:
            return False
        for cell in put.columnValues:
            self._hbase.put(table.decode(), row, cell.family + b":" + cell.qualifier, cell.value)
        return True

    def do_getScannerResults(self, table: bytes, scan: Any, rows: int) -> list[Any]:
        if table == b"hbase:meta":
            return self._meta(scan)
        found = sorted(self._enabled(table).rows.items())
        stop = scan.stopRow or None
        within = [(key, columns) for key, columns in found if key >= (scan.startRow or b"")]
        within = [(key, columns) for key, columns in within if stop is None or key < stop]
        return [self._result(key, columns) for key, columns in within[:rows]]

    def _meta(self, scan: Any) -> list[Any]:
        name = scan.startRow.partition(b",")[0]
        # HBase's own comparator: anything shorter than `table,,` begins behind the table's first region.
        skipped = 0 if scan.startRow == name + b",," else 1
        assert scan.stopRow == name + b" ,,", scan.stopRow
        table = self._hbase.tables[name.decode()]
        found = []
        listed = sorted(table.regions.items())
        stops = [*(start for start, _ in listed[1:]), b""]
        for (start, (state, server)), stop in list(zip(listed, stops, strict=True))[skipped:]:
            host, port, code = server.split(",")
            encoded = self._hbase.region_name(name.decode(), start).encode()
            columns = {
                b"info:regioninfo": b"PBUF\x1a" + bytes([len(start)]) + start + b'"' + bytes([len(stop)]) + stop,
                b"info:state": state.encode(),
                b"info:server": f"{host}:{port}".encode(),
                b"info:serverstartcode": int(code).to_bytes(8, "big"),
            }
            found.append(self._result(name + b"," + start + b",1795317605435." + encoded + b".", columns))
        return found

    def _check_jar(self, descriptor: Any) -> None:
        """The master loads each coprocessor's jar; here every jar is there whose name does not say otherwise."""
        for name, value in descriptor.attributes.items():
            if name.startswith(b"coprocessor$") and b"missing" in value:
                path = value.partition(b"|")[0].decode()
                advice = "Set hbase.table.sanity.checks to false at conf or table descriptor if you want to bypass"
                raise self._refused(f"org.apache.hadoop.hbase.DoNotRetryIOException: {path} {advice} sanity checks")

    def _stored(self, descriptor: Any) -> Any:
        stored = copy.deepcopy(descriptor)
        for family in stored.columns:
            family.attributes = {**FAMILY_DEFAULTS, **(family.attributes or {})}
        stored.attributes = {**(stored.attributes or {}), b"IS_META": b"false"}
        return stored

    def _set_enabled(self, name: Any, enabled: bool) -> None:
        table = self._table(name)
        table.enabled = enabled
        for region in table.regions.values():
            region[0] = "OPEN" if enabled else "CLOSED"

    def _table(self, name: Any) -> FakeTable:
        text = (name if isinstance(name, bytes) else name.qualifier).decode()
        if text not in self._hbase.tables:
            raise self._refused(text, stack="")
        return self._hbase.tables[text]

    def _enabled(self, name: bytes) -> FakeTable:
        table = self._table(name)
        if not table.enabled:
            raise self._refused(f"{name.decode()} is disabled.", stack="")
        return table

    def _name(self, name: str) -> Any:
        return self._types.TTableName(ns=b"default", qualifier=name.encode())

    def _result(self, row: bytes | None, columns: dict[bytes, bytes]) -> Any:
        cells = []
        for column, value in sorted(columns.items()):
            family, _, qualifier = column.partition(b":")
            cells.append(self._types.TColumnValue(family=family, qualifier=qualifier, value=value, timestamp=1))
        return self._types.TResult(row=row, columnValues=cells)

    def _refused(self, message: str, stack: str = STACK) -> Exception:
        refused: Exception = self._types.TIOError(message=message + stack, canRetry=False)
        return refused


class FakeGateway:
    """One gateway of a cluster, listening on a port of this machine."""

    def __init__(self, hbase: FakeHBase, *, server_type: int = 2, without: tuple[str, ...] = ()) -> None:
        service: Any = type("Service", (definitions().THBaseService,), {})
        service.thrift_services = [name for name in service.thrift_services if name not in without]
        self._processor = TProcessor(service, Handler(hbase, server_type))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        handle = TSocket()
        handle.set_handle(connection)
        transport = TBufferedTransportFactory().get_transport(handle)
        protocol = TBinaryProtocolFactory().get_protocol(transport)
        # Whatever goes wrong ends the connection, as with a gateway that dies, or that is sent something else than calls.
        with (
            contextlib.suppress(TTransportException, TProtocolException, ProtocolError, OSError),
            contextlib.closing(transport),
        ):
            while True:
                self._processor.process(protocol, protocol)


@contextlib.contextmanager
def gateway(hbase: FakeHBase, **options: Any) -> Iterator[str]:
    """The address of a gateway that listens until the block ends."""
    running = FakeGateway(hbase, **options)
    try:
        yield running.address
    finally:
        running.close()
