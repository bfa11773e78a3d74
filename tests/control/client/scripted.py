"""A server that answers by script: whole answers, broken ones, or none."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec


@dataclass
class Seen:
    """A request as the scripted server got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def answer(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """An answer with its length; header names are written with underscores."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def problem(status: int, code: str, headers: Mapping[str, str] = MappingProxyType({}), **fields: Any) -> bytes:
    """An answer with a problem document, and these headers."""
    document = {"type": f"urn:basalt:error:{code}", "status": status, "code": code, "detail": f"it is {code}"} | fields
    return answer(status, msgspec.json.encode(document), content_type="application/problem+json", **headers)


CUT = b""  # close without a word


class ScriptedServer:
    """Reads a request, sends the next bytes of the script, and so on; after the script's end it repeats the last.

    With a context it speaks TLS alone.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._tls = tls
        self._host = host
        self.seen: list[Seen] = []
        self.script: list[bytes | None] = [answer()]
        self.connections = 0
        self.hold = threading.Event()  # a None in the script waits for it, and closes without an answer
        self._listener = socket.create_server((host, 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://{self._host}:{self.port}"

    def close(self) -> None:
        """Close the listener and every connection, once nobody uses them any more.

        A thread that still waits for a client of a number that is closed would wait at the next server's that gets this number.
        """
        self.hold.set()
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._begin(self._talk, connection)

    def _talk(self, connection: socket.socket) -> None:
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                return
            self._open.append(connection)
        with connection, connection.makefile("rb") as stream:
            while (request := read_request(stream)) is not None:
                reply = self.script[min(len(self.seen), len(self.script) - 1)]
                self.seen.append(request)
                if reply is None:
                    self.hold.wait(60)
                    return
                if not reply:
                    return
                connection.sendall(reply)
                if b"connection: close" in reply:
                    return


def read_request(stream: Any) -> Seen | None:
    """The next request; None when there is none any more."""
    try:
        first = stream.readline().decode()
    except OSError:
        return None
    if not first:
        return None
    method, target, _ = first.split(" ", 2)
    headers: dict[str, str] = {}
    while (line := stream.readline().decode().rstrip("\r\n")) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Seen(method, target, headers, stream.read(int(headers.get("content-length", "0"))))
