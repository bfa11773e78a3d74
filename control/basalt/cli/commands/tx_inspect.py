"""`basalt tx list | describe | find-hanging | timeline`: looking after transactions. Registered in `tx`."""

from __future__ import annotations

from typing import Any

import click

from basalt.cli.options.options import Command, DurationMs, Invocation, TransactionId, common_options, pass_invocation
from basalt.cli.output.failures import EXIT_FOUND, EXIT_OK
from basalt.cli.output.output import Column, counted, duration_text, plain, size_text, time_text
from basalt.cli.output.rows import row
from basalt_engine.retention import POINTERS_PER_MS

_LIST = (
    Column("id"),
    Column("state"),
    Column("kind"),
    Column("owner"),
    Column("age_ms", duration_text, "age"),
    Column("remaining_ms", duration_text, "ends in"),
    Column("topics"),
    Column("holds_readers"),
)
_HANGING = (
    Column("topic"),
    Column("id"),
    Column("owner"),
    Column("age_ms", duration_text, "age"),
    Column("remaining_ms", duration_text, "ends in"),
    Column("messages", title="held back"),
    Column("waiting", title="polls waiting"),
    Column("reasons", title="why"),
)
_DESCRIBED = (
    Column("id"),
    Column("state"),
    Column("kind"),
    Column("owner"),
    Column("session"),
    Column("began_ms", time_text, "began"),
    Column("age_ms", duration_text, "age"),
    Column("expires_ms", time_text, "times out"),
    Column("remaining_ms", duration_text, "times out in"),
    Column("write_pointers"),
    Column("read_pointer"),
    Column("topics"),
    Column("stored_messages"),
    Column("stored_bytes", size_text, "stored"),
    Column("tables"),
    Column("change_set", title="keys changed"),
    Column("outside_writes"),
    Column("lost_to"),
    Column("waits_for"),
    Column("readers_wait_in"),
    Column("also_holds_back"),
    Column("at_deadline", title="when time is up"),
    Column("next_step"),
)
_ENDED = (
    Column("id"),
    Column("state"),
    Column("kind"),
    Column("owner"),
    Column("began_ms", time_text, "began"),
    Column("ended_ms", time_text, "ended"),
    Column("timed_out"),
    Column("topics"),
    Column("tables"),
    Column("outside_writes"),
    Column("invalid_pointers"),
    Column("meaning"),
    Column("next_step"),
)
_STEPS = (Column("when"), Column("event"), Column("detail"))


def filters(command: Any) -> Any:
    """--state, --owner, --topic: which transactions."""
    states = click.Choice(("open", "committing", "aborting"))
    command = click.option("--topic", metavar="TOPIC", help="Only those that write to it.")(command)
    command = click.option("--owner", metavar="TEXT", help="Only those of this owner.")(command)
    return click.option("--state", type=states, help="Only those in this state.")(command)


@click.command("list", cls=Command)
@filters
@click.option("--older-than", "older_than_ms", type=DurationMs(), metavar="DURATION", help="Only those open longer.")
@common_options
@pass_invocation
def list_open(
    invocation: Invocation, state: str | None, owner: str | None, topic: str | None, older_than_ms: int | None
) -> None:
    """List transactions that have not ended, oldest first, and say how many there are."""
    with invocation.client() as client:
        found = row(
            client.admin.transactions(
                state=state, owner=owner, older_than_ms=older_than_ms, topic=_title(invocation, topic)
            )
        )
    invocation.out.rows(_LIST, [listed_row(each) for each in found["transactions"]])
    if invocation.out.for_people:
        shown = len(found["transactions"])
        rest = "" if shown == found["open"] else f" of {found['open']:,}"
        invocation.out.line(f"\n{counted(shown, 'transaction')}{rest}")


@click.command("find-hanging", cls=Command)
@filters
@click.option(
    "--older-than", "older_than_ms", type=DurationMs(), metavar="DURATION",
    help="What counts as long. [default: half of a transaction's own time-out]",
)  # fmt: skip
@common_options
@pass_invocation
def find_hanging(
    invocation: Invocation, state: str | None, owner: str | None, topic: str | None, older_than_ms: int | None
) -> int:
    """Find transactions that hold readers back or are open for long, by topic, worst first.

    Exit code 7 when there are some, 0 when there are none.
    """
    with invocation.client() as client:
        found = row(
            client.admin.hanging_transactions(
                state=state, owner=owner, older_than_ms=older_than_ms, topic=_title(invocation, topic)
            )
        )
    hanging = found["hanging"]
    if invocation.out.for_people:
        if hanging:
            invocation.out.rows(_HANGING, [line for each in hanging for line in _by_topic(each)])
            invocation.out.line(
                f"\n{counted(len(hanging), 'transaction')} of {found['open']:,}. The worst: {_worst(hanging[0])}"
            )
        else:
            invocation.out.line(f"none of {counted(found['open'], 'transaction')} hangs")
        if found["left_out"]:
            invocation.out.line(f"{found['left_out']:,} younger ones were not looked at")
    else:
        invocation.out.rows((), hanging)
    return EXIT_FOUND if hanging else EXIT_OK


@click.command("describe", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@common_options
@pass_invocation
def describe(invocation: Invocation, transaction: str) -> None:
    """Tell everything about a transaction: what it holds back and waits for, or how it ended."""
    with invocation.client() as client:
        found = row(client.admin.describe_transaction(transaction))
    if not invocation.out.for_people:
        invocation.out.record(found)
        return
    invocation.out.record(*for_people(found))


@click.command("timeline", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@common_options
@pass_invocation
def timeline(invocation: Invocation, transaction: str) -> None:
    """Tell what happened to a transaction, step by step."""
    with invocation.client() as client:
        found = row(client.transactions.timeline(transaction))
    if not invocation.out.for_people:
        invocation.out.record(found)
        return
    invocation.out.rows(
        _STEPS, [{**step, "when": _when(step), "detail": _detail(step["detail"])} for step in found["steps"]]
    )
    if not found["whole"]:
        invocation.out.line(f"\nsteps before {time_text(found['since_ms'])} are not known any more")


def listed_row(found: dict[str, Any]) -> dict[str, Any]:
    """A transaction of a list, with names in place of what is nested."""
    return {**found, "owner": found["owner"] or None, "topics": topic_names(found), "tables": table_names(found)}


def topic_names(found: dict[str, Any]) -> list[str]:
    """Its topics as people name them."""
    return [f"{part['namespace']}:{part['topic']}" for part in found["topics"]]


def table_names(found: dict[str, Any]) -> list[str]:
    """Its tables as people name them."""
    return [f"{part['namespace']}:{part['table']}" for part in found["tables"]]


def for_people(found: dict[str, Any]) -> tuple[dict[str, Any], tuple[Column, ...]]:
    """A description as a listing, without lines that have nothing to say."""
    shown = listed_row(found)
    if "ended_ms" in found:
        return shown, _ENDED
    stored = [part for part in found["topics"] if part.get("stored_messages") is not None]
    left_out = found["write_pointers_left_out"]
    lost = found["lost_to"]
    shown |= {
        "write_pointers": [*found["write_pointers"], *([f"and {left_out:,} more"] if left_out else [])],
        "stored_messages": sum(part["stored_messages"] for part in stored) if stored else None,
        "stored_bytes": sum(part["stored_bytes"] for part in stored) if stored else None,
        "session": found["session"] and f"{found['session']['name']} (epoch {found['session']['epoch']})",
        "lost_to": lost
        and f"transaction {lost['winner']} of {plain(lost['winner_owner'])}, which changed {lost['key']} first",
        "readers_wait_in": [wait_text(block) for block in found["blocks"]],
        "also_holds_back": held_text(found["held_back"]),
    }
    needed = ("id", "state", "kind", "owner")
    columns = tuple(
        column for column in _DESCRIBED if column.key in needed or shown.get(column.key) not in (None, [], "", False)
    )
    return shown, columns


def wait_text(block: dict[str, Any]) -> str:
    """One topic in which readers wait."""
    title = f"{block['namespace']}:{block['topic']}"
    if block["at"] is None:
        return f"{title} (maybe: too many rows to look through)"
    more = "" if block["exact"] else " or more"
    polls = f", {counted(block['waiting'], 'poll')} waiting" if block["waiting"] else ""
    return f"{title} at {block['at']} ({counted(block['messages'], 'message')}{more} behind it{polls})"


def held_text(held: dict[str, Any]) -> str:
    """Say in a sentence what a transaction holds back beside readers."""
    parts = []
    if held["visibility"]:
        parts.append(f"compactions keep all that was replaced since {_pointer_time(held['visibility_bound'])}")
    if held["pruning"]:
        parts.append(f"pruning forgets nobody who began after {_pointer_time(held['decided'])}")
    if held["change_sets"]:
        parts.append(
            f"{counted(held['change_sets'], 'change set')} ({counted(held['changes'], 'key')}) of others stay in memory"
        )
    return "; ".join(parts)


def _pointer_time(pointer: int) -> str:
    """About when a write pointer was given out."""
    return time_text(pointer // POINTERS_PER_MS)


def _when(step: dict[str, Any]) -> str:
    return time_text(step["at_ms"]) if step["exact"] else f"after {time_text(step['at_ms'])}"


def _detail(detail: dict[str, Any]) -> str:
    """Write what is not empty, with times as people read them."""
    shown = {
        name.removesuffix("_ms"): time_text(value) if name.endswith("_ms") else plain(value)
        for name, value in detail.items()
        if value != ""
    }
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def _by_topic(found: dict[str, Any]) -> list[dict[str, Any]]:
    head = {**found, "reasons": ", ".join(found["reasons"])}
    if not found["blocks"]:
        return [{**head, "topic": name} for name in topic_names(found) or [""]]
    return [{**head, **block, "topic": f"{block['namespace']}:{block['topic']}"} for block in found["blocks"]]


def _worst(found: dict[str, Any]) -> str:
    return f"{found['id']}; {found['next_step']}"


def _title(invocation: Invocation, topic: str | None) -> str | None:
    return None if topic is None else f"{invocation.target().namespace}:{topic}"
