"""A client's requests in the traces of its program, over real sockets. A real SDK, which keeps the spans in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from basalt.errors import UnavailableError
from tests.control.client.scripted import answer, problem
from tests.ports import reserved_port


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)  # the API takes a provider once in a process
    yield exporter
    provider.shutdown()


def requests(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [each for each in spans.get_finished_spans() if each.kind is SpanKind.CLIENT]


def test_a_request_has_a_span_and_takes_its_trace_along(side, server, spans):
    server.script = [answer(200)]
    side.do(side.connect(server.url).topic("orders").publish([b"a"]))
    (span,) = requests(spans)
    assert span.name == "POST"
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["url.full"] == f"{server.url}/v1/namespaces/shop/topics/orders/publish"
    (sent,) = server.seen
    assert sent.headers["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0")


def test_each_attempt_has_its_span_and_a_refusal_is_an_error(side, server, spans):
    server.script = [problem(503, "busy"), answer(200)]
    side.do(side.connect(server.url).topic("orders").publish([b"a"]))
    refused, done = requests(spans)
    assert (refused.status.status_code, refused.attributes["error.type"]) == (StatusCode.ERROR, "503")
    assert done.status.status_code is StatusCode.UNSET


def test_a_server_that_is_away_is_an_error_without_a_status(side, spans):
    with reserved_port() as port, pytest.raises(UnavailableError):
        client = side.connect(f"http://127.0.0.1:{port}", attempts_max=1)
        side.do(client.topic("orders").publish([b"a"]))
    (span,) = requests(spans)
    assert span.attributes["error.type"] == "NotSent"
    assert "http.response.status_code" not in span.attributes


def test_a_program_that_does_not_use_the_library_does_not_load_it():
    script = "import basalt.client, basalt.client.traces, sys; print('opentelemetry' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
