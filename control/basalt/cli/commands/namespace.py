"""`basalt namespace`: the namespaces that topics are in."""

from __future__ import annotations

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options
from basalt.cli.output.output import Column
from basalt.cli.root import group

namespace = group("namespace", "List namespaces.")


@namespace.command("list", cls=Command)
@common_options
@pass_session
def list_namespaces(session: Session) -> None:
    """List the namespaces in which there is a topic; a namespace needs no creation."""
    with session.client() as client:
        rows = [{"name": name} for name in client.admin.namespaces()]
    session.out.rows([Column("name")], rows)
