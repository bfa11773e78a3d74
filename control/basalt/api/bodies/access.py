"""Answers about who asks and what they may do. What rights there are: docs/reference/rights.md."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct


class Identity(Struct, frozen=True):
    """Who makes the call: `kind:name`, with the groups that came with the proof, and the roles of all of these.

    `superuser`: may do everything, without grants. `judged` false: nobody has to prove who they are, and everybody may do everything.
    """

    principal: str
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    superuser: bool
    judged: bool


class RightRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A right that is asked for: `write` on `topic:shop:orders`, for example."""

    verb: str
    resource: str


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


class SubjectQuota(Struct, frozen=True):
    """The rule of a subject: a principal, a group, `role:NAME` or `everyone`."""

    subject: str
    rule: QuotaRule


class QuotaInForce(Struct, frozen=True):
    """The limit of one quota for a principal (null: none), by whose rule (`settings`: theirs), and what is used of it; null: unknown here."""

    quota: str
    limit: int | None
    by: str
    used: int | None


class QuotaDescription(Struct, frozen=True, rename="camel"):
    """The rule of a subject, if it has one; of a principal, what is in force for it. `groups` are those it came with when it called last."""

    subject: str
    rule: QuotaRule | None
    groups: tuple[str, ...]
    in_force: tuple[QuotaInForce, ...]
