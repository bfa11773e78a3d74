"""`basalt role`: principals and groups under one name, to which rights are granted."""

from __future__ import annotations

from typing import Any

import click

from basalt.cli.commands.access.grant import tell_changes
from basalt.cli.options import Invocation, Name, author_options, confirm, dry_run_option, yes_option
from basalt.cli.output import columns, counted, row
from basalt.cli.root import group

role = group("role", "Put principals and groups together under a name, for grants to role:NAME.")

ROLE = Name(lambda client: ((each.name, None) for each in client.roles.list()))
_LIST = columns("name members changed_ms made_by", changed_ms="changed", made_by="made by")


@role.call("list")
def list_roles(invocation: Invocation) -> None:
    """List roles: yours, or all if you may give rights on the cluster or inspect it."""
    invocation.show_all(_LIST, lambda client: sorted(client.roles.list(), key=lambda each: each.name))


@role.call("show")
@click.argument("name", type=ROLE)
def show(invocation: Invocation, name: str) -> None:
    """Show a role and its members."""
    with invocation.client() as client:
        found = client.roles.get(name)
    invocation.out.record(row(found), _LIST if invocation.out.for_people else ())


@role.call("set")
@click.argument("name", type=ROLE)
@click.argument("members", nargs=-1, metavar="[MEMBER...]")
@click.option("--no-members", is_flag=True, help="Leave it without any: its grants stay, and nobody has them by it.")
@author_options
@dry_run_option
def set_role(
    invocation: Invocation, name: str, members: tuple[str, ...], no_members: bool, dry_run: bool, **author: Any
) -> None:
    """Make a role, or give it other members: all of them, principals and groups.

    A role without any must be asked for, so that an empty variable of a script does not empty it. Whoever does it must have every right of the role.

    \b
    basalt role set billing token:invoices jwt-group:billing
    basalt grant add role:billing reader namespace:shop
    """
    if bool(members) == no_members:
        text = "name no member beside --no-members" if no_members else "name the members, or say --no-members"
        raise click.UsageError(text)
    with invocation.client() as client:
        before = {each.name: set(each.members) for each in client.roles.list()}.get(name, set())
        found = client.roles.set(name, members, dry_run=dry_run, **author)
    after = set(found.members)
    changes = [f"+{each}" for each in sorted(after - before)] + [f"-{each}" for each in sorted(before - after)]
    what = f"role {name}: {counted(len(after), 'member')} ({' '.join(changes) or 'as before'})"
    sentence = f"would set {what}" if dry_run else f"set {what}"
    invocation.out.done(sentence, {**row(found), "dry_run": dry_run})
    if dry_run:
        tell_changes(invocation, found)


@role.call("remove")
@click.argument("name", type=ROLE)
@author_options
@yes_option
@dry_run_option
def remove(invocation: Invocation, name: str, yes: bool, dry_run: bool, **author: Any) -> None:
    """Remove a role. What was granted to it stays granted to a later role of its name."""
    if not dry_run:
        confirm(f"Remove role {name}?", yes=yes)
    with invocation.client() as client:
        found = client.roles.remove(name, dry_run=dry_run, **author)
    what = f"role {name}, which has {counted(len(found.members), 'member')}"
    sentence = f"would remove {what}" if dry_run else f"removed {what}"
    invocation.out.done(sentence, {**row(found), "dry_run": dry_run})
    if dry_run:
        tell_changes(invocation, found)
