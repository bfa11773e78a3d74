"""uvicorn's HTTP protocol with the bounds that it lacks: on a request's head, and on peers that stop in the middle.

A request's body has its time-out in `bodies`. The access log has no line for it: bytes that are refused here never were
a request.
"""

from __future__ import annotations

import asyncio
import re

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES_MAX = 65_536  # a request line and headers; ours are a tenth of it, proxies add to them
HEAD_SECONDS_MAX = 20  # for a head to be complete, from its first byte or from the connection's start
STALL_SECONDS_MAX = 60  # for a reader to take any of what waits to be sent, which holds memory until then

_UPGRADE = re.compile(rb"\r\n(upgrade:)", re.IGNORECASE)

_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(transport)
        self._in_head = True
        self._deaf = False  # what follows a broken request on its connection means nothing
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = self._arm_head_timer()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_head_timer()
        self._disarm_stall_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(_without_upgrade(data) if self._in_head else data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "head_too_large", f"the request's head is more than {HEAD_BYTES_MAX} bytes")
        elif self._head_timer is None:
            self._head_timer = self._arm_head_timer()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm_head_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_request", "this is not an HTTP/1.1 request")

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade whose head came in pieces is answered as the plain request that it also is; nobody need hear of it."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._arm_stall_timer()

    def resume_writing(self) -> None:
        self._disarm_stall_timer()
        super().resume_writing()

    def _arm_head_timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(HEAD_SECONDS_MAX, self._head_is_late)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._head_bytes:
            self._refuse(408, "request_timeout", f"no whole request head came within {HEAD_SECONDS_MAX} s")
        else:
            self.transport.close()  # nothing was asked: an answer could be taken for that of a later request

    def _arm_stall_timer(self) -> None:
        self._stall_timer = self.loop.call_later(STALL_SECONDS_MAX, self._check_stall)

    def _disarm_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _check_stall(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes >= self._unsent_bytes:
            self.transport.abort()
        else:
            self._unsent_bytes = unsent_bytes
            self._arm_stall_timer()

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer what never became a request, and hang up; but first answer the requests that came before it."""
        if self._owes_an_answer():
            self._deaf = True
            self.cycle.keep_alive = False  # hangs up after its answer
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # a body that turned out to be none: its call must not go on
            self.cycle.message_event.set()
        problem = {"type": f"urn:basalt:error:{code}", "title": _REASONS[status], "status": status, "code": code}
        body = msgspec.json.encode({**problem, "detail": detail})
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _owes_an_answer(self) -> bool:
        """Tell a request that came whole, or is being answered already, from one whose answer is complete."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or not cycle.more_body


def _without_upgrade(data: bytes) -> bytes:
    """The head without an upgrade, none of which we offer: the parser would take what follows it for another protocol's.

    Java's own HTTP client asks for HTTP/2 in this way with each first request, and sends the body right behind.
    """
    stop = data.find(b"\r\n\r\n")
    found = _UPGRADE.search(data, 0, len(data) if stop < 0 else stop)
    return data if found is None else data[: found.start(1)] + b"x-" + data[found.start(1) :]
