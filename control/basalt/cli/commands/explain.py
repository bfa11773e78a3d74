"""`basalt explain`: which transaction a reader waits for and until when; what a transaction holds back, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.commands.tx_inspect import held_text, wait_text
from basalt.cli.options.options import Command, Invocation, PositionText, TransactionId, common_options, pass_invocation
from basalt.cli.output.escaping import printable
from basalt.cli.output.output import Column, counted, duration_text, plain, time_text
from basalt.cli.output.rows import publish_ms, row
from basalt.cli.root import group
from basalt.errors import TransactionNotFoundError

if TYPE_CHECKING:
    from basalt.api.positions import Position
    from basalt.client import Client

explain = group("explain", "Tell why a reader stops, and what a transaction holds back.")

_HOLDER = (
    Column("held_by", title="held by"),
    Column("at_id", title="at message"),
    Column("at_ms", time_text, "published"),
    Column("state"),
    Column("owner"),
    Column("began_ms", time_text, "began"),
    Column("expires_ms", time_text, "expires"),
    Column("expires_in_ms", duration_text, "expires in"),
    Column("messages_behind"),
    Column("polls_waiting"),
    Column("at_deadline", title="then"),
)


@explain.command("poll", cls=Command)
@click.argument("topic")
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="Where the reader starts. [default: start]")
@common_options
@pass_invocation
def poll(invocation: Invocation, topic: str, start: Position | None) -> None:
    """Tell at which transaction a reader of committed messages stops, what waits behind it, and when it will end."""
    with invocation.client() as client:
        shown = {"topic": topic, **_hold(client, topic, start)}
    invocation.out.record(shown, (Column("topic"), *(_HOLDER if shown["held_by"] else ())))
    if invocation.out.for_people:
        invocation.out.line("")
        invocation.out.line(_advice(shown))


@explain.command("tx", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@common_options
@pass_invocation
def transaction(invocation: Invocation, transaction: str) -> None:
    """Tell who waits for a transaction, what it waits for itself, and what happens when its time is up."""
    with invocation.client() as client:
        found = row(client.admin.describe_transaction(transaction))
    if invocation.out.for_people:
        for line in _story(found):
            invocation.out.line(printable(line))
        return
    invocation.out.record(found)


def _story(found: dict[str, Any]) -> Iterator[str]:
    """A transaction's circumstances in sentences."""
    owner = f" of {found['owner']}" if found["owner"] else ""
    name = f"Transaction {found['id']}{owner}"
    if "ended_ms" in found:
        late = " because its time was up" if found["timed_out"] else ""
        yield f"{name} ended at {time_text(found['ended_ms'])}{late}: {found['meaning']}."
        if found["invalid_pointers"]:
            yield f"{counted(found['invalid_pointers'], 'write pointer')} of it {_are(found)} on the invalid list."
        yield f"Next: {found['next_step']}."
        return
    yield f"{name} is {found['state']} since {duration_text(found['age_ms'])}. It waits for {found['waits_for']}."
    if found["lost_to"]:
        lost = found["lost_to"]
        yield f"It lost a write conflict on {lost['key']} to transaction {lost['winner']} of {plain(lost['winner_owner'])}."
    for block in found["blocks"]:
        yield f"Readers of committed messages wait in {wait_text(block)}."
    if not found["blocks"]:
        yield "No reader waits for it."
    held = held_text(found["held_back"])
    if held:
        yield f"Because of it {held}."
    if found["state"] == "OPEN":
        when = time_text(found["expires_ms"])
        yield f"Its time is up in {duration_text(found['remaining_ms'])}, at {when}: then {found['at_deadline']}."
    yield f"Next: {found['next_step']}."


def _are(found: dict[str, Any]) -> str:
    return "is" if found["invalid_pointers"] == 1 else "are"


def _hold(client: Client, name: str, start: Position | None) -> dict[str, Any]:
    """Find where readers stop, and the transaction they stop at; all None when they do not."""
    at: Position | str | None = start
    topic = client.topic(name)
    while True:
        found = topic.holder(at)
        if found.held_by is not None or found.searched_to is None:
            break
        at = found.searched_to
    described: dict[str, Any] = {}
    if found.held_by is not None:
        with suppress(TransactionNotFoundError):  # it ended meanwhile
            described = row(client.admin.describe_transaction(found.held_by))
    blocks = [
        block
        for block in described.get("blocks", ())
        if (block["namespace"], block["topic"]) == (topic.namespace, topic.name)
    ]
    block = blocks[0] if blocks else {}
    return {
        "held_by": found.held_by,
        "at_id": found.at,
        "at_ms": None if found.at is None else publish_ms(bytes.fromhex(found.at)),
        "state": described.get("state"),
        "owner": described.get("owner") or None,
        "began_ms": described.get("began_ms"),
        "expires_ms": described.get("expires_ms"),
        "expires_in_ms": described.get("remaining_ms"),
        "messages_behind": block.get("messages"),
        "messages_behind_exact": block.get("exact"),
        "polls_waiting": block.get("waiting"),
        "at_deadline": described.get("at_deadline"),
        "next_step": described.get("next_step"),
    }


def _advice(shown: dict[str, Any]) -> str:
    if shown["held_by"] is None:
        return "Nothing holds readers of committed messages: they get to the end of the topic."
    if shown["expires_ms"] is None:
        return f"Transaction {shown['held_by']} has ended since; ask again."
    behind = ""
    if shown["messages_behind"] is not None:
        more = "" if shown["messages_behind_exact"] else " or more"
        behind = f", and {counted(shown['messages_behind'], 'message')}{more} behind it"
    return (
        f"Readers of committed messages wait for transaction {shown['held_by']}{behind}. Its time is up in"
        f" {duration_text(shown['expires_in_ms'])}: then {shown['at_deadline']}. Next: {shown['next_step']}."
    )
