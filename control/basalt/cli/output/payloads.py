"""How a message is written: one line for people, a row for programs, or its bytes."""

from __future__ import annotations

import base64
from typing import Any, Literal

from basalt.cli.output.escaping import printable_bytes
from basalt.cli.output.output import time_text

PayloadFormat = Literal["text", "hex", "base64", "raw"]
PAYLOAD_FORMATS: tuple[PayloadFormat, ...] = ("text", "hex", "base64", "raw")
ID_PUBLISH_MS_BYTES = 8  # a message id starts with the time of its publish


def publish_ms(message_id: bytes) -> int:
    """When the message of this id was published, in milliseconds since 1970."""
    return int.from_bytes(message_id[:ID_PUBLISH_MS_BYTES])


def payload_line(payload: bytes, form: PayloadFormat) -> str:
    """A payload on one line; text with what is not printable, or not UTF-8, as escapes."""
    if form == "hex":
        return payload.hex()
    if form == "base64":
        return base64.b64encode(payload).decode("ascii")
    return printable_bytes(payload)


def message_line(message_id: bytes, payload: bytes, form: PayloadFormat) -> str:
    """A message on one line: id, time of publish, payload."""
    return f"{message_id.hex()}  {time_text(publish_ms(message_id))}  {payload_line(payload, form)}"


def bytes_field(name: str, content: bytes, form: PayloadFormat = "text") -> dict[str, str]:
    """Bytes as a field of a row: text under `name`, or `name_base64` when they are not UTF-8 (or asked for)."""
    if form == "hex":
        return {f"{name}_hex": content.hex()}
    if form != "base64":
        try:
            return {name: content.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(content).decode("ascii")}


def message_row(message_id: bytes, payload: bytes, form: PayloadFormat) -> dict[str, Any]:
    """A message as a row: id, publish_ms, and the payload."""
    return {"id": message_id.hex(), "publish_ms": publish_ms(message_id), **bytes_field("payload", payload, form)}
