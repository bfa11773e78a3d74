"""`basalt grant`: rights given, listed and taken back; by verbs, or by the shape of what somebody does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from basalt.access.resources import EVERYTHING, KINDS, parse_resource, shape
from basalt.cli.failures import Usage
from basalt.cli.options import Invocation, Name, author_options, confirm, dry_run_option, limit_option, yes_option
from basalt.cli.output import columns, counted, printable, row, time_text
from basalt.cli.root import group
from basalt.errors import InputError

if TYPE_CHECKING:
    from basalt.api.bodies.access import GrantInfo, RoleInfo

grant = group("grant", "Give rights, list them and take them back.")

# What somebody does, and the verbs that it takes; the first is the one without which the shape means nothing.
SHAPES: dict[str, tuple[str, ...]] = {
    "reader": ("read", "observe"),
    "writer": ("write", "observe"),
    "owner": ("manage", "observe", "read", "write", "inspect"),
    "operator": ("operate", "observe", "inspect"),
    "auditor": ("inspect", "observe"),
}
DAYS_MAX = 3_660
GRANTS_MAX = 10_000  # that there are at most

GRANT = Name(lambda client: ((each.id, f"{each.subject} {each.resource}") for each in client.grants.list()))
_LIST = columns("id subject verbs resource used_ms made_by", used_ms="used", made_by="made by")


@grant.call("add")
@click.argument("subject")
@click.argument("verbs")
@click.argument("resource")
@author_options
@dry_run_option
def add(invocation: Invocation, subject: str, verbs: str, resource: str, dry_run: bool, **author: Any) -> None:
    """Give SUBJECT (a principal, a group, role:NAME or everyone) VERBS on RESOURCE.

    VERBS are verbs with commas between them, or one word for what somebody does: reader (observe, read), writer (observe, write),
    owner (all but grant), operator (observe, inspect, operate), auditor (observe, inspect). Of a word the verbs are kept that the
    resource takes. Whoever gives rights must have them, and `grant` on the resource.

    \b
    basalt grant add token:etl writer namespace:shop
    basalt grant add token:etl transact cluster
    basalt grant add jwt-group:data reader 'topic:shop:pay*'
    """
    given = verbs_on(verbs, resource)
    with invocation.client() as client:
        found = client.grants.add(subject, given, resource, dry_run=dry_run, **author)
    what = f"{', '.join(found.verbs)} on {found.resource} to {found.subject}"
    sentence = f"would grant {what}" if dry_run else f"granted {what}"
    invocation.out.done(sentence, {**row(found), "dry_run": dry_run})
    if dry_run:
        tell_changes(invocation, found)
    if verbs == "writer":
        click.echo(
            f"basalt: to begin transactions it needs another right: basalt grant add {subject} transact cluster",
            err=True,
        )


@grant.call("list")
@click.option("--subject", metavar="SUBJECT", help="Only those to this subject itself.")
@click.option("--resource", metavar="RESOURCE", help="Only those on this resource, as it was granted.")
@click.option("--unused-days", type=click.IntRange(1, DAYS_MAX), help="Only those that nobody needed for so many days.")
@click.option("--after", metavar="ID", help="Only those behind this id.")
@limit_option(GRANTS_MAX, GRANTS_MAX, "")
def list_grants(
    invocation: Invocation, subject: str | None, resource: str | None, unused_days: int | None, after: str | None,
    limit: int,
) -> None:  # fmt: skip
    """List grants: those to you, or all if you may give rights on the cluster or inspect it."""
    with invocation.client() as client:
        found = client.grants.list(subject=subject, unused_days=unused_days, after=after, limit=limit)
    _show(invocation, found, resource)


@grant.call("unused")
@click.option(
    "--days",
    type=click.IntRange(1, DAYS_MAX),
    default=30,
    show_default=True,
    help="Which nobody needed for so many days.",
)
def unused(invocation: Invocation, days: int) -> None:
    """List grants that nobody needed for long; younger ones are left out."""
    with invocation.client() as client:
        found = client.grants.list(unused_days=days)
    _show(invocation, found, None)


@grant.call("remove")
@click.argument("grant_id", metavar="ID", type=GRANT)
@author_options
@yes_option
@dry_run_option
def remove(invocation: Invocation, grant_id: str, yes: bool, dry_run: bool, **author: Any) -> None:
    """Take a grant back. --dry-run tells who used it last, and when."""
    if not dry_run:
        confirm(f"Take grant {grant_id} back?", yes=yes)
    with invocation.client() as client:
        found = client.grants.remove(grant_id, dry_run=dry_run, **author)
    what = f"{', '.join(found.verbs)} on {found.resource} from {found.subject}"
    users = f" by {', '.join(found.used_by)}" if found.used_by else ""
    used = "nobody has used it" if found.used_ms is None else f"last used {time_text(found.used_ms)}{users}"
    sentence = f"would take {what}; {used}" if dry_run else f"took {what}"
    invocation.out.done(sentence, {**row(found), "dry_run": dry_run})
    if dry_run:
        tell_changes(invocation, found)


def verbs_on(words: str, resource: str) -> tuple[str, ...]:
    """The verbs of these words on a resource: of a shape, those that the resource takes. `Usage` where that makes no sense."""
    if words not in SHAPES:
        return tuple(words.split(","))
    try:
        kind = parse_resource(resource).kind
    except InputError as error:
        raise Usage(error.message, hint=error.hint) from None
    # On messages `transact` is about pointers of another manager, whose owners nobody knows: that is said in its own word.
    meant = set(KINDS[kind].verbs) - ({"transact"} if kind in ("namespace", "topic") else set())
    found = tuple(verb for verb in SHAPES[words] if verb in meant)
    if SHAPES[words][0] not in found:
        fitting = [shape(each) for each in KINDS if SHAPES[words][0] in KINDS[each].verbs and each != EVERYTHING]
        raise Usage(f"{words} means nothing on {shape(kind)}", hint=f"it is for {', '.join(fitting)}")
    return tuple(sorted(found))


def tell_changes(invocation: Invocation, info: GrantInfo | RoleInfo) -> None:
    """Tell people who would gain or lose what."""
    if invocation.out.for_people:
        for line in _changes(info):
            invocation.out.line(printable(line))


def _changes(info: GrantInfo | RoleInfo) -> Iterator[str]:
    for each in info.changes:
        for word, rights in (("gains", each.gains), ("loses", each.loses)):
            for right in rights:
                yield f"  {each.subject} {word} {', '.join(right.verbs)} on {right.resource}"
    if not info.changes:
        yield "  nobody gains or loses a right by it"
    if info.left_out:
        yield f"  and {info.left_out} more members, who are not told here"


def _show(invocation: Invocation, found: Sequence[GrantInfo], resource: str | None) -> None:
    shown = [each for each in found if resource in (None, each.resource)]
    shown.sort(key=lambda each: (each.subject, each.resource))
    invocation.out.rows(_LIST, [row(each) for each in shown])
    if invocation.out.for_people and not shown:
        click.echo(f"basalt: {counted(len(found), 'grant')} in all, and none of these", err=True)
