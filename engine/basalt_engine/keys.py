"""Row keys of the message and payload tables, and message ids. Format: docs/formats/row-keys.md.

All integers are big-endian and unsigned, so that keys and ids sort as bytes in the order in which consumers see the
messages. A topic prefix is `namespace:topic:`; names hold no colon, so no topic's prefix starts another's.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from basalt_engine.errors import CorruptionError, InputError

NAME_CHARS_MAX = 255  # two names, their colons and 31 bytes of suffix stay far below HBase's 32,767
# A name is a part of paths, of URLs and of archives: no dot begins one, so that none is `..`, and none is a hidden file.
NAME_EXPRESSION = f"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}"
NAME_PATTERN = re.compile(NAME_EXPRESSION)
BUCKETS_MAX = 256  # the salt is one byte
MESSAGE_ID_BYTES = 20
SEQUENCE_MAX = 0xFFFF
MILLISECONDS_MAX = (1 << 63) - 1  # what a reader in another language can hold in a signed long
GENERATION_MAX = (1 << 31) - 1  # the metadata table stores it signed: negative once deleted

TABLE_MARK = "~"  # before a transactional table's name, where a topic's prefix has the topic's

_MESSAGE_SUFFIX = struct.Struct(">IQH")
_PAYLOAD_SUFFIX = struct.Struct(">IQQH")
_MESSAGE_ID = struct.Struct(">QHQH")
_POSITION = struct.Struct(">QH")
_SALTED_PREFIX = re.compile(f".{NAME_EXPRESSION}:{NAME_EXPRESSION}:".encode(), re.DOTALL)


class MessageId(NamedTuple):
    """A message's place in its topic. The last two fields are 0 unless its payload was stored ahead of its commit."""

    publish_ms: int
    sequence: int
    write_ms: int = 0
    payload_sequence: int = 0

    def encode(self) -> bytes:
        """The 20 bytes that sort in the order of consumption."""
        return _MESSAGE_ID.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> MessageId:
        """The id in these bytes; `InputError` unless there are 20 of them (any 20 are a position)."""
        if len(data) != MESSAGE_ID_BYTES:
            raise InputError(
                f"a message id is {MESSAGE_ID_BYTES} bytes, these are {len(data)}",
                field="id",
                hint="use the id as a poll or publish gave it, 40 hex digits",
            )
        return cls(*_MESSAGE_ID.unpack(data))


def topic_prefix(namespace: str, topic: str) -> bytes:
    """`namespace:topic:`; both must be names already checked by the caller."""
    assert NAME_PATTERN.fullmatch(namespace), namespace
    assert NAME_PATTERN.fullmatch(topic), topic
    return f"{namespace}:{topic}:".encode("ascii")


def table_prefix(namespace: str, table: str) -> bytes:
    """`namespace:~table:`, for a transactional table. No topic's name has a `~`, so no topic has this prefix."""
    assert NAME_PATTERN.fullmatch(namespace), namespace
    assert NAME_PATTERN.fullmatch(table), table
    return f"{namespace}:{TABLE_MARK}{table}:".encode("ascii")


def is_table_prefix(prefix: bytes) -> bool:
    """True for the prefix of a transactional table, False for that of a topic."""
    return f":{TABLE_MARK}".encode("ascii") in prefix


def base_bucket(prefix: bytes, buckets: int) -> int:
    """The first bucket of a topic, the only one of a table: CRC-32C of its prefix, modulo the number of buckets."""
    return crc32c(prefix) % buckets


class TopicKeys(NamedTuple):
    """The keys of the rows of one generation of one topic.

    `spread` neighbouring buckets take its rows in turn; 1 keeps them all in the topic's base bucket.
    """

    prefix: bytes
    generation: int
    buckets: int
    spread: int = 1

    @property
    def generation_key(self) -> tuple[bytes, int]:
        return self[:2]

    def scanned(self) -> tuple[int, ...]:
        """The salts under which rows of this topic may lie, each once."""
        first = base_bucket(self.prefix, self.buckets)
        return tuple((first + turn) % self.buckets for turn in range(min(self.spread, self.buckets)))

    def _salt(self, turn: int) -> int:
        return (base_bucket(self.prefix, self.buckets) + turn % min(self.spread, self.buckets)) % self.buckets

    def message_start(self, salt: int) -> bytes:
        """The part of a message row's key that all rows of this generation in this bucket share."""
        return bytes([salt]) + self.prefix + self.generation.to_bytes(4, "big")

    def message_stop(self, salt: int) -> bytes:
        """The first key after those of all rows of this generation in this bucket."""
        return bytes([salt]) + self.prefix + (self.generation + 1).to_bytes(4, "big")

    def message_key(self, publish_ms: int, sequence: int) -> bytes:
        """The key of the row whose last message has this sequence."""
        salt = self._salt(publish_ms + sequence)
        return bytes([salt]) + self.prefix + _MESSAGE_SUFFIX.pack(self.generation, publish_ms, sequence)

    def payload_start(self, write_pointer: int) -> bytes:
        """The prefix of the keys of all payload rows of this writer.

        They lie in one bucket, which depends on the writer and not on the spread, for that may change meanwhile.
        """
        turn = crc32c(write_pointer.to_bytes(8, "big"))
        salt = (base_bucket(self.prefix, self.buckets) + turn) % self.buckets
        return bytes([salt]) + self.prefix + struct.pack(">IQ", self.generation, write_pointer)

    def payload_key(self, write_pointer: int, write_ms: int, payload_sequence: int) -> bytes:
        """The key of the payload row whose last message has this payload sequence."""
        return self.payload_start(write_pointer) + _POSITION.pack(write_ms, payload_sequence)


# The 10 bytes that end a row key and begin a message id: a time and a sequence; and back.
position: Callable[[int, int], bytes] = _POSITION.pack
position_fields: Callable[[bytes], tuple[int, int]] = _POSITION.unpack


class MessageKey(NamedTuple):
    """A message row's key, taken apart."""

    salt: int
    prefix: bytes
    generation: int
    publish_ms: int
    sequence: int

    @classmethod
    def decode(cls, key: bytes) -> MessageKey:
        """`CorruptionError` when the bytes are no message row's key."""
        end = _prefix_end(key, "message")
        if len(key) != end + _MESSAGE_SUFFIX.size:
            raise CorruptionError(f"message key {key.hex()} is {len(key)} bytes, expected {end + _MESSAGE_SUFFIX.size}")
        return cls(key[0], key[1:end], *_MESSAGE_SUFFIX.unpack_from(key, end))

    def encode(self) -> bytes:
        return bytes([self.salt]) + self.prefix + _MESSAGE_SUFFIX.pack(*self[2:])


class PayloadKey(NamedTuple):
    """A payload row's key, taken apart."""

    salt: int
    prefix: bytes
    generation: int
    write_pointer: int
    write_ms: int
    payload_sequence: int

    @classmethod
    def decode(cls, key: bytes) -> PayloadKey:
        """`CorruptionError` when the bytes are no payload row's key."""
        end = _prefix_end(key, "payload")
        if len(key) != end + _PAYLOAD_SUFFIX.size:
            raise CorruptionError(f"payload key {key.hex()} is {len(key)} bytes, expected {end + _PAYLOAD_SUFFIX.size}")
        return cls(key[0], key[1:end], *_PAYLOAD_SUFFIX.unpack_from(key, end))

    def encode(self) -> bytes:
        return bytes([self.salt]) + self.prefix + _PAYLOAD_SUFFIX.pack(*self[2:])


def _prefix_end(key: bytes, table: str) -> int:
    found = _SALTED_PREFIX.match(key)
    if found is None:
        raise CorruptionError(f"{table} key {key.hex()} has no topic prefix")
    return found.end()
