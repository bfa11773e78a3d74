"""Principals: who asks, as `kind:name`, where the kind says how it was proved. So no identity provider can make a name of another's.

Names are compared as they are: nothing is normalized, cut or folded. What could look like another name to a person is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from basalt.errors import InputError

NAME_CHARS_MAX = 255
INTERNAL = "internal"  # of calls from within the process
EVERYONE = "everyone"  # the subject that stands for whoever asks
ROLE = "role"

_NAMELESS = "anonymous"
_KINDS = ("token", "jwt", "cert", "krb", "proxy", "thrift", INTERNAL)
_GROUP_KINDS = ("jwt-group", "proxy-group")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, with the groups that came with the proof, each as `kind:name`."""

    kind: str
    name: str
    groups: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if (self.kind, self.name) != (_NAMELESS, ""):
            _check_kind(self.kind, _KINDS, "principal")
            check_subject_name(self.name)
        for group in self.groups:
            kind, _, name = group.partition(":")
            _check_kind(kind, _GROUP_KINDS, "group")
            check_subject_name(name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    def with_groups(self, groups: Iterable[str]) -> Principal:
        """The same one in these groups."""
        return Principal(self.kind, self.name, frozenset(groups))


ANONYMOUS = Principal(_NAMELESS, "")  # whoever asks where nobody has to prove anything


def internal(name: str) -> Principal:
    """The principal of a part of this process. It is handed in where calls are made, and never inferred from a request."""
    return Principal(INTERNAL, name)


def parse_principal(text: str) -> Principal:
    """The principal of this text, which is in no group. `InputError`."""
    kind, _, name = text.partition(":")
    return Principal(kind, name)


def check_subject(text: str) -> str:
    """The subject of a grant: a principal, a group, `role:NAME` or `everyone`. `InputError`."""
    kind, _, name = text.partition(":")
    if kind == INTERNAL:
        raise InputError(f"{_shown(text)} needs no grants: it may do everything", field="subject")
    if text != EVERYONE and kind != ROLE:
        return check_member(text)
    if kind == ROLE:
        check_subject_name(name)
    return text


def check_member(text: str) -> str:
    """A principal or a group, as roles and the list of superusers have them; no role, which may be in no other. `InputError`."""
    kind, _, name = text.partition(":")
    if text != _NAMELESS:
        _check_kind(kind, (*_KINDS, *_GROUP_KINDS), "principal or group")
        check_subject_name(name)
    return text


def check_subject_name(name: str) -> str:
    """The part behind the kind. `InputError`."""
    # Not printable are, among others, the controls that change the direction of a text. With a star at its end, the name of a
    # principal's own transactions would be that of everybody's whose name begins so.
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable() or name != name.strip(" ") or name.endswith("*"):
        raise InputError(
            f"{_shown(name)} is no name of a principal, group or role",
            field="principal",
            hint=f"use 1 to {NAME_CHARS_MAX} printable characters, with no space before or behind them, and no * behind",
        )
    return name


def _check_kind(kind: str, kinds: tuple[str, ...], what: str) -> None:
    if kind not in kinds:
        raise InputError(
            f"{_shown(kind)} is no kind of {what}",
            field="principal",
            hint=f"write KIND:NAME; kinds are {', '.join(kinds)}",
        )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")  # so that it cannot look like another one here, either
