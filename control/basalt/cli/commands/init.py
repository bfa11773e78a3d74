"""`basalt init`: a settings file to start from."""

from __future__ import annotations

import os
from pathlib import Path

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, dry_run_option, output_option, yes_option
from basalt.cli.output.failures import EXIT_CONFLICT, Failure


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("basalt.toml"))
@dry_run_option
@yes_option
@output_option
@pass_session
def init(session: Session, file: Path, dry_run: bool, yes: bool) -> None:
    """Write a settings file with every key commented.

    FILE is basalt.toml unless it is named. --yes replaces a file that is there already.
    """
    from basalt.settings.reference import settings_file

    result = {"file": str(file), "dry_run": dry_run}
    if file.exists() and not yes:
        raise Failure(f"{file} exists already", hint="add --yes to replace it", exit_code=EXIT_CONFLICT)
    if dry_run:
        session.out.done(f"would write {file}", result)
        return
    try:
        file.write_text(settings_file(), encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write {file}: {os.strerror(error.errno or 0)}") from None
    session.out.done(f"wrote {file}; start with: basalt serve --data DIR --config {file}", result)
