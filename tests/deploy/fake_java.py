"""Stands for java in the tests of the starter: keeps running, and answers Thrift calls on the port it is given.

FAKE_JAVA_GOES names roles that end at once, FAKE_JAVA_TAKEN a file: while it is there, the master finds its port taken, and
removes it. FAKE_JAVA_DEAF names roles that never answer, FAKE_JAVA_STAYS roles that ignore SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from pathlib import Path

ROLE = next(word.partition("=")[2] for word in sys.argv if word.startswith("-Dbasalt.hbase.role="))


def named(variable: str) -> bool:
    return ROLE in os.environ.get(variable, "").split(",")


def serve(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                call = connection.recv(1_000)
                (length,) = struct.unpack_from("!i", call, 4)
                head = call[4 : 8 + length + 4]
                connection.sendall(b"\x80\x01\x00\x02" + head + b"\x0f\x00\x00\x0b\x00\x00\x00\x00\x00")


taken = Path(os.environ.get("FAKE_JAVA_TAKEN", "none"))
if ROLE == "master" and taken.exists():
    taken.unlink()
    sys.exit("java.net.BindException: Address already in use")
if named("FAKE_JAVA_GOES"):
    sys.exit(f"{ROLE} cannot start")
if named("FAKE_JAVA_STAYS"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--port" in sys.argv and not named("FAKE_JAVA_DEAF"):
    serve(int(sys.argv[sys.argv.index("--port") + 1]))
while True:
    signal.pause()
