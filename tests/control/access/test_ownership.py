"""Whose a transaction is, as a pure rule: against a naive reference, and request ids that no two principals share."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.access import ownership
from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import ANONYMOUS, Principal, internal, parse_principal
from basalt.access.refusals import Refusals
from basalt.errors import ForbiddenError, InputError
from basalt.transactions.rules.transaction import REQUEST_ID_CHARS_MAX, Belonging
from basalt_engine.clock import ManualClock

ETL, MALLORY = parse_principal("token:etl"), parse_principal("token:mallory")
PEOPLE = (ETL, MALLORY, parse_principal("token:e"), ANONYMOUS)
OWNERS = ("", "token:etl", "token:mallory", "token:e", "thrift:default")
RESOURCES = (
    "transactions:token:etl", "transactions:token:e*", "transactions:anonymous", "transactions:*", "transactions:thrift:default",
    "session:billing", "session:b*", "session:other", "*", "cluster", "topic:shop:orders", "namespace:shop",
)  # fmt: skip
VERBS = ("observe", "transact", "manage", "operate", "write")

given_rights = st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from(RESOURCES)), max_size=4)
belongings = st.none() | st.builds(
    Belonging, st.sampled_from(OWNERS), st.none() | st.sampled_from(["billing", "b", "night"])
)


def covered(pattern: str, name: str) -> bool:
    return pattern == "*" or name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))


def naive(principal: Principal, grants: list[tuple[str, str]], verb: str, whose: Belonging | None) -> bool:
    verbs = {verb, "transact"} if verb == "observe" else {verb}
    if whose is None:  # only who may act on all
        return any(given in verbs and resource in ("*", "transactions:*") for given, resource in grants)
    owner = whose.principal or "anonymous"
    if owner == str(principal):
        return True
    if any(given in verbs and covered(resource, f"transactions:{owner}") for given, resource in grants):
        return True
    session = whose.session is not None
    return session and any(
        given == "transact" and covered(resource, f"session:{whose.session}") for given, resource in grants
    )


@given(st.sampled_from(PEOPLE), given_rights, st.sampled_from(("observe", "transact")), belongings)
def test_who_may_act_is_as_the_page_says(
    principal: Principal, rights: list[tuple[str, str]], verb: str, whose: Belonging | None
):
    grants = []
    for given_verb, resource in rights:
        try:
            grants.append(parse_grant(str(principal), [given_verb], resource))
        except InputError:  # a verb that means nothing there
            continue
    meant = [(next(iter(grant.verbs)), str(grant.resource)) for grant in grants]
    caller = Caller(principal, Policy(grants))
    allowed = ownership.may_act(caller, verb, whose)
    assert allowed is naive(principal, meant, verb, whose)
    if allowed:
        ownership.must_act(caller, verb, whose, "17")
    else:
        with pytest.raises(ForbiddenError) as refused:
            ownership.must_act(caller, verb, whose, "17")
        assert refused.value.message == f"{principal} may not {verb} transaction 17"


@pytest.mark.parametrize("whose", [None, Belonging("token:etl", None), Belonging("", "billing")])
def test_parts_of_the_server_superusers_and_everybody_where_nobody_is_judged_act_on_all(whose: Belonging | None):
    for caller in (
        Caller(internal("jobs"), Policy()), Caller(MALLORY, Policy(superusers=[str(MALLORY)])), Caller(MALLORY, None),
    ):  # fmt: skip
        assert ownership.may_act(caller, "transact", whose)


def test_a_refusal_is_noted_once_and_by_whose_it_is():
    refusals = Refusals(ManualClock(), enforced=True)
    caller = Caller(MALLORY, Policy(), refusals=refusals)
    for whose in (Belonging("token:etl", "billing"), Belonging("", None), None):
        with pytest.raises(ForbiddenError):
            ownership.must_act(caller, "transact", whose, "17")
    noted = {(each.verb, each.resource, each.count) for each in refusals.newest(9)}
    assert noted == {
        ("transact", "transactions:token:etl", 1), ("transact", "transactions:anonymous", 1), ("transact", "transactions:*", 1),
    }  # fmt: skip


def test_nothing_is_noted_of_what_a_session_allows():
    refusals = Refusals(ManualClock(), enforced=False)
    grants = [parse_grant(str(MALLORY), ["transact"], "session:billing")]
    assert ownership.may_act(
        Caller(MALLORY, Policy(grants), refusals=refusals), "transact", Belonging("token:etl", "billing")
    )
    assert refusals.newest(9) == []


request_ids = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"), min_size=1, max_size=20
)
proved = st.builds(Principal, st.sampled_from(["token", "jwt"]), request_ids)


@given(st.lists(st.tuples(proved, request_ids), min_size=2, max_size=6, unique=True))
def test_no_two_principals_share_a_request_id(asked: list[tuple[Principal, str]]):
    own = [ownership.own_request_id(Caller(principal, Policy()), request_id) for principal, request_id in asked]
    assert len(set(own)) == len(asked)
    assert all(each is not None and len(each) == 64 for each in own)


def test_where_one_principal_ends_and_its_id_begins_is_told_apart():
    pairs = [("a", "bc"), ("ab", "c"), ("abc", "")]
    made = {ownership.own_request_id(Caller(Principal("token", name), Policy()), f"{rest}x") for name, rest in pairs}
    assert len(made) == len(pairs)


def test_ids_of_nobody_in_particular_stay_as_they_are():
    for caller, given_id in product(
        (Caller(ANONYMOUS, None), Caller(ANONYMOUS, Policy()), Caller(ETL, None)), ("r", None)
    ):
        assert ownership.own_request_id(caller, given_id) == given_id
    assert ownership.own_request_id(Caller(ETL, Policy()), None) is None


@pytest.mark.parametrize("request_id", ["", "two\nlines", "x" * (REQUEST_ID_CHARS_MAX + 1)])
def test_an_id_that_a_client_may_not_give_is_refused_before_it_is_hashed(request_id: str):
    with pytest.raises(InputError):
        ownership.own_request_id(Caller(ETL, Policy()), request_id)
