"""`basalt serve`, `init` and `config`: a server in this process, and the settings of a server."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from basalt.cli.failures import EXIT_CONFLICT, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, CommandFailure, Usage, one_line
from basalt.cli.options import (
    TIMEOUT_MS_DEFAULT,
    Command,
    Invocation,
    author_options,
    command,
    dry_run_option,
    output_option,
    settings_options,
    yes_option,
)
from basalt.cli.output import columns, row
from basalt.cli.root import group
from basalt.errors import InvalidSettingError, UnavailableError

PROCESSES_MAX = 64  # half of the members that an installation may have

if TYPE_CHECKING:
    from basalt.server.stop_signals import StopSignals
    from basalt.settings import Settings


@click.command(cls=Command)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory; made if it is not there."
)
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port; 0 picks a free one. [default: 4780]")
@click.option(
    "--port-file", type=click.Path(path_type=Path, dir_okay=False), help="Gets the port once the server is ready."
)
@click.option(
    "--background", is_flag=True, help="Return once the server answers, and print its address; it goes on by itself."
)
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    default=1,
    show_default=True,
    help="On HBase: so many servers, each in a process of its own, at the ports after that of --port, which they share.",
)
@click.option("--supervised", is_flag=True, hidden=True, help="The order is on standard input.")
@settings_options
def serve(
    data: Path | None,
    host: str | None,
    port: int | None,
    port_file: Path | None,
    background: bool,
    processes: int,
    supervised: bool,
    config: Path | None,
    settings: tuple[str, ...],
) -> int:
    """Run a server.

    --data, --host and --port are the settings server.data, server.host and server.port.

    With --processes the servers share the port of --port and have the ports after it, one each; --port-file and --background are
    about the shared one.

    It stops within 10 s of SIGTERM, SIGHUP or Ctrl-C, having answered what it had begun; with TLS, SIGHUP has it read certificate,
    key and CAs anew instead. With --background it logs to the file log.file, or else to DIR.log beside its data directory.
    """
    from basalt.server.stop_signals import StopSignals

    signals = StopSignals()
    signals.install()
    if supervised:
        return _serve_supervised(signals)
    from basalt.settings import load_settings

    given = (("server.data", data), ("server.host", host), ("server.port", port))
    flags = (*settings, *(f"{name}={value}" for name, value in given if value is not None))
    loaded = load_settings(flags, os.environ, config)
    if loaded.server.data is None and loaded.store.kind == "rocks":
        raise Usage(
            "--data is missing: the rocks store keeps its files there",
            hint="name a directory with --data DIR, or with server.data in the settings file",
        )
    if processes > 1:
        from basalt.server.processes.supervision import check

        check(loaded, processes)
    return _run(loaded, signals, processes, port_file, background=background)


def _run(loaded: Settings, signals: StopSignals, processes: int, port_file: Path | None, *, background: bool) -> int:
    tell = None
    if background:
        from basalt.server.background import Started, fork, with_log_file

        loaded = with_log_file(loaded)
        file = str(loaded.log.file)
        forked = fork(signals, file)
        if isinstance(forked, Started):
            if forked.url:
                click.echo(forked.url)
                about = f"it runs as process {forked.process} and logs to {file}; stop it with: kill {forked.process}"
                click.echo(f"basalt: {about}", err=True)
            return forked.exit_code
        tell = forked
    signals.stage = "it loaded its parts"
    if processes > 1:
        from basalt.server.processes.supervisor import Supervisor

        return Supervisor(loaded, processes, signals, port_file=port_file, tell=tell).run()
    _what_serves()(loaded, signals, port_file=port_file, tell=tell)
    return EXIT_OK


def _what_serves() -> Callable[..., None]:
    """Load the server. Modules leave nothing to collect, and looking for it, now or later, takes a seventh of a start."""
    gc.disable()
    from basalt.server.process import serve as run

    gc.freeze()
    gc.enable()
    return run


def _serve_supervised(signals: StopSignals) -> int:
    """Be one of the servers of `--processes`."""
    from basalt.server.processes.supervised import Supervised

    supervised = Supervised.read()
    signals.stage = "it loaded its parts"
    _what_serves()(supervised.settings, signals, tell=supervised.answers, supervised=supervised)
    return EXIT_OK


@command("wait")
def wait(invocation: Invocation) -> None:
    """Wait until a server is ready, and print its address.

    --timeout says for how long, 30 s unless it is given; exit code 6 if none is ready then. Of several servers it is the one that leads.
    """
    from basalt.cli.credentials import tls_for
    from basalt.cli.local_server import wait_until_ready

    target = invocation.target()
    tls = tls_for(target.url, target.profile)
    url, reason = wait_until_ready(target.url, invocation.timeout_ms or TIMEOUT_MS_DEFAULT, tls)
    if reason:
        raise CommandFailure(
            f"no server is ready at {url}: {reason}",
            hint="start one with `basalt serve`, or give it more time with --timeout",
            exit_code=EXIT_UNAVAILABLE,
        )
    invocation.out.done(url, {"url": url})


@command(options=output_option)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("basalt.toml"))
@dry_run_option
@yes_option
def init(invocation: Invocation, file: Path, dry_run: bool, yes: bool) -> None:
    """Write a settings file with every key commented.

    FILE is basalt.toml unless it is named. --yes replaces a file that is there already.
    """
    from basalt.settings.reference import settings_file

    result = {"file": str(file), "dry_run": dry_run}
    if file.exists() and not yes:
        raise CommandFailure(f"{file} exists already", hint="add --yes to replace it", exit_code=EXIT_CONFLICT)
    if dry_run:
        invocation.out.done(f"would write {file}", result)
        return
    try:
        file.write_text(settings_file(), encoding="utf-8")
    except OSError as error:
        raise CommandFailure(f"cannot write {file}: {os.strerror(error.errno or 0)}") from None
    invocation.out.done(f"wrote {file}; start with: basalt serve --data DIR --config {file}", result)


config = group("config", "Show, check and change settings.")


@config.call("show")
@click.option("--origin", is_flag=True, help="Also tell where each value comes from.")
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@click.option("--server", is_flag=True, help="Those of the running server instead of those it would start with here.")
@settings_options
def show_settings(
    invocation: Invocation, origin: bool, changed: bool, server: bool, config: Path | None, settings: tuple[str, ...]
) -> None:
    """Show the settings that a server started here would use."""
    if server:
        if config or settings:
            raise click.UsageError("--server does not go with --config or --set")
        with invocation.client() as client:
            rows = [row(setting) for setting in client.admin.settings()]
    else:
        from basalt.settings import effective, load_settings

        shown = effective(load_settings(settings, os.environ, config))
        rows = [{"key": each.key, "value": each.value, "origin": each.origin} for each in shown]
    shown_columns = columns("key value origin" if origin else "key value")
    wanted = [each for each in rows if not changed or each["origin"] != "default"]
    rows = [{column.key: row[column.key] for column in shown_columns} for row in wanted]
    invocation.out.rows(shown_columns, rows)


@config.call("set")
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@author_options
@dry_run_option
def set_settings(invocation: Invocation, changes: tuple[str, ...], reason: str, by: str, dry_run: bool) -> None:
    """Change settings of the running server, until it stops.

    All of them are changed, or none. What can change so is marked live in docs/reference/settings.md; the rest needs a start.
    """
    wanted: dict[str, str | int | bool] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name or name in wanted:
            raise click.UsageError(f"{change} is {'given twice' if name in wanted else 'not NAME=VALUE'}")
        wanted[name] = value
    with invocation.client() as client:
        answer = client.admin.set_settings(wanted, dry_run=dry_run, reason=reason, by=by)
    would = "would set" if dry_run else "set"
    told = ", ".join(f"{each.key} from {each.before} to {each.value}" for each in answer.changed)
    kept = " and ".join(f"{each.line} under {each.section}" for each in answer.changed)
    sentence = f"{would} {told}, until {answer.until}; to keep it, write {kept} in its settings file"
    invocation.out.done(sentence, row(answer))


@config.call("check", output_option)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@settings_options
def check_settings(invocation: Invocation, file: Path | None, config: Path | None, settings: tuple[str, ...]) -> int:
    """Check a settings file, the environment and flags; exit code 2 if something is wrong.

    Every problem has a line of its own on standard error.
    """
    if file is not None and config is not None:
        raise click.UsageError("FILE and --config name the same thing; give one of them")
    from basalt.settings import read_settings

    loaded = read_settings(settings, os.environ, file or config)
    problems = loaded.problems or [*_open_by_accident(loaded.settings), *_wrong_files(loaded.settings)]
    for problem in problems:
        click.echo(f"basalt: {one_line(problem)}", err=True)
    if problems:
        return EXIT_USAGE
    invocation.out.done(f"{file or config or 'the environment'}: no problems", {"problems": 0})
    return EXIT_OK


def _open_by_accident(settings: Settings) -> list[InvalidSettingError]:
    """Say what a start would of the address; nothing where its name means nothing on this machine, which need not be the server's."""
    from basalt.server.authentication import check_authentication
    from basalt.server.listening import link_address, listen_address

    try:
        check_authentication(settings)
        listen_address(settings)
        if settings.store.kind == "hbase":
            link_address(settings)
    except InvalidSettingError as problem:
        return [problem]
    except UnavailableError:
        pass
    return []


def _wrong_files(settings: Settings) -> list[InvalidSettingError]:
    """Say what a start would of the certificate, the key and the CAs."""
    if settings.tls.certificate is None:
        return []
    from basalt.server.tls import load

    try:
        load(settings.tls)
    except InvalidSettingError as problem:
        return [problem]
    return []
