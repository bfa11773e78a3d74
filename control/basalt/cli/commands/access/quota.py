"""`basalt quota`: how much of a server a principal may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.failures import Usage
from basalt.cli.options import Invocation, author_options, dry_run_option
from basalt.cli.output import Column, columns, count_text, plain, row, size_text
from basalt.cli.root import group

if TYPE_CHECKING:
    from basalt.api.bodies.access import QuotaLimit, SubjectQuota

quota = group("quota", "Show and set how much of a server a principal may use.")

UNSET = "unset"  # the rule says nothing of this quota any more

_QUOTAS = {
    "requests_per_s": "Requests a second.",
    "publish_bytes_per_s": "Bytes a second that it publishes, as 4MiB.",
    "fetch_bytes_per_s": "Bytes a second that it reads.",
    "open_transactions": "Open transactions at a time.",
    "sessions": "Named sessions that are remembered.",
    "topics": "Topics that it created.",
    "waiting_fetches": "Fetches that wait for a message at a time.",
}


class LimitText(click.ParamType[str]):
    """A number, with a unit for bytes; `off`: no limit; `unset`: the rule says nothing."""

    name = "limit"

    def __init__(self, quota_name: str) -> None:
        self._is_size = "bytes" in quota_name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from basalt.settings.kinds import Limit, SizeLimit
        from basalt.settings.tree import QUOTA_MAX

        text = str(value)
        if text in ("off", UNSET):
            return text
        try:
            return str((SizeLimit if self._is_size else Limit)("", 1, QUOTA_MAX).read(text))
        except ValueError as error:
            self.fail(f"{text[:60]!r} {error}", param, ctx)


def _limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed(_QUOTAS.items()):
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, type=LimitText(name), metavar="N|off|unset", help=text)(function)
    return function


_RULES = columns("subject " + " ".join(_QUOTAS) + " made_by", **{name: name.replace("_", " ") for name in _QUOTAS})
_subject = click.argument("subject")


@quota.call("list")
def list_quotas(invocation: Invocation) -> None:
    """List the rules: of principals, groups, roles, and everyone."""
    with invocation.client() as client:
        rows = [_flat(found) for found in client.quotas.list()]
    invocation.out.rows(_RULES, rows)


@quota.call("show")
@_subject
def show(invocation: Invocation, subject: str) -> None:
    """Show what is in force for a principal, by whose rule, and what it uses; of others, their rule.

    \b
    basalt quota show token:etl
    basalt quota show role:batch
    """
    with invocation.client() as client:
        found = client.quotas.describe(subject)
    if not invocation.out.for_people:
        invocation.out.record(row(found))
        return
    if not found.in_force:
        invocation.out.record({} if found.rule is None else row(found.rule))
        return
    rows = [row(each) for each in found.in_force]
    for each in rows:
        text = size_text if "bytes" in each["quota"] else count_text
        each["limit"] = "off" if each["limit"] is None else text(each["limit"])
        each["used"] = text(each["used"])
    invocation.out.rows((Column("quota"), Column("limit"), Column("by"), Column("used")), rows)


@quota.call("set")
@_subject
@_limit_options
@author_options
@dry_run_option
def set_quota(invocation: Invocation, subject: str, reason: str, by: str, dry_run: bool, **given: str | None) -> None:
    """Set quotas of a principal, a group, role:NAME or everyone. Those that are not given stay as they are.

    The rule of the principal itself comes first, then the most generous one of its groups and roles, then that of everyone, and last the
    server's settings. off: no limit. unset: the rule says nothing of that quota any more.

    \b
    basalt quota set everyone --requests-per-s 500 --open-transactions 100
    basalt quota set token:etl --publish-bytes-per-s 20MiB --requests-per-s off
    """
    changes = {name: text for name, text in given.items() if text is not None}
    if not changes:
        raise Usage("no quota is given", hint="name one, as in --requests-per-s 100")
    with invocation.client() as client:
        before = client.quotas.describe(subject).rule
        limits: dict[str, QuotaLimit] = {} if before is None else row(before)
        limits |= {name: _limit(text) for name, text in changes.items()}
        if all(limit is None for limit in limits.values()):
            raise Usage("nothing would be left of the rule", hint=f"`basalt quota remove {subject}` removes it")
        found = client.quotas.set(subject, **limits, reason=reason, by=by, dry_run=dry_run)
    said = ", ".join(f"{name} {plain(limit)}" for name, limit in row(found.rule).items() if limit is not None)
    verb = "would set" if dry_run else "set"
    invocation.out.done(f"{verb} the quotas of {subject}: {said}", {**_flat(found), "dry_run": dry_run})


@quota.call("remove")
@_subject
@author_options
@dry_run_option
def remove(invocation: Invocation, subject: str, reason: str, by: str, dry_run: bool) -> None:
    """Remove the rule of a principal, a group, role:NAME or everyone."""
    with invocation.client() as client:
        found = client.quotas.remove(subject, reason=reason, by=by, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    invocation.out.done(f"{verb} the quotas of {subject}", {**_flat(found), "dry_run": dry_run})


def _limit(text: str) -> QuotaLimit:
    if text == UNSET:
        return None
    return "off" if text == "off" else int(text)


def _flat(found: SubjectQuota) -> dict[str, Any]:
    return {"subject": found.subject, **row(found.rule), "changed_ms": found.changed_ms, "made_by": found.made_by}
