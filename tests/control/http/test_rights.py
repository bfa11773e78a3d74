"""Tokens, grants and roles over HTTP: how an administrator goes from nothing to a server that asks everybody."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from basalt.access.directory import LOGINS_MAX
from basalt.http.asgi.front import FORWARDED_BYTES_MAX
from basalt.http.routes.access.rights import LOGIN_MS_MAX, NETWORKS_MAX, ONLY_MAX, REFUSALS_MAX, TTL_MS_MAX, TTL_MS_MIN
from basalt.settings import Settings
from tests.control.http.asker import ASKED, BOOTSTRAP, Asker, id_of, made, refused
from tests.control.http.conftest import Reply

DAY_MS = 86_400_000


@pytest.fixture
def client(connect):
    return connect(ASKED)


@pytest.fixture
def root(client) -> Asker:
    return Asker(client, BOOTSTRAP)


def test_who_sends_no_credential_may_make_public_calls_alone(client):
    nobody = Asker(client, None)
    assert [nobody("GET", path).status for path in ("/livez", "/readyz", "/v1", "/openapi.json")] == [200] * 4
    for method, path in (
        ("GET", "/v1/auth/whoami"), ("GET", "/metrics"), ("POST", "/v1/transactions"), ("GET", "/v1/no/such/path"), ("DELETE", "/livez"),
    ):  # fmt: skip
        reply = nobody(method, path)
        assert (reply.status, reply.code, reply.header("www-authenticate")) == (
            401, "unauthenticated", 'Bearer realm="basalt"',
        )  # fmt: skip
    assert nobody("OPTIONS", "/metrics").status == 204


def test_readiness_tells_nobody_more_than_the_names_of_parts(client, root):
    parts = Asker(client, None)("GET", "/readyz").json()["parts"]
    assert [each["name"] for each in parts] == ["store", "coordinator", "server", "policy"]
    assert {each["detail"] for each in parts} == {""}
    assert root("GET", "/readyz").json()["parts"][3]["detail"].startswith("tokens and grants were read")


def test_the_bootstrap_token_is_a_superuser_and_makes_the_others(root):
    me = root("GET", "/v1/auth/whoami").json()
    assert (me["principal"], me["superuser"], me["credential"]) == ("token:bootstrap", True, "token bootstrap")
    assert root("PUT", "/v1/namespaces/shop/topics/orders").status == 200
    etl = made(root, "etl", (["write"], "topic:shop:orders"))
    assert etl("GET", "/v1/auth/whoami").json()["principal"] == "token:etl"
    assert etl("POST", "/v1/namespaces/shop/topics/orders/publish", {"messages": ["a"]}).status == 200
    assert refused(etl("POST", "/v1/namespaces/shop/topics/orders/poll", {})) == (
        403, "token:etl may not read topic:shop:orders",
    )  # fmt: skip


@pytest.mark.parametrize(
    "sent",
    ["Bearer", "Bearer ", "Bearer x", "Basic YTpi", "Negotiate abc", "bearer", "{0}", "Bearer {0}x", "Bearer {1}", "Bearer {2}", "Bearer {3}",
     "Bearer {0} {0}", "Bearer " + "x" * 9_000, "Bearer basalt_\xff"],
)  # fmt: skip
def test_a_credential_that_is_cut_changed_or_of_another_kind_is_invalid(client, root, sent):
    etl = made(root, "etl")
    token = etl.token
    changed = token[:30] + ("A" if token[30] != "A" else "B") + token[31:]
    value = sent.format(token, token[:-1], changed, token.upper())
    reply = client.call("GET", "/v1/auth/whoami", Authorization=value)
    assert (reply.status, reply.json()["detail"]) == (401, "the credential is invalid")
    assert client.call("GET", "/livez", Authorization=value).status == 401  # and is never passed over
    assert token not in reply.body.decode()


def test_a_token_of_right_form_with_another_secret_is_invalid(client, root):
    from crc32c import crc32c

    etl, other = made(root, "etl"), made(root, "other")
    body = f"basalt_{id_of(etl)}_{other.token[24:67]}"
    forged = f"{body}_{crc32c(body.encode()):08x}"
    assert refused(Asker(client, forged)("GET", "/v1/auth/whoami")) == (401, "the credential is invalid")


def test_a_token_ends_when_its_time_is_over_also_on_a_head_that_is_known(client, root):
    etl = made(root, "etl", ttlMs=60_000)
    assert etl("GET", "/v1/auth/whoami").json()["expiresMs"] == client.clock.now_ms() + 60_000
    client.clock.advance(59_999)
    assert etl("GET", "/v1/auth/whoami").status == 200
    client.clock.advance(1)
    assert refused(etl("GET", "/v1/auth/whoami")) == (401, "the token is expired")


def test_a_revoked_token_counts_no_more_from_the_next_call_on(root):
    etl = made(root, "etl")
    assert etl("GET", "/v1/auth/whoami").status == 200
    assert root("DELETE", f"/v1/admin/tokens/{id_of(etl)}?dryRun=true").json()["state"] == "revoked"
    assert etl("GET", "/v1/auth/whoami").status == 200
    assert root("DELETE", f"/v1/admin/tokens/{id_of(etl)}?reason=leaked").json()["state"] == "revoked"
    assert refused(etl("GET", "/v1/auth/whoami")) == (401, "the token is revoked")
    assert root("GET", "/v1/admin/tokens").json()[0]["state"] == "revoked"


def test_a_rotated_token_goes_on_for_the_overlap_and_the_new_one_for_as_long_as_the_old_one_would(client, root):
    old = made(root, "etl", ttlMs=10 * DAY_MS, note="nightly", networks=["192.0.2.0/24"])
    client.clock.advance(DAY_MS)
    answer = old("POST", f"/v1/admin/tokens/{id_of(old)}/rotate", {"overlapMs": 5_000}).json()
    new = Asker(client, answer["token"])
    assert (answer["info"]["note"], answer["info"]["networks"]) == ("nightly", ["192.0.2.0/24"])
    assert answer["info"]["expiresMs"] == client.clock.now_ms() + 10 * DAY_MS
    assert [each("GET", "/v1/auth/whoami").status for each in (old, new)] == [200, 200]
    client.clock.advance(5_000)
    assert [each("GET", "/v1/auth/whoami").status for each in (old, new)] == [401, 200]
    assert refused(root("POST", f"/v1/admin/tokens/{id_of(old)}/rotate"))[0] == 409


def test_a_token_that_is_limited_has_no_right_beyond_that(root):
    narrow = made(
        root, "etl", (["read", "write"], "namespace:shop"), only=[{"verbs": ["read"], "resource": "topic:shop:or*"}]
    )
    root("PUT", "/v1/namespaces/shop/topics/orders")
    assert narrow("POST", "/v1/namespaces/shop/topics/orders/poll", {}).status == 200
    assert narrow("POST", "/v1/namespaces/shop/topics/orders/publish", {"messages": ["a"]}).status == 403
    assert narrow("POST", "/v1/namespaces/shop/topics/invoices/poll", {}).status == 403
    found = narrow("POST", "/v1/auth/check", {"verb": "write", "resource": "topic:shop:orders"}).json()
    assert (found["allowed"], found["because"]) == (False, "the token is limited to other rights")


def test_a_token_counts_only_from_its_networks(client, root):
    inside = made(root, "etl", networks=["192.0.2.7"])
    outside = made(root, "etl", networks=["10.0.0.0/8", "2001:db8::/32"])
    assert inside("GET", "/v1/auth/whoami").status == 200
    for _ in range(2):
        assert refused(outside("GET", "/v1/auth/whoami")) == (401, "the credential is invalid")


def test_tokens_from_before_a_restore_count_no_more(connect, open_client):
    client = connect(ASKED)
    root = Asker(client, BOOTSTRAP)
    etl = made(root, "etl")
    client.services.authentication._rules = replace(
        client.services.authentication._rules, not_before_ms=client.clock.now_ms() + 1
    )
    assert refused(etl("GET", "/v1/auth/whoami")) == (401, "the token is revoked")
    client.clock.advance(1)
    assert made(root, "etl")("GET", "/v1/auth/whoami").status == 200


# Logins.


def test_a_login_stands_for_its_parent_and_ends_with_it(client, root):
    etl = made(root, "etl", (["write"], "topic:shop:orders"), ttlMs=60_000)
    answer = etl("POST", "/v1/auth/logins", {"ttlMs": 3_600_000}).json()
    login = Asker(client, answer["token"])
    me = login("GET", "/v1/auth/whoami").json()
    assert (me["principal"], me["credential"]) == ("token:etl", f"login {answer['info']['id']}")
    assert me["expiresMs"] == client.clock.now_ms() + 60_000
    assert refused(login("POST", "/v1/auth/logins"))[0] == 409  # one login makes no other
    assert refused(login("POST", f"/v1/admin/tokens/{id_of(etl)}/rotate"))[0] == 403
    root("DELETE", f"/v1/admin/tokens/{id_of(etl)}")
    assert refused(login("GET", "/v1/auth/whoami")) == (401, "the token is revoked")


def test_a_login_that_logs_out_counts_no_more(client, root):
    etl = made(root, "etl")
    login = Asker(client, etl("POST", "/v1/auth/logins").json()["token"])
    assert refused(etl("DELETE", "/v1/auth/logins"))[0] == 409
    assert login("DELETE", "/v1/auth/logins").json()["state"] == "revoked"
    assert login("GET", "/v1/auth/whoami").status == 401
    assert etl("GET", "/v1/auth/whoami").status == 200


def test_of_very_many_logins_of_one_principal_the_oldest_end(client, root):
    etl = made(root, "etl")
    logins = []
    for _ in range(LOGINS_MAX + 1):
        client.clock.advance(1)
        logins.append(Asker(client, etl("POST", "/v1/auth/logins").json()["token"]))
    assert [logins[number]("GET", "/v1/auth/whoami").status for number in (0, 1, 100)] == [401, 200, 200]


# Nobody rises by giving.


def test_who_gives_a_right_must_have_it_and_may_give_there(root):
    admin = made(root, "admin", (["grant", "read"], "namespace:shop"))

    def give(subject: str, verbs: list[str], resource: str) -> Reply:
        return admin("POST", "/v1/admin/grants", {"subject": subject, "verbs": verbs, "resource": resource})

    assert give("token:a", ["read"], "topic:shop:orders").status == 200
    assert give("token:a", ["read"], "topic:shop:or*").status == 200
    assert give("role:readers", ["read", "grant"], "namespace:shop").status == 200
    for verbs, resource, missing in (
        (["read", "write"], "topic:shop:orders", "write"),
        (["read"], "topic:market:orders", "grant"),
        (["read"], "namespace:shop2", "grant"),
        (["read"], "namespace:sh*", "grant"),
        (["read"], "*", "grant"),
        (["grant"], "cluster", "grant"),
    ):
        assert refused(give("token:admin", verbs, resource)) == (403, f"token:admin may not {missing} {resource}")
    shown = admin("GET", "/v1/admin/grants").json()
    assert {each["subject"] for each in shown} == {"token:admin", "token:a", "role:readers"}


def test_who_makes_a_token_must_have_every_right_that_comes_with_it(root):
    admin = made(root, "admin", (["grant"], "cluster"), (["grant", "read"], "namespace:shop"))
    made(root, "reader", (["read"], "topic:shop:orders"))
    made(root, "writer", (["write"], "topic:shop:orders"))
    root("PUT", "/v1/admin/roles/operators", {"members": ["token:janitor"]})
    root("POST", "/v1/admin/grants", {"subject": "role:operators", "verbs": ["operate"], "resource": "cluster"})
    tries = {name: admin("POST", "/v1/admin/tokens", {"name": name}).status for name in (
        "reader", "fresh", "writer", "janitor", "bootstrap", "admin",
    )}  # fmt: skip
    assert tries == {"reader": 200, "fresh": 200, "writer": 403, "janitor": 403, "bootstrap": 403, "admin": 200}
    writer_id = next(
        each["id"] for each in root("GET", "/v1/admin/tokens").json() if each["principal"] == "token:writer"
    )
    assert admin("POST", f"/v1/admin/tokens/{writer_id}/rotate").status == 403
    assert admin("PUT", "/v1/admin/roles/operators", {"members": ["token:admin"]}).status == 403
    assert admin("PUT", "/v1/admin/roles/readers", {"members": ["token:admin"]}).status == 200


def test_a_limited_superuser_gives_no_more_than_the_limit(root):
    limited = root(
        "POST", "/v1/admin/tokens", {"name": "bootstrap", "only": [{"verbs": ["grant", "read"], "resource": "*"}]}
    ).json()["token"]
    limited = Asker(root.client, limited)
    for name in ("bootstrap",):
        assert limited("POST", "/v1/admin/tokens", {"name": name}).status == 403
    assert (
        limited(
            "POST", "/v1/admin/grants", {"subject": "token:a", "verbs": ["write"], "resource": "topic:shop:a"}
        ).status
        == 403
    )
    assert (
        limited(
            "POST", "/v1/admin/grants", {"subject": "token:a", "verbs": ["read"], "resource": "topic:shop:a"}
        ).status
        == 200
    )


def test_a_role_gives_its_members_what_is_granted_to_it(root):
    etl = made(root, "etl")
    root("PUT", "/v1/namespaces/shop/topics/orders")
    root("POST", "/v1/admin/grants", {"subject": "role:readers", "verbs": ["read"], "resource": "namespace:shop"})
    poll = "/v1/namespaces/shop/topics/orders/poll"
    assert etl("POST", poll, {}).status == 403
    assert root("PUT", "/v1/admin/roles/readers", {"members": ["token:etl"]}).status == 200
    assert etl("POST", poll, {}).status == 200
    assert etl("GET", "/v1/admin/roles").json()[0]["name"] == "readers"
    assert root("DELETE", "/v1/admin/roles/readers").status == 200
    assert etl("POST", poll, {}).status == 403


def test_a_grant_that_is_taken_back_counts_no_more_and_says_who_used_it(client, root):
    etl = made(root, "etl", (["read"], "topic:shop:orders"))
    root("PUT", "/v1/namespaces/shop/topics/orders")
    poll = "/v1/namespaces/shop/topics/orders/poll"
    assert etl("POST", poll, {}).status == 200
    (grant,) = root("GET", "/v1/admin/grants").json()
    assert (grant["usedBy"], grant["usedMs"]) == (["token:etl"], client.clock.now_ms())
    assert root("DELETE", f"/v1/admin/grants/{grant['id']}?dryRun=true").json()["usedBy"] == ["token:etl"]
    assert etl("POST", poll, {}).status == 200
    assert root("DELETE", f"/v1/admin/grants/{grant['id']}").status == 200
    assert etl("POST", poll, {}).status == 403
    assert root("DELETE", f"/v1/admin/grants/{grant['id']}").status == 404


def test_grants_that_nobody_needs_are_found(client, root):
    etl = made(root, "etl", (["read"], "topic:shop:orders"), (["write"], "topic:shop:orders"), ttlMs=None)
    root("PUT", "/v1/namespaces/shop/topics/orders")
    client.clock.advance(31 * DAY_MS)
    assert etl("POST", "/v1/namespaces/shop/topics/orders/poll", {}).status == 200
    unused = root("GET", "/v1/admin/grants?unusedDays=30").json()
    assert [each["verbs"] for each in unused] == [["write"]]


def test_what_is_given_is_in_the_audit_with_who_gave_it(root):
    etl = made(root, "etl", (["read"], "topic:shop:orders"))
    root("DELETE", f"/v1/admin/tokens/{id_of(etl)}?reason=leaked&as=eve")
    lines = root("GET", "/v1/admin/audit").json()
    assert [each["act"] for each in lines] == ["revoke token", "make token", "grant"]
    assert (lines[0]["principal"], lines[0]["credential"], lines[0]["name"], lines[0]["reason"]) == (
        "token:bootstrap", "token bootstrap", "eve", "leaked",
    )  # fmt: skip
    assert etl.token not in str(lines)


# Rights that are not enforced yet.


def test_where_rights_are_not_enforced_nothing_is_refused_and_what_would_be_is_told(connect):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, enforce=False)))
    root, nobody = Asker(client, BOOTSTRAP), Asker(client, None)
    etl = made(root, "etl", (["read"], "topic:shop:orders"))
    assert nobody("PUT", "/v1/namespaces/shop/topics/orders").status == 200
    for _ in range(3):
        assert etl("POST", "/v1/namespaces/shop/topics/orders/publish", {"messages": ["a"]}).status == 200
    assert etl("POST", "/v1/namespaces/shop/topics/orders/poll", {}).status == 200
    assert Asker(client, "wrong")("POST", "/v1/namespaces/shop/topics/orders/poll", {}).status == 200
    found = {
        (each["principal"], each["verb"], each["resource"]): each["count"]
        for each in root("GET", "/v1/admin/refusals").json()
    }
    assert found["token:etl", "write", "topic:shop:orders"] >= 1
    assert ("token:etl", "read", "topic:shop:orders") not in found
    assert found["anonymous", "manage", "topic:shop:orders"] == 1
    assert found["anonymous", "authenticate", "the credential is invalid"] == 1


def test_who_may_not_give_gives_nothing_even_where_rights_are_not_enforced(connect):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, enforce=False)))
    nobody = Asker(client, None)
    assert nobody("POST", "/v1/admin/tokens", {"name": "mine"}).status == 403
    assert (
        nobody(
            "POST", "/v1/admin/grants", {"subject": "token:mine", "verbs": ["read"], "resource": "namespace:shop"}
        ).status
        == 403
    )
    assert nobody("PUT", "/v1/admin/roles/r", {"members": ["token:mine"]}).status == 403
    assert client.services.directory.entries.version == 0


def test_where_nobody_is_asked_nobody_makes_a_key_for_later(connect):
    client = connect(Settings())
    for method, path, body in (
        ("POST", "/v1/admin/tokens", {"name": "bootstrap"}),
        ("POST", "/v1/admin/grants", {"subject": "everyone", "verbs": ["grant"], "resource": "*"}),
        ("PUT", "/v1/admin/roles/r", {"members": ["token:mine"]}),
        ("POST", "/v1/auth/logins", {}),
    ):
        assert client.call(method, path, body).code == "conflict"


# Proxies.

PROXIED = replace(
    ASKED,
    auth=replace(
        ASKED.auth,
        kinds=("token", "proxy"),
        proxy=replace(ASKED.auth.proxy, principals=("token:gateway",)),
    ),
)


def test_a_proxy_asks_for_its_users_and_never_for_itself(connect):
    client = connect(PROXIED)
    root = Asker(client, BOOTSTRAP)
    gateway = made(root, "gateway", (["operate"], "cluster"))
    made(root, "x", (["read"], "topic:shop:x"))
    root("POST", "/v1/admin/grants", {"subject": "proxy-group:data", "verbs": ["read"], "resource": "namespace:shop"})

    def through(user: str | None, groups: str | None = None) -> Reply:
        headers = {"Authorization": f"Bearer {gateway.token}"}
        if user is not None:
            headers["X-Forwarded-User"] = user
        if groups is not None:
            headers["X-Forwarded-Groups"] = groups
        return client.call("GET", "/v1/auth/whoami", **headers)

    me = through("alice", "data, ops").json()
    assert (me["principal"], me["groups"], me["via"]) == (
        "proxy:alice", ["proxy-group:data", "proxy-group:ops"], "token:gateway",
    )  # fmt: skip
    assert through("bob").json()["groups"] == []
    assert (through(None).status, through(None).code) == (403, "forbidden")
    assert through(" evil\u202e").status == 400
    forged = client.call("GET", "/v1/auth/whoami", Authorization=f"Bearer {BOOTSTRAP}", X_Forwarded_User="alice")
    assert (forged.status, forged.code) == (400, "invalid_input")
    assert client.call("GET", "/livez", X_Forwarded_User="alice").status == 400


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/admin/tokens", {"name": "a", "ttlMs": TTL_MS_MIN - 1}, "ttlMs"),
        ("/v1/admin/tokens", {"name": "a", "ttlMs": TTL_MS_MAX + 1}, "ttlMs"),
        ("/v1/admin/tokens", {"name": "a", "networks": ["10.0.0.0/8"] * (NETWORKS_MAX + 1)}, "networks"),
        ("/v1/admin/tokens", {"name": "a", "networks": ["10.0.0.1/8"]}, "networks"),
        ("/v1/admin/tokens", {"name": "a", "only": [{"verbs": ["read"], "resource": "*"}] * (ONLY_MAX + 1)}, "only"),
        ("/v1/admin/tokens", {"name": "a", "only": [{"verbs": ["fly"], "resource": "*"}]}, "verb"),
        ("/v1/admin/tokens", {"name": "a", "note": "a\nb"}, "note"),
        ("/v1/admin/tokens", {"name": " a"}, "principal"),
        ("/v1/admin/tokens", {"name": "a\u202eb"}, "principal"),
        ("/v1/admin/tokens", {"name": "a\nb"}, "principal"),
        ("/v1/auth/logins", {"ttlMs": LOGIN_MS_MAX + 1}, "ttlMs"),
        ("/v1/admin/grants", {"subject": "mail:a", "verbs": ["read"], "resource": "*"}, "principal"),
        ("/v1/admin/grants", {"subject": "internal:jobs", "verbs": ["read"], "resource": "*"}, "subject"),
        ("/v1/admin/grants", {"subject": "token:a", "verbs": [], "resource": "*"}, "verbs"),
        ("/v1/admin/grants", {"subject": "token:a", "verbs": ["operate"], "resource": "topic:a:b"}, "verb"),
        ("/v1/admin/grants", {"subject": "token:a", "verbs": ["read"], "resource": "topic:a*:b"}, "resource"),
    ],
)
def test_bad_input_is_told_by_its_name_and_nothing_is_written(root, path, body, field):
    reply = root("POST", path, body)
    assert (reply.status, reply.json().get("field")) == (400, field)
    assert root.client.services.directory.entries.version == 0
    assert root("GET", f"/v1/admin/refusals?limit={REFUSALS_MAX + 1}").status == 400


def test_a_poll_that_waits_is_judged_again_before_it_answers(client, root):
    """A token that was revoked while its poll waited for a message reads it no more."""
    reader = made(root, "reader", (["read"], "topic:shop:orders"))
    path = "/v1/namespaces/shop/topics/orders"
    root("PUT", path)

    async def story() -> Reply:
        poll = asyncio.create_task(
            client.ask("POST", f"{path}/poll?waitMs=60000", {}, Authorization=f"Bearer {reader.token}")
        )
        for _ in range(20):
            await asyncio.sleep(0)
        await client.ask("DELETE", f"/v1/admin/tokens/{id_of(reader)}", Authorization=f"Bearer {BOOTSTRAP}")
        await client.ask("POST", f"{path}/publish", {"messages": ["secret"]}, Authorization=f"Bearer {BOOTSTRAP}")
        return await poll

    reply = client.run(story())
    assert refused(reply) == (401, "the token is revoked")
    assert b"secret" not in reply.body


def test_the_access_log_names_the_principal(connect, caplog):
    client = connect(replace(ASKED, log=replace(ASKED.log, access="all")))
    etl = made(Asker(client, BOOTSTRAP), "etl one")
    with caplog.at_level("INFO", "basalt.access"):
        etl("GET", "/v1/auth/whoami")
    line = caplog.records[-1]
    assert line.message.startswith("192.0.2.7 - token:etl%20one [")
    assert line.fields["principal"] == "token:etl%20one"
    assert etl.token not in caplog.text


def test_metrics_are_public_where_the_settings_say_so(connect):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, public=("/metrics",))))
    assert Asker(client, None)("GET", "/metrics").status == 200
    assert Asker(client, "wrong")("GET", "/metrics").status == 401


def test_metrics_count_who_was_let_in_and_what_was_refused(client, root):
    etl = made(root, "etl")
    for _ in range(3):
        etl("PUT", "/v1/namespaces/shop/topics/orders")
    Asker(client, "wrong")("GET", "/v1/auth/whoami")
    text = root("GET", "/metrics").body.decode()
    assert 'basalt_refused_total{kind="topic",verb="manage"} 3.0' in text
    assert 'basalt_authentications_total{kind="token",outcome="refused"} 1.0' in text
    assert 'basalt_authentications_total{kind="token",outcome="accepted"}' in text
    assert "basalt_policy_age_seconds 0.0" in text
    assert "etl" not in text


def test_where_nobody_is_asked_there_are_no_such_series(connect):
    assert "basalt_authentications" not in connect(Settings()).call("GET", "/metrics").body.decode()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("203.0.113.9, 198.51.100.7", "198.51.100.7"),  # the client's own part is in front, and means nothing
        ("198.51.100.7, 192.0.2.8", "198.51.100.7"),  # through two of the proxies
        ("nonsense", "192.0.2.7"),
        ("", "192.0.2.7"),
        ("x" * FORWARDED_BYTES_MAX + ", 2001:db8::1", "2001:db8::1"),
    ],
)
def test_a_listed_proxy_says_in_logs_and_audit_where_a_request_came_from(connect, caplog, sent, shown):
    http = replace(ASKED.http, forwarders=("192.0.2.0/24",))
    client = connect(replace(ASKED, http=http, log=replace(ASKED.log, access="all")))
    with caplog.at_level("INFO", "basalt.access"):
        client.call(
            "PUT", "/v1/admin/roles/r", {"members": []}, Authorization=f"Bearer {BOOTSTRAP}", X_Forwarded_For=sent
        )
    assert caplog.records[-1].fields["client"] == shown
    assert Asker(client, BOOTSTRAP)("GET", "/v1/admin/audit").json()[0]["address"] == shown


def test_nobody_else_says_where_a_request_came_from_and_no_network_of_a_token_goes_by_it(connect):
    client = connect(replace(ASKED, http=replace(ASKED.http, forwarders=("10.0.0.0/8",))))
    headers = {"Authorization": f"Bearer {BOOTSTRAP}", "X_Forwarded_For": "198.51.100.7"}
    assert client.call("PUT", "/v1/admin/roles/r", {"members": []}, **headers).status == 200
    assert Asker(client, BOOTSTRAP)("GET", "/v1/admin/audit").json()[0]["address"] == "192.0.2.7"
    trusted = connect(replace(ASKED, http=replace(ASKED.http, forwarders=("192.0.2.0/24",))))
    inside = made(Asker(trusted, BOOTSTRAP), "etl", networks=["198.51.100.0/24"])
    reply = trusted.call(
        "GET", "/v1/auth/whoami", Authorization=f"Bearer {inside.token}", X_Forwarded_For="198.51.100.7"
    )
    assert reply.status == 401
