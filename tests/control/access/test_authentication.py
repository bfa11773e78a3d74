"""Authentication: one credential counts, is verified once, and holds until something changes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from basalt.access import authentication as module
from basalt.access.authentication import Authentication, AuthenticationRules
from basalt.access.directory import Directory
from basalt.access.failed_proofs import FAILED_PER_S_MAX
from basalt.access.principal import ANONYMOUS, parse_principal
from basalt.access.proofs.token import TOKEN_BYTES_MAX, bootstrap_digest, draw_token
from basalt.access.quotas import HELD_MS
from basalt.access.records import TokenRow
from basalt.access.refusals import Refusals
from basalt.errors import AuthenticationUnavailableError, ThrottledError, UnauthenticatedError
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore

ROOT = "r" * 40


class World:
    """A server's authentication over an empty store."""

    def __init__(self, **rules) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.directory = Directory(self.store, self.clock, ())
        self.refusals = Refusals(self.clock, enforced=True)
        given = {"kinds": frozenset({"token"}), "bootstrap_digest": bootstrap_digest(ROOT), **rules}
        self.authentication = Authentication(AuthenticationRules(**given), self.directory, self.refusals, self.clock)

    def ask(self, token: str | None = None, address: str = "192.0.2.7", **headers: str):
        sent = {name.encode(): value.encode() for name, value in headers.items()}
        if token is not None:
            sent[b"authorization"] = f"Bearer {token}".encode()
        return self.authentication.identify(sent, address, self.clock.monotonic_ms())

    def token(self, **more) -> str:
        new = draw_token()
        row = TokenRow(**{"principal": "token:etl", "digest": new.digest, "created_ms": 0, "expire_ms": None, **more})
        asyncio.run(self.directory.add_token(new.id, row))
        return new.text


@pytest.fixture
def world() -> World:
    return World()


def test_a_credential_is_verified_once_and_again_when_anything_changes(world):
    token = world.token()
    first = world.ask(token)
    assert world.ask(token) is first
    assert world.authentication.counts == {("token", "accepted"): 1}
    world.token()
    assert world.ask(token) is not first
    assert world.authentication.counts == {("token", "accepted"): 2}


def test_what_was_found_holds_until_the_credential_ends_whatever_the_wall_clock_does(world):
    token = world.token(expire_ms=world.clock.now_ms() + 60_000)
    found = world.ask(token)
    assert found.until_ms == 60_000
    world.clock.step(world.clock.now_ms() - 3_600_000)
    assert world.ask(token) is found
    world.clock.step(world.clock.now_ms() + 3_600_000)
    world.clock.advance(60_000)
    with pytest.raises(UnauthenticatedError, match="expired"):
        world.ask(token)


def test_a_token_of_certain_networks_is_looked_at_again_for_each_address(world):
    token = world.token(networks=("192.0.2.0/24",))
    assert world.ask(token)
    with pytest.raises(UnauthenticatedError):
        world.ask(token, address="198.51.100.1")


def test_of_very_many_credentials_all_are_forgotten_at_once(world, monkeypatch):
    monkeypatch.setattr(module, "CALLERS_MAX", 3)
    for number in range(10):
        world.ask(None, **{"x-forwarded-user": str(number)}) if number else world.ask(ROOT)
        assert len(world.authentication._callers) <= 3


def test_a_longer_credential_than_there_is_is_not_looked_at(world):
    with pytest.raises(UnauthenticatedError):
        world.ask("x" * (TOKEN_BYTES_MAX + 1))


def test_nobody_is_let_in_who_is_not_known_yet_while_rows_cannot_be_read(world):
    token = world.token()
    known = world.ask(ROOT)
    world.store.remote = True
    world.directory._is_shared = True
    world.clock.advance(60_001)
    assert world.ask(ROOT) is known
    with pytest.raises(AuthenticationUnavailableError, match="for 60 s"):
        world.ask(token)


def test_the_answer_names_the_ways_to_prove_who_one_is():
    for kinds, expected in (
        ({"token"}, ('Bearer realm="basalt"',)),
        ({"kerberos"}, ("Negotiate",)),
        ({"jwt", "kerberos"}, ('Bearer realm="basalt"', "Negotiate")),
        ({"cert"}, ()),
    ):
        world = World(kinds=frozenset(kinds), bootstrap_digest=None)
        with pytest.raises(UnauthenticatedError) as caught:
            world.ask("x")
        assert caught.value.challenges == expected == world.authentication.missing(None, 0.0).challenges


def test_a_token_is_no_credential_where_tokens_are_not_a_kind():
    world = World(kinds=frozenset({"cert"}))
    token = world.token()
    for each in (token, ROOT):
        with pytest.raises(UnauthenticatedError, match="invalid"):
            world.ask(each)


def test_a_login_counts_whatever_kind_it_was_made_with():
    world = World(kinds=frozenset({"cert"}))
    login = world.token(principal="cert:CN=etl", parent="serial 1")
    assert str(world.ask(login).caller.principal) == "cert:CN=etl"


def test_two_names_that_are_no_utf_8_do_not_become_one():
    world = World(kinds=frozenset({"token", "proxy"}), proxies=frozenset({"token:bootstrap"}))
    from basalt.errors import InputError

    headers = {b"authorization": f"Bearer {ROOT}".encode(), b"x-forwarded-user": b"al\xffice"}
    with pytest.raises(InputError, match="no UTF-8"):
        world.authentication.identify(headers, None, 0)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=120).map(lambda secret: b"Bearer " + secret))
def test_whatever_is_sent_as_a_credential_is_refused_in_the_same_words(sent):
    world = World()
    with pytest.raises(UnauthenticatedError, match=r"^the credential is invalid$"):
        world.authentication.identify({b"authorization": sent}, None, 0)
    assert world.authentication._callers == {}


def test_a_secret_that_shares_all_but_its_end_with_the_right_one_is_invalid(world):
    from crc32c import crc32c

    token = world.token()
    for cut in (1, 10, 40):
        body = token.rpartition("_")[0]
        changed = body[:-cut] + "".join("A" if each != "A" else "B" for each in body[-cut:])
        with pytest.raises(UnauthenticatedError, match="invalid"):
            world.ask(f"{changed}_{crc32c(changed.encode()):08x}")
    for cut in (1, 20, 39):
        with pytest.raises(UnauthenticatedError, match="invalid"):
            world.ask(ROOT[:-cut] + "x" * cut)
        with pytest.raises(UnauthenticatedError, match="invalid"):
            world.ask(ROOT[:-cut])


# Bad credentials.


def test_an_address_that_sends_bad_credentials_is_not_verified_for_a_while_and_known_good_ones_are(world):
    token = world.token()
    world.ask(token)
    for number in range(2 * FAILED_PER_S_MAX):
        with pytest.raises(UnauthenticatedError):
            world.ask(draw_token().text if number % 2 else "nonsense")
    for bad in (draw_token().text, "nonsense", world.token()):  # of the last one nobody here knows yet that it is good
        with pytest.raises(ThrottledError) as told:
            world.ask(bad)
    assert world.authentication.counts["token", "refused"] == 2 * FAILED_PER_S_MAX
    assert world.authentication.failed.throttled_total == 3
    world.ask(token)  # though it is verified anew: a token was made
    assert world.ask(bad, address="192.0.2.8").caller.principal == parse_principal("token:etl")
    world.clock.advance(told.value.retry_after_ms)
    assert world.ask(bad) is not None


def test_a_known_credential_that_is_revoked_is_one_of_the_bad_ones(world):
    token = world.token()
    world.ask(token)
    (token_id,) = world.directory.entries.tokens
    row = replace(world.directory.token(token_id), revoked_ms=world.clock.now_ms())
    asyncio.run(world.directory.change_token(token_id, row))
    for _ in range(2 * FAILED_PER_S_MAX):
        with pytest.raises(UnauthenticatedError):
            world.ask(token)
    with pytest.raises(ThrottledError):
        world.ask(token)


def test_who_sends_no_credential_is_not_counted_as_one_who_sends_bad_ones(world):
    for _ in range(10 * FAILED_PER_S_MAX):
        world.ask()
    world.ask(world.token())
    assert len(world.authentication.failed) == 0


def test_calls_without_a_credential_are_told_at_once_until_too_many_come_and_keep_no_good_one_waiting(world):
    missing = [world.authentication.missing("192.0.2.7", 0.0).held_ms for _ in range(3 * FAILED_PER_S_MAX)]
    assert missing == [0] * 2 * FAILED_PER_S_MAX + [HELD_MS] * FAILED_PER_S_MAX
    assert world.authentication.missing("192.0.2.8", 0.0).held_ms == 0
    assert world.authentication.missing("192.0.2.7", 1.0).held_ms == 0  # what was kept back costs no more
    world.ask(world.token())


def test_where_rights_are_not_enforced_a_throttled_credential_is_as_none(world):
    world.refusals.enforced = False
    for _ in range(3 * FAILED_PER_S_MAX):
        assert world.ask("nonsense").caller.principal == ANONYMOUS
    assert world.authentication.failed.throttled_total == FAILED_PER_S_MAX
