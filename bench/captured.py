"""Requests as the client sends them: caught once, then sent many times by cheap load.

So whoever measures needs neither codecs nor routes, and the same bench drives trees whose bodies differ.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable

import basalt

ANSWER = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TIMEOUT_MS = 10_000
# With these a request is told apart from its repetition; without, each copy is a call.
_REPETITION = re.compile(
    rb"^basalt-(?:request-id|producer|sequence|stored-before):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE
)
_LENGTH = re.compile(rb"^content-length: *(\d+)\r\n", re.IGNORECASE | re.MULTILINE)


def captured(call: Callable[[basalt.client.Client], object], namespace: str = "default") -> bytes:
    """The first request that a call makes, without what tells its repetition."""
    caught: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_catch, args=(listener, caught))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            basalt.connect(url, namespace=namespace, timeout_ms=TIMEOUT_MS, attempts_max=1) as client,
            contextlib.suppress(basalt.errors.BasaltError),  # it is answered 400, whatever it is
        ):
            call(client)
        thread.join()
    if not caught:
        raise RuntimeError("the call has sent no request")
    return repeatable(caught[0])


def _catch(listener: socket.socket, caught: list[bytes]) -> None:
    listener.settimeout(TIMEOUT_MS / 1_000)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        return
    with connection:
        connection.settimeout(TIMEOUT_MS / 1_000)
        data = bytearray()
        while not is_whole(data):
            if not (piece := connection.recv(1 << 20)):
                return
            data += piece
        caught.append(bytes(data))
        connection.sendall(ANSWER)


def is_whole(data: bytes | bytearray) -> bool:
    """True when this is a request with all of its body."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = _LENGTH.search(data, 0, end + 2)
    return len(data) >= end + 4 + (int(length[1]) if length else 0)


def repeatable(request: bytes) -> bytes:
    """The request without the id and the numbers by which a server knows it again."""
    head, _, body = request.partition(b"\r\n\r\n")
    return _REPETITION.sub(b"", head + b"\r\n") + b"\r\n" + body


def with_id(request: bytes, request_id: str) -> bytes:
    """The request with an id, which the server remembers."""
    return request.replace(b"\r\n", f"\r\nBasalt-Request-Id: {request_id}\r\n".encode("ascii"), 1)


def encoded(request: bytes, coding: str, encode: Callable[[bytes], bytes]) -> bytes:
    """The request with its body in a content coding."""
    head, _, body = request.partition(b"\r\n\r\n")
    coded = encode(body)
    length = b"Content-Length: %d\r\nContent-Encoding: %s\r\n" % (len(coded), coding.encode())
    return _LENGTH.sub(length, head + b"\r\n") + b"\r\n" + coded
