"""`basalt serve`: gathers the settings and hands them to the server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from basalt.cli.options.options import Command, settings_options


@click.command(cls=Command)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory; made if it is not there."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=4780, show_default=True, help="Port; 0 picks a free one."
)
@click.option(
    "--port-file", type=click.Path(path_type=Path, dir_okay=False), help="Gets the port once the server is ready."
)
@settings_options
def serve(
    data: Path | None, host: str, port: int, port_file: Path | None, config: Path | None, settings: tuple[str, ...]
) -> None:
    """Run a server.

    It stops within 10 s of SIGTERM or Ctrl-C, having answered what it had begun.
    """
    from basalt.settings import load_settings

    loaded = load_settings(settings, os.environ, config)
    if data is None and loaded.store.kind == "rocks":
        raise click.UsageError("--data is missing: the rocks store keeps its files there")
    from basalt.server.process import serve as run

    run(loaded, data_directory=data, host=host, port=port, port_file=port_file)
