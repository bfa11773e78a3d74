"""`basalt cluster`: who leads, who stands by, and what is said where nobody does or versions differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import get_args

import pytest

from basalt.api.bodies.owners import WhyOwner
from basalt.cli.commands.operations import _WHY, _explained
from basalt.cluster.owners import take_all
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt_engine import __version__
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from tests.control.cli.conftest import served
from tests.control.operations.willing_members import WillingMembers
from tests.shared_members import URL, SharedMembers

ORDERS_SHARD = shard_of(topic_prefix("shop", "orders"))


async def services_with_members() -> RunningServices:
    services = await open_services(Settings(), None, store=MemoryStore())
    shared = SharedMembers(services)
    shared.add("other:2", "http://other:4780", "2.0")
    shared.add("dead:3", "http://dead:4780", ended_ms=7)
    return services


async def services_with_owners() -> RunningServices:
    services = await open_services(Settings(), None, store=MemoryStore())
    shared = SharedMembers(services)
    shared.add("other:2", "http://other:4780")
    shared.deal(m1=[ORDERS_SHARD, 1], gone=[7, 8])
    return services


async def services_alone() -> RunningServices:
    services = await open_services(Settings(), None, store=MemoryStore())
    SharedMembers(services)
    return services


@pytest.fixture(scope="module")
def members_url() -> Iterator[str]:
    with served(services_with_members) as url:
        yield url


def test_members_are_listed(cli, members_url: str):
    listed = cli("cluster", "members", "--url", members_url)
    assert listed.code == 0, listed.err
    assert listed.out.splitlines()[0].split() == [
        "NAME",
        "URL",
        "ROLE",
        "STATE",
        "VERSION",
        "MEMBER",
        "SINCE",
        "RENEWED",
        "AGO",
        "LINKED",
        "RTT",
        "US",
        "SHARDS",
        "LOAD",
        "OF",
        "ITS",
        "SHARE",
    ]
    rows = {line.split()[0]: line.split() for line in listed.out.splitlines()[1:]}
    assert rows["leader:1"][1:3] == [URL, "leader"]
    assert rows["other:2"][1:3] == ["http://other:4780", "standby"]
    assert "dead" in rows["dead:3"]
    told = json.loads(cli("cluster", "members", "--url", members_url, "-o", "json").out)
    assert {each["name"]: each["role"] for each in told} == {"leader:1": "leader", "other:2": "standby", "dead:3": None}


def test_the_status_counts_members_and_says_that_versions_differ(cli, members_url: str):
    ran = cli("cluster", "status", "--url", members_url)
    assert ran.code == 0, ran.err
    assert "the servers have different versions" in ran.err
    told = json.loads(cli("cluster", "status", "--url", members_url, "-o", "json").out)
    assert (told["leader"], told["url"], told["epoch"], told["dead"]) == ("leader:1", URL, 1, 1)
    assert told["live"] + told["silent"] == 2
    assert told["linked"] == 0
    assert told["versions"] == ["1.0", "2.0"]


def test_a_leader_without_a_standby_says_so(cli):
    with served(services_alone) as url:
        ran = cli("cluster", "status", "--url", url)
    assert (ran.code, "no server stands by" in ran.err, "different versions" in ran.err) == (0, True, False)
    assert "epoch" in ran.out


def test_where_the_store_is_embedded_nobody_can_stand_by(cli):
    ran = cli("cluster", "status")
    assert (ran.code, ran.err) == (0, "")
    (only,) = json.loads(cli("cluster", "members", "-o", "json").out)
    assert (only["role"], only["version"]) == ("leader", __version__)


def test_lengths_of_leases_are_no_times_of_the_calendar(cli):
    assert "1970" not in cli("cluster", "show").out


@pytest.fixture(scope="module")
def owners_url() -> Iterator[str]:
    with served(services_with_owners) as url:
        yield url


def test_shards_are_counted_by_owner_and_those_that_nobody_serves_are_told(cli, owners_url: str):
    ran = cli("cluster", "shards", "--url", owners_url)
    assert (ran.code, ran.err) == (0, "basalt: nobody serves 2 shards: the owner is no member any more\n")
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["other:2", "http://other:4780", "live", "2", "0.0", "-"] in rows
    assert ["leader:1", URL, "live", str(SHARDS - 4), "0.0", "-"] in rows
    assert next(each for each in rows if each[:1] == ["gone"])[-4:] == ["dead", "2", "0.0", "-"]
    assert ["unowned", "2"] in rows
    ranges = [line.split() for line in cli("cluster", "shards", "--ranges", "--url", owners_url).out.splitlines()]
    assert ["7", "8", "gone", "2", "2"] in ranges
    assert "SHARD  OWNER  LOAD" in cli("cluster", "shards", "--busiest", "--url", owners_url).out
    told = json.loads(cli("cluster", "shards", "--url", owners_url, "-o", "json").out)
    assert (told["unowned"], told["states"], told["version"]) == (2, {"live": SHARDS - 2, "silent": 0, "dead": 2}, 3)


def test_the_owner_of_a_topic_or_table_is_told(cli, owners_url: str):
    told = json.loads(cli("cluster", "owner", "orders", "--namespace", "shop", "--url", owners_url, "-o", "json").out)
    assert (told["kind"], told["shard"], told["owner"], told["why"]) == ("topic", ORDERS_SHARD, "other:2", "grant")
    told = json.loads(
        cli("cluster", "owner", "orders", "--table", "--namespace", "shop", "--url", owners_url, "-o", "json").out
    )
    assert (told["kind"], told["shard"] != ORDERS_SHARD, told["owner"]) == ("table", True, "leader:1")


def test_a_topic_is_explained_in_words(cli, owners_url: str):
    ran = cli("cluster", "explain", "orders", "--namespace", "shop", "--url", owners_url)
    assert ran.code == 0, ran.err
    assert f"There is no topic shop:orders; it would be in shard {ORDERS_SHARD} and bucket" in ran.out
    assert "Its owner is other:2 at http://other:4780, under epoch 2 of the shard (map version 3)." in ran.out
    assert "It was given the shard by the leader" in ran.out
    assert "Its lease is on.\n" in ran.out
    assert "In the way: there is no topic shop:orders: calls that need it get topic_not_found.\n" in ran.out
    assert "In the way: this server is not the owner" in ran.out
    told = json.loads(cli("cluster", "explain", "orders", "--namespace", "shop", "--url", owners_url, "-o", "json").out)
    assert (told["exists"], told["answers"], len(told["obstacles"])) == (False, None, 2)


def test_a_topic_of_an_embedded_store_is_explained_in_few_words(cli):
    assert cli("topic", "create", "orders", "--namespace", "shop").code == 0
    told = cli("cluster", "explain", "orders", "--namespace", "shop").out.splitlines()
    assert told[0].startswith("Topic shop:orders is in shard ")
    assert told[1:] == [
        "Its store is embedded: this server owns all shards, and has answered just now.",
        "Nothing is known that would make calls wait, or refuse them.",
    ]
    assert cli("cluster", "shards").code == 0


def test_where_a_topic_is_is_told_with_its_regions_and_the_time_since_when():
    owner = {
        "namespace": "shop", "name": "orders", "shard": 5, "instance": "m1", "owner": "", "url": "", "state": "dead", "epoch": 3,
        "since_ms": 1_700_000_000_000, "why": "lead", "map_version": 9,
    }  # fmt: skip
    regions = [{"region": "r1", "table": "basalt.message", "server": ""}]
    answer = {
        "owner": owner, "exists": True, "buckets": [3, 0], "bucket_count": 4, "answers": None, "obstacles": [],
        "regions": regions,
    }  # fmt: skip
    told = _explained(answer)
    assert told[0] == "Topic shop:orders is in shard 5 and bucket 3, 0 of 4."
    assert told[1] == "Its owner is m1, under epoch 3 of the shard (map version 9)."
    assert told[2].startswith(
        "It owns the shard because it leads: who begins to lead is given all shards. That was at 2023-11-1"
    )
    assert told[3:] == [
        "Its lease is over.", "Region r1 of table basalt.message, on no region server, can hold messages of it.",
        "Nothing is known that would make calls wait, or refuse them.",
    ]  # fmt: skip


def test_each_reason_for_which_a_server_owns_a_shard_has_words():
    assert {"alone", *_WHY} == set(get_args(WhyOwner))


async def services_that_deal() -> RunningServices:
    store = MemoryStore(atomic=False)
    store.lead(1)
    services = await open_services(Settings(), None, store=store)
    services.shard_moves.lead(take_all(store, "m1", 1), "m1", 1)
    return services


def test_a_move_tells_the_epochs_and_a_dry_run_what_they_would_be(cli):
    with served(services_that_deal) as url:
        shard = [f"--shard={ORDERS_SHARD}", "--to", "m1", "--url", url]
        planned = cli("cluster", "move", *shard, "--dry-run")
        assert (planned.code, planned.out.strip()) == (0, f"would move shard {ORDERS_SHARD} (epoch 1 to 2) to m1")
        moved = cli("cluster", "move", *shard)
        assert (moved.code, moved.out.startswith(f"moved shard {ORDERS_SHARD} (epoch 1 to 2) to m1, within ")) == (
            0,
            True,
        )
        again = json.loads(cli("cluster", "move", *shard, "-o", "json").out)
        assert [(each["epoch_before"], each["epoch"]) for each in again["shards"]] == [(2, 3)]
        elsewhere = cli("cluster", "move", "--shard", "3", "--to", "m2", "--url", url)
        assert (elsewhere.code, "no such member" in elsewhere.err) == (4, True)


def test_a_member_is_drained_taken_back_and_shards_are_evened_out(cli):
    async def services_that_share() -> RunningServices:
        store = MemoryStore(atomic=False)
        store.lead(1)
        services = await open_services(Settings(), None, store=store)
        services.shard_moves.balances = False
        services.shard_moves.lead(take_all(store, "m1", 1), "m1", 1, WillingMembers("m2", "m3").as_fellows)
        return services

    with served(services_that_share) as url:
        given = ["--url", url]
        while (planned := cli("cluster", "balance", "--dry-run", *given)).code == 6:
            pass  # the leader has begun a moment ago, and does not know yet who is drained
        assert planned.out.startswith("would move 32 shards from m1 to m2, 32 shards from m1 to m3"), planned
        moved = json.loads(cli("cluster", "balance", *given, "-o", "json").out)
        assert (len(moved["moves"]), moved["dry_run"]) == (64, False)
        would = json.loads(cli("cluster", "drain", "m2", "--dry-run", *given, "-o", "json").out)
        assert would == {"member": "m2", "drained": False, "left": 32, "dry_run": True}
        drained = json.loads(cli("cluster", "drain", "m2", "--wait", *given, "-o", "json").out)
        assert (drained["drained"], drained["left"]) == (True, 0)
        assert json.loads(cli("cluster", "undrain", "m2", *given, "-o", "json").out)["drained"] is False
        nobody = cli("cluster", "drain", "m9", *given)
        assert (nobody.code, "there is no member 'm9'" in nobody.err) == (4, True)
        acts = [act["act"] for act in json.loads(cli("audit", "list", *given, "-o", "json").out)]
        assert acts[:3] == ["take a server back", "drain a server", "even out shards"]


def test_a_leader_without_others_is_not_drained_and_has_nothing_to_even_out(cli):
    with served(services_that_deal) as url:
        assert cli("cluster", "balance", "--url", url).out.strip() == "nothing moves: no other server could have shards"
        alone = cli("cluster", "drain", "m1", "--url", url)
        assert (alone.code, "no other server could have the shards" in alone.err) == (4, True)


def test_a_move_is_of_a_topic_or_of_shards(cli):
    for given in ([], ["orders", "--shard", "3"]):
        ran = cli("cluster", "move", *given, "--to", "m1")
        assert (ran.code, "a move is of the shard of a topic, or of shards" in ran.err) == (2, True)
