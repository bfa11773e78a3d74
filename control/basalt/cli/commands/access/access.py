"""`basalt access`: roles, grants and quotas as one file that is reviewed and kept like code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from basalt.cli.failures import EXIT_USAGE, CommandFailure
from basalt.cli.options import Invocation, author_options, confirm, dry_run_option, yes_option
from basalt.cli.output import counted, printable
from basalt.cli.root import group
from basalt.errors import BasaltError, InputError

if TYPE_CHECKING:
    from basalt.api.bodies.access import SubjectQuota
    from basalt.cli.commands.access.access_file import AccessFile, Step
    from basalt.client import Client

access = group("access", "Keep roles, grants and quotas in a file: export them, and apply it.")


@access.call("export")
def export(invocation: Invocation) -> None:
    """Print roles, grants and quotas as TOML, always in the same order; and tokens by id, for whoever reads it."""
    from basalt.cli.commands.access.access_file import compose

    with invocation.client() as client:
        text = compose(client.roles.list(), client.grants.list(), _quotas(client), client.tokens.list())
    invocation.out.line(text.rstrip("\n"))


@access.call("apply")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--prune", is_flag=True, help="Take back grants, and remove roles and quotas, that the file does not have."
)
@author_options
@yes_option
@dry_run_option
def apply(invocation: Invocation, file: Any, prune: bool, yes: bool, dry_run: bool, **author: Any) -> None:
    """Make roles, grants and quotas as FILE has them; applied again it changes nothing. - is standard input.

    What fails leaves the rest undone; applied again it goes on. Tokens are left alone.

    \b
    basalt access export > access.toml
    basalt access apply access.toml --prune --dry-run
    """
    from basalt.cli.commands.access.access_file import steps

    wanted = _read(file)
    with invocation.client() as client:
        todo = list(steps(wanted, client.roles.list(), client.grants.list(), _quotas(client), prune=prune))
        if dry_run or not todo:
            _tell(invocation, todo, "would be done" if todo else "is as the file has it", dry_run=dry_run)
            return
        removals = sum(step.act.startswith("remove") for step in todo)
        if removals:
            confirm(f"Take back grants or remove roles and quotas, {removals} in all?", yes=yes)
        for number, step in enumerate(todo):
            try:
                _do(client, step, author)
            except BasaltError as error:
                error.add_note(f"{number} of {len(todo)} changes are made; this one failed: {step.told}")
                raise
    _tell(invocation, todo, "done", dry_run=False)


def _quotas(client: Client) -> list[SubjectQuota]:
    """The quotas, if one may see them. It says what else one does not see."""
    inspects, gives = (client.auth.check(verb, "cluster").allowed for verb in ("inspect", "grant"))
    if not inspects:
        what = "no quotas" if gives else "what concerns yourself alone, and no quotas"
        click.echo(f"basalt: you see {what}; all is for who has inspect on cluster", err=True)
    return client.quotas.list() if inspects else []


def _read(file: Any) -> AccessFile:
    from basalt.cli.commands.access.access_file import FILE_BYTES_MAX, parse

    content: bytes = file.read(FILE_BYTES_MAX + 1)
    try:
        if len(content) > FILE_BYTES_MAX:
            raise InputError(f"it has more than {FILE_BYTES_MAX} bytes")
        return parse(content.decode())
    except (InputError, UnicodeDecodeError) as error:
        told = error.message if isinstance(error, InputError) else "it is not UTF-8"
        hint = error.hint if isinstance(error, InputError) else None
        raise CommandFailure(
            f"{file.name}: {told}", hint=hint or "`basalt access export` shows how it is written", exit_code=EXIT_USAGE
        ) from None


def _do(client: Client, step: Step, author: dict[str, Any]) -> None:
    if step.act == "add grant":
        assert step.grant is not None
        client.grants.add(*step.grant, **author)
    elif step.act == "remove grant":
        client.grants.remove(step.name, **author)
    elif step.act == "set role":
        client.roles.set(step.name, step.members, **author)
    elif step.act == "remove role":
        client.roles.remove(step.name, **author)
    elif step.act == "set quota":
        assert step.rule is not None
        client.quotas.set(step.name, **structs.asdict(step.rule), **author)
    else:
        client.quotas.remove(step.name, **author)


def _tell(invocation: Invocation, todo: Sequence[Step], outcome: str, *, dry_run: bool) -> None:
    if invocation.out.for_people:
        for step in todo:
            invocation.out.line(printable(step.told))
        click.echo(f"basalt: {counted(len(todo), 'change')} {outcome}" if todo else f"basalt: all {outcome}", err=True)
        return
    invocation.out.record({"changes": [step.told for step in todo], "dry_run": dry_run})
