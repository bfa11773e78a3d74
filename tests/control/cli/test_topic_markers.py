"""`basalt topic watermark | end | markers` against a real server."""

from __future__ import annotations

import json


def shown(cli, *arguments):
    return json.loads(cli("topic", "markers", "orders-marked", "-o", "json", *arguments).out)


def test_tasks_say_how_far_they_are_and_a_job_waits_for_their_end(cli):
    assert cli("topic", "create", "orders-marked").code == 0
    assert cli("topic", "watermark", "orders-marked", "map-0", "1700000000000", "--tasks", "2").code == 0
    assert (shown(cli)["watermark_ms"], shown(cli)["task_count"]) == (None, 2)
    assert cli("topic", "watermark", "orders-marked", "map-1", "1700000000005", "--tasks", "2").code == 0
    assert shown(cli)["watermark_ms"] == 1_700_000_000_000
    waited = cli("topic", "markers", "orders-marked", "--wait", "--within", "20ms")
    assert (waited.code, "has not ended" in waited.err) == (1, True)
    for tried in (("watermark", "orders-marked", "map-1", "1700000000009"), ("end", "orders-marked", "map-0")):
        assert "would have" in cli("topic", *tried, "--tasks", "2", "--dry-run").out
    assert (shown(cli)["watermark_ms"], shown(cli)["ended"]) == (1_700_000_000_000, False)
    assert cli("topic", "end", "no-such-topic", "map-0", "--dry-run").code == 3
    for task in ("map-0", "map-1"):
        assert "has ended" in cli("topic", "end", "orders-marked", task, "--tasks", "2").out
    assert shown(cli)["tasks"] == [
        {"task": "map-0", "watermark_ms": 1_700_000_000_000, "ended": True},
        {"task": "map-1", "watermark_ms": 1_700_000_000_005, "ended": True},
    ]
    assert "map-0 ended 1700000000000 map-1 ended" in cli("topic", "markers", "orders-marked", "-o", "table").out
    found = shown(cli, "--wait")
    assert (found["ended"], found["watermark_ms"]) == (True, 1_700_000_000_005)
    late = cli("topic", "watermark", "orders-marked", "map-0", "1700000000009", "--tasks", "2")
    assert (late.code, "task 'map-0' has ended" in late.err) == (4, True)
    assert cli("topic", "markers", "orders-marked", "--within", "1s").code == 2
    assert cli("topic", "end", "orders-marked", "map-9", "--tasks", "0").code == 2
    [topic] = [
        each for each in json.loads(cli("pipelines", "-o", "json").out)["topics"] if each["topic"] == "orders-marked"
    ]
    assert (topic["ended"], [task["task"] for task in topic["tasks"]]) == (True, ["map-0", "map-1"])
    told = cli("pipelines").out
    for title in ("Event time", "Jobs that commit by name", "Who reads and writes what", "orders-marked"):
        assert title in told
