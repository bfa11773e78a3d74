"""The bytes of a log entry: the edits that one group commit made durable; and the field types of all the log's formats.

    entry := version(1) first_edit(8) count(4) edit* crc32c(4)        edit := number(1) length(4) body

`first_edit` is the number of edits before this entry since the log began, so that an entry in the wrong place, or after
a lost one, shows. Numbers are big-endian; varints are unsigned LEB128 of at most nine bytes without a needless last one, so
that each value has one encoding. Whatever a writer here would not have written is a `CorruptionError` that names the offset.
Format: docs/formats/transaction-log.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from crc32c import crc32c

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import Join, Kind, Loss, SessionBinding, TableJoin
from basalt_engine.errors import CorruptionError
from basalt_engine.varints import VARINT_BYTES_MAX, encode_deltas, encode_varint

VERSION = 1
_HEADER = struct.Struct(">BqI")
_EDIT = struct.Struct(">BI")
_EDIT_BYTES_MIN = _EDIT.size + 4  # no edit has a body shorter than a count
_BEGAN = struct.Struct(">qBBqq")
_ENDED = struct.Struct(">qqB")
_TWO = struct.Struct(">qq")
NO_VERSION = -1  # of a session's transaction that was begun without one, and of a session that has committed none
CRC_BYTES = 4
_LONG = struct.Struct(">q")
_INT = struct.Struct(">I")
_SHORT = struct.Struct(">H")


def encode_entry(first_edit: int, group: Sequence[Edit]) -> bytes:
    """The entry of these edits, `first_edit` edits having been logged before."""
    parts = [_HEADER.pack(VERSION, first_edit, len(group))]
    for edit in group:
        body = _ENCODE[type(edit)](edit)
        parts += (_EDIT.pack(edit.number, len(body)), body)
    return sealed(b"".join(parts))


def decode_entry(data: bytes, what: str) -> tuple[int, tuple[Edit, ...]]:
    """Decode an entry: the number of edits before it, and its edits. `CorruptionError` names `what` and the offset."""
    body = opened(data, what, VERSION, _HEADER.size)
    _, first_edit, count = _HEADER.unpack_from(body)
    reader = Reader(body, what, _HEADER.size)
    if first_edit < 0 or count * _EDIT_BYTES_MIN > len(body):
        raise reader.failure(f"{count} edits after edit {first_edit} in {len(body)} bytes", 1)
    group = tuple([_decode_edit(reader) for _ in range(count)])
    reader.end()
    return first_edit, group


def _decode_edit(reader: Reader) -> Edit:
    start = reader.offset
    number, length = reader.byte(), reader.count()
    decode = _DECODE.get(number)
    if decode is None:
        raise reader.failure(f"edit number {number}, which never was", start)
    stop, rest = reader.offset + length, reader.stop
    if stop > rest:
        raise reader.failure(f"an edit of {length} bytes in {rest - reader.offset}", start)
    reader.stop = stop
    edit = decode(reader)
    reader.end()
    reader.stop = rest
    return edit


def read_join(reader: Reader) -> Join:
    """A topic that takes part in a transaction."""
    generation, from_ms, topic = reader.count(), reader.long(), reader.data()
    return Join(topic, generation, from_ms)


def join_field(join: Join) -> bytes:
    """The bytes of `read_join`."""
    return count_field(join.generation) + long_field(join.from_ms) + bytes_field(join.topic)


def read_table_join(reader: Reader) -> TableJoin:
    """A transactional table that takes part in a transaction."""
    generation, table = reader.count(), reader.data()
    return TableJoin(table, generation)


def table_join_field(join: TableJoin) -> bytes:
    """The bytes of `read_table_join`."""
    return count_field(join.generation) + bytes_field(join.table)


def read_version(reader: Reader) -> int | None:
    """The version of a session's work, or that there is none."""
    version = reader.long()
    if version < NO_VERSION:
        raise reader.failure(f"version {version} of a session", reader.offset - 8)
    return None if version == NO_VERSION else version


def version_field(version: int | None) -> bytes:
    """The bytes of `read_version`."""
    return long_field(NO_VERSION if version is None else version)


def read_in_session(reader: Reader) -> SessionBinding:
    """In which session a transaction began."""
    epoch, version = reader.pointer(), read_version(reader)
    return SessionBinding(reader.text(), epoch, version)


def in_session_field(session: SessionBinding) -> bytes:
    """The bytes of `read_in_session`."""
    return long_field(session.epoch) + version_field(session.version) + text_field(session.name)


def read_loss(reader: Reader) -> Loss:
    """Which transaction won a conflict, and where."""
    winner, key, owner = reader.pointer(), reader.data(), reader.text()
    return Loss(winner, key, owner)


def loss_field(loss: Loss) -> bytes:
    """The bytes of `read_loss`."""
    return long_field(loss.winner) + bytes_field(loss.key) + text_field(loss.winner_owner)


def read_kind(reader: Reader) -> Kind:
    """The kind of a transaction."""
    number = reader.byte(maximum=Kind.LONG)
    if number < Kind.SHORT:
        raise reader.failure("kind 0, which never was", reader.offset - 1)
    return Kind(number)


def _began(edit: edits.Began) -> bytes:
    fixed = _BEGAN.pack(edit.id, edit.kind, edit.outside, edit.began_ms, edit.deadline_ms)
    return fixed + text_field(edit.owner) + text_field(edit.request_id)


def _read_began(reader: Reader) -> edits.Began:
    key, kind, outside = reader.pointer(), read_kind(reader), reader.flag()
    began_ms, deadline_ms = reader.long(), reader.long()
    return edits.Began(key, kind, outside, began_ms, deadline_ms, reader.text(), reader.optional_text())


def _read_joined(reader: Reader) -> edits.Joined:
    return edits.Joined(reader.pointer(), read_join(reader))


def _changed(edit: edits.Changed) -> bytes:
    return long_field(edit.id) + bytes([edit.outside]) + set_field(edit.changes)


def _read_changed(reader: Reader) -> edits.Changed:
    return edits.Changed(reader.pointer(), reader.flag(), reader.set())


def _doomed(edit: edits.Doomed) -> bytes:
    return _TWO.pack(edit.id, edit.at_ms) + text_field(edit.request_id) + loss_field(edit.loss)


def _read_doomed(reader: Reader) -> edits.Doomed:
    key, at_ms, request_id, loss = reader.pointer(), reader.long(), reader.optional_text(), read_loss(reader)
    return edits.Doomed(key, loss, request_id, at_ms)


def _committing(edit: edits.Committing) -> bytes:
    return _TWO.pack(edit.id, edit.at_ms) + text_field(edit.request_id)


def _read_committing(reader: Reader) -> edits.Committing:
    key, at_ms, request_id = reader.pointer(), reader.long(), reader.optional_text()
    return edits.Committing(key, request_id, at_ms)


def _committed(edit: edits.Committed) -> bytes:
    return _TWO.pack(edit.id, edit.ended_ms) + text_field(edit.request_id)


def _read_committed(reader: Reader) -> edits.Committed:
    return edits.Committed(reader.pointer(), reader.long(), reader.optional_text())


def _read_aborting(reader: Reader) -> edits.Aborting:
    return edits.Aborting(reader.pointer(), reader.flag())


def _aborted(edit: edits.Aborted) -> bytes:
    return _ENDED.pack(edit.id, edit.ended_ms, edit.timed_out)


def _read_aborted(reader: Reader) -> edits.Aborted:
    return edits.Aborted(reader.pointer(), reader.long(), reader.flag())


def _invalidated(edit: edits.Invalidated) -> bytes:
    return long_field(edit.ended_ms) + bytes([edit.timed_out]) + _longs(edit.ids)


def _read_invalidated(reader: Reader) -> edits.Invalidated:
    ended_ms, timed_out = reader.long(), reader.flag()
    return edits.Invalidated(_read_longs(reader), ended_ms, timed_out)


def _one_shot(edit: edits.OneShot) -> bytes:
    return _TWO.pack(edit.id, edit.ended_ms) + text_field(edit.owner) + text_field(edit.request_id)


def _read_one_shot(reader: Reader) -> edits.OneShot:
    return edits.OneShot(reader.pointer(), reader.long(), reader.text(), reader.optional_text())


def _session_opened(edit: edits.SessionOpened) -> bytes:
    return _TWO.pack(edit.epoch, edit.at_ms) + text_field(edit.name) + text_field(edit.run)


def _read_session_opened(reader: Reader) -> edits.SessionOpened:
    epoch, at_ms, name, run = reader.pointer(), reader.long(), reader.text(), reader.text()
    return edits.SessionOpened(name, run, epoch, at_ms)


def _sessions_forgotten(edit: edits.SessionsForgotten) -> bytes:
    return count_field(len(edit.names)) + b"".join(map(text_field, edit.names))


def _read_sessions_forgotten(reader: Reader) -> edits.SessionsForgotten:
    start = reader.offset
    names = tuple([reader.text() for _ in range(reader.count())])
    if any(left >= right for left, right in pairwise(names)):
        raise reader.failure("names of sessions that do not ascend", start)
    return edits.SessionsForgotten(names)


def _read_counter_owner_claimed(reader: Reader) -> edits.CounterOwnerClaimed:
    return edits.CounterOwnerClaimed(reader.text(), reader.text())


def _topics_used(edit: edits.TopicsUsed) -> bytes:
    return long_field(edit.until) + count_field(len(edit.topics)) + b"".join(map(join_field, edit.topics))


def _read_topics_used(reader: Reader) -> edits.TopicsUsed:
    until = reader.pointer()
    return edits.TopicsUsed(until, tuple([read_join(reader) for _ in range(reader.count())]))


def _longs(numbers: tuple[int, ...]) -> bytes:
    return struct.pack(f">I{len(numbers)}q", len(numbers), *numbers)


def _read_longs(reader: Reader) -> tuple[int, ...]:
    start, count = reader.offset, reader.count()
    numbers: tuple[int, ...] = struct.unpack(f">{count}q", reader.take(8 * count))
    if any(left >= right for left, right in zip((-1, *numbers), numbers, strict=False)):
        raise reader.failure("write pointers that do not ascend", start)
    return numbers


_ENCODE: dict[type, Callable[[Any], bytes]] = {
    edits.Began: _began,
    edits.Checkpointed: lambda edit: _TWO.pack(edit.id, edit.write_pointer),
    edits.Joined: lambda edit: long_field(edit.id) + join_field(edit.join),
    edits.Changed: _changed,
    edits.Doomed: _doomed,
    edits.Committing: _committing,
    edits.Committed: _committed,
    edits.Aborting: lambda edit: long_field(edit.id) + bytes([edit.timed_out]),
    edits.Aborted: _aborted,
    edits.Invalidated: _invalidated,
    edits.OneShot: _one_shot,
    edits.Pruned: lambda edit: _longs(edit.pointers),
    edits.Truncated: lambda edit: long_field(edit.before),
    edits.Led: lambda edit: long_field(edit.epoch),
    edits.Restored: lambda edit: _longs(edit.pointers),
    edits.Reset: lambda edit: long_field(edit.at_ms),
    edits.TableJoined: lambda edit: long_field(edit.id) + table_join_field(edit.join),
    edits.SessionOpened: _session_opened,
    edits.SessionBegan: lambda edit: long_field(edit.id) + in_session_field(edit.session),
    edits.ChangesUnlogged: lambda edit: long_field(edit.id),
    edits.SessionsForgotten: _sessions_forgotten,
    edits.CounterOwnerClaimed: lambda edit: text_field(edit.name) + text_field(edit.owner),
    edits.TopicsUsed: _topics_used,
}
_DECODE: dict[int, Callable[[Reader], Edit]] = {
    edits.Began.number: _read_began,
    edits.Checkpointed.number: lambda reader: edits.Checkpointed(reader.pointer(), reader.pointer()),
    edits.Joined.number: _read_joined,
    edits.Changed.number: _read_changed,
    edits.Doomed.number: _read_doomed,
    edits.Committing.number: _read_committing,
    edits.Committed.number: _read_committed,
    edits.Aborting.number: _read_aborting,
    edits.Aborted.number: _read_aborted,
    edits.Invalidated.number: _read_invalidated,
    edits.OneShot.number: _read_one_shot,
    edits.Pruned.number: lambda reader: edits.Pruned(_read_longs(reader)),
    edits.Truncated.number: lambda reader: edits.Truncated(reader.pointer()),
    edits.Led.number: lambda reader: edits.Led(reader.pointer()),
    edits.Restored.number: lambda reader: edits.Restored(_read_longs(reader)),
    edits.Reset.number: lambda reader: edits.Reset(reader.long()),
    edits.TableJoined.number: lambda reader: edits.TableJoined(reader.pointer(), read_table_join(reader)),
    edits.SessionOpened.number: _read_session_opened,
    edits.SessionBegan.number: lambda reader: edits.SessionBegan(reader.pointer(), read_in_session(reader)),
    edits.ChangesUnlogged.number: lambda reader: edits.ChangesUnlogged(reader.pointer()),
    edits.SessionsForgotten.number: _read_sessions_forgotten,
    edits.CounterOwnerClaimed.number: _read_counter_owner_claimed,
    edits.TopicsUsed.number: _read_topics_used,
}


# Fields.


def long_field(value: int) -> bytes:
    """A signed 64-bit number."""
    return _LONG.pack(value)


def count_field(value: int) -> bytes:
    """A 32-bit count or length."""
    return _INT.pack(value)


def text_field(text: str | None) -> bytes:
    """UTF-8 after its 16-bit length in bytes; None is the empty text."""
    data = (text or "").encode()
    return _SHORT.pack(len(data)) + data


def bytes_field(data: bytes) -> bytes:
    """Bytes after their 32-bit length."""
    return _INT.pack(len(data)) + data


def set_field(items: Iterable[bytes]) -> bytes:
    """A 32-bit count, then the items in ascending order."""
    ordered = sorted(items)
    return _INT.pack(len(ordered)) + b"".join([_INT.pack(len(item)) + item for item in ordered])


def pointers_field(pointers: Sequence[int]) -> bytes:
    """Ascending numbers: how many, the first one, then what is to be added for each next one, as varints."""
    return encode_varint(len(pointers)) + encode_deltas(pointers)


def sealed(data: bytes) -> bytes:
    """The data and its CRC-32C."""
    return data + crc32c(data).to_bytes(CRC_BYTES, "big")


def opened(data: bytes, what: str, version: int, header_bytes: int) -> bytes:
    """The data without its CRC-32C, which fits, as does the version in its first byte.

    Every version of every format of the log begins with its version and ends with a CRC of all before, so that a newer
    format is told apart from damage.
    """
    if len(data) < header_bytes + CRC_BYTES:
        raise CorruptionError(
            f"{what} is cut off: {len(data)} bytes at offset 0, expected {header_bytes + CRC_BYTES} or more"
        )
    body, crc = data[:-CRC_BYTES], int.from_bytes(data[-CRC_BYTES:], "big")
    if crc32c(body) != crc:
        raise CorruptionError(
            f"{what} is damaged: CRC-32C {crc:08x} at offset {len(body)}, computed {crc32c(body):08x};"
            " restore the data directory from a backup"
        )
    if body[0] > version:
        raise CorruptionError(
            f"{what} was written by a newer Basalt: format version {body[0]} at offset 0, this one reads up to {version};"
            " start that version again"
        )
    if body[0] < version:
        raise CorruptionError(f"{what} has format version {body[0]} at offset 0, which never was")
    return body


class Reader:
    """Reads fields one after the other; `what` names the bytes in errors."""

    __slots__ = ("_data", "_what", "offset", "stop")

    def __init__(self, data: bytes, what: str, offset: int = 0) -> None:
        self._data = data
        self._what = what
        self.offset = offset
        self.stop = len(data)

    def failure(self, problem: str, offset: int | None = None) -> CorruptionError:
        """The error for a problem at this offset (by default where the reader stands)."""
        return CorruptionError(
            f"{self._what} is damaged: {problem} at offset {self.offset if offset is None else offset};"
            " restore the data directory from a backup"
        )

    def take(self, length: int) -> bytes:
        """The next bytes."""
        end = self.offset + length
        if end > self.stop:
            raise self.failure(f"{length} bytes expected, {self.stop - self.offset} left")
        data = self._data[self.offset : end]
        self.offset = end
        return data

    def unpack(self, fixed: struct.Struct) -> tuple[int, ...]:
        """Several fields of fixed size at once."""
        end = self.offset + fixed.size
        if end > self.stop:
            raise self.failure(f"{fixed.size} bytes expected, {self.stop - self.offset} left")
        values: tuple[int, ...] = fixed.unpack_from(self._data, self.offset)
        self.offset = end
        return values

    def byte(self, maximum: int = 255) -> int:
        """A number of one byte, at most `maximum`."""
        value = self.take(1)[0]
        if value > maximum:
            raise self.failure(f"{value} where at most {maximum} is possible", self.offset - 1)
        return value

    def flag(self) -> bool:
        """A byte that is 0 or 1."""
        return self.byte(maximum=1) == 1

    def long(self) -> int:
        """A signed 64-bit number."""
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def pointer(self) -> int:
        """A 64-bit number that is not negative."""
        value = self.long()
        if value < 0:
            raise self.failure(f"negative write pointer {value}", self.offset - 8)
        return value

    def count(self) -> int:
        """A 32-bit count or length."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def data(self) -> bytes:
        """Bytes after their 32-bit length."""
        return self.take(self.count())

    def text(self) -> str:
        """UTF-8 after its 16-bit length."""
        start = self.offset
        length: int = _SHORT.unpack(self.take(2))[0]
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.failure("text that is not UTF-8", start) from error

    def optional_text(self) -> str | None:
        """A text of which the empty one stands for none."""
        return self.text() or None

    def set(self) -> frozenset[bytes]:
        """The items of a set, which must ascend."""
        items: list[bytes] = []
        for _ in range(self.count()):
            start = self.offset
            items.append(self.data())
            if len(items) > 1 and items[-2] >= items[-1]:
                raise self.failure("a set that is not sorted, or holds an item twice", start)
        return frozenset(items)

    def varint(self) -> int:
        """A varint of at most 63 bits, in as few bytes as it can have."""
        value = shift = 0
        start = self.offset
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * VARINT_BYTES_MAX:
                raise self.failure(f"a varint longer than {VARINT_BYTES_MAX} bytes", start)
        if byte == 0 and shift:
            raise self.failure("a varint with a needless last byte", start)
        return value

    def pointers(self) -> tuple[int, ...]:
        """Ascending numbers."""
        start = self.offset
        count = self.varint()
        if count > self.stop - self.offset:  # each takes a byte at least; do not try to read millions
            raise self.failure(f"{count} numbers expected in {self.stop - self.offset} bytes", start)
        numbers: list[int] = []
        last = 0
        for _ in range(count):
            step = self.varint()
            if step == 0 and numbers:
                raise self.failure("a list that holds a number twice")
            last += step
            numbers.append(last)
        if last >> 63:
            raise self.failure("a number beyond 63 bits")
        return tuple(numbers)

    def end(self) -> None:
        """Nothing may be left."""
        if self.offset != self.stop:
            raise self.failure(f"{self.stop - self.offset} bytes too many")
