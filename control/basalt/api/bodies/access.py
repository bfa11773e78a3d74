"""Answers about who asks and what they may do. What rights there are: docs/reference/rights.md."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from basalt.redaction import HIDDEN


class Rights(Struct, frozen=True, forbid_unknown_fields=True):
    """Verbs on a resource, whose last name may end in `*`."""

    verbs: tuple[str, ...]
    resource: str


class Identity(Struct, frozen=True, rename="camel"):
    """Who makes the call: `kind:name`, with the groups that came with the proof, and the roles of all of these.

    `superuser`: may do everything, without grants. `judged` false: nobody has to prove who they are, and everybody may do everything.
    `credential` is the kind and the id of what proved it, which ends at `expires_ms`; `only` are the rights that it is limited to, and
    `via` is the proxy that vouches for the principal.
    """

    principal: str
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    superuser: bool
    judged: bool
    credential: str = ""
    expires_ms: int | None = None
    only: tuple[Rights, ...] | None = None
    via: str = ""


class RightRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A right that is asked for: `write` on `topic:shop:orders`, for example; of the caller, or of another principal."""

    verb: str
    resource: str
    principal: str = ""


class GrantedRights(Struct, frozen=True):
    """A grant: a subject, its verbs in alphabetical order, and the resource, whose last name may end in `*`."""

    subject: str
    verbs: tuple[str, ...]
    resource: str


class RightAnswer(Struct, frozen=True):
    """The answer to whether the caller has a right: `because` says by what, or what is missing; `grants` are those that give it."""

    allowed: bool
    principal: str
    verb: str
    resource: str
    because: str
    grants: tuple[GrantedRights, ...]


QuotaLimit: TypeAlias = int | Literal["off"] | None


class QuotaRule(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A rule: of each quota how much a principal may use, a second or at a time; `off`: without limit; null: the rule says nothing.

    The names are those of the settings `quota.*`.
    """

    requests_per_s: QuotaLimit = None
    publish_bytes_per_s: QuotaLimit = None
    fetch_bytes_per_s: QuotaLimit = None
    open_transactions: QuotaLimit = None
    sessions: QuotaLimit = None
    topics: QuotaLimit = None
    waiting_fetches: QuotaLimit = None


class SubjectQuota(Struct, frozen=True, rename="camel"):
    """The rule of a subject: a principal, a group, `role:NAME` or `everyone`."""

    subject: str
    rule: QuotaRule
    changed_ms: int
    made_by: str


class QuotaInForce(Struct, frozen=True):
    """The limit of one quota for a principal (null: none), by whose rule (`settings`: theirs), and what is used of it.

    Of a rate that is what is not paid back yet: with two seconds' worth or more, calls wait. Where there is no limit it may not be known.
    """

    quota: str
    limit: int | None
    by: str
    used: int


class QuotaDescription(Struct, frozen=True, rename="camel"):
    """The rule of a subject, if it has one; of a principal, what is in force for it. `groups` are those it came with when it called last."""

    subject: str
    rule: QuotaRule | None
    groups: tuple[str, ...]
    in_force: tuple[QuotaInForce, ...]


class TokenRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A token to be made for `token:NAME`. It ends after `ttl_ms` (null: never), and counts only from `networks` and for `only`."""

    name: str
    ttl_ms: int | None = 90 * 86_400_000
    only: tuple[Rights, ...] | None = None
    networks: tuple[str, ...] = ()
    note: str = ""


class TokenInfo(Struct, frozen=True, rename="camel"):
    """A token, without its secret. `state`: active, expired or revoked. A login has a `parent`: what it was made with.

    `used_ms` is when it last proved who calls, about to the second, and `used_from` from which address; null: never, as far as is known.
    """

    id: str
    principal: str
    state: str
    created_ms: int
    expires_ms: int | None
    made_by: str
    note: str
    networks: tuple[str, ...]
    only: tuple[Rights, ...] | None
    parent: str
    used_ms: int | None = None
    used_from: str = ""


class NewToken(Struct, frozen=True, rename="camel"):
    """A token that was just made. It is shown this once: the server keeps only a hash. Null with `dryRun`: none was made.

    `beside` are the tokens of its principal that count already, without logins and the one that it takes the place of.
    """

    token: str | None
    info: TokenInfo
    beside: int = 0

    def __repr__(self) -> str:
        return f"NewToken(token={HIDDEN if self.token else None}, info={self.info})"


class RotateRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The time for which the old token goes on beside the new one."""

    overlap_ms: int = 86_400_000


class LoginRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The time that a login is to last; never longer than what it is made with."""

    ttl_ms: int = 3_600_000


class GrantRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Rights to be given to a principal, a group, `role:NAME` or `everyone`."""

    subject: str
    verbs: tuple[str, ...]
    resource: str


class RightsChange(Struct, frozen=True):
    """The rights that a subject gains or loses by a change: those that it has by nothing else, its groups left aside."""

    subject: str
    gains: tuple[Rights, ...]
    loses: tuple[Rights, ...]


class GrantInfo(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A grant. `used_ms` is when it was last needed, about to the minute, by `used_by`; null: never, as far as is known.

    With `dryRun` `changes` says who would gain or lose what, of many members of a role the first ones; `left_out` are the others.
    """

    id: str
    subject: str
    verbs: tuple[str, ...]
    resource: str
    created_ms: int
    made_by: str
    used_ms: int | None
    used_by: tuple[str, ...]
    changes: tuple[RightsChange, ...] = ()
    left_out: int = 0


class RoleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """All members of a role: principals and groups."""

    members: tuple[str, ...]


class RoleInfo(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A role. With `dryRun` `changes` says who would gain or lose what, of many members the first ones; `left_out` are the others."""

    name: str
    members: tuple[str, ...]
    changed_ms: int
    made_by: str
    changes: tuple[RightsChange, ...] = ()
    left_out: int = 0


class SeenPrincipal(Struct, frozen=True, rename="camel"):
    """A principal that called since the server started: when first and last, by which credential (its kind and id) last, from where.

    `via` is the proxy that vouched for it.
    """

    principal: str
    credential: str
    via: str
    address: str
    first_ms: int
    last_ms: int


class RefusalInfo(Struct, frozen=True, rename="camel"):
    """A right that was missing, how often, and when first and last. `enforced` false: it was let through all the same."""

    principal: str
    verb: str
    resource: str
    count: int
    first_ms: int
    last_ms: int
    enforced: bool
