"""A Thrift 2 gateway in this process: real sockets, rows in memory, and HBase's way with timestamps. It fails as it is told.

A fault waits for the next call of its method: `cut-request` hangs up before the call is carried out, `cut-answer` after
it, `cut-inside` after half of the answer, `refuse:text` answers with HBase's exception, and what can be called is called before it (a
`HeldAnswer` after it).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TCyBufferedTransport, TCyMemoryBuffer, TSocket

from basalt_engine.stores.hbase.gateway import types

HANG_S = 60.0  # nothing waits that long


class FakeTable:
    """Cells and delete markers; what is visible is decided by timestamps alone, as in HBase."""

    def __init__(self):
        self.cells = defaultdict(dict)  # by key and column: timestamp and value
        self.deleted = defaultdict(lambda: -1)  # key, column (None: the row): the highest delete's timestamp

    def put(self, put):
        for cell in put.columnValues:
            row = self.cells[put.row]
            if put.timestamp >= row.get(cell.qualifier, (-1, b""))[0]:
                row[cell.qualifier] = put.timestamp, cell.value

    def delete(self, delete):
        names = [None] if delete.columns is None else [column.qualifier for column in delete.columns]
        for name in names:
            timestamp = delete.timestamp or time.time_ns() // 1_000_000
            self.deleted[delete.row, name] = max(self.deleted[delete.row, name], timestamp)

    def row(self, key):
        found = [
            types.TColumnValue(family=b"m", qualifier=name, value=value, timestamp=timestamp)
            for name, (timestamp, value) in sorted(self.cells.get(key, {}).items())
            if timestamp > max(self.deleted[key, None], self.deleted[key, name])
        ]
        return types.TResult(row=key if found else None, columnValues=found)

    def keys(self):
        return [key for key in sorted(self.cells) if self.row(key).columnValues]


class Handler:
    """The calls. A table that is not in `tables` is missing."""

    def __init__(self):
        self.tables = defaultdict(FakeTable)
        self.missing = set()
        self.lock = threading.Lock()
        self.attributes = []  # method, table and attributes of each mutation

    def _table(self, name):
        if name in self.missing:
            raise types.TIOError(message=name.decode())
        return self.tables[name]

    def get(self, table, tget):
        row = self._table(table).row(tget.row)
        if tget.columns is not None:
            names = {column.qualifier for column in tget.columns}
            row.columnValues = [cell for cell in row.columnValues if cell.qualifier in names]
        return row

    def put(self, table, tput):
        self.putMultiple(table, [tput])

    def putMultiple(self, table, tputs):
        found = self._table(table)
        for put in tputs:
            self.attributes.append(("put", table, put.attributes or {}))
            found.put(put)

    def deleteSingle(self, table, tdelete):
        self.deleteMultiple(table, [tdelete])

    def deleteMultiple(self, table, tdeletes):
        found = self._table(table)
        for delete in tdeletes:
            self.attributes.append(("delete", table, delete.attributes or {}))
            found.delete(delete)
        return []

    def checkAndPut(self, table, row, family, qualifier, value, tput):
        found = {cell.qualifier: cell.value for cell in self._table(table).row(row).columnValues}
        if found.get(qualifier) != value:
            return False
        self.putMultiple(table, [tput])
        return True

    def getScannerResults(self, table, tscan, numRows):
        found = self._table(table)
        start, stop = tscan.startRow, tscan.stopRow
        if table == b"hbase:meta":  # which sorts by table first, so that a blank may come after a comma
            keys = [key for key in found.keys() if key.startswith(start.removesuffix(b","))]  # noqa: SIM118
        elif tscan.reversed:
            keys = [key for key in found.keys()[::-1] if (not start or key <= start) and (not stop or key > stop)]
        else:
            keys = [key for key in found.keys() if key >= start and (not stop or key < stop)]  # noqa: SIM118
        rows = [found.row(key) for key in keys[: min(numRows, tscan.limit)]]
        if tscan.filterString == b"KeyOnlyFilter(true)":
            for cell in (cell for row in rows for cell in row.columnValues):
                cell.value = len(cell.value).to_bytes(4, "big")
        return rows

    def getThriftServerType(self):
        return 2


class Held:
    """A fault of calls that hang until they are let go."""

    def __init__(self):
        self.reached = threading.Event()
        self._let_go = threading.Event()

    def __call__(self):
        self.reached.set()
        self._let_go.wait(HANG_S)

    def let_go(self):
        """Answer them, and those to come."""
        self._let_go.set()


class HeldAnswer(Held):
    """A fault of calls that are carried out, and whose answers wait until they are let go."""


def nothing():
    """A fault of a call with which all is well."""


class FakeGateway:
    """Listens until it is stopped; `start` listens at the same port again."""

    def __init__(self, port):
        self.handler = Handler()
        self.calls = Counter()
        self.connections = 0
        self.deaf = False  # hangs up before it has read a request
        self._faults = []
        self._open = set()
        self._port = port
        self.start()

    @property
    def address(self):
        return "127.0.0.1", self._port

    def fail(self, method, *faults):
        """One fault for each of the next calls of this method: one by name, or what is called before the call is carried out."""
        self._faults += [(method, fault) for fault in faults]

    def start(self):
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def stop(self):
        """Close the port and every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.hang_up()

    def hang_up(self):
        """Close every connection."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        if self.deaf:
            connection.recv(100)
            connection.close()
            return
        protocol = TCyBinaryProtocol(TCyBufferedTransport(TSocket(sock=connection)), decode_response=False)
        try:
            while self._answer(connection, protocol):
                pass
        except Exception:
            pass  # the other side hung up
        finally:
            self._open.discard(connection)
            connection.close()

    def _answer(self, connection, protocol):
        processor = TProcessor(types.THBaseService, self.handler)
        method, number, result, call = processor.process_in(protocol)
        fault = next((pair[1] for pair in self._faults if pair[0] == method), None)
        if fault is not None:
            self._faults.remove((method, fault))
        if fault == "cut-request":
            return False
        if callable(fault) and not isinstance(fault, HeldAnswer):
            fault()
        self.calls[method] += 1
        try:
            if isinstance(fault, str) and fault.startswith("refuse:"):
                raise types.TIOError(message=fault.removeprefix("refuse:"))
            with self.handler.lock:
                result.success = call()
        except types.TIOError as error:
            result.io = error
        if isinstance(fault, HeldAnswer):
            fault()
        if fault == "cut-answer":
            return False
        answer = TCyMemoryBuffer()
        processor.send_result(TCyBinaryProtocol(answer), method, result, number)
        data = answer.getvalue()
        connection.sendall(data[: len(data) // 2] if fault == "cut-inside" else data)
        return fault != "cut-inside"
