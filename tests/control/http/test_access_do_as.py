"""Proxies that name their user in the query, as Apache Knox does: believed from a proxy alone, and a parameter of no call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.http.asker import ASKED, BOOTSTRAP, Asker, made
from tests.control.http.conftest import Client, Reply

WHOAMI = "/v1/auth/whoami"


def serving(connect, *, do_as: bool = True) -> tuple[Client, str]:
    proxy = replace(ASKED.auth.proxy, principals=("token:knox",), do_as=do_as)
    client = connect(replace(ASKED, auth=replace(ASKED.auth, kinds=("token", "proxy"), proxy=proxy)))
    return client, made(Asker(client, BOOTSTRAP), "knox").token


def through(client: Client, token: str, target: str, **headers: str) -> Reply:
    return client.call("GET", target, Authorization=f"Bearer {token}", **headers)


def test_the_user_in_the_query_makes_the_call_and_is_no_parameter_of_it(connect):
    client, knox = serving(connect)
    found = through(client, knox, f"{WHOAMI}?doAs=alice").json()
    assert (found["principal"], found["via"], found["superuser"]) == ("proxy:alice", "token:knox", False)
    assert through(client, knox, f"{WHOAMI}?doAs=b%C3%B6b%2Fx").json()["principal"] == "proxy:böb/x"
    root = Asker(client, BOOTSTRAP)
    root("POST", "/v1/admin/grants", {"subject": "proxy:alice", "verbs": ["inspect"], "resource": "cluster"})
    assert through(client, knox, "/v1/admin/audit?limit=1&doAs=alice").json()[0]["act"] == "grant"
    assert through(client, knox, "/v1/admin/audit?doAs=alice&limit=1").status == 200
    assert through(client, knox, "/v1/admin/audit?doAs=bob&limit=1").status == 403


def test_one_user_is_never_taken_for_another_on_a_head_that_is_known(connect):
    client, knox = serving(connect)
    for name in ("alice", "bob", "alice", "bob"):
        assert through(client, knox, f"{WHOAMI}?doAs={name}").json()["principal"] == f"proxy:{name}"
        assert through(client, knox, WHOAMI, X_Forwarded_User=name).json()["principal"] == f"proxy:{name}"


def test_from_who_is_no_proxy_it_is_refused(connect):
    client, _ = serving(connect)
    for token in (BOOTSTRAP, made(Asker(client, BOOTSTRAP), "eve").token):
        refused = through(client, token, f"{WHOAMI}?doAs=alice")
        assert (refused.status, refused.json()["field"]) == (400, "doAs")
    assert client.call("GET", f"{WHOAMI}?doAs=alice").status == 400  # nor from nobody
    assert client.call("GET", "/livez?doAs=alice").status == 400


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("doAs=alice&doAs=bob", {}),
        ("doAs=alice", {"X_Forwarded_User": "bob"}),
        ("doAs=alice", {"X_Forwarded_User": "alice"}),
        ("doAs=", {}),
        ("doAs", {}),
        ("doAs=a%0Ab", {}),
        ("doAs=a%E2%80%AEb", {}),
        ("doAs=%FF", {}),
    ],
)
def test_a_user_that_is_named_twice_or_by_no_name_is_refused(connect, query, headers):
    client, knox = serving(connect)
    assert through(client, knox, f"{WHOAMI}?{query}", **headers).status == 400


@pytest.mark.parametrize("query", ["doas=alice", "do%41s=alice", "DOAS=alice", "user.name=alice"])
def test_no_other_spelling_names_a_user(connect, query):
    client, knox = serving(connect)
    assert through(client, knox, f"{WHOAMI}?{query}").status == 403  # the proxy says for nobody that it asks
    assert through(client, knox, f"{WHOAMI}?{query}", X_Forwarded_User="bob").status == 400


def test_the_proxy_without_a_user_stays_nobody(connect):
    client, knox = serving(connect)
    assert through(client, knox, WHOAMI).status == 403


def test_where_it_is_off_it_is_a_parameter_that_no_call_has(connect):
    client, knox = serving(connect, do_as=False)
    reply = through(client, knox, f"{WHOAMI}?doAs=alice", X_Forwarded_User="bob")
    assert (reply.status, "'doAs' is not one of this call" in reply.json()["detail"]) == (400, True)


def test_the_audit_names_both(connect):
    client, knox = serving(connect)
    root = Asker(client, BOOTSTRAP)
    root("POST", "/v1/admin/grants", {"subject": "proxy:alice", "verbs": ["grant"], "resource": "cluster"})
    put = client.call("PUT", "/v1/admin/roles/r?doAs=alice&reason=x", {"members": []}, Authorization=f"Bearer {knox}")
    assert put.status == 200
    line = root("GET", "/v1/admin/audit?limit=1").json()[0]
    assert (line["principal"], line["via"], line["reason"]) == ("proxy:alice", "token:knox", "x")
