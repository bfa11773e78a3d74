"""Who asks: names that mean one principal each, and no other one to a person who reads them."""

from __future__ import annotations

import pytest

from basalt.access.principal import (
    ANONYMOUS,
    NAME_CHARS_MAX,
    Principal,
    check_member,
    check_subject,
    internal,
    parse_principal,
)
from basalt.errors import InputError

GOOD = [
    "token:etl", "jwt:alice@example.org", "cert:CN=etl,OU=data", "cert:spiffe://example.org/etl", "krb:alice@EXAMPLE.ORG",
    "proxy:alice", "thrift:default", "internal:jobs", "token:Zoë", "token:two words", "token:" + "n" * NAME_CHARS_MAX,
]  # fmt: skip
BAD_NAMES = [
    "", " etl", "etl ", "n" * (NAME_CHARS_MAX + 1), "a\nb", "a\0b", "a\tb", "ab\u202ecba", "a\u2066b", "a\u061cb", "a\u200bb", "a\u00a0",
]  # fmt: skip


@pytest.mark.parametrize("text", [*GOOD, "anonymous"])
def test_a_principal_is_read_and_written_alike(text: str):
    assert str(parse_principal(text)) == text


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_pass_for_another_is_refused(name: str):
    with pytest.raises(InputError, match="no name of a principal"):
        Principal("token", name)
    with pytest.raises(InputError, match="no name of a principal"):
        Principal("token", "etl", frozenset((f"jwt-group:{name}",)))
    with pytest.raises(InputError):
        check_subject(f"role:{name}")


@pytest.mark.parametrize(
    "text", ["etl", "user:etl", "", ":etl", "Token:etl", "role:readers", "jwt-group:a", "everyone"]
)
def test_a_kind_says_how_the_name_was_proved_so_there_are_no_others(text: str):
    with pytest.raises(InputError, match="no kind of principal"):
        parse_principal(text)


def test_anonymous_has_no_name_and_nobody_can_take_it():
    assert parse_principal("anonymous") == ANONYMOUS
    with pytest.raises(InputError):
        parse_principal("anonymous:etl")


def test_a_principal_is_in_groups_of_identity_providers_alone():
    assert Principal("jwt", "alice", frozenset(("jwt-group:data",))).groups == {"jwt-group:data"}
    with pytest.raises(InputError, match="no kind of group"):
        Principal("jwt", "alice", frozenset(("role:admins",)))


def test_names_are_not_folded():
    assert parse_principal("krb:alice@EXAMPLE.ORG") != parse_principal("krb:alice@example.org")
    composed, decomposed = "token:Zo\u00eb", "token:Zoe\u0308"
    assert parse_principal(composed) != parse_principal(decomposed)


@pytest.mark.parametrize("text", ["token:etl", "jwt-group:data", "role:readers", "everyone", "anonymous"])
def test_subjects_of_grants(text: str):
    assert check_subject(text) == text


def test_a_part_of_the_server_is_no_subject_for_it_needs_no_grants():
    with pytest.raises(InputError, match="may do everything"):
        check_subject(str(internal("jobs")))


@pytest.mark.parametrize("text", ["role:readers", "everyone", "nobody:a"])
def test_a_role_has_principals_and_groups_as_members_and_no_roles(text: str):
    with pytest.raises(InputError, match="no kind of principal or group"):
        check_member(text)
