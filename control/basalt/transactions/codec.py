"""TransactionCodec: a transaction as bytes, which is what a poll takes as its snapshot.

A begin answers these bytes. They are a Thrift struct (TTransaction, TBinaryProtocol) as Apache Tephra's codec writes it, so
its Java clients can bring their own. Bytes of an ended transaction, or of another manager, are read as they stand: they
name what was true for their owner. Encoded by hand, because a poll reads one each time and its invalid list may have 100,000 ids.
Format: docs/formats/transaction-codec.md.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

from basalt.api.bodies.messages import LONG_MAX, Buffer
from basalt.errors import MalformedBodyError
from basalt.transactions.rules.transaction import Kind, Transaction, VisibilityLevel
from basalt_engine.snapshot import NO_RUNS, InvalidList, PointerRuns, TransactionSnapshot

NO_SHORT_IN_PROGRESS = LONG_MAX  # Tephra's NO_TX_IN_PROGRESS: no open short transaction is older than anything
_KINDS, _LEVELS = frozenset(Kind), frozenset(VisibilityLevel)

_STOP, _I32, _I64, _LIST = 0, 8, 10, 15  # Thrift type ids
_FIELD_TYPES = {
    1: _I64,
    2: _I64,
    3: _LIST,
    4: _LIST,
    5: _I64,
    6: _I32,
    7: _I64,
    8: _LIST,
    9: _I32,
    10: _LIST,
    11: _LIST,
}
_FIELD_NAMES = dict(enumerate(
    ("id", "readPointer", "invalids", "inProgress", "firstShort", "type", "writePointer", "checkpointWritePointers",
     "visibilityLevel", "invalidRuns", "inProgressRuns"), 1,
))  # fmt: skip
_NO_IDS = array("q")
_FIELD = "transaction"  # where the bytes stand in the body of a poll
_FIELD_HEADER = struct.Struct(">bh")
_LIST_HEADER = struct.Struct(">bi")
_I32_VALUE = struct.Struct(">i")
_I64_VALUE = struct.Struct(">q")
_LONG_BYTES = 8
_ORDER_CHECK_IDS = 4_096  # ids made into objects at a time: a list of a full body must not take four times its size
_SHARED_IDS_MIN = 1_024  # shorter lists are decoded in the time that looking them up takes
_SHARED_IDS_MAX = 262_144  # 2 MiB: longer lists are not remembered, so that what is remembered stays small
_SHARED_LISTS_MAX = 2  # the current invalid list, and the one before it, which older snapshots still carry

_LIST_START = struct.Struct(">bhbi")  # a field header and a list header
_BEFORE_LISTS = struct.Struct(">bhqbhq")  # fields 1 and 2
_BETWEEN_LISTS = struct.Struct(">bhqbhibhq")  # fields 5 to 7
_AFTER_LISTS = struct.Struct(">bhi")  # field 9
_STOP_BYTE = bytes((_STOP,))
_IN_PROGRESS_ID, _CHECKPOINTS_ID, _INVALID_RUNS_ID, _IN_PROGRESS_RUNS_ID = 4, 8, 10, 11


class TransactionFields(NamedTuple):
    """The fields of a transaction's bytes. Lists ascend; those of runs have the first and the last pointer of each, in turn.

    Decoded lists are arrays, shared between transactions that carry the same one: never change them.
    """

    id: int
    read_pointer: int
    invalid: Sequence[int] = ()
    in_progress: Sequence[int] = ()
    first_short: int = NO_SHORT_IN_PROGRESS
    kind: Kind = Kind.SHORT
    write_pointer: int = 0
    checkpoints: Sequence[int] = ()
    visibility: int = VisibilityLevel.SNAPSHOT
    invalid_runs: Sequence[int] = ()
    in_progress_runs: Sequence[int] = ()


class EncodedLongs:
    """The invalid list as it stands in the bytes: encoded once, copied into each transaction until it changes."""

    __slots__ = ("count", "segment")

    def __init__(self, ids: Sequence[int]) -> None:
        """Encode ascending ids; ValueError when they are not."""
        self.count = len(ids)
        self.segment = _encode_list(3, ids)


def encode_in_pieces(fields: TransactionFields, *, invalid: EncodedLongs | None = None) -> tuple[bytes, ...]:
    """The bytes of one transaction, one piece after the other; `invalid`, when given, is `fields.invalid` encoded before,
    and its piece is not copied.

    ValueError when a list is not ascending, a number does not fit, or `invalid` is not the length of `fields.invalid`.
    """
    if invalid is None:
        invalid = EncodedLongs(fields.invalid)
    elif invalid.count != len(fields.invalid):
        raise ValueError(f"{invalid.count} encoded invalid ids for a list of {len(fields.invalid)}")
    if fields.visibility not in _LEVELS or fields.kind not in _KINDS:
        raise ValueError(f"no transaction has kind {fields.kind!r} and visibility {fields.visibility}")
    try:
        return (
            _BEFORE_LISTS.pack(_I64, 1, fields.id, _I64, 2, fields.read_pointer),
            invalid.segment,
            _encode_list(_IN_PROGRESS_ID, fields.in_progress),
            _BETWEEN_LISTS.pack(_I64, 5, fields.first_short, _I32, 6, fields.kind, _I64, 7, fields.write_pointer),
            _encode_list(_CHECKPOINTS_ID, fields.checkpoints),
            _AFTER_LISTS.pack(_I32, 9, fields.visibility),
            _encode_runs(_INVALID_RUNS_ID, fields.invalid_runs),
            _encode_runs(_IN_PROGRESS_RUNS_ID, fields.in_progress_runs),
            _STOP_BYTE,
        )
    except struct.error as error:
        raise ValueError(f"transaction {fields.id} has a number that does not fit: {error}") from None


def decode_transaction(body: Buffer) -> TransactionFields:
    """The transaction that the bytes are. MalformedBodyError, with the byte offset, for everything else.

    Fields may come in any order, each once; id and readPointer must be there. Absent: lists empty, firstShort
    NO_SHORT_IN_PROGRESS, type LONG, writePointer 0, visibilityLevel SNAPSHOT.
    """
    raw = bytes(body)
    numbers: dict[int, int] = {5: NO_SHORT_IN_PROGRESS, 6: Kind.LONG, 7: 0, 9: VisibilityLevel.SNAPSHOT}
    lists: dict[int, Sequence[int]] = {}
    seen: set[int] = set()
    position = 0
    while True:
        if position >= len(raw):
            _refuse(position, "a field or the stop byte", "the end of the bytes")
        if raw[position] == _STOP:
            break
        field_id, position = _read_field_header(raw, position, seen)
        if _FIELD_TYPES[field_id] == _LIST:
            lists[field_id], position = _read_list(raw, position, _FIELD_NAMES[field_id])
        else:
            numbers[field_id], position = _read_number(raw, position, field_id)
    if position + 1 != len(raw):
        _refuse(position + 1, "the end of the bytes", f"{len(raw) - position - 1} more")
    for field_id in (1, 2):
        if field_id not in seen:
            _refuse(position, f"the field {_FIELD_NAMES[field_id]}", "none")
    return _checked(numbers, lists)


def _read_field_header(raw: bytes, position: int, seen: set[int]) -> tuple[int, int]:
    if position + _FIELD_HEADER.size > len(raw):
        _refuse(position, "a field header of 3 bytes", "the end of the bytes")
    thrift_type, field_id = _FIELD_HEADER.unpack_from(raw, position)
    expected = _FIELD_TYPES.get(field_id)
    if expected is None:
        _refuse(position, "a field of TTransaction, 1 to 11", f"field {field_id}")
    if thrift_type != expected:
        _refuse(position, f"Thrift type {expected} for {_FIELD_NAMES[field_id]}", f"type {thrift_type}")
    if field_id in seen:
        _refuse(position, f"{_FIELD_NAMES[field_id]} once", "it again")
    seen.add(field_id)
    return field_id, position + _FIELD_HEADER.size


def _read_number(raw: bytes, position: int, field_id: int) -> tuple[int, int]:
    value = _I32_VALUE if _FIELD_TYPES[field_id] == _I32 else _I64_VALUE
    if position + value.size > len(raw):
        _refuse(position, f"{value.size} bytes of {_FIELD_NAMES[field_id]}", "the end of the bytes")
    (number,) = value.unpack_from(raw, position)
    return number, position + value.size


def _read_list(raw: bytes, position: int, name: str) -> tuple[Sequence[int], int]:
    if position + _LIST_HEADER.size > len(raw):
        _refuse(position, f"a list header of 5 bytes for {name}", "the end of the bytes")
    element_type, count = _LIST_HEADER.unpack_from(raw, position)
    if element_type != _I64:
        _refuse(position, f"elements of Thrift type {_I64} (i64) in {name}", f"type {element_type}")
    begin = position + _LIST_HEADER.size
    count_max = (len(raw) - begin) // _LONG_BYTES
    if not 0 <= count <= count_max:
        _refuse(position + 1, f"a count of 0 to {count_max} for {name}", f"{count}")
    stop = begin + count * _LONG_BYTES
    shared = _SHARED_IDS_MIN <= count <= _SHARED_IDS_MAX
    ids = _decode_shared_ids(raw[begin:stop]) if shared else _decode_ids(raw[begin:stop])
    if ids is None:
        _refuse(begin, f"{name} in ascending order from 0 on", "another order")
    return ids, stop


def _decode_ids(longs: bytes) -> Sequence[int] | None:
    ids = array("q", longs)
    if sys.byteorder == "little":
        ids.byteswap()
    return ids if _ascending(ids) else None


# Every snapshot of one moment carries the same invalid list, and every poll sends it again.
_decode_shared_ids = lru_cache(maxsize=_SHARED_LISTS_MAX)(_decode_ids)


def _checked(numbers: dict[int, int], lists: dict[int, Sequence[int]]) -> TransactionFields:
    for field_id, minimum in ((1, 1), (2, 0), (5, 0), (7, 0)):
        if numbers[field_id] < minimum:
            name = _FIELD_NAMES[field_id]
            _refuse(None, f"{name} of {minimum} or more", f"{numbers[field_id]}")
    if numbers[6] not in _KINDS:
        _refuse(None, "type 1 (short) or 2 (long)", f"{numbers[6]}")
    if numbers[9] not in _LEVELS:
        _refuse(None, "visibilityLevel 1 to 3", f"{numbers[9]}")
    for field_id in (_INVALID_RUNS_ID, _IN_PROGRESS_RUNS_ID):
        if len(lists.get(field_id, ())) % 2:
            _refuse(None, f"{_FIELD_NAMES[field_id]} in pairs", f"{len(lists[field_id])} numbers")
    return TransactionFields(
        id=numbers[1],
        read_pointer=numbers[2],
        invalid=lists.get(3, _NO_IDS),
        in_progress=lists.get(4, _NO_IDS),
        first_short=numbers[5],
        kind=Kind(numbers[6]),
        write_pointer=numbers[7],
        checkpoints=lists.get(8, _NO_IDS),
        visibility=numbers[9],
        invalid_runs=lists.get(_INVALID_RUNS_ID, _NO_IDS),
        in_progress_runs=lists.get(_IN_PROGRESS_RUNS_ID, _NO_IDS),
    )


def _encode_list(field_id: int, ids: Sequence[int]) -> bytes:
    if not _ascending(ids):
        raise ValueError(f"{_FIELD_NAMES[field_id]} is not in ascending order")
    start = _LIST_START.pack(_LIST, field_id, _I64, len(ids))
    return start + struct.pack(f">{len(ids)}q", *ids) if ids else start


def _encode_runs(field_id: int, ids: Sequence[int]) -> bytes:
    """No bytes for no runs: those of most transactions are Tephra's."""
    if len(ids) % 2:
        raise ValueError(f"{_FIELD_NAMES[field_id]} has a run without an end")
    return _encode_list(field_id, ids) if ids else b""


def _ascending(ids: Sequence[int]) -> bool:
    # Equal neighbours pass: a doubled id hides what one id hides. Sorting what is sorted already is one pass in C.
    if ids and ids[0] < 0:
        return False
    for begin in range(0, len(ids), _ORDER_CHECK_IDS):
        some = list(ids[begin : begin + _ORDER_CHECK_IDS + 1])  # one more, to compare with the next ones
        if some != sorted(some):
            return False
    return True


def _refuse(offset: int | None, expected: str, found: str) -> NoReturn:
    where = "" if offset is None else f", byte {offset}"
    raise MalformedBodyError(
        f"transaction bytes{where}: expected {expected}, found {found}",
        field=_FIELD,
        hint="Send the transaction bytes exactly as begin answered them.",
    )


class SnapshotBytes:
    """Both directions, with what is the same from one transaction to the next kept: the invalid list may be long."""

    def __init__(self) -> None:
        self._encoded: tuple[InvalidList, EncodedLongs] | None = None
        self._decoded: tuple[Sequence[int], Sequence[int], InvalidList] | None = None

    def encode(self, transaction: Transaction, level: int | None = None) -> bytes:
        """The bytes of a transaction in progress; at another visibility level, where one is given."""
        fields = self._fields(transaction, level)._replace(
            invalid_runs=_listed(transaction.invalid.runs), in_progress_runs=_listed(transaction.concurrent_runs)
        )
        return b"".join(encode_in_pieces(fields, invalid=self._encoded_invalid(transaction.invalid)))

    def pieces(self, transaction: Transaction, level: int | None = None) -> tuple[bytes, ...]:
        """The same in pieces, of which that with the invalid list is shared, not copied; as Tephra has them, without runs."""
        return encode_in_pieces(self._fields(transaction, level), invalid=self._encoded_invalid(transaction.invalid))

    def _fields(self, transaction: Transaction, level: int | None) -> TransactionFields:
        return TransactionFields(
            id=transaction.id,
            read_pointer=transaction.read_pointer,
            invalid=transaction.invalid.pointers,
            in_progress=transaction.in_progress,
            first_short=transaction.first_short,
            kind=transaction.kind,
            write_pointer=transaction.write_pointer,
            checkpoints=transaction.checkpoints,
            visibility=int(transaction.level) if level is None else level,
        )

    def snapshot(self, fields: TransactionFields) -> TransactionSnapshot:
        return TransactionSnapshot(
            read_pointer=fields.read_pointer,
            write_pointer=fields.write_pointer,
            in_progress=tuple(fields.in_progress),
            invalid=self._invalid(fields.invalid, fields.invalid_runs),
            own=frozenset((fields.id, fields.write_pointer, *fields.checkpoints)),
            excluded=fields.write_pointer if fields.visibility == VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT else None,
            in_progress_runs=_runs(fields.in_progress_runs),
        )

    def _encoded_invalid(self, invalid: InvalidList) -> EncodedLongs:
        if self._encoded is None or self._encoded[0] is not invalid:
            self._encoded = (invalid, EncodedLongs(invalid.pointers))
        return self._encoded[1]

    def _invalid(self, pointers: Sequence[int], runs: Sequence[int]) -> InvalidList:
        # The codec answers the same object for the same list, so identity tells.
        if self._decoded is None or self._decoded[0] is not pointers or self._decoded[1] != runs:
            made = InvalidList(tuple(dict.fromkeys(pointers)))  # strangers may say one twice
            self._decoded = (pointers, runs, made.with_added(runs=_runs(runs)) if runs else made)
        return self._decoded[2]


def _listed(runs: PointerRuns) -> list[int]:
    return [pointer for run in runs for pointer in run]


def _runs(listed: Sequence[int]) -> PointerRuns:
    pairs = iter(listed)
    return PointerRuns(zip(pairs, pairs, strict=True)) if listed else NO_RUNS
