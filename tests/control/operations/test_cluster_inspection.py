"""Who owns which shards, over made-up maps with several owners; and where one topic is, with what is in its way."""

from __future__ import annotations

import pytest

from basalt.api.bodies.operations import Readiness, RegionInfo, ServerPart
from basalt.catalog.tables import table_name
from basalt.catalog.topics import topic_name
from basalt.cluster.balance import Standing
from basalt.cluster.links.beats import Beat
from basalt.cluster.owners import Granted
from basalt.cluster.shard_targets import Weighed
from basalt.errors import UnavailableError
from basalt.operations.cluster_inspection import BUSIEST_SHOWN_MAX
from basalt_engine.keys import base_bucket, table_prefix, topic_prefix
from basalt_engine.stores.shards import SHARDS, shard_of
from tests.shared_members import LEASE_MS, URL, SharedMembers

ORDERS = topic_name("shop", "orders")
SHARD = shard_of(topic_prefix("shop", "orders"))


def test_an_embedded_store_has_one_owner_of_everything(client):
    told = client.call("GET", "/v1/cluster/owners/shop/orders").json()
    assert told == {
        "kind": "topic", "namespace": "shop", "name": "orders", "shard": SHARD, "instance": client.services.instance, "owner": "",
        "url": "", "state": "live", "epoch": 0, "sinceMs": client.services.started_ms, "why": "alone", "mapVersion": 0,
    }  # fmt: skip
    shards = client.call("GET", "/v1/admin/cluster/shards").json()
    assert (shards["shared"], shards["unowned"], shards["states"]["live"]) == (False, 0, SHARDS)
    assert [(each["first"], each["last"]) for each in shards["ranges"]] == [(0, SHARDS - 1)]


def test_a_table_has_a_shard_of_its_own(client):
    told = client.call("GET", "/v1/cluster/owners/shop/tables/orders").json()
    assert (told["kind"], told["name"], told["shard"]) == ("table", "orders", shard_of(table_prefix("shop", "orders")))
    assert table_name("shop", "orders") != topic_name("shop", "orders") or told["shard"] != SHARD


@pytest.mark.parametrize("path", ["owners/shop/a:b", "owners/shop/tables/a~b"])
def test_a_name_that_is_none_has_no_owner(client, path: str):
    told = client.call("GET", f"/v1/cluster/{path}")
    assert (told.status, told.json()["code"]) == (400, "invalid_name")


def test_the_leader_owns_all_from_the_time_at_which_it_began_to_lead(client):
    client.services.granted = Granted(SharedMembers(client.services).deal(), 17)
    told = client.call("GET", "/v1/cluster/owners/shop/orders").json()
    assert (told["instance"], told["owner"], told["url"], told["state"]) == ("leader", "leader:1", URL, "live")
    assert (told["epoch"], told["sinceMs"], told["why"], told["mapVersion"]) == (1, 17, "lead", 1)


def test_who_was_given_a_shard_later_owns_it_since_a_time_that_nobody_knows(client):
    shared = SharedMembers(client.services)
    shared.add("other:2")
    client.services.granted = Granted(shared.deal(), 17)
    shared.deal(m1=[SHARD])
    told = client.call("GET", "/v1/cluster/owners/shop/orders").json()
    assert (told["instance"], told["owner"], told["url"], told["state"]) == (
        "m1",
        "other:2",
        "http://other:4780",
        "live",
    )
    assert (told["epoch"], told["sinceMs"], told["why"], told["mapVersion"]) == (2, None, "grant", 2)


def test_shards_are_told_in_ranges_and_counted_by_the_state_of_their_owner(client):
    shared = SharedMembers(client.services)
    shared.add("silent:2")
    client.clock.advance(LEASE_MS // 2)
    shared.add("other:3")
    shared.leadership._next_ms = 0.0
    shared.leadership.step()
    shared.deal(m1=[0, 1, 2], m2=[3], gone=[5, 7], m3=[])
    told = client.call("GET", "/v1/admin/cluster/shards").json()
    assert (told["shared"], told["version"], told["leaderEpoch"], told["shards"]) == (True, 5, 1, SHARDS)
    assert (told["states"], told["unowned"]) == ({"live": SHARDS - 5, "silent": 3, "dead": 2}, 2)
    assert [(each["instance"], each["owner"], each["state"], each["shards"]) for each in told["members"]] == [
        ("gone", "", "dead", 2), ("leader", "leader:1", "live", SHARDS - 6), ("m1", "silent:2", "silent", 3),
        ("m2", "other:3", "live", 1),
    ]  # fmt: skip
    assert [(each["first"], each["last"], each["instance"]) for each in told["ranges"]] == [
        (0, 2, "m1"), (3, 3, "m2"), (4, 4, "leader"), (5, 5, "gone"), (6, 6, "leader"), (7, 7, "gone"), (8, SHARDS - 1, "leader"),
    ]  # fmt: skip
    assert {(each["epochMin"], each["epochMax"]) for each in told["ranges"]} == {(1, 1), (2, 2)}


def test_a_range_tells_its_lowest_and_its_highest_epoch(client):
    SharedMembers(client.services).deal(leader=[4])
    (told,) = client.call("GET", "/v1/admin/cluster/shards").json()["ranges"]
    assert (told["epochMin"], told["epochMax"]) == (1, 2)


def test_without_a_map_there_is_no_owner_to_tell(client):
    SharedMembers(client.services)
    for path in ("/v1/cluster/owners/shop/orders", "/v1/admin/cluster/shards"):
        told = client.call("GET", path)
        assert (told.status, told.json()["code"]) == (503, UnavailableError.code)
        assert "has no map of owners" in told.json()["detail"]


def region(start: bytes, stop: bytes, table: str = "basalt.message", server: str = "rs1,1,1") -> RegionInfo:
    name = f"{start.hex()}-{stop.hex()}-{table}"
    return RegionInfo(
        name, table, server, start.hex(), stop.hex(), None, None, None, None, 0, None, None, None, "unknown"
    )


def explain(
    client, spread: int | None = 1, *, regions: tuple[RegionInfo, ...] = (), readiness: Readiness | None = None
):
    well = Readiness(True, ())
    return client.runner.run(
        client.services.cluster.explain(ORDERS, spread, 4, well if readiness is None else readiness, regions)
    )


def test_a_topic_is_in_the_regions_that_its_buckets_reach(client):
    salt = base_bucket(topic_prefix("shop", "orders"), 4)
    here, before, behind = (bytes([salt]) + name for name in (b"shop:orders:", b"shop:orders", b"shop:orders;"))
    regions = (
        region(b"", here), region(here, here + b"\0\0\0\1"), region(here + b"\0\0\0\1", behind), region(behind, b""),
        region(b"", b""), region(before, here, "basalt.message"), region(b"", b"", "basalt.payload"),
    )  # fmt: skip
    found = explain(client, regions=regions).regions
    assert [each.region for each in found] == [regions[1].id, regions[2].id, regions[4].id]
    assert found[0].server == "rs1,1,1"


def test_a_spread_topic_is_in_the_regions_of_all_its_buckets(client):
    salts = [base_bucket(topic_prefix("shop", "orders"), 4) + turn for turn in range(4)]
    regions = tuple(region(bytes([salt]), bytes([salt + 1])) for salt in range(4))
    told = explain(client, 3, regions=regions)
    assert told.buckets == tuple(salt % 4 for salt in salts[:3])
    assert {each.region for each in told.regions} == {regions[salt].id for salt in told.buckets}


def test_a_topic_that_there_is_not_has_an_owner_all_the_same(client):
    told = explain(client, None)
    assert (told.exists, told.owner.shard, told.answers, len(told.buckets)) == (False, SHARD, True, 1)
    assert [each for each in told.obstacles if "there is no topic shop:orders" in each] == list(told.obstacles)


def test_nothing_is_in_the_way_where_all_is_well(client):
    told = explain(client)
    assert (told.exists, told.answers, told.obstacles) == (True, True, ())


def test_parts_that_are_not_ready_are_in_the_way(client):
    parts = (
        ServerPart("store", False, 0.0, "no gateway"),
        ServerPart("coordinator", False),
        ServerPart("server", True),
    )
    told = explain(client, readiness=Readiness(False, parts))
    assert told.obstacles == (
        "calls wait or are refused: the part store is not ready (no gateway)",
        "calls about transactions wait or are refused: the part coordinator is not ready",
    )


@pytest.mark.parametrize(
    ("member", "told"), [("gone", "nobody serves shard"), ("m1", "has not renewed its lease"), ("m2", "this server is not the owner")]
)  # fmt: skip
def test_an_owner_that_is_another_one_is_in_the_way(client, member: str, told: str):
    shared = SharedMembers(client.services)
    shared.add("silent:2")
    client.clock.advance(LEASE_MS // 2)
    shared.add("other:3")
    shared.deal(**{member: [SHARD]})
    found = explain(client)
    assert found.answers is None
    assert [each for each in found.obstacles if told in each] == list(found.obstacles)


@pytest.mark.parametrize(("held", "answers"), [((SHARD, SHARD), True), ((SHARD + 1, SHARDS - 1), None)])
def test_of_an_owner_that_is_linked_its_beats_tell_whether_it_has_the_shard(client, held, answers):
    shared = SharedMembers(client.services)
    shared.add("other:2")
    shared.deal(m1=[SHARD])
    beats, now_ms = shared.membership.beats, client.clock.monotonic_ms()
    beats.opened("m1", now_ms)
    beats.hear("m1", Beat(1, (held,)), now_ms)
    found = explain(client)
    assert found.answers is answers
    told = (
        ()
        if answers
        else ("other:2, the owner, has not taken the shard yet, or gives it up: calls wait, then get shard_moving",)
    )
    assert found.obstacles == told


def test_a_topic_is_explained_by_one_call(client):
    client.call("PUT", "/v1/namespaces/shop/topics/orders")
    told = client.call("GET", "/v1/admin/namespaces/shop/topics/orders/explain").json()
    assert (told["exists"], told["owner"]["shard"], told["obstacles"], told["regions"]) == (True, SHARD, [], [])
    client.call("DELETE", "/v1/namespaces/shop/topics/orders")
    for name in ("orders", "never"):
        told = client.call("GET", f"/v1/admin/namespaces/shop/topics/{name}/explain").json()
        assert (told["exists"], "there is no topic" in told["obstacles"][0]) == (False, True)


def test_regions_that_cannot_be_listed_keep_nobody_from_the_rest(client, monkeypatch):
    async def away(_which: str | None) -> list[RegionInfo]:
        raise UnavailableError("the list of regions has a hole")

    monkeypatch.setattr(client.services.prune_reports, "regions", away)
    told = client.call("GET", "/v1/admin/namespaces/shop/topics/orders/explain").json()
    assert "regions is not ready (the list of regions has a hole)" in told["obstacles"][-1]


def test_the_states_of_shards_are_in_the_metrics(client):
    shared = SharedMembers(client.services)
    assert "basalt_cluster_shards" not in client.call("GET", "/metrics").body.decode()
    shared.deal(gone=[1, 2])
    figures = client.call("GET", "/metrics").body.decode()
    for line in (
        f'basalt_cluster_shards{{state="live"}} {SHARDS - 2}.0', 'basalt_cluster_shards{state="silent"} 0.0',
        'basalt_cluster_shards{state="dead"} 2.0', "basalt_cluster_shards_unowned 2.0", "basalt_cluster_map_version 2.0",
    ):  # fmt: skip
        assert line in figures


def test_the_busiest_shards_are_shown_and_no_more_of_them_than_a_table_takes(client, monkeypatch):
    owners = SharedMembers(client.services).deal()
    stands = Standing({"leader": 1.0}, {"leader": 1.0})
    weighed = Weighed(owners, [float(shard % 500) for shard in range(SHARDS)], stands)
    monkeypatch.setattr(client.services.shard_moves, "weighed", lambda: weighed)
    told = client.call("GET", "/v1/admin/cluster/shards").json()
    assert len(told["busiest"]) == BUSIEST_SHOWN_MAX
    assert told["busiest"][0] == {"shard": 999, "instance": "leader", "load": 499.0}
    assert told["members"][0]["load"] == sum(weighed.loads)
    assert told["members"][0]["ofShare"] == 1.0
