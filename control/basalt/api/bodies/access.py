"""Answers about who asks and what they may do. What rights there are: docs/reference/rights.md."""

from __future__ import annotations

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
