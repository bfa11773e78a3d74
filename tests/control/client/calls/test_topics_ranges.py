"""Ranges through both clients, against a server."""

from __future__ import annotations

import basalt
from basalt.api.bodies.ranges import StableEnd
from basalt.api.markers import NOTHING_KNOWN, merged, watermark_ms

EMBEDDED = {"store.kind": "memory"}


def test_a_reader_goes_through_a_topic_in_runs():
    with basalt.connect("embedded:", settings=EMBEDDED) as client:
        client.topics.create("orders")
        topic = client.topic("orders")
        assert topic.stable_end() == StableEnd(None, 1)
        topic.publish([b"%d" % number for number in range(10)])
        topic.watermark("task", 1_000)
        at, state, rows = None, NOTHING_KNOWN, []
        while True:
            found = topic.advance(at, messages_max=4)
            state = merged(state, found.marker_state)
            rows.append(found.messages)
            at = found.through
            if found.at_end:
                break
        assert (rows, watermark_ms(state), at) == ([4, 4, 2], 1_000, topic.stable_end().id)
        run = topic.advance(None, through=at, bytes_max=3)
        assert (run.messages, run.bytes, run.at_end) == (3, 3, False)
        parts = topic.splits(None, at, 3)
        assert [part.messages for part in parts] == [3, 3, 4]
        assert topic.splits(parts[1].after, parts[1].through, 1) == [parts[1]]
        assert topic.splits(at, at, 3) == []
        assert topic.advance(None, isolation="uncommitted").messages == 10
