"""Numbered load: each call has the next numbers of its producer, so that the server writes all of it."""

from __future__ import annotations

import basalt
from bench import processes
from bench.numbering import Producers
from bench.setting_up import NAMESPACE, create_topics, publish_request


def test_everything_that_producers_publish_is_written_also_in_later_rounds(tmp_path):
    with processes.basalt(tmp_path / "data") as server:
        create_topics(server, "with")
        producers = Producers(server.port, 3, publish_request("with", 2), 2)
        for _ in range(2):
            assert producers.publish(10) > 0
        with basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE) as client:
            assert client.topic("with").stats().messages == 2 * 10 * 2
            known = client.topic("with").producers()
            Producers(server.port, 3, publish_request("with", 2), 2, numbered=False).publish(10)
            assert client.topic("with").stats().messages == 3 * 10 * 2
            assert sum(each.last_sequence + 1 for each in client.topic("with").producers()) == 40
        assert len(known) == 3
        assert sum(each.last_sequence + 1 for each in known) == 40
