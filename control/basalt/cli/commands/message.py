"""`basalt message`: single messages, whatever became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Command, MessageId, PositionText, common_options
from basalt.cli.output.escaping import printable_bytes
from basalt.cli.output.output import Column, duration_text, time_text
from basalt.cli.output.payloads import PAYLOAD_FORMATS, PayloadFormat, bytes_field, message_row, payload_line
from basalt.cli.root import group

if TYPE_CHECKING:
    from basalt.api.positions import Position
    from basalt.client import PeekedMessage

message = group("message", "Look at single messages, hidden ones too.")

PEEK_MESSAGES_DEFAULT = 20
PEEK_MESSAGES_MAX = 1_000
_FORMS = [form for form in PAYLOAD_FORMATS if form != "raw"]


def _form_option(command: Any) -> Any:
    return click.option(
        "--format", "form", type=click.Choice(_FORMS), default="text", show_default=True, help="How to write payloads."
    )(command)


@message.command("show", cls=Command)
@click.argument("topic")
@click.argument("message_id", type=MessageId(), metavar="ID")
@_form_option
@common_options
@pass_session
def show(session: Session, topic: str, message_id: bytes, form: PayloadFormat) -> None:
    """Show one message and its state: plain, committed, open, rolled back, invalid or expired."""
    with session.client() as client:
        found = client.topic(topic).message(message_id)
    session.out.record(_row(session, found, form), _ALL_COLUMNS)


@message.command("peek", cls=Command)
@click.argument("topic")
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="First message. [default: start]")
@click.option(
    "--limit",
    type=click.IntRange(1, PEEK_MESSAGES_MAX),
    default=PEEK_MESSAGES_DEFAULT,
    show_default=True,
    metavar="N",
    help="At most so many messages.",
)
@_form_option
@common_options
@pass_session
def peek(session: Session, topic: str, start: Position | None, limit: int, form: PayloadFormat) -> None:
    """List messages with their states, uncommitted and rolled-back ones too."""
    with session.client() as client:
        found = client.topic(topic).peek(start, limit=limit)
    session.out.rows(_COLUMNS, [_row(session, item, form) for item in found])


_COLUMNS = (
    Column("id"),
    Column("publish_ms", time_text, "published"),
    Column("state"),
    Column("write_pointer", title="writer"),
    Column("key"),
    Column("payload"),
)
_ALL_COLUMNS = (
    *_COLUMNS[:4],
    Column("kind"),
    Column("key"),
    Column("headers"),
    Column("event_time_ms", time_text, "event time"),
    Column("ttl_ms", duration_text, "ttl"),
    Column("payload"),
)


def _row(session: Session, found: PeekedMessage, form: PayloadFormat) -> dict[str, Any]:
    row = {
        **message_row(bytes.fromhex(found.id), found.content, form),
        "state": found.state,
        "write_pointer": found.write_pointer,
        "kind": found.kind,
        "headers": [
            {"name": header.name, **_bytes_of("value", header.value, header.value_base64)} for header in found.headers
        ],
        "event_time_ms": found.event_time_ms,
        "ttl_ms": found.ttl_ms,
        **_bytes_of("key", found.key, found.key_base64),
    }
    if session.out.for_people:
        row["payload"] = payload_line(found.content, form)
        row["key"] = row.get("key", row.get("key_base64"))
        row["headers"] = [
            f"{header.name}={header.value if header.value_base64 is None else printable_bytes(header.value_base64)}"
            for header in found.headers
        ]
    return row


def _bytes_of(name: str, text: str | None, content: bytes | None) -> dict[str, str]:
    """A field that is there as text, or as bytes, or not at all."""
    if text is not None:
        return {name: text}
    return {} if content is None else bytes_field(name, content, "base64")
