"""Health, metrics, the access log and the OpenAPI document."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace

import pytest

import basalt
from basalt.http.app import OPERATIONS
from basalt.http.asgi.responses import log_slow
from basalt.settings import LogSettings, Settings

CLF = re.compile(
    r'192\.0\.2\.7 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "([A-Z]+) ([^\s"]+) HTTP/1\.1" (\d{3}) (\d+)'
)


def samples(client):
    """Every sample that /metrics answers, by name and labels."""
    reply = client.call("GET", "/metrics")
    assert reply.status == 200
    assert reply.header("content-type").startswith("text/plain")
    return dict(line.rsplit(" ", 1) for line in reply.body.decode().splitlines() if not line.startswith("#"))


def test_the_server_says_what_it_is(client):
    assert client.call("GET", "/v1").json() == {"name": "basalt", "version": basalt.__version__}


def test_a_live_process_says_so(client):
    assert client.call("GET", "/livez").json() == {"alive": True}


def test_a_ready_server_tells_each_part(client):
    reply = client.call("GET", "/readyz")
    assert (reply.status, reply.json()["ready"]) == (200, True)
    assert {part["name"] for part in reply.json()["parts"]} >= {"store", "coordinator", "server"}
    assert all(part["ok"] and part["latencyMs"] >= 0 for part in reply.json()["parts"])


def test_a_server_that_stops_is_alive_and_not_ready(client):
    client.services.stopping = True
    reply = client.call("GET", "/readyz")
    assert (reply.status, reply.json()["ready"]) == (503, False)
    assert [part["name"] for part in reply.json()["parts"] if not part["ok"]] == ["server"]
    assert client.call("GET", "/livez").status == 200


def test_every_metric_has_our_prefix_or_is_the_processs_own(client):
    client.publish(client.topic(), "a")
    assert {re.match(r"[a-z]+", name)[0] for name in samples(client)} <= {"basalt", "process", "python"}


def test_metrics_count_messages_in_all_and_by_topic(client):
    path = client.topic()
    client.publish(path, "aa", "b")
    client.payloads(path)
    found = samples(client)
    assert found["basalt_published_messages_total"] == "2.0"
    assert found["basalt_published_bytes_total"] == "3.0"
    assert found["basalt_fetched_messages_total"] == "2.0"
    labels = '{namespace="shop",topic="orders"}'
    assert found[f"basalt_topic_published_messages_total{labels}"] == "2.0"
    assert found[f"basalt_topic_fetched_bytes_total{labels}"] == "3.0"


def test_metrics_count_what_a_commit_publishes(client):
    client.topic()
    client.call(
        "POST", "/v1/transactions", {"work": {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["a"]}]}}
    )
    found = samples(client)
    assert found["basalt_published_messages_total"] == "1.0"
    assert found['basalt_transactions_total{event="committed"}'] == "1.0"


def test_metrics_count_transactions(client):
    begun = [client.begin() for _ in range(3)]
    client.call("POST", f"/v1/transactions/{begun[0]['id']}/commit")
    client.call("POST", f"/v1/transactions/{begun[1]['id']}/invalidate")
    found = samples(client)
    assert found['basalt_transactions_total{event="begun"}'] == "3.0"
    assert found["basalt_transactions_in_progress"] == "1.0"
    assert found["basalt_transactions_invalid"] == "1.0"


def test_series_by_topic_are_bounded(client):
    for number in range(120):
        client.publish(client.topic(f"t{number}"), "a")
    shown = [name for name in samples(client) if name.startswith("basalt_topic_published_messages_total")]
    assert len(shown) == 101
    assert 'basalt_topic_published_messages_total{namespace="_other",topic="_other"}' in shown


def test_series_by_request_are_bounded_whatever_is_asked(client):
    for number in range(50):
        client.call("GET", f"/nowhere/{number}")
        client.call(f"VERB{number}", f"/v1/namespaces/shop/topics/t{number}")
        client.call("GET", f"/v1/namespaces/n{number}/topics/t{number}")
    routes = {name for name in samples(client) if name.startswith("basalt_http_request_duration_seconds_count")}
    assert routes == {
        f'basalt_http_request_duration_seconds_count{{method="{method}",route="{route}",status="4xx"}}'
        for method, route in (
            ("GET", "_none"),
            ("_other", "/v1/namespaces/{namespace}/topics/{topic}"),
            ("GET", "/v1/namespaces/{namespace}/topics/{topic}"),
        )
    }


def test_durations_are_cumulative_histograms(client):
    client.call("GET", "/v1")
    found = samples(client)
    labels = 'method="GET",route="/v1",status="2xx"'
    buckets = [
        value
        for name, value in found.items()
        if name.startswith("basalt_http_request_duration_seconds_bucket") and labels[:6] in name
    ]
    assert buckets == sorted(buckets, key=float)
    assert found[f"basalt_http_request_duration_seconds_count{{{labels}}}"] == "1.0"


def test_openmetrics_is_answered_to_who_asks_for_it(client):
    reply = client.call("GET", "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert reply.header("content-type").startswith("application/openmetrics-text")
    assert reply.body.endswith(b"# EOF\n")


@pytest.fixture
def access_log(caplog):
    caplog.set_level(logging.INFO, "basalt.access")
    return caplog


@pytest.fixture
def logged(connect):
    """A client of a server that logs every request."""
    return connect(Settings(log=LogSettings(access="all")))


def statuses(access_log):
    return [record.fields["status"] for record in access_log.records if record.name == "basalt.access"]


def test_unless_told_otherwise_only_requests_that_failed_are_logged(client, access_log):
    client.call("GET", "/v1")
    client.call("GET", "/v1?x=1")
    client.call("GET", "/v1/namespaces/shop/topics/nothing")
    assert statuses(access_log) == [400, 404]


def test_a_server_may_log_no_request_at_all(connect, access_log):
    connect(Settings(log=LogSettings(access="off"))).call("GET", "/v1?x=1")
    assert statuses(access_log) == []


def test_that_a_server_is_not_ready_is_no_error_of_a_request(client, access_log):
    client.services.stopping = True
    assert client.call("GET", "/readyz").status == 503
    assert statuses(access_log) == []


def test_a_slow_request_is_logged_with_what_it_waited_for(connect, caplog):
    client = connect(Settings(log=LogSettings(slow_ms=100)))
    client.call("PUT", "/v1/namespaces/shop/topics/orders", {})
    write = client.services.store.write

    def slowly(writes):
        client.clock.advance(250)
        write(writes)

    client.services.store.write = slowly
    reply = client.call("POST", "/v1/namespaces/shop/topics/orders/records?x=1", {"records": [{"payload": "x"}]})
    assert reply.status == 400
    assert [record for record in caplog.records if record.name == "basalt.slow"] == []
    reply = client.call("POST", "/v1/namespaces/shop/topics/orders/records", {"records": [{"payload": "x"}]})
    (line,) = [record for record in caplog.records if record.name == "basalt.slow"]
    said = r"POST /v1/namespaces/shop/topics/orders/records was answered with 200 after 250 ms: .*\bwrite \d+ ms"
    assert re.fullmatch(f"{said}.*", line.getMessage())
    assert {each["name"] for each in line.fields["stages"]} == {"queue", "write"}
    assert line.fields["requestId"] == reply.header("basalt-request-id")


def test_a_call_that_waits_for_messages_is_no_slow_call(caplog):
    log_slow(SimpleNamespace(route="/v1/namespaces/{namespace}/topics/{topic}/records?waitMs"), 60_000.0)
    assert caplog.records == []


def test_each_request_is_one_line_of_common_log_format(logged, access_log):
    client = logged
    client.call("GET", "/v1?x=1")
    reply = client.call("GET", "/v1")
    first, second = [record for record in access_log.records if record.name == "basalt.access"]
    assert CLF.fullmatch(first.getMessage()).groups() == ("GET", "/v1?x=1", "400", str(first.fields["sentBytes"]))
    assert CLF.fullmatch(second.getMessage()).groups() == ("GET", "/v1", "200", str(len(reply.body)))
    assert second.fields["requestId"] == reply.header("basalt-request-id")
    assert second.fields["route"] == "/v1"


def test_the_log_holds_no_payload_and_no_line_break(logged, access_log):
    client = logged
    path = client.topic()
    client.publish(path, "top secret")
    client.payloads(path)
    client.call("GET", '/v1/a%0Ab"c\x7f')
    lines = [record.getMessage() for record in access_log.records if record.name == "basalt.access"]
    assert all(CLF.fullmatch(line) for line in lines), lines
    assert not any("secret" in line for line in lines)


def test_a_client_that_went_away_is_logged_as_such(client, access_log):
    client.run(client.exchange("PUT", "/v1/namespaces/shop/topics/orders", [b"{"], "application/json", cut=True))
    assert access_log.records[-1].fields["status"] == 499


def test_nothing_is_formatted_for_a_log_that_nobody_keeps(logged, caplog):
    caplog.set_level(logging.WARNING, "basalt.access")
    logged.call("GET", "/v1")
    assert not caplog.records


def test_the_document_describes_every_call(client):
    document = client.call("GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}


def test_the_document_has_no_reference_to_nothing(client):
    document = client.call("GET", "/openapi.json").json()
    names = set(re.findall(r"#/components/schemas/([^\"]+)", json.dumps(document)))
    assert names == set(document["components"]["schemas"])


def test_every_operation_has_an_id_of_its_own_and_tells_its_problems(client):
    document = client.call("GET", "/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    for operation in operations:
        assert "application/problem+json" in operation["responses"]["400"]["content"]
        assert operation["summary"]


def test_every_path_parameter_is_declared(client):
    document = client.call("GET", "/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            declared = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))


def test_the_document_leads_those_who_have_text_to_records(client):
    paths = client.call("GET", "/openapi.json").json()["paths"]
    here = "/v1/namespaces/{namespace}/topics/{topic}"
    for call, instead in (("publish", "POST .../records,"), ("store", "POST .../records/store")):
        assert instead in paths[f"{here}/{call}"]["post"]["description"]
    body = paths[f"{here}/publish"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "records" in body["properties"]["messages"]["description"]
    for call in ("records", "records/store"):
        records = paths[f"{here}/{call}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert [record["payload"] for record in records["examples"][0]["records"]] == ["café"]


def test_the_example_of_the_document_is_taken_and_read_back_as_text(client):
    path = client.topic()
    document = client.call("GET", "/openapi.json").json()
    call = document["paths"]["/v1/namespaces/{namespace}/topics/{topic}/records"]["post"]
    (example,) = call["requestBody"]["content"]["application/json"]["schema"]["examples"]
    assert client.call("POST", f"{path}/records", example).status == 200
    (record,) = client.call("GET", f"{path}/records").json()["records"]
    assert {name: record[name] for name in example["records"][0]} == example["records"][0]
