"""Calls that are passed on over TLS: to a leader whose certificate counts, from callers whose proof can go along."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from basalt.cluster.lease import LeaseRecord
from basalt.errors import InvalidSettingError, NotLeaderError
from basalt.http.asgi.handshake import Handshake, Handshakes
from basalt.server import leader_connection, passing_on
from basalt.server.leader_connection import LeaderConnections
from basalt.server.passing_on import PassingOn
from basalt.server.tls import load
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings, TlsSettings
from basalt.settings.cluster import ClusterSettings
from basalt_engine.clock import SystemClock
from tests.certificates import Authority
from tests.control.server.passing_pair import TOPIC, PortServer, passing_pair
from tests.control.server.test_passed_call import run as run_scripted
from tests.led_servers import ONE_LEADS

ROOT = "Bearer " + "r" * 40


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(authority: Authority, *, trusts: bool = True, client: str = "optional") -> tuple[Settings, dict[str, Any]]:
    issued = authority.server()
    tls = TlsSettings(
        certificate=str(issued.certificate), key=str(issued.key), client=client, client_ca=str(authority.file)  # type: ignore[arg-type]
    )  # fmt: skip
    auth = AuthSettings(kinds=("token", "cert"), bootstrap_token="r" * 40, superusers=("cert:CN=etl",))
    settings = Settings(
        tls=tls, auth=auth, cluster=ClusterSettings(share=False, ca=str(authority.file) if trusts else None)
    )
    handshakes = Handshakes(load(tls)[1])
    return settings, {"protocol": functools.partial(Handshake, handshakes), "scheme": "https"}


def run(settings: Settings, how: dict[str, Any], story: Callable[[PortServer, PortServer], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with passing_pair(settings, **how) as (leader, standby):
            await story(leader, standby)

    uvloop.run(all_of_it())


def test_a_call_goes_on_over_tls(authority: Authority):
    async def story(leader: PortServer, standby: PortServer) -> None:
        tls = authority.trusting()
        assert (await standby.ask("PUT", TOPIC, tls=tls, Authorization=ROOT)).status == 200
        told = await standby.ask("GET", TOPIC, tls=tls, Authorization=ROOT)
        assert (told.status, told.headers["basalt-owner"]) == (200, leader.url)
        assert leader.url.startswith("https://")
        login = await standby.ask("POST", "/v1/auth/logins", {}, tls=tls, Authorization=ROOT)
        cookie = f"__Host-basalt={login.json()['token']}"
        assert (await standby.ask("GET", TOPIC, tls=tls, Cookie=cookie)).status == 200
        origin = f"https://127.0.0.1:{standby.port}"
        for given, status in ((origin, 303), ("https://evil.example", 403), (origin.replace("https", "http"), 403)):
            page = await standby.ask(
                "POST", "/console/logout", b"", tls=tls, Cookie=cookie, Origin=given,
                Content_Type="application/x-www-form-urlencoded",
            )  # fmt: skip
            if status == 403:
                assert page.status == 403, page.body
            else:
                assert page.status != 403, page.body

    run(*secured(authority), story)


def test_a_leader_whose_certificate_does_not_count_gets_nothing(authority: Authority):
    async def story(leader: PortServer, standby: PortServer) -> None:
        asked = leader.uvicorn.server_state.total_requests
        told = await standby.ask("GET", TOPIC, tls=authority.trusting(), Authorization=ROOT)
        assert (told.status, told.json()["code"]) == (503, "not_leader")
        assert leader.uvicorn.server_state.total_requests == asked
        assert (await standby.ask("GET", "/readyz", tls=authority.trusting())).status == 503

    run(*secured(authority, trusts=False), story)


def test_who_proves_it_by_a_certificate_is_told_why_it_is_not_passed_on(authority: Authority):
    async def story(leader: PortServer, standby: PortServer) -> None:
        tls = authority.trusting(authority.client())
        assert (await leader.ask("PUT", TOPIC, tls=tls)).status == 200
        told = await standby.ask("GET", TOPIC, tls=tls)
        assert (told.status, told.json()["code"], told.json()["leader"]) == (503, "not_leader", leader.url)
        assert "certificate" in told.json()["detail"]
        assert (await standby.ask("GET", TOPIC, tls=tls, Authorization=ROOT)).status == 200, "a token counts first"
        assert (await standby.ask("GET", TOPIC, tls=tls)).status == 503, "also where the like was passed on"

    run(*secured(authority), story)


def test_the_certificate_of_the_server_that_passes_on_is_nobodys_proof(authority: Authority):
    async def story(leader: PortServer, standby: PortServer) -> None:
        told = await standby.ask("GET", "/v1/auth/whoami", tls=authority.trusting())
        assert told.status == 401

    run(*secured(authority), story)


def test_what_came_over_tls_does_not_go_on_without():
    async def story(leader: PortServer, standby: PortServer) -> None:
        from tests.control.server.test_passing_on import held

        request = held("https")
        lease = standby.member.leadership.leader
        assert lease is not None
        with pytest.raises(NotLeaderError, match="TLS"):
            await standby.passing.pass_on(request, lease, b"")

    run(ONE_LEADS, {}, story)


def test_a_leader_that_takes_connections_and_says_nothing_is_given_up_soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leader_connection, "CONNECT_SECONDS_MAX", 0.05)
    monkeypatch.setattr(passing_on, "READY_SECONDS_MAX", 0.05)

    async def silent(reader: Any, writer: Any) -> None:
        await reader.read()
        await reader.read()

    async def story(standby: PortServer, scripted: Any) -> None:
        import ssl

        lease = standby.member.leadership.leader
        assert isinstance(lease, LeaseRecord)
        with pytest.raises(TimeoutError):
            await LeaderConnections(lease, ssl.create_default_context()).connect()
        assert not await standby.passing.is_ready()

    run_scripted(silent, story, "leader")


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_a_file_of_authorities_that_is_none_is_refused_at_the_start(tmp_path: Path, content: bytes | None):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)

    async def story() -> None:
        with pytest.raises(InvalidSettingError) as caught:
            PassingOn(None, None, SystemClock(), Settings(cluster=ClusterSettings(ca=str(path))), None)  # type: ignore[arg-type]
        assert caught.value.field == "cluster.ca"

    uvloop.run(story())


def test_a_file_of_authorities_that_is_gone_is_told_and_nothing_is_sent(authority: Authority):
    async def story(leader: PortServer, standby: PortServer) -> None:
        authority.file.unlink()
        told = await standby.ask("GET", TOPIC, tls=tls, Authorization=ROOT)
        assert (told.status, told.json()["code"]) == (503, "not_leader")
        assert (await standby.ask("GET", "/readyz", tls=tls)).status == 503

    tls = authority.trusting()
    run(*secured(authority), story)
