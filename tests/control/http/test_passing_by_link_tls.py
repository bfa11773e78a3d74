"""Small calls that came by TLS are passed on over a link that speaks it, and over no other: they bring what proves who calls."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from basalt.cluster.links.hello import fingerprint
from basalt.cluster.links.link_tls import LinkTls, Shown
from basalt.http.asgi.handshake import Handshake, Handshakes
from basalt.server.tls import load
from basalt.settings.auth import TlsSettings
from tests.certificates import Authority
from tests.control.http.test_passing_by_link import SHOP, Line, _shard, came_by_link, payloads
from tests.control.server.sharing_servers import SHARING, Https, sharers


@pytest.mark.parametrize("leader_owns", [True, False])
@pytest.mark.parametrize("by_tls", [True, False])
def test_what_came_by_tls_goes_by_a_link_with_tls_alone(tmp_path: Path, leader_owns: bool, by_tls: bool):
    authority = Authority(tmp_path)
    issued = authority.server()
    tls = TlsSettings(certificate=str(issued.certificate), key=str(issued.key))
    settings = replace(SHARING, tls=tls, cluster=replace(SHARING.cluster, ca=str(authority.file)))
    _, context, for_links = load(tls)
    shown = Shown(for_links, fingerprint(issued.der))
    https = Https(
        functools.partial(Handshake, Handshakes(context)),
        LinkTls(str(authority.file), lambda: shown) if by_tls else None,
        authority.trusting(),
    )

    async def story() -> None:
        async with sharers(2, settings, https) as world:
            leader, member = world.servers
            owner, asked = (leader, member) if leader_owns else (member, leader)
            await world.give("orders", owner)
            await world.until(lambda: asked.member._owners().owner_of(_shard("orders")) == owner.instance)  # type: ignore[union-attr]
            await world.until(lambda: member.member.links.to_leader is not None)
            assert (await leader.ask("PUT", f"{SHOP}/orders")).status == 200
            seen = came_by_link(owner)
            for number in range(5):
                told = await Line(asked).publish("orders", f"{number}", basalt_request_id=f"call-{number}")
                assert (told.status, told.headers["basalt-owner"]) == (200, owner.url)
            assert await payloads(owner, "orders") == [f"{number}" for number in range(5)]
            assert bool(seen) == by_tls
            assert owner.url.startswith("https:")

    uvloop.run(story())
