"""Tokens: a text that can be found where it leaked, a row that helps nobody, and what counts."""

from __future__ import annotations

import hashlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from basalt.access.proofs.token import (
    bootstrap_digest,
    check_network,
    draw_token,
    is_bootstrap,
    parse_network,
    prove_token,
    read_token,
)
from basalt.access.records import Rights, TokenRow
from basalt.errors import InputError, UnauthenticatedError

NOW_MS = 1_000_000
TOKEN = draw_token()
ROW = TokenRow("token:etl", TOKEN.digest, 0, 2_000_000)


def prove(text=TOKEN.text, rows=None, *, now_ms=NOW_MS, not_before_ms=0, address="192.0.2.7"):
    rows = {TOKEN.id: ROW} if rows is None else rows
    return prove_token(read_token(text), rows, now_ms=now_ms, not_before_ms=not_before_ms, address=address)


def refused(**given_) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        prove(**given_)
    return caught.value.message


def test_a_token_says_what_it_is_and_ends_in_its_checksum():
    text = "basalt_00112233445566ff_" + "A" * 43
    text = f"{text}_{crc32c(text.encode()):08x}"
    assert text.endswith("_5b3a7b36") or len(text) == 76
    assert read_token(text) == ("00112233445566ff", hashlib.sha256(b"A" * 43).hexdigest())


def test_what_the_store_keeps_is_no_token():
    assert TOKEN.digest not in TOKEN.text
    assert TOKEN.text.split("_", 2)[2][:43] not in repr(ROW)
    assert len({draw_token().text for _ in range(100)}) == 100


@given(st.text(max_size=100) | st.binary(max_size=90).map(lambda data: data.decode("latin-1")))
def test_no_other_text_is_a_token(text):
    with pytest.raises(UnauthenticatedError):
        read_token(text)


@given(st.integers(0, len(TOKEN.text) - 1), st.characters(codec="latin-1"))
def test_a_token_with_one_character_changed_is_none(place, char):
    changed = TOKEN.text[:place] + char + TOKEN.text[place + 1 :]
    if changed != TOKEN.text:
        assert refused(text=changed) == "the credential is invalid"


def test_a_token_stands_for_its_principal_until_it_expires():
    proof = prove()
    assert (str(proof.principal), proof.credential, proof.until_ms, proof.only) == (
        "token:etl", f"token {TOKEN.id}", 2_000_000, None,
    )  # fmt: skip
    assert prove(now_ms=1_999_999).until_ms == 2_000_000
    assert refused(now_ms=2_000_000) == "the token is expired"
    assert prove(rows={TOKEN.id: replace(ROW, expire_ms=None)}, now_ms=1 << 50).until_ms is None


def test_a_token_that_nobody_has_and_one_with_another_secret_are_refused_alike():
    other = draw_token()
    assert (
        refused(rows={}) == refused(rows={TOKEN.id: replace(ROW, digest=other.digest)}) == "the credential is invalid"
    )


def test_who_does_not_have_the_secret_does_not_learn_that_the_token_is_over():
    over = replace(ROW, digest=draw_token().digest, revoked_ms=1)
    assert refused(rows={TOKEN.id: over}) == "the credential is invalid"


def test_a_revoked_token_and_one_from_before_what_counts_are_revoked():
    assert refused(rows={TOKEN.id: replace(ROW, revoked_ms=5)}) == "the token is revoked"
    assert refused(not_before_ms=1) == "the token is revoked"
    assert prove(rows={TOKEN.id: replace(ROW, created_ms=1)}, not_before_ms=1)


@pytest.mark.parametrize(
    ("networks", "address", "counts"),
    [
        ((), None, True),
        (("192.0.2.0/24",), "192.0.2.7", True),
        (("192.0.2.0/24",), "::ffff:192.0.2.7", True),
        (("192.0.2.0/24",), "192.0.3.7", False),
        (("192.0.2.0/24",), "2001:db8::1", False),
        (("2001:db8::/32", "192.0.2.9/32"), "2001:db8::1", True),
        (("192.0.2.0/24",), None, False),
        (("0.0.0.0/0",), "not an address", False),
    ],
)
def test_a_token_counts_from_its_networks_alone(networks, address, counts):
    rows = {TOKEN.id: replace(ROW, networks=networks)}
    if counts:
        assert prove(rows=rows, address=address)
    else:
        assert refused(rows=rows, address=address) == "the credential is invalid"
        with pytest.raises(UnauthenticatedError):
            check_network(networks, address)


def test_what_is_no_network_is_told():
    assert [parse_network(text) for text in ("10.0.0.0/8", "192.0.2.7", "2001:db8::/32")] == [
        "10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32",
    ]  # fmt: skip
    for text in ("", "10.0.0.1/8", "host", "10.0.0.0/33"):
        with pytest.raises(InputError, match="is no network"):
            parse_network(text)


def test_a_login_ends_with_the_token_that_it_was_made_with():
    parent = draw_token()
    login = replace(ROW, parent=parent.id, parent_is_token=True, groups=("jwt-group:data",))
    rows = {TOKEN.id: login, parent.id: replace(ROW, digest=parent.digest, expire_ms=1_500_000)}
    proof = prove(rows=rows)
    assert (proof.credential, proof.until_ms, proof.principal.groups) == (
        f"login {TOKEN.id}",
        1_500_000,
        {"jwt-group:data"},
    )
    assert refused(rows=rows, now_ms=1_500_000) == "the token is expired"
    assert refused(rows={**rows, parent.id: replace(ROW, revoked_ms=1)}) == "the token is revoked"
    assert "revoked" in refused(rows={TOKEN.id: login})
    assert refused(rows={**rows, parent.id: replace(ROW, networks=("10.0.0.0/8",))}) == "the credential is invalid"


def test_a_token_may_be_limited_to_some_rights():
    (grant,) = prove(rows={TOKEN.id: replace(ROW, only=(Rights(("read",), "topic:shop:or*"),))}).only
    assert (grant.verbs, str(grant.resource)) == ({"read"}, "topic:shop:or*")


def test_the_token_of_the_settings_has_any_form():
    digest = bootstrap_digest("b" * 40)
    assert is_bootstrap("b" * 40, digest)
    assert not is_bootstrap("b" * 41, digest)


@pytest.mark.parametrize("same", [8, 32, 63])
def test_a_secret_whose_hash_only_begins_like_the_right_one_is_invalid(same):
    digest = TOKEN.digest[:same] + "".join("0" if each != "0" else "1" for each in TOKEN.digest[same:])
    assert refused(rows={TOKEN.id: replace(ROW, digest=digest)}) == "the credential is invalid"
    assert not is_bootstrap("x" * 40, bootstrap_digest("x" * 40)[:same] + "!" * (64 - same))


def test_a_secret_is_compared_in_the_same_time_whether_there_is_such_a_token_or_not(monkeypatch):
    compared = []

    def compare(given, right):
        compared.append((len(given), len(right)))
        return given == right

    monkeypatch.setattr("basalt.access.proofs.token.hmac.compare_digest", compare)
    refused(rows={TOKEN.id: replace(ROW, digest="0" * 64)})
    with pytest.raises(UnauthenticatedError):
        prove_token(read_token(TOKEN.text), {}, now_ms=0, not_before_ms=0, address=None)
    assert not is_bootstrap("x", "0" * 64)
    assert compared == [(64, 64)] * 3
