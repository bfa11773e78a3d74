"""`basalt topic truncate` against a real server."""

from __future__ import annotations

import json
import time


def test_a_topic_is_truncated_before_a_time(cli):
    assert cli("topic", "create", "news").code == 0
    for message in ("a", "b"):
        assert cli("publish", "news", message).code == 0
    last_ms = json.loads(cli("topic", "show", "news", "-o", "json").out)["newest_ms"]
    while int(time.time() * 1_000) <= last_ms:
        pass
    assert cli("publish", "news", "c").code == 0
    before = f"@{last_ms + 1}"
    assert "2 messages" in cli("topic", "truncate", "news", "--before", before, "--dry-run").out
    assert cli("topic", "truncate", "news", "--before", before).code == 2, "nobody is there to ask"
    assert json.loads(cli("topic", "show", "news", "-o", "json").out)["messages"] == 3
    ran = cli("topic", "truncate", "news", "--before", before, "--yes", "--reason", "old", "-o", "json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["truncated_before_ms"], told["changed"], told["messages"]) == (last_ms + 1, True, 2)
    shown = json.loads(cli("topic", "show", "news", "-o", "json").out)
    assert (shown["messages"], shown["truncated_before_ms"]) == (1, last_ms + 1)
    act = json.loads(cli("audit", "list", "--limit", "1", "-o", "json").out)[0]
    assert (act["act"], act["reason"], act["what"].endswith(":news")) == ("truncate", "old", True)
    for when in ("end", "start", "00" * 20):
        refused = cli("topic", "truncate", "news", "--before", when, "--yes")
        assert (refused.code, "is not a time" in refused.err) == (2, True)
    assert "ahead of the server's clock" in cli("topic", "truncate", "news", "--before", "+1h", "--yes").err
