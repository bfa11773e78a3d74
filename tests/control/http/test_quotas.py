"""The calls about quotas: rules are kept, count at once, are audited, and tell whose they are."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from basalt.access import directory as directories
from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import Principal, parse_principal
from basalt.http.app import build_app
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.settings.tree import QUOTA_MAX
from tests.control.http.conftest import Client

QUOTAS = "/v1/admin/quotas"
UNSAID = {
    "requestsPerS": None, "publishBytesPerS": None, "fetchBytesPerS": None, "openTransactions": None, "sessions": None,
    "topics": None, "waitingFetches": None,
}  # fmt: skip


def use(client: Client, caller: Caller) -> None:
    client.app = build_app(client.services, caller)


def test_a_rule_is_set_counts_at_once_and_is_removed(client: Client) -> None:
    reply = client.call("PUT", f"{QUOTAS}/everyone?reason=noise&as=ann", {"requestsPerS": 1, "topics": "off"})
    expected = {
        "subject": "everyone",
        "rule": {**UNSAID, "requestsPerS": 1, "topics": "off"},
        "changedMs": client.clock.now_ms(),
        "madeBy": "anonymous",
    }
    assert reply.json() == expected
    assert client.call("GET", QUOTAS).json() == [expected]
    assert client.call("GET", QUOTAS).status == 200
    assert client.call("GET", QUOTAS).code == "throttled"
    client.clock.advance(60_000)  # type: ignore[attr-defined]  # tests have a clock that they move
    assert client.call("DELETE", f"{QUOTAS}/everyone").json() == expected
    assert not client.services.quotas.are_on
    assert client.call("GET", QUOTAS).json() == []
    acts = [
        (line["act"], line["what"], line["outcome"], line["reason"])
        for line in client.call("GET", "/v1/admin/audit").json()
    ]
    assert acts == [
        ("remove quota", "everyone", "done", ""),
        ("set quota", "everyone", "requests_per_s 1, topics off", "noise"),
    ]


def test_a_dry_run_changes_nothing(client: Client) -> None:
    assert client.call("PUT", f"{QUOTAS}/token:etl?dryRun=true", {"topics": 1}).json()["rule"]["topics"] == 1
    assert client.call("GET", QUOTAS).json() == []
    client.call("PUT", f"{QUOTAS}/token:etl", {"topics": 1})
    assert client.call("DELETE", f"{QUOTAS}/token:etl?dryRun=true").status == 200
    assert len(client.call("GET", QUOTAS).json()) == 1


def test_a_rule_holds_over_a_restart(client: Client) -> None:
    client.call("PUT", f"{QUOTAS}/everyone", {"requestsPerS": 1})
    services = client.run(open_services(Settings(), None, store=client.services.store, clock=client.clock))
    other = Client(services, client.runner)
    assert [other.call("GET", "/v1").status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    "subject",
    [
        "token:etl",
        "role:batch",
        "jwt-group:data",
        "cert:CN=a\\,b,O=c/d~1",
        "krb:HTTP/host@REALM",
        "cert:spiffe://a/b",
        "anonymous",
    ],
)
def test_any_subject_has_a_path(client: Client, subject: str) -> None:
    escaped = quote(subject.replace("~", "~0").replace("/", "~1").replace("\\", "~2"), safe="")
    assert client.call("PUT", f"{QUOTAS}/{escaped}", {"topics": 1}).json()["subject"] == subject
    assert client.call("GET", f"{QUOTAS}/{escaped}").json()["rule"]["topics"] == 1
    assert client.call("DELETE", f"{QUOTAS}/{escaped}").status == 200


@pytest.mark.parametrize(
    ("subject", "body", "field"),
    [
        ("nobody", {"topics": 1}, "principal"),
        ("internal:jobs", {"topics": 1}, "subject"),
        ("token:a~3", {"topics": 1}, "subject"),
        ("token:etl", {}, "body"),
        ("token:etl", {"topics": None}, "body"),
        ("token:etl", {"topics": 0}, "topics"),
        ("token:etl", {"requestsPerS": -1}, "requestsPerS"),
        ("token:etl", {"fetchBytesPerS": QUOTA_MAX + 1}, "fetchBytesPerS"),
        ("token:etl", {"topics": "on"}, "topics"),
        ("token:etl", {"topics": 1.5}, "topics"),
        ("token:etl", {"topics": True}, "topics"),
        ("token:etl", {"topic": 1}, "topic"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_name(client: Client, subject: str, body: object, field: str) -> None:
    reply = client.call("PUT", f"{QUOTAS}/{subject}", body)
    assert (reply.status, reply.json()["field"]) == (400, field), reply.body
    assert client.call("GET", QUOTAS).json() == []


def test_there_is_no_rule_to_remove_where_none_is(client: Client) -> None:
    assert client.call("DELETE", f"{QUOTAS}/token:etl").code == "not_found"


def test_there_are_so_many_rules_at_most(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert directories.QUOTAS_MAX == 10_000
    monkeypatch.setattr(directories, "QUOTAS_MAX", 1)
    client.call("PUT", f"{QUOTAS}/token:a", {"topics": 1})
    assert client.call("PUT", f"{QUOTAS}/token:b", {"topics": 1}).code == "conflict"
    assert client.call("PUT", f"{QUOTAS}/token:a", {"topics": 2}).status == 200


def test_what_is_in_force_for_a_principal_says_by_whose_rule_and_what_is_used(client: Client) -> None:
    client.topic()
    alice = Principal("jwt", "alice", frozenset(("jwt-group:data",)))
    policy = Policy(
        [parse_grant("jwt:alice", ["manage"], "namespace:shop")], {"batch": ["jwt-group:data"]}, ["token:boss"]
    )
    for subject, rule in (
        ("everyone", {"requestsPerS": 5, "sessions": 1}),
        ("role:batch", {"requestsPerS": 50}),
        ("jwt-group:data", {"requestsPerS": 40, "topics": 3}),
        ("jwt:alice", {"sessions": "off"}),
    ):
        assert client.call("PUT", f"{QUOTAS}/{subject}", rule).status == 200
    use(client, Caller(alice, policy))
    assert client.call("PUT", "/v1/namespaces/shop/topics/hers").status == 200
    shown = client.call("GET", f"{QUOTAS}/jwt:alice").json()  # one's own
    assert shown["groups"] == ["jwt-group:data"]
    assert {each["quota"]: (each["limit"], each["by"], each["used"]) for each in shown["inForce"]} == {
        "requests_per_s": (50, "role:batch", 2),
        "publish_bytes_per_s": (None, "settings", 0),
        "fetch_bytes_per_s": (None, "settings", 0),
        "open_transactions": (None, "settings", 0),
        "sessions": (None, "jwt:alice", 0),
        "topics": (3, "jwt-group:data", 1),
        "waiting_fetches": (None, "settings", 0),
    }
    assert client.call("GET", f"{QUOTAS}/token:boss").code == "forbidden"
    assert client.call("GET", QUOTAS).code == "forbidden"
    assert client.call("PUT", f"{QUOTAS}/jwt:alice", {"requestsPerS": "off"}).code == "forbidden"
    assert client.call("DELETE", f"{QUOTAS}/jwt:alice").code == "forbidden"
    use(client, Caller(parse_principal("token:boss"), policy))
    assert client.call("GET", f"{QUOTAS}/jwt:alice").json()["groups"] == shown["groups"]  # with which it called last
    own = client.call("GET", f"{QUOTAS}/token:boss").json()
    assert {each["by"] for each in own["inForce"]} == {"superuser"}
    assert client.call("GET", f"{QUOTAS}/role:batch").json()["inForce"] == []


def test_what_the_settings_say_is_told_as_theirs(connect) -> None:
    from dataclasses import replace

    settings = Settings()
    client = connect(replace(settings, quota=replace(settings.quota, topics=7)))
    (found,) = [
        each for each in client.call("GET", f"{QUOTAS}/anonymous").json()["inForce"] if each["quota"] == "topics"
    ]
    assert found == {"quota": "topics", "limit": 7, "by": "settings", "used": 0}
