"""The policy against a naive reference, and the rules that a reader of grants must be able to rely on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.access import policy as policies
from basalt.access import resources
from basalt.access.policy import Caller, Grant, GrantReader, Policy, parse_grant
from basalt.access.principal import ANONYMOUS, Principal, internal, parse_principal
from basalt.access.resources import CLUSTER, KINDS, VERBS, Resource, parse_resource
from basalt.errors import ForbiddenError, InputError

ETL, ALICE = parse_principal("token:etl"), Principal("jwt", "alice", frozenset(("jwt-group:data",)))
ORDERS = resources.topic("shop", "orders")

NAMES = st.sampled_from(["a", "ab", "b"])
PREFIXES = st.one_of(NAMES, st.sampled_from(["*", "a*", "ab*"]))
PRINCIPALS = st.builds(
    Principal,
    st.sampled_from(["token", "jwt"]),
    NAMES,
    st.frozensets(st.sampled_from(["jwt-group:x", "jwt-group:y"])),
)
MEMBERS = st.sampled_from(["token:a", "token:b", "jwt:a", "jwt-group:x", "jwt-group:y"])
SUBJECTS = st.one_of(MEMBERS, st.sampled_from(["everyone", "role:r", "role:s"]))


def resource_of(last: st.SearchStrategy[str]) -> st.SearchStrategy[Resource]:
    def of_kind(kind: str) -> st.SearchStrategy[Resource]:
        parts = KINDS[kind].parts
        ending = last.map(lambda name: f"token:{name}") if kind == "transactions" else last
        return st.tuples(*[NAMES] * (len(parts) - 1), *[ending] * bool(parts)).map(lambda names: Resource(kind, names))

    return st.sampled_from(sorted(KINDS)).flatmap(of_kind)


GRANTS = st.tuples(SUBJECTS, resource_of(PREFIXES), st.data()).map(
    lambda drawn: Grant(
        drawn[0], drawn[2].draw(st.frozensets(st.sampled_from(KINDS[drawn[1].kind].verbs), min_size=1)), drawn[1]
    )
)


def is_covered(granted: str, asked: str) -> bool:
    """The same as `covers`, with the texts alone."""
    if granted == "*":
        return True
    if granted.startswith("namespace:") and asked.split(":", maxsplit=1)[0] in ("topic", "group", "table"):
        asked = ":".join(["namespace", asked.split(":")[1]])
    if granted.split(":", maxsplit=1)[0] != asked.split(":")[0]:
        return False
    return asked.startswith(granted[:-1]) if granted.endswith("*") else asked == granted


def naively(
    grants: list[Grant], roles: dict[str, list[str]], superusers: list[str], who: Principal, verb: str, what: Resource
) -> bool:
    names = {str(who), *who.groups}
    if names & set(superusers):
        return True
    if what.kind == "transactions" and what.parts == (str(who),) and verb in ("observe", "transact"):
        return True
    subjects = names | {"everyone"} | {f"role:{role}" for role, members in roles.items() if names & set(members)}
    for subject, verbs, resource in grants:
        enough = {verb}
        if verb == "observe":
            enough |= {
                "topic": {"read", "write", "manage"}, "group": {"read", "write", "manage"}, "table": {"read", "write", "manage"},
                "namespace": {"read", "write", "manage"}, "session": {"transact", "manage"}, "transactions": {"transact"},
            }.get(what.kind, set())  # fmt: skip
        if subject in subjects and enough & verbs and is_covered(str(resource), str(what)):
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(
    grants=st.lists(GRANTS, max_size=6),
    roles=st.dictionaries(st.sampled_from(["r", "s"]), st.lists(MEMBERS, max_size=2)),
    superusers=st.lists(MEMBERS, max_size=1),
    questions=st.lists(
        st.tuples(PRINCIPALS, st.sampled_from(sorted(VERBS)), resource_of(NAMES)), min_size=1, max_size=8
    ),
)
def test_the_policy_is_the_union_of_what_is_granted(grants, roles, superusers, questions):
    policy = Policy(grants, roles, superusers)
    turned = Policy(reversed(grants), roles, superusers)
    for question in (*questions, *questions):  # a second time, from what is kept
        expected = naively(grants, roles, superusers, *question)
        assert policy.allows(*question) is expected
        assert policy.why(*question).allowed is expected
        assert turned.allows(*question) is expected, "the order of grants means something"


def test_verdicts_that_are_kept_are_those_of_the_same_question(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policies, "VERDICTS_MAX", 2)
    policy = Policy([parse_grant("token:etl", ["read"], "topic:shop:orders")])
    for _ in range(2):
        for topic, expected in (("orders", True), ("other", False), ("third", False)):
            assert policy.allows(ETL, "read", resources.topic("shop", topic)) is expected
            assert len(policy._verdicts) <= 2
    in_group = Principal("token", "etl", frozenset(("jwt-group:data",)))
    assert not policy.allows(in_group, "write", ORDERS)


def test_nobody_may_do_anything_that_is_not_granted():
    assert not any(Policy().allows(who, verb, ORDERS) for who in (ANONYMOUS, ETL, ALICE) for verb in VERBS)


def test_transactions_of_ones_own_need_no_grant():
    policy = Policy()
    assert policy.allows(ETL, "transact", resources.transactions(ETL))
    assert policy.allows(ETL, "observe", resources.transactions(ETL))
    assert not policy.allows(ETL, "grant", resources.transactions(ETL))
    assert not policy.allows(ETL, "observe", resources.transactions(ALICE))


def test_a_superuser_and_a_part_of_the_server_may_do_everything():
    policy = Policy(superusers=["token:etl", "jwt-group:data"])
    for who in (ETL, ALICE, internal("jobs")):
        assert policy.allows(who, "operate", CLUSTER)
    assert not policy.allows(parse_principal("jwt:etl"), "operate", CLUSTER)


def test_no_role_is_a_superuser_for_who_may_grant_could_make_one():
    with pytest.raises(InputError, match="no kind of principal or group"):
        Policy(superusers=["role:admins"])


def test_to_see_the_cluster_is_implied_by_nothing():
    policy = Policy([parse_grant("token:etl", ["transact", "operate"], "cluster")])
    assert not policy.allows(ETL, "observe", CLUSTER)


def test_why_names_the_grants_and_else_whose_were_looked_at():
    given = parse_grant("role:readers", ["read"], "namespace:shop")
    policy = Policy([given, parse_grant("everyone", ["observe"], "cluster")], {"readers": ["jwt-group:data"]})
    assert policy.why(ALICE, "observe", ORDERS) == (True, "it was granted", (given,))
    refused = policy.why(ALICE, "write", ORDERS)
    assert not refused.allowed
    assert refused.because == (
        "no grant to jwt:alice, jwt-group:data, role:readers, everyone gives write on topic:shop:orders"
    )


@pytest.mark.parametrize(
    ("subject", "verbs", "resource", "said"),
    [
        ("etl", ["read"], "topic:a:b", "no kind of principal or group"),
        ("token:etl", ["read"], "cluster", "read means nothing on cluster"),
        ("token:etl", ["operate"], "topic:a:b", "operate means nothing on topic:NAMESPACE:TOPIC"),
        ("token:etl", [], "topic:a:b", "no verb"),
        ("token:etl", ["read"], "topic:*:b", "no resource"),
    ],
)
def test_a_grant_that_means_nothing_is_refused(subject: str, verbs: list[str], resource: str, said: str):
    with pytest.raises(InputError, match=said):
        parse_grant(subject, verbs, resource)


def test_a_refusal_names_who_what_and_which():
    caller = Caller(ETL, Policy())
    with pytest.raises(ForbiddenError, match=r"^token:etl may not write topic:shop:orders$"):
        caller.must("write", ORDERS)
    with pytest.raises(ForbiddenError, match=r"may not read 'topic:a\\u202eb:c'$"):
        caller.must("read", resources.topic("a\u202eb", "c"))


def test_without_a_policy_everybody_may_do_everything():
    Caller(ANONYMOUS, None).must("operate", CLUSTER)
    assert Caller(ANONYMOUS, None).may("write", ORDERS)


def test_a_resource_of_a_grant_is_granted_where_all_of_it_is():
    policy = Policy([parse_grant("token:etl", ["read"], "topic:shop:ord*")])
    assert policy.allows(ETL, "read", parse_resource("topic:shop:orders*"))
    assert not policy.allows(ETL, "read", parse_resource("topic:shop:*"))


@settings(max_examples=150, deadline=None)
@given(
    grants=st.lists(GRANTS, max_size=6),
    roles=st.dictionaries(st.sampled_from(["r", "s"]), st.lists(MEMBERS, max_size=2)),
    superusers=st.lists(MEMBERS, max_size=1),
    only=st.one_of(st.none(), st.lists(GRANTS, max_size=3).map(tuple)),
    who=PRINCIPALS,
    questions=st.lists(st.tuples(st.sampled_from(sorted(VERBS)), resource_of(NAMES)), min_size=1, max_size=8),
)
def test_a_caller_has_what_its_principal_has_and_its_credential_is_limited_to(
    grants, roles, superusers, only, who, questions
):
    caller = Caller(who, Policy(grants, roles, superusers), only=only)
    for verb, resource in (*questions, *questions):
        within = only is None or naively(
            [Grant("everyone", verbs, of) for _, verbs, of in only],
            {},
            [],
            parse_principal("token:nobody"),
            verb,
            resource,
        )
        expected = within and naively(grants, roles, superusers, who, verb, resource)
        assert caller.has(verb, resource) is caller.may(verb, resource) is expected
        assert caller.why(verb, resource).allowed is expected


@settings(max_examples=200, deadline=None)
@given(
    grants=st.lists(GRANTS, max_size=5),
    only=st.one_of(st.none(), st.lists(GRANTS, max_size=3).map(tuple)),
    given_away=GRANTS,
    asked=resource_of(NAMES),
)
def test_who_may_give_something_has_all_that_it_covers(grants, only, given_away, asked):
    caller = Caller(ETL, Policy([each._replace(subject=str(ETL)) for each in grants], {}, []), only=only)
    if caller.may_give(given_away.verbs, given_away.resource):
        for verb in VERBS:
            assert caller.has(verb, asked) or not given_away.allows(verb, asked), (verb, asked)


@settings(max_examples=200, deadline=None)
@given(
    grants=st.lists(GRANTS, max_size=6),
    roles=st.dictionaries(st.sampled_from(["r", "s"]), st.lists(MEMBERS, max_size=2)),
    superusers=st.lists(MEMBERS, max_size=1),
    only=st.one_of(st.none(), st.lists(GRANTS, max_size=3).map(tuple)),
    who=st.sampled_from(["token:a", "token:b"]),
    other=st.sampled_from(["token:a", "token:b", "token:ab"]),
    asked=st.lists(st.tuples(st.sampled_from(sorted(VERBS)), resource_of(NAMES)), min_size=1, max_size=20),
)
def test_who_may_act_as_somebody_has_all_of_their_rights(grants, roles, superusers, only, who, other, asked):
    policy = Policy(grants, roles, superusers)
    caller, principal = Caller(parse_principal(who), policy, only=only), parse_principal(other)
    if caller.may_act_as(other):
        for verb, resource in asked:
            # Those come with the credential, to who is limited as far as the limits go.
            is_own = resource == resources.transactions(principal) and caller._is_within(verb, resource)
            assert is_own or caller.has(verb, resource) or not policy.allows(principal, verb, resource), (
                verb,
                resource,
            )


@pytest.mark.parametrize("resource", ["cluster", "topic:shop:*", "transactions:token:a", "*"])
def test_many_grants_are_read_as_one_is(resource):
    read, verbs = GrantReader(), ("observe",)
    expected = [parse_grant(f"token:{name}", verbs, resource) for name in "ab"]
    assert [read(f"token:{name}", verbs, resource) for name in "ab"] == expected


def test_what_is_wrong_with_one_of_many_grants_is_told_each_time():
    read = GrantReader()
    for _ in range(2):
        with pytest.raises(InputError, match="means nothing on"):
            read("token:a", ("operate",), "topic:shop:a")
        with pytest.raises(InputError, match="no kind of principal"):
            read("nobody", ("read",), "topic:shop:a")
        with pytest.raises(InputError, match="is no resource"):
            read("token:a", ("read",), "topic:shop")
