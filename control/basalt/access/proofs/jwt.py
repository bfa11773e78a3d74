"""JSON Web Tokens (RFC 7519) of one identity provider, as proofs of who calls. docs/operations/security.md, "JWT from an identity provider".

A token counts when the provider signed it by a key that it publishes, for this server (RFC 8725), and now. What it says of itself is believed
only behind the signature; no key, address or certificate in it is looked at. A token that was found good is known by its hash for a minute.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import jwt
import msgspec

from basalt.access.principal import Principal
from basalt.access.proofs.jwks import Jwks, KeySet, cannot_check
from basalt.access.proofs.proof import Proof
from basalt.errors import InputError, UnauthenticatedError
from basalt.settings import JwtSettings
from basalt_engine.clock import Clock

KIND = "jwt"
GROUP_KIND = "jwt-group"
TOKEN_BYTES_MAX = 8 * 1024  # as much as servers take of one header; it bounds the groups, too
VERIFIED_MS_MAX = 60_000  # for which a token that was found good is not checked again
VERIFIED_MAX = 10_000  # tokens that are known so, of a KiB or two each
TIME_S_MAX = 10**11  # in the year 5138; what is beyond it is no time
TOKEN_ID_CHARS_MAX = 100  # of jti, in the audit
# A token of another type is for another use: one that tells of a log-out, or that a proxy has for itself.
TYPES = frozenset((None, "jwt", "at+jwt", "application/jwt", "application/at+jwt"))

_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)


class _Header(msgspec.Struct):
    """The part of a token's head that is read: which key and algorithm it claims to be signed by, and what only some understand."""

    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: object = msgspec.UNSET
    b64: object = msgspec.UNSET


class _Verified(NamedTuple):
    proof: Proof
    from_ms: int
    until_ms: int


class Jwts:
    """Finds out whose a token is. The keys are read from `start` to `close`."""

    def __init__(self, settings: JwtSettings, clock: Clock) -> None:
        assert settings.jwks is not None, "the settings were checked"
        self.jwks = Jwks(settings.jwks, settings.algorithms, clock, certificate_authorities=settings.ca)
        self._settings = settings
        self._jws = jwt.PyJWS(settings.algorithms, {"verify_signature": True, "enforce_minimum_key_length": True})
        self._verified: dict[bytes, _Verified] = {}
        self._verified_by: KeySet | None = None

    def start(self) -> None:
        """Read the keys from now on."""
        self.jwks.start()

    async def close(self) -> None:
        """Read them no more."""
        await self.jwks.close()

    def forget(self) -> None:
        """Know no token any more: each is checked anew."""
        self._verified.clear()

    def prove(self, token: str, now_ms: int) -> Proof:
        """The sender of this token. `UnauthenticatedError` where it does not count, `AuthenticationUnavailableError` where nobody can tell now."""
        if len(token) > TOKEN_BYTES_MAX or _COMPACT.fullmatch(token) is None:
            _refuse("it is no signed JWT of at most 8 KiB")
        keys = self.jwks.keys()
        if keys is not self._verified_by:  # what was signed by a key that is gone counts no more
            self.forget()
            self._verified_by = keys
        digest = hashlib.sha256(token.encode("ascii")).digest()
        known = self._verified.pop(digest, None)
        if (
            known is None or not known.from_ms <= now_ms < known.until_ms
        ):  # a clock that was set back makes nothing younger
            known = self._verify(token, keys, now_ms)
            if len(self._verified) >= VERIFIED_MAX:
                del self._verified[next(iter(self._verified))]
        self._verified[digest] = known
        return known.proof

    def _verify(self, token: str, keys: KeySet, now_ms: int) -> _Verified:
        header = _header(token)
        key = keys.find(header.kid, header.alg)
        if header.alg not in self._settings.algorithms:
            _refuse("its algorithm is none that counts here")
        if (header.typ and header.typ.lower()) not in TYPES:
            _refuse("it is of a type that is no access token's")
        if header.crit is not msgspec.UNSET or header.b64 is not msgspec.UNSET:
            _refuse("it wants an extension that is not known here")
        if key is None:
            if header.kid is None:
                _refuse("it does not say by which key it is signed (kid), and there is not just one")
            if keys.has(header.kid):
                _refuse("the key that it names is not for its algorithm")
            self._refuse_unknown_key(token, now_ms)
        try:
            payload = self._jws.decode(token, key.public_key, algorithms=[header.alg])
        except (jwt.PyJWTError, ValueError, TypeError):
            _refuse("its signature is not the identity provider's")
        proof = proof_of(_claims(payload), self._settings, now_ms)
        assert proof.until_ms is not None
        until_ms = min(proof.until_ms, now_ms + VERIFIED_MS_MAX)
        return _Verified(replace(proof, check_again_ms=until_ms), now_ms, until_ms)

    def _refuse_unknown_key(self, token: str, now_ms: int) -> NoReturn:
        """A key may be newer than those that are known. Only a token that would count if it were signed has them read again."""
        claims = _claims(_decoded(token.split(".")[1]))
        proof_of(claims, self._settings, now_ms)
        issued_ms = _time_ms(claims, "iat")
        wait_ms = self.jwks.wait_for_key_ms(issued_ms and issued_ms + self._settings.leeway_ms)
        if wait_ms is not None:
            raise cannot_check("are read again, for it is signed by a new one or by none", wait_ms)
        _refuse("no key that the identity provider publishes has its id")


def proof_of(claims: Mapping[str, Any], settings: JwtSettings, now_ms: int) -> Proof:
    """The proof in these claims, signed as they are. `UnauthenticatedError` where they do not count, or not now."""
    if claims.get("iss") != settings.issuer:
        _refuse("it is of another issuer")
    audience = claims.get("aud")
    if settings.audience not in (audience if isinstance(audience, list) else [audience]):
        _refuse("it is for another audience")
    until_ms = _judge_times(claims, settings.leeway_ms, now_ms)
    if "cnf" in claims:
        _refuse("it counts only with another proof of who holds it (cnf), which is not asked for here")
    _text(claims, "sub")
    name = _text(claims, settings.principal_claim)
    if settings.principal_claim == "email" and not _is_true(claims.get("email_verified")):
        _refuse(
            "nobody has verified that its email belongs to who has it"
        )  # some providers let users write what they like
    try:
        principal = Principal(KIND, name, _groups(claims, settings.groups_claim))
    except InputError:
        _refuse("its names are not of 1 to 255 printable characters without a space at an end")
    return Proof(principal, _credential(claims, settings), until_ms)


def _judge_times(claims: Mapping[str, Any], leeway_ms: int, now_ms: int) -> int:
    """The end of the token, since 1970: from then on it counts no more."""
    expires_ms = _time_ms(claims, "exp")
    if expires_ms is None:
        _refuse("it has no end (exp)")
    if now_ms >= expires_ms + leeway_ms:
        raise UnauthenticatedError("the token is expired", hint="Get a new one from the identity provider.")
    for name in ("nbf", "iat"):
        begins_ms = _time_ms(claims, name)
        if begins_ms is not None and begins_ms > now_ms + leeway_ms:
            _refuse(f"it is not valid yet ({name})")
    return expires_ms + leeway_ms


def _groups(claims: Mapping[str, Any], claim: str | None) -> frozenset[str]:
    given = None if claim is None else claims.get(claim)
    names = [] if given is None else given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) for name in names):
        _refuse("its groups are no list of texts")
    return frozenset(f"{GROUP_KIND}:{name}" for name in names)


def _credential(claims: Mapping[str, Any], settings: JwtSettings) -> str:
    token_id = claims.get("jti")
    if isinstance(token_id, str) and 0 < len(token_id) <= TOKEN_ID_CHARS_MAX and token_id.isprintable():
        return f"{KIND} {token_id}"
    return f"{KIND} {settings.issuer}"


def _is_true(value: object) -> bool:
    return value is True or value == "true"  # as some providers write it; 1 would be equal to True


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        _refuse("it lacks a claim that names who it is of")
    return value


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIME_S_MAX:
        _refuse(f"its {name} is no time")
    return int(value * 1_000)


def _header(token: str) -> _Header:
    try:
        return msgspec.json.decode(_decoded(token.partition(".")[0]), type=_Header)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        _refuse("its header is none of a JWT")


def _claims(payload: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        _refuse("its claims are no JSON object")


def _decoded(segment: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    except (binascii.Error, ValueError):
        _refuse("it is not base64url")


def _refuse(why: str) -> NoReturn:
    raise UnauthenticatedError(f"the token is invalid: {why}") from None
