"""Client certificates among the other credentials: which one counts, for how long, and that nobody is taken for another."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from basalt.access.proofs.certificate import ClientCertificate
from basalt.access.records import TokenRow
from basalt.errors import ForbiddenError, InputError, UnauthenticatedError
from tests.control.access.test_authentication import ROOT, World

ENDS_S = 60 * 60 * 24


def certificate(world: World, name: str, *, ends_s: float = ENDS_S) -> ClientCertificate:
    ends = world.clock.now_ms() / 1_000 + ends_s
    fields: dict[str, Any] = {
        "subject": ((("commonName", name),),), "issuer": ((("commonName", "ca"),),), "serialNumber": "07",
        "notAfter": _time(ends),
    }  # fmt: skip
    return ClientCertificate(fields, name.encode())


def _time(seconds: float) -> str:
    from datetime import UTC, datetime

    text = datetime.fromtimestamp(seconds, UTC).strftime("%b %d %H:%M:%S %Y GMT")
    assert ssl.cert_time_to_seconds(text) == int(seconds)
    return text


def ask(world: World, by: ClientCertificate | None, token: str | None = None, **headers: str) -> str:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    if token is not None:
        sent[b"authorization"] = f"Bearer {token}".encode()
    found = world.authentication.identify(sent, "192.0.2.7", world.clock.monotonic_ms(), by)
    return str(found.caller.principal)


@pytest.fixture
def world() -> World:
    return World(kinds=frozenset({"token", "cert"}))


def test_two_connections_are_two_callers_though_their_requests_are_the_same(world):
    a, b = certificate(world, "a"), certificate(world, "b")
    for _ in range(2):
        assert ask(world, a) == "cert:CN=a"
        assert ask(world, b) == "cert:CN=b"
        assert ask(world, None) == "anonymous"
    assert world.authentication.counts == {("cert", "accepted"): 2}  # each was looked at once


def test_a_credential_of_the_request_counts_before_the_certificate_and_a_bad_one_is_not_passed_over(world):
    a = certificate(world, "a")
    assert ask(world, a, ROOT) == "token:bootstrap"
    with pytest.raises(UnauthenticatedError, match="invalid"):
        ask(world, a, "x")
    assert ask(world, a) == "cert:CN=a"


def test_where_certificates_are_no_kind_they_say_nothing():
    world = World(kinds=frozenset({"token"}))
    assert ask(world, certificate(world, "a")) == "anonymous"


def test_a_certificate_that_ends_while_its_connection_lasts_is_refused_from_then_on(world):
    a = certificate(world, "a", ends_s=60)
    assert ask(world, a) == "cert:CN=a"
    world.clock.advance(59_000)
    assert ask(world, a) == "cert:CN=a"
    world.clock.advance(1_001)
    for _ in range(2):
        with pytest.raises(UnauthenticatedError, match="expired") as refused:
            ask(world, a)
        assert refused.value.challenges == ('Bearer realm="basalt"',)
    assert world.authentication.counts["cert", "refused"] == 2


def test_a_certificate_without_a_name_is_nobody_s(world):
    with pytest.raises(UnauthenticatedError, match="is invalid"):
        ask(world, ClientCertificate({"subject": (), "notAfter": "Jan 19 03:14:07 2038 GMT"}, b"x"))


def test_where_the_name_is_looked_for_is_a_setting(world):
    a = certificate(world, "a")
    assert ask(World(kinds=frozenset({"cert"}), certificate_name="cn"), a) == "cert:a"


def test_a_proxy_may_prove_itself_by_a_certificate_and_each_of_its_requests_is_its_user_s():
    world = World(kinds=frozenset({"cert", "proxy"}), proxies=frozenset({"cert:CN=proxy"}))
    proxy, other = certificate(world, "proxy"), certificate(world, "other")
    for user in ("alice", "bob", "alice"):
        assert ask(world, proxy, **{"x-forwarded-user": user}) == f"proxy:{user}"
    with pytest.raises(ForbiddenError, match="does not say for whom"):
        ask(world, proxy)
    with pytest.raises(InputError, match="comes from nobody who may say"):
        ask(world, other, **{"x-forwarded-user": "alice"})
    with pytest.raises(InputError):
        ask(world, None, **{"x-forwarded-user": "alice"})


def test_no_header_is_taken_for_a_certificate_that_is_known(world):
    a = certificate(world, "a")
    assert ask(world, a) == "cert:CN=a"
    with pytest.raises(UnauthenticatedError):
        world.authentication.identify({b"authorization": a.digest}, None, 0)


def test_who_comes_without_is_told_of_both_ways(world):
    assert "Connect with a client certificate, or send" in world.authentication.missing(None, 0.0).hint


def test_a_change_of_tokens_and_grants_has_certificates_looked_at_again(world):
    a = certificate(world, "a")
    before = world.authentication.identify({}, None, 0, a)
    assert world.authentication.identify({}, None, 0, a) is before
    asyncio.run(
        world.directory.add_token(
            "0" * 16, TokenRow(principal="token:x", digest="0" * 64, created_ms=0, expire_ms=None)
        )
    )
    assert world.authentication.identify({}, None, 0, a) is not before
