"""`basalt prune` and `basalt snapshot` against a server on a memory store."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt_engine.stores.hbase.regions import StoreFile
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from tests.control.cli.conftest import served
from tests.control.pruning.conftest import PaperCluster

pytestmark = pytest.mark.usefixtures("cli")


def failed_writer(cli) -> str:
    assert cli("topic", "create", "orders").code == 0
    begun = json.loads(cli("tx", "begin", "-o", "json").out)
    assert cli("publish", "orders", "lost", "--tx", begun["id"]).code == 0
    assert cli("tx", "invalidate", begun["id"], "--yes").code == 0
    return str(begun["write_pointer"])


def test_a_writer_that_failed_is_shown_with_what_holds_it(cli):
    pointer = failed_writer(cli)
    shown = cli("prune", "status")
    assert shown.code == 0, shown.err
    assert "lifetime" in shown.out
    explained = cli("prune", "explain", pointer)
    assert pointer in explained.out
    assert "lifetime" in explained.out
    (found,) = json.loads(cli("prune", "explain", pointer, "-o", "json").out)
    assert found["holds"][0]["cause"] == "lifetime"
    assert pointer in cli("prune", "explain", "--limit", "1000").out
    listed = json.loads(cli("prune", "list", "--limit", "10000", "-o", "json").out)
    assert [each["cause"] for each in listed if str(each["write_pointer"]) == pointer] == ["lifetime"]
    listed = cli("prune", "list", "--limit", "1", "--cause", "lifetime")
    assert listed.out.splitlines()[0].split()[:2] == ["WRITE", "POINTER"]
    assert cli("prune", "list", "--after", pointer, "-o", "json").out.strip() == "[]"
    assert "must be lifetime or " in cli("prune", "list", "--cause", "bad luck").err


def test_a_run_tells_what_it_did_and_a_dry_one_what_it_would_do(cli):
    failed_writer(cli)
    assert cli("prune", "run", "--dry-run").out.startswith("would prune 0 writers of ")
    done = cli("prune", "run")
    assert done.out.startswith("pruned 0 writers of ")
    assert json.loads(cli("prune", "run", "-o", "json").out)["dry_run"] is False
    assert cli("prune", "history").code == 0


def test_a_restore_wants_a_time_and_a_yes(cli):
    assert cli("prune", "restore", "--since", "-1h").code == 2
    assert cli("prune", "restore", "--since", "start", "--yes").code == 2
    assert cli("prune", "restore").code == 2
    assert cli("prune", "restore", "--since", "-1h", "--dry-run").out == "would make 0 writers invalid again\n"


def test_what_needs_regions_says_that_there_are_none(cli):
    for arguments in (
        ("prune", "regions"),
        ("prune", "regions", "--idle"),
        ("prune", "info", "abc"),
        ("prune", "compact"),
        ("snapshot", "publish"),
    ):
        ran = cli(*arguments)
        assert (ran.code, "Traceback" in ran.err) == (4, False), ran.err


def test_a_snapshot_is_shown(cli):
    assert "read pointer" in cli("snapshot", "show").out
    assert json.loads(cli("snapshot", "show", "-o", "json").out)["published"] is None
    assert cli("snapshot", "publish", "--dry-run").out == "would publish a snapshot\n"


def test_a_writer_that_is_not_invalid_does_not_exist(cli):
    assert cli("prune", "explain", "17").code == 3


# A server whose store has regions, if only on paper.


async def services_with_regions() -> RunningServices:
    store = MemoryStore(atomic=False)
    cluster = PaperCluster(SystemTable(store.table("system")))
    services = await open_services(Settings(), None, store=store, cluster=cluster)
    cluster.report(services.clock.now_ms(), StoreFile("f1", -1, 1, 2_048, 1))
    return services


@pytest.fixture(scope="module")
def regions_url() -> Iterator[str]:
    with served(services_with_regions) as url:
        yield url


def test_regions_are_listed_with_what_they_hold_back(cli, regions_url: str):
    listed = cli("prune", "regions", "--url", regions_url)
    assert listed.code == 0, listed.err
    assert listed.out.splitlines()[0].split()[:3] == ["ID", "TABLE", "SERVER"]
    assert {line.split()[0] for line in listed.out.splitlines()[1:]} == {"c1", "m1", "m2", "p1"}
    idle = json.loads(cli("prune", "regions", "--idle", "--url", regions_url, "-o", "json").out)
    assert {region["id"] for region in idle} == {"c1", "m2", "p1"}
    assert json.loads(cli("prune", "regions", "--blocking", "--idle", "--url", regions_url, "-o", "json").out) == []


def test_a_region_is_shown_with_its_files(cli, regions_url: str):
    shown = cli("prune", "info", "m1", "--url", regions_url)
    assert shown.code == 0, shown.err
    assert "kept" in shown.out
    assert "2 KiB" in shown.out
    detail = json.loads(cli("prune", "info", "m1", "--url", regions_url, "-o", "json").out)
    assert [each["name"] for each in detail["store_files"]] == ["f1"]
    assert cli("prune", "info", "abc", "--url", regions_url).code == 3


def test_compactions_are_tried_dry_and_asked_for(cli, regions_url: str):
    tried = cli("prune", "compact", "m1", "m2", "--dry-run", "--url", regions_url)
    assert tried.out.splitlines()[0].split() == ["ID", "TABLE", "SERVER", "FILES", "SIZE"]
    assert tried.out.splitlines()[-1] == "would ask for compactions of 2 regions"
    done = cli("prune", "compact", "m1", "--reason", "old files", "--url", regions_url, "-o", "json")
    assert [each["id"] for each in json.loads(done.out)["regions"]] == ["m1"]
    assert cli("prune", "compact", "abc", "--url", regions_url).code == 3
    assert cli("prune", "compact", "--url", regions_url).out == "asked for compactions of 0 regions\n"


def test_a_snapshot_is_published_and_then_shown(cli, regions_url: str):
    assert cli("snapshot", "publish", "--url", regions_url).out == "published snapshot 1 of epoch 0\n"
    assert "sequence" in cli("snapshot", "show", "--url", regions_url).out
