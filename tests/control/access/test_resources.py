"""What rights are about: each text is one resource or refused by name, and each verb has its kinds."""

from __future__ import annotations

import pytest

from basalt.access import resources
from basalt.access.resources import KINDS, SESSION_CHARS_MAX, VERBS, Resource, check_verbs, covers, parse_resource
from basalt.errors import InputError


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("cluster", resources.CLUSTER),
        ("*", Resource("*")),
        ("namespace:shop", Resource("namespace", ("shop",))),
        ("namespace:*", Resource("namespace", ("*",))),
        ("topic:shop:orders", resources.topic("shop", "orders")),
        ("topic:shop:pay*", resources.topic("shop", "pay*")),
        ("group:shop:orders:billing", resources.group("shop", "orders", "billing")),
        ("table:shop:accounts", resources.table("shop", "accounts")),
        ("session:a:b c", resources.session("a:b c")),
        ("session:" + "s" * SESSION_CHARS_MAX, resources.session("s" * SESSION_CHARS_MAX)),
        ("transactions:cert:CN=a:b", resources.transactions("cert:CN=a:b")),
        ("transactions:token:*", resources.transactions("token:*")),
        ("transactions:anonymous", resources.transactions("anonymous")),
    ],
)
def test_a_resource_is_read_and_written_alike(text: str, resource: Resource):
    assert parse_resource(text) == resource
    assert str(resource) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no kind of resource ''"),
        ("topics:a:b", "no kind of resource 'topics'"),
        ("topic", "it has 0 of 2 names"),
        ("topic:shop", "it has 1 of 2 names"),
        ("cluster:x", "it has 1 of 0 names"),
        ("*:x", "it has 1 of 0 names"),
        ("topic:shop:orders:x", "'orders:x' is no name"),
        ("topic:*:orders", "'\\*' is no name"),
        ("topic:shop:o*s", "is no name"),
        ("topic:shop:**", "is no name"),
        ("topic:shop:", "'' is no name"),
        ("topic:shop:ord\u202eers", "no resource"),
        ("topic:shop:.hidden", "is no name"),
        ("session:", "no name of a session"),
        ("session:a/b", "no name of a session"),
        ("session:" + "s" * (SESSION_CHARS_MAX + 1), "no name of a session"),
        ("session:a\nb", "no name of a session"),
        ("transactions:etl", "no kind of principal"),
    ],
)
def test_what_is_no_resource_is_refused_with_the_reason(text: str, said: str):
    with pytest.raises(InputError, match=said) as refused:
        parse_resource(text)
    assert refused.value.message.isprintable()


def test_each_verb_has_its_cells():
    data = {"observe", "read", "write", "inspect", "manage", "grant"}
    assert {kind: set(each.verbs) for kind, each in KINDS.items()} == {
        "cluster": {"observe", "inspect", "transact", "operate", "grant"},
        "namespace": data | {"transact"},
        "topic": data | {"transact"},
        "group": data,
        "table": data,
        "session": {"observe", "manage", "transact", "grant"},
        "transactions": {"observe", "transact", "grant"},
        "*": set(VERBS),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_means_nothing_on_a_kind_is_refused(verb: str, kind: str):
    if verb in KINDS[kind].verbs:
        assert check_verbs((verb,), kind) == {verb}
    else:
        with pytest.raises(InputError, match=f"{verb} means nothing on"):
            check_verbs((verb,), kind)


@pytest.mark.parametrize(
    ("verbs", "said"), [((), "no verb"), (("publish",), "no verb 'publish'"), (("",), "no verb ''")]
)
def test_verbs_that_are_none_are_refused(verbs: tuple[str, ...], said: str):
    with pytest.raises(InputError, match=said):
        check_verbs(verbs, "topic")


@pytest.mark.parametrize(
    ("granted", "asked", "expected"),
    [
        ("topic:shop:orders", "topic:shop:orders", True),
        ("topic:shop:orders", "topic:shop:orders2", False),
        ("topic:shop:orders", "topic:shop2:orders", False),
        ("topic:shop:ord*", "topic:shop:orders", True),
        ("topic:shop:ord*", "topic:shop:ord", True),
        ("topic:shop:ord*", "topic:shop:or", False),
        ("topic:shop:*", "topic:shop:orders", True),
        ("topic:shop:*", "topic:shopping:orders", False),
        ("topic:shop:orders", "group:shop:orders:billing", False),
        ("namespace:shop", "topic:shop:orders", True),
        ("namespace:shop", "group:shop:orders:billing", True),
        ("namespace:shop", "table:shop:accounts", True),
        ("namespace:shop", "namespace:shop", True),
        ("namespace:shop", "topic:shopping:orders", False),
        ("namespace:sho*", "table:shopping:accounts", True),
        ("namespace:shop", "session:shop", False),
        ("namespace:shop", "cluster", False),
        ("topic:shop:*", "namespace:shop", False),
        ("cluster", "cluster", True),
        ("cluster", "topic:shop:orders", False),
        ("*", "cluster", True),
        ("*", "transactions:token:etl", True),
        ("namespace:*", "*", False),
        ("transactions:token:*", "transactions:token:etl", True),
        ("transactions:token:*", "transactions:jwt:etl", False),
        # What is asked for may be a grant's resource: all of it must be covered.
        ("topic:shop:orders", "topic:shop:ord*", False),
        ("topic:shop:ord*", "topic:shop:o*", False),
        ("topic:shop:o*", "topic:shop:ord*", True),
    ],
)
def test_what_a_resource_covers(granted: str, asked: str, expected: bool):
    assert covers(parse_resource(granted), parse_resource(asked)) is expected


def test_a_name_of_a_path_that_has_colons_is_one_name():
    assert not covers(parse_resource("topic:a:b"), Resource("topic", ("a:b", "")))
    assert not covers(parse_resource("namespace:a"), Resource("topic", ("a:b", "c")))
