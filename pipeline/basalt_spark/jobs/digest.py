"""A digest of messages that does not depend on how they lie in files: what the archive's manifest and its checks compare.

Each message is hashed by itself, and the hashes are added up modulo 2^128. So parts are digested apart, in any order, and
their digests added. The id is a part of the *digest*, and fixes the order; the *content digest* leaves out what a topic gives to a
message (id, publish time, transaction), and is the same of the same messages in another topic. docs/formats/archive.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

HASH_BYTES = 16
MODULUS = 1 << (8 * HASH_BYTES)
NONE = b"\xff\xff\xff\xff"  # in place of a length; no value is as long
_LENGTH = struct.Struct(">I")
_MICROSECONDS = struct.Struct(">q")
_NO_TIME = -(1 << 63)


class Digest(NamedTuple):
    """Of any number of messages. `value_bytes` are those of their values."""

    messages: int = 0
    value_bytes: int = 0
    rows: int = 0
    content: int = 0

    def __add__(self, other: object) -> Digest:
        """Of both together."""
        if not isinstance(other, Digest):
            return NotImplemented
        return Digest(
            self.messages + other.messages,
            self.value_bytes + other.value_bytes,
            (self.rows + other.rows) % MODULUS,
            (self.content + other.content) % MODULUS,
        )

    @property
    def digest(self) -> str:
        """As the manifest has it."""
        return f"{self.rows:032x}"

    @property
    def content_digest(self) -> str:
        """As the manifest has it."""
        return f"{self.content:032x}"


class Columns(NamedTuple):
    """The columns of some messages, as Python values; times in microseconds since 1970."""

    id: list[bytes]
    publish_time: list[int]
    key: list[bytes | None]
    value: list[bytes]
    tx_id: list[str | None]
    headers: list[list[Mapping[str, Any]] | None]
    event_time: list[int | None]


def digest_of(columns: Columns) -> Digest:
    """The digest of these messages."""
    rows = content = size = 0
    for id_, published, key, value, tx, headers, event in zip(*columns, strict=True):
        said = _content(key, value, headers, event)
        content += _hash(said)
        rows += _hash(id_ + _MICROSECONDS.pack(published) + _sized(None if tx is None else tx.encode()) + said)
        size += len(value)
    return Digest(len(columns.id), size, rows % MODULUS, content % MODULUS)


def columns_of(batch: Any) -> Columns:
    """The columns of a record batch in the archive's schema."""
    return Columns(*(_plain(batch.column(name)) for name in Columns._fields))


def total(digests: Iterable[Digest]) -> Digest:
    """Of all together."""
    return sum(digests, Digest())


def _plain(column: Any) -> list[Any]:
    import pyarrow as pa

    values: list[Any] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values


def _content(key: bytes | None, value: bytes, headers: Iterable[Mapping[str, Any]] | None, event: int | None) -> bytes:
    parts = [_sized(key), _sized(value)]
    for header in headers or ():
        parts += (_sized(header["name"].encode()), _sized(header["value"]))
    # Behind them, and as long as no length and its bytes can be mistaken for it: the count of headers comes last.
    parts += (_MICROSECONDS.pack(_NO_TIME if event is None else event), _LENGTH.pack(len(parts) // 2 - 1))
    return b"".join(parts)


def _sized(data: bytes | None) -> bytes:
    return NONE if data is None else _LENGTH.pack(len(data)) + data


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=HASH_BYTES).digest(), "big")
