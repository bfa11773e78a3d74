"""`basalt prune`: forgetting failed writers, and what is in the way of that."""

from __future__ import annotations

from typing import Any

import click

from basalt.cli.options.options import (
    Command,
    Invocation,
    PositionText,
    author_options,
    common_options,
    confirm,
    dry_run_option,
    pass_invocation,
    yes_option,
)
from basalt.cli.output.output import Column, counted, duration_text, size_text, time_text
from basalt.cli.output.rows import row
from basalt.cli.root import group
from basalt_engine.snapshot import POINTER_MAX

prune = group("prune", "Forget failed writers once no row of theirs is left.")

_STATUS = (
    Column("invalid"),
    Column("free", title="may go now"),
    Column("fault"),
    Column("regions"),
    Column("reports", title="regions with a report"),
    Column("lifetime_ms", duration_text, "lifetime"),
    Column("skew_ms", duration_text, "clock difference"),
    Column("restored"),
)
_CAUSES = (Column("writers"), Column("cause"), Column("freed_by"))
_HOLDS = (
    Column("write_pointer"),
    Column("began_ms", time_text, "began"),
    Column("cause"),
    Column("table"),
    Column("region"),
    Column("detail"),
    Column("freed_by"),
)
_REGIONS = (
    Column("id"),
    Column("table"),
    Column("server"),
    Column("report_ms", time_text, "reported"),
    Column("oldest_edit_ms", time_text, "oldest unflushed"),
    Column("files"),
    Column("unknown_files", title="of unknown origin"),
    Column("held_back"),
    Column("oldest_held"),
    Column("idle"),
)
_FILES = (
    Column("name"),
    Column("decided"),
    Column("newest"),
    Column("bytes", size_text, "size"),
    Column("modified_ms", time_text, "modified"),
)
_HISTORY = (Column("pruned_ms", time_text, "pruned"), Column("writers"), Column("oldest"), Column("newest"))


@prune.command("run", cls=Command)
@author_options
@dry_run_option
@common_options
@pass_invocation
def run(invocation: Invocation, dry_run: bool, reason: str, by: str) -> None:
    """Forget what may be forgotten now, and ask for compactions where files are in the way."""
    with invocation.client() as client:
        answer = row(client.admin.prune(dry_run=dry_run, reason=reason, by=by))
    would = "would prune" if dry_run else "pruned"
    sentence = f"{would} {counted(answer['pruned'], 'writer')} of {answer['invalid']:,}"
    sentence += f"; {answer['waiting']:,} wait for their lifetime to end, something holds back {answer['held']:,}"
    if answer["compactions"]:
        sentence += f"; compactions asked for: {' '.join(answer['compactions'])}"
    invocation.out.done(sentence, answer)


@prune.command("status", cls=Command)
@common_options
@pass_invocation
def status(invocation: Invocation) -> None:
    """Show how long the invalid list is, how much of it may go, and what is in the way of the rest."""
    with invocation.client() as client:
        answer = row(client.admin.prune_status())
    invocation.out.record(answer, _STATUS)
    if invocation.out.for_people and answer["causes"]:
        invocation.out.line("")
        invocation.out.rows(_CAUSES, answer["causes"])


@prune.command("explain", cls=Command)
@click.argument("write_pointer", required=False, type=click.IntRange(1, POINTER_MAX), metavar="[WRITE_POINTER]")
@click.option("--limit", type=click.IntRange(1, 1_000), default=10, show_default=True, help="At most so many writers.")
@common_options
@pass_invocation
def explain(invocation: Invocation, write_pointer: int | None, limit: int) -> None:
    """Tell which region and file holds back each writer, and what will free it: one, or the oldest."""
    with invocation.client() as client:
        found = [row(each) for each in client.admin.prune_explain(write_pointer, limit=limit)]
    if invocation.out.for_people:
        invocation.out.rows(_HOLDS, [line for each in found for line in _lines(each)])
        return
    invocation.out.rows((), found)


@prune.command("regions", cls=Command)
@click.option("--blocking", is_flag=True, help="Only those that hold back some writer.")
@click.option("--idle", is_flag=True, help="Only those whose report vouches for nothing.")
@common_options
@pass_invocation
def regions(invocation: Invocation, blocking: bool, idle: bool) -> None:
    """List regions, those first that hold back the oldest writers."""
    with invocation.client() as client:
        show = "blocking" if blocking else "idle" if idle else None
        found = [row(each) for each in client.admin.prune_regions(show=show)]
    if blocking and idle:
        found = [each for each in found if each["idle"] is not None]
    invocation.out.rows(_REGIONS, found)


@prune.command("info", cls=Command)
@click.argument("region")
@common_options
@pass_invocation
def info(invocation: Invocation, region: str) -> None:
    """Show a region with its files: which writers each of them may hold."""
    with invocation.client() as client:
        answer = row(client.admin.prune_region(region))
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    invocation.out.record({**answer, **answer["counters"]}, (*_REGIONS, *(Column(name) for name in answer["counters"])))
    invocation.out.line("")
    invocation.out.rows(_FILES, answer["store_files"])


@prune.command("history", cls=Command)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@common_options
@pass_invocation
def history(invocation: Invocation, limit: int) -> None:
    """List what was pruned, newest first."""
    with invocation.client() as client:
        found = [row(each) for each in client.admin.prune_history(limit=limit)]
    invocation.out.rows(_HISTORY, found)


@prune.command("restore", cls=Command)
@click.option(
    "--since", required=True, type=PositionText(), metavar="SPEC", help="From when the copy is: a time such as -2d."
)
@author_options
@yes_option
@dry_run_option
@common_options
@pass_invocation
def restore(invocation: Invocation, since: Any, yes: bool, dry_run: bool, reason: str, by: str) -> None:
    """Make writers invalid again that were pruned since: a table was restored from a copy of that time."""
    since_ms = since.time_ms
    if since_ms is None:
        raise click.UsageError("--since takes a time: @milliseconds, @date-time or -2d")
    if not dry_run:
        confirm(f"Make writers invalid again that were pruned since {time_text(since_ms)}?", yes=yes)
    with invocation.client() as client:
        answer = row(client.admin.prune_restore(since_ms, dry_run=dry_run, reason=reason, by=by))
    would = "would make" if dry_run else "made"
    invocation.out.done(f"{would} {counted(answer['restored'], 'writer')} invalid again", answer)


def _lines(explained: dict[str, Any]) -> list[dict[str, Any]]:
    """One line for each thing in the way; one for a writer that nothing is in the way of."""
    holds = explained["holds"] or [{"cause": "free", "freed_by": "the next prune run"}]
    head = {name: explained[name] for name in ("write_pointer", "began_ms")}
    lines = [{**head, **hold} for hold in holds]
    if explained["holds_left_out"]:
        lines.append({**head, "cause": f"{explained['holds_left_out']:,} more"})
    return lines
