"""`basalt snapshot`: which transactions are open and failed, as the manager and the region servers see it."""

from __future__ import annotations

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, common_options, dry_run_option
from basalt.cli.output.output import Column, duration_text, time_text
from basalt.cli.output.rows import row
from basalt.cli.root import group

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
@pass_session
def show(session: Session) -> None:
    """Show the manager's snapshot, and the one that was published for region servers."""
    with session.client() as client:
        answer = row(client.admin.snapshot())
    if not session.out.for_people:
        session.out.record(answer)
        return
    session.out.record(answer, _SNAPSHOT)
    if answer["published"] is not None:
        session.out.line("")
        session.out.record(answer["published"], _PUBLISHED)


@snapshot.command("publish", cls=Command)
@dry_run_option
@common_options
@pass_session
def publish(session: Session, dry_run: bool) -> None:
    """Publish the snapshot for the region servers now, rather than with the job's next run."""
    with session.client() as client:
        if dry_run:
            answer = row(client.admin.snapshot())
            session.out.done("would publish a snapshot", {**answer, "dry_run": True})
            return
        answer = row(client.admin.publish_snapshot())
    session.out.done(f"published snapshot {answer['sequence']} of epoch {answer['epoch']}", answer)
