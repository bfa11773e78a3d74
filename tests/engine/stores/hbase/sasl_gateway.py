"""A gateway that asks for Kerberos and sends back what it is sent, on a socket; it can be told to behave as an attacker would."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from basalt_engine.stores.hbase.gateway_socket import COMPLETE, LAYERS, OK, START

RECEIVED_BYTES_MAX = 64 * 1024  # as Java has it
HANG_SECONDS = 30.0  # a bound for a hang


class SaslGateway:
    """One realm's service. Set its attributes before a client comes."""

    def __init__(self, keytab: Path, quality: str = "auth-conf") -> None:
        self.quality = quality
        self.offer = bytes([LAYERS[quality]]) + RECEIVED_BYTES_MAX.to_bytes(3, "big")
        self.connections = 0
        self.chosen: list[bytes] = []
        self.frames: list[int] = []  # how long they were
        # What stands in the place of the gateway's own tokens: for the first one, and for the offer.
        self.answers_first: Callable[[socket.socket], object] | None = None
        self.answers_offer: Callable[[socket.socket], object] | None = None
        # The frames in which an answer is sent: with the context, from the plain bytes.
        self.frames_of: Callable[[Any, bytes], list[bytes]] = self.honest
        self._keytab = keytab
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._listen, daemon=True).start()

    def honest(self, context: Any, data: bytes) -> list[bytes]:
        if self.quality == "auth":
            return [data]
        return [context.wrap(data, self.quality == "auth-conf").message]

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        import gssapi  # only where there is Kerberos

        connection.settimeout(HANG_SECONDS)
        with connection, contextlib.suppress(OSError, EOFError, gssapi.raw.misc.GSSError):
            context = self._shake_hands(connection)
            while context is not None:
                size = int.from_bytes(_exactly(connection, 4), "big")
                self.frames.append(size)
                data = _exactly(connection, size)
                plain = data if self.quality == "auth" else context.unwrap(data).message
                for frame in self.frames_of(context, plain):
                    connection.sendall(len(frame).to_bytes(4, "big") + frame)

    def _shake_hands(self, connection: socket.socket) -> Any:
        assert receive(connection) == (START, b"GSSAPI")
        status, token = receive(connection)
        assert status == OK
        if self.answers_first is not None:
            self.answers_first(connection)
            return None
        import gssapi

        credentials = gssapi.Credentials(usage="accept", store={"keytab": str(self._keytab)})
        context = gssapi.SecurityContext(creds=credentials, usage="accept")
        send(connection, OK, context.step(token) or b"")
        assert receive(connection) == (OK, b"")
        if self.answers_offer is not None:
            self.answers_offer(connection)
            return None
        send(connection, OK, context.wrap(self.offer, False).message)
        self.chosen.append(context.unwrap(receive(connection)[1]).message)
        send(connection, COMPLETE, b"")
        return context


def send(connection: socket.socket, status: int, token: bytes) -> None:
    connection.sendall(bytes([status]) + len(token).to_bytes(4, "big") + token)


def receive(connection: socket.socket) -> tuple[int, bytes]:
    head = _exactly(connection, 5)
    return head[0], _exactly(connection, int.from_bytes(head[1:], "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@contextmanager
def sasl_gateway(keytab: Path, quality: str = "auth-conf") -> Iterator[SaslGateway]:
    gateway = SaslGateway(keytab, quality)
    try:
        yield gateway
    finally:
        gateway.close()
