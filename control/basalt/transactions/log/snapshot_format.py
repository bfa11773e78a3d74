"""The bytes of a log snapshot: the whole state at one moment. Format: docs/formats/transaction-log.md.

Transactions are written newest first, each with what its snapshot holds beyond, and short of, that of the one before:
transactions that began one after the other have nearly the same, and share it again once they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from crc32c import crc32c

from basalt.transactions.log.entry_format import (
    CRC_BYTES,
    Reader,
    bytes_field,
    count_field,
    in_session_field,
    join_field,
    long_field,
    loss_field,
    opened,
    pointers_field,
    read_in_session,
    read_join,
    read_loss,
    read_table_join,
    read_version,
    set_field,
    table_join_field,
    text_field,
    version_field,
)
from basalt.transactions.rules.conflicts import CommittedSet
from basalt.transactions.rules.one_shots import UsedTopic
from basalt.transactions.rules.outcomes import Outcome, OutcomeBlock
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.transaction import Kind, PointerSet, State, Transaction
from basalt.transactions.rules.transaction_table import RememberedOutcomes, Request, RequestCall, StateImage
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import InvalidList
from basalt_engine.varints import encode_varint

VERSION = 1
PIECE_BYTES_MIN = 64 << 10  # of what is encoded at a time: no step of the encoder copies all of it
_HEADER = struct.Struct(">Bqqq")
_TRANSACTION = struct.Struct(">qBBBqqqq")
_OUTCOME = struct.Struct(">qBBBq")
_BLOCK = struct.Struct(">qqqI")
_REQUEST = struct.Struct(">Bqq")
_SESSION = struct.Struct(">qqq")
_OUTSIDE, _TIMED_OUT, _WAS_INVALID, _HAS_CHANGES, _DOOMED, _OTHER_INVALID = 1, 2, 4, 8, 16, 32  # flags of a transaction
_IN_SESSION, _CHANGES_UNLOGGED = 64, 128

_STATES = {int(state): state for state in State}
_IN_PROGRESS = {int(state): state for state in (State.OPEN, State.COMMITTING, State.ABORTING)}
_KINDS = {int(kind): kind for kind in Kind}
_CALLS = {int(call): call for call in RequestCall}

T = TypeVar("T")


def encode_snapshot(image: StateImage) -> bytes:
    """The snapshot of a state."""
    return b"".join(snapshot_pieces(image))


def snapshot_pieces(image: StateImage) -> Iterator[bytes]:
    """The snapshot of a state in pieces; needs no access to the state, and may run on another thread.

    Takes about a second for all that the default limits allow. A piece is little more than `PIECE_BYTES_MIN`, or one change
    set, so that the thread of the event loop never waits long for its turn.
    """
    crc, piece = 0, bytearray()
    for field in _fields(image):
        piece += field
        if len(piece) >= PIECE_BYTES_MIN:
            crc = crc32c(piece, crc)
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + crc32c(piece, crc).to_bytes(CRC_BYTES, "big")


def _fields(image: StateImage) -> Iterator[bytes]:
    yield _HEADER.pack(VERSION, image.edits_applied, image.last_pointer, image.read_pointer)
    yield long_field(image.leader_epoch)
    yield encode_varint(image.invalid_version) + pointers_field(image.invalid.pointers)
    yield count_field(len(image.transactions))
    concurrent, invalid = PointerSet(), image.invalid
    for transaction in reversed(image.transactions):
        yield _transaction(transaction, concurrent, invalid)
        concurrent, invalid = transaction.concurrent, transaction.invalid
    yield from _all(image.committed, _committed)
    yield from _all(image.outcomes.recent, _outcome)
    yield from _all(image.outcomes.invalid, _outcome)
    yield from _all(image.outcomes.blocks, _block)
    yield from _all(image.requests, _request)
    yield long_field(image.session_epoch_over)
    yield from _all(image.sessions, _session)
    yield from _all(image.topics_used, lambda used: long_field(used.until) + join_field(used.join))


def _all(items: tuple[T, ...], encode: Callable[[T], bytes]) -> Iterator[bytes]:
    yield count_field(len(items))
    yield from map(encode, items)


def decode_snapshot(data: bytes, what: str) -> StateImage:
    """The state in a snapshot. `CorruptionError` naming `what` and the offset."""
    body = opened(data, what, VERSION, _HEADER.size)
    _, edits_applied, last_pointer, read_pointer = _HEADER.unpack_from(body)
    reader = Reader(body, what, _HEADER.size)
    leader_epoch = reader.pointer()
    if min(edits_applied, last_pointer, read_pointer) < 0:
        raise reader.failure("a negative number in the header", 1)
    invalid_version = reader.varint()
    invalid = InvalidList(reader.pointers(), invalid_version)
    read_outcome = _outcome_reader()
    image = StateImage(
        edits_applied=edits_applied,
        last_pointer=last_pointer,
        read_pointer=read_pointer,
        leader_epoch=leader_epoch,
        invalid=invalid,
        invalid_version=invalid_version,
        transactions=_read_transactions(reader, invalid),
        committed=_read_all(reader, _read_committed),
        outcomes=RememberedOutcomes(
            _read_all(reader, read_outcome), _read_all(reader, read_outcome), _read_all(reader, _read_block)
        ),
        requests=_read_all(reader, _read_request),
        session_epoch_over=reader.pointer(),
        sessions=_read_all(reader, _read_session),
        topics_used=_read_all(reader, _read_used_topic),
    )
    reader.end()
    if not (_ascends(committed.seen_from for committed in image.committed) and _unique(image)):
        raise reader.failure("committed change sets out of order, or an outcome, request, session or topic twice")
    return image


def _transaction(transaction: Transaction, concurrent: PointerSet, invalid: InvalidList) -> bytes:
    other_invalid = transaction.invalid is not invalid and (
        transaction.invalid != invalid or transaction.invalid.version != invalid.version
    )
    flags = (
        _OUTSIDE * transaction.outside
        | _TIMED_OUT * transaction.timed_out
        | _WAS_INVALID * transaction.was_invalid
        | _HAS_CHANGES * (transaction.changes is not None)
        | _DOOMED * (transaction.doomed is not None)
        | _OTHER_INVALID * other_invalid
        | _IN_SESSION * (transaction.session is not None)
        | _CHANGES_UNLOGGED * transaction.changes_unlogged
    )
    parts = [
        _TRANSACTION.pack(
            transaction.id,
            transaction.kind,
            transaction.state,
            flags,
            transaction.read_pointer,
            transaction.first_short,
            transaction.began_ms,
            transaction.deadline_ms,
        ),
        text_field(transaction.owner),
        text_field(transaction.request_id),
        pointers_field(transaction.checkpoints),
        pointers_field(concurrent.difference(transaction.concurrent)),
        pointers_field(transaction.concurrent.difference(concurrent)),
    ]
    if other_invalid:
        before, now = frozenset(invalid.pointers), frozenset(transaction.invalid.pointers)
        parts += (
            encode_varint(transaction.invalid.version),
            pointers_field(sorted(before - now)),
            pointers_field(sorted(now - before)),
        )
    parts += (count_field(len(transaction.topics)), *map(join_field, transaction.topics))
    parts += (count_field(len(transaction.tables)), *map(table_join_field, transaction.tables))
    if transaction.changes is not None:
        parts.append(set_field(transaction.changes))
    if transaction.doomed is not None:
        parts.append(loss_field(transaction.doomed))
    if transaction.session is not None:
        parts.append(in_session_field(transaction.session))
    return b"".join(parts)


def _read_transactions(reader: Reader, invalid: InvalidList) -> tuple[Transaction, ...]:
    newest_first: list[Transaction] = []
    concurrent = PointerSet()
    for _ in range(reader.count()):
        start = reader.offset
        transaction = _read_transaction(reader, concurrent, invalid)
        if newest_first and transaction.id >= newest_first[-1].id:
            raise reader.failure(f"transaction {transaction.id} out of order", start)
        newest_first.append(transaction)
        concurrent, invalid = transaction.concurrent, transaction.invalid
    return tuple(reversed(newest_first))


def _read_transaction(reader: Reader, concurrent: PointerSet, invalid: InvalidList) -> Transaction:
    start = reader.offset
    key, kind, state, flags, read_pointer, first_short, began_ms, deadline_ms = reader.unpack(_TRANSACTION)
    if min(key, read_pointer, first_short) < 0 or kind not in _KINDS:
        raise reader.failure("a transaction that cannot be", start)
    if state not in _IN_PROGRESS:
        raise reader.failure(f"transaction {key} in state {state}, and yet in progress", start)
    owner, request_id, checkpoints = reader.text(), reader.optional_text(), reader.pointers()
    if checkpoints and checkpoints[0] <= key:
        raise reader.failure(f"transaction {key} has checkpoint {checkpoints[0]}, which is older than itself")
    concurrent = _read_concurrent(reader, concurrent)
    if flags & _OTHER_INVALID:
        invalid = _read_other_invalid(reader, invalid)
    return Transaction(
        id=key,
        kind=_KINDS[kind],
        state=_IN_PROGRESS[state],
        outside=bool(flags & _OUTSIDE),
        timed_out=bool(flags & _TIMED_OUT),
        was_invalid=bool(flags & _WAS_INVALID),
        read_pointer=read_pointer,
        first_short=first_short,
        began_ms=began_ms,
        deadline_ms=deadline_ms,
        owner=owner,
        request_id=request_id,
        checkpoints=checkpoints,
        concurrent=concurrent,
        invalid=invalid,
        topics=_read_all(reader, read_join),
        tables=_read_all(reader, read_table_join),
        changes=reader.set() if flags & _HAS_CHANGES else None,
        changes_unlogged=bool(flags & _CHANGES_UNLOGGED),
        doomed=read_loss(reader) if flags & _DOOMED else None,
        session=read_in_session(reader) if flags & _IN_SESSION else None,
    )


def _read_concurrent(reader: Reader, pointers: PointerSet) -> PointerSet:
    """The set as the next field changes it; sets that differ little share what they have in common."""
    start, gone, added = reader.offset, reader.pointers(), reader.pointers()
    if not all(pointer in pointers for pointer in gone) or any(pointer in pointers for pointer in added):
        raise reader.failure("a change of what was in progress that is none", start)
    if len(gone) + len(added) > len(pointers):
        return PointerSet.of(frozenset(pointers).difference(gone).union(added))
    for pointer in gone:
        pointers = pointers.without(pointer)
    for pointer in added:
        pointers = pointers.with_added(pointer)
    return pointers


def _read_other_invalid(reader: Reader, invalid: InvalidList) -> InvalidList:
    start, version, gone, added = (
        reader.offset,
        reader.varint(),
        frozenset(reader.pointers()),
        frozenset(reader.pointers()),
    )
    held = frozenset(invalid.pointers)
    if not gone <= held or added & held or not (gone or added or version != invalid.version):
        raise reader.failure("a change of the invalid list that is none", start)
    return InvalidList(tuple(sorted(held - gone | added)), version)


def _committed(committed: CommittedSet) -> bytes:
    fixed = long_field(committed.id) + long_field(committed.seen_from)
    return fixed + text_field(committed.owner) + set_field(committed.changes)


def _outcome(outcome: Outcome) -> bytes:
    fixed = _OUTCOME.pack(outcome.id, outcome.state, outcome.kind, outcome.timed_out, outcome.at_ms)
    data = fixed + encode_varint(outcome.write_pointer - outcome.id) + text_field(outcome.owner)
    if outcome.state is State.INVALID:
        data += (
            pointers_field(outcome.pointers)
            + count_field(len(outcome.topics))
            + b"".join(map(join_field, outcome.topics))
        )
        data += count_field(len(outcome.tables)) + b"".join(map(table_join_field, outcome.tables))
    return data


def _outcome_reader() -> Callable[[Reader], Outcome]:
    owners: dict[str, str] = {}  # thousands of outcomes have few owners

    def read(reader: Reader) -> Outcome:
        start = reader.offset
        key, state, kind, timed_out, at_ms = reader.unpack(_OUTCOME)
        if key < 0 or state not in _STATES or kind not in _KINDS or timed_out > 1:
            raise reader.failure("an outcome that no transaction can have", start)
        write_pointer, owner = key + reader.varint(), reader.text()
        invalid = state == State.INVALID
        pointers = reader.pointers() if invalid else ()
        topics = _read_all(reader, read_join) if invalid else ()
        tables = _read_all(reader, read_table_join) if invalid else ()
        owner = owners.setdefault(owner, owner)
        found, of_kind, late = _STATES[state], _KINDS[kind], timed_out == 1
        return Outcome(key, write_pointer, found, of_kind, owner, at_ms, late, pointers, topics, tables)

    return read


def _block(block: OutcomeBlock) -> bytes:
    fixed = _BLOCK.pack(block.first, block.last, block.newest_ms, block.count)
    return fixed + b"".join(_all(block.owners, text_field)) + bytes_field(block.data)


def _read_block(reader: Reader) -> OutcomeBlock:
    start = reader.offset
    first, last, newest_ms, count = reader.unpack(_BLOCK)
    block = OutcomeBlock(first, last, newest_ms, count, _read_all(reader, Reader.text), reader.data())
    try:
        block.unpack_columns()
    except CorruptionError as error:
        raise reader.failure(f"{error.message}:", start) from error
    return block


def _read_committed(reader: Reader) -> CommittedSet:
    key, seen_from, owner, changes = reader.pointer(), reader.pointer(), reader.text(), reader.set()
    return CommittedSet(key, owner, seen_from, changes)


def _read_request(reader: Reader) -> Request:
    start = reader.offset
    call, key, at_ms = reader.unpack(_REQUEST)
    if call not in _CALLS or key < 0:
        raise reader.failure("a request that cannot be", start)
    return Request(reader.text(), _CALLS[call], key, at_ms)


def _request(request: Request) -> bytes:
    return _REQUEST.pack(request.call, request.transaction_id, request.at_ms) + text_field(request.id)


def _session(session: Session) -> bytes:
    fixed = _SESSION.pack(session.epoch, session.used_ms, session.committed_by)
    named = version_field(session.version) + text_field(session.name) + text_field(session.run)
    replaced = count_field(len(session.replaced)) + b"".join(map(text_field, session.replaced))
    return fixed + named + text_field(session.counter_owner) + replaced


def _read_session(reader: Reader) -> Session:
    start = reader.offset
    epoch, used_ms, committed_by = reader.unpack(_SESSION)
    if epoch < 1 or committed_by < 0:
        raise reader.failure("a session that cannot be", start)
    version, name, run = read_version(reader), reader.text(), reader.text()
    counter_owner, replaced = reader.optional_text(), _read_all(reader, Reader.text)
    if len({*replaced, run}) <= len(replaced):
        raise reader.failure("a session in which a run follows itself", start)
    return Session(name, run, epoch, used_ms, version, committed_by, counter_owner, replaced)


def _read_used_topic(reader: Reader) -> UsedTopic:
    return UsedTopic(reader.pointer(), read_join(reader))


def _read_all(reader: Reader, read: Callable[[Reader], T]) -> tuple[T, ...]:
    return tuple([read(reader) for _ in range(reader.count())])


def _ascends(numbers: Iterable[int]) -> bool:
    ordered = list(numbers)
    return ordered == sorted(ordered)


def _unique(image: StateImage) -> bool:
    one_by_one = (*image.outcomes.recent, *image.outcomes.invalid)
    kept = (
        ({outcome.id for outcome in one_by_one}, one_by_one),
        ({request.id for request in image.requests}, image.requests),
        ({session.name for session in image.sessions}, image.sessions),
        ({used.key for used in image.topics_used}, image.topics_used),
    )
    return all(len(keys) == len(items) for keys, items in kept)
