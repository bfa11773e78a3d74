"""A client's requests in the traces of the program that makes them, where that program uses OpenTelemetry.

Each request has a span, and takes along `traceparent` (W3C Trace Context), with which the server's span goes on. A program that has not
imported OpenTelemetry pays for a look into a dictionary.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from basalt.client.attempts import Send
from basalt.client.plans import Answer, Reply
from basalt.client.servers import ServerUrl

if TYPE_CHECKING:
    from opentelemetry.trace import Span

ERROR_STATUS_MIN = 400


def begun(request: Send, url: ServerUrl) -> tuple[Span | None, dict[str, str]]:
    """The span of a request that is about to be sent, and the headers that go with it; None and none where nobody traces."""
    if "opentelemetry.trace" not in sys.modules:
        return None, {}
    from opentelemetry import propagate, trace

    span = trace.get_tracer("basalt.client").start_span(
        request.method,
        kind=trace.SpanKind.CLIENT,
        attributes={
            "http.request.method": request.method,
            "url.full": url.text + request.target,
            "server.address": url.host,
            "server.port": url.port,
        },
    )
    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(span))
    return span, headers


def ended(span: Span | None, reply: Reply | None) -> None:
    """The request was answered, or not (None: it was given up)."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    status = reply.status if isinstance(reply, Answer) else None
    if status is not None:
        span.set_attribute("http.response.status_code", status)
    if status is None or status >= ERROR_STATUS_MIN:
        span.set_attribute("error.type", type(reply).__name__ if status is None else str(status))
        span.set_status(StatusCode.ERROR)
    span.end()
