"""The page of the cluster: who leads, the store with its tables, and backups of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

import pytest

from basalt.api.bodies.operations import ProcessGateway
from basalt.cluster.links.beats import Beat
from basalt.console.app import PAGES
from basalt.console.pages.cluster import CERTIFICATE_WARN_MS, proposed_name
from basalt.http.app import build_app
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.http.collectors import TlsMetrics
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.rocks import RocksStore
from tests.control.console.conftest import Browser, Page
from tests.control.http.conftest import Client
from tests.shared_members import URL, SharedMembers

PATH = "/console/cluster"


@pytest.fixture
def on_disk(runner: asyncio.Runner, tmp_path) -> Iterator[Browser]:
    """A browser of a server that has a data directory."""
    store = RocksStore.open(tmp_path)
    services = runner.run(open_services(Settings(), tmp_path, store=store, clock=ManualClock()))
    client = Client(services, runner)
    client.app = build_app(services, further_routes=PAGES)
    yield Browser(client)
    runner.run(services.close())


def test_a_server_that_has_its_store_to_itself_says_so(browser, api):
    page = browser.page(PATH)
    assert "Shares its store with nobody" in page.text
    assert "Its store is embedded: no other server can open it." in page.text
    assert "none: it speaks no TLS" in page.text
    assert f"Installation {api('GET', '/v1/admin/store')['instance']}" in page.text
    assert "transaction_log" in page.text
    assert "This server keeps no backup." in page.text
    for command in ("basalt cluster show", "basalt backup list", "basalt doctor"):
        assert command in page.text


def test_members_are_shown_with_their_version_and_last_renewal(client, browser):
    shared = SharedMembers(client.services)
    shared.add("other:2", "http://other:4780")
    shared.add("dead:3", "http://dead:4780", ended_ms=7)
    client.clock.advance(1_000)
    page = browser.page(f"{PATH}?panel=cluster_members")
    assert f"leader:1 {URL} leader live 1.0" in page.text
    assert "other:2 http://other:4780 standby live 1.0" in page.text
    assert "dead:3 http://dead:4780 \N{EN DASH} dead 1.0" in page.text
    assert "read who there is 1 s ago" in page.text
    assert "basalt cluster members" in page.text
    for warning in ("no standby", "versions differ"):
        assert warning not in page.text


def test_a_missing_standby_is_told(client, browser):
    shared = SharedMembers(client.services)
    shared.add("dead:3", version="2.0", ended_ms=7)
    page = browser.page(f"{PATH}?panel=cluster_members")
    assert ("no standby" in page.text, "versions differ" in page.text) == (True, False)


def test_versions_that_differ_are_told(client, browser):
    SharedMembers(client.services).add("other:2", version="2.0")
    page = browser.page(f"{PATH}?panel=cluster_members")
    assert ("no standby" in page.text, "versions differ" in page.text) == (False, True)


def test_the_process_is_shown_from_within(browser, api):
    page = browser.page(f"{PATH}?panel=process")
    told = api("GET", "/v1/admin/process")
    assert f"Process {told['pid']}, Python {told['python']}" in page.text
    for name in (each["name"] for part in ("queues", "caches", "threads") for each in told[part]):
        assert name in page.text
    assert f"of {told['connectionsMax']:,}" in page.text
    assert "Gateways of HBase" not in page.text
    assert "basalt process" in page.text


def test_gateways_are_shown_with_their_mean_time(browser, client, monkeypatch):
    gateway = ProcessGateway("gateway-2:9090", "rows", 1, 2, 8, 3, 1_000, 4, 5, 2.5)
    monkeypatch.setattr("basalt.http.process_status._gateways", lambda _: (gateway,))
    assert "gateway-2:9090 rows 1 2 8 3 1,000 4 5 2.5 ms" in browser.page(f"{PATH}?panel=process").text


@pytest.mark.parametrize(
    ("left_ms", "told"), [(-1, "ended, until"), (CERTIFICATE_WARN_MS - 1, "ends soon, until"), (CERTIFICATE_WARN_MS, "good, until")]
)  # fmt: skip
def test_a_certificate_that_ends_is_told_in_time(client, browser, left_ms, told):
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.not_after_ms = client.clock.now_ms() + left_ms
    client.services.collectors.append(TlsMetrics(Handshakes(context)))
    assert told in browser.page(f"{PATH}?panel=cluster").text


def test_a_backup_is_made_under_the_name_that_is_offered_or_another(on_disk):
    proposed = proposed_name(on_disk.client.clock.now_ms())
    assert on_disk.page(PATH).all("form", action=f"{PATH}/backups/{proposed}/create?step=plan")
    page = on_disk.page(f"{PATH}?backup=before-upgrade")
    (form,) = [each for each in page.all("form", method="post") if "backups" in each["action"]]
    plan = Page(on_disk.post(form["action"]))
    assert "backups/before-upgrade" in plan.text
    assert "basalt backup create before-upgrade --dry-run" in plan.text
    assert "This server keeps no backup." in on_disk.page(PATH).text
    done = on_disk.act(f"{PATH}/backups/before-upgrade/create", reason="an upgrade")
    assert (done.status, "back up backup before-upgrade done an upgrade" in done.text) == (200, True)
    assert "before-upgrade" in on_disk.page(PATH).text
    again = on_disk.plan(f"{PATH}/backups/before-upgrade/create")
    assert (again.status, "there is a backup before-upgrade already" in again.text) == (409, True)


def test_a_name_that_is_none_is_refused_in_words(on_disk):
    page = on_disk.page(f"{PATH}?backup=%3Cb%3E%20x")
    (form,) = [each for each in page.all("form", method="post") if "backups" in each["action"]]
    refused = Page(on_disk.post(form["action"]))
    assert (refused.status, "'<b> x' is not a name" in refused.text) == (400, True)


def test_a_store_without_a_directory_refuses_a_backup_before_it_is_made(browser):
    refused = browser.plan(f"{PATH}/backups/nightly/create")
    assert (refused.status, "has no data directory" in refused.text) == (400, True)


def test_who_may_only_look_sees_the_backup_disabled(signed_in):
    page = signed_in("ada", ("observe", "cluster")).page(PATH)
    assert "basalt grant add token:ada operate cluster" in page.text


def test_the_servers_say_who_is_linked_and_how_far_away(client, browser):
    shared = SharedMembers(client.services)
    shared.add("other:2")
    shared.add("third:3")
    page = browser.page(f"{PATH}?panel=cluster_members")
    assert page.text.count("no link") == 2
    now_ms = client.clock.monotonic_ms()
    beats = shared.membership.beats
    beats.begin(1, now_ms)
    beats.opened("m1", now_ms)
    beats.hear("m1", Beat(1, rtt_us=480), now_ms)
    page = browser.page(f"{PATH}?panel=cluster_members")
    assert (page.text.count("no link"), "linked 0.5 ms" in " ".join(page.text.split())) == (1, True)


def test_shards_are_counted_by_owner_and_those_that_nobody_serves_are_told(client, browser):
    assert (
        "Its store is embedded: this server owns all 1,024 shards." in browser.page(f"{PATH}?panel=cluster_shards").text
    )
    shared = SharedMembers(client.services)
    shared.add("other:2")
    shared.deal(m1=[4, 5], gone=[7])
    page = browser.page(f"{PATH}?panel=cluster_shards")
    assert "unowned Nobody serves 1 of the shards" in page.text
    assert f"leader:1 {URL} live 1,021" in page.text
    assert "other:2 http://other:4780 live 2" in page.text
    assert "gone dead 1" in page.text
    assert "Map version 3, which the leader of epoch 1 wrote, deals 1,024 shards." in page.text
    assert "basalt cluster shards" in page.text
