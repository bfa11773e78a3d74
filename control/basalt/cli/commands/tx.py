"""`basalt tx`: transactions, begun and ended by hand, and named sessions. What looks after them is in `tx_inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from basalt.api.bodies.transactions import ForcedEnd
from basalt.cli.commands import tx_inspect
from basalt.cli.options.options import (
    Command,
    DurationMs,
    Invocation,
    TransactionId,
    author_options,
    common_options,
    confirm,
    dry_run_option,
    pass_invocation,
    yes_option,
)
from basalt.cli.output.output import Column, time_text
from basalt.cli.output.rows import row, transaction_row
from basalt.cli.root import group

if TYPE_CHECKING:
    from basalt.client import SessionInfo

sessions = group("sessions", "List, show and delete named sessions.")

_SESSIONS = (
    Column("name"),
    Column("run"),
    Column("epoch"),
    Column("version"),
    Column("used_ms", time_text, "used"),
    Column("transactions"),
)
_SESSION = (*_SESSIONS, Column("committed_by"), Column("ledger"), Column("replaced"))


@sessions.command("list", cls=Command)
@common_options
@pass_invocation
def list_sessions(invocation: Invocation) -> None:
    """List the sessions, with the run that holds each, and the version that it has committed."""
    with invocation.client() as client:
        rows = [_session_row(found) for found in client.sessions.list()]
    invocation.out.rows(_SESSIONS, rows)


@sessions.command("show", cls=Command)
@click.argument("name")
@common_options
@pass_invocation
def show_session(invocation: Invocation, name: str) -> None:
    """Show one session."""
    with invocation.client() as client:
        shown = _session_row(client.sessions.get(name))
    invocation.out.record(shown, _SESSION)


@sessions.command("delete", cls=Command)
@click.argument("name")
@author_options
@yes_option
@dry_run_option
@common_options
@pass_invocation
def delete_session(invocation: Invocation, name: str, reason: str, by: str, yes: bool, dry_run: bool) -> None:
    """End what is open in a session, and forget it and its version: work that it has committed may be committed again."""
    with invocation.client() as client:
        found = client.sessions.get(name)
        told = f"session {name}, which has committed {_version(found.version)}"
        result = {"name": name, "version": found.version, "transactions": found.transactions, "dry_run": dry_run}
        if dry_run:
            invocation.out.done(f"would delete {told}", result)
            return
        confirm(f"Delete {told}?", yes=yes)
        client.sessions.delete(name, reason=reason, by=by)
    invocation.out.done(f"deleted session {name}", result)


def _session_row(info: SessionInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "run": info.run,
        "epoch": info.epoch,
        "version": info.version,
        "committed_by": info.committed_by,
        "used_ms": info.used_ms,
        "transactions": list(info.transactions),
        "ledger": info.ledger,
        "replaced": list(info.replaced),
    }


def _version(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


tx = group("tx", "Begin, end, list, describe and find transactions.")
for command in (tx_inspect.list_open, tx_inspect.describe, tx_inspect.find_hanging, tx_inspect.timeline):
    tx.add_command(command)
tx.add_command(sessions)

_ALL_COLUMNS = (
    Column("id"),
    Column("state"),
    Column("kind"),
    Column("owner"),
    Column("began_ms", time_text, "began"),
    Column("expires_ms", time_text, "expires"),
    Column("topics"),
    Column("write_pointer"),
    Column("read_pointer"),
    Column("outside_writes"),
)


@tx.command("show", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@common_options
@pass_invocation
def show(invocation: Invocation, transaction: str) -> None:
    """Show one transaction, open or ended a while ago."""
    with invocation.client() as client:
        shown = transaction_row(client.transactions.get(transaction))
    invocation.out.record(shown, _ALL_COLUMNS)


@tx.command("begin", cls=Command)
@click.option("--long", "long_one", is_flag=True, help="May take hours; takes no part in conflict detection.")
@click.option("--expires", "expires_ms", type=DurationMs(), metavar="DURATION", help="End it after this time.")
@click.option("--owner", default="", metavar="TEXT", help="Who to ask about it.")
@dry_run_option
@common_options
@pass_invocation
def begin(invocation: Invocation, long_one: bool, expires_ms: int | None, owner: str, dry_run: bool) -> None:
    """Begin a transaction, to be used with `basalt publish --tx` and ended with `basalt tx commit`."""
    kind = "long" if long_one else "short"
    if dry_run:
        wanted = {"kind": kind, "timeout_ms": expires_ms, "owner": owner, "dry_run": True}
        invocation.out.done(f"would begin a {kind} transaction", wanted)
        return
    with invocation.client() as client:
        begun = client.transactions.begin(
            kind="long" if long_one else "short", timeout_ms=expires_ms, owner=owner, snapshot=False
        )
    shown = transaction_row(begun)
    invocation.out.done(f"began transaction {shown['id']}, which times out at {time_text(shown['expires_ms'])}", shown)


@tx.command("commit", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@dry_run_option
@common_options
@pass_invocation
def commit(invocation: Invocation, transaction: str, dry_run: bool) -> None:
    """Commit a transaction: what was stored under it is published in all its topics, or in none."""
    with invocation.client() as client:
        if dry_run:
            info = client.transactions.get(transaction)
            would = {"id": info.id, "state": info.state, "action": "commit", "dry_run": True}
            invocation.out.done(f"would commit transaction {info.id}, which is {info.state}", would)
            return
        ended = client.transactions.commit(transaction)
    done = {"id": ended.id, "write_pointer": ended.write_pointer, "state": ended.state}
    invocation.out.done(f"transaction {ended.id} is {ended.state}", done)


@tx.command("abort", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@author_options
@click.option("--force", is_flag=True, help="Abort it though it has writes outside Basalt: its client has undone them.")
@yes_option
@dry_run_option
@common_options
@pass_invocation
def abort(
    invocation: Invocation, transaction: str, reason: str, by: str, force: bool, yes: bool, dry_run: bool
) -> None:
    """Abort a transaction: nothing of it is ever seen by readers of committed messages.

    Refused where it has writes outside Basalt, which only its client can undo: invalidate it then.
    """
    if not dry_run:
        confirm(f"Abort transaction {transaction}, and lose what it stored?", yes=yes)
    with invocation.client() as client:
        ended = client.admin.abort_transaction(transaction, reason=reason, by=by, force=force, dry_run=dry_run)
    _tell(invocation, ended)


@tx.command("invalidate", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@author_options
@yes_option
@dry_run_option
@common_options
@pass_invocation
def invalidate(invocation: Invocation, transaction: str, reason: str, by: str, yes: bool, dry_run: bool) -> None:
    """Hide a transaction's writes for good, for one that nobody can roll back any more."""
    if not dry_run:
        confirm(f"Invalidate transaction {transaction}, and hide what it wrote for good?", yes=yes)
    with invocation.client() as client:
        ended = client.admin.invalidate_transaction(transaction, reason=reason, by=by, dry_run=dry_run)
    _tell(invocation, ended)


def _tell(invocation: Invocation, ended: ForcedEnd) -> None:
    shown = row(ended)
    if not shown["changed"]:
        sentence = f"transaction {shown['id']} was {shown['state']} before"
    elif shown["dry_run"]:
        sentence = f"transaction {shown['id']} is {shown['was']} and would be {shown['state']}"
    else:
        sentence = f"transaction {shown['id']} is {shown['state']}"
    invocation.out.done(sentence, shown)
