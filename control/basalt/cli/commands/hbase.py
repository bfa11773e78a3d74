"""`basalt hbase`: Basalt's tables in HBase. Talks to HBase's Thrift gateways, and to no Basalt server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from basalt.cli.failures import EXIT_AUTH, EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_OK, CommandFailure, Usage
from basalt.cli.options import (
    DurationMs,
    Invocation,
    confirm,
    dry_run_option,
    output_option,
    settings_options,
    stacked,
    yes_option,
)
from basalt.cli.output import columns, counted, duration_text
from basalt.cli.root import group
from basalt.errors import InputError
from basalt.hbase_admin.check import CheckFinding, InstallationView, findings, look_at_gateway, read_installation
from basalt.hbase_admin.gateway import HBaseRefusedError, admin_gateway, kerberos_login
from basalt.hbase_admin.install import Installation, UpgradeProgress, jar_in_use
from basalt.hbase_admin.plan import TableChange, Wanted, alter_line, create_lines, plan_upgrade
from basalt.hbase_admin.rights import grant_lines, jar_finding, read_rights, rights_findings, short_name
from basalt.settings import HBaseSettings, load_settings
from basalt_engine.clock import SystemClock
from basalt_engine.stores.hbase import tables
from basalt_engine.stores.hbase.tables import (
    FLUSH_INTERVAL_MS_DEFAULT,
    REFRESH_INTERVAL,
    REPORT_INTERVAL,
    CoprocessorJar,
    checked_jar,
    layouts,
)
from basalt_engine.stores.hbase.thrift2 import CALL_TIMEOUT_MS, Thrift2

F = TypeVar("F", bound=Callable[..., Any])

PACKAGED = "packaged"  # for --jar: the one that came with this program, on a machine that also runs HBase
INTERVAL_MS_MIN = 100
CHECK_TIMEOUT_MS = 60_000  # of one call: a cluster that takes longer to tell of a table is what a check should find
_STEP_COLUMNS = columns("table action detail")

hbase = group("hbase", "Install, check, upgrade and remove Basalt's tables in HBase.")


def jar_option(*, required: bool) -> Callable[[F], F]:
    """--jar: where region servers find the coprocessor."""
    return click.option(
        "--jar", metavar="PATH", required=required, help="Coprocessor's jar, as hdfs:PATH or file:PATH; or `packaged`."
    )


_interval = DurationMs(minimum_ms=INTERVAL_MS_MIN)
coprocessor_options = stacked(
    click.option(
        "--refresh-interval",
        type=_interval,
        metavar="DURATION",
        help="How often a region server reads topics and transactions. [default: 10s]",
    ),
    click.option(
        "--report-interval",
        type=_interval,
        metavar="DURATION",
        help="How often a region reports what it holds. [default: 30s]",
    ),
)


@hbase.call("install", output_option)
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
@click.option("--print-grants", is_flag=True, help="Print commands for `hbase shell` that let the server use them.")
@dry_run_option
@settings_options
def install(
    invocation: Invocation, jar: str | None, no_coprocessor: bool, flush_interval: int | None, refresh_interval: int | None,
    report_interval: int | None, print_shell: bool, print_grants: bool, dry_run: bool, config: Path | None,
    settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Make Basalt's tables, or complete an installation that was cut short.

    A second run changes nothing. A table of another layout is refused before anything is changed. The jar must lie where
    every region server and the master find it under the same path.
    """
    if jar and no_coprocessor:
        raise click.UsageError("--jar does not go with --no-coprocessor")
    where = hbase_settings(config, settings)
    if print_grants:
        for line in grant_lines(where.prefix, _basalt_user(where)):
            invocation.out.line(line)
        return
    path = None if jar is None else coprocessor_jar(jar, refresh_interval, report_interval)
    wanted = Wanted(where.buckets, flush_interval, path)
    if print_shell:
        _print_create(invocation, where, wanted, no_coprocessor)
        return
    with admin(where) as gateway:
        installation = Installation(gateway, where.prefix, SystemClock())
        steps = installation.plan(wanted)
        if not no_coprocessor and any(step.lacks_coprocessor for step in steps):
            raise _no_jar()
        if not dry_run:
            installation.carry_out(steps, wanted)
    _show_steps(invocation, steps, dry_run)


@hbase.call("check", output_option)
@click.option(
    "--user", metavar="NAME", help="Whom the server is for HBase. [default: the first part of store.hbase.principal]"
)
@settings_options
def check(invocation: Invocation, user: str | None, config: Path | None, settings: tuple[str, ...]) -> int:
    """Check gateways, tables, coprocessor, and what region servers know; exit code 1 if something is wrong.

    Warnings are for what works, but not as it should.
    """
    where, clock = hbase_settings(config, settings), SystemClock()
    login = kerberos_login(where)
    first = look_at_gateway("store.hbase.thrift", where.thrift, 1, clock, login)
    second = look_at_gateway("store.hbase.thrift2", where.thrift2, 2, clock, login)
    view = InstallationView(where.prefix, where.buckets, clock.now_ms(), (first, second))
    rights: list[CheckFinding] = []
    if second.usable:
        with admin(where, CHECK_TIMEOUT_MS) as gateway:
            view = read_installation(gateway, view, clock)
            if where.sasl != "off" and view.tables:
                expected = [user or _basalt_user(where), where.service]
                rights = [*rights_findings(read_rights(gateway), where.prefix, expected), *_jar_findings(view)]
    rows = [finding._asdict() for finding in (*findings(view), *rights)]
    invocation.out.rows(columns("name level detail hint", name="check"), rows)
    return EXIT_FAILURE if any(row["level"] == "error" for row in rows) else EXIT_OK


@hbase.call("upgrade", output_option)
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
def upgrade(
    invocation: Invocation, jar: str, refresh_interval: int | None, report_interval: int | None, wait_ms: int,
    print_shell: bool, dry_run: bool, config: Path | None, settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Let all tables run another coprocessor jar, one after the other, while they stay open.

    The jar needs a path that no table runs now: region servers keep what they have loaded under its path.
    """
    where = hbase_settings(config, settings)
    path = coprocessor_jar(jar, refresh_interval, report_interval)
    with admin(where) as gateway:
        installation = Installation(gateway, where.prefix, SystemClock())
        found = installation.existing_tables()
        buckets = installation.buckets(found) or where.buckets
        steps = plan_upgrade(layouts(where.prefix, buckets), found, path)
        if print_shell:
            for step in steps:
                if step.action == "alter":
                    invocation.out.line(alter_line(step.table, step.changed(found[step.table].descriptor)))
            return
        if not dry_run:
            installation.upgrade(steps)
            if wait_ms:
                _check_upgraded(installation.wait_for_reports(wait_ms), wait_ms)
    _show_steps(invocation, steps, dry_run)


@hbase.call("uninstall", output_option)
@dry_run_option
@yes_option
@settings_options
def uninstall(invocation: Invocation, dry_run: bool, yes: bool, config: Path | None, settings: tuple[str, ...]) -> None:
    """Disable and drop Basalt's tables, with every topic and message in them.

    Only tables of the prefix that Basalt has made are dropped. No table is dropped while a server leads.
    """
    where, clock = hbase_settings(config, settings), SystemClock()
    with admin(where) as gateway:
        installation = Installation(gateway, where.prefix, clock)
        tables = installation.lost_tables()
        if not tables:
            raise CommandFailure(f"there is no table of the prefix {where.prefix}", exit_code=EXIT_NOT_FOUND)
        installation.check_nobody_leads()
        lost = f"{', '.join(table.name for table in tables)} with {counted(installation.topics(), 'topic')}"
    if not dry_run:
        confirm(f"Drop {lost}, and all messages, for ever?", yes=yes)
        with admin(where) as gateway:  # anew: a gateway hangs up on who has been silent for a minute
            installation = Installation(gateway, where.prefix, clock)
            installation.check_nobody_leads()
            for table in tables:
                installation.drop(table.name)
    rows = [{"table": table.name, "regions": table.regions, "dry_run": dry_run} for table in tables]
    invocation.out.rows(columns("table regions"), rows)
    if invocation.out.for_people:
        invocation.out.line(f"\n{'would drop' if dry_run else 'dropped'} {counted(len(tables), 'table')}")


def _basalt_user(where: HBaseSettings) -> str:
    if where.principal is None:
        raise Usage(
            "nothing says whom the server is for HBase",
            hint="set store.hbase.principal, or name the user with --user of `check`",
        )
    return short_name(where.principal)


def _jar_findings(view: InstallationView) -> Iterator[CheckFinding]:
    jar = jar_in_use(view.tables)
    if jar is not None:
        yield jar_finding(jar.path)


def _check_upgraded(upgraded: UpgradeProgress, wait_ms: int) -> None:
    if not upgraded.complete:
        told = f"{upgraded.reported} of {counted(upgraded.regions, 'region')} have reported since"
        if upgraded.reported == upgraded.regions:
            told = f"regions report {len(upgraded.jars)} different jars"
        raise CommandFailure(
            f"all tables were changed and reopened, but after {duration_text(wait_ms)} {told}",
            hint="`basalt hbase check` tells which; region servers' logs tell why",
        )


def hbase_settings(config: Path | None, settings: tuple[str, ...]) -> HBaseSettings:
    """The part of the settings that says where HBase is and what the tables are called."""
    return load_settings(settings, os.environ, config).store.hbase


@contextlib.contextmanager
def admin(where: HBaseSettings, timeout_ms: int | None = None) -> Iterator[Thrift2]:
    """The gateway for tables; what HBase refuses becomes this command's failure."""
    try:
        with admin_gateway(where.thrift2, timeout_ms or CALL_TIMEOUT_MS, kerberos_login(where)) as gateway:
            yield gateway
    except HBaseRefusedError as error:
        code = EXIT_AUTH if error.denied else EXIT_FAILURE
        raise CommandFailure(error.message, hint=error.hint, exit_code=code) from None


def coprocessor_jar(path: str, refresh_interval_ms: int | None, report_interval_ms: int | None) -> CoprocessorJar:
    """The jar of --jar with its options."""
    if path == PACKAGED:
        found = packaged_jar()
        if found is None:
            raise CommandFailure(
                "this installation of Basalt came without the coprocessor's jar",
                hint=f"{JAR_SOURCE}, and name it with --jar",
            )
        path = f"file:{found}"
    given = ((REFRESH_INTERVAL, refresh_interval_ms), (REPORT_INTERVAL, report_interval_ms))
    try:
        checked = checked_jar(path)
    except InputError as error:
        raise Usage(error.message, hint=error.hint) from None
    return CoprocessorJar(checked, tuple((name, str(value)) for name, value in given if value is not None))


# Where a jar comes from for whom the package brought none.
JAR_SOURCE = "a released wheel holds it; in a checkout build it with `make jar` (JDK and Maven)"


def packaged_jar() -> Path | None:
    """The coprocessor's jar that came with this program."""
    path = Path(tables.__file__).with_name("basalt-coprocessor.jar")
    return path if path.exists() else None


def _no_jar() -> Usage:
    jar = packaged_jar()
    if jar is None:
        first = f"{JAR_SOURCE}, put it on HDFS"
    else:
        first = f"put {jar} on HDFS (`hdfs dfs -put {jar} /basalt/`)"
    return Usage(
        "--jar is missing: the tables need Basalt's coprocessor",
        hint=f"{first} and name it with --jar hdfs:///basalt/{jar.name if jar else 'NAME.jar'}; an HBase on this machine "
        "alone takes --jar packaged; --no-coprocessor does without",
    )


def _print_create(invocation: Invocation, where: HBaseSettings, wanted: Wanted, no_coprocessor: bool) -> None:
    if wanted.jar is None and not no_coprocessor:
        raise _no_jar()
    flush_interval_ms = wanted.flush_interval_ms or FLUSH_INTERVAL_MS_DEFAULT
    made = layouts(where.prefix, wanted.buckets, flush_interval_ms=flush_interval_ms, jar=wanted.jar)
    for line in create_lines(made):
        invocation.out.line(line)


def _show_steps(invocation: Invocation, steps: Sequence[TableChange], dry_run: bool) -> None:
    rows = [{"table": step.table, "action": step.action, "detail": step.detail, "dry_run": dry_run} for step in steps]
    invocation.out.rows(_STEP_COLUMNS, rows)
    if invocation.out.for_people:
        changes = sum(step.action != "keep" for step in steps)
        if changes == 0:
            invocation.out.line("\nnothing to do: everything is there")
        else:
            invocation.out.line(f"\n{'would make' if dry_run else 'made'} {counted(changes, 'change')}")
