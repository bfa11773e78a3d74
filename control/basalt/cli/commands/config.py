"""`basalt config`: which settings would be in force, where they come from, and what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options, output_option, settings_options
from basalt.cli.output.failures import EXIT_OK, EXIT_USAGE, one_line
from basalt.cli.output.output import Column
from basalt.cli.output.rows import row
from basalt.cli.root import group

config = group("config", "Show and check settings.")


@config.command("show", cls=Command)
@click.option("--origin", is_flag=True, help="Also tell where each value comes from.")
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@click.option("--server", is_flag=True, help="Those of the running server instead of those it would start with here.")
@settings_options
@common_options
@pass_session
def show(
    session: Session, origin: bool, changed: bool, server: bool, config: Path | None, settings: tuple[str, ...]
) -> None:
    """Show the settings that a server started here would use."""
    if server:
        if config or settings:
            raise click.UsageError("--server does not go with --config or --set")
        with session.client() as client:
            rows = [row(setting) for setting in client.admin.settings()]
    else:
        from basalt.settings import effective, load_settings

        shown = effective(load_settings(settings, os.environ, config))
        rows = [{"key": each.key, "value": each.value, "origin": each.origin} for each in shown]
    columns = [Column("key"), Column("value"), *([Column("origin")] if origin else [])]
    wanted = [each for each in rows if not changed or each["origin"] != "default"]
    rows = [{column.key: row[column.key] for column in columns} for row in wanted]
    session.out.rows(columns, rows)


@config.command("check", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@settings_options
@output_option
@pass_session
def check(session: Session, file: Path | None, config: Path | None, settings: tuple[str, ...]) -> int:
    """Check a settings file, the environment and flags; exit code 2 if something is wrong.

    Every problem has a line of its own on standard error.
    """
    if file is not None and config is not None:
        raise click.UsageError("FILE and --config name the same thing; give one of them")
    from basalt.settings import read_settings

    loaded = read_settings(settings, os.environ, file or config)
    for problem in loaded.problems:
        click.echo(f"basalt: {one_line(problem)}", err=True)
    if loaded.problems:
        return EXIT_USAGE
    session.out.done(f"{file or config or 'the environment'}: no problems", {"problems": 0})
    return EXIT_OK
