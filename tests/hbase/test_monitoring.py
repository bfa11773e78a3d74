"""Every name and label of HBase in the rules and dashboards is in a real scrape of a server on HBase."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.membership import Membership
from basalt.cluster.owners import take_all
from basalt.http.app import build_app
from basalt.operations.alerts.rules import ALERTS
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, JAR_VERSION, OWN_VERSION, REPORT_KIND, RegionReport
from basalt_engine.stores.memory import MemoryStore
from deploy.hbase.standalone import Gateways
from deploy.monitoring.dashboards import HBASE, model
from deploy.monitoring.rules import RECORDED
from tests.control.http.conftest import Client
from tests.deploy.scrapes import is_of_hbase, parsed, unknown
from tests.hbase.tables import Tables
from tests.programs import needed_program
from tests.region_reports import encode_report
from tests.wiring import Wired

pytestmark = pytest.mark.hbase

# What each region server's coprocessors count, as their reports have it: Java class `Count`.
COUNTS = dict.fromkeys(("rowsKept", "rowsDroppedExpired", "rowsDroppedInvalid", "writesRefused", "writesFenced", "hookFailures", "refreshFailures"), 1)  # fmt: skip


LOOKS_MAX = (
    10  # the real coprocessor of these tables reports by itself, and may do so between our reports and the look at them
)


async def reported(wired: Wired) -> None:
    """Every region has reported, by a coprocessor that is older than the server, and pruning has read it."""
    pruner = wired.services.pruner
    assert pruner._cluster is not None
    for _ in range(LOOKS_MAX):
        now_ms = wired.clock.now_ms()
        for region in await asyncio.to_thread(pruner._cluster.regions):
            report = RegionReport(
                f"basalt.{region.table}", region.name, region.server, now_ms, EMPTY_MEMSTORE, 0, 1, now_ms, region.start, region.stop, (),
                {**COUNTS, JAR_VERSION: OWN_VERSION - 1},
            )  # fmt: skip
            await asyncio.to_thread(wired.services.system.write, REPORT_KIND, region.id, encode_report(report))
        await pruner.survey()
        if any(server.jar_version == OWN_VERSION - 1 for server in pruner.region_servers.values()):
            return
    raise AssertionError(f"the real coprocessor reported in between, {LOOKS_MAX} times")


@pytest.fixture(scope="module")
def scraped(hbase_gateways: Gateways, hbase_tables: Tables) -> Iterator[str]:
    """What a server on HBase answers."""
    hbase = HBaseSettings(thrift=hbase_gateways.thrift, thrift2=hbase_gateways.thrift2, prefix=hbase_tables.prefix)
    settings = Settings()
    settings = replace(settings, store=replace(settings.store, kind="hbase", hbase=hbase))
    with asyncio.Runner() as runner:
        wired = runner.run(Wired.start(hbase_tables.emptied(), ManualClock(), settings=settings))
        services = wired.services
        candidate = Candidate("here:1", "http://here:4780", "0", 6_000)
        services.leadership = Leadership(MemoryStore(), services.clock, candidate, on_term=lambda _: None)
        shared = MemoryStore()
        take_all(shared, candidate.instance, 1)
        services.membership = Membership(shared, services.clock, candidate, services.leadership)
        services.membership.step()
        client = Client(services, runner)
        client.app = build_app(services)
        client.publish(client.topic(), "m")
        runner.run(reported(wired))
        yield client.call("GET", "/metrics").body.decode()
        services.leadership = None
        runner.run(services.close())


def test_prometheus_finds_no_fault_in_a_scrape(scraped: str):
    checked = subprocess.run(
        [needed_program("promtool"), "check", "metrics"], input=scraped, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_series_of_the_rules_are_there(scraped: str):
    expressions = {**{alert.name: alert.promql for alert in ALERTS}, **RECORDED}
    of_hbase = {name: expression for name, expression in expressions.items() if is_of_hbase(expression)}
    assert "BasaltRegionSnapshotOld" in of_hbase
    assert {name: unknown(each, parsed(scraped)) for name, each in of_hbase.items()} == {name: [] for name in of_hbase}


def test_the_series_of_each_panel_are_there(scraped: str):
    scrape = parsed(scraped)
    missing = {
        panel["title"]: found
        for panel in model(HBASE)["panels"]
        for target in panel["targets"]
        if (found := unknown(target["expr"], scrape, target["legendFormat"]))
    }
    assert missing == {}
    assert HBASE.chosen_by in scrape
