"""`basalt token`: tokens made, listed, rotated and revoked. A token's text is shown once, when it is made; its id is no secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.failures import EXIT_CONFLICT, CommandFailure
from basalt.cli.options import (
    DurationMs,
    Invocation,
    Name,
    author_options,
    confirm,
    dry_run_option,
    limit_option,
    yes_option,
)
from basalt.cli.output import Column, columns, plain, row, time_text
from basalt.cli.private_file import PrivateFile
from basalt.cli.root import group

if TYPE_CHECKING:
    from basalt.api.bodies.access import NewToken

token = group("token", "Make, list, rotate and revoke tokens.")

NEVER = "never"

TOKEN = Name(lambda client: ((each.id, each.principal) for each in client.tokens.list() if each.state == "active"))


def _rights_text(value: object) -> str:
    if not isinstance(value, list):
        return plain(value)
    return "; ".join(f"{', '.join(each['verbs'])} on {each['resource']}" for each in value) or "nothing"


_LIST = columns(
    "id principal state created_ms expires_ms used_ms made_by note",
    created_ms="created",
    expires_ms="expires",
    used_ms="used",
    made_by="made by",
)
_SHOWN = (
    *columns("id principal state created_ms expires_ms used_ms used_from made_by parent networks note", created_ms="created",
             expires_ms="expires", used_ms="used", used_from="used from", made_by="made by"),
    Column("only", _rights_text),
)  # fmt: skip


class Ttl(DurationMs):
    """A duration, or `never`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value == NEVER else super().convert(value, param, ctx)


class VerbsOn(click.ParamType[tuple[str, tuple[str, ...]]]):
    """Verbs with commas between them, a space, and what they are on; as `basalt grant add` has them."""

    name = "verbs resource"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[str, ...]]:
        if isinstance(value, tuple):
            return value
        verbs, _, resource = str(value).strip().partition(" ")
        if not resource:
            self.fail(
                f"{str(value)[:80]!r} is not VERBS RESOURCE, such as 'observe,read topic:shop:orders'", param, ctx
            )
        return resource.strip(), tuple(verbs.split(","))


_to_file = click.option(
    "--to-file", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH",
    help="Write the token to this file, which only you can read, and not to standard output.",
)  # fmt: skip


@token.call("create")
@click.argument("name")
@click.option(
    "--ttl", "ttl_ms", type=Ttl(minimum_ms=1_000), default="90d", metavar="DURATION",
    help="How long it lasts, or never. [default: 90d]",
)  # fmt: skip
@click.option(
    "--only", type=VerbsOn(), multiple=True, metavar="'VERBS RESOURCE'",
    help="Limit it to these rights of its principal. Repeatable.",
)  # fmt: skip
@click.option("--network", "networks", multiple=True, metavar="CIDR", help="It counts from here alone. Repeatable.")
@click.option("--note", default="", metavar="TEXT", help="What it is for.")
@_to_file
@author_options
@dry_run_option
def create(
    invocation: Invocation, name: str, ttl_ms: int, only: tuple[tuple[str, tuple[str, ...]], ...], networks: tuple[str, ...],
    note: str, to_file: Path | None, dry_run: bool, **author: Any,
) -> None:  # fmt: skip
    """Make a token of the principal token:NAME, and print it: this once, for the server keeps only a hash.

    It has the rights that are granted to token:NAME, and none without a grant. Whoever makes it must have all of them.

    \b
    basalt token create etl --to-file /etc/basalt/etl.token
    basalt grant add token:etl writer namespace:shop
    """
    rights: dict[str, tuple[str, ...]] = {}
    for resource, verbs in only:
        rights[resource] = (*rights.get(resource, ()), *verbs)
    with invocation.client() as client:
        _made(
            invocation, to_file, dry_run, replace=False,
            make=lambda: client.tokens.create(
                name, ttl_ms=ttl_ms or None, only=rights or None, networks=networks, note=note, dry_run=dry_run, **author
            ),
        )  # fmt: skip


@token.call("rotate")
@click.argument("token_id", metavar="ID", type=TOKEN)
@click.option(
    "--overlap", "overlap_ms", type=DurationMs(minimum_ms=0), default="1d", metavar="DURATION",
    help="How long the old one goes on beside it. [default: 1d]",
)  # fmt: skip
@_to_file
@author_options
@dry_run_option
def rotate(
    invocation: Invocation, token_id: str, overlap_ms: int, to_file: Path | None, dry_run: bool, **author: Any
) -> None:
    """Make a token that takes another one's place, with the same rights and for as long, and print it.

    A file of --to-file is replaced as a whole: a client that reads the token there takes the new one by itself.
    """
    with invocation.client() as client:
        _made(
            invocation, to_file, dry_run, replace=True,
            make=lambda: client.tokens.rotate(token_id, overlap_ms=overlap_ms, dry_run=dry_run, **author),
        )  # fmt: skip


@token.call("list")
@click.option("--all", "everything", is_flag=True, help="Those that count no more and logins, too.")
@click.option("--principal", metavar="PRINCIPAL", help="Only those of this principal.")
@click.option("--after", metavar="ID", help="Only those behind this id.")
@limit_option(10_000, 20_000, "")
def list_tokens(invocation: Invocation, everything: bool, principal: str | None, after: str | None, limit: int) -> None:
    """List tokens, without their secrets: your own, or all if you may give rights on the cluster or inspect it."""
    with invocation.client() as client:
        found = client.tokens.list(principal=principal, active=not everything, after=after, limit=limit)
    invocation.out.rows(
        _LIST, [row(each) for each in sorted(found, key=lambda each: (each.principal, each.created_ms))]
    )


@token.call("show")
@click.argument("token_id", metavar="ID", type=TOKEN)
def show(invocation: Invocation, token_id: str) -> None:
    """Show a token, without its secret."""
    with invocation.client() as client:
        found = client.tokens.get(token_id)
    invocation.out.record(row(found), _SHOWN if invocation.out.for_people else ())


@token.call("revoke")
@click.argument("token_id", metavar="ID", type=TOKEN)
@author_options
@yes_option
@dry_run_option
def revoke(invocation: Invocation, token_id: str, yes: bool, dry_run: bool, **author: Any) -> None:
    """Have a token count no more, and nor the logins that were made with it. It does not come back."""
    if not dry_run:
        confirm(f"Revoke token {token_id}?", yes=yes)
    with invocation.client() as client:
        found = client.tokens.revoke(token_id, dry_run=dry_run, **author)
    what = f"token {token_id} of {found.principal}"
    sentence = f"would revoke {what}" if dry_run else f"revoked {what}"
    invocation.out.done(sentence, {**row(found), "dry_run": dry_run})


def _made(
    invocation: Invocation, to_file: Path | None, dry_run: bool, *, replace: bool, make: Callable[[], NewToken]
) -> None:
    if dry_run:
        made = make()
        invocation.out.done(f"would make a token of {made.info.principal}", {**row(made.info), "dry_run": True})
        return
    if to_file is None:
        made = make()
        # Alone on standard output, so that `TOKEN=$(basalt token create …)` is one.
        invocation.out.done(made.token or "", {"token": made.token, **row(made.info)})
        click.echo(f"basalt: {_told(made)}; it is shown this once", err=True)
        return
    with _file(to_file, replace=replace) as file:
        made = make()
        file.fill(f"{made.token}\n")
    invocation.out.done(f"{_told(made)} in {to_file}", {**row(made.info), "file": str(to_file)})


def _told(made: NewToken) -> str:
    ends = made.info.expires_ms
    until = "for ever" if ends is None else f"until {time_text(ends)}"
    return f"token {made.info.id} of {made.info.principal}, {until}"


@contextmanager
def _file(path: Path, *, replace: bool) -> Iterator[PrivateFile]:
    try:
        with PrivateFile(path, replace=replace) as file:
            yield file
    except FileExistsError:
        raise CommandFailure(
            f"{path} is there already, and no token was made", hint="name another file, or remove it", exit_code=EXIT_CONFLICT
        ) from None  # fmt: skip
