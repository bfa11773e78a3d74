"""The client's answers as rows: keys in snake case with their units, for every output format alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from basalt.api.bodies.topics import TopicDescription, TopicInfo
    from basalt.api.bodies.transactions import TransactionInfo

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


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
