"""`basalt topic range` against a real server."""

from __future__ import annotations

import json


def test_a_topic_is_shown_up_to_where_it_is_settled(cli):
    assert cli("topic", "create", "orders-ranged").code == 0
    empty = json.loads(cli("topic", "range", "orders-ranged", "-o", "json", "--splits", "2").out)
    assert (empty["through"], empty["messages"], empty["splits"]) == (None, 0, [])
    for message in ("one", "three"):
        assert cli("publish", "orders-ranged", message).code == 0
    found = json.loads(cli("topic", "range", "orders-ranged", "-o", "json", "--splits", "2").out)
    assert (found["messages"], found["bytes"], found["expired"], found["generation"]) == (2, 8, False, 1)
    assert [part["messages"] for part in found["splits"]] == [1, 1]
    assert found["splits"][1]["through"] == found["through"]
    rest = cli("topic", "range", "orders-ranged", "-o", "json", "--after", found["splits"][0]["through"])
    assert json.loads(rest.out)["messages"] == 1
    assert cli("topic", "range", "orders-ranged", "--after", "12").code == 2
    assert found["through"] in cli("topic", "range", "orders-ranged", "-o", "table").out
    lines = cli("topic", "range", "orders-ranged", "--splits", "2").out.splitlines()
    assert lines[-3].split() == ["THROUGH", "MESSAGES", "SIZE"]
    assert [line.split()[:2] for line in lines[-2:]] == [[part["through"], "1"] for part in found["splits"]]
    assert "{" not in "".join(lines)
