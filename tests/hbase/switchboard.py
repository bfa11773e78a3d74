"""Carries what servers send each other, their links and the calls that they pass on, so that any two can be cut off from each other.

Each server dials through a line of its own (tests/hbase/dialing_server.py), so who calls is known, and whom by the port. While two are cut off
nothing comes through either way, and no connection is made; what was sent meanwhile arrives when they are joined again, as TCP would have it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

PIECE_BYTES = 1 << 16
JOINED = b"+"  # what the caller gets once the other one has taken the connection
NAME_BYTES_MAX = 64  # HOST:PORT and a line feed


class Switchboard:
    """Lines of servers, by their names, and the pairs that are cut off from each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cut: Callable[[str, int], bool] = lambda _who, _port: False
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.held_bytes = 0  # of the present cut, or of the last one

    def line(self, who: str) -> str:
        """The address through which this server reaches others."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        accepting = threading.Thread(target=self._accept, args=(listener, who), daemon=True)
        accepting.start()
        self._threads.append(accepting)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def cut_off(self, who: str, ports: Iterable[int]) -> None:
        """Let nothing pass between this server, which listens at these ports, and all others."""
        own = frozenset(ports)
        with self._changed:
            self.held_bytes = 0
            self._cut = lambda caller, port: caller == who or port in own

    def join(self) -> None:
        """Let all pass again, and what was held first."""
        with self._changed:
            self._cut = lambda _who, _port: False
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more connections."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()
        self.join()

    def _accept(self, listener: socket.socket, who: str) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(caller, who), daemon=True).start()

    def _connect(self, caller: socket.socket, who: str) -> None:
        named = b""
        with suppress(OSError):
            while not named.endswith(b"\n") and len(named) < NAME_BYTES_MAX and (byte := caller.recv(1)):
                named += byte
        if not named.endswith(b"\n"):
            caller.close()
            return
        host, _, port = named.decode().strip().rpartition(":")
        self._wait(who, int(port), 0)
        try:
            called = socket.create_connection((host, int(port)))
            caller.sendall(JOINED)
        except OSError:
            caller.close()
            return
        for source, target in ((caller, called), (called, caller)):
            threading.Thread(target=self._carry, args=(source, target, who, int(port)), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, who: str, port: int) -> None:
        while True:
            try:
                piece = source.recv(PIECE_BYTES)
            except OSError:
                piece = b""
            self._wait(who, port, len(piece))
            with suppress(OSError):
                if piece:
                    target.sendall(piece)
                    continue
                target.shutdown(socket.SHUT_WR)
            return

    def _wait(self, who: str, port: int, size: int) -> None:
        """Until the two are not cut off from each other: an end of a connection is not heard of either."""
        with self._changed:
            if self._cut(who, port):
                self.held_bytes += size
                self._changed.wait_for(lambda: not self._cut(who, port))
