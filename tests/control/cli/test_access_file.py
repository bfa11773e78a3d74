"""The file of `basalt access`: how it is read and written, and the order of what is to be done for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.access import GrantInfo, QuotaRule, RoleInfo, SubjectQuota, TokenInfo
from basalt.cli.commands.access.access_file import AccessFile, Granted, compose, parse, steps
from basalt.errors import InputError

NOBODY = AccessFile({}, frozenset())
VERBS = ("observe", "read", "write", "manage", "inspect", "grant")
NAMES = [f"token:{name}" for name in "abcdef"]
MEMBERS = st.sampled_from(NAMES)
GRANTS = st.builds(
    lambda subject, verbs, topic: Granted(subject, tuple(sorted(verbs)), topic),
    st.sampled_from(["token:a", "role:x", "role:y", "everyone"]),
    st.sets(st.sampled_from(VERBS), min_size=1),
    st.sampled_from(["topic:shop:orders", "topic:shop:p*", "namespace:shop"]),
)
LIMITS = st.one_of(st.just("off"), st.integers(1, 10**12))
RULES = st.builds(
    lambda limits: QuotaRule(**limits),
    st.dictionaries(st.sampled_from(QuotaRule.__struct_fields__), LIMITS, min_size=1),
)
FILES = st.builds(
    AccessFile,
    st.dictionaries(st.sampled_from(["x", "y", 'says "no" \\'] ), st.frozensets(MEMBERS)),
    st.frozensets(GRANTS),
    st.dictionaries(st.sampled_from([*NAMES, "everyone", "role:x"]), RULES),
)  # fmt: skip


def infos(file: AccessFile) -> tuple[list[RoleInfo], list[GrantInfo], list[SubjectQuota]]:
    """The same as a server tells it."""
    roles = [RoleInfo(name, tuple(sorted(members)), 0, "token:bootstrap") for name, members in file.roles.items()]
    grants = [GrantInfo(f"id of {each}", *each, 0, "token:bootstrap", None, ()) for each in file.grants]
    quotas = [SubjectQuota(subject, rule, 0, "token:bootstrap") for subject, rule in file.quotas.items()]
    return roles, grants, quotas


def rights(roles: dict[str, frozenset[str]], grants: set[Granted]) -> dict[str, set[tuple[str, str]]]:
    """The rights of each member, by its own name and by its roles."""
    found: dict[str, set[tuple[str, str]]] = {}
    for member in NAMES:
        subjects = {member, "everyone", *(f"role:{name}" for name, members in roles.items() if member in members)}
        found[member] = {(verb, each.resource) for each in grants if each.subject in subjects for verb in each.verbs}
    return found


@given(FILES)
def test_what_is_written_is_read_as_it_was(file: AccessFile):
    assert parse(compose(*infos(file), [])) == file


@given(FILES, FILES, st.booleans())
def test_the_steps_make_it_so_and_give_nobody_rights_that_they_have_neither_before_nor_after(present, wanted, prune):
    roles, grants, quotas = dict(present.roles), set(present.grants), dict(present.quotas)
    before, seen = rights(roles, grants), []
    for step in steps(wanted, *infos(present), prune=prune):
        if step.act == "set role":
            roles[step.name] = step.members
        elif step.act == "remove role":
            del roles[step.name]
        elif step.act == "set quota":
            quotas[step.name] = step.rule
        elif step.act == "remove quota":
            del quotas[step.name]
        elif step.act == "add grant":
            grants.add(step.grant)
        else:
            assert step.name == f"id of {step.grant}"
            grants.remove(step.grant)
        seen.append(rights(roles, grants))
    assert wanted.grants <= grants
    assert wanted.roles.items() <= roles.items()
    assert wanted.quotas.items() <= quotas.items()
    if prune:
        assert (roles, grants, quotas) == (dict(wanted.roles), set(wanted.grants), dict(wanted.quotas))
    after = rights(roles, grants)
    for between in seen:
        for member, found in between.items():
            assert found <= before[member] | after[member]


def test_a_file_that_is_as_it_should_be_needs_no_step():
    file = AccessFile({"x": frozenset({"token:a"})}, frozenset({Granted("role:x", ("read",), "namespace:shop")}))
    assert list(steps(file, *infos(file), prune=True)) == []
    assert list(steps(NOBODY, *infos(file), prune=False)) == []


def test_tokens_are_told_without_logins_and_those_that_count_no_more():
    def token(number: int, state: str = "active", parent: str = "") -> TokenInfo:
        return TokenInfo(f"{number:016x}", "token:etl", state, 0, None, "token:bootstrap", "n", (), None, parent)

    text = compose([], [], [], [token(1), token(2, "revoked"), token(3, "expired"), token(4, parent="x")])
    assert [number for number in range(1, 5) if f'id = "{number:016x}"' in text] == [1]
    assert parse(text) == NOBODY


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "it is not TOML"),
        ("users = 1", "it has 'users', which is none of roles, grants, quotas, tokens"),
        ("roles = []", "roles and quotas are to be tables"),
        ("quotas = []", "roles and quotas are to be tables"),
        ("[quotas]\n'token:a' = 5", "quotas of 'token:a' are not a whole number"),
        ("[quotas.'token:a']", "quotas of 'token:a' are not a whole number"),
        ("[quotas.'token:a']\nflights = 5", "quotas of 'token:a' are not a whole number"),
        ("[quotas.'token:a']\ntopics = true", "quotas of 'token:a' are not a whole number"),
        ("[quotas.'token:a']\ntopics = '5'", "quotas of 'token:a' are not a whole number"),
        ("[quotas.'nobody']\ntopics = 5", "no kind of principal or group"),
        ("grants = {}", "and grants a list of tables"),
        ("[roles]\nx = 'token:a'", "role 'x' is no list"),
        ("[roles]\nx = [1]", "role 'x' is no list"),
        ("[roles]\nx = ['role:y']", "no kind of principal or group"),
        ("[roles]\n' x' = []", "is no name of a principal, group or role"),
        ("[[grants]]\nsubject = 'everyone'", "grant 1: it has other keys"),
        ("[[grants]]\nsubject = 'everyone'\nverbs = 'read'\nresource = '*'", "grant 1: subject and resource are text"),
        ("[[grants]]\nsubject = 'everyone'\nverbs = ['fly']\nresource = '*'", "grant 1: there is no verb"),
        ("[[grants]]\nsubject = 'everyone'\nverbs = ['operate']\nresource = 'namespace:shop'", "grant 1: operate means nothing"),
        ("[[grants]]\nsubject = 'internal:x'\nverbs = ['read']\nresource = '*'", "grant 1: 'internal:x' needs no grants"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named(text, says):
    with pytest.raises(InputError) as raised:
        parse(text)
    assert says in raised.value.message
