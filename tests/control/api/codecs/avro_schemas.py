"""The Avro schemas of every binary body, as .avsc text: for clients in other languages, the docs and the tests.

The codecs in `avro` are written by hand for exactly these; the order of union branches and of enum
symbols is part of the format. Format: docs/formats/avro-bodies.md and docs/formats/records-api.md.
"""

from __future__ import annotations

PUBLISH_REQUEST = """
{"type": "record", "name": "PublishRequest", "fields": [
  {"name": "transactionWritePointer", "type": ["long", "null"]},
  {"name": "messages", "type": {"type": "array", "items": "bytes"}}
]}
"""

PUBLISH_RESPONSE = """
{"type": "record", "name": "PublishResponse", "fields": [
  {"name": "transactionWritePointer", "type": ["long", "null"]},
  {"name": "startTimestamp", "type": "long"},
  {"name": "startSequenceId", "type": "int"},
  {"name": "endTimestamp", "type": "long"},
  {"name": "endSequenceId", "type": "int"}
]}
"""

CONSUME_REQUEST = """
{"type": "record", "name": "ConsumeRequest", "fields": [
  {"name": "startFrom", "type": ["bytes", "long", "null"]},
  {"name": "inclusive", "type": "boolean", "default": true},
  {"name": "limit", "type": ["int", "null"]},
  {"name": "transaction", "type": ["bytes", "null"]}
]}
"""

MESSAGES = """
{"type": "array", "items": {"type": "record", "name": "Message", "fields": [
  {"name": "id", "type": "bytes"},
  {"name": "payload", "type": "bytes"}
]}}
"""

WORK = """
{"type": "record", "name": "Work", "fields": [
  {"name": "publish", "type": {"type": "array", "items": {"type": "record", "name": "WorkPublish", "fields": [
    {"name": "namespace", "type": "string"},
    {"name": "topic", "type": "string"},
    {"name": "messages", "type": {"type": "array", "items": "bytes"}},
    {"name": "records", "type": {"type": "array", "items": {"type": "record", "name": "RecordIn", "fields": [
      {"name": "payload", "type": "bytes"},
      {"name": "key", "type": ["bytes", "null"]},
      {"name": "headers", "type": {"type": "array", "items": {"type": "record", "name": "Header", "fields": [
        {"name": "name", "type": "string"},
        {"name": "value", "type": "bytes"}
      ]}}},
      {"name": "eventTimeMs", "type": ["long", "null"]},
      {"name": "ttlMs", "type": ["long", "null"]}
    ]}}}
  ]}}},
  {"name": "markers", "type": {"type": "array", "items": {"type": "record", "name": "WorkMarker", "fields": [
    {"name": "namespace", "type": "string"},
    {"name": "topic", "type": "string"},
    {"name": "task", "type": "string"},
    {"name": "taskCount", "type": "int"},
    {"name": "kind", "type": "string"},
    {"name": "eventTimeMs", "type": ["long", "null"]}
  ]}}},
  {"name": "acknowledge", "type": {"type": "array", "items": {"type": "record", "name": "WorkAcknowledge", "fields": [
    {"name": "namespace", "type": "string"},
    {"name": "topic", "type": "string"},
    {"name": "group", "type": "string"},
    {"name": "ids", "type": {"type": "array", "items": "bytes"}},
    {"name": "upTo", "type": ["bytes", "null"]},
    {"name": "member", "type": "string"},
    {"name": "epoch", "type": "long"},
    {"name": "round", "type": "long"},
    {"name": "claims", "type": {"type": "array", "items": "long"}},
    {"name": "except", "type": {"type": "array", "items": "bytes"}},
    {"name": "reject", "type": {"type": "array", "items": {"type": "record", "name": "Rejection", "fields": [
      {"name": "id", "type": "bytes"},
      {"name": "reason", "type": "string"}
    ]}}}
  ]}}}
]}
"""

RECORDS_REQUEST = """
{"type": "record", "name": "RecordsRequest", "fields": [
  {"name": "transactionWritePointer", "type": ["long", "null"]},
  {"name": "records", "type": {"type": "array", "items": {"type": "record", "name": "RecordIn", "fields": [
    {"name": "payload", "type": "bytes"},
    {"name": "key", "type": ["bytes", "null"]},
    {"name": "headers", "type": {"type": "array", "items": {"type": "record", "name": "Header", "fields": [
      {"name": "name", "type": "string"},
      {"name": "value", "type": "bytes"}
    ]}}},
    {"name": "eventTimeMs", "type": ["long", "null"]},
    {"name": "ttlMs", "type": ["long", "null"]}
  ]}}}
]}
"""

RECORDS = """
{"type": "array", "items": {"type": "record", "name": "Record", "fields": [
  {"name": "id", "type": "bytes"},
  {"name": "payload", "type": "bytes"},
  {"name": "key", "type": ["bytes", "null"]},
  {"name": "headers", "type": {"type": "array", "items": {"type": "record", "name": "Header", "fields": [
    {"name": "name", "type": "string"},
    {"name": "value", "type": "bytes"}
  ]}}},
  {"name": "eventTimeMs", "type": ["long", "null"]},
  {"name": "ttlMs", "type": ["long", "null"]},
  {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["user", "watermark", "end_of_stream"]}},
  {"name": "transactionWritePointer", "type": ["long", "null"]}
]}}
"""
