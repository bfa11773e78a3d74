"""The metadata table: one row per topic and transactional table that ever was. Format of its column m: docs/formats/metadata.md.

The fields that the coprocessor needs (generation, TTL, onInvalid) stand first and have a fixed place. A deleted topic
keeps its row, with a negative generation, so that no generation number is ever used twice. What no property can be
named stands among the properties all the same, under names with a `~`: who created the topic, and how far it was truncated. The latter
is the last of them, so the coprocessor reads it from the end.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import is_table_prefix
from basalt_engine.retention import OnInvalid, TopicRule
from basalt_engine.table import Table, prefix_stop

VERSION = 1
METADATA = b"m"
TRUNCATED_BEFORE = "~truncatedBefore"  # no property has a ~ in its name
CREATED_BY = "~createdBy"  # sorts before the other one

_FIXED = struct.Struct(">BiqBHHqqI")
_CRC_BYTES = 4
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,17}")
_ON_INVALID = {OnInvalid.DROP: 0, OnInvalid.RETAIN: 1}
_ON_INVALID_BY_NUMBER = {number: value for value, number in _ON_INVALID.items()}


class TopicMetadata(NamedTuple):
    """The stored properties of a topic. `spread_scanned` is the widest spread that this generation ever had."""

    generation: int
    ttl_ms: int
    on_invalid: OnInvalid
    spread: int
    spread_scanned: int
    created_ms: int
    updated_ms: int
    others: Mapping[str, str]
    truncated_before_ms: int = 0  # what was published before is out of reach for readers, for ever
    created_by: str = ""  # the principal; empty where nobody had to say who they are

    @property
    def rule(self) -> TopicRule:
        """The part that retention needs."""
        return TopicRule(self.generation, self.ttl_ms, self.on_invalid, self.truncated_before_ms)

    def encode(self) -> bytes:
        """The value of column m."""
        texts = dict(self.others)
        if self.truncated_before_ms:
            texts[TRUNCATED_BEFORE] = str(self.truncated_before_ms)
        if self.created_by:
            texts[CREATED_BY] = self.created_by
        others = msgspec.json.encode(texts, order="sorted")
        on_invalid = _ON_INVALID[self.on_invalid]
        fixed = _FIXED.pack(
            VERSION, self.generation, self.ttl_ms, on_invalid, self.spread, self.spread_scanned,
            self.created_ms, self.updated_ms, len(others),
        )  # fmt: skip
        data = fixed + others
        return data + crc32c(data).to_bytes(_CRC_BYTES, "big")

    @classmethod
    def decode(cls, data: bytes, prefix: bytes) -> TopicMetadata:
        """Decode what `encode` wrote; `CorruptionError`, which names the topic of this prefix, for anything else."""
        topic = prefix.decode("ascii", "replace")
        if len(data) < _FIXED.size + _CRC_BYTES:
            raise CorruptionError(
                f"metadata of {topic} is {len(data)} bytes, expected {_FIXED.size + _CRC_BYTES} or more"
            )
        if crc32c(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "big"):
            raise CorruptionError(f"metadata of {topic} does not match its checksum")
        version, generation, ttl_ms, on_invalid, spread, scanned, created, updated, length = _FIXED.unpack_from(data)
        if version != VERSION:
            raise CorruptionError(f"metadata of {topic} has version {version}; this Basalt reads version {VERSION}")
        others = data[_FIXED.size : -_CRC_BYTES]
        if on_invalid not in _ON_INVALID_BY_NUMBER or length != len(others):
            raise CorruptionError(
                f"metadata of {topic} has onInvalid {on_invalid} and {len(others)} bytes of properties"
            )
        try:
            properties = msgspec.json.decode(others, type=dict[str, str])
        except ValueError as error:
            raise CorruptionError(f"metadata of {topic} has properties that do not decode: {error}") from None
        truncated = properties.pop(TRUNCATED_BEFORE, None)
        if truncated is not None and _MILLISECONDS.fullmatch(truncated) is None:
            raise CorruptionError(f"metadata of {topic} says that it was truncated before {truncated[:40]!r}")
        rule, created_by = _ON_INVALID_BY_NUMBER[on_invalid], properties.pop(CREATED_BY, "")
        return cls(
            generation, ttl_ms, rule, spread, scanned, created, updated, properties, int(truncated or 0), created_by
        )


class MetadataTable:
    """The metadata of all topics and of all transactional tables, by their prefixes."""

    name = "metadata"

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, prefix: bytes) -> TopicMetadata | None:
        """The metadata of a topic or table; also of a deleted one."""
        columns = self._table.get(prefix)
        return None if columns is None else _decode(prefix, columns)

    def scan(self, start: bytes = b"", namespace: str | None = None) -> Iterator[tuple[bytes, TopicMetadata]]:
        """Prefix and metadata of each topic, sorted by prefix, from `start` on; of one namespace, or of all."""
        return (row for row in self.scan_all(start, namespace) if not is_table_prefix(row[0]))

    def scan_tables(self, start: bytes = b"", namespace: str | None = None) -> Iterator[tuple[bytes, TopicMetadata]]:
        """The same of each transactional table."""
        return (row for row in self.scan_all(start, namespace) if is_table_prefix(row[0]))

    def scan_all(self, start: bytes = b"", namespace: str | None = None) -> Iterator[tuple[bytes, TopicMetadata]]:
        """The same of both."""
        first = b"" if namespace is None else f"{namespace}:".encode("ascii")
        stop = prefix_stop(first) if first else None
        for row in self._table.scan(max(first, start), stop):
            yield row.key, _decode(row.key, row.columns)

    def replace(self, prefix: bytes, old: TopicMetadata | None, new: TopicMetadata) -> bool:
        """Store `new` iff the row still holds `old`; False when somebody else was first."""
        expected = None if old is None else old.encode()
        return self._table.check_and_write(prefix, METADATA, expected, {METADATA: new.encode()})


def _decode(prefix: bytes, columns: Mapping[bytes, bytes]) -> TopicMetadata:
    data = columns.get(METADATA)
    if data is None:
        raise CorruptionError(f"the metadata row of {prefix.decode('ascii', 'replace')} has no column m")
    return TopicMetadata.decode(data, prefix)
