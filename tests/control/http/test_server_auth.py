"""A caller asks who they are, and what they may do."""

from __future__ import annotations

import pytest

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import Principal, internal
from basalt.http.app import build_app

ALICE = Principal("jwt", "alice", frozenset(("jwt-group:data",)))
GIVEN = [
    parse_grant("role:readers", ["read", "inspect"], "namespace:shop"),
    parse_grant("everyone", ["write"], "topic:shop:inbox"),
]


def asked_by(client, caller: Caller):
    client.app = build_app(client.services, caller)
    return client


@pytest.fixture
def alice(client):
    return asked_by(client, Caller(ALICE, Policy(GIVEN, {"readers": ["jwt-group:data"]})))


def check(client, verb: str, resource: str):
    return client.call("POST", "/v1/auth/check", {"verb": verb, "resource": resource})


def test_where_nobody_has_to_prove_who_they_are_everybody_is_anonymous_and_may_do_everything(client):
    assert client.call("GET", "/v1/auth/whoami").json() == {
        "principal": "anonymous", "groups": [], "roles": [], "superuser": False, "judged": False, "credential": "", "expiresMs": None,
        "only": None, "via": "",
    }  # fmt: skip
    found = check(client, "operate", "cluster").json()
    assert (found["allowed"], found["grants"]) == (True, [])
    assert found["because"] == "nobody has to prove who they are, and everybody may do everything"


def test_an_embedded_clients_calls_are_made_by_this_process(client):
    found = asked_by(client, Caller(internal("embedded"), None)).call("GET", "/v1/auth/whoami").json()
    assert (found["principal"], found["judged"]) == ("internal:embedded", False)


def test_a_caller_learns_of_groups_and_roles(alice):
    assert alice.call("GET", "/v1/auth/whoami").json() == {
        "principal": "jwt:alice", "groups": ["jwt-group:data"], "roles": ["role:readers"], "superuser": False, "judged": True,
        "credential": "", "expiresMs": None, "only": None, "via": "",
    }  # fmt: skip


def test_a_superuser_is_told_so(client):
    caller = Caller(ALICE, Policy(superusers=["jwt-group:data"]))
    assert asked_by(client, caller).call("GET", "/v1/auth/whoami").json()["superuser"] is True
    found = check(client, "grant", "*").json()
    assert (found["allowed"], found["because"]) == (True, "jwt:alice is a superuser")


def test_a_caller_learns_which_grants_give_a_right(alice):
    assert check(alice, "observe", "topic:shop:orders").json() == {
        "allowed": True,
        "principal": "jwt:alice",
        "verb": "observe",
        "resource": "topic:shop:orders",
        "because": "it was granted",
        "grants": [{"subject": "role:readers", "verbs": ["inspect", "read"], "resource": "namespace:shop"}],
    }


def test_a_caller_learns_what_is_missing_whether_the_thing_is_there_or_not(alice):
    found = check(alice, "write", "topic:shop:orders").json()
    assert (found["allowed"], found["grants"]) == (False, [])
    assert (
        found["because"]
        == "no grant to jwt:alice, jwt-group:data, role:readers, everyone gives write on topic:shop:orders"
    )
    alice.run(alice.services.topics.create(alice.services.topics.title("shop", "orders"), {}))
    assert check(alice, "write", "topic:shop:orders").json() == found


def test_a_right_on_many_things_is_there_where_all_of_it_is_granted(alice):
    assert check(alice, "read", "topic:shop:*").json()["allowed"] is True
    assert check(alice, "read", "topic:sh*").code == "invalid_input"
    assert check(alice, "read", "namespace:sh*").json()["allowed"] is False


@pytest.mark.parametrize(
    ("verb", "resource", "said"),
    [
        ("publish", "topic:shop:orders", "there is no verb 'publish'"),
        ("operate", "topic:shop:orders", "operate means nothing on topic:NAMESPACE:TOPIC"),
        ("read", "topic:shop", "'topic:shop' is no resource: it has 1 of 2 names"),
        ("read", "", "'' is no resource: there is no kind of resource ''"),
        ("read", "topic:shop:\u202eb", "'topic:shop:\\u202eb' is no resource: '\\u202eb' is no name"),
    ],
)
def test_what_is_no_right_is_refused_in_words(client, verb: str, resource: str, said: str):
    reply = check(client, verb, resource)
    assert (reply.status, reply.code, reply.json()["detail"]) == (400, "invalid_input", said)
