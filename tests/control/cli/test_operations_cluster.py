"""`basalt cluster`: who leads, who stands by, and what is said where nobody does or versions differ."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt_engine import __version__
from basalt_engine.stores.memory import MemoryStore
from tests.control.cli.conftest import served
from tests.shared_members import URL, SharedMembers


async def services_with_members() -> RunningServices:
    services = await open_services(Settings(), None, store=MemoryStore())
    shared = SharedMembers(services)
    shared.add("other:2", "http://other:4780", "2.0")
    shared.add("dead:3", "http://dead:4780", ended_ms=7)
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
