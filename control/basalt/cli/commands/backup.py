"""`basalt backup`: a copy of a server's store, made while it runs."""

from __future__ import annotations

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options, dry_run_option
from basalt.cli.output.rows import row


@click.command(cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_session
def backup(session: Session, name: str, dry_run: bool) -> None:
    """Copy a server's store while it runs.

    The copy is consistent, and lies under NAME where the server keeps its backups: a directory for `basalt serve --data`.
    """
    with session.client() as client:
        if dry_run:
            store = client.admin.store()
            session.out.done(f"would back up the {store.kind} store as {name}", {"name": name, "dry_run": True})
            return
        made = row(client.admin.backup(name))
    session.out.done(f"backed up as {made['path']}", made)
