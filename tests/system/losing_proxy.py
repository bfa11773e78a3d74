"""A TCP proxy that loses what it likes: it closes a connection before a request has come, in the middle of it, or before its answer."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress

PIECE_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what a close sends is a reset


class LosingProxy:
    """Forwards to a port of this machine, which may be named later. Of the requests that come while it `loses`, that share never gets an answer."""

    def __init__(self, port: int, seed: int, loses: float) -> None:
        self.port = port
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.loses = loses
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            with server, suppress(OSError):
                returning = threading.Thread(target=self._return, args=(server, client), daemon=True)
                returning.start()
                while piece := client.recv(PIECE_BYTES):
                    with self._lock:
                        fate = self._chance.random() / self.loses if self.loses else 1.0
                        self.lost += fate < 1
                    if fate < 0.2:  # it never came
                        break
                    server.sendall(piece if fate >= 0.4 else piece[: len(piece) // 2])
                    if fate < 0.4:  # half of it came
                        break
                    if fate < 1:  # it came, and its answer does not
                        break
                _reset(client)
                server.shutdown(socket.SHUT_WR)
                returning.join()

    def _return(self, server: socket.socket, client: socket.socket) -> None:
        while True:
            try:
                piece = server.recv(PIECE_BYTES)
            except OSError:
                piece = b""
            if not piece:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
                return
            with suppress(OSError):  # the client has gone; the server is to finish all the same
                client.sendall(piece)


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
