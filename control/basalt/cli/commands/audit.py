"""`basalt audit`: what was done by hand, by whom, why, and how it ended."""

from __future__ import annotations

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options
from basalt.cli.output.output import Column, time_text
from basalt.cli.output.rows import row
from basalt.cli.root import group

audit = group("audit", "Show what was done by hand, by whom and why.")

_COLUMNS = (
    Column("at_ms", time_text, "when"),
    Column("act"),
    Column("what"),
    Column("outcome"),
    Column("reason"),
    Column("name", title="by"),
    Column("address", title="from"),
)


@audit.command("list", cls=Command)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@common_options
@pass_session
def list_acts(session: Session, limit: int) -> None:
    """List forced ends of transactions, pruning, truncations and the like, newest first."""
    with session.client() as client:
        found = [row(line) for line in client.admin.audit(limit=limit)]
    session.out.rows(_COLUMNS, found)
