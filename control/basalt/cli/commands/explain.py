"""`basalt explain`: which transaction a reader waits for, whose it is, and when it will time out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from basalt.cli.answers import transaction_row
from basalt.cli.options import Command, PositionText, TransactionId, common_options
from basalt.cli.output import Column, duration_text, time_text
from basalt.cli.payloads import publish_ms
from basalt.cli.root import group
from basalt.cli.session import Session, pass_session
from basalt.errors import TransactionNotFoundError
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from basalt.client import Client
    from basalt.wire.positions import Position

explain = group("explain", "Tell why a reader stops where it does.")

_MEANINGS = {
    "OPEN": "It is open: readers of committed messages stop at the first message that it has published already.",
    "COMMITTING": "It is being committed: its messages are being put into their topics, and will all be visible at once.",
    "COMMITTED": "It is committed: every later reader sees all of its messages.",
    "ABORTING": "It is being aborted: its rows are being rolled back.",
    "ABORTED": "It was aborted: readers of committed messages never see any of its messages.",
    "INVALID": "It failed and may have left writes behind: they are hidden, and retention removes them.",
}
_EXPIRES = (Column("expires_ms", time_text, "expires"), Column("expires_in_ms", duration_text, "expires in"))
_HOLDER = (
    Column("held_by", title="held by"),
    Column("at_id", title="at message"),
    Column("at_ms", time_text, "published"),
    Column("state"),
    Column("owner"),
    Column("began_ms", time_text, "began"),
    *_EXPIRES,
)


@explain.command("poll", cls=Command)
@click.argument("topic")
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="Where the reader starts. [default: start]")
@common_options
@pass_session
def poll(session: Session, topic: str, start: Position | None) -> None:
    """Tell at which transaction a reader of committed messages stops, whose it is, and when it will end."""
    with session.client() as client:
        row = {"topic": topic, **_hold(client, topic, start)}
    session.out.record(row, (Column("topic"), *(_HOLDER if row["held_by"] else ())))
    if session.out.for_people:
        session.out.line("")
        session.out.line(_advice(row))


@explain.command("tx", cls=Command)
@click.argument("transaction", type=TransactionId(), metavar="ID")
@common_options
@pass_session
def transaction(session: Session, transaction: str) -> None:
    """Tell what state a transaction is in, what that means, and whose readers wait for it."""
    with session.client() as client:
        info = client.transactions.get(transaction)
        shown = transaction_row(info)
        waiting = [
            f"{part.namespace}:{part.topic}"
            for part in info.topics
            if client.topic(part.topic, namespace=part.namespace).stats().oldest_open_write_pointer
            == info.write_pointer
        ]
    row = {
        **shown,
        "expires_in_ms": _expires_in_ms(shown),
        "readers_wait_in": waiting,
        "meaning": _MEANINGS.get(info.state, ""),
    }
    columns = (
        Column("id"),
        Column("state"),
        Column("kind"),
        Column("owner"),
        Column("began_ms", time_text, "began"),
        *_EXPIRES,
        Column("topics"),
        Column("readers_wait_in"),
        Column("meaning"),
    )
    session.out.record(row, columns)


def _hold(client: Client, name: str, start: Position | None) -> dict[str, Any]:
    """Where readers stop, and the transaction they stop at; all None when they do not."""
    at: Position | str | None = start
    while True:
        found = client.topic(name).holder(at)
        if found.held_by is not None or found.searched_to is None:
            break
        at = found.searched_to
    shown = dict.fromkeys(("state", "owner", "began_ms", "expires_ms"))
    if found.held_by is not None:
        try:
            shown = transaction_row(client.transactions.get(found.held_by))
        except TransactionNotFoundError:
            pass  # it ended meanwhile
    return {
        "held_by": found.held_by,
        "at_id": found.at,
        "at_ms": None if found.at is None else publish_ms(bytes.fromhex(found.at)),
        **{key: shown[key] for key in ("state", "owner", "began_ms", "expires_ms")},
        "expires_in_ms": _expires_in_ms(shown),
    }


def _expires_in_ms(shown: dict[str, Any]) -> int | None:
    expires_ms = shown["expires_ms"]
    return None if expires_ms is None else max(0, expires_ms - SystemClock().now_ms())


def _advice(row: dict[str, Any]) -> str:
    if row["held_by"] is None:
        return "Nothing holds readers of committed messages: they get to the end of the topic."
    if row["state"] is None:
        return f"Transaction {row['held_by']} has ended since; ask again."
    when = (
        "" if row["expires_in_ms"] is None else f" It is ended for its owner in {duration_text(row['expires_in_ms'])}."
    )
    return (
        f"Readers of committed messages wait for transaction {row['held_by']}.{when} "
        f"Its owner may end it sooner, or you: `basalt tx abort {row['held_by']}`."
    )
