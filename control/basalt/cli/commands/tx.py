"""`basalt tx`: transactions, begun and ended by hand, looked after, and named sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from basalt.api.bodies.transactions import ForcedEnd
from basalt.cli.failures import EXIT_FOUND, EXIT_OK
from basalt.cli.options import (
    SESSION,
    TOPIC,
    DurationMs,
    Invocation,
    TransactionId,
    author_options,
    confirm,
    dry_run_option,
    stacked,
    yes_option,
)
from basalt.cli.output import TRANSACTION_COLUMNS, Column, columns, counted, plain, row, time_text, transaction_row
from basalt.cli.root import group
from basalt_engine.snapshot import POINTERS_PER_MS

sessions = group("sessions", "List, show and delete named sessions.")
_limit = click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")

_SESSIONS = columns("name run epoch version used_ms transactions")
_SESSION = (*_SESSIONS, *columns("committed_by counter_owner replaced"))


@sessions.call("list")
@click.option("--after", metavar="NAME", help="Only those behind this one.")
@_limit
def list_sessions(invocation: Invocation, after: str | None, limit: int | None) -> None:
    """List the sessions, with the run that holds each, and the version that it has committed."""
    invocation.show_all(_SESSIONS, lambda client: client.sessions.list(after=after, limit=limit))


@sessions.call("show")
@click.argument("name", type=SESSION)
def show_session(invocation: Invocation, name: str) -> None:
    """Show one session."""
    with invocation.client() as client:
        shown = row(client.sessions.get(name))
    invocation.out.record(shown, _SESSION)


@sessions.call("delete")
@click.argument("name", type=SESSION)
@author_options
@yes_option
@dry_run_option
def delete_session(invocation: Invocation, name: str, reason: str, by: str, yes: bool, dry_run: bool) -> None:
    """End what is open in a session, and forget it and its version: work that it has committed may be committed again."""
    with invocation.client() as client:
        found = client.sessions.delete(name, dry_run=True)
        committed = "no version" if found.version is None else f"version {found.version}"
        told = f"session {name}, which has committed {committed}"
        if dry_run:
            invocation.out.done(f"would delete {told}", row(found))
            return
        confirm(f"Delete {told}?", yes=yes)
        done = client.sessions.delete(name, reason=reason, by=by)
    invocation.out.done(f"deleted session {name}", row(done))


tx = group("tx", "Begin, end, list, describe and find transactions.")
tx.add_command(sessions)


@tx.call("show")
@click.argument("transaction", type=TransactionId(), metavar="ID")
def show(invocation: Invocation, transaction: str) -> None:
    """Show one transaction, open or ended a while ago."""
    with invocation.client() as client:
        shown = transaction_row(client.transactions.get(transaction))
    invocation.out.record(shown, TRANSACTION_COLUMNS)


@tx.call("begin")
@click.option("--long", "long_one", is_flag=True, help="May take hours; takes no part in conflict detection.")
@click.option("--expires", "expires_ms", type=DurationMs(), metavar="DURATION", help="End it after this time.")
@click.option("--owner", default="", metavar="TEXT", help="Who to ask about it.")
@dry_run_option
def begin(invocation: Invocation, long_one: bool, expires_ms: int | None, owner: str, dry_run: bool) -> None:
    """Begin a transaction, to be used with `basalt publish --tx` and ended with `basalt tx commit`."""
    kind = "long" if long_one else "short"
    if dry_run:
        wanted = {"kind": kind, "timeout_ms": expires_ms, "owner": owner, "dry_run": True}
        invocation.out.done(f"would begin a {kind} transaction", wanted)
        return
    with invocation.client() as client:
        begun = client.transactions.begin(
            kind="long" if long_one else "short", timeout_ms=expires_ms, owner=owner, snapshot=False
        )
    shown = transaction_row(begun)
    invocation.out.done(f"began transaction {shown['id']}, which times out at {time_text(shown['expires_ms'])}", shown)


@tx.call("commit")
@click.argument("transaction", type=TransactionId(), metavar="ID")
@dry_run_option
def commit(invocation: Invocation, transaction: str, dry_run: bool) -> None:
    """Commit a transaction: what was stored under it is published in all its topics, or in none."""
    with invocation.client() as client:
        if dry_run:
            info = client.transactions.get(transaction)
            would = {"id": info.id, "state": info.state, "action": "commit", "dry_run": True}
            invocation.out.done(f"would commit transaction {info.id}, which is {info.state}", would)
            return
        ended = client.transactions.commit(transaction)
    invocation.out.done(f"transaction {ended.id} is {ended.state}", row(ended))


@tx.call("abort")
@click.argument("transaction", type=TransactionId(), metavar="ID")
@author_options
@click.option("--force", is_flag=True, help="Abort it though it has writes outside Basalt: its client has undone them.")
@yes_option
@dry_run_option
def abort(invocation: Invocation, transaction: str, **how: Any) -> None:
    """Abort a transaction: nothing of it is ever seen by readers of committed messages.

    Refused where it has writes outside Basalt, which only its client can undo: invalidate it then.
    """
    question = f"Abort transaction {transaction}, and lose what it stored?"
    _end_by_force(invocation, question, lambda admin, given: admin.abort_transaction(transaction, **given), **how)


@tx.call("invalidate")
@click.argument("transaction", type=TransactionId(), metavar="ID")
@author_options
@yes_option
@dry_run_option
def invalidate(invocation: Invocation, transaction: str, **how: Any) -> None:
    """Hide a transaction's writes for good, for one that nobody can roll back any more."""
    question = f"Invalidate transaction {transaction}, and hide what it wrote for good?"
    _end_by_force(invocation, question, lambda admin, given: admin.invalidate_transaction(transaction, **given), **how)


def _end_by_force(
    invocation: Invocation, question: str, end: Callable[[Any, dict[str, Any]], ForcedEnd], *, yes: bool, **given: Any
) -> None:
    if not given["dry_run"]:
        confirm(question, yes=yes)
    with invocation.client() as client:
        shown = row(end(client.admin, given))
    if not shown["changed"]:
        sentence = f"transaction {shown['id']} was {shown['state']} before"
    elif shown["dry_run"]:
        sentence = f"transaction {shown['id']} is {shown['was']} and would be {shown['state']}"
    else:
        sentence = f"transaction {shown['id']} is {shown['state']}"
    invocation.out.done(sentence, shown)


ANONYMOUS = "anonymous"

_LIST = columns("id state kind owner age_ms remaining_ms topics holds_readers", remaining_ms="ends in")
_HANGING = columns(
    "topic id owner age_ms remaining_ms messages waiting reasons",
    remaining_ms="ends in",
    messages="held back",
    waiting="polls waiting",
    reasons="why",
)
_DESCRIBED = columns(
    "id state kind owner principal session began_ms age_ms expires_ms remaining_ms write_pointers read_pointer topics stored_messages "
    "stored_bytes tables change_set external_writes acknowledges lost_to waits_for readers_wait_in also_holds_back at_deadline next_step",
    expires_ms="times out",
    remaining_ms="times out in",
    stored_bytes="stored",
    change_set="keys changed",
    at_deadline="when time is up",
)
_ENDED = columns(
    "id state kind owner principal began_ms ended_ms timed_out topics tables external_writes invalid_pointers meaning next_step"
)
_STEPS = columns("when event detail")
_INVALID = columns("write_pointer transaction kind owner principal ended_ms timed_out topics tables", ended_ms="ended")


_filters = stacked(
    click.option("--state", type=click.Choice(("open", "committing", "aborting")), help="Only those in this state."),
    click.option("--owner", metavar="TEXT", help="Only those of this owner."),
    click.option("--principal", metavar="PRINCIPAL", help="Only those that it began, such as token:etl."),
    click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only those that write to it."),
)


@tx.call("list")
@_filters
@click.option("--older-than", "older_than_ms", type=DurationMs(), metavar="DURATION", help="Only those open longer.")
@click.option("--after", type=TransactionId(), metavar="ID", help="Only those that began after this one.")
@_limit
def list_open(invocation: Invocation, topic: str | None, **chosen: Any) -> None:
    """List transactions that have not ended, oldest first, and say how many there are."""
    with invocation.client() as client:
        found = row(client.admin.transactions(**chosen, topic=_title(invocation, topic)))
    invocation.out.rows(_LIST, [_listed_row(each) for each in found["transactions"]])
    if invocation.out.for_people:
        shown = len(found["transactions"])
        rest = "" if shown == found["open"] else f" of {found['open']:,}"
        invocation.out.line(f"\n{counted(shown, 'transaction')}{rest}")


@tx.call("find-hanging")
@_filters
@click.option(
    "--older-than", "older_than_ms", type=DurationMs(), metavar="DURATION",
    help="What counts as long. [default: half of a transaction's own time-out]",
)  # fmt: skip
@_limit
@click.option("--rows", type=click.IntRange(1), metavar="N", help="Have the server read at most so many rows for it.")
def find_hanging(invocation: Invocation, topic: str | None, **chosen: Any) -> int:
    """Find transactions that hold readers back or are open for long, by topic, worst first.

    Exit code 7 when there are some, 0 when there are none.
    """
    with invocation.client() as client:
        answer = row(client.admin.hanging_transactions(**chosen, topic=_title(invocation, topic)))
    hanging = answer["hanging"]
    if invocation.out.for_people:
        if hanging:
            invocation.out.rows(_HANGING, [line for each in hanging for line in _by_topic(each)])
            invocation.out.line(
                f"\n{counted(answer['found'], 'transaction')} of {answer['open']:,}. The worst: {hanging[0]['id']}; {hanging[0]['next_step']}"
            )
        else:
            invocation.out.line(f"none of {counted(answer['open'], 'transaction')} hangs")
        if answer["left_out"]:
            invocation.out.line(f"{answer['left_out']:,} younger ones were not looked at")
    else:
        invocation.out.rows((), hanging)
    return EXIT_FOUND if hanging else EXIT_OK


@tx.call("list-invalid")
@click.option("--after", type=click.IntRange(0), metavar="POINTER", help="Only those behind this write pointer.")
@_limit
def list_invalid(invocation: Invocation, after: int | None, limit: int | None) -> None:
    """List the invalid list: failed writers whose writes are hidden until they are pruned, and say how many there are."""
    with invocation.client() as client:
        page = client.admin.invalid_transactions(after=after, limit=limit)
    invocation.out.rows(_INVALID, [_listed_row(row(each)) for each in page.writers])
    if invocation.out.for_people:
        rest = "" if len(page.writers) == page.invalid else f" of {page.invalid:,}"
        invocation.out.line(f"\n{counted(len(page.writers), 'write pointer')}{rest}")


@tx.call("describe")
@click.argument("transaction", type=TransactionId(), metavar="ID")
def describe(invocation: Invocation, transaction: str) -> None:
    """Tell everything about a transaction: what it holds back and waits for, or how it ended."""
    with invocation.client() as client:
        found = row(client.admin.describe_transaction(transaction))
    if not invocation.out.for_people:
        invocation.out.record(found)
        return
    invocation.out.record(*_listing(found))


@tx.call("timeline")
@click.argument("transaction", type=TransactionId(), metavar="ID")
def timeline(invocation: Invocation, transaction: str) -> None:
    """Tell what happened to a transaction, step by step."""
    with invocation.client() as client:
        steps = row(client.transactions.timeline(transaction))
    if not invocation.out.for_people:
        invocation.out.record(steps)
        return
    invocation.out.rows(
        _STEPS,
        [
            {
                **step,
                "when": ("" if step["exact"] else "after ") + time_text(step["at_ms"]),
                "detail": _detail(step["detail"]),
            }
            for step in steps["steps"]
        ],
    )
    if not steps["whole"]:
        invocation.out.line(f"\nsteps before {time_text(steps['since_ms'])} are not known any more")


def _listed_row(found: dict[str, Any]) -> dict[str, Any]:
    """A transaction of a list, with names in place of what is nested."""
    tables = [f"{part['namespace']}:{part['table']}" for part in found["tables"]]
    return {**found, "owner": found["owner"] or None, "topics": _topic_names(found), "tables": tables}


def _topic_names(found: dict[str, Any]) -> list[str]:
    return [f"{part['namespace']}:{part['topic']}" for part in found["topics"]]


def _listing(answer: dict[str, Any]) -> tuple[dict[str, Any], tuple[Column, ...]]:
    """A description as a listing, without lines that have nothing to say."""
    shown = _listed_row(answer)
    if shown["principal"] == ANONYMOUS:  # as all of them, where nobody has to prove who they are
        shown["principal"] = None
    if "ended_ms" in answer:
        return shown, tuple(column for column in _ENDED if column.key != "principal" or shown["principal"])
    stored = [part for part in answer["topics"] if part.get("stored_messages") is not None]
    left_out = answer["write_pointers_left_out"]
    lost = answer["lost_to"]
    shown |= {
        "write_pointers": [*answer["write_pointers"], *([f"and {left_out:,} more"] if left_out else [])],
        "stored_messages": sum(part["stored_messages"] for part in stored) if stored else None,
        "stored_bytes": sum(part["stored_bytes"] for part in stored) if stored else None,
        "session": answer["session"] and f"{answer['session']['name']} (epoch {answer['session']['epoch']})",
        "lost_to": lost and _winner_text(lost),
        "readers_wait_in": [wait_text(block) for block in answer["blocks"]],
        "acknowledges": [
            f"{part['messages']:,} of {part['namespace']}:{part['topic']}/{part['group']}"
            for part in answer["acknowledges"]
        ],
        "also_holds_back": held_text(answer["held_back"]),
    }
    needed = ("id", "state", "kind", "owner")
    columns = tuple(
        column for column in _DESCRIBED if column.key in needed or shown.get(column.key) not in (None, [], "", False)
    )
    return shown, columns


def _winner_text(lost: dict[str, Any]) -> str:
    """Who won a conflict; label and key are told to who may look at that transaction."""
    text = f"transaction {lost['winner']}"
    if not lost["key"]:
        return text
    return f"{text} of {plain(lost['winner_owner'])}, which changed {lost['key']} first"


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
        parts.append(f"compactions keep all that was replaced{_since('since', held['visibility_bound'])}")
    if held["pruning"]:
        parts.append(f"pruning forgets nobody{_since('who began after', held['decided'])}")
    if held["change_sets"]:
        parts.append(
            f"{counted(held['change_sets'], 'change set')} ({counted(held['changes'], 'key')}) of others stay in memory"
        )
    return "; ".join(parts)


def _since(words: str, write_pointer: int) -> str:
    """About when a write pointer was given out, behind these words; nothing when none was."""
    return f" {words} {time_text(write_pointer // POINTERS_PER_MS)}" if write_pointer else ""


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
        return [{**head, "topic": name} for name in _topic_names(found) or [""]]
    return [{**head, **block, "topic": f"{block['namespace']}:{block['topic']}"} for block in found["blocks"]]


def _title(invocation: Invocation, topic: str | None) -> str | None:
    return None if topic is None else f"{invocation.target().namespace}:{topic}"
