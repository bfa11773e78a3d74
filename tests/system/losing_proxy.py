"""A TCP proxy that loses a share of what passes: it closes a connection before a request has come, in the middle of it, or before its answer.

Which pieces are lost is drawn, and of so many in a row how many is not: however few there are, and whatever the seed, the line is as bad as it is said to be.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress

PIECE_BYTES = 1 << 16
ROUND_PIECES = 10  # of which the share is lost
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what a close sends is a reset


class LosingProxy:
    """Forwards to a port of this machine, which may be named later. Of each round of pieces that come, that share never gets an answer."""

    def __init__(self, port: int, seed: int, loses: float) -> None:
        self.port = port
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._fates: list[float] = []  # of the pieces that are left of the present round
        self._loses = loses
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
                    fate = self._next_fate()
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

    def _next_fate(self) -> float:
        """What becomes of the next piece, by parts of 1; 1: it passes."""
        with self._lock:
            if not self._fates:
                lost = round(ROUND_PIECES * self._loses)
                self._fates = [self._chance.random() for _ in range(lost)] + [1.0] * (ROUND_PIECES - lost)
                self._chance.shuffle(self._fates)
            fate = self._fates.pop()
            self.lost += fate < 1
        return fate

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
