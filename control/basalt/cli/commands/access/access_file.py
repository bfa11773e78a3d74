"""The file of `basalt access`: roles and grants as they are to be, in TOML, and what has to be done for it. No input or output.

[roles]
billing = ["jwt-group:billing", "token:invoices"]

[[grants]]
subject = "role:billing"
verbs = ["observe", "read"]
resource = "namespace:shop"

[[tokens]]  # told by `export` for whoever reads it; `apply` makes and revokes none
id = "0123456789abcdef"
principal = "token:invoices"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from basalt.access.policy import parse_grant
from basalt.access.principal import check_member, check_subject_name
from basalt.api.bodies.access import GrantInfo, RoleInfo, TokenInfo
from basalt.errors import InputError

FILE_BYTES_MAX = 8 * 1024**2  # of 10,000 grants and 1,000 roles some 2 MiB
_SECTIONS = ("roles", "grants", "tokens")


class Granted(NamedTuple):
    """A grant as a file has it: two that say the same are one."""

    subject: str
    verbs: tuple[str, ...]  # in alphabetical order
    resource: str

    def __str__(self) -> str:
        return f"{', '.join(self.verbs)} on {self.resource} to {self.subject}"


@dataclass(frozen=True, slots=True)
class AccessFile:
    """Roles with their members, and grants."""

    roles: Mapping[str, frozenset[str]]
    grants: frozenset[Granted]


class Step(NamedTuple):
    """One thing to do: `add grant`, `remove grant` (by its id), `set role` or `remove role`."""

    act: str
    name: str  # of the role, or the id of the grant
    grant: Granted | None = None
    members: frozenset[str] = frozenset()
    told: str = ""


def parse(text: str) -> AccessFile:
    """The content of a file. `InputError` names what is wrong with it."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"it is not TOML: {error}", field="file") from None
    unknown = sorted(tree.keys() - set(_SECTIONS))
    if unknown:
        raise InputError(f"it has {unknown[0]!r}, which is none of {', '.join(_SECTIONS)}", field="file")
    roles, grants = tree.get("roles", {}), tree.get("grants", [])
    if not isinstance(roles, dict) or not isinstance(grants, list):
        raise InputError("roles is to be a table, and grants a list of tables: [roles], [[grants]]", field="file")
    return AccessFile(dict(map(_role, roles.items())), frozenset(_grants(grants)))


def compose(roles: Iterable[RoleInfo], grants: Iterable[GrantInfo], tokens: Iterable[TokenInfo]) -> str:
    """The text of a file that says what there is, always in the same order."""
    lines = [
        "# Roles and grants. Tokens are told for whoever reads this: `basalt access apply` makes and revokes none.",
        "",
        "[roles]",
    ]
    lines += [
        f"{_text(each.name)} = {_list(sorted(each.members))}" for each in sorted(roles, key=lambda each: each.name)
    ]
    for granted in sorted(Granted(each.subject, tuple(sorted(each.verbs)), each.resource) for each in grants):
        lines += ["", "[[grants]]", f"subject = {_text(granted.subject)}", f"verbs = {_list(granted.verbs)}"]
        lines.append(f"resource = {_text(granted.resource)}")
    for token in sorted(tokens, key=lambda each: (each.principal, each.id)):
        if token.state == "active" and not token.parent:
            lines += ["", "[[tokens]]", f"id = {_text(token.id)}", f"principal = {_text(token.principal)}"]
            lines += [f"note = {_text(token.note)}"] if token.note else []
    return "\n".join(lines) + "\n"


def steps(wanted: AccessFile, roles: Sequence[RoleInfo], grants: Sequence[GrantInfo], *, prune: bool) -> Iterator[Step]:
    """The steps that make things as the file has them, in an order in which nobody has rights in between that they have neither before nor after.

    So members leave before their role gets more, and come when it has what it is to have. Without `prune` what the file does not name stays.
    """
    present = {each.name: frozenset(each.members) for each in roles}
    ids = {Granted(each.subject, tuple(sorted(each.verbs)), each.resource): each.id for each in grants}
    growing = {granted.subject.removeprefix("role:") for granted in wanted.grants - ids.keys()}
    pruned = present.keys() - wanted.roles.keys() if prune else frozenset[str]()
    for name in sorted(pruned & growing):
        yield _remove_role(name)
    for name in sorted(wanted.roles.keys() & present.keys() & growing):
        left = present[name] & wanted.roles[name]
        if left != present[name]:
            yield _set_role(name, present[name], left)
            present[name] = left
    for granted in sorted(wanted.grants - ids.keys()):
        yield Step("add grant", "", granted, told=f"grant {granted}")
    for granted in sorted(ids.keys() - wanted.grants) if prune else ():
        told = f"take back {', '.join(granted.verbs)} on {granted.resource} from {granted.subject}"
        yield Step("remove grant", ids[granted], granted, told=told)
    for name, members in sorted(wanted.roles.items()):
        if present.get(name) != members:
            yield _set_role(name, present.get(name, frozenset()), members)
    for name in sorted(pruned - growing):
        yield _remove_role(name)


def _remove_role(name: str) -> Step:
    return Step("remove role", name, told=f"remove role {name}")


def _set_role(name: str, before: frozenset[str], after: frozenset[str]) -> Step:
    changes = [f"+{each}" for each in sorted(after - before)] + [f"-{each}" for each in sorted(before - after)]
    return Step("set role", name, members=after, told=f"role {name}: {' '.join(changes) or 'no members'}")


def _role(item: tuple[str, Any]) -> tuple[str, frozenset[str]]:
    name, members = item
    if not isinstance(members, list) or not all(isinstance(each, str) for each in members):
        raise InputError(f"role {name!r} is no list of principals and groups", field="file")
    return check_subject_name(name), frozenset(map(check_member, members))


def _grants(tables: Sequence[Any]) -> Iterator[Granted]:
    for number, table in enumerate(tables, 1):
        try:
            if not isinstance(table, dict) or table.keys() != {"subject", "verbs", "resource"}:
                raise InputError("it has other keys than subject, verbs and resource", field="file")
            subject, verbs, resource = table["subject"], table["verbs"], table["resource"]
            texts = isinstance(subject, str) and isinstance(resource, str)
            if not texts or not isinstance(verbs, list) or not all(isinstance(each, str) for each in verbs):
                raise InputError("subject and resource are text, and verbs is a list of texts", field="file")
            grant = parse_grant(subject, verbs, resource)
        except InputError as error:
            raise InputError(f"grant {number}: {error.message}", field="file", hint=error.hint) from None
        yield Granted(grant.subject, tuple(sorted(grant.verbs)), str(grant.resource))


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # names are printable, so JSON's escapes are TOML's
