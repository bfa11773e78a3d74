"""GET /v1/cluster: the servers that share the store."""

from __future__ import annotations

from dataclasses import replace

from basalt.cluster.links.beats import Beat
from basalt.settings.cluster import ClusterSettings
from basalt_engine import __version__
from tests.shared_members import LEASE_MS, URL, SharedMembers


def test_a_server_that_has_its_store_to_itself_is_its_only_member(client):
    reply = client.call("GET", "/v1/cluster")
    assert reply.status == 200
    (member,) = reply.json()["members"]
    assert (reply.json()["shared"], reply.json()["epoch"], reply.json()["lookedAgoMs"]) == (False, 0, None)
    assert (member["role"], member["state"], member["version"]) == ("leader", "live", __version__)


def test_members_are_told_with_role_state_version_and_age(client):
    shared = SharedMembers(client.services)
    client.clock.advance(1)
    shared.add("other:2", "http://other:4780", "1.1")
    shared.add("dead:3", ended_ms=7)
    client.clock.advance(700)
    told = client.call("GET", "/v1/cluster").json()
    assert (told["shared"], told["epoch"], told["lookedAgoMs"]) == (True, 1, 700)
    leader, other, dead = told["members"]
    assert leader == {
        "instance": "leader", "name": "leader:1", "url": URL, "role": "leader", "state": "live", "version": "1.0",
        "sinceMs": client.clock.now_ms() - 701, "renewedAgoMs": 701, "leaseMs": LEASE_MS,
        "linked": None, "rttUs": None, "shards": None, "load": None, "ofShare": None,
    }  # fmt: skip
    assert (other["linked"], other["rttUs"]) == (False, None)
    beats = shared.membership.beats
    beats.begin(1, client.clock.monotonic_ms())
    beats.opened(other["instance"], client.clock.monotonic_ms())
    assert client.call("GET", "/v1/cluster").json()["members"][1]["linked"] is True
    beats.hear(other["instance"], Beat(1, rtt_us=480), client.clock.monotonic_ms())
    assert client.call("GET", "/v1/cluster").json()["members"][1]["rttUs"] == 480
    assert (dead["role"], dead["state"], dead["name"]) == (None, "dead", "dead:3")
    assert (other["role"], other["state"], other["version"], other["renewedAgoMs"]) == ("standby", "live", "1.1", 700)
    client.clock.advance(LEASE_MS // 2)
    states = [each["state"] for each in client.call("GET", "/v1/cluster").json()["members"]]
    assert states == ["silent", "silent", "dead"]


def test_a_membership_is_a_part_of_health_that_no_request_needs(client):
    shared = SharedMembers(client.services)
    ready = client.call("GET", "/readyz")
    assert ready.json()["parts"][-1] == {"name": "member", "ok": True, "latencyMs": 0.0, "detail": "its lease is on"}
    client.clock.advance(LEASE_MS)
    shared.leadership.seek()
    shared.leadership.step()  # it leads, but its row was not renewed
    ready = client.call("GET", "/readyz")
    assert (ready.status, ready.json()["ready"], ready.json()["parts"][-1]["ok"]) == (200, True, False)


def test_members_are_counted_in_metrics(client):
    SharedMembers(client.services).add("dead:3", ended_ms=7)
    figures = client.call("GET", "/metrics").body.decode()
    for line in (
        'basalt_cluster_members{state="live"} 1.0', 'basalt_cluster_members{state="silent"} 0.0',
        'basalt_cluster_members{state="dead"} 1.0', "basalt_cluster_lease_age_seconds 0.0",
        "basalt_cluster_look_age_seconds 0.0", "basalt_cluster_memberships_total 1.0",
        "basalt_cluster_servers_missing 1.0",
    ):  # fmt: skip
        assert line in figures


def test_a_single_server_on_purpose_misses_nobody(client):
    services = client.services
    services.settings = replace(services.settings, cluster=ClusterSettings(servers_min=1))
    SharedMembers(services)
    assert "basalt_cluster_servers_missing 0.0" in client.call("GET", "/metrics").body.decode()
