"""`basalt consume`: read messages from one position to another, or on and on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, MessageId, PositionText, common_options
from basalt.cli.output.failures import Usage
from basalt.cli.output.payloads import PAYLOAD_FORMATS, PayloadFormat, message_line, message_row
from basalt.cli.output.progress import progress

if TYPE_CHECKING:
    from basalt.api.positions import Position
    from basalt.client import Message

PROGRESS_MESSAGES = 1_000  # a bar that moves more often costs more than the messages


@click.command(cls=Command)
@click.argument("topic")
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="First message. [default: start]")
@click.option("--after", type=MessageId(), metavar="ID", help="Start behind this message instead.")
@click.option("--to", "stop", type=PositionText(), metavar="SPEC", help="Stop before this. [default: end]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages; Ctrl-C ends it.")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="committed stops at the first message of an open transaction; uncommitted shows everything.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(PAYLOAD_FORMATS),
    default="text",
    show_default=True,
    help="How to write payloads.",
)
@common_options
@pass_session
def consume(
    session: Session,
    topic: str,
    start: Position | None,
    after: bytes | None,
    stop: Position | None,
    limit: int | None,
    follow: bool,
    isolation: str,
    form: PayloadFormat,
) -> None:
    """Read messages from a topic.

    A SPEC is start, end, now, a message id, @milliseconds, @2026-01-31T10:00:00Z, or a time from now such as -1h or
    +10m. --format raw writes payloads alone, each with a line end after it.
    """
    from basalt.api.positions import END, START, after_id

    if after is not None:
        if start is not None:
            raise Usage("--from and --after both say where to start", hint="leave one of them out")
        start = after_id(after)
    if form == "raw" and session.output is not None:
        raise Usage("--format raw writes bytes, which no -o can hold", hint="leave one of them out")
    _check_order(start, stop)
    with session.client() as client:
        reader = client.topic(topic).read(
            start or START,
            stop if stop is not None or follow else END,
            limit=limit,
            isolation="committed" if isolation == "committed" else None,
            follow=follow,
        )
        _write(session, _flushed(reader) if follow else _watched(reader, limit), form)
        if reader.held_by is not None and not follow:
            click.echo(
                f"basalt: stopped at a message of transaction {reader.held_by}, which is still open; "
                f"`basalt explain poll {topic}` tells more",
                err=True,
            )


def _write(session: Session, messages: Iterable[Message], form: PayloadFormat) -> None:
    out = session.out
    if form == "raw":
        for message in messages:
            sys.stdout.buffer.write(message.payload + b"\n")
    elif out.for_people:
        for message in messages:
            out.line(message_line(message.id, message.payload, form))
    else:
        out.rows((), (message_row(message.id, message.payload, form) for message in messages))


def _flushed(messages: Iterable[Message]) -> Iterator[Message]:
    """Whoever follows a topic through a pipe wants each message when it comes."""
    for message in messages:
        yield message
        sys.stdout.flush()


def _watched(messages: Iterable[Message], limit: int | None) -> Iterator[Message]:
    """With a progress bar when the messages go elsewhere than to the terminal."""
    if sys.stdout.isatty():
        yield from messages
        return
    with progress("messages", limit) as advance:
        for count, message in enumerate(messages, start=1):
            yield message
            if count % PROGRESS_MESSAGES == 0:
                advance(PROGRESS_MESSAGES)


def _check_order(start: Position | None, stop: Position | None) -> None:
    if start is None or stop is None:
        return
    from basalt.api.positions import START

    if stop == START or _key(start) > _key(stop):
        raise Usage(f"--from {start.text} is not before --to {stop.text}", hint="exchange them")


def _key(position: Position) -> Any:
    """Positions in their order, as far as it is known before anything is read: only times and ids can be compared."""
    from basalt.api.positions import END, START

    if position in (START, END):
        return b"" if position == START else b"\xff" * 21
    return position.id or (position.time_ms or 0).to_bytes(8)
