"""The access log: one line a request on the logger `basalt.access`, never a payload.

The message is in Common Log Format with the referrer and the agent left out, which every log tool reads; the same as
named values is in the record's `fields`, for handlers that write JSON lines.
"""

from __future__ import annotations

import logging
import time

from basalt.http.asgi.requests import RequestHead

LOGGER = logging.getLogger("basalt.access")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


def write(request: RequestHead, duration_ms: float, now_ms: int) -> None:
    """Log one request that was answered (or given up: status 499)."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    fields = entry(request, duration_ms)
    line = f'{fields["client"]} - - [{common_log_time(now_ms)}] "{fields["method"]} {fields["target"]} HTTP/1.1"'
    LOGGER.info("%s %d %d", line, request.status, request.sent_bytes, extra={"fields": fields})


def entry(request: RequestHead, duration_ms: float) -> dict[str, object]:
    """The values of one line, by name."""
    scope = request.scope
    client = scope.get("client")
    return {
        "client": client[0] if client else "-",
        "method": scope["method"],
        "target": _target(scope.get("raw_path") or b"", scope["query_string"]),
        "route": request.route,
        "status": request.status,
        "sentBytes": request.sent_bytes,
        "durationMs": round(duration_ms, 3),
        "requestId": request.id,
    }


def common_log_time(now_ms: int) -> str:
    """A time as such logs write it, in UTC: 21/Nov/2026:22:32:15 +0000."""
    moment = time.gmtime(now_ms // 1_000)
    date = f"{moment.tm_mday:02}/{MONTHS[moment.tm_mon - 1]}/{moment.tm_year:04}"
    return f"{date}:{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02} +0000"


def _target(raw_path: bytes, query_string: bytes) -> str:
    """Path and query as sent, with what could break a line of the log escaped."""
    raw = raw_path + (b"?" + query_string if query_string else b"")
    return "".join(chr(byte) if 33 <= byte <= 126 and byte != 34 else f"%{byte:02X}" for byte in raw[:2_000])
