"""The file of `basalt access`: roles, grants and quotas as they are to be, in TOML, and what has to be done for it. No input or output.

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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from basalt.access.policy import parse_grant
from basalt.access.principal import check_member, check_subject, check_subject_name
from basalt.api.bodies.access import GrantInfo, QuotaRule, RoleInfo, SubjectQuota, TokenInfo
from basalt.errors import InputError

FILE_BYTES_MAX = 8 * 1024**2  # of 10,000 grants and 1,000 roles some 2 MiB
_SECTIONS = ("roles", "grants", "quotas", "tokens")


class Granted(NamedTuple):
    """A grant as a file has it: two that say the same are one."""

    subject: str
    verbs: tuple[str, ...]  # in alphabetical order
    resource: str

    def __str__(self) -> str:
        return f"{', '.join(self.verbs)} on {self.resource} to {self.subject}"


@dataclass(frozen=True, slots=True)
class AccessFile:
    """Roles with their members, grants, and quotas by subject."""

    roles: Mapping[str, frozenset[str]]
    grants: frozenset[Granted]
    quotas: Mapping[str, QuotaRule] = field(default_factory=dict)


class Step(NamedTuple):
    """One thing to do: `add grant`, `remove grant` (by its id), `set role`, `remove role`, `set quota` or `remove quota`."""

    act: str
    name: str  # of the role, the id of the grant, or the subject of the quota
    grant: Granted | None = None
    members: frozenset[str] = frozenset()
    rule: QuotaRule | None = None
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
    roles, grants, quotas = tree.get("roles", {}), tree.get("grants", []), tree.get("quotas", {})
    if not isinstance(roles, dict) or not isinstance(grants, list) or not isinstance(quotas, dict):
        told = 'roles and quotas are to be tables, and grants a list of tables: [roles], [[grants]], [quotas."SUBJECT"]'
        raise InputError(told, field="file")
    return AccessFile(dict(map(_role, roles.items())), frozenset(_grants(grants)), dict(map(_quota, quotas.items())))


def compose(
    roles: Iterable[RoleInfo], grants: Iterable[GrantInfo], quotas: Iterable[SubjectQuota], tokens: Iterable[TokenInfo]
) -> str:
    """The text of a file that says what there is, always in the same order."""
    lines = [
        "# Roles, grants and quotas. Tokens are told for whoever reads this: `basalt access apply` makes and revokes none.",
        "",
        "[roles]",
    ]
    lines += [
        f"{_text(each.name)} = {_list(sorted(each.members))}" for each in sorted(roles, key=lambda each: each.name)
    ]
    for granted in sorted(Granted(each.subject, tuple(sorted(each.verbs)), each.resource) for each in grants):
        lines += ["", "[[grants]]", f"subject = {_text(granted.subject)}", f"verbs = {_list(granted.verbs)}"]
        lines.append(f"resource = {_text(granted.resource)}")
    for quota in sorted(quotas, key=lambda each: each.subject):
        lines += ["", f"[quotas.{_text(quota.subject)}]"]
        lines += [
            f"{name} = {_text(limit) if isinstance(limit, str) else limit}" for name, limit in _limits(quota.rule)
        ]
    for token in sorted(tokens, key=lambda each: (each.principal, each.id)):
        if token.state == "active" and not token.parent:
            lines += ["", "[[tokens]]", f"id = {_text(token.id)}", f"principal = {_text(token.principal)}"]
            lines += [f"note = {_text(token.note)}"] if token.note else []
    return "\n".join(lines) + "\n"


def steps(
    wanted: AccessFile,
    roles: Sequence[RoleInfo],
    grants: Sequence[GrantInfo],
    quotas: Sequence[SubjectQuota],
    *,
    prune: bool,
) -> Iterator[Step]:
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
    rules = {each.subject: each.rule for each in quotas}
    for subject, rule in sorted(wanted.quotas.items()):
        if rules.get(subject) != rule:
            told = ", ".join(f"{name} {limit}" for name, limit in _limits(rule))
            yield Step("set quota", subject, rule=rule, told=f"quotas of {subject}: {told}")
    for subject in sorted(rules.keys() - wanted.quotas.keys()) if prune else ():
        yield Step("remove quota", subject, told=f"remove the quotas of {subject}")


def _limits(rule: QuotaRule) -> Iterator[tuple[str, int | str]]:
    """The limits that a rule names."""
    for name in QuotaRule.__struct_fields__:
        limit = getattr(rule, name)
        if limit is not None:
            yield name, limit


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


def _quota(item: tuple[str, Any]) -> tuple[str, QuotaRule]:
    subject, limits = item
    fits = isinstance(limits, dict) and bool(limits) and limits.keys() <= set(QuotaRule.__struct_fields__)
    if not fits or not all(limit == "off" or (type(limit) is int and limit > 0) for limit in limits.values()):
        what = f'a whole number or "off" for some of {", ".join(QuotaRule.__struct_fields__)}'
        raise InputError(f"quotas of {subject!r} are not {what}", field="file")
    return check_subject(subject), QuotaRule(**limits)


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
