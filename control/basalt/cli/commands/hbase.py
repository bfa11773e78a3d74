"""`basalt hbase`: Basalt's tables in HBase. Talks to HBase's Thrift gateways, and to no Basalt server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from basalt.cli.options.options import (
    Command,
    DurationMs,
    Invocation,
    confirm,
    dry_run_option,
    output_option,
    pass_invocation,
    settings_options,
    yes_option,
)
from basalt.cli.output.failures import EXIT_AUTH, EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_OK, Failure, Usage
from basalt.cli.output.output import Column, counted
from basalt.cli.root import group
from basalt.errors import InputError

if TYPE_CHECKING:
    from basalt.hbase_admin.check import View
    from basalt.hbase_admin.plan import Step, Wanted
    from basalt.hbase_admin.upgrade import Upgraded
    from basalt.settings import HBaseSettings
    from basalt_engine.stores.hbase.tables import CoprocessorJar
    from basalt_engine.stores.hbase.thrift2 import Thrift2

F = TypeVar("F", bound=Callable[..., Any])

PACKAGED = "packaged"  # for --jar: the one that came with this program, on a machine that also runs HBase
INTERVAL_MS_MIN = 100
CHECK_TIMEOUT_MS = 60_000  # of one call: a cluster that takes longer to tell of a table is what a check should find
_STEP_COLUMNS = (Column("table"), Column("action"), Column("detail"))

hbase = group("hbase", "Install, check, upgrade and remove Basalt's tables in HBase.")


def jar_option(*, required: bool) -> Callable[[F], F]:
    """--jar: where region servers find the coprocessor."""
    return click.option(
        "--jar", metavar="PATH", required=required, help="Coprocessor's jar, as hdfs:PATH or file:PATH; or `packaged`."
    )


def coprocessor_options(command: F) -> F:
    """--refresh-interval, --report-interval: how often the coprocessor reads and writes."""
    report = click.option(
        "--report-interval",
        type=DurationMs(minimum_ms=INTERVAL_MS_MIN),
        metavar="DURATION",
        help="How often a region reports what it holds. [default: 30s]",
    )
    refresh = click.option(
        "--refresh-interval",
        type=DurationMs(minimum_ms=INTERVAL_MS_MIN),
        metavar="DURATION",
        help="How often a region server reads topics and transactions. [default: 10s]",
    )
    return refresh(report(command))


@hbase.command("install", cls=Command)
@jar_option(required=False)
@click.option("--no-coprocessor", is_flag=True, help="Make tables without it: old rows stay, former leaders may write.")
@click.option(
    "--flush-interval",
    type=DurationMs(minimum_ms=1_000),
    metavar="DURATION",
    help="How often rows in memory are flushed to files. [default: 10m]",
)
@coprocessor_options
@click.option("--print-shell", is_flag=True, help="Print commands for `hbase shell` that make the tables.")
@dry_run_option
@settings_options
@output_option
@pass_invocation
def install(
    invocation: Invocation, jar: str | None, no_coprocessor: bool, flush_interval: int | None, refresh_interval: int | None,
    report_interval: int | None, print_shell: bool, dry_run: bool, config: Path | None, settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Make Basalt's tables, or complete an installation that was cut short.

    A second run changes nothing. A table of another layout is refused before anything is changed. The jar must lie where
    every region server and the master find it under the same path.
    """
    from basalt.hbase_admin.plan import Wanted

    if jar and no_coprocessor:
        raise click.UsageError("--jar does not go with --no-coprocessor")
    where = hbase_settings(config, settings)
    path = None if jar is None else coprocessor_jar(jar, refresh_interval, report_interval)
    wanted = Wanted(where.buckets, flush_interval, path)
    if print_shell:
        _print_create(invocation, where, wanted, no_coprocessor)
        return
    with admin(where) as gateway:
        from basalt.hbase_admin.install import Installer
        from basalt_engine.clock import SystemClock

        installer = Installer(gateway, where.prefix, SystemClock())
        steps = installer.plan(wanted)
        if not no_coprocessor and any(step.lacks_coprocessor for step in steps):
            raise _no_jar()
        if not dry_run:
            installer.carry_out(steps, wanted)
    _show_steps(invocation, steps, dry_run)


@hbase.command("check", cls=Command)
@settings_options
@output_option
@pass_invocation
def check(invocation: Invocation, config: Path | None, settings: tuple[str, ...]) -> int:
    """Check gateways, tables, coprocessor, and what region servers know; exit code 1 if something is wrong.

    Warnings are for what works, but not as it should.
    """
    from basalt.hbase_admin.check import findings

    rows = [finding._asdict() for finding in findings(_view(hbase_settings(config, settings)))]
    invocation.out.rows((Column("name", title="check"), Column("level"), Column("detail"), Column("hint")), rows)
    return EXIT_FAILURE if any(row["level"] == "error" for row in rows) else EXIT_OK


@hbase.command("upgrade", cls=Command)
@jar_option(required=True)
@coprocessor_options
@click.option(
    "--wait",
    "wait_ms",
    type=DurationMs(minimum_ms=0),
    default="2m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for regions to report that they run the new jar; 0s: not at all.",
)
@click.option("--print-shell", is_flag=True, help="Print commands for `hbase shell` that change the tables.")
@dry_run_option
@settings_options
@output_option
@pass_invocation
def upgrade(
    invocation: Invocation, jar: str, refresh_interval: int | None, report_interval: int | None, wait_ms: int,
    print_shell: bool, dry_run: bool, config: Path | None, settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Let all tables run another coprocessor jar, one after the other, while they stay open.

    The jar needs a path that no table runs now: region servers keep what they have loaded under its path.
    """
    from basalt.hbase_admin.gateway import SystemRows
    from basalt.hbase_admin.install import Installer
    from basalt.hbase_admin.plan import alter_line
    from basalt.hbase_admin.upgrade import Upgrade, plan_upgrade
    from basalt_engine.clock import SystemClock
    from basalt_engine.stores.hbase.tables import layouts

    where, clock = hbase_settings(config, settings), SystemClock()
    path = coprocessor_jar(jar, refresh_interval, report_interval)
    with admin(where) as gateway:
        installer = Installer(gateway, where.prefix, clock)
        found = installer.found()
        buckets = installer.buckets(found) or where.buckets
        steps = plan_upgrade(layouts(where.prefix, buckets), found, path)
        if print_shell:
            for step in steps:
                if step.action == "alter":
                    invocation.out.line(alter_line(step.table, step.changed(found[step.table].descriptor)))
            return
        if not dry_run:
            work = Upgrade(gateway, SystemRows(gateway, where.prefix), clock)
            for step in steps:
                work.carry_out(step)
            if wait_ms:
                _upgraded(work.wait(where.prefix, wait_ms), wait_ms)
    _show_steps(invocation, steps, dry_run)


@hbase.command("uninstall", cls=Command)
@dry_run_option
@yes_option
@settings_options
@output_option
@pass_invocation
def uninstall(invocation: Invocation, dry_run: bool, yes: bool, config: Path | None, settings: tuple[str, ...]) -> None:
    """Disable and drop Basalt's tables, with every topic and message in them.

    Only tables of the prefix that Basalt has made are dropped. While a server leads, none is.
    """
    from basalt.hbase_admin.uninstall import Uninstall
    from basalt_engine.clock import SystemClock

    where, clock = hbase_settings(config, settings), SystemClock()
    with admin(where) as gateway:
        work = Uninstall(gateway, where.prefix, clock)
        tables = work.tables()
        if not tables:
            raise Failure(f"there is no table of the prefix {where.prefix}", exit_code=EXIT_NOT_FOUND)
        work.check_nobody_leads()
        lost = f"{', '.join(table.name for table in tables)} with {counted(work.topics(), 'topic')}"
    if not dry_run:
        confirm(f"Drop {lost}, and all messages, for ever?", yes=yes)
        with admin(where) as gateway:  # anew: a gateway hangs up on who has been silent for a minute
            work = Uninstall(gateway, where.prefix, clock)
            work.check_nobody_leads()
            for table in tables:
                work.drop(table.name)
    rows = [{"table": table.name, "regions": table.regions, "dry_run": dry_run} for table in tables]
    invocation.out.rows((Column("table"), Column("regions")), rows)
    if invocation.out.for_people:
        invocation.out.line(f"\n{'would drop' if dry_run else 'dropped'} {counted(len(tables), 'table')}")


def _view(where: HBaseSettings) -> View:
    from basalt.hbase_admin.check import View, look, look_at_gateway
    from basalt_engine.clock import SystemClock

    clock = SystemClock()
    gateways = (
        look_at_gateway("store.hbase.thrift", where.thrift, 1, clock),
        look_at_gateway("store.hbase.thrift2", where.thrift2, 2, clock),
    )
    if not gateways[1].usable:
        return View(where.prefix, where.buckets, clock.now_ms(), gateways)
    with admin(where, CHECK_TIMEOUT_MS) as gateway:
        return look(gateway, where.prefix, where.buckets, gateways, clock)


def _upgraded(upgraded: Upgraded, wait_ms: int) -> None:
    if not upgraded.complete:
        from basalt.cli.output.output import duration_text

        told = f"{upgraded.reported} of {counted(upgraded.regions, 'region')} have reported since"
        if upgraded.reported == upgraded.regions:
            told = f"regions report {len(upgraded.jars)} different jars"
        raise Failure(
            f"all tables were changed and reopened, but after {duration_text(wait_ms)} {told}",
            hint="`basalt hbase check` tells which; region servers' logs tell why",
        )


def hbase_settings(config: Path | None, settings: tuple[str, ...]) -> HBaseSettings:
    """The part of the settings that says where HBase is and what the tables are called."""
    from basalt.settings import load_settings

    return load_settings(settings, os.environ, config).store.hbase


@contextlib.contextmanager
def admin(where: HBaseSettings, timeout_ms: int | None = None) -> Iterator[Thrift2]:
    """The gateway for tables; what HBase refuses becomes this command's failure."""
    from basalt.hbase_admin.gateway import HBaseRefusedError, admin_gateway
    from basalt_engine.stores.hbase.thrift2 import CALL_TIMEOUT_MS

    try:
        with admin_gateway(where.thrift2, timeout_ms or CALL_TIMEOUT_MS) as gateway:
            yield gateway
    except HBaseRefusedError as error:
        code = EXIT_AUTH if error.denied else EXIT_FAILURE
        raise Failure(error.message, hint=error.hint, exit_code=code) from None


def coprocessor_jar(path: str, refresh_interval_ms: int | None, report_interval_ms: int | None) -> CoprocessorJar:
    """The jar of --jar with its options."""
    from basalt_engine.stores.hbase.tables import REFRESH_INTERVAL, REPORT_INTERVAL, CoprocessorJar, checked_jar

    if path == PACKAGED:
        found = packaged_jar()
        if found is None:
            raise Failure(
                "this installation of Basalt came without the coprocessor's jar",
                hint="build it in coprocessor/ with `mvn package`, and name it with --jar",
            )
        path = f"file:{found}"
    given = ((REFRESH_INTERVAL, refresh_interval_ms), (REPORT_INTERVAL, report_interval_ms))
    try:
        checked = checked_jar(path)
    except InputError as error:
        raise Usage(error.message, hint=error.hint) from None
    return CoprocessorJar(checked, tuple((name, str(value)) for name, value in given if value is not None))


def packaged_jar() -> Path | None:
    """The coprocessor's jar that came with this program."""
    from basalt_engine.stores.hbase import tables

    path = Path(tables.__file__).with_name("basalt-coprocessor.jar")
    return path if path.exists() else None


def _no_jar() -> Usage:
    jar = packaged_jar()
    if jar is None:
        first = "build the coprocessor in coprocessor/ with `mvn package`, put its jar on HDFS"
    else:
        first = f"put {jar} on HDFS (`hdfs dfs -put {jar} /basalt/`)"
    return Usage(
        "--jar is missing: the tables need Basalt's coprocessor",
        hint=f"{first} and name it with --jar hdfs:///basalt/{jar.name if jar else 'NAME.jar'}; an HBase on this machine "
        "alone takes --jar packaged; --no-coprocessor does without",
    )


def _print_create(invocation: Invocation, where: HBaseSettings, wanted: Wanted, no_coprocessor: bool) -> None:
    from basalt.hbase_admin.plan import create_lines
    from basalt_engine.stores.hbase.tables import FLUSH_INTERVAL_MS_DEFAULT, layouts

    if wanted.jar is None and not no_coprocessor:
        raise _no_jar()
    flush_interval_ms = wanted.flush_interval_ms or FLUSH_INTERVAL_MS_DEFAULT
    made = layouts(where.prefix, wanted.buckets, flush_interval_ms=flush_interval_ms, jar=wanted.jar)
    for line in create_lines(made):
        invocation.out.line(line)


def _show_steps(invocation: Invocation, steps: Sequence[Step], dry_run: bool) -> None:
    rows = [{"table": step.table, "action": step.action, "detail": step.detail, "dry_run": dry_run} for step in steps]
    invocation.out.rows(_STEP_COLUMNS, rows)
    if invocation.out.for_people:
        changes = sum(step.action != "keep" for step in steps)
        if changes == 0:
            invocation.out.line("\nnothing to do: everything is there")
        else:
            invocation.out.line(f"\n{'would make' if dry_run else 'made'} {counted(changes, 'change')}")
