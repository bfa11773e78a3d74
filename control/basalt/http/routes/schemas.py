"""JSON schemas of bodies and parameters, for the OpenAPI document. Answers of our own making are msgspec types instead.

Schemas of bodies that the messaging codecs read are written by hand: they take more than one spelling (unions tagged or
not).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import TypeAlias

from basalt.api.bodies.messages import (
    ACKNOWLEDGED_CLAIMS_MAX,
    ACKNOWLEDGED_ITEMS_MAX,
    INT_MAX,
    LONG_MAX,
    MEMBER_CHARS_MAX,
    PUBLISH_MESSAGES_MAX,
    REASON_CHARS_MAX,
    SEGMENTS_MAX,
    SEQUENCE_MAX,
    WORK_ENTRIES_MAX,
)
from basalt.api.markers import MARKER_KINDS, TASK_CHARS_MAX, TASKS_MAX
from basalt.api.topic_properties import GENERATION
from basalt.api.topic_properties import PROPERTIES as PROPERTIES_OF_TOPICS
from basalt.http.asgi.requests import AVRO, JSON
from basalt_engine.keys import NAME_EXPRESSION

Schema: TypeAlias = Mapping[str, object]
# What a body holds: a type that msgspec makes a schema of, or one of several; by content type, also a schema.
Shape: TypeAlias = type | UnionType | tuple[type, ...]
Content: TypeAlias = Mapping[bytes, Schema | Shape]

JSON_LINES = b"application/x-ndjson"
JSON_LINES_ALIAS = b"application/jsonl"

NAME: Schema = {"type": "string", "pattern": f"^{NAME_EXPRESSION}$"}
MESSAGE_ID: Schema = {"type": "string", "pattern": "^[0-9a-fA-F]{40}$"}
TRANSACTION_ID: Schema = {"type": "string", "pattern": "^([0-9a-f]{16}[0-7][0-9a-f]{15}|[1-9][0-9]{0,17})$"}
PRODUCER_NAME: Schema = {"type": "string", "pattern": "^[!-~]{1,64}$"}
SESSION_NAME: Schema = {"type": "string", "pattern": "^[^/]{1,255}$"}
MEMBER_NAME: Schema = {"type": "string", "pattern": f"^[^/]{{1,{MEMBER_CHARS_MAX}}}$"}
BINARY: Schema = {"contentMediaType": "avro/binary"}
BATCHED: Schema = {"contentMediaType": "application/vnd.basalt.batches"}
ARROW_STREAM: Schema = {"contentMediaType": "application/vnd.apache.arrow.stream"}
LINES: Schema = {"contentMediaType": "application/x-ndjson"}

_BYTES: Schema = {"type": "string", "pattern": "^[\\u0000-\\u00ff]*$"}
_ID_BYTES: Schema = {"type": "string", "pattern": "^[\\u0000-\\u00ff]{20}$"}
_POINTER: Schema = {"type": "integer", "minimum": 1, "maximum": LONG_MAX}
_TIME: Schema = {"type": "integer", "minimum": 0, "maximum": LONG_MAX}
_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": INT_MAX}
_SEQUENCE: Schema = {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX}
_MESSAGES: Schema = {
    "type": "array",
    "items": _BYTES,
    "maxItems": PUBLISH_MESSAGES_MAX,
    "description": "bytes, one code point each, and no text: for that send records",
}


def _object(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _union(**branches: Schema) -> Schema:
    """A union with null, each other branch tagged or bare."""
    tagged = [_object({tag: schema}, (tag,)) for tag, schema in branches.items()]
    return {"anyOf": [{"type": "null"}, *branches.values(), *tagged]}


PUBLISH_REQUEST = _object({"transactionWritePointer": _union(long=_POINTER), "messages": _MESSAGES})
STORE_REQUEST = _object(
    {"transactionWritePointer": {"anyOf": [_POINTER, _object({"long": _POINTER}, ("long",))]}, "messages": _MESSAGES},
    ("transactionWritePointer", "messages"),
)
PUBLISH_RESPONSE = _object(
    {
        "transactionWritePointer": _union(long=_POINTER),
        "startTimestamp": _TIME,
        "startSequenceId": _SEQUENCE,
        "endTimestamp": _TIME,
        "endSequenceId": _SEQUENCE,
    },
    ("transactionWritePointer", "startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId"),
)
CONSUME_REQUEST = _object(
    {
        "startFrom": _union(bytes=_ID_BYTES, long=_TIME),
        "inclusive": {"type": "boolean", "default": True},
        "limit": _union(int=_LIMIT),
        "transaction": _union(bytes=_BYTES),
    }
)
_CARRIED_TIMES: Mapping[str, Schema] = {
    "eventTimeMs": {"type": "integer", "minimum": -LONG_MAX - 1, "maximum": LONG_MAX},
    "ttlMs": {"type": "integer", "minimum": 1, "maximum": LONG_MAX},
}
_MESSAGE = _object(
    {
        "id": _ID_BYTES,
        "payload": _BYTES,
        "key": _BYTES,
        "headers": {
            "type": "array",
            "items": _object({"name": {"type": "string"}, "value": _BYTES}, ("name", "value")),
        },
        **_CARRIED_TIMES,
    },
    ("id", "payload"),
)
MESSAGES: Schema = {"type": "array", "items": _MESSAGE}
_MARKER = _object(
    {
        "namespace": NAME,
        "topic": NAME,
        "task": {"type": "string", "minLength": 1, "maxLength": TASK_CHARS_MAX},
        "taskCount": {"type": "integer", "minimum": 1, "maximum": TASKS_MAX},
        "kind": {"type": "string", "enum": list(MARKER_KINDS)},
        "eventTimeMs": _union(long={"type": "integer", "minimum": -LONG_MAX - 1, "maximum": LONG_MAX}),
    },
    ("namespace", "topic", "task", "taskCount", "kind"),
)
_HEADER = _object(
    {"name": {"type": "string"}, "value": {"type": "string"}, "valueBase64": {"type": "string"}}, ("name",)
)
_RECORD: Mapping[str, Schema] = {
    "payload": {"type": "string", "description": "UTF-8 text; or payloadBase64"},
    "payloadBase64": {"type": "string", "contentEncoding": "base64"},
    "key": {"type": "string", "description": "UTF-8 text; or keyBase64"},
    "keyBase64": {"type": "string", "contentEncoding": "base64"},
    "headers": {"type": "array", "items": _HEADER},
    **_CARRIED_TIMES,
}
_RECORDS: Schema = {"type": "array", "items": _object(_RECORD)}
_ENTRIES = f"{WORK_ENTRIES_MAX} at most"  # more are 413, which a schema would make 400
_AT_MOST = f"{ACKNOWLEDGED_ITEMS_MAX} ids and claims at most in one Work"
_CLAIMS: Schema = {
    "type": "array",
    "description": f"{_AT_MOST}, {ACKNOWLEDGED_CLAIMS_MAX} claims among them",
    "items": {"type": "integer", "minimum": 1, "maximum": LONG_MAX},
}
_IDS: Schema = {"type": "array", "description": _AT_MOST, "items": _ID_BYTES}
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": LONG_MAX}
_ACKNOWLEDGE = _object(
    {
        "namespace": NAME,
        "topic": NAME,
        "group": NAME,
        "ids": _IDS,
        "upTo": _union(bytes=_ID_BYTES),
        "member": {"type": "string", "maxLength": MEMBER_CHARS_MAX},
        "epoch": _COUNT,
        "round": _COUNT,
        "claims": _CLAIMS,
        "except": _IDS,
        "reject": {
            "type": "array",
            "description": _AT_MOST,
            "items": _object({"id": _ID_BYTES, "reason": {"type": "string", "maxLength": REASON_CHARS_MAX}}, ("id",)),
        },
    },
    ("namespace", "topic", "group"),
)
WORK = _object(
    {
        "publish": {
            "type": "array",
            "items": _object(
                {"namespace": NAME, "topic": NAME, "messages": _MESSAGES, "records": _RECORDS}, ("namespace", "topic")
            ),
        },
        "acknowledge": {"type": "array", "description": _ENTRIES, "items": _ACKNOWLEDGE},
        "markers": {"type": "array", "description": _ENTRIES, "items": _MARKER},
        "segments": {
            "type": ["array", "null"],
            "description": f"{SEGMENTS_MAX} at most",
            "items": _object({"writePointer": _POINTER}, ("writePointer",)),
        },
    }
)
RECORDS_REQUEST: Schema = {
    **_object({"records": _RECORDS, "transactionWritePointer": _union(long=_POINTER)}, ("records",)),
    "examples": [{"records": [{"payload": "café", "key": "order-7", "headers": [{"name": "trace", "value": "t1"}]}]}],
}
RECORDS_PAGE = _object(
    {
        "records": {
            "type": "array",
            "items": _object(
                {
                    **_RECORD,
                    "id": MESSAGE_ID,
                    "kind": {"type": "string", "enum": ["user", "watermark", "end_of_stream"]},
                    "transactionWritePointer": _POINTER,
                },
                ("id", "kind"),
            ),
        },
        "next": {"anyOf": [MESSAGE_ID, {"type": "null"}]},
        "heldBy": {"anyOf": [TRANSACTION_ID, {"type": "null"}]},
    },
    ("records", "next", "heldBy"),
)


def _properties(null: Schema | None = None) -> Schema:
    """Properties as the table of them says, and a user's own; each may also be `null`, where that is given."""

    def or_null(schema: Schema, **told: str) -> Schema:
        return {**(schema if null is None else {"anyOf": [schema, null]}), **told}

    return {
        "type": "object",
        "properties": {
            **{
                each.name: or_null(each.kind.schema, description=f"{each.effect}; by default {each.default_text}")
                for each in PROPERTIES_OF_TOPICS
            },
            GENERATION: {"type": ["string", "integer"], "description": "read-only: as it is now, or left out"},
        },
        "patternProperties": {
            "^label\\.[A-Za-z0-9_.-]{1,249}$": or_null(
                {"type": ["string", "integer", "boolean"]}, description="a user's own; 64 at most"
            )
        },
        "additionalProperties": False,
    }


PROPERTIES: Schema = _properties()
PROPERTY_CHANGES: Schema = _properties({"type": "null"})
SHOWN_PROPERTIES: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
TOPIC: Schema = {
    "anyOf": [
        _object({"name": NAME, "properties": SHOWN_PROPERTIES}, ("name", "properties")),
        {**SHOWN_PROPERTIES, "description": "with http.flat_topics"},
    ]
}
TOPIC_PLAN: Schema = {
    **_object(
        {
            "namespace": NAME,
            "name": NAME,
            "generation": {"type": "integer"},
            "before": {"anyOf": [{"type": "null"}, SHOWN_PROPERTIES]},
            "properties": SHOWN_PROPERTIES,
            "dryRun": {"const": True},
        },
        ("namespace", "name", "generation", "before", "properties", "dryRun"),
    ),
    "description": "with dryRun",
}
TOPIC_OR_PLAN: Schema = {"anyOf": [TOPIC, TOPIC_PLAN]}
NAMES: Schema = {"type": "array", "items": NAME}
EMPTY_BODY: Content = {JSON: {"type": "object", "maxProperties": 0}}


def in_both(schema: Schema) -> Content:
    """A body that is JSON of this schema, or Avro."""
    return {JSON: schema, AVRO: BINARY}
