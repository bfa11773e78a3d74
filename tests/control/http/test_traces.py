"""Spans: one for each request, its waits below it, and links to what it goes on with. A real SDK, which keeps them in memory."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from basalt.errors import InvalidSettingError
from basalt.http import traces
from basalt.http.app import build_app
from basalt.http.traces import LINKS_MAX, MESSAGES_MAX, TRANSACTIONS_MAX, Traces, named_in
from basalt.settings import LogSettings, Settings
from basalt_engine.records import Extras, RecordBatch, decode, encode
from tests.control.http.conftest import Client

TOPIC = "/v1/namespaces/shop/topics/orders"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RECORDS = {"records": [{"payload": "x"}]}
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


class Traced:
    """A client of an application that makes spans, and the spans of the last request."""

    def __init__(self, client: Client, provider: TracerProvider | None = None) -> None:
        self.client = client
        self.exporter = InMemorySpanExporter()
        provider = provider or TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = client.services.traces = Traces(provider)
        client.app = build_app(client.services)

    def call(self, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        self.exporter.clear()
        reply = self.client.call(method, path, body, **headers)
        return reply.json() if reply.body else None

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def served(self) -> ReadableSpan:
        (found,) = [each for each in self.spans if each.kind is SpanKind.SERVER]
        return found

    @property
    def links(self) -> list[str]:
        return [f"{each.context.trace_id:032x}" for each in self.served.links]


@pytest.fixture
def traced(client: Client) -> Traced:
    traced = Traced(client)
    traced.call("PUT", TOPIC, {})
    return traced


def test_a_request_goes_on_with_the_trace_of_its_client_and_what_it_waited_for_is_below_it(traced: Traced):
    traced.call("POST", f"{TOPIC}/records", RECORDS, Traceparent=TRACEPARENT)
    span = traced.served
    assert span.name == "POST /v1/namespaces/{namespace}/topics/{topic}/records"
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["http.route"] == "/v1/namespaces/{namespace}/topics/{topic}/records"
    assert span.attributes["messaging.operation.type"] == "send"
    assert span.attributes["messaging.destination.name"] == "shop:orders"
    below = [each for each in traced.spans if each is not span]
    assert {each.name for each in below} == {"queue", "write"}
    assert all(each.parent.span_id == span.context.span_id for each in below)
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "header", ["", "00-0-0-01", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", "\u00ff" * 55]
)
def test_a_traceparent_that_means_nothing_begins_a_trace_of_its_own(traced: Traced, header: str):
    traced.call("GET", "/livez", Traceparent=header)
    assert traced.served.parent is None
    assert f"{traced.served.context.trace_id:032x}" != TRACE


def test_what_the_client_does_not_want_sampled_makes_no_span(traced: Traced):
    traced.call("GET", "/livez", Traceparent=f"00-{TRACE}-{SPAN}-00")
    assert traced.spans == ()


def test_a_commit_has_a_link_to_each_request_that_began_it_or_stored_under_it(traced: Traced):
    begun = traced.call("POST", "/v1/transactions", {})
    began = f"{traced.served.context.trace_id:032x}"
    stored = stored_under(traced, begun)
    traced.call("POST", f"/v1/transactions/{begun['id']}/commit", {})
    assert traced.served.attributes["http.response.status_code"] == 200
    assert traced.links == [began, stored]
    assert traced.traces._of_transactions == {}


def stored_under(traced: Traced, begun: dict[str, Any]) -> str:
    """The trace of a request that stored a message under the transaction."""
    records = {"transactionWritePointer": begun["writePointer"], "records": [{"payload": "x"}]}
    traced.call("POST", f"{TOPIC}/records/store", records)
    assert traced.served.attributes["http.response.status_code"] == 200
    return f"{traced.served.context.trace_id:032x}"


def test_requests_of_so_many_transactions_are_remembered_and_so_many_of_one(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
):
    assert TRANSACTIONS_MAX > 100
    monkeypatch.setattr(traces, "TRANSACTIONS_MAX", 2)
    monkeypatch.setattr(traces, "LINKS_MAX", 3)
    first, _, last = [traced.call("POST", "/v1/transactions", {}) for _ in range(3)]
    for _ in range(5):
        stored_under(traced, last)
    traced.call("POST", f"/v1/transactions/{first['id']}/commit", {})
    assert traced.links == []
    traced.call("POST", f"/v1/transactions/{last['id']}/commit", {})
    assert len(traced.links) == 3


@pytest.mark.parametrize("path", [f"{TOPIC}/records", f"{TOPIC}/groups/billing/fetch"])
def test_a_fetch_has_links_to_the_traces_in_the_headers_of_its_messages(traced: Traced, path: str):
    traced.call("PUT", f"{TOPIC}/groups/billing", {})
    records = [{"payload": "x", "headers": [{"name": "traceparent", "value": TRACEPARENT}]}, {"payload": "y"}]
    traced.call("POST", f"{TOPIC}/records", {"records": records})
    if path.endswith("fetch"):
        traced.call("POST", path)
    else:
        traced.call("GET", path)
    assert traced.served.attributes["http.response.status_code"] == 200
    assert traced.links == [TRACE]
    assert traced.served.attributes["messaging.operation.type"] == "receive"


def batch_of(count: int, extras: list[Extras]) -> RecordBatch:
    return decode(encode([b"x"] * count, extras))


def test_each_trace_is_named_once_and_so_many_at_most():
    def headers(number: int) -> Extras:
        return Extras(headers=(("traceparent", b"00-%032x-%016x-01" % (number + 1, 1)), ("other", b"x")))

    batch = batch_of(200, [headers(number // 2) for number in range(200)])
    assert len(named_in([(batch, 0, 200)])) == LINKS_MAX
    assert named_in([(batch, 2, 4)]) == [b"00-%032x-%016x-01" % (2, 1)]
    far = batch_of(MESSAGES_MAX, [Extras()] * MESSAGES_MAX)
    assert named_in([(far, 0, MESSAGES_MAX), (batch, 0, 200)]) == []
    forged = batch_of(1, [Extras(headers=(("traceparent", b"00-zz"),))])
    assert named_in([(forged, 0, 1)]) == []


def test_a_failure_of_the_server_is_one_of_its_span(traced: Traced, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(traced.client.services.topics, "open", fail)
    traced.call("GET", f"{TOPIC}/records")
    assert traced.served.status.status_code is StatusCode.ERROR
    assert traced.served.attributes["error.type"] == "500"


def test_an_odd_method_makes_no_odd_attribute(traced: Traced):
    traced.call("BREW", "/livez")
    assert traced.served.attributes["http.request.method"] == "_OTHER"


def test_a_request_that_is_not_sampled_is_answered_all_the_same(client: Client):
    traced = Traced(client, TracerProvider(sampler=ALWAYS_OFF))
    assert traced.call("GET", "/livez") == {"alive": True}
    assert traced.spans == ()


def test_the_log_names_the_trace_whether_spans_are_made_or_not(
    connect: Callable[[Settings], Client], caplog: pytest.LogCaptureFixture
):
    client = connect(Settings(log=LogSettings(access="all")))
    caplog.set_level(logging.INFO, "basalt.access")
    client.call("GET", "/livez", Traceparent=TRACEPARENT)
    Traced(client).call("GET", "/livez", Traceparent=TRACEPARENT)
    client.call("GET", "/livez")
    named = [vars(record)["fields"].get("traceId") for record in caplog.records if record.name == "basalt.access"]
    assert named[:2] == [TRACE, TRACE]
    assert named[2] not in (None, TRACE)


def test_nothing_is_traced_where_the_environment_names_no_place():
    assert Traces.configured({}, "a:1") is None
    assert (
        Traces.configured({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, "a:1")
        is None
    )
    assert Traces.configured({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, "a:1") is None
    with pytest.raises(InvalidSettingError, match="zipkin"):
        Traces.configured({"OTEL_TRACES_EXPORTER": "zipkin"}, "a:1")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=try")
    yield monkeypatch


def test_the_server_has_a_name_and_the_environment_may_give_it_another(environment: pytest.MonkeyPatch):
    console = {"OTEL_TRACES_EXPORTER": "console"}
    found = Traces.configured(console, "host:7")
    assert found is not None
    named = found._provider.resource.attributes
    assert (named["service.name"], named["service.instance.id"], named["deployment.environment"]) == (
        "basalt",
        "host:7",
        "try",
    )
    found.close()
    environment.setenv("OTEL_SERVICE_NAME", "orders")
    found = Traces.configured(console, "host:7")
    assert found is not None
    assert found._provider.resource.attributes["service.name"] == "orders"
    found.close()


def test_without_the_library_it_is_said_what_to_install():
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from basalt.http.traces import Traces\n"
        "try: Traces.configured({'OTEL_TRACES_EXPORTER': 'otlp'}, 'a')\n"
        "except Exception as error: print(error.hint)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "basalt-mq[otel]" in said
