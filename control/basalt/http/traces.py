"""Spans for OpenTelemetry: one for each request, and one for each thing that it waited for. Configured by `OTEL_*` alone, and absent without.

A span is made when its request is answered: what the request waited for is noted meanwhile anyway (`basalt_engine.clock`), so that a
request which is not sampled costs next to nothing. A request goes on with the trace of its `traceparent` (W3C Trace Context). The span of a
commit has a link to each request that began its transaction or stored under it; that of a fetch to the traces in the headers
`traceparent` of messages that it answered. No message has a span of its own.

Attributes are OpenTelemetry's: those of HTTP are stable, those of messaging still change, and `MESSAGING` is the one place that has them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from basalt.errors import InvalidSettingError
from basalt.http.asgi.requests import RequestHead
from basalt.http.asgi.responses import WAITING
from basalt_engine import __version__
from basalt_engine.clock import Stages
from basalt_engine.records import BatchSection, RecordBatch

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, SpanContext

TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
HEADER = "traceparent"
LINKS_MAX = 32  # of one span: more says no more
MESSAGES_MAX = 1_000  # of a fetch, that are searched for headers
TRANSACTIONS_MAX = 10_000  # whose requests are remembered until they end; the oldest is forgotten first

# Operation and type of a call: OpenTelemetry's semantic conventions for messaging, which are marked as in development.
MESSAGING: Mapping[tuple[str, str], tuple[str, str]] = {
    ("POST", "/publish"): ("publish", "send"),
    ("POST", "/records"): ("publish", "send"),
    ("POST", "/store"): ("store", "send"),
    ("POST", "/records/store"): ("store", "send"),
    ("POST", "/poll"): ("poll", "receive"),
    ("GET", "/records"): ("poll", "receive"),
    ("POST", "/groups/{group}/fetch"): ("fetch", "receive"),
    ("POST", "/groups/{group}/acknowledge"): ("acknowledge", "settle"),
    ("POST", "/groups/{group}/release"): ("release", "settle"),
}
TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
BEGIN = "/v1/transactions"
ENDS = (f"{BEGIN}/{{transaction}}/commit", f"{BEGIN}/{{transaction}}/abort", f"{BEGIN}/{{transaction}}/invalidate")
BEGINS_AND_STORES = (BEGIN, f"{TOPIC}/store", f"{TOPIC}/records/store")
METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
)  # others are `_OTHER`: anybody may send any
SERVER_ERROR_MIN = 500


def traced_by(request: RequestHead) -> str:
    """The trace that a request's client named, in hex; empty where it named none."""
    named = request.headers.get(b"traceparent")
    found = None if named is None else TRACEPARENT.fullmatch(named)
    return "" if found is None else found[1].decode("ascii")


def named_in(batches: Iterable[tuple[RecordBatch, int, int]]) -> list[bytes]:
    """The values of `traceparent` in the headers of messages, each once and at most `LINKS_MAX`.

    The messages are those of each batch at `start` <= index < `stop`; of many only the first `MESSAGES_MAX` are looked at.
    """
    found: dict[bytes, None] = {}
    left = MESSAGES_MAX
    for batch, start, stop in batches:
        if left <= 0:
            break
        if batch.flags & BatchSection.HEADERS:
            for extras in batch.extras()[start : min(stop, start + left)]:
                found.update((bytes(value), None) for name, value in extras.headers if name == HEADER)
        left -= stop - start
    return list(islice(filter(TRACEPARENT.fullmatch, found), LINKS_MAX))


class Traces:
    """Makes the spans of a server's requests."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision

        self._api = trace  # imported here: who has no use for traces need not have the library
        self._provider = provider
        # The sampler is asked before a span is made, for making one that is not sampled takes 10 µs; what is made is sampled.
        self._sampler, self._dropped = provider.sampler, Decision.DROP
        provider.sampler = ALWAYS_ON
        self._tracer = provider.get_tracer("basalt", __version__)
        self._of_transactions: OrderedDict[int, list[SpanContext]] = OrderedDict()  # by write pointer

    @classmethod
    def configured(cls, environment: Mapping[str, str], instance: str) -> Traces | None:
        """As the variables `OTEL_*` have it; None where they name no place for traces, or the extra `otel` is not installed.

        `instance` tells servers of one installation apart.
        """
        exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp" if _names_a_place(environment) else "none")
        if exporter == "none" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        try:
            return cls(_provider(exporter, instance))
        except ImportError as error:
            raise _not_installed(exporter, error) from None

    def close(self) -> None:
        """Send what is left; at most as long as `OTEL_BSP_EXPORT_TIMEOUT` says."""
        self._provider.shutdown()

    def is_sampled(self, request: RequestHead) -> bool:
        """Tell whether a request that was answered is to have spans."""
        named = request.headers.get(b"traceparent")
        parent = None if named is None else self._parent(named)
        trace_id = self._provider.id_generator.generate_trace_id()
        return self._sampler.should_sample(parent, trace_id, request.route).decision is not self._dropped

    def answered(self, request: RequestHead, stop_ms: int, duration_ms: float, stages: Stages, about: About) -> str:
        """Make the span of a request that was answered, and return its trace in hex.

        `stop_ms` is since 1970. `stages` are what it waited for.
        """
        method, route = request.head.method, request.route.removesuffix(WAITING)
        stop_ns = stop_ms * 1_000_000
        start_ns = stop_ns - int(duration_ms * 1_000_000)
        span = self._tracer.start_span(
            f"{method} {route}" if route else method,
            self._parent(request.headers.get(b"traceparent", b"")),
            self._api.SpanKind.SERVER,
            _attributes(request, method, route, about),
            self._links(route, about),
            start_ns,
        )
        if request.status >= SERVER_ERROR_MIN:
            span.set_status(self._api.StatusCode.ERROR)
        inside = self._api.set_span_in_context(span)
        for stage in stages.found:
            began_ns = start_ns + int((stage.start_ms - stages.began_ms) * 1_000_000)
            child = self._tracer.start_span(stage.name, inside, start_time=began_ns)
            child.end(began_ns + int(stage.duration_ms * 1_000_000))
        span.end(stop_ns)
        context = span.get_span_context()
        self._remember(method, route, about.transaction, context)
        return f"{context.trace_id:032x}"

    def _parent(self, traceparent: bytes) -> Context:
        """The context of a request whose client sent this header: its trace, or that of nobody, for a new one to begin."""
        remote = self._remote(traceparent) or self._api.INVALID_SPAN_CONTEXT
        return self._api.set_span_in_context(self._api.NonRecordingSpan(remote))

    def _remote(self, traceparent: bytes) -> SpanContext | None:
        found = TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        trace_id, span_id, flags = (int(group, 16) for group in found.groups())
        context = self._api.SpanContext(trace_id, span_id, True, self._api.TraceFlags(flags))
        return context if context.is_valid else None

    def _links(self, route: str, about: About) -> list[Link]:
        contexts = list(map(self._remote, about.traceparents))
        if route in ENDS:
            contexts += self._of_transactions.pop(about.transaction, ())
        return [self._api.Link(context) for context in contexts if context is not None]

    def _remember(self, method: str, route: str, transaction: int, context: SpanContext) -> None:
        """Keep the span of a request that began a transaction, or stored under one, for that of its end."""
        if not transaction or method != "POST" or route not in BEGINS_AND_STORES:
            return
        known = self._of_transactions.setdefault(transaction, [])
        if len(known) < LINKS_MAX:
            known.append(context)
        if len(self._of_transactions) > TRANSACTIONS_MAX:
            self._of_transactions.popitem(last=False)


class About(NamedTuple):
    """The facts of a request that its head does not have: its topic as `namespace:name`, its transaction (0: none), and who made it."""

    topic: str
    transaction: int
    client: str | None
    traceparents: Sequence[bytes] = ()  # in the headers of the messages that were answered


def _attributes(request: RequestHead, method: str, route: str, about: About) -> dict[str, str | int]:
    """The attributes of a request's span, as OpenTelemetry names them."""
    found: dict[str, str | int] = {
        "http.request.method": method if method in METHODS else "_OTHER",
        "http.response.status_code": request.status,
        "http.route": route,
        "url.path": request.head.path,
        "url.scheme": request.exchange.scheme,
        "basalt.request.id": request.id,
    }
    if about.client:
        found["client.address"] = about.client
    if request.status >= SERVER_ERROR_MIN:
        found["error.type"] = str(request.status)
    operation = MESSAGING.get((method, route.removeprefix(TOPIC)))
    if operation is not None:
        found |= {
            "messaging.system": "basalt",
            "messaging.operation.name": operation[0],
            "messaging.operation.type": operation[1],
            "messaging.destination.name": about.topic,
        }
    if about.transaction:
        found["basalt.transaction.write_pointer"] = about.transaction
    return found


def _names_a_place(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _provider(exporter: str, instance: str) -> TracerProvider:
    """The provider that samples, batches and sends spans, as the variables `OTEL_*` have it; each part of the library reads its own."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    made: SpanExporter
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        made = OTLPSpanExporter()
    elif exporter == "console":
        made = ConsoleSpanExporter()
    else:
        raise InvalidSettingError(
            f"OTEL_TRACES_EXPORTER is {exporter!r}, which is none of otlp, console, none",
            field="OTEL_TRACES_EXPORTER",
            hint="Set it to otlp, or leave it out.",
        )
    own = {"service.name": "basalt", "service.version": __version__, "service.instance.id": instance}
    said = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    provider = TracerProvider(resource=Resource.create({**own, **said}))
    provider.add_span_processor(BatchSpanProcessor(made))
    return provider


def _not_installed(exporter: str, error: ImportError) -> InvalidSettingError:
    return InvalidSettingError(
        f"OTEL_* asks for traces ({exporter}), and {error.name} is not installed",
        field="OTEL_TRACES_EXPORTER",
        hint="pip install 'basalt-mq[otel]', or set OTEL_TRACES_EXPORTER=none",
    )
