"""Tokens of an identity provider: which prove who calls, and each way in which one could pass for what it is not."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt as library
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.access.principal import Principal
from basalt.access.proofs import jwt
from basalt.access.proofs.jwks import ALGORITHMS, ASK_MS_MIN, REFRESH_MS, STALE_MS_MAX, parse_key_set
from basalt.access.proofs.jwt import TIME_S_MAX, TOKEN_BYTES_MAX, TOKEN_ID_CHARS_MAX, VERIFIED_MS_MAX, Jwts
from basalt.access.proofs.proof import Proof
from basalt.errors import AuthenticationUnavailableError, UnauthenticatedError
from basalt_engine.clock import ManualClock
from tests.control.access.proofs.identity_provider import (
    ISSUER,
    claims,
    jwt_settings,
    key_set,
    private_key,
    public_jwk,
    segment,
    serving,
    signed,
    signed_bytes,
)

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1_000
LEEWAY_S = 30
HEAD = {"alg": "RS256", "kid": "a"}
PUBLISHED = key_set(*(public_jwk(private_key(each), each.lower()) for each in sorted(ALGORITHMS)), public_jwk())


class _Tokens(Jwts):
    """Tokens whose keys were read once, at `NOW_MS`."""

    def __init__(self, folder: Path, published: bytes = PUBLISHED, **changed: Any) -> None:
        self.clock = ManualClock(NOW_MS)
        self.file = folder / "keys.json"
        super().__init__(jwt_settings(str(self.file), **changed), self.clock)
        self.publish(published)

    def publish(self, published: bytes) -> None:
        self.file.write_bytes(published)
        asyncio.run(self.jwks.read())

    def whose(self, token: str) -> str:
        return str(self.prove(token, self.clock.now_ms()).principal)

    def refuse(self, token: str, why: str | None = None) -> str:
        with pytest.raises(UnauthenticatedError, match=why) as raised:
            self.prove(token, self.clock.now_ms())
        assert raised.value.__cause__ is None
        assert raised.value.message.startswith(("the token is invalid: ", "the token is expired"))
        return raised.value.message


@pytest.fixture
def tokens(tmp_path: Path) -> _Tokens:
    return _Tokens(tmp_path)


def good(**changed: object) -> str:
    return signed(claims(NOW_MS, **changed))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_token_proves_whose_it_is(tokens: _Tokens, algorithm: str):
    token = signed(claims(NOW_MS), key=private_key(algorithm), algorithm=algorithm, kid=algorithm.lower())
    proof = tokens.prove(token, NOW_MS)
    assert proof == Proof(
        Principal("jwt", "alice@example.org"),
        f"jwt {ISSUER}",
        NOW_MS + 330_000,
        check_again_ms=NOW_MS + VERIFIED_MS_MAX,
    )


def test_its_name_and_its_groups_come_from_the_claims_that_the_settings_name(tmp_path):
    tokens = _Tokens(tmp_path, principal_claim="preferred_username", groups_claim="groups")
    proof = tokens.prove(good(preferred_username="Zoë", groups=["data", "on call"], jti="b7"), NOW_MS)
    assert proof.principal == Principal("jwt", "Zoë", frozenset(("jwt-group:data", "jwt-group:on call")))
    assert proof.credential == "jwt b7"
    assert tokens.prove(good(preferred_username="a", groups="one"), NOW_MS).principal.groups == {"jwt-group:one"}
    assert tokens.prove(good(preferred_username="a"), NOW_MS).principal.groups == frozenset()


@pytest.mark.parametrize("jti", ["", "a\nb", "a" * (TOKEN_ID_CHARS_MAX + 1), 17, ["a"], "\u202ea"])
def test_an_id_that_would_spoil_the_audit_is_left_out_of_it(tokens: _Tokens, jti: object):
    assert tokens.prove(good(jti=jti), NOW_MS).credential == f"jwt {ISSUER}"
    assert tokens.prove(good(jti="a" * TOKEN_ID_CHARS_MAX), NOW_MS).credential == "jwt " + "a" * TOKEN_ID_CHARS_MAX


def test_groups_mean_nothing_where_the_settings_name_no_claim(tokens: _Tokens):
    assert tokens.prove(good(groups=["admins"]), NOW_MS).principal.groups == frozenset()


def test_one_of_several_audiences_is_enough(tokens: _Tokens):
    assert tokens.whose(good(aud=["account", "basalt"])) == "jwt:alice@example.org"


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", "", None])
def test_a_token_of_these_types_is_an_access_token(tokens: _Tokens, typ: str | None):
    assert tokens.whose(signed(claims(NOW_MS), header={"typ": typ}))


PUBLIC_PEM = private_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
PUBLIC_DER = private_key().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
STRANGER = rsa.generate_private_key(65_537, 2_048)


def hmac_signed(secret: bytes, **header: object) -> str:
    head = f"{segment({'alg': 'HS256', 'typ': 'JWT', 'kid': 'a', **header})}.{segment(claims(NOW_MS))}"
    algorithm = library.algorithms.HMACAlgorithm(library.algorithms.HMACAlgorithm.SHA256)
    return f"{head}.{segment(algorithm.sign(head.encode(), secret))}"


def unsigned(**header: object) -> str:
    return f"{segment({'alg': 'none', **header})}.{segment(claims(NOW_MS))}."


def swapped(token: str, part: int, value: object) -> str:
    parts = token.split(".")
    parts[part] = value if isinstance(value, str) else segment(value)
    return ".".join(parts)


FORGED: dict[str, Callable[[], str]] = {
    "not signed": unsigned,
    "not signed, with the id of a key": lambda: unsigned(kid="a"),
    "none, with a signature": lambda: swapped(good(), 0, {"alg": "none", "kid": "a"}),
    "None": lambda: swapped(good(), 0, {"alg": "None", "kid": "a"}),
    "HS256 by the public key as text": lambda: hmac_signed(PUBLIC_PEM),
    "HS256 by the public key as bytes": lambda: hmac_signed(PUBLIC_DER),
    "HS256 by nothing": lambda: hmac_signed(b""),
    "RS256 in the head of a keyed hash": lambda: hmac_signed(PUBLIC_PEM, alg="RS256"),
    "signed by a stranger": lambda: signed(claims(NOW_MS), key=STRANGER),
    "with the stranger's key in it": lambda: signed(
        claims(NOW_MS), key=STRANGER, header={"jwk": public_jwk(STRANGER, "a")}
    ),
    "with the stranger's address": lambda: signed(
        claims(NOW_MS), key=STRANGER, header={"jku": "https://evil.example/keys", "x5u": "https://evil.example/x5"}
    ),
    "with the stranger's certificate": lambda: signed(
        claims(NOW_MS), key=STRANGER, header={"x5c": [base64.b64encode(PUBLIC_DER).decode()]}
    ),
    "an algorithm that the key is not for": lambda: signed(
        claims(NOW_MS), key=private_key("ES256"), algorithm="ES256", kid="a"
    ),
    "an algorithm that nobody uses here": lambda: signed(claims(NOW_MS), key=private_key(), algorithm="RS512"),
    "a curve of coins": lambda: signed(
        claims(NOW_MS), key=ec.generate_private_key(ec.SECP256K1()), algorithm="ES256K", kid="es256"
    ),
    "Ed448": lambda: signed(claims(NOW_MS), key=ed448.Ed448PrivateKey.generate(), algorithm="EdDSA", kid="eddsa"),
    "an elliptic signature of zeros": lambda: swapped(
        signed(claims(NOW_MS), key=private_key("ES256"), algorithm="ES256", kid="es256"), 2, bytes(64)
    ),
    "an empty signature": lambda: good().rpartition(".")[0] + ".",
    "no signature": lambda: good().rpartition(".")[0],
    "a signature cut": lambda: good()[:-4],
    "other claims": lambda: swapped(good(), 1, claims(NOW_MS, sub="root")),
    "another head": lambda: swapped(good(), 0, {"alg": "RS256", "kid": "a", "typ": "JWT", "x": 1}),
    "five parts, as encrypted": lambda: good() + ".a.b",
    "four parts": lambda: good() + ".a",
    "its own bytes with padding": lambda: good() + "=",
    "a line end behind it": lambda: good() + "\n",
    "a space before it": lambda: " " + good(),
    "letters that look alike": lambda: good().replace("e", "е"),  # noqa: RUF001  # Cyrillic
    "nothing": lambda: "",
    "dots": lambda: "..",
    "a token of ours": lambda: "basalt_0123456789abcdef_" + "a" * 43 + "_00000000",
    "a lone surrogate": lambda: good() + "\ud800",
    "no alg": lambda: swapped(good(), 0, {"kid": "a"}),
    "alg that is no text": lambda: swapped(good(), 0, {"alg": ["RS256"], "kid": "a"}),
    "a kid that is no text": lambda: swapped(good(), 0, {"alg": "RS256", "kid": {"a": 1}}),
    "a kid that is a path": lambda: signed(claims(NOW_MS, iat=None), kid="../../dev/null"),
    "a kid that is a question": lambda: signed(claims(NOW_MS, iat=None), kid="a' or '1'='1"),
    "no kid, and several keys": lambda: signed(claims(NOW_MS), kid=None),
    "a list as head": lambda: swapped(good(), 0, ["RS256"]),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_token_is_refused(tokens: _Tokens, forge: Callable[[], str]):
    tokens.refuse(forge())


SIGNED_BUT_BAD: dict[str, tuple[str, Callable[[], str]]] = {
    "of another issuer": ("another issuer", lambda: good(iss="https://idp.example/realms/other")),
    "of an issuer with a slash more": ("another issuer", lambda: good(iss=f"{ISSUER}/")),
    "of no issuer": ("another issuer", lambda: good(iss=None)),
    "of a list of issuers": ("another issuer", lambda: signed_bytes(HEAD, claims(NOW_MS, iss=[ISSUER]))),
    "for another audience": ("another audience", lambda: good(aud="billing")),
    "for audiences that are not this one": ("another audience", lambda: good(aud=["billing", "basalt2", "BASALT"])),
    "for no audience": ("another audience", lambda: good(aud=None)),
    "for an empty list": ("another audience", lambda: good(aud=[])),
    "for an object": ("another audience", lambda: good(aud={"basalt": 1})),
    "for a text that holds the audience": ("another audience", lambda: good(aud="account basalt")),
    "without an end": ("has no end", lambda: good(exp=None)),
    "with an end that is text": ("exp is no time", lambda: good(exp=str(NOW_S + 300))),
    "with an end that is true": ("exp is no time", lambda: good(exp=True)),
    "with an end beyond all time": ("exp is no time", lambda: good(exp=TIME_S_MAX + 1)),
    "with an end that is infinite by its size": ("exp is no time", lambda: with_exp("1e308")),
    "with an end that is beyond every number": ("exp is no time|no JSON", lambda: with_exp("1e400")),
    "with an end that is not a number": ("no JSON", lambda: with_exp("NaN")),
    "with an end that is infinite": ("no JSON", lambda: with_exp("Infinity")),
    "with an end of thousands of digits": ("exp is no time|no JSON", lambda: with_exp("9" * 5_000)),
    "with a negative end": ("exp is no time", lambda: good(exp=-1)),
    "not valid yet": (r"not valid yet \(nbf", lambda: good(nbf=NOW_S + LEEWAY_S + 1)),
    "issued in the future": (r"not valid yet \(iat", lambda: good(iat=NOW_S + LEEWAY_S + 1)),
    "with a beginning that is text": ("nbf is no time", lambda: good(nbf="0")),
    "with an issue time that is text": ("iat is no time", lambda: good(iat="now")),
    "of nobody": ("names who it is of", lambda: good(sub="")),
    "without a subject": ("names who it is of", lambda: good(sub=None)),
    "of a subject that is a number": ("names who it is of", lambda: good(sub=17)),
    "of a subject that is a list": ("names who it is of", lambda: good(sub=["alice"])),
    "of a name turned round": ("its names", lambda: good(sub="ecila\u202e")),
    "of a name with a line end": ("its names", lambda: good(sub="alice\nroot")),
    "of a name with a NUL": ("its names", lambda: good(sub="alice\0")),
    "of a name with a space before": ("its names", lambda: good(sub=" alice")),
    "of a name with a space behind": ("its names", lambda: good(sub="alice ")),
    "of a name that is too long": ("its names", lambda: good(sub="a" * 256)),
    "of half a character": ("its names|no JSON", lambda: with_exp(str(NOW_S + 9), sub='"\\ud800"')),
    "bound to a key of its holder": ("another proof", lambda: good(cnf={"x5t#S256": "abc"})),
    "of a log-out": ("of a type", lambda: signed(claims(NOW_MS), header={"typ": "logout+jwt"})),
    "of a proof of possession": ("of a type", lambda: signed(claims(NOW_MS), header={"typ": "dpop+jwt"})),
    "of a type with a space": ("of a type", lambda: signed(claims(NOW_MS), header={"typ": "JWT "})),
    "of a type that is no text": ("header is none", lambda: signed(claims(NOW_MS), header={"typ": ["JWT"]})),
    "with an extension": (
        "extension", lambda: signed_bytes({"alg": "RS256", "kid": "a", "crit": ["exp"], "exp": 1}, claims(NOW_MS)),
    ),
    "with an empty list of extensions": (
        "extension", lambda: signed_bytes({"alg": "RS256", "kid": "a", "crit": []}, claims(NOW_MS)),
    ),
    "with claims that are not encoded": (
        "extension", lambda: signed_bytes({"alg": "RS256", "kid": "a", "crit": ["b64"], "b64": False}, claims(NOW_MS)),
    ),
    "with b64 that nobody is told of": (
        "extension", lambda: signed_bytes({"alg": "RS256", "kid": "a", "b64": False}, claims(NOW_MS)),
    ),
    "deep claims": ("no JSON|8 KiB", lambda: signed_bytes(HEAD, b"[" * 5_000)),
    "deep claims in an object": (
        "no JSON", lambda: signed_bytes(HEAD, b'{"a":' * 500 + b"[" * 1_500),
    ),
    "a deep head": ("header is none|8 KiB", lambda: signed_bytes(b'{"alg":"RS256","x":' + b"[" * 4_000, claims(NOW_MS))),
    "claims that are a list": ("no JSON object", lambda: signed_bytes(HEAD, [1])),
    "claims that are no JSON": ("no JSON object", lambda: signed_bytes(HEAD, b"\xff\xfe{}")),
    "claims that are another token": (
        "no JSON object", lambda: signed_bytes({"alg": "RS256", "kid": "a", "cty": "JWT"}, good().encode()),
    ),
    "more than 8 KiB": ("8 KiB", lambda: good(x="y" * TOKEN_BYTES_MAX)),
}  # fmt: skip


def with_exp(number: str, sub: str = '"alice"') -> str:
    """A token whose end is written just so."""
    payload = f'{{"iss":"{ISSUER}","aud":"basalt","sub":{sub},"exp":{number}}}'
    return signed_bytes(HEAD, payload.encode())


@pytest.mark.parametrize(("why", "make"), SIGNED_BUT_BAD.values(), ids=SIGNED_BUT_BAD)
def test_a_token_that_the_provider_signed_is_refused_where_it_is_not_for_this(
    tokens: _Tokens, why: str, make: Callable[[], str]
):
    tokens.refuse(make(), why)


def test_a_token_of_just_8_kib_is_taken(tokens: _Tokens):
    room = TOKEN_BYTES_MAX - len(good(x=""))
    fitting = next(token for less in range(8) if len(token := good(x="y" * (room * 3 // 4 - less))) <= TOKEN_BYTES_MAX)
    assert len(fitting) > TOKEN_BYTES_MAX - 8
    assert tokens.whose(fitting)


@pytest.mark.parametrize("groups", [[1], ["a", None], {"a": 1}, 7, True, ["a\u202eb"], [""], [" a"], ["a" * 256]])
def test_a_token_with_a_group_that_is_no_name_is_refused_whole(tmp_path, groups: object):
    _Tokens(tmp_path, groups_claim="groups").refuse(good(groups=groups))


def test_no_provider_can_make_a_name_of_another_kind(tmp_path):
    tokens = _Tokens(tmp_path, groups_claim="groups")
    assert tokens.whose(good(sub="token:root")) == "jwt:token:root"
    groups = tokens.prove(good(groups=["role:admins", "proxy-group:a"]), NOW_MS).principal.groups
    assert groups == {"jwt-group:role:admins", "jwt-group:proxy-group:a"}


def test_an_email_is_nobodys_name_until_somebody_has_verified_it(tmp_path):
    tokens = _Tokens(tmp_path, principal_claim="email")
    assert tokens.whose(good(email="a@example.org", email_verified=True)) == "jwt:a@example.org"
    for verified in (None, False, "false", 1, "yes"):
        tokens.refuse(good(email="a@example.org", email_verified=verified), "nobody has verified")
    tokens.refuse(good(email_verified=True), "names who it is of")
    tokens.refuse(good(email="a@example.org", email_verified=True, sub=""), "names who it is of")


def test_an_algorithm_that_the_settings_leave_out_is_refused(tmp_path):
    tokens = _Tokens(tmp_path, algorithms=("ES256",))
    tokens.refuse(good(), "none that counts here")
    assert tokens.whose(signed(claims(NOW_MS), key=private_key("ES256"), algorithm="ES256", kid="es256"))


def test_without_a_kid_the_only_key_is_meant(tmp_path):
    only = _Tokens(tmp_path, key_set(public_jwk()))
    assert only.whose(signed(claims(NOW_MS), kid=None))
    only.refuse(signed(claims(NOW_MS), kid=None, key=STRANGER), "signature")


def test_the_end_counts_to_the_millisecond_behind_the_leeway(tokens: _Tokens):
    token = good(exp=NOW_S + 10)
    for late_ms in (0, 9_999, 10_000, (10 + LEEWAY_S) * 1_000 - 1):
        tokens.clock.step(NOW_MS + late_ms)
        proof = tokens.prove(token, tokens.clock.now_ms())
        assert proof.until_ms == NOW_MS + (10 + LEEWAY_S) * 1_000
    tokens.clock.step(NOW_MS + (10 + LEEWAY_S) * 1_000)
    assert tokens.refuse(token) == "the token is expired"
    assert tokens.refuse(good(exp=NOW_S - LEEWAY_S - 1)) == "the token is expired"


def test_the_end_and_the_beginning_may_have_fractions(tokens: _Tokens):
    token = good(exp=NOW_S - LEEWAY_S + 0.5, iat=None)
    assert tokens.whose(token)
    tokens.clock.step(NOW_MS + 500)
    tokens.refuse(token, "expired")


def test_a_beginning_within_the_leeway_counts(tokens: _Tokens):
    assert tokens.whose(good(nbf=NOW_S + LEEWAY_S, iat=NOW_S + LEEWAY_S))


def test_the_leeway_is_a_setting(tmp_path):
    tokens = _Tokens(tmp_path, leeway_ms=0)
    assert tokens.whose(good(exp=NOW_S + 1))
    tokens.refuse(good(exp=NOW_S), "expired")


class _Checks:
    """Counts the signatures that are checked."""

    def __init__(self, tokens: Jwts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._decode = tokens._jws.decode
        monkeypatch.setattr(tokens._jws, "decode", self._counted)

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._decode(*args, **kwargs)


def test_a_token_is_checked_once_a_minute(tokens: _Tokens, monkeypatch):
    checks, token = _Checks(tokens, monkeypatch), good()
    proofs = {id(tokens.prove(token, NOW_MS + late)) for late in (0, 1, VERIFIED_MS_MAX - 1)}
    assert (len(proofs), checks.count) == (1, 1)
    tokens.prove(token, NOW_MS + VERIFIED_MS_MAX)
    assert checks.count == 2


def test_a_bad_token_is_remembered_by_nobody(tokens: _Tokens, monkeypatch):
    checks = _Checks(tokens, monkeypatch)
    for _ in range(3):
        tokens.refuse(signed(claims(NOW_MS), key=STRANGER))
    assert (checks.count, tokens._verified) == (3, {})


def test_a_clock_that_is_set_back_makes_no_token_younger(tokens: _Tokens, monkeypatch):
    token = good(nbf=NOW_S)
    tokens.prove(token, NOW_MS)
    tokens.clock.step(NOW_MS - 3_600_000)
    tokens.refuse(token, "not valid yet")


def test_another_token_that_begins_the_same_is_not_known_by_it(tokens: _Tokens):
    token = good()
    tokens.prove(token, NOW_MS)
    tokens.refuse(token[:-6] + "AAAAAA")
    tokens.refuse(token + "A")


def test_a_key_that_is_taken_back_counts_no_more_from_the_reading_on(tokens: _Tokens):
    token = good()
    tokens.prove(token, NOW_MS)
    tokens.clock.advance(REFRESH_MS // 2)
    tokens.publish(key_set(public_jwk(private_key("RS256", "b"), "b")))
    with pytest.raises((UnauthenticatedError, AuthenticationUnavailableError)):
        tokens.prove(token, NOW_MS)


def test_tokens_that_are_known_are_bounded_and_the_oldest_makes_room(tokens: _Tokens, monkeypatch):
    monkeypatch.setattr(jwt, "VERIFIED_MAX", 3)
    checks, few = _Checks(tokens, monkeypatch), [good(jti=str(number)) for number in range(4)]
    for token in few:
        tokens.prove(token, NOW_MS)
    assert len(tokens._verified) == 3
    tokens.prove(few[0], NOW_MS)
    assert checks.count == 5
    tokens.prove(few[3], NOW_MS)
    assert checks.count == 5


def test_before_the_keys_come_nobody_is_refused_or_let_in(tmp_path):
    tokens = Jwts(jwt_settings(str(tmp_path / "none")), ManualClock(NOW_MS))
    for token in (good(), signed(claims(NOW_MS), key=STRANGER)):
        with pytest.raises(AuthenticationUnavailableError) as raised:
            tokens.prove(token, NOW_MS)
        assert raised.value.retry_after_ms > 0


def test_a_token_that_is_known_counts_no_longer_than_the_keys(tokens: _Tokens):
    token = good(exp=NOW_S + 10**6)
    tokens.prove(token, NOW_MS)
    tokens.clock.advance(STALE_MS_MAX)
    tokens.prove(token, tokens.clock.now_ms())
    tokens.clock.advance(1)
    with pytest.raises(AuthenticationUnavailableError):
        tokens.prove(token, tokens.clock.now_ms())


def test_only_a_token_that_would_count_if_it_were_signed_has_the_keys_read_again(tokens: _Tokens):
    tokens.clock.advance(ASK_MS_MIN)
    now_s = tokens.clock.now_ms() // 1_000
    for changed in ({"iss": "https://evil.example"}, {"aud": "billing"}, {"exp": 1}, {"sub": ""}, {"iat": now_s + 90}):
        tokens.refuse(signed(claims(tokens.clock.now_ms(), **changed), kid="b"))
    tokens.refuse(signed_bytes({"alg": "RS256", "kid": "b"}, b"[]"), "no JSON")
    assert not tokens.jwks._asked.is_set()
    with pytest.raises(AuthenticationUnavailableError):
        tokens.prove(signed(claims(tokens.clock.now_ms()), kid="b"), tokens.clock.now_ms())
    assert tokens.jwks._asked.is_set()


def test_a_storm_of_tokens_with_unknown_keys_makes_one_request():
    async def story() -> None:
        clock = ManualClock(NOW_MS)
        async with serving(PUBLISHED) as server:
            tokens = Jwts(jwt_settings(server.url), clock)
            tokens.start()
            await until(lambda: tokens.jwks._keys is not None)
            clock.advance(ASK_MS_MIN)
            storm = [signed(claims(NOW_MS - 60_000), kid=f"k{number}") for number in range(200)]
            for token in storm:
                with pytest.raises(AuthenticationUnavailableError):
                    tokens.prove(token, clock.now_ms())
            await until(lambda: not tokens.jwks._asked.is_set())
            for token in storm:
                with pytest.raises(UnauthenticatedError, match="no key that the identity provider publishes"):
                    tokens.prove(token, clock.now_ms())
            assert tokens.prove(good(), clock.now_ms())
            assert server.asked == 2
            await tokens.close()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_storm_that_goes_on_makes_a_request_each_half_minute_and_others_are_served():
    async def story() -> None:
        clock = ManualClock(NOW_MS)
        async with serving(PUBLISHED) as server:
            tokens = Jwts(jwt_settings(server.url), clock)
            tokens.start()
            await until(lambda: tokens.jwks._keys is not None)
            for second in range(0, 300, 5):  # each as if it were signed by a key that is newer than the last reading
                for number in range(5):
                    with pytest.raises(AuthenticationUnavailableError):
                        tokens.prove(signed(claims(clock.now_ms()), kid=f"k{second}-{number}"), clock.now_ms())
                await until(lambda: not tokens.jwks._asked.is_set() and not tokens.jwks._is_reading)
                assert tokens.prove(good(), clock.now_ms())
                clock.advance(5_000)
            assert server.asked == 1 + (300_000 - 1) // ASK_MS_MIN
            await tokens.close()

    asyncio.run(asyncio.wait_for(story(), 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def patient(tokens: Jwts, token: str, clock: ManualClock) -> Proof:
    """What a client does: it sends a call again that nobody could judge, after the time that it is told."""
    while True:
        try:
            return tokens.prove(token, clock.now_ms())
        except AuthenticationUnavailableError as error:
            clock.advance(error.retry_after_ms)
            tokens.jwks.wait_for_key_ms(None)
            await until(lambda: not tokens.jwks._asked.is_set() and not tokens.jwks._is_reading)


@pytest.mark.parametrize("storm", [False, True])
def test_a_provider_may_change_its_key_and_no_call_fails(storm: bool):
    async def story() -> None:
        clock, new_key = ManualClock(NOW_MS), private_key("RS256", "b")
        async with serving(PUBLISHED) as server:
            tokens = Jwts(jwt_settings(server.url), clock)
            tokens.start()
            await until(lambda: tokens.jwks._keys is not None)
            clock.advance(60_000)
            if storm:  # somebody has had the keys read just before
                with pytest.raises(AuthenticationUnavailableError):
                    tokens.prove(signed(claims(clock.now_ms()), kid="evil"), clock.now_ms())
                await until(lambda: not tokens.jwks._asked.is_set())
                clock.advance(5_000)
            old = good()
            server.body = key_set(public_jwk(), public_jwk(new_key, "b"))
            token = signed(claims(clock.now_ms()), key=new_key, kid="b")
            assert str((await patient(tokens, token, clock)).principal) == "jwt:alice@example.org"
            assert await patient(tokens, old, clock)
            await tokens.close()

    asyncio.run(asyncio.wait_for(story(), 30))


CLAIM_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "jti", "groups", "cnf", "email", "typ"])
HEADER = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5c", "cty", "zip", "enc"]),
    st.sampled_from(["none", "HS256", "RS256", "ES256", "a", "es256", "JWT", "", None, 1, ["b64"], {}, False]),
    max_size=4,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> _Tokens:
    return _Tokens(tmp_path_factory.mktemp("keys"), groups_claim="groups")


def judged(tokens: Jwts, token: str) -> str | None:
    """Whose it is, or nobody's: any other error than the two goes through."""
    try:
        return str(tokens.prove(token, NOW_MS).principal)
    except (UnauthenticatedError, AuthenticationUnavailableError) as error:
        assert error.message.isprintable()
        return None


@settings(max_examples=500)
@given(token=st.text(max_size=60) | st.text("abcXYZ019-_.=e", max_size=80) | st.binary(max_size=80).map(repr))
def test_any_text_is_nobodys_token(shared: _Tokens, token: str):
    assert judged(shared, token) is None


@settings(max_examples=500)
@given(
    head=st.binary(max_size=40) | HEADER,
    payload=st.binary(max_size=40) | CLAIM_VALUES,
    signature=st.binary(max_size=300),
)
def test_any_parts_are_nobodys_token(shared: _Tokens, head: object, payload: object, signature: bytes):
    assert judged(shared, f"{segment(head)}.{segment(payload)}.{segment(signature)}") is None


@settings(max_examples=300)
@given(algorithm=st.sampled_from(sorted(ALGORITHMS)), data=st.data())
def test_a_good_token_with_anything_changed_is_nobodys(shared: _Tokens, algorithm: str, data: st.DataObject):
    token = signed(claims(NOW_MS), key=private_key(algorithm), algorithm=algorithm, kid=algorithm.lower())
    assert judged(shared, token) == "jwt:alice@example.org"
    place = data.draw(st.integers(0, len(token) - 1))
    put = data.draw(st.text("abcXYZ019-_.=\n ", max_size=3))
    cut = data.draw(st.integers(0, 3))
    changed = token[:place] + put + token[place + cut :]
    if changed != token:
        assert judged(shared, changed) is None


@settings(max_examples=500)
@given(head=HEADER, changed=st.dictionaries(NAMES, CLAIM_VALUES, max_size=4))
def test_what_the_provider_signs_is_judged_by_its_claims_and_is_never_an_error(
    shared: _Tokens, head: dict[str, object], changed: dict[str, object]
):
    of = {**claims(NOW_MS), **changed}
    token = signed_bytes({"alg": "RS256", "kid": "a", **head}, json.dumps(of).encode())
    whose = judged(shared, token)
    if whose is not None:
        assert whose == f"jwt:{of['sub']}"
        assert of["iss"] == ISSUER
        audience: Any = of["aud"]
        assert audience == "basalt" or (isinstance(audience, list) and "basalt" in audience)
        assert head.get("alg", "RS256") == "RS256"
        assert "crit" not in head
        assert "cnf" not in of


def test_the_keys_of_these_tests_all_count():
    assert parse_key_set(PUBLISHED).ignored == ()
