"""What holders of few rights, and of none, might try at a server that asks everybody: to rise, to last, to fill it up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from basalt.access import directory
from basalt.access.authentication import KEY_BYTES_MAX
from basalt.access.policy import KEPT_CHARS_MAX, Caller, Policy
from basalt.access.principal import Principal, parse_principal
from basalt.access.refusals import LINE_MS, LINES_MAX, RESOURCE_CHARS_MAX
from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs.avro import encode_work
from basalt.errors import InputError, UnauthenticatedError
from basalt.http.app import build_app
from basalt.http.asgi.requests import Head
from basalt.http.routes.route_table import Request
from basalt.settings import Settings
from tests.control.http.asker import ASKED, BOOTSTRAP, Asker, id_of, made, refused
from tests.control.http.conftest import Client, Reply
from tests.control.http.test_route_table_rights import Prompt

ORDERS = "/v1/namespaces/shop/topics/orders"


@pytest.fixture
def client(connect):
    return connect(ASKED)


@pytest.fixture
def root(client) -> Asker:
    return Asker(client, BOOTSTRAP)


# To rise.


def test_no_name_stands_for_others_by_a_star(root):
    """Transactions of one's own need no grant, and a principal `token:*` would have had those of everybody."""
    admin = made(root, "admin", (["grant"], "*"))
    assert refused(admin("POST", "/v1/admin/tokens", {"name": "*"}))[0] == 400
    for name in ("token:*", "jwt:a*", "cert:CN=*"):
        with pytest.raises(InputError, match="no name"):
            parse_principal(name)


def test_a_limited_token_makes_no_wider_one_of_what_everyone_has(root):
    root("PUT", ORDERS)
    root("POST", "/v1/admin/grants", {"subject": "everyone", "verbs": ["write"], "resource": "topic:shop:orders"})
    wide = made(root, "etl", (["grant"], "cluster"))
    only = [
        {"verbs": ["grant"], "resource": "cluster"},
        {"verbs": ["observe", "transact"], "resource": "transactions:*"},
    ]
    narrow = made(root, "etl", only=only)
    assert narrow("POST", f"{ORDERS}/publish", {"messages": ["a"]}).status == 403
    assert narrow("POST", "/v1/admin/tokens", {"name": "fresh"}).status == 403
    assert narrow("POST", "/v1/admin/tokens", {"name": "etl"}).status == 403
    assert narrow("POST", f"/v1/admin/tokens/{id_of(wide)}/rotate").status == 403
    assert wide("POST", "/v1/admin/tokens", {"name": "fresh"}).status == 200


def test_a_limited_token_makes_none_that_acts_on_the_transactions_of_its_principal(root):
    only = [{"verbs": ["grant"], "resource": "cluster"}]
    narrow = made(root, "etl", (["grant"], "cluster"), only=only)
    assert narrow("POST", "/v1/admin/tokens", {"name": "etl"}).status == 403


def test_a_limited_token_is_rotated_by_itself_with_its_limits(root):
    only = [{"verbs": ["read"], "resource": "topic:shop:orders"}]
    narrow = made(root, "etl", (["read", "write"], "namespace:shop"), only=only)
    answer = narrow("POST", f"/v1/admin/tokens/{id_of(narrow)}/rotate").json()
    assert answer["info"]["only"] == only
    assert Asker(root.client, answer["token"])("GET", "/v1/auth/whoami").json()["only"] == only


def test_an_attempt_to_make_a_token_of_who_may_more_is_noted(root, caplog):
    admin = made(root, "admin", (["grant"], "cluster"))
    assert admin("POST", "/v1/admin/tokens", {"name": "bootstrap"}).status == 403
    (noted,) = root("GET", "/v1/admin/refusals").json()
    assert (noted["principal"], noted["verb"], noted["resource"]) == ("token:admin", "act as", "token:bootstrap")
    assert "token:admin was refused act as on token:bootstrap, 1 times" in caplog.text


def test_who_comes_from_no_address_is_no_part_of_the_server(client, root):
    """As over a Unix socket, or from a server that does not tell it."""
    calls = [("GET", "/v1/auth/whoami"), ("GET", "/metrics"), ("PUT", ORDERS)]
    for call in calls:
        assert client.run(client.exchange(*call, [b""], address=None)).status == 401
    etl = made(root, "etl")
    sent = {"Authorization": f"Bearer {etl.token}"}
    me, *others = (client.run(client.exchange(*call, [b""], headers=sent, address=None)) for call in calls)
    assert me.json()["principal"] == "token:etl"
    assert [each.status for each in others] == [403, 403]


# To last.


def test_a_token_that_is_rotated_while_it_is_revoked_stays_revoked(client, root, monkeypatch):
    """Whoever stole it rotates it all the time; one of these calls was let in before the revocation, and writes behind it."""
    etl = made(root, "etl")
    audit = client.services.audit
    act, revoked = audit.act, []

    async def act_late(name, *rest):
        if name == "rotate token" and not revoked:
            revoked.append(True)
            reply = await client.ask("DELETE", f"/v1/admin/tokens/{id_of(etl)}", Authorization=f"Bearer {BOOTSTRAP}")
            assert reply.status == 200
        return await act(name, *rest)

    monkeypatch.setattr(audit, "act", act_late)
    reply = etl("POST", f"/v1/admin/tokens/{id_of(etl)}/rotate")
    assert (reply.status, reply.code) == (409, "conflict")
    assert revoked
    assert refused(etl("GET", "/v1/auth/whoami")) == (401, "the token is revoked")
    assert [each["state"] for each in root("GET", "/v1/admin/tokens").json()] == ["revoked"]


@pytest.mark.parametrize("take", ["revoke", "take back"])
def test_a_fetch_of_a_group_that_waits_is_judged_again_before_it_answers(client, root, take):
    member = made(root, "member", (["read"], "namespace:shop"))
    root("PUT", ORDERS)
    root("PUT", f"{ORDERS}/groups/billing")

    async def story() -> Reply:
        fetch = asyncio.create_task(
            client.ask(
                "POST", f"{ORDERS}/groups/billing/fetch?waitMs=60000&member=m", Authorization=f"Bearer {member.token}"
            )
        )
        for _ in range(20):
            await asyncio.sleep(0)
        grant = next(iter(client.services.directory.entries.grants))
        taken = f"/v1/admin/tokens/{id_of(member)}" if take == "revoke" else f"/v1/admin/grants/{grant}"
        assert (await client.ask("DELETE", taken, Authorization=f"Bearer {BOOTSTRAP}")).status == 200
        await client.ask("POST", f"{ORDERS}/publish", {"messages": ["secret"]}, Authorization=f"Bearer {BOOTSTRAP}")
        return await fetch

    reply = client.run(story())
    assert reply.status == (401 if take == "revoke" else 403), reply.body
    assert b"secret" not in reply.body
    again = root("POST", f"{ORDERS}/groups/billing/fetch?member=other")
    assert b"secret" in again.body  # the claim was given back at once


@pytest.mark.parametrize(("credential", "parent"), [("jwt 4711", "4711"), ("kerberos", "kerberos")])
def test_a_login_lasts_no_longer_than_what_it_is_made_with_and_is_one_whatever_that_is(connect, credential, parent):
    client = connect(Settings())
    ends_ms = client.clock.now_ms() + 5_000
    principal = Principal("jwt", "alice", frozenset(("jwt-group:data",)))
    client.app = build_app(client.services, Caller(principal, Policy(), credential=credential, until_ms=ends_ms))
    made_ = client.call("POST", "/v1/auth/logins", {"ttlMs": 3_600_000}).json()["info"]
    assert (made_["expiresMs"], made_["parent"], made_["principal"]) == (ends_ms, parent, "jwt:alice")
    (row,) = client.services.directory.entries.tokens.values()
    assert (row.groups, row.parent_is_token) == (("jwt-group:data",), False)


def test_a_login_of_a_limited_token_is_limited_as_well(root):
    only = [{"verbs": ["read"], "resource": "topic:shop:orders"}]
    narrow = made(root, "etl", (["read", "write"], "namespace:shop"), only=only)
    assert narrow("POST", "/v1/auth/logins").json()["info"]["only"] == only


# To fill it up.


def test_very_many_bad_credentials_leave_nothing_behind(client, root, caplog):
    etl = made(root, "etl")
    authentication = client.services.authentication
    version = client.services.directory.entries.version
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for number in range(300):
            client.clock.advance(1_000)  # so that the address is verified, and its refusals are not kept back
            assert Asker(client, f"basalt_{number:016x}_{'x' * 43}_00000000")("GET", "/v1/auth/whoami").status == 401
            assert Asker(client, f"wrong{number}")("GET", "/v1/auth/whoami").status == 401
            client.clock.advance(1_000)  # more in a second are refused without a look
    assert authentication._callers == {}
    assert set(authentication.counts) <= {("token", "accepted"), ("token", "refused")}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert client.services.directory.entries.version == version
    assert etl("GET", "/v1/auth/whoami").status == 200


def test_who_sends_no_credential_takes_no_memory_with_names_that_nobody_asks_for(client):
    authentication = client.services.authentication
    for number in range(50):
        name = f"{number}" + "x" * 4_000
        assert client.call("GET", "/livez", X_Forwarded_User=name).status == 200
    assert sum(map(len, authentication._callers)) < 1_000
    assert len(authentication._callers) <= 1


def test_a_long_credential_is_known_by_its_hash(client, root):
    etl = made(root, "etl")
    for spaces in range(1, 20):
        assert client.call("GET", "/livez", Authorization=f"Bearer{' ' * spaces * 300}{etl.token}").status == 200
    assert max(map(len, client.services.authentication._callers)) <= KEY_BYTES_MAX


def test_names_that_are_too_long_for_any_thing_are_judged_and_not_kept(client, root, caplog):
    etl = made(root, "etl")
    verdicts = client.services.directory.entries.policy._verdicts
    before = len(verdicts)
    for number in range(20):
        assert etl("GET", f"/v1/namespaces/shop/topics/{number}{'x' * 6 * KEPT_CHARS_MAX}").status == 403
    assert len(verdicts) == before
    noted = client.services.refusals.newest(100)
    assert max(len(each.resource) for each in noted) <= RESOURCE_CHARS_MAX + 1
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000


def test_what_a_caller_asks_for_in_vain_fills_no_log(client, root, caplog):
    etl = made(root, "etl")
    for number in range(400):
        assert etl("GET", f"/v1/namespaces/shop/topics/t{number}").status == 403
    lines = [record.getMessage() for record in caplog.records if record.name == "basalt.access"]
    assert len(lines) == LINES_MAX + 1
    assert lines[-1].startswith(f"more than {LINES_MAX} rights were missing")
    client.clock.advance(LINE_MS)
    etl("GET", "/v1/namespaces/shop/topics/t")
    assert caplog.messages[-1] == "token:etl was refused observe on topic:shop:t, 1 times"


def test_nobody_makes_tokens_without_end_by_rotating(client, root, monkeypatch):
    monkeypatch.setattr(directory, "OF_ONE_MAX", 5)
    etl = made(root, "etl")
    statuses = [
        etl("POST", f"/v1/admin/tokens/{id_of(etl)}/rotate", {"overlapMs": 86_400_000}).status for _ in range(6)
    ]
    assert statuses == [200] * 4 + [503] * 2


def test_tokens_that_are_over_are_kept_in_bounded_number(client, root, monkeypatch):
    monkeypatch.setattr(directory, "ENDED_MAX", 20)
    etl = made(root, "etl")
    for _ in range(60):
        client.clock.advance(1)
        login = Asker(client, etl("POST", "/v1/auth/logins").json()["token"])
        assert login("DELETE", "/v1/auth/logins").status == 200
    entries = client.services.directory.entries
    assert len(entries.tokens) <= 22
    newest = max(row.created_ms for row in entries.tokens.values())
    assert newest == client.clock.now_ms()
    assert etl("GET", "/v1/auth/whoami").status == 200


def acts(root: Asker) -> list[str]:
    return [each["act"] for each in root("GET", "/v1/admin/audit?limit=100").json()]


def test_logins_push_nothing_else_out_of_the_audit(client, root):
    """Of one principal, or of a hundred: everybody who has a token may log in."""
    askers = [made(root, f"etl-{number}") for number in range(9)]
    client.services.audit._entries_max = 10
    for _ in range(3):
        for asker in askers:
            assert asker("POST", "/v1/auth/logins").status == 200
    assert acts(root) == ["log in", *["make token"] * 9]


def test_the_acts_of_one_principal_push_nobody_elses_out_of_the_audit(client, root):
    etl = made(root, "etl")
    client.services.audit._entries_max = 10
    for _ in range(20):
        etl = Asker(client, etl("POST", f"/v1/admin/tokens/{id_of(etl)}/rotate", {"overlapMs": 0}).json()["token"])
    assert acts(root) == [*["rotate token"] * 9, "make token"]


# To be told more than one may know, or another thing than holds.


def test_a_token_that_is_sent_from_elsewhere_is_told_the_same_each_time(connect):
    client = connect(ASKED)
    root = Asker(client, BOOTSTRAP)
    away = made(root, "etl", networks=["10.0.0.0/8"])
    replies = [away("GET", "/v1/auth/whoami") for _ in range(2)]
    headers = {b"authorization": f"Bearer {away.token}".encode()}
    now_ms = client.clock.monotonic_ms()
    assert client.services.authentication.identify(headers, "10.1.2.3", now_ms)  # and is known now
    replies.append(away("GET", "/v1/auth/whoami"))
    assert {(reply.status, reply.header("www-authenticate")) for reply in replies} == {(401, 'Bearer realm="basalt"')}
    assert client.services.authentication.counts["token", "refused"] == 3


WORK = encode_work(Work([WorkPublish("shop", "orders", [b"a"])]))


@pytest.mark.parametrize(
    ("path", "body", "given"),
    [(f"{ORDERS}/publish", b"x", ["observe"]), ("/v1/transactions", WORK, ["observe", "transact"])],
    ids=["by what the path names", "by what the body names"],
)
def test_a_refusal_of_a_whole_request_is_noted_once(client, root, path, body, given):
    root("PUT", ORDERS)
    root(
        "POST", f"{ORDERS}/publish", {"messages": ["a"]}
    )  # so that the topic is in memory, and nothing must be waited for
    etl = made(root, "etl", (given, "cluster"))
    headers = {b"host": b"localhost", b"content-type": b"avro/binary", b"authorization": f"Bearer {etl.token}".encode()}
    head = Head("POST", path, path.encode(), b"", headers)

    async def story() -> list[int]:
        exchange = Prompt()
        exchange.receive = lambda: asyncio.sleep(0, (body, False))
        answering = client.app.begin_whole(head, exchange, None, body)
        assert answering is not None
        await answering
        return exchange.statuses

    assert client.run(story()) == [403]
    assert [each.count for each in client.services.refusals.newest(10)] == [1]


def test_to_ask_whether_one_has_a_right_is_no_use_of_it(root):
    etl = made(root, "etl", (["read"], "topic:shop:orders"))
    assert etl("POST", "/v1/auth/check", {"verb": "read", "resource": "topic:shop:orders"}).json()["allowed"]
    assert root("GET", "/v1/admin/grants").json()[0]["usedMs"] is None


def test_who_gives_rights_somewhere_sees_the_grants_there(root):
    admin = made(root, "admin", (["grant", "read"], "namespace:shop"))
    made(root, "a", (["read"], "topic:shop:orders"), (["read"], "topic:market:orders"))
    seen = {(each["subject"], each["resource"]) for each in admin("GET", "/v1/admin/grants").json()}
    assert seen == {("token:admin", "namespace:shop"), ("token:a", "topic:shop:orders")}


def test_probes_of_a_server_that_enforces_nothing_yet_are_no_refusals(connect):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, enforce=False)))
    assert client.call("GET", "/readyz").status == 200
    assert client.services.refusals.newest(10) == []


def test_a_user_that_is_named_twice_is_refused(connect):
    """A proxy that adds its header to the client's own, instead of replacing it, would let the client choose its name."""
    auth = replace(
        ASKED.auth,
        kinds=("token", "proxy"),
        proxy=replace(ASKED.auth.proxy, principals=("token:gateway",), header="X-Remote-User"),
    )
    client = connect(replace(ASKED, auth=auth))
    gateway = made(Asker(client, BOOTSTRAP), "gateway")
    twice = [(b"x-remote-user", b"root"), (b"x-remote-user", b"alice")]
    raw = [(b"authorization", f"Bearer {gateway.token}".encode()), *twice]
    reply = client.run(client.exchange("GET", "/v1/auth/whoami", [b""], raw_headers=raw))
    assert (reply.status, reply.code) == (400, "invalid_input"), reply.body


def test_an_application_that_asks_everybody_holds_nobody_for_allowed_by_default(client):
    assert client.app._caller.policy is not None
    assert not client.app._caller.has("observe", parse_everything())


def parse_everything():
    from basalt.access.resources import parse_resource

    return parse_resource("*")


# Requests that begin alike share one head, and are not looked at again: but for what is not in it.


class Known:
    """Requests with one head, that a server has seen before."""

    def __init__(self, client: Client, token: str) -> None:
        headers = {b"host": b"localhost", b"authorization": f"Bearer {token}".encode()}
        self.head = Head("GET", "/v1/auth/whoami", b"/v1/auth/whoami", b"", headers)
        self.client = client

    def sent_from(self, address: str | None) -> Caller:
        exchange, app = Prompt(), self.client.app
        exchange.client = address
        now_ms = self.client.clock.monotonic_ms()
        request = Request(
            self.client.services, app.metrics, None, app.bodies, app._caller, self.head, exchange, now_ms, None, app.ask
        )
        app._routes.find(request)
        return request.caller


def test_a_known_head_counts_from_its_networks_alone(client, root):
    known = Known(client, made(root, "etl", networks=["192.0.2.0/24"]).token)
    for _ in range(2):
        assert str(known.sent_from("192.0.2.7").principal) == "token:etl"
        for address in ("198.51.100.1", None):
            with pytest.raises(UnauthenticatedError, match="invalid"):
                known.sent_from(address)


def test_a_known_head_counts_until_its_credential_ends_or_anything_changes(client, root):
    etl = made(root, "etl", ttlMs=60_000)
    known = Known(client, etl.token)
    first = known.sent_from("192.0.2.7")
    client.clock.advance(59_999)
    assert known.sent_from("192.0.2.7") is first
    made(root, "other")
    assert known.sent_from("192.0.2.7") is not first
    client.clock.advance(1)
    with pytest.raises(UnauthenticatedError, match="expired"):
        known.sent_from("192.0.2.7")
    again = made(root, "again")
    known = Known(client, again.token)
    known.sent_from("192.0.2.7")
    root("DELETE", f"/v1/admin/tokens/{id_of(again)}")
    with pytest.raises(UnauthenticatedError, match="revoked"):
        known.sent_from("192.0.2.7")


def test_who_may_not_give_there_takes_nothing_back_and_revokes_nobody(root):
    """The answer is the same for what is there and what is not."""
    etl = made(root, "etl", (["read", "write"], "namespace:shop"), (["grant"], "namespace:market"))
    victim = made(root, "victim", (["read"], "topic:shop:orders"))
    grant = next(each["id"] for each in root("GET", "/v1/admin/grants").json() if each["subject"] == "token:victim")
    entries = root.client.services.directory.entries
    for method, path, absent in (
        ("DELETE", f"/v1/admin/grants/{grant}", "/v1/admin/grants/0123456789abcdef"),
        ("GET", f"/v1/admin/tokens/{id_of(victim)}", "/v1/admin/tokens/0123456789abcdef"),
        ("DELETE", f"/v1/admin/tokens/{id_of(victim)}", "/v1/admin/tokens/0123456789abcdef"),
        ("POST", f"/v1/admin/tokens/{id_of(victim)}/rotate", "/v1/admin/tokens/0123456789abcdef/rotate"),
    ):
        there, nothing = etl(method, path), etl(method, absent)
        assert refused(there) == refused(nothing) == (403, "token:etl may not grant cluster"), (method, path)
    assert root.client.services.directory.entries is entries
    assert root("DELETE", f"/v1/admin/grants/{grant}").status == 200
