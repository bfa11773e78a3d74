"""`basalt tx`: transactions, begun and ended by hand."""

from __future__ import annotations

import click

from basalt.api.bodies.transactions import ForcedEnd
from basalt.cli.commands import tx_inspect as tx_seeing
from basalt.cli.commands.session import sessions
from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import (
    Command,
    DurationMs,
    TransactionId,
    author_options,
    common_options,
    confirm,
    dry_run_option,
    yes_option,
)
from basalt.cli.output.output import Column, time_text
from basalt.cli.output.rows import row, transaction_row
from basalt.cli.root import group

tx = group("tx", "Begin, end, list, describe and find transactions.")
for command in (tx_seeing.list_open, tx_seeing.describe, tx_seeing.find_hanging, tx_seeing.timeline):
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
@pass_session
def show(session: Session, transaction: str) -> None:
    """Show one transaction, open or ended a while ago."""
    with session.client() as client:
        shown = transaction_row(client.transactions.get(transaction))
    session.out.record(shown, _ALL_COLUMNS)


@tx.command("begin", cls=Command)
@click.option("--long", "long_one", is_flag=True, help="May take hours; takes no part in conflict detection.")
@click.option("--expires", "expires_ms", type=DurationMs(), metavar="DURATION", help="End it after this time.")
@click.option("--owner", default="", metavar="TEXT", help="Who to ask about it.")
@dry_run_option
@common_options
@pass_session
def begin(session: Session, long_one: bool, expires_ms: int | None, owner: str, dry_run: bool) -> None:
    """Begin a transaction, to be used with `basalt publish --tx` and ended with `basalt tx commit`."""
    kind = "long" if long_one else "short"
    if dry_run:
        wanted = {"kind": kind, "timeout_ms": expires_ms, "owner": owner, "dry_run": True}
        session.out.done(f"would begin a {kind} transaction", wanted)
        return
    with session.client() as client:
        begun = client.transactions.begin(
            kind="long" if long_one else "short", timeout_ms=expires_ms, owner=owner, snapshot=False
        )
    shown = transaction_row(begun)
    session.out.done(f"began transaction {shown['id']}, which times out at {time_text(shown['expires_ms'])}", shown)


@tx.command("commit", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@dry_run_option
@common_options
@pass_session
def commit(session: Session, transaction: str, dry_run: bool) -> None:
    """Commit a transaction: what was stored under it is published in all its topics, or in none."""
    with session.client() as client:
        if dry_run:
            info = client.transactions.get(transaction)
            would = {"id": info.id, "state": info.state, "action": "commit", "dry_run": True}
            session.out.done(f"would commit transaction {info.id}, which is {info.state}", would)
            return
        ended = client.transactions.commit(transaction)
    done = {"id": ended.id, "write_pointer": ended.write_pointer, "state": ended.state}
    session.out.done(f"transaction {ended.id} is {ended.state}", done)


@tx.command("abort", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@author_options
@click.option("--force", is_flag=True, help="Abort it though it has writes outside Basalt: its client has undone them.")
@yes_option
@dry_run_option
@common_options
@pass_session
def abort(session: Session, transaction: str, reason: str, by: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Abort a transaction: nothing of it is ever seen by readers of committed messages.

    Refused where it has writes outside Basalt, which only its client can undo: invalidate it then.
    """
    if not dry_run:
        confirm(f"Abort transaction {transaction}, and lose what it stored?", yes=yes)
    with session.client() as client:
        ended = client.admin.abort_transaction(transaction, reason=reason, by=by, force=force, dry_run=dry_run)
    _tell(session, ended)


@tx.command("invalidate", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@author_options
@yes_option
@dry_run_option
@common_options
@pass_session
def invalidate(session: Session, transaction: str, reason: str, by: str, yes: bool, dry_run: bool) -> None:
    """Hide a transaction's writes for good, for one that nobody can roll back any more."""
    if not dry_run:
        confirm(f"Invalidate transaction {transaction}, and hide what it wrote for good?", yes=yes)
    with session.client() as client:
        ended = client.admin.invalidate_transaction(transaction, reason=reason, by=by, dry_run=dry_run)
    _tell(session, ended)


def _tell(session: Session, ended: ForcedEnd) -> None:
    shown = row(ended)
    if not shown["changed"]:
        sentence = f"transaction {shown['id']} was {shown['state']} before"
    elif shown["dry_run"]:
        sentence = f"transaction {shown['id']} is {shown['was']} and would be {shown['state']}"
    else:
        sentence = f"transaction {shown['id']} is {shown['state']}"
    session.out.done(sentence, shown)
