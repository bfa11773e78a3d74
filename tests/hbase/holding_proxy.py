"""A TCP proxy that holds what a client sends, as a network does that delivers late, and lets it go when told to.

What was held is delivered even when the client has closed its end meanwhile.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

PIECE_BYTES = 1 << 16


class HoldingProxy:
    """Listens at `address`; forwards to `target` (host:port) both ways."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._flowing = threading.Event()
        self._flowing.set()
        self._is_meant: Callable[[bytes], bool] = bool
        self.held_bytes = 0
        self._held: list[bytes] = []
        self.unanswered: set[socket.socket] = set()  # connections to the target on which a held call has no answer yet
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def hold(self, is_meant: Callable[[bytes], bool] = bool) -> None:
        """Keep back what clients send from now on: such pieces, and on their connections all that follows."""
        self._is_meant = is_meant
        self.held_bytes = 0
        self._held.clear()
        self.unanswered.clear()
        self._flowing.clear()

    def holds(self, words: bytes) -> bool:
        """True when a piece that it keeps back has these words, such as the name of a table."""
        return any(words in piece for piece in tuple(self._held))

    def let_go(self) -> None:
        """Deliver what was kept back, and all that follows."""
        self._flowing.set()

    def close(self) -> None:
        """Take no more connections."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._accepting.join()
        self._listener.close()
        self.let_go()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._return, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        while piece := _received(client):
            if not self._flowing.is_set() and self._is_meant(piece):
                self.held_bytes += len(piece)
                self._held.append(piece)
                self.unanswered.add(server)
                self._flowing.wait()
            try:
                server.sendall(piece)
            except OSError:
                return
        self._flowing.wait()
        _shut(server)

    def _return(self, server: socket.socket, client: socket.socket) -> None:
        while piece := _received(server):
            self.unanswered.discard(server)
            try:
                client.sendall(piece)
            except OSError:
                continue  # the client has gone; the server must be able to finish all the same
        self.unanswered.discard(server)
        _shut(client)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(PIECE_BYTES)
    except OSError:
        return b""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass
