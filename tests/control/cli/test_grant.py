"""`basalt grant`: rights by verbs and by shapes, listed, and taken back with a look at who used them."""

from __future__ import annotations

import json

import pytest

from basalt.access.resources import KINDS, VERBS, shape
from basalt.cli.commands.access.grant import DAYS_MAX, GRANTS_MAX, SHAPES, verbs_on
from basalt.cli.failures import Usage
from tests.control.cli.asking_server import asking, root, sent_by

__all__ = ["asking", "root", "sent_by"]


@pytest.mark.parametrize(
    ("words", "resource", "verbs"),
    [
        ("reader", "topic:shop:orders", ("observe", "read")),
        ("reader", "group:shop:orders:billing", ("observe", "read")),
        ("writer", "namespace:shop", ("observe", "write")),
        ("writer", "*", ("observe", "write")),
        ("owner", "namespace:shop", ("inspect", "manage", "observe", "read", "write")),
        ("owner", "session:billing", ("manage", "observe")),
        ("operator", "cluster", ("inspect", "observe", "operate")),
        ("auditor", "cluster", ("inspect", "observe")),
        ("auditor", "namespace:*", ("inspect", "observe")),
        ("write", "namespace:shop", ("write",)),
        ("write,read", "namespace:shop", ("write", "read")),
        ("fly", "nowhere", ("fly",)),  # for the server to refuse
    ],
)
def test_a_shape_is_the_verbs_that_the_resource_takes(words, resource, verbs):
    assert verbs_on(words, resource) == verbs


@pytest.mark.parametrize(
    ("words", "resource", "hint"),
    [
        ("reader", "cluster", "namespace:NAMESPACE, topic:"),
        ("operator", "namespace:shop", "it is for cluster"),
        ("auditor", "session:billing", "cluster"),
        ("writer", "nowhere", "kinds are"),
    ],
)
def test_a_shape_that_means_nothing_on_a_resource_says_on_which_it_does(words, resource, hint):
    with pytest.raises(Usage) as raised:
        verbs_on(words, resource)
    assert hint in (raised.value.hint or "")


def test_no_shape_gives_the_right_to_give_rights():
    for words, verbs in SHAPES.items():
        assert set(verbs) <= set(VERBS) - {"grant"}, words
        assert any(verbs[0] in kind.verbs for kind in KINDS.values()), words
    assert shape("topic") == "topic:NAMESPACE:TOPIC"


def test_rights_are_given_used_listed_and_taken_back(root, sent_by):
    token = root("token", "create", "etl").out.strip()
    root("topic", "create", "orders")
    assert sent_by(token, "publish", "orders", "a").code == 5
    dry = root("grant", "add", "token:etl", "writer", "topic:shop:orders", "--dry-run")
    assert dry.out.splitlines() == [
        "would grant observe, write on topic:shop:orders to token:etl",
        "  token:etl gains observe, write on topic:shop:orders",
    ]
    assert sent_by(token, "publish", "orders", "a").code == 5
    ran = root("grant", "add", "token:etl", "writer", "topic:shop:orders")
    assert (ran.code, ran.out) == (0, "granted observe, write on topic:shop:orders to token:etl\n")
    assert "basalt grant add token:etl transact cluster" in ran.err
    assert sent_by(token, "publish", "orders", "a").code == 0
    assert sent_by(token, "consume", "orders").code == 5
    (row,) = json.loads(root("grant", "list", "--subject", "token:etl", "-o", "json").out)
    assert (row["verbs"], row["resource"], row["made_by"]) == (
        ["observe", "write"],
        "topic:shop:orders",
        "token:bootstrap",
    )
    assert json.loads(root("grant", "list", "--resource", "topic:shop:bills", "-o", "json").out) == []
    told = root("grant", "remove", row["id"], "--dry-run")
    assert "would take observe, write on topic:shop:orders from token:etl; last used 2" in told.out
    assert "by token:etl" in told.out
    assert "  token:etl loses observe, write on topic:shop:orders" in told.out
    assert root("grant", "remove", row["id"]).code == 2  # nobody is there to ask
    assert (
        root("grant", "remove", row["id"], "--yes").out == "took observe, write on topic:shop:orders from token:etl\n"
    )
    assert sent_by(token, "publish", "orders", "a").code == 5
    assert root("grant", "remove", row["id"], "--yes").code == 3


def test_grants_that_nobody_needed_are_of_some_age(root):
    root("grant", "add", "everyone", "reader", "namespace:shop")
    ran = root("grant", "unused", "--days", "1")
    assert (ran.code, "none of these" in ran.err) == (0, True)
    assert json.loads(root("grant", "unused", "-o", "json").out) == []
    assert root("grant", "unused", "--days", str(DAYS_MAX)).code == 0
    assert root("grant", "unused", "--days", str(DAYS_MAX + 1)).code == 2
    assert root("grant", "list", "--limit", str(GRANTS_MAX)).code == 0
    assert root("grant", "list", "--limit", str(GRANTS_MAX + 1)).code == 2


def test_what_is_wrong_with_a_grant_is_told(root):
    for arguments, said in (
        (("nobody", "reader", "namespace:shop"), "no kind of principal or group"),
        (("token:etl", "fly", "namespace:shop"), "no verb"),
        (("token:etl", "operate", "namespace:shop"), "operate means nothing on"),
    ):
        ran = root("grant", "add", *arguments)
        assert (ran.code, said in ran.err) == (1, True), ran


def test_nobody_gives_more_than_they_have(root, sent_by):
    token = root("token", "create", "lead").out.strip()
    root("grant", "add", "token:lead", "grant,read,observe", "namespace:shop")
    assert sent_by(token, "grant", "add", "token:etl", "reader", "namespace:shop").code == 0
    refused = sent_by(token, "grant", "add", "token:etl", "writer", "namespace:shop")
    assert (refused.code, "may not write namespace:shop" in refused.err) == (5, True)
