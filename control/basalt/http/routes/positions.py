"""Positions in query parameters (`from=-1h`), as what a fetch takes. Their grammar is that of `basalt.api.positions`."""

from __future__ import annotations

from typing import NamedTuple

from basalt.api.positions import SPEC_CHARS_MAX, PositionKind, parse_position
from basalt.catalog.topics import TopicName
from basalt.http.asgi.requests import Request
from basalt.http.routes.operations import Query, flag
from basalt.messaging.read.fetch import end_of

FROM = Query(
    "from",
    str,
    {"type": "string", "maxLength": SPEC_CHARS_MAX},
    "start (the default), end, now, a message id, @milliseconds, @2026-01-31T10:00:00Z, -1h or +10m",
)
INCLUSIVE = flag("inclusive", "whether what is right at `from` counts; true by default")


class From(NamedTuple):
    """Where to begin: an id, a time in milliseconds, or None for the oldest message; and whether what is there counts."""

    at: bytes | int | None
    inclusive: bool


async def start_of(request: Request, title: TopicName) -> From:
    """What the parameters `from` and `inclusive` say."""
    text = request.text("from")
    inclusive = request.flag("inclusive", True)
    position = parse_position("start" if text is None else text, request.services.clock.now_ms(), field="from")
    if position.kind is not PositionKind.END:
        return From(position.time_ms if position.id is None else position.id, inclusive)
    newest = (await request.services.topics.open(title)).newest
    return From(end_of(newest), False) if newest else From(None, True)
