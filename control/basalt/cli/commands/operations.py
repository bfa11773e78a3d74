"""`basalt job`, `audit`, `backup` and `snapshot`: what operators do with a running server."""

from __future__ import annotations

from collections.abc import Callable

import click

from basalt.api.bodies.operations import JobInfo, JobRun
from basalt.cli.options.options import Command, Invocation, common_options, dry_run_option, pass_invocation
from basalt.cli.output.failures import Failure
from basalt.cli.output.output import Column, duration_text, time_text
from basalt.cli.output.rows import row
from basalt.cli.root import group

HISTORY_RUNS_DEFAULT = 20
HISTORY_RUNS_MAX = 1_000

job = group("job", "List, run, pause and resume scheduled jobs.")

_JOB_COLUMNS = (
    Column("name"),
    Column("enabled"),
    Column("paused"),
    Column("running"),
    Column("interval_ms", duration_text, "every"),
    Column("next_run_ms", time_text, "next run"),
    Column("last_started_ms", time_text, "last run"),
    Column("last_outcome", title="outcome"),
)
_RUN_COLUMNS = (
    Column("started_ms", time_text, "started"),
    Column("duration_ms", duration_text, "took"),
    Column("outcome"),
    Column("times"),
    Column("detail"),
)


@job.command("list", cls=Command)
@common_options
@pass_invocation
def list_jobs(invocation: Invocation) -> None:
    """List jobs: when each runs next, and how its last run ended."""
    with invocation.client() as client:
        rows = [row(found) for found in client.admin.jobs()]
    invocation.out.rows(_JOB_COLUMNS, rows)


@job.command("history", cls=Command)
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, HISTORY_RUNS_MAX),
    default=HISTORY_RUNS_DEFAULT,
    show_default=True,
    metavar="N",
    help="At most so many runs.",
)
@common_options
@pass_invocation
def history(invocation: Invocation, name: str, limit: int) -> None:
    """List a job's last runs, newest first."""
    with invocation.client() as client:
        rows = [row(found) for found in client.admin.job_history(name, limit=limit)]
    invocation.out.rows(_RUN_COLUMNS, rows)


@job.command("run", cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_invocation
def run(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Run a job now, also one that is paused, and tell how it ended."""
    _act(invocation, "run", name, dry_run)


@job.command("pause", cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_invocation
def pause(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Let a job run no more by itself, also after a restart, until it is resumed."""
    _act(invocation, "pause", name, dry_run)


@job.command("resume", cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_invocation
def resume(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Let a paused job run again."""
    _act(invocation, "resume", name, dry_run)


def _act(invocation: Invocation, verb: str, name: str, dry_run: bool) -> None:
    with invocation.client() as client:
        if dry_run:
            client.admin.job_history(name, limit=1)  # is there such a job?
            invocation.out.done(f"would {verb} job {name}", {"name": name, "action": verb, "dry_run": True})
            return
        acts: dict[str, Callable[[str], JobRun | JobInfo]] = {
            "run": client.admin.run_job,
            "pause": client.admin.pause_job,
            "resume": client.admin.resume_job,
        }
        answer = row(acts[verb](name))
    if answer.get("outcome") == "failed":
        raise Failure(f"job {name} failed: {answer['error']}", hint=f"see `basalt job history {name}`")
    done = {"run": "ran", "pause": "paused", "resume": "resumed"}[verb]
    result = {"name": name, "action": verb, **answer}
    invocation.out.done(f"{done} job {name}" + _outcome(answer), result)


def _outcome(answer: dict[str, object]) -> str:
    outcome = answer.get("outcome")
    if outcome is None:
        return ""
    detail = f" ({answer['detail']})" if answer.get("detail") else ""
    return f": {outcome} in {duration_text(answer.get('duration_ms'))}{detail}"


audit = group("audit", "Show what was done by hand, by whom and why.")

_ACTS = (
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
@pass_invocation
def list_acts(invocation: Invocation, limit: int) -> None:
    """List forced ends of transactions, pruning, truncations and the like, newest first."""
    with invocation.client() as client:
        found = [row(line) for line in client.admin.audit(limit=limit)]
    invocation.out.rows(_ACTS, found)


@click.command(cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_invocation
def backup(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Copy a server's store while it runs.

    The copy is consistent, and lies under NAME where the server keeps its backups: a directory for `basalt serve --data`.
    """
    with invocation.client() as client:
        if dry_run:
            store = client.admin.store()
            invocation.out.done(f"would back up the {store.kind} store as {name}", {"name": name, "dry_run": True})
            return
        made = row(client.admin.backup(name))
    invocation.out.done(f"backed up as {made['path']}", made)


snapshot = group("snapshot", "Show and publish the transaction snapshot.")

_SNAPSHOT = (
    Column("read_pointer"),
    Column("write_pointer"),
    Column("in_progress"),
    Column("invalid"),
    Column("oldest_in_progress"),
)
_PUBLISHED = (
    Column("epoch"),
    Column("sequence"),
    Column("time_ms", time_text, "published"),
    Column("decided"),
    Column("visibility_upper_bound"),
    Column("lifetime_ms_max", duration_text, "lifetime"),
    Column("in_progress"),
    Column("invalid"),
)


@snapshot.command("show", cls=Command)
@common_options
@pass_invocation
def show_snapshot(invocation: Invocation) -> None:
    """Show the manager's snapshot, and the one that was published for region servers."""
    with invocation.client() as client:
        answer = row(client.admin.snapshot())
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    invocation.out.record(answer, _SNAPSHOT)
    if answer["published"] is not None:
        invocation.out.line("")
        invocation.out.record(answer["published"], _PUBLISHED)


@snapshot.command("publish", cls=Command)
@dry_run_option
@common_options
@pass_invocation
def publish_snapshot(invocation: Invocation, dry_run: bool) -> None:
    """Publish the snapshot for the region servers now, rather than with the job's next run."""
    with invocation.client() as client:
        if dry_run:
            answer = row(client.admin.snapshot())
            invocation.out.done("would publish a snapshot", {**answer, "dry_run": True})
            return
        answer = row(client.admin.publish_snapshot())
    invocation.out.done(f"published snapshot {answer['sequence']} of epoch {answer['epoch']}", answer)
