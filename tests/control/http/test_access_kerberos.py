"""Kerberos over HTTP, with a real KDC: who comes in, what they may do, and that no token counts twice, whatever is remembered of requests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt.settings import KerberosSettings, Settings
from basalt.settings.auth import AuthSettings, ProxySettings
from tests.control.http.conftest import Client, Reply
from tests.control.http.raw_line import RawLine, request
from tests.kdc import Kdc, negotiate_token, running_kdc, with_clock_ahead

NTLM_MESSAGE = b"NTLMSSP\0\1\0\0\0\x07\x82\x08\xa2" + bytes(16)
BOOTSTRAP = "b" * 40
ORDERS = "/v1/namespaces/shop/topics/orders"
WHOAMI = "/v1/auth/whoami"


@pytest.fixture(scope="module")
def realm(kdc: Kdc) -> Iterator[Kdc]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        for name in ("carol", "root", "gateway"):
            kdc.principal(name, f"of {name}")
        yield kdc


@pytest.fixture(scope="module")
def keytab(realm: Kdc) -> Path:
    return realm.keytab("HTTP/over-http", "hdfs/over-http")


@pytest.fixture(scope="module")
def caches(realm: Kdc) -> dict[str, Path]:
    return {name: realm.ticket(name, f"of {name}") for name in ("carol", "root", "gateway")}


@pytest.fixture
def settings(keytab: Path) -> Settings:
    return asked(keytab)


def asked(keytab: Path, **more: object) -> Settings:
    auth = {
        "kinds": ("kerberos", "token"),
        "superusers": ("krb:root@EXAMPLE.TEST",),
        "bootstrap_token": BOOTSTRAP,
        "kerberos": KerberosSettings(keytab=str(keytab), realms=("EXAMPLE.TEST",)),
        **more,
    }
    return Settings(auth=AuthSettings(**auth))


@pytest.fixture
def topic(client: Client, caches: dict[str, Path]) -> str:
    assert call(client, caches["root"], "PUT", ORDERS, {}).status == 200
    return ORDERS


def negotiate(token: bytes) -> str:
    return f"Negotiate {base64.b64encode(token).decode()}"


def fresh(cache: Path) -> str:
    return negotiate(negotiate_token(cache, "HTTP@over-http"))


def call(client: Client, cache: Path, method: str, target: str, body: object = b"", **headers: str) -> Reply:
    return client.call(method, target, body, Authorization=fresh(cache), **headers)


def grant(client: Client, root: Path, subject: str, verb: str, resource: str) -> str:
    reply = call(client, root, "POST", "/v1/admin/grants", {"subject": subject, "verbs": [verb], "resource": resource})
    assert reply.status == 200, reply.body
    return reply.json()["id"]


def refused(reply: Reply) -> str:
    assert (reply.status, reply.code) == (401, "unauthenticated"), reply.body
    ways = [value for name, value in reply.headers if name == b"www-authenticate"]
    assert ways == [b'Bearer realm="basalt"', b"Negotiate"]
    return reply.json()["detail"]


def test_a_ticket_says_who_calls_and_grants_say_what_that_one_may_do(client, caches, topic):
    carol, root = caches["carol"], caches["root"]
    whoami = call(client, carol, "GET", WHOAMI).json()
    assert (whoami["principal"], whoami["credential"]) == ("krb:carol@EXAMPLE.TEST", "kerberos EXAMPLE.TEST")
    assert whoami["superuser"] is False
    reply = call(client, carol, "POST", f"{topic}/publish", {"messages": ["a"]})
    assert (reply.status, reply.code) == (403, "forbidden")
    assert "krb:carol@EXAMPLE.TEST" in reply.json()["detail"]
    grant(client, root, "krb:carol@OTHER.TEST", "write", "topic:shop:orders")
    grant(client, root, "krb:carol", "write", "topic:shop:orders")
    assert call(client, carol, "POST", f"{topic}/publish", {"messages": ["a"]}).status == 403
    grant(client, root, "krb:carol@EXAMPLE.TEST", "write", "topic:shop:orders")
    assert call(client, carol, "POST", f"{topic}/publish", {"messages": ["a"]}).status == 200
    assert call(client, carol, "POST", f"{topic}/poll", {}).status == 403
    assert len(call(client, root, "POST", f"{topic}/poll", {}).json()) == 1


def test_the_answer_proves_the_server_also_where_it_is_no(client, caches):
    for method, target, status in (("GET", WHOAMI, 200), ("GET", "/metrics", 403), ("GET", "/v1/nothing", 404)):
        reply = call(client, caches["carol"], method, target)
        assert reply.status == status
        scheme, _, token = reply.header("www-authenticate").partition(" ")
        assert (scheme, base64.b64decode(token)[:1]) == ("Negotiate", b"\xa1")  # SPNEGO's answer


def test_other_answers_have_no_such_token(client, caches):
    call(client, caches["carol"], "GET", WHOAMI)
    assert client.call("GET", WHOAMI, Authorization=f"Bearer {BOOTSTRAP}").header("www-authenticate") is None
    assert client.call("GET", "/livez").header("www-authenticate") is None


def test_who_sends_none_is_told_the_ways(client):
    reply = client.call("GET", WHOAMI)
    assert "no credential" in refused(reply)
    assert "kinit" in reply.json()["hint"]


@pytest.mark.parametrize("face", ["our own protocol", "plain ASGI"])
def test_a_token_that_is_sent_again_is_refused_on_the_same_line_and_on_another(client, caches, topic, face):
    line = RawLine(client, face)
    header = f"Authorization: {fresh(caches['root'])}"
    whoami = request(f"GET {WHOAMI}", header)
    assert line.status(whoami, whoami, whoami) == [200, 401, 401]
    assert "it was sent before" in refused(line.ask(whoami)[0])
    header = f"Authorization: {fresh(caches['root'])}"
    publish = request(f"POST {topic}/publish", header, "Content-Type: application/json", body=b'{"messages":["once"]}')
    assert line.status(publish, publish, publish) == [200, 401, 401]
    assert line.status(request(f"GET {topic}/stats", header)) == [401]  # whatever else it is sent with
    assert len(call(client, caches["root"], "POST", f"{topic}/poll", {}).json()) == 1


def test_requests_with_such_tokens_push_no_others_out_of_what_is_remembered(client, caches):
    line = RawLine(client, "our own protocol")
    known = request(f"GET {WHOAMI}", f"Authorization: Bearer {BOOTSTRAP}")
    assert line.status(known) == [200]
    kept = dict(client.app.heads._known)
    assert len(kept) == 1
    callers = dict(client.services.authentication._callers)
    fresh_ones = [request(f"GET {WHOAMI}", f"Authorization: {fresh(caches['carol'])}") for _ in range(20)]
    scheme_in_capitals = request(f"GET {WHOAMI}", f"Authorization: {fresh(caches['carol'])}".replace("Nego", "NEGO"))
    assert line.status(*fresh_ones, scheme_in_capitals) == [200] * 21
    assert client.app.heads._known.keys() == kept.keys()
    assert client.services.authentication._callers.keys() == callers.keys()


def test_a_token_for_another_service_is_refused(client, caches):
    other = negotiate(negotiate_token(caches["root"], "hdfs@over-http"))
    assert "for this server's service" in refused(client.call("GET", WHOAMI, Authorization=other))


def test_a_user_of_a_realm_that_is_not_listed_is_refused(realm, client, tmp_path, monkeypatch):
    with running_kdc(tmp_path / "partner", "AFFILIATE.TEST") as partner:
        partner.principal("root", "of the other root")
        partner.trust(realm, "over-http")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KRB5_CONFIG", partner.environment["KRB5_CONFIG"])
            header = fresh(partner.ticket("root", "of the other root"))
        assert "of a realm that does not count" in refused(client.call("GET", WHOAMI, Authorization=header))


@pytest.mark.parametrize(
    "header",
    [
        negotiate(NTLM_MESSAGE),
        "NTLM " + base64.b64encode(NTLM_MESSAGE).decode(),
        "Negotiate",
        "Negotiate ",
        "Negotiate =",
        "Negotiate " + "A" * 60_000,
        f"Negotiate {BOOTSTRAP}",
        "Kerberos YIIC",
    ],
    ids=lambda header: header[:16],
)
def test_what_is_no_ticket_is_refused(client, header):
    assert "invalid" in refused(client.call("GET", WHOAMI, Authorization=header))


def test_clocks_that_differ_are_told_of(client, caches):
    token = negotiate_token(with_clock_ahead(caches["carol"], 1_800), "HTTP@over-http")
    reply = client.call("GET", WHOAMI, Authorization=negotiate(token))
    assert "the clocks of the client and of this server differ" in refused(reply)
    assert "NTP" in reply.json()["hint"]


def test_a_poll_that_waits_goes_on_when_somebody_elses_rights_change(client, caches, topic):
    grant(client, caches["root"], "krb:carol@EXAMPLE.TEST", "read", "topic:shop:orders")
    reply = waited(client, caches, topic, lambda: grant_to(client, "token:other"))
    assert reply.status == 200
    assert reply.header("www-authenticate").startswith("Negotiate ")


def test_and_answers_nothing_when_its_own_are_gone(client, caches, topic):
    given = grant(client, caches["root"], "krb:carol@EXAMPLE.TEST", "read", "topic:shop:orders")

    async def taken():
        reply = await client.ask("DELETE", f"/v1/admin/grants/{given}", Authorization=f"Bearer {BOOTSTRAP}")
        assert reply.status == 200

    assert waited(client, caches, topic, taken).status == 403


def test_and_when_the_ticket_has_ended(client, caches, topic):
    grant(client, caches["root"], "krb:carol@EXAMPLE.TEST", "read", "topic:shop:orders")

    async def later():
        client.clock.advance(11 * 3_600_000)
        await grant_to(client, "token:other")

    reply = waited(client, caches, topic, later)
    assert reply.status == 401
    assert reply.json()["detail"] == "the Kerberos ticket is expired"


async def grant_to(client: Client, subject: str) -> None:
    body = {"subject": subject, "verbs": ["read"], "resource": "topic:shop:orders"}
    reply = await client.ask("POST", "/v1/admin/grants", body, Authorization=f"Bearer {BOOTSTRAP}")
    assert reply.status == 200


def waited(client: Client, caches: dict[str, Path], topic: str, meanwhile) -> Reply:
    """The answer to a poll of Carol's that waits for a message, while this happens and then one comes."""

    async def conversation() -> Reply:
        header = fresh(caches["carol"])
        poll = asyncio.create_task(client.ask("POST", f"{topic}/poll?waitMs=60000", {}, Authorization=header))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not poll.done()
        await meanwhile()
        body = {"messages": ["for Carol"]}
        reply = await client.ask("POST", f"{topic}/publish", body, Authorization=f"Bearer {BOOTSTRAP}")
        assert reply.status == 200
        return await poll

    return client.run(conversation())


def test_a_login_spares_a_client_the_tickets_and_ends_with_the_one_it_was_made_with(client, caches):
    login = call(client, caches["carol"], "POST", "/v1/auth/logins", {"ttlMs": 12 * 3_600_000}).json()
    for _ in range(2):
        whoami = client.call("GET", WHOAMI, Authorization=f"Bearer {login['token']}").json()
        assert whoami["principal"] == "krb:carol@EXAMPLE.TEST"
        assert whoami["expiresMs"] <= client.clock.now_ms() + 3_900_000


def test_a_proxy_may_prove_itself_by_a_ticket(connect, keytab, caches):
    proxy = ProxySettings(principals=("krb:gateway@EXAMPLE.TEST",))
    client = connect(asked(keytab, kinds=("kerberos", "token", "proxy"), proxy=proxy))
    reply = call(client, caches["gateway"], "GET", WHOAMI, **{"X-Forwarded-User": "dave"})
    assert (reply.json()["principal"], reply.json()["via"]) == ("proxy:dave", "krb:gateway@EXAMPLE.TEST")
    # That it names no user is told, and not that the token was looked at twice.
    for face in ("our own protocol", "plain ASGI"):
        reply = RawLine(client, face).ask(request(f"GET {WHOAMI}", f"Authorization: {fresh(caches['gateway'])}"))[0]
        assert (reply.status, reply.code) == (403, "forbidden")


def test_where_nothing_is_enforced_yet_a_bad_token_lets_through(connect, keytab, caches):
    client = connect(asked(keytab, enforce=False))
    header = fresh(caches["carol"])
    assert client.call("GET", WHOAMI, Authorization=header).json()["principal"] == "krb:carol@EXAMPLE.TEST"
    assert client.call("GET", WHOAMI, Authorization=header).json()["principal"] == "anonymous"


def test_a_ticket_is_no_credential_where_kerberos_is_no_kind(connect, keytab, caches):
    client = connect(asked(keytab, kinds=("token",), superusers=()))
    reply = client.call("GET", WHOAMI, Authorization=fresh(caches["carol"]))
    assert (reply.status, reply.header("www-authenticate")) == (401, 'Bearer realm="basalt"')


def test_what_was_refused_and_accepted_is_counted_once_each(client, caches):
    header = fresh(caches["carol"])
    line = RawLine(client, "our own protocol")
    assert line.status(*[request(f"GET {WHOAMI}", f"Authorization: {header}")] * 3) == [200, 401, 401]
    counts = client.services.authentication.counts
    assert (counts["kerberos", "accepted"], counts["kerberos", "refused"]) == (1, 2)
