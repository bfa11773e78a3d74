"""A server whose environment names a collector sends it the spans of its requests, the last of them as it stops."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system


class Collector(ThreadingHTTPServer):
    """A collector of OpenTelemetry that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.received: list[ExportTraceServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.server.received.append(request)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: it is no part of the tests' output."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        yield collector
        collector.shutdown()


def test_the_spans_of_a_server_are_sent_before_it_ends(tmp_path: Path, collector: Collector):
    process = ServerProcess(tmp_path)
    process.launch(
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_RESOURCE_ATTRIBUTES": "team=orders"}
    )
    process.wait_until_ready()
    try:
        process.ask_json("PUT", ORDERS)
    finally:
        process.stop()
    sent = [each for request in collector.received for each in request.resource_spans]
    attributes = {each.key: each.value.string_value for each in sent[0].resource.attributes}
    assert (attributes["service.name"], attributes["team"]) == ("basalt", "orders")
    names = [span.name for each in sent for scope in each.scope_spans for span in scope.spans]
    assert "PUT /v1/namespaces/{namespace}/topics/{topic}" in names


def test_a_collector_that_is_away_holds_up_nobody(tmp_path: Path):
    process = ServerProcess(tmp_path)
    process.launch(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    process.wait_until_ready()
    try:
        process.ask_json("PUT", ORDERS)
    finally:
        process.stop()
