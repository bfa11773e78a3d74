"""The bytes of a log snapshot: the whole state at one moment. Format: docs/formats/transaction-log.md.

Transactions are written newest first, each with what its snapshot holds beyond, and short of, that of the one before:
transactions that began one after the other have nearly the same, and share it again once they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from basalt.transactions.log.entry_format import (
    in_session_field,
    join_field,
    loss_field,
    read_in_session,
    read_join,
    read_loss,
    read_table_join,
    read_version,
    table_join_field,
    version_field,
)
from basalt.transactions.log.fields import (
    Reader,
    count_field,
    long_field,
    opened,
    pointers_field,
    sealed,
    set_field,
    text_field,
)
from basalt.transactions.rules.conflicts import CommittedSet
from basalt.transactions.rules.one_shot_topics import UsedTopic
from basalt.transactions.rules.outcomes import Call, Outcome, Request
from basalt.transactions.rules.pointers import PointerSet
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.state_image import Image
from basalt.transactions.rules.states import Join, Kind, State, Transaction
from basalt_engine.snapshot import InvalidList
from basalt_engine.varints import encode_varint

VERSION = 4  # what is written
VERSION_FIRST = 1  # what can still be read: no epoch, tables or sessions yet
VERSION_LED = 2  # the same with the epoch, where servers take turns to lead
VERSION_SESSIONS = 3  # the same with tables and sessions, which know no ledger and no runs that were replaced
_HEADER = struct.Struct(">Bqqq")
_TRANSACTION = struct.Struct(">qBBHqqqq")
_TRANSACTION_BEFORE = struct.Struct(">qBBBqqqq")  # before version 3: fewer flags
_OUTCOME = struct.Struct(">qBBBq")
_REQUEST = struct.Struct(">Bqq")
_SESSION = struct.Struct(">qqq")
_OUTSIDE, _TIMED_OUT, _WAS_INVALID, _HAS_CHANGES, _DOOMED, _OTHER_INVALID = 1, 2, 4, 8, 16, 32  # flags of a transaction
_IN_SESSION, _CHANGES_UNLOGGED = 64, 128  # flags of version 3
_FLAGS_MAX = 255
_FLAGS_MAX_BEFORE = 63

_STATES = {int(state): state for state in State}
_IN_PROGRESS = {int(state): state for state in (State.OPEN, State.COMMITTING, State.ABORTING)}
_KINDS = {int(kind): kind for kind in Kind}
_CALLS = {int(call): call for call in Call}

T = TypeVar("T")


def encode_snapshot(image: Image) -> bytes:
    """The snapshot of a state. Takes about a second for all that the default limits allow; needs no access to the state."""
    out = bytearray(_HEADER.pack(VERSION, image.edits_applied, image.last_pointer, image.read_pointer))
    out += long_field(image.leader_epoch)
    out += encode_varint(image.invalid_version) + pointers_field(image.invalid.pointers)
    out += count_field(len(image.transactions))
    concurrent, invalid = PointerSet(), image.invalid
    for transaction in reversed(image.transactions):
        out += _transaction(transaction, concurrent, invalid)
        concurrent, invalid = transaction.concurrent, transaction.invalid
    out += count_field(len(image.committed))
    for committed in image.committed:
        out += long_field(committed.id) + long_field(committed.seen_from)
        out += text_field(committed.owner) + set_field(committed.changes)
    out += count_field(len(image.outcomes))
    for outcome in image.outcomes:
        out += _outcome(outcome)
    out += count_field(len(image.requests))
    for request in image.requests:
        out += _REQUEST.pack(request.call, request.transaction_id, request.at_ms) + text_field(request.id)
    out += long_field(image.session_epoch_over) + count_field(len(image.sessions))
    for session in image.sessions:
        out += _session(session)
    out += count_field(len(image.topics_used))
    for used in image.topics_used:
        out += long_field(used.until) + join_field(used.join)
    # Whatever else the state holds comes here, as a part of its own: see `decode_snapshot`.
    return sealed(bytes(out))


def decode_snapshot(data: bytes, what: str) -> Image:
    """The state in a snapshot. `CorruptionError` naming `what` and the offset."""
    body = opened(data, what, VERSION, _HEADER.size, oldest=VERSION_FIRST)
    version, edits_applied, last_pointer, read_pointer = _HEADER.unpack_from(body)
    reader = Reader(body, what, _HEADER.size)
    leader_epoch = reader.pointer() if version >= VERSION_LED else 0
    if version == VERSION_LED and not leader_epoch:
        raise reader.failure("epoch 0, which version 1 is for", _HEADER.size)
    if min(edits_applied, last_pointer, read_pointer) < 0:
        raise reader.failure("a negative number in the header", 1)
    invalid_version = reader.varint()
    invalid = InvalidList(reader.pointers(), invalid_version)
    with_sessions = version >= VERSION_SESSIONS
    image = Image(
        edits_applied=edits_applied,
        last_pointer=last_pointer,
        read_pointer=read_pointer,
        leader_epoch=leader_epoch,
        invalid=invalid,
        invalid_version=invalid_version,
        transactions=_read_transactions(reader, version, invalid),
        committed=_read_all(reader, _read_committed),
        outcomes=_read_all(reader, _outcome_reader(version)),
        requests=_read_all(reader, _read_request),
        session_epoch_over=reader.pointer() if with_sessions else 0,
        sessions=_read_all(reader, _session_reader(version)) if with_sessions else (),
        topics_used=_read_all(reader, _read_used_topic) if with_sessions else (),
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


def _read_transactions(reader: Reader, version: int, invalid: InvalidList) -> tuple[Transaction, ...]:
    newest_first: list[Transaction] = []
    concurrent = PointerSet()
    for _ in range(reader.count()):
        start = reader.offset
        transaction = _read_transaction(reader, version, concurrent, invalid)
        if newest_first and transaction.id >= newest_first[-1].id:
            raise reader.failure(f"transaction {transaction.id} out of order", start)
        newest_first.append(transaction)
        concurrent, invalid = transaction.concurrent, transaction.invalid
    return tuple(reversed(newest_first))


def _read_transaction(reader: Reader, version: int, concurrent: PointerSet, invalid: InvalidList) -> Transaction:
    start, before = reader.offset, version < VERSION_SESSIONS
    fixed = reader.unpack(_TRANSACTION_BEFORE if before else _TRANSACTION)
    key, kind, state, flags, read_pointer, first_short, began_ms, deadline_ms = fixed
    flags_max = _FLAGS_MAX_BEFORE if before else _FLAGS_MAX
    if min(key, read_pointer, first_short) < 0 or kind not in _KINDS or flags > flags_max:
        raise reader.failure("a transaction that cannot be", start)
    if state not in _IN_PROGRESS:
        raise reader.failure(f"transaction {key} in state {state}, and yet in progress", start)
    owner, request_id, checkpoints = reader.text(), reader.optional_text(), reader.pointers()
    if checkpoints and checkpoints[0] <= key:
        raise reader.failure(f"transaction {key} has checkpoint {checkpoints[0]}, which is older than itself")
    concurrent = _changed(reader, concurrent)
    if flags & _OTHER_INVALID:
        invalid = _other_invalid(reader, invalid)
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
        tables=() if before else _read_all(reader, read_table_join),
        changes=reader.set() if flags & _HAS_CHANGES else None,
        changes_unlogged=bool(flags & _CHANGES_UNLOGGED),
        doomed=read_loss(reader) if flags & _DOOMED else None,
        session=read_in_session(reader) if flags & _IN_SESSION else None,
    )


def _changed(reader: Reader, pointers: PointerSet) -> PointerSet:
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


def _other_invalid(reader: Reader, invalid: InvalidList) -> InvalidList:
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


def _outcome(outcome: Outcome) -> bytes:
    fixed = _OUTCOME.pack(outcome.id, outcome.state, outcome.kind, outcome.timed_out, outcome.at_ms)
    data = fixed + encode_varint(outcome.write_pointer - outcome.id) + text_field(outcome.owner)
    if outcome.state is State.INVALID:
        topics: tuple[Join, ...] = outcome.topics
        data += pointers_field(outcome.pointers) + count_field(len(topics)) + b"".join(map(join_field, topics))
        data += count_field(len(outcome.tables)) + b"".join(map(table_join_field, outcome.tables))
    return data


def _outcome_reader(version: int) -> Callable[[Reader], Outcome]:
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
        tables = _read_all(reader, read_table_join) if invalid and version >= VERSION_SESSIONS else ()
        owner = owners.setdefault(owner, owner)
        found, of_kind, late = _STATES[state], _KINDS[kind], timed_out == 1
        return Outcome(key, write_pointer, found, of_kind, owner, at_ms, late, pointers, topics, tables)

    return read


def _read_committed(reader: Reader) -> CommittedSet:
    key, seen_from, owner, changes = reader.pointer(), reader.pointer(), reader.text(), reader.set()
    return CommittedSet(key, owner, seen_from, changes)


def _read_request(reader: Reader) -> Request:
    start = reader.offset
    call, key, at_ms = reader.unpack(_REQUEST)
    if call not in _CALLS or key < 0:
        raise reader.failure("a request that cannot be", start)
    return Request(reader.text(), _CALLS[call], key, at_ms)


def _session(session: Session) -> bytes:
    fixed = _SESSION.pack(session.epoch, session.used_ms, session.committed_by)
    named = version_field(session.version) + text_field(session.name) + text_field(session.run)
    replaced = count_field(len(session.replaced)) + b"".join(map(text_field, session.replaced))
    return fixed + named + text_field(session.ledger) + replaced


def _session_reader(version: int) -> Callable[[Reader], Session]:
    def read(reader: Reader) -> Session:
        start = reader.offset
        epoch, used_ms, committed_by = reader.unpack(_SESSION)
        if epoch < 1 or committed_by < 0:
            raise reader.failure("a session that cannot be", start)
        committed, name, run = read_version(reader), reader.text(), reader.text()
        if version == VERSION_SESSIONS:
            return Session(name, run, epoch, used_ms, committed, committed_by)
        ledger, replaced = reader.optional_text(), _read_all(reader, Reader.text)
        if len({*replaced, run}) <= len(replaced):
            raise reader.failure("a session in which a run follows itself", start)
        return Session(name, run, epoch, used_ms, committed, committed_by, ledger, replaced)

    return read


def _read_used_topic(reader: Reader) -> UsedTopic:
    return UsedTopic(reader.pointer(), read_join(reader))


def _read_all(reader: Reader, read: Callable[[Reader], T]) -> tuple[T, ...]:
    return tuple([read(reader) for _ in range(reader.count())])


def _ascends(numbers: Iterable[int]) -> bool:
    ordered = list(numbers)
    return ordered == sorted(ordered)


def _unique(image: Image) -> bool:
    outcomes, requests = {outcome.id for outcome in image.outcomes}, {request.id for request in image.requests}
    sessions = {session.name for session in image.sessions}
    topics = {used.key for used in image.topics_used}
    kept = (len(image.outcomes), len(image.requests), len(image.sessions), len(image.topics_used))
    return (len(outcomes), len(requests), len(sessions), len(topics)) == kept
