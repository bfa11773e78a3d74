"""Tokens of an identity provider over HTTP: who is let in by them, to what, for how long, and what others see of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from basalt.access.proofs.jwks import STALE_MS_MAX
from basalt.access.proofs.jwt import VERIFIED_MS_MAX
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt_engine.clock import ManualClock
from tests.control.access.proofs.identity_provider import (
    ISSUER,
    claims,
    jwt_settings,
    key_set,
    private_key,
    public_jwk,
    signed,
)
from tests.control.http.conftest import Client, Reply

BOOTSTRAP = "b" * 40
NOW_MS = ManualClock().now_ms()
PATH = "/v1/namespaces/shop/topics/orders"
LEEWAY_MS = 30_000


def asking(keys: Path, **changed: Any) -> Settings:
    """Settings of a server that takes tokens of its own and of the provider whose keys are in this file."""
    given = {
        "kinds": ("token", "jwt"),
        "bootstrap_token": BOOTSTRAP,
        "jwt": jwt_settings(str(keys), groups_claim="groups"),
    }
    return Settings(auth=AuthSettings(**{**given, **changed}))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(public_jwk()))
    return file


@pytest.fixture
def open_server(connect) -> Iterator[Callable[[Settings], Client]]:
    """A server that has read the provider's keys, if there are any."""

    def open_one(settings: Settings) -> Client:
        client = connect(settings)
        reread(client)
        return client

    yield open_one


def reread(client: Client) -> None:
    jwts = client.services.authentication.jwts
    client.run(jwts.jwks.read())


def ask(client: Client, token: str, method: str, target: str, body: object = b"") -> Reply:
    return client.call(method, target, body, Authorization=f"Bearer {token}")


def whoami(client: Client, token: str) -> Reply:
    return ask(client, token, "GET", "/v1/auth/whoami")


def alices(**changed: object) -> str:
    return signed(claims(NOW_MS, **changed))


def grant(client: Client, subject: str, *verbs: str, resource: str = "topic:shop:orders") -> None:
    body = {"subject": subject, "verbs": list(verbs), "resource": resource}
    assert ask(client, BOOTSTRAP, "POST", "/v1/admin/grants", body).status == 200


@pytest.fixture
def client(open_server, keys: Path) -> Client:
    client = open_server(asking(keys))
    assert ask(client, BOOTSTRAP, "PUT", PATH).status == 200
    return client


def test_who_comes_by_a_token_of_the_provider_is_named_so(client):
    me = whoami(client, alices(jti="17", groups=["data"])).json()
    assert (me["principal"], me["credential"], me["superuser"]) == ("jwt:alice@example.org", "jwt 17", False)
    assert me["groups"] == ["jwt-group:data"]
    assert me["expiresMs"] == NOW_MS + 300_000 + LEEWAY_MS


def test_what_is_granted_to_the_principal_or_to_its_group_is_what_it_may_do(client):
    alice, bob = alices(groups=["data"]), alices(sub="bob", groups=["data", "sales"])
    publish = f"{PATH}/publish", {"messages": ["a"]}
    assert [ask(client, each, "POST", *publish).status for each in (alice, bob)] == [403, 403]
    grant(client, "jwt:alice@example.org", "write")
    assert [ask(client, each, "POST", *publish).status for each in (alice, bob)] == [200, 403]
    grant(client, "jwt-group:data", "read")
    assert [ask(client, each, "POST", f"{PATH}/poll", {}).status for each in (alice, bob)] == [200, 200]
    assert ask(client, alices(sub="bob", groups=["sales"]), "POST", f"{PATH}/poll", {}).status == 403
    assert ask(client, alices(sub="bob"), "POST", f"{PATH}/poll", {}).status == 403


def test_a_name_that_another_kind_has_too_has_none_of_its_rights(client):
    grant(client, "token:etl", "read")
    grant(client, "jwt-group:ops", "read")
    for token in (alices(sub="etl"), alices(sub="token:etl"), alices(sub="ops"), alices(groups=["jwt-group:ops"])):
        assert ask(client, token, "POST", f"{PATH}/poll", {}).status == 403


@pytest.mark.parametrize("superuser", ["jwt:alice@example.org", "jwt-group:admins"])
def test_a_superuser_may_come_from_the_provider_alone(open_server, keys, superuser):
    client = open_server(asking(keys, kinds=("jwt",), bootstrap_token=None, superusers=(superuser,)))
    alice = alices(groups=["admins"])
    assert whoami(client, alice).json()["superuser"]
    assert ask(client, alice, "PUT", PATH).status == 200
    assert ask(client, alices(sub="bob", groups=["admin"]), "PUT", PATH).status == 403
    assert whoami(client, BOOTSTRAP).status == 401


BAD = {
    "unsigned": lambda: "eyJhbGciOiJub25lIn0." + alices().split(".")[1] + ".",
    "by a stranger": lambda: signed(claims(NOW_MS), key=private_key("RS256", "stranger")),
    "for another": lambda: alices(aud="billing"),
    "of nobody": lambda: alices(sub=""),
    "turned round": lambda: alices(sub="a\u202eb"),
    "no token": lambda: "x",
    "long": lambda: "x." * 5_000,
    "of ours, changed": lambda: f"basalt_0123456789abcdef_{'a' * 43}_00000000",
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_a_token_that_does_not_count_is_refused_with_the_ways_to_prove_who_one_is(client, make):
    token = make()
    for path in ("/v1/auth/whoami", "/livez"):
        reply = ask(client, token, "GET", path)
        assert (reply.status, reply.code) == (401, "unauthenticated")
        assert reply.header("www-authenticate") == 'Bearer realm="basalt"'
        assert reply.header("cache-control") == "no-store"
        assert "invalid" in reply.json()["detail"]
        assert token not in reply.body.decode()
        for foreign in ("Signature verification", "segments", "padding", "PyJWT", "Traceback"):
            assert foreign not in reply.body.decode()


def test_a_token_ends_also_on_a_connection_that_goes_on(client):
    token = alices()
    assert whoami(client, token).status == 200
    client.clock.advance(300_000 + LEEWAY_MS - 1)
    assert whoami(client, token).status == 200
    client.clock.advance(1)
    reply = whoami(client, token)
    assert (reply.status, reply.json()["detail"]) == (401, "the token is expired")


def test_a_poll_that_waits_is_judged_again_when_the_token_has_ended_meanwhile(client):
    grant(client, "jwt:alice@example.org", "read")

    async def story() -> Reply:
        poll = asyncio.create_task(
            client.ask("POST", f"{PATH}/poll?waitMs=60000", {}, Authorization=f"Bearer {alices()}")
        )
        for _ in range(20):
            await asyncio.sleep(0)
        client.clock.advance(300_000 + LEEWAY_MS)
        await client.ask("POST", f"{PATH}/publish", {"messages": ["secret"]}, Authorization=f"Bearer {BOOTSTRAP}")
        return await poll

    reply = client.run(story())
    assert (reply.status, reply.json()["detail"]) == (401, "the token is expired")
    assert b"secret" not in reply.body


def test_a_key_that_the_provider_takes_back_counts_for_a_minute_at_most(client, keys):
    token = alices()
    assert whoami(client, token).status == 200
    keys.write_bytes(key_set(public_jwk(private_key("RS256", "b"), "b")))
    reread(client)
    client.clock.advance(VERIFIED_MS_MAX)
    assert whoami(client, token).status in (401, 503)
    assert whoami(client, signed(claims(NOW_MS), key=private_key("RS256", "b"), kid="b")).status == 200


def test_a_server_starts_without_the_provider_and_asks_for_patience_until_its_keys_come(open_server, keys):
    keys.rename(keys.with_suffix(".later"))
    client = open_server(asking(keys))
    reply = whoami(client, alices())
    assert (reply.status, reply.code) == (503, "authentication_unavailable")
    assert int(reply.header("retry-after")) >= 1
    assert whoami(client, BOOTSTRAP).status == 200
    assert client.call("GET", "/readyz").status == 200
    keys.with_suffix(".later").rename(keys)
    reread(client)
    assert whoami(client, alices()).status == 200


def test_keys_that_could_not_be_read_for_a_day_let_nobody_in(client, keys):
    token = alices(exp=NOW_MS // 1_000 + 10**6)
    keys.unlink()
    client.clock.advance(STALE_MS_MAX)
    reread(client)
    assert whoami(client, token).status == 200
    client.clock.advance(VERIFIED_MS_MAX)
    assert whoami(client, token).code == "authentication_unavailable"
    assert client.call("GET", "/readyz").status == 200


def test_a_login_of_such_a_caller_has_its_groups_and_ends_with_its_token(client):
    grant(client, "jwt-group:data", "read")
    login = ask(client, alices(groups=["data"]), "POST", "/v1/auth/logins", {"ttlMs": 3_600_000}).json()["token"]
    assert whoami(client, login).json()["principal"] == "jwt:alice@example.org"
    assert ask(client, login, "POST", f"{PATH}/poll", {}).status == 200
    client.clock.advance(300_000 + LEEWAY_MS)
    assert whoami(client, login).status == 401


def test_who_is_let_in_is_counted_by_kind_and_outcome_and_so_is_the_age_of_the_keys(client, keys):
    whoami(client, alices())
    whoami(client, alices(aud="billing"))
    client.clock.advance(7_000)
    shown = ask(client, BOOTSTRAP, "GET", "/metrics").body.decode()
    assert 'basalt_authentications_total{kind="jwt",outcome="accepted"} 1.0' in shown
    assert 'basalt_authentications_total{kind="jwt",outcome="refused"} 1.0' in shown
    assert "basalt_jwks_age_seconds 7.0" in shown


def test_a_server_that_only_counts_what_it_would_refuse_lets_bad_tokens_and_lost_providers_pass(open_server, keys):
    client = open_server(asking(keys, enforce=False))
    assert ask(client, alices(aud="billing"), "PUT", PATH).status == 200
    keys.write_bytes(key_set())
    reread(client)
    assert ask(client, alices(jti="2"), "GET", PATH).status == 200
    refusals = ask(client, BOOTSTRAP, "GET", "/v1/admin/refusals").body.decode()
    assert "authenticate" in refusals


def test_what_such_a_caller_did_is_in_the_audit_by_the_tokens_id_and_no_token_is_in_any_log(client, caplog):
    caplog.set_level(logging.DEBUG)
    grant(client, "jwt:alice@example.org", "manage")
    good, bad = alices(jti="token-17"), alices(aud="billing")
    assert ask(client, good, "DELETE", PATH).status in (200, 204)
    whoami(client, bad)
    audit = ask(client, BOOTSTRAP, "GET", "/v1/admin/audit").body.decode()
    shown = caplog.text + audit + ask(client, BOOTSTRAP, "GET", "/metrics").body.decode()
    for token in (good, bad):
        assert token not in shown
        assert token.rpartition(".")[2] not in shown


def test_no_setting_of_the_provider_is_a_secret_and_the_file_of_keys_is_named(client, keys):
    shown = ask(client, BOOTSTRAP, "GET", "/v1/admin/settings").json()
    values = {each["key"]: each["value"] for each in shown}
    assert (values["auth.jwt.issuer"], values["auth.jwt.jwks"]) == (ISSUER, str(keys))


def test_where_only_the_provider_counts_tokens_of_the_server_do_not(open_server, keys):
    client = open_server(asking(keys, kinds=("jwt",), bootstrap_token=None, superusers=("jwt:alice@example.org",)))
    for token in (BOOTSTRAP, BAD["of ours, changed"]()):
        assert whoami(client, token).status == 401
    assert whoami(client, alices()).status == 200
