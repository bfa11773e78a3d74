"""Answers and messages as rows for every output format alike: keys in snake case with their units; and messages as lines."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from basalt.cli.output.escaping import printable_bytes
from basalt.cli.output.output import time_text

if TYPE_CHECKING:
    from basalt.api.bodies.topics import TopicDescription, TopicInfo
    from basalt.api.bodies.transactions import TransactionInfo

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


PayloadFormat = Literal["text", "hex", "base64", "raw"]
PAYLOAD_FORMATS: tuple[PayloadFormat, ...] = ("text", "hex", "base64", "raw")
ID_PUBLISH_MS_BYTES = 8  # a message id starts with the time of its publish


def row(answer: Struct | Mapping[str, Any]) -> dict[str, Any]:
    """An answer of the admin API as a row; a name in it (of a report, say) becomes snake case too."""
    if isinstance(answer, Struct):
        return {name: _inner(getattr(answer, name)) for name in answer.__struct_fields__}
    return {_HUMP.sub(lambda hump: f"_{hump[1].lower()}", name): _inner(value) for name, value in answer.items()}


def topic_row(info: TopicInfo, namespace: str) -> dict[str, Any]:
    """A topic as a row: the properties that have a type of their own, and the others."""
    return _topic_row(namespace, info.name, info.properties)


def described_topic_row(topic: TopicDescription) -> dict[str, Any]:
    """A topic as the admin API describes it, as a row."""
    return {
        **_topic_row(topic.namespace, topic.name, topic.properties),
        "generation": topic.generation,  # in the properties it is negative once the topic is deleted
        "deleted": topic.deleted,
        "created_ms": topic.created_ms,
        "updated_ms": topic.updated_ms,
    }


def _topic_row(namespace: str, name: str, properties: Mapping[str, str]) -> dict[str, Any]:
    others = dict(properties)
    return {
        "name": name,
        "namespace": namespace,
        "generation": int(others.pop("generation")),
        "ttl_ms": int(others.pop("ttl")) * 1_000,
        "spread": int(others.pop("spread", "1")),
        "on_invalid": others.pop("onInvalid", None),
        "properties": others,
    }


def transaction_row(info: TransactionInfo) -> dict[str, Any]:
    """A transaction as a row; what an ended one no longer has is None."""
    return {
        "id": info.id,
        "state": info.state,
        "kind": info.kind or None,
        "owner": info.owner or None,
        "began_ms": info.began_ms,
        "expires_ms": info.expires_ms,
        "topics": [f"{topic.namespace}:{topic.topic}" for topic in info.topics],
        "write_pointer": info.write_pointer,
        "read_pointer": info.read_pointer,
        "outside_writes": info.outside_writes,
    }


def _inner(value: Any) -> Any:
    if isinstance(value, dict | Struct):
        return row(value)
    return [_inner(item) for item in value] if isinstance(value, list | tuple) else value


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
