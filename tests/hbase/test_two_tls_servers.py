"""Two real servers on one real HBase that speak TLS: clients follow the lead over https, also while certificates change; and they share topics."""

from __future__ import annotations

import os
import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import basalt
from deploy.hbase.standalone import Gateways
from tests.certificates import Authority
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, Installation, install
from tests.hbase.tables import Tables
from tests.system.tls_server import TlsServer

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def tables(hbase_gateways: Gateways) -> Iterator[Installation]:
    """Tables without the coprocessor."""
    prefix = f"tls-pair-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--no-coprocessor")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[TlsServer, TlsServer]]:
    """Two that have certificates of one CA and are not started."""
    authority, made = Authority(tmp_path / "pki"), []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(TlsServer(tmp_path / name, authority))
    yield made[0], made[1]
    for each in made:
        each.process.kill()


def until(server: TlsServer, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TAKE_OVER_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, server.process.tail()
        time.sleep(0.1)


def test_a_client_follows_the_lead_over_https_from_server_to_server_and_over_new_certificates(
    tables: Installation, servers: tuple[TlsServer, TlsServer]
):
    leader, standby = servers
    address = "https://127.0.0.1:{}"
    # Neither trusts the other: so no call is passed on, there is no link, and the client follows by itself.
    leader.start(*tables.options())
    until(leader, lambda: leader.ask("GET", "/readyz?leader=true")[0] == 200)
    standby.start(*tables.options())
    until(standby, lambda: standby.ask("GET", "/v1/admin/jobs")[1].get("leader") is not None)
    leaders_url, standbys_url = address.format(leader.process.port), address.format(standby.process.port)

    _, cluster = leader.ask("GET", "/v1/admin/cluster")
    assert (cluster["leads"], cluster["url"]) == (True, leaders_url), "the lease names it with https"
    status, told = standby.ask("GET", "/v1/admin/jobs")
    assert (status, told["code"], told["leader"]) == (503, "not_leader", leaders_url)

    trusting = leader.authority.trusting()
    with (
        basalt.connect(standbys_url, tls=trusting, namespace="pair") as led,
        basalt.connect(f"{leaders_url},{standbys_url}", tls=trusting, namespace="pair", attempts_max=1_000) as both,
    ):
        led.topics.create("orders")  # it was given the standby alone, and follows
        both.topic("orders").publish("before")

        for server in servers:  # certificates swapped under both, and under their clients
            shown = server.authority.server(server.process.data.parent.name)
            server.signal(signal.SIGHUP)
            server.wait_until_shown(shown.der)
        led.topic("orders").publish("swapped")
        both.topic("orders").publish("swapped, too")

        assert leader.process.stop() == 0
        until(standby, lambda: standby.ask("GET", "/readyz?leader=true")[0] == 200)
        _, cluster = standby.ask("GET", "/v1/admin/cluster")
        assert (cluster["leads"], cluster["url"]) == (True, standbys_url)
        both.topic("orders").publish("after")
        read = ["before", "swapped", "swapped, too", "after"]
        assert [message.text for message in both.topic("orders").read()] == read
        assert [message.text for message in led.topic("orders").read()] == read
    assert standby.process.stop() == 0


TOPICS = "/v1/namespaces/pair/topics"


def test_servers_that_share_topics_pass_calls_on_over_tls_also_with_new_certificates_and_are_linked(
    tables: Installation, servers: tuple[TlsServer, TlsServer]
):
    leader, other = servers
    ca = ("--set", f"cluster.ca={leader.authority.file}")
    leader.start(*tables.still(), *ca)
    until(leader, lambda: leader.ask("GET", "/readyz?leader=true")[0] == 200)
    other.start(*tables.still(), *ca)
    until(leader, lambda: len(linked(leader)) == 1)
    (run,) = linked(leader)
    others_url = f"https://127.0.0.1:{other.process.port}"

    for topic in ("moved", "stays"):
        until(other, lambda topic=topic: other.ask("PUT", f"{TOPICS}/{topic}")[0] == 200)  # type: ignore[misc]
    move = {"to": run, "namespace": "pair", "topic": "moved"}
    until(leader, lambda: leader.ask("POST", "/v1/admin/cluster/moves", move)[0] == 200)
    check_a_call_that_is_passed_on(leader, others_url, "first")

    for server in servers:
        shown = server.authority.server(server.process.data.parent.name)
        server.signal(signal.SIGHUP)
        server.wait_until_shown(shown.der)
        if server is leader:
            assert shown_on_links(other) == shown.der
    check_a_call_that_is_passed_on(leader, others_url, "with new certificates")

    # Both owners have a part, and the coordinator: all of them over links.
    begun = other.ask("POST", "/v1/transactions", {"timeoutMs": 60_000})[1]["id"]
    publish = [{"namespace": "pair", "topic": topic, "messages": ["together"]} for topic in ("moved", "stays")]
    assert other.ask("POST", f"/v1/transactions/{begun}/commit", {"publish": publish})[0] == 200
    for server in servers:
        assert read(server, "moved") == ["first", "with new certificates", "together"]
        assert read(server, "stays") == ["together"]
    assert len(linked(leader)) == 1
    assert [server.process.stop() for server in (other, leader)] == [0, 0]
    assert "are not encrypted" not in log_of(leader) + log_of(other)


def test_a_server_that_does_not_trust_the_leaders_certificate_has_no_link_until_it_does_and_both_say_why(
    tables: Installation, servers: tuple[TlsServer, TlsServer], tmp_path: Path
):
    leader, other = servers
    leader.start(*tables.still())
    until(leader, lambda: leader.ask("GET", "/readyz?leader=true")[0] == 200)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Authority(tmp_path / "another").pem)
    other.start(*tables.still(), "--set", f"cluster.ca={trusted}")
    until(other, lambda: refusals(other) == {"untrusted"})
    until(leader, lambda: refusals(leader) == {"handshake"})
    assert "nobody whom this server trusts vouches for its certificate: set cluster.ca" in log_of(other)
    assert "the log of that side says so" in log_of(leader)
    assert linked(leader) == []
    trusted.write_bytes(leader.authority.pem)
    until(leader, lambda: len(linked(leader)) == 1)


def test_a_server_with_tls_has_no_link_to_a_leader_without_and_one_without_has_it_to_a_leader_with_tls(
    tables: Installation, servers: tuple[TlsServer, TlsServer], tmp_path: Path
):
    """So servers can get TLS one after the other, the leader last: it is linked to the next one."""
    first, second = servers
    authority = first.authority
    (tmp_path / "plain").mkdir()
    plain = TlsServer(tmp_path / "plain", authority)
    plain.options = []
    ca = ("--set", f"cluster.ca={authority.file}")
    try:
        first.start(*tables.still(), *ca)
        until(first, lambda: first.ask("GET", "/readyz?leader=true")[0] == 200)
        plain.start(*tables.still(), *ca)
        until(first, lambda: len(linked(first)) == 1)
        assert "is linked to the leader at tls://" in log_of(plain)
        assert first.process.stop() == 0
        until(plain, lambda: plain.process.ask("GET", "/readyz?leader=true").status == 200)
        second.start(*tables.still(), *ca)
        until(second, lambda: refusals(second) == {"plain"})
        assert "one of the two speaks TLS on links, and the other does not" in log_of(second)
        until(plain, lambda: "one of the two speaks TLS on links, and the other does not" in log_of(plain))
        assert plain.process.stop() == 0
        until(second, lambda: second.ask("GET", "/readyz?leader=true")[0] == 200)
    finally:
        plain.process.kill()


def shown_on_links(member: TlsServer) -> bytes:
    """The certificate that the leader shows at the address that this member has dialed."""
    host, port = re.findall(r"is linked to the leader at tls://([\d.]+):(\d+)", log_of(member))[-1]
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))


def log_of(server: TlsServer) -> str:
    return server.process.log.read_text(errors="replace")


def refusals(server: TlsServer) -> set[str]:
    """The reasons for which links of this server came to nothing."""
    _, _, body = server.ask_text("GET", "/metrics")
    return set(re.findall(r'basalt_cluster_link_refusals_total\{why="(\w+)"\}', body))


def linked(leader: TlsServer) -> list[str]:
    """The live servers that have a link to the leader."""
    rows = leader.ask("GET", "/v1/cluster")[1]["members"]
    return [each["instance"] for each in rows if each["state"] == "live" and each["linked"]]


def check_a_call_that_is_passed_on(server: TlsServer, owner: str, text: str) -> None:
    status, headers, _ = server.ask_whole("POST", f"{TOPICS}/moved/publish", {"messages": [text]})
    assert (status, headers.get("basalt-owner")) == (200, owner)


def read(server: TlsServer, topic: str) -> list[str]:
    status, messages = server.ask("POST", f"{TOPICS}/{topic}/poll", {})
    assert status == 200, messages
    return [each["payload"] for each in messages]
