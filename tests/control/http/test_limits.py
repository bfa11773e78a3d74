"""The limits of the HTTP face and of operators' answers, each set to two or three and crossed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from basalt.catalog.topics import TopicName
from basalt.http.asgi import requests, responses
from basalt.http.metrics import metrics
from basalt.http.metrics import topics as topic_metrics
from basalt.http.metrics.topics import OTHER, TopicSeries
from basalt.http.routes import messages, records, topics
from basalt.operations import inspection, prune_reports
from tests.control.http.test_pruning import failed_writer, get
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS

ADMIN = "/v1/admin/transactions"


@pytest.fixture
def settings(settings):
    """Writers may be pruned two hours after they failed, so that tests of pruning need no days."""
    given = replace(settings.transactions, lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS)
    return replace(settings, transactions=given)


def described(client, begun: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.call("GET", f"{ADMIN}/{begun['id']}").json()
    return found


def stored(client, begun: dict[str, Any], name: str) -> None:
    body = {"messages": ["a"], "transactionWritePointer": begun["writePointer"]}
    assert client.call("POST", f"{client.topic(name)}/store", body).status == 200


def test_a_target_of_the_limit_is_taken_and_one_byte_more_is_not(client, monkeypatch):
    path = client.topic()
    monkeypatch.setattr(requests, "URI_BYTES_MAX", len(path))
    assert client.call("GET", path).status == 200
    assert client.call("GET", f"{path}x").code == "uri_too_long"


def test_properties_of_the_limit_are_taken_and_one_byte_more_is_not(client, monkeypatch):
    monkeypatch.setattr(topics, "PROPERTY_BYTES_MAX", len(json.dumps({"a": "1"})))
    client.topic(a="1")
    assert client.call("PUT", "/v1/namespaces/shop/topics/next", {"a": "12"}).code == "too_large"


def test_an_answer_above_the_limit_is_sent_in_parts_and_says_the_same(client, monkeypatch):
    path = client.topic()
    client.publish(path, "a", "b", "c")
    whole = client.poll(path)
    monkeypatch.setattr(messages, "WHOLE_BYTES_MAX", 2)
    monkeypatch.setattr(messages, "PART_BYTES", 2)
    parted = client.poll(path)
    assert (whole.header("content-length"), parted.header("content-length")) == (str(len(whole.body)), None)
    assert parted.body == whole.body


def test_records_come_in_parts_and_say_the_same(client, monkeypatch):
    path = client.topic()
    client.publish(path, "a", "b", "c", "d", "e")
    whole = client.call("GET", f"{path}/records")
    monkeypatch.setattr(records, "PART_RECORDS", 2)
    parted = client.call("GET", f"{path}/records")
    assert (len(parted.parts), parted.body) == (len(whole.parts) + 2, whole.body)


def test_a_coded_answer_above_the_limit_is_coded_while_it_is_sent(client, monkeypatch):
    path = client.topic()
    client.publish(path, "a" * 2_000)
    accepted = {"accept_encoding": "gzip"}
    whole = client.call("POST", f"{path}/poll", {}, **accepted)
    monkeypatch.setattr(responses, "CODED_AT_ONCE_BYTES_MAX", 3)
    parted = client.call("POST", f"{path}/poll", {}, **accepted)
    assert (whole.header("content-length") is None, parted.header("content-length")) == (False, None)
    assert parted.header("content-encoding") == "gzip"


def test_more_topics_than_candidates_are_counted_together_and_none_of_them_is_lost(monkeypatch):
    monkeypatch.setattr(topic_metrics, "CANDIDATES_MAX", 2)
    series = TopicSeries(shown_max=1)
    for name, count in (("shown", 1), ("b", 10), ("c", 20), ("late", 1_000)):
        series.published(TopicName("shop", name), count, 0)
    found = {title.name: counts.published_messages for title, counts in series.series()}
    assert found == {"c": 0, OTHER.name: 1_030}, "the busiest of two candidates; the third was never one"


def test_metrics_look_at_every_transaction_whatever_the_size_of_a_slice(client, monkeypatch):
    monkeypatch.setattr(metrics, "SLICE_TRANSACTIONS", 2)
    for _ in range(5):
        client.begin()
    assert 'basalt_transactions_live{state="open"} 5.0' in client.call("GET", "/metrics").body.decode()


def test_a_list_has_every_transaction_whatever_the_size_of_a_slice(client, monkeypatch):
    monkeypatch.setattr(inspection, "SLICE_TRANSACTIONS", 2)
    begun = [client.begin()["id"] for _ in range(5)]
    assert [each["id"] for each in client.call("GET", ADMIN).json()["transactions"]] == begun


def test_write_pointers_beyond_the_limit_are_counted(client, monkeypatch):
    monkeypatch.setattr(inspection, "WRITE_POINTERS_SHOWN_MAX", 2)
    begun = client.begin()
    for _ in range(2):
        client.call("POST", f"/v1/transactions/{begun['id']}/checkpoint")
    found = described(client, begun)
    assert (len(found["writePointers"]), found["writePointersLeftOut"]) == (2, 1)


def test_what_is_stored_is_not_looked_up_in_more_places_than_the_limit(client, monkeypatch):
    begun = client.begin()
    monkeypatch.setattr(inspection, "STORED_LOOKUPS_MAX", 2)
    for name in ("a", "b"):
        stored(client, begun, name)
    assert [topic["storedMessages"] for topic in described(client, begun)["topics"]] == [1, 1]
    stored(client, begun, "c")
    assert [topic.get("storedMessages") for topic in described(client, begun)["topics"]] == [None, None, None]


def test_a_timeline_has_the_newest_acts_of_operators(client, monkeypatch):
    monkeypatch.setattr(inspection, "AUDIT_LINES_MAX", 2)
    begun = client.begin()
    for reason in ("first", "second", "third"):
        assert client.call("POST", f"{ADMIN}/{begun['id']}/abort?reason={reason}").status == 200
    steps = client.call("GET", f"/v1/transactions/{begun['id']}/timeline").json()["steps"]
    acts = [step["detail"]["reason"] for step in steps if step["event"] == "forced_abort"]
    assert acts == ["second", "third"]


def test_a_run_shows_so_many_pointers_and_counts_all(client, monkeypatch):
    monkeypatch.setattr(prune_reports, "POINTERS_SHOWN_MAX", 2)
    path = client.topic()
    for _ in range(3):
        failed_writer(client)
    assert client.call("DELETE", path).status == 200
    client.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    for job in ("retention", "retention"):
        assert client.call("POST", f"/v1/admin/jobs/{job}/run").json()["outcome"] == "ok"
    shown = client.call("POST", "/v1/admin/prune/run?dryRun=true").json()
    assert (shown["pruned"], len(shown["pointers"])) == (3, 2)


def test_a_writer_shows_so_many_holds_and_counts_those_left_out(client, monkeypatch):
    client.topic()
    writer = failed_writer(client)
    (whole,) = get(client, f"/explain?writePointer={writer}")
    monkeypatch.setattr(prune_reports, "HOLDS_SHOWN_MAX", len(whole["holds"]) - 1)
    (cut,) = get(client, f"/explain?writePointer={writer}")
    assert (cut["holds"], cut["holdsLeftOut"]) == (whole["holds"][:-1], 1)
