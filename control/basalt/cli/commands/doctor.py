"""`basalt doctor`: is the server there and well, and is its data directory?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import basalt
from basalt.cli.options.data_directory import Check, check_data_directory
from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options
from basalt.cli.output.failures import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE
from basalt.cli.output.output import Column
from basalt.errors import BasaltError, RetryError

if TYPE_CHECKING:
    from basalt.client import Client


@click.command(cls=Command)
@click.option("--data", type=click.Path(path_type=Path), help="Also check this data directory.")
@click.option("--no-server", is_flag=True, help="Check only the data directory.")
@common_options
@pass_session
def doctor(session: Session, data: Path | None, no_server: bool) -> int:
    """Check a server and a data directory.

    Exit code 0 if all is well, 6 if the server cannot be reached, 1 if something else is wrong.
    """
    if no_server and data is None:
        raise click.UsageError("--no-server leaves nothing to check without --data")
    checks = list(check_data_directory(data)) if data is not None else []
    reached = True
    if not no_server:
        try:
            with session.client() as client:
                checks = [*_server(client, session.target().url), *checks]
        except BasaltError as error:
            reached = not isinstance(error, RetryError)
            checks.insert(0, Check("server", False, error.message, error.hint or ""))
    columns = (Column("name", title="check"), Column("ok"), Column("detail"), Column("hint"))
    rows = [{"name": check.name, "ok": check.ok, "detail": check.detail, "hint": check.hint} for check in checks]
    session.out.rows(columns, rows)
    if not reached:
        return EXIT_UNAVAILABLE
    return EXIT_OK if all(check.ok for check in checks) else EXIT_FAILURE


def _server(client: Client, url: str) -> list[Check]:
    version = client.version()
    same = version.version == basalt.__version__
    checks = [
        Check("server", True, f"{url} answers"),
        Check(
            "version",
            True,
            f"server {version.version}, this command {basalt.__version__}",
            "" if same else "they differ; use the server's version if something is odd",
        ),
    ]
    checks += [
        Check(f"part {part.name}", part.ok, f"{part.detail} ({part.latency_ms:.3g} ms)")
        for part in client.ready().parts
    ]
    return checks
