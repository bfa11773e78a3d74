"""The real command line, in a process whose connections to other servers can be cut from outside, and which may leave a promise out.

    BASALT_LINE=HOST:PORT   connections to other servers go through this line of a tests/hbase/switchboard.py
    BASALT_UNSTAMPED=1      writes carry neither shard nor epoch, so that no region refuses them
    BASALT_OVERWRITING=1    a row that is to be new is written over what is there, whoever wrote that, and later

The product knows nothing of it: its event loop is another one, which dials otherwise.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvloop

LATER_EPOCHS = 1_000  # more than leaders follow one another in a test


def dial_through(line: str) -> None:
    """Have each connection that the server's event loop makes go through the line."""
    host, _, port = line.rpartition(":")

    class Loop(uvloop.Loop):
        async def create_connection(self, protocol_factory: Callable[[], Any], *place: Any, **more: Any) -> Any:
            connection = socket.socket()
            try:
                connection.setblocking(False)
                await self.sock_connect(connection, (host, int(port)))
                await self.sock_sendall(connection, f"{place[0]}:{place[1]}\n".encode())
                joined = await self.sock_recv(connection, 1)
            except BaseException:
                connection.close()
                raise
            if not joined:
                connection.close()
                raise ConnectionRefusedError(f"nobody listens at {place[0]}:{place[1]}")
            if more.get("ssl"):
                more.setdefault("server_hostname", place[0])
            return await super().create_connection(protocol_factory, sock=connection, **more)

    uvloop.run = functools.partial(uvloop.run, loop_factory=Loop)


def write_without_stamps() -> None:
    """What the store writes is fenced by nobody."""
    from basalt_engine.stores.hbase.stamps import Stamps

    stamped = Stamps.of

    def unstamped(self: Stamps, *given: Any) -> Any:
        return [each._replace(attributes={}) for each in stamped(self, *given)]

    Stamps.of = unstamped  # type: ignore[method-assign]


def overwrite() -> None:
    """A place in the log of transactions is taken as often as anybody likes, and who comes last has it.

    A plain put would not do: its timestamp has the epoch of its server, and HBase shows what has the higher one.
    """
    from basalt_engine.stores.hbase.stamps import TIME_BITS
    from basalt_engine.stores.hbase.table import HBaseTable, gateway_put
    from basalt_engine.table import Insert

    def put(self: HBaseTable, mutation: Insert) -> None:
        stamp = self._stamps.one(self.name, mutation.key)
        above = stamp._replace(timestamp=stamp.timestamp + (LATER_EPOCHS << TIME_BITS), attributes={})
        with self._write_lock.plain():
            self._writes.write("put", self._table, gateway_put(*mutation, above), rows=1)

    HBaseTable._insert = put  # type: ignore[method-assign]


def main() -> int:
    """The command line, with what the environment asks for."""
    if line := os.environ.pop("BASALT_LINE", ""):
        dial_through(line)
    if os.environ.pop("BASALT_UNSTAMPED", ""):
        write_without_stamps()
    if os.environ.pop("BASALT_OVERWRITING", ""):
        overwrite()
    from basalt.cli.main import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
