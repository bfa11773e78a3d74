"""`basalt tx sessions`: named sessions, of whose runs only the newest may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, author_options, common_options, confirm, dry_run_option, yes_option
from basalt.cli.output.output import Column, time_text
from basalt.cli.root import group

if TYPE_CHECKING:
    from basalt.client import SessionInfo

sessions = group("sessions", "List, show and delete named sessions.")

_COLUMNS = (
    Column("name"),
    Column("run"),
    Column("epoch"),
    Column("version"),
    Column("used_ms", time_text, "used"),
    Column("transactions"),
)
_ALL_COLUMNS = (*_COLUMNS, Column("committed_by"), Column("ledger"), Column("replaced"))


@sessions.command("list", cls=Command)
@common_options
@pass_session
def list_known(session: Session) -> None:
    """List the sessions, with the run that holds each, and the version that it has committed."""
    with session.client() as client:
        rows = [_row(found) for found in client.sessions.list()]
    session.out.rows(_COLUMNS, rows)


@sessions.command("show", cls=Command)
@click.argument("name")
@common_options
@pass_session
def show(session: Session, name: str) -> None:
    """Show one session."""
    with session.client() as client:
        shown = _row(client.sessions.get(name))
    session.out.record(shown, _ALL_COLUMNS)


@sessions.command("delete", cls=Command)
@click.argument("name")
@author_options
@yes_option
@dry_run_option
@common_options
@pass_session
def delete(session: Session, name: str, reason: str, by: str, yes: bool, dry_run: bool) -> None:
    """End what is open in a session, and forget it and its version: work that it has committed may be committed again."""
    with session.client() as client:
        found = client.sessions.get(name)
        told = f"session {name}, which has committed {_version(found.version)}"
        result = {"name": name, "version": found.version, "transactions": found.transactions, "dry_run": dry_run}
        if dry_run:
            session.out.done(f"would delete {told}", result)
            return
        confirm(f"Delete {told}?", yes=yes)
        client.sessions.delete(name, reason=reason, by=by)
    session.out.done(f"deleted session {name}", result)


def _row(info: SessionInfo) -> dict[str, Any]:
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
