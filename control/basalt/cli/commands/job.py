"""`basalt job`: the server's scheduled jobs."""

from __future__ import annotations

from collections.abc import Callable

import click

from basalt.api.bodies.jobs import JobInfo, JobRun
from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options, dry_run_option
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
@pass_session
def list_jobs(session: Session) -> None:
    """List jobs: when each runs next, and how its last run ended."""
    with session.client() as client:
        rows = [row(found) for found in client.admin.jobs()]
    session.out.rows(_JOB_COLUMNS, rows)


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
@pass_session
def history(session: Session, name: str, limit: int) -> None:
    """List a job's last runs, newest first."""
    with session.client() as client:
        rows = [row(found) for found in client.admin.job_history(name, limit=limit)]
    session.out.rows(_RUN_COLUMNS, rows)


@job.command("run", cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_session
def run(session: Session, name: str, dry_run: bool) -> None:
    """Run a job now, also one that is paused, and tell how it ended."""
    _act(session, "run", name, dry_run)


@job.command("pause", cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_session
def pause(session: Session, name: str, dry_run: bool) -> None:
    """Let a job run no more by itself, also after a restart, until it is resumed."""
    _act(session, "pause", name, dry_run)


@job.command("resume", cls=Command)
@click.argument("name")
@dry_run_option
@common_options
@pass_session
def resume(session: Session, name: str, dry_run: bool) -> None:
    """Let a paused job run again."""
    _act(session, "resume", name, dry_run)


def _act(session: Session, verb: str, name: str, dry_run: bool) -> None:
    with session.client() as client:
        if dry_run:
            client.admin.job_history(name, limit=1)  # is there such a job?
            session.out.done(f"would {verb} job {name}", {"name": name, "action": verb, "dry_run": True})
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
    session.out.done(f"{done} job {name}" + _outcome(answer), result)


def _outcome(answer: dict[str, object]) -> str:
    outcome = answer.get("outcome")
    if outcome is None:
        return ""
    detail = f" ({answer['detail']})" if answer.get("detail") else ""
    return f": {outcome} in {duration_text(answer.get('duration_ms'))}{detail}"
