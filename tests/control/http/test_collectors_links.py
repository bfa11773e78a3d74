"""The series of links: as the leader, as a standby, and before there are any."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from basalt.cluster.links.beats import Beat, Beats
from basalt.http.collectors import LinkMetrics


def series(links: Any) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for metric in LinkMetrics(links).collect()
        for sample in metric.samples
    }


def links(**given: Any) -> Any:
    known = {"linked": list, "beats": Beats(), "to_leader": None, "rtt_us": 0, "broken": 0, "refusals": Counter()}
    return SimpleNamespace(**(known | given))


def test_a_server_without_links_says_so_and_no_time():
    told = series(links(refusals=Counter(secret=2)))
    assert told == {
        "basalt_cluster_links": 0.0, "basalt_cluster_links_broken_total": 0.0, "basalt_cluster_link_refusals_totalsecret": 2.0,
    }  # fmt: skip


def test_a_standby_tells_of_its_own_link():
    told = series(links(to_leader=object(), rtt_us=250, broken=3))
    assert (told["basalt_cluster_links"], told["basalt_cluster_link_rtt_seconds"]) == (1.0, 0.000_25)
    assert told["basalt_cluster_links_broken_total"] == 3.0


def test_a_leader_tells_of_the_slowest_of_its_members():
    beats = Beats()
    beats.begin(1, 0.0)
    for name, rtt_us in (("a", 100), ("b", 900), ("c", 0)):
        beats.opened(name, 0.0)
        beats.hear(name, Beat(1, rtt_us=rtt_us), 0.0)
    told = series(links(beats=beats, linked=lambda: ["a", "b", "c"]))
    assert (told["basalt_cluster_links"], told["basalt_cluster_link_rtt_seconds"]) == (3.0, 0.000_9)
