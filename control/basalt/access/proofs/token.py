"""Tokens: how they are written, what the store keeps of them, and whether one counts.

A token is `basalt_ID_SECRET_CHECK`: 16 hex digits that are no secret, 256 random bits in 43 characters of base64url, and the CRC-32C of
all before it in 8 hex digits. The prefix and the checksum let scanners find one that leaked, and let a server refuse a cut one without
a look-up. The store keeps the SHA-256 of the secret: of 256 random bits nobody finds them by trying, so a slow hash would
protect nothing, and let anybody keep the server busy.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from ipaddress import ip_network
from typing import NamedTuple

from crc32c import crc32c

from basalt.access.networks import Networks
from basalt.access.policy import parse_grant
from basalt.access.principal import EVERYONE, parse_principal
from basalt.access.proofs.proof import Proof
from basalt.access.records import TokenRow
from basalt.errors import InputError, UnauthenticatedError

PREFIX = "basalt_"
BOOTSTRAP = "token:bootstrap"  # the principal of the token in the setting auth.bootstrap_token
BOOTSTRAP_CHARS_MIN = 32  # of that one, which an operator may make up: `openssl rand -hex 32` has 64
TOKEN_BYTES_MAX = 8_192  # of any bearer credential; JWTs are the long ones

_SECRET_BYTES = 32
_FORM = re.compile(r"basalt_([0-9a-f]{16})_([A-Za-z0-9_-]{43})_([0-9a-f]{8})")
_NO_DIGEST = hashlib.sha256(b"").hexdigest()  # compared with where there is no such token: that takes as long


class NewToken(NamedTuple):
    """A token that was just drawn: what its owner gets, and what the store keeps."""

    id: str
    text: str
    digest: str


class GivenToken(NamedTuple):
    """A token as a caller sent it: the id that it names, and the digest of its secret."""

    id: str
    digest: str


def draw_token() -> NewToken:
    """A new token, of random bits."""
    token_id = secrets.token_hex(8)
    secret = urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).decode().rstrip("=")
    body = f"{PREFIX}{token_id}_{secret}"
    return NewToken(token_id, f"{body}_{crc32c(body.encode()):08x}", _digest(secret))


def read_token(text: str) -> GivenToken:
    """The parts of a token. `UnauthenticatedError` for what is none, or was cut or mistyped."""
    match = _FORM.fullmatch(text)
    if match is None or int(match[3], 16) != crc32c(text.rpartition("_")[0].encode()):
        raise invalid_token()
    return GivenToken(match[1], _digest(match[2]))


def prove_token(
    given: GivenToken, tokens: Mapping[str, TokenRow], *, now_ms: int, not_before_ms: int, address: str | None
) -> Proof:
    """The proof that a token is. `UnauthenticatedError` where it does not count, or not (any more, from here)."""
    row = tokens.get(given.id)
    is_right = hmac.compare_digest(given.digest, _NO_DIGEST if row is None else row.digest)
    if row is None or not is_right:
        raise invalid_token()
    until_ms = row.expire_ms
    for each in (row, tokens.get(row.parent) if row.parent_is_token else None):
        if each is None:
            continue
        check_lifetime(each, now_ms, not_before_ms)
        if each.expire_ms is not None:
            until_ms = each.expire_ms if until_ms is None else min(until_ms, each.expire_ms)
        check_network(each.networks, address)
    if row.parent_is_token and row.parent not in tokens:
        raise UnauthenticatedError("the token is revoked: that from which it was made is gone", hint=_ASK_FOR_ONE)
    principal = parse_principal(row.principal).with_groups(row.groups)
    only = None if row.only is None else tuple(parse_grant(EVERYONE, each.verbs, each.resource) for each in row.only)
    kind = "login" if row.parent else "token"
    return Proof(principal, f"{kind} {given.id}", until_ms, only)


def check_lifetime(row: TokenRow, now_ms: int, not_before_ms: int) -> None:
    """Refuse a token that was revoked, has expired, or was made before all that may count."""
    if row.revoked_ms is not None or row.created_ms < not_before_ms:
        raise UnauthenticatedError("the token is revoked", hint=_ASK_FOR_ONE)
    if row.expire_ms is not None and now_ms >= row.expire_ms:
        raise UnauthenticatedError("the token is expired", hint=_ASK_FOR_ONE)


def check_network(networks: tuple[str, ...], address: str | None) -> None:
    """Refuse a token that counts only from certain networks, and is sent from elsewhere."""
    if networks and (address or "") not in Networks(networks):
        raise invalid_token()  # who stole it need not learn that elsewhere it would count


def parse_network(text: str) -> str:
    """A network as `10.0.0.0/8` or an address; `InputError`."""
    try:
        return str(ip_network(text))
    except ValueError:
        raise InputError(
            f"{text[:60]!a} is no network", field="networks", hint="write 10.1.0.0/16, 2001:db8::/32, or an address"
        ) from None


def bootstrap_digest(token: str) -> str:
    """The digest of the token in the setting."""
    return _digest(token)


def is_bootstrap(text: str, digest: str) -> bool:
    """Tell the token of the setting, whatever its form."""
    return hmac.compare_digest(_digest(text), digest)


def invalid_token() -> UnauthenticatedError:
    """The refusal of what is no credential, or a wrong one: it tells nothing of how wrong."""
    return UnauthenticatedError("the credential is invalid", hint=_ASK_FOR_ONE)


_ASK_FOR_ONE = "Send one that counts: `basalt token create` makes tokens, for who may."


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
