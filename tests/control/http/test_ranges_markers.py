"""The calls on markers."""

from __future__ import annotations

import pytest

TOPIC = "/v1/namespaces/shop/topics/orders"
MARKERS = f"{TOPIC}/markers"


@pytest.fixture(autouse=True)
def orders(client):
    assert client.call("PUT", TOPIC).status == 200


def emit(client, task: str, event_time_ms: int | None = None, tasks: int = 2):
    kind = {"kind": "end_of_stream"} if event_time_ms is None else {"kind": "watermark", "eventTimeMs": event_time_ms}
    return client.call("POST", MARKERS, {"task": task, "taskCount": tasks, **kind})


def test_what_the_tasks_say_is_shown_together(client):
    assert client.call("GET", MARKERS).json() == {
        "watermarkMs": None, "ended": False, "taskCount": None, "tasks": [], "at": None, "generation": 1
    }  # fmt: skip
    assert emit(client, "b", 7).status == emit(client, "a", 9).status == 200
    assert emit(client, "a").status == 200
    found = client.call("GET", MARKERS).json()
    assert (found["watermarkMs"], found["ended"], found["taskCount"], len(found["at"])) == (7, False, 2, 40)
    assert [(task["task"], task["watermarkMs"], task["ended"]) for task in found["tasks"]] == [
        ("a", 9, True), ("b", 7, False)
    ]  # fmt: skip
    assert emit(client, "b").status == 200
    assert client.call("GET", f"{MARKERS}?waitMs=10000&until=ended").json()["ended"] is True


def test_a_late_task_is_a_conflict_that_names_it(client):
    emit(client, "a", None, 1)
    late = emit(client, "a", 9, 1)
    assert (late.status, late.code) == (409, "marker_refused")
    assert "task 'a' has ended" in late.json()["detail"]
    assert emit(client, "b", 9, 1).code == "marker_refused"
    assert emit(client, "a", None, 2).json()["field"] == "taskCount"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "watermark", "eventTimeMs": 1}, None),
        ({"task": "", "kind": "watermark", "eventTimeMs": 1}, "task"),
        ({"task": "x" * 256, "kind": "end_of_stream"}, "task"),
        ({"task": "a\nb", "kind": "end_of_stream"}, "task"),
        ({"task": 7, "kind": "end_of_stream"}, "task"),
        ({"task": "a"}, None),
        ({"task": "a", "kind": "user"}, "kind"),
        ({"task": "a", "kind": "watermark"}, "eventTimeMs"),
        ({"task": "a", "kind": "end_of_stream", "eventTimeMs": 1}, "eventTimeMs"),
        ({"task": "a", "kind": "watermark", "eventTimeMs": "1"}, "eventTimeMs"),
        ({"task": "a", "kind": "watermark", "eventTimeMs": 1.5}, "eventTimeMs"),
        ({"task": "a", "kind": "watermark", "eventTimeMs": 2**63}, "eventTimeMs"),
        ({"task": "a", "kind": "end_of_stream", "taskCount": 0}, "taskCount"),
        ({"task": "a", "kind": "end_of_stream", "taskCount": 1_001}, "taskCount"),
        ({"task": "a", "kind": "end_of_stream", "task_count": 1}, "task_count"),
        ([], None),
    ],
)
def test_what_is_no_marker_is_refused_by_field(client, body, field):
    reply = client.call("POST", MARKERS, body)
    assert (reply.status, reply.json().get("field")) == (400, field), reply.body
    assert client.call("GET", MARKERS).json()["tasks"] == []


@pytest.mark.parametrize("query", ["until=never", "waitMs=-1", "waitMs=60001", "wait=1"])
def test_a_query_that_is_none_is_refused(client, query):
    assert client.call("GET", f"{MARKERS}?{query}").status == 400


def test_who_reads_markers_is_told_how_to_judge_them(client):
    def headers(query):
        reply = client.call("GET", f"{TOPIC}/records{query}")
        return reply.header("basalt-generation"), reply.header("basalt-tasks")

    assert headers("?markers=true") == ("1", None)
    assert client.call("PUT", f"{TOPIC}/properties", {"tasks": 3}).status == 200
    assert headers("?markers=true") == ("1", "3")
    assert headers("") == (None, None)


def test_topics_that_are_not_there_have_no_markers(client):
    missing = "/v1/namespaces/shop/topics/missing/markers"
    assert client.call("GET", missing).code == "topic_not_found"
    assert client.call("POST", missing, {"task": "a", "kind": "end_of_stream"}).code == "topic_not_found"


def test_a_one_shot_brings_markers_and_a_refused_one_brings_nothing(client):
    marker = {"namespace": "shop", "topic": "orders", "task": "a", "taskCount": 1}
    work = {
        "publish": [{"namespace": "shop", "topic": "orders", "messages": ["one"]}],
        "markers": [{**marker, "kind": "watermark", "eventTimeMs": 5}, {**marker, "kind": "end_of_stream"}],
    }
    assert client.call("POST", "/v1/transactions", {"work": work}).json()["state"] == "COMMITTED"
    found = client.call("GET", MARKERS).json()
    assert (found["watermarkMs"], found["ended"]) == (5, True)
    again = client.call("POST", "/v1/transactions", {"work": work})
    assert (again.code, again.json()["field"]) == ("marker_refused", "markers[0].task")
    records = client.call("GET", f"{TOPIC}/records?markers=true").json()["records"]
    assert [record["kind"] for record in records] == ["user", "watermark", "end_of_stream"]
    assert [record["kind"] for record in client.call("GET", f"{TOPIC}/records").json()["records"]] == ["user"]
