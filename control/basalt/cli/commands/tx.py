"""`basalt tx`: transactions, begun and ended by hand."""

from __future__ import annotations

from typing import Any

import click

from basalt.cli.answers import transaction_row
from basalt.cli.options import (
    Command,
    DurationMs,
    TransactionId,
    common_options,
    confirm,
    dry_run_option,
    yes_option,
)
from basalt.cli.output import Column, time_text
from basalt.cli.root import group
from basalt.cli.session import Session, pass_session

tx = group("tx", "Begin, list, show and end transactions.")

_COLUMNS = (
    Column("id"),
    Column("state"),
    Column("kind"),
    Column("owner"),
    Column("began_ms", time_text, "began"),
    Column("expires_ms", time_text, "expires"),
    Column("topics"),
)
_ALL_COLUMNS = (*_COLUMNS, Column("write_pointer"), Column("read_pointer"), Column("outside_writes"))


@tx.command("list", cls=Command)
@common_options
@pass_session
def list_open(session: Session) -> None:
    """List open transactions, oldest first."""
    with session.client() as client:
        rows = [transaction_row(info) for info in client.transactions.list()]
    session.out.rows(_COLUMNS, rows)


@tx.command("show", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@common_options
@pass_session
def show(session: Session, transaction: str) -> None:
    """Show one transaction, open or ended a while ago."""
    with session.client() as client:
        row = transaction_row(client.transactions.get(transaction))
    session.out.record(row, _ALL_COLUMNS)


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
    row = transaction_row(begun)
    session.out.done(f"began transaction {row['id']}, which times out at {time_text(row['expires_ms'])}", row)


@tx.command("commit", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@dry_run_option
@common_options
@pass_session
def commit(session: Session, transaction: str, dry_run: bool) -> None:
    """Commit a transaction: what was stored under it is published in all its topics, or in none."""
    _end(session, "commit", transaction, dry_run)


@tx.command("abort", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@yes_option
@dry_run_option
@common_options
@pass_session
def abort(session: Session, transaction: str, yes: bool, dry_run: bool) -> None:
    """Abort a transaction: nothing of it is ever seen by readers of committed messages."""
    if not dry_run:
        confirm(f"Abort transaction {transaction}, and lose what it stored?", yes=yes)
    _end(session, "abort", transaction, dry_run)


@tx.command("invalidate", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@yes_option
@dry_run_option
@common_options
@pass_session
def invalidate(session: Session, transaction: str, yes: bool, dry_run: bool) -> None:
    """Hide a transaction's writes for good, for one that nobody can roll back any more."""
    if not dry_run:
        confirm(f"Invalidate transaction {transaction}, and hide what it wrote for good?", yes=yes)
    _end(session, "invalidate", transaction, dry_run)


def _end(session: Session, verb: str, transaction: str, dry_run: bool) -> None:
    with session.client() as client:
        if dry_run:
            info = client.transactions.get(transaction)
            row: dict[str, Any] = {"id": info.id, "state": info.state, "action": verb, "dry_run": True}
            session.out.done(f"would {verb} transaction {info.id}, which is {info.state}", row)
            return
        if verb == "invalidate":
            changed = client.transactions.invalidate(transaction)
            sentence = (
                f"transaction {transaction} is invalid"
                if changed
                else f"transaction {transaction} was not open any more"
            )
            session.out.done(sentence, {"id": transaction, "invalidated": changed})
            return
        ended = client.transactions.commit(transaction) if verb == "commit" else client.transactions.abort(transaction)
    row = {"id": ended.id, "write_pointer": ended.write_pointer, "state": ended.state}
    session.out.done(f"transaction {ended.id} is {ended.state}", row)
