"""Every name and label in the rules and dashboards is in a real scrape of a server; which ones of HBase's has tests/hbase/test_monitoring.py."""

from __future__ import annotations

import asyncio
import ssl
import subprocess

import pytest

from basalt.access.policy import Caller
from basalt.access.principal import internal
from basalt.access.proofs.jwks import ALGORITHMS, Jwks
from basalt.http.app import build_app
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.http.collectors import JwksMetrics, TlsMetrics
from basalt.operations.alerts.rules import ALERTS
from basalt.server.wiring import open_services
from basalt_engine.clock import ManualClock
from deploy.monitoring.dashboards import GROUPS, OVERVIEW, TRANSACTIONS, model
from deploy.monitoring.rules import RECORDED
from tests.control.http.asker import ASKED
from tests.control.http.group_client import GROUP, ORDERS, GroupClient, claim_of
from tests.deploy.scrapes import TARGET, Scrape, is_of_hbase, parsed, unknown
from tests.programs import needed_program


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an embedded server answers that has TLS, tokens, keys of an identity provider, a group and a transaction."""
    with asyncio.Runner() as runner:
        services = runner.run(open_services(ASKED, tmp_path_factory.mktemp("store") / "data", clock=ManualClock()))
        services.collectors += [
            TlsMetrics(Handshakes(ServerContext(ssl.PROTOCOL_TLS_SERVER))),
            JwksMetrics(Jwks("keys.json", ALGORITHMS, services.clock)),
        ]
        client = GroupClient(services, runner)
        assert client.call("GET", "/v1/namespaces/shop/topics", Authorization="Bearer no-such-token").status == 401
        client.app = build_app(services, Caller(internal("test"), None))  # which may do everything
        client.make(3)
        client.post("release", {"claims": [claim_of(client.fetch("?limit=1"))]})
        client.payloads(ORDERS)
        assert client.call("POST", f"/v1/transactions/{client.begin()['id']}/commit").status == 200
        runner.run(services.scheduler.run_now("stats"))
        assert client.call("GET", GROUP).status == 200
        text = client.call("GET", "/metrics").body.decode()
        runner.run(services.close())
    return text


@pytest.fixture(scope="module")
def scrape(scraped: str) -> Scrape:
    return parsed(scraped)


def test_prometheus_finds_no_fault_in_a_scrape(scraped: str):
    checked = subprocess.run(
        [needed_program("promtool"), "check", "metrics"], input=scraped, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


EXPRESSIONS = {**{alert.name: alert.promql for alert in ALERTS}, **RECORDED}


@pytest.mark.parametrize("name", [name for name, expression in EXPRESSIONS.items() if not is_of_hbase(expression)])
def test_the_series_of_the_rules_are_there(scrape: Scrape, name: str):
    assert unknown(EXPRESSIONS[name], scrape) == []


@pytest.mark.parametrize("dashboard", [OVERVIEW, TRANSACTIONS, GROUPS], ids=lambda dashboard: dashboard.uid)
def test_the_series_of_each_panel_are_there(scrape: Scrape, dashboard):
    missing = {
        panel["title"]: found
        for panel in model(dashboard)["panels"]
        for target in panel["targets"]
        if (found := unknown(target["expr"], scrape, target["legendFormat"]))
    }
    assert missing == {}
    assert dashboard.chosen_by in scrape


def test_no_series_has_a_label_that_prometheus_gives_to_its_targets(scrape: Scrape):
    """It would be renamed to `exported_job`, and an alert that names it would speak of another."""
    assert {name for name, found in scrape.items() for labels, _ in found if TARGET.keys() & labels.keys()} == set()


def test_what_is_not_there_is_found(scrape: Scrape):
    assert unknown("basalt_no_such_thing > 1", scrape) == ["basalt_no_such_thing []"]
    assert unknown('basalt_transactions_total{event="exploded"}', scrape) == [
        "basalt_transactions_total ['event=exploded']"
    ]
    assert unknown('basalt_transactions_total{kind="x"}', scrape) == ["basalt_transactions_total ['kind=x']"]
    assert unknown("sum by (colour) (basalt_transactions_total)", scrape) == ["colour"]
    assert unknown("basalt_transactions_total", scrape, "{{flavour}}") == ["flavour"]
