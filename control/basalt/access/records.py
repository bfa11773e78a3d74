"""The rows in which tokens, grants and roles are kept, and the version that tells servers of a change.

Kinds `token`, `token-used`, `grant`, `grant-used`, `role` and `policy` of docs/formats/system-table.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from basalt_engine.system import SystemRecord

GRANT_ID_DIGITS = 16  # of 2^64 ids, 10,000 grants share one with a chance of 1 in 10^11


class Rights(Struct, frozen=True):
    """Verbs, in alphabetical order, on a resource."""

    verbs: tuple[str, ...]
    resource: str


class TokenRow(Struct, frozen=True):
    """A token, without what its owner has. A login has a `parent`: the credential that it was made with."""

    principal: str
    digest: str  # SHA-256 of its secret, in hex
    created_ms: int
    expire_ms: int | None
    revoked_ms: int | None = None
    groups: tuple[str, ...] = ()  # of a login, those that came with its parent
    only: tuple[Rights, ...] | None = None
    networks: tuple[str, ...] = ()
    note: str = ""
    made_by: str = ""
    parent: str = ""
    parent_is_token: bool = False  # whose end is this one's, too

    def is_over(self, now_ms: int) -> bool:
        """Tell whether it counts no more, by itself."""
        return self.revoked_ms is not None or (self.expire_ms is not None and now_ms >= self.expire_ms)


class GrantRow(Struct, frozen=True):
    """A grant. Its name is the hash of the first three members, so giving it twice makes one."""

    subject: str
    verbs: tuple[str, ...]
    resource: str
    created_ms: int
    made_by: str


class GrantUse(Struct, frozen=True):
    """The last time that a grant was needed to allow something, and by whom."""

    used_ms: int
    principals: tuple[str, ...]


class TokenUse(Struct, frozen=True):
    """The last time that a token proved who calls, and the address that it came from."""

    used_ms: int
    address: str


class RoleRow(Struct, frozen=True):
    """A role: the principals and groups that are in it."""

    members: tuple[str, ...]
    changed_ms: int
    made_by: str


class PolicyVersion(Struct, frozen=True):
    """A number that rises with each change of the other rows, behind them."""

    version: int
    changed_ms: int


TOKENS = SystemRecord("token", "", TokenRow)
GRANTS = SystemRecord("grant", "", GrantRow)
GRANT_USES = SystemRecord("grant-used", "", GrantUse)
TOKEN_USES = SystemRecord("token-used", "", TokenUse)
ROLES = SystemRecord("role", "", RoleRow)
VERSION = SystemRecord("policy", "version", PolicyVersion)
KINDS: tuple[SystemRecord[Any], ...] = (TOKENS, GRANTS, ROLES)


def grant_id(subject: str, verbs: Iterable[str], resource: str) -> str:
    """The name of a grant's row."""
    text = "\0".join((subject, ",".join(sorted(verbs)), resource))
    return hashlib.sha256(text.encode()).hexdigest()[:GRANT_ID_DIGITS]
