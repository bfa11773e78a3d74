"""The bytes of a log snapshot: the whole state at one moment. Format: docs/formats/transaction-log.md.

Transactions are written newest first, each with what its snapshot holds beyond, and short of, that of the one before:
transactions that began one after the other have nearly the same, and share it again once they are read.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from crc32c import crc32c
from msgspec.structs import replace

from basalt.transactions.log.entry_format import (
    ANY_SPANS,
    BYTES,
    COUNT,
    CRC_BYTES,
    FLAG,
    IN_SESSION,
    JOIN,
    LONG,
    LOSS,
    OPTIONAL_TEXT,
    POINTER,
    POINTERS,
    RETURN_REASON,
    RUNS,
    SET,
    SHORT,
    SPANS,
    TABLE_JOIN,
    TEXT,
    VERSION_OF_WORK,
    FieldReader,
    FieldType,
    many,
    numbered,
    opened,
    pair,
    record,
)
from basalt.transactions.rules.conflicts import CommittedSet
from basalt.transactions.rules.groups import GroupState, PendingSpans, ReturnedSpan, Returns
from basalt.transactions.rules.history import Items
from basalt.transactions.rules.loans import LoanImage
from basalt.transactions.rules.outcomes import Outcome, OutcomeBlock, RememberedOutcomes, RequestCall, RequestUse
from basalt.transactions.rules.sessions import SessionState
from basalt.transactions.rules.transaction import Kind, PointerSet, State, Transaction
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import NO_RUNS, InvalidList, PointerRuns
from basalt_engine.spans.spans import Spans
from basalt_engine.varints import encode_varint

VERSION = 3
PIECE_BYTES_MIN = 64 << 10  # of what is encoded at a time: no step of the encoder copies all of it
_HEADER = struct.Struct(">Bqqq")
_TRANSACTION = struct.Struct(">qBBHqqqq")
_OUTCOME = struct.Struct(">qBBBq")
_FLAGS = {
    "external_writes": 1,
    "timed_out": 2,
    "was_invalid": 4,
    "changes_unlogged": 128,
}  # of a transaction, with those below
_HAS_CHANGES, _DOOMED, _OTHER_INVALID, _IN_SESSION, _ACKNOWLEDGES, _OWNED = 8, 16, 32, 64, 256, 512
_ALL_FLAGS = 1023
_LATE, _OF_SESSION, _OF_PRINCIPAL = 1, 2, 4  # flags of an outcome
_JOINS, _TABLE_JOINS = many(JOIN), many(TABLE_JOIN)

_STATES = {int(state): state for state in State}
_IN_PROGRESS = {int(state): state for state in (State.OPEN, State.COMMITTING, State.ABORTING)}
_KINDS = {int(kind): kind for kind in Kind}


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
    yield LONG.encode(image.leader_epoch)
    yield encode_varint(image.invalid_version) + POINTERS.encode(image.invalid.pointers)
    yield RUNS.encode(image.invalid.runs)
    yield COUNT.encode(len(image.transactions))
    concurrent, runs, invalid = PointerSet(), NO_RUNS, image.invalid
    acknowledging = dict(image.acknowledging)
    for transaction in reversed(image.transactions):
        yield _transaction(transaction, concurrent, runs, invalid, acknowledging.get(transaction.id, ()))
        concurrent, runs, invalid = transaction.concurrent, transaction.concurrent_runs, transaction.invalid
    yield from _each(image.committed, _COMMITTED.encode)
    yield from _each(image.outcomes.recent, _outcome)
    yield from _each(image.outcomes.invalid, _outcome)
    yield from _each(image.outcomes.blocks, _BLOCK.encode)
    yield from _each(image.requests, _REQUEST.encode)
    yield LONG.encode(image.session_epoch_over)
    yield from _each(image.sessions, _SESSION.encode)
    yield from _each(image.loans, _LOAN.encode)
    yield COUNT.encode(image.groups_made)
    yield from _each(image.groups, _group)


def _each(items: Items[Any], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    """The bytes of `many`, but in pieces."""
    yield COUNT.encode(len(items))
    yield from map(encode, items)


def decode_snapshot(data: bytes, what: str) -> StateImage:
    """The state in a snapshot. `CorruptionError` naming `what` and the offset."""
    body = opened(data, what, VERSION, _HEADER.size)
    _, edits_applied, last_pointer, read_pointer = _HEADER.unpack_from(body)
    reader = FieldReader(body, what, _HEADER.size)
    leader_epoch = reader.pointer()
    if min(edits_applied, last_pointer, read_pointer) < 0:
        raise reader.failure("a negative number in the header", 1)
    invalid_version = reader.varint()
    invalid = _read_invalid(reader, invalid_version)
    outcomes = many(FieldType(_outcome, _outcome_reader()))
    acknowledging: list[PendingSpans] = []
    image = StateImage(
        edits_applied=edits_applied,
        last_pointer=last_pointer,
        read_pointer=read_pointer,
        leader_epoch=leader_epoch,
        invalid=invalid,
        invalid_version=invalid_version,
        transactions=_read_transactions(reader, invalid, acknowledging),
        committed=many(_COMMITTED).read(reader),
        outcomes=RememberedOutcomes(outcomes.read(reader), outcomes.read(reader), many(_BLOCK).read(reader)),
        requests=many(_REQUEST).read(reader),
        session_epoch_over=reader.pointer(),
        sessions=many(_SESSION).read(reader),
        loans=_read_loans(reader),
        groups_made=reader.count(),
        groups=many(FieldType(_group, _read_group)).read(reader),
        acknowledging=tuple(reversed(acknowledging)),
    )
    reader.end()
    _check_groups(image, reader)
    if not (_ascends(committed.seen_from for committed in image.committed) and _unique(image)):
        raise reader.failure("committed change sets out of order, or an outcome, request, session or topic twice")
    return image


def _transaction(
    transaction: Transaction, concurrent: PointerSet, runs: PointerRuns, invalid: InvalidList,
    acknowledging: Sequence[tuple[int, Spans]],
) -> bytes:  # fmt: skip
    other_invalid = transaction.invalid is not invalid and (
        transaction.invalid != invalid or transaction.invalid.version != invalid.version
    )
    flags = (
        sum(bit for name, bit in _FLAGS.items() if getattr(transaction, name))
        | _HAS_CHANGES * (transaction.changes is not None)
        | _DOOMED * (transaction.doomed is not None)
        | _OTHER_INVALID * other_invalid
        | _IN_SESSION * (transaction.session is not None)
        | _ACKNOWLEDGES * bool(acknowledging)
        | _OWNED * bool(transaction.principal)
    )
    fixed = _TRANSACTION.pack(
        transaction.id, transaction.kind, transaction.state, flags, transaction.read_pointer,
        transaction.first_short, transaction.began_ms, transaction.deadline_ms,
    )  # fmt: skip
    parts = [
        fixed,
        TEXT.encode(transaction.owner),
        OPTIONAL_TEXT.encode(transaction.request_id),
        POINTERS.encode(transaction.checkpoints),
        POINTERS.encode(concurrent.difference(transaction.concurrent)),
        POINTERS.encode(transaction.concurrent.difference(concurrent)),
        *map(RUNS.encode, (runs.without(transaction.concurrent_runs), transaction.concurrent_runs.without(runs))),
    ]
    if other_invalid:
        before, now = frozenset(invalid.pointers), frozenset(transaction.invalid.pointers)
        parts += (
            encode_varint(transaction.invalid.version),
            POINTERS.encode(sorted(before - now)),
            POINTERS.encode(sorted(now - before)),
            RUNS.encode(invalid.runs.without(transaction.invalid.runs)),
            RUNS.encode(transaction.invalid.runs.without(invalid.runs)),
        )
    parts += (_JOINS.encode(transaction.topics), _TABLE_JOINS.encode(transaction.tables))
    if transaction.changes is not None:
        parts.append(SET.encode(transaction.changes))
    if transaction.doomed is not None:
        parts.append(LOSS.encode(transaction.doomed))
    if transaction.session is not None:
        parts.append(IN_SESSION.encode(transaction.session))
    if acknowledging:
        parts.append(_PENDING.encode(acknowledging))
    if transaction.principal:
        parts.append(TEXT.encode(transaction.principal))
    return b"".join(parts)


def _read_transactions(
    reader: FieldReader, invalid: InvalidList, acknowledging: list[PendingSpans]
) -> tuple[Transaction, ...]:
    newest_first: list[Transaction] = []
    concurrent, runs = PointerSet(), NO_RUNS
    for _ in range(reader.count()):
        start = reader.offset
        transaction = _read_transaction(reader, concurrent, runs, invalid, acknowledging)
        if newest_first and transaction.id >= newest_first[-1].id:
            raise reader.failure(f"transaction {transaction.id} out of order", start)
        newest_first.append(transaction)
        concurrent, runs, invalid = transaction.concurrent, transaction.concurrent_runs, transaction.invalid
    return tuple(reversed(newest_first))


def _read_transaction(
    reader: FieldReader,
    concurrent: PointerSet,
    runs: PointerRuns,
    invalid: InvalidList,
    acknowledging: list[PendingSpans],
) -> Transaction:
    start = reader.offset
    key, kind, state, flags, read_pointer, first_short, began_ms, deadline_ms = reader.unpack(_TRANSACTION)
    if min(key, read_pointer, first_short) < 0 or kind not in _KINDS or flags > _ALL_FLAGS:
        raise reader.failure("a transaction that cannot be", start)
    if state not in _IN_PROGRESS:
        raise reader.failure(f"transaction {key} in state {state}, and yet in progress", start)
    owner, request_id, checkpoints = reader.text(), reader.optional_text(), reader.pointers()
    if checkpoints and checkpoints[0] <= key:
        raise reader.failure(f"transaction {key} has checkpoint {checkpoints[0]}, which is older than itself")
    concurrent, runs = _read_concurrent(reader, concurrent), _read_other_runs(reader, runs)
    if flags & _OTHER_INVALID:
        invalid = _read_other_invalid(reader, invalid)
    marks: dict[str, Any] = {name: bool(flags & bit) for name, bit in _FLAGS.items()}
    transaction = Transaction(
        id=key, kind=_KINDS[kind], state=_IN_PROGRESS[state], read_pointer=read_pointer, first_short=first_short,
        began_ms=began_ms, deadline_ms=deadline_ms, owner=owner, request_id=request_id, checkpoints=checkpoints,
        concurrent=concurrent, concurrent_runs=runs, invalid=invalid,
        topics=_JOINS.read(reader),
        tables=_TABLE_JOINS.read(reader),
        changes=reader.set() if flags & _HAS_CHANGES else None,
        doomed=LOSS.read(reader) if flags & _DOOMED else None,
        session=IN_SESSION.read(reader) if flags & _IN_SESSION else None,
        **marks,
    )  # fmt: skip
    if flags & _ACKNOWLEDGES:
        if state == State.ABORTING:
            raise reader.failure(f"transaction {key} acknowledges messages, and is being aborted")
        acknowledging.append(PendingSpans(key, _read_pending(reader)))
    return replace(transaction, principal=_read_principal(reader)) if flags & _OWNED else transaction


def _read_principal(reader: FieldReader) -> str:
    start, principal = reader.offset, reader.text()
    if not principal:
        raise reader.failure("an owner without a name", start)
    return sys.intern(principal)  # thousands of transactions belong to few


def _read_pending(reader: FieldReader) -> tuple[tuple[int, Spans], ...]:
    start = reader.offset
    pending: tuple[tuple[int, Spans], ...] = _PENDING.read(reader)
    numbers = [number for number, _ in pending]
    if not numbers or numbers != sorted(set(numbers)):
        raise reader.failure("pending acknowledgements of no group, or of groups that do not ascend", start)
    return pending


def _group(group: GroupState) -> bytes:
    """The bytes of a group, which are kept: of thousands, few change from one snapshot to the next."""
    if group.encoded is None:
        group.encoded = _GROUP.encode(group) + _RETURNED.encode(group.returned)
    return group.encoded


def _read_group(reader: FieldReader) -> GroupState:
    start = reader.offset
    group: GroupState = _GROUP.read(reader)
    returned: tuple[ReturnedSpan, ...] = _RETURNED.read(reader)
    group.returns = Returns(returned)
    if list(returned) != group.returned or any(each.attempts == 0 for each in returned):
        raise reader.failure(f"returned messages of group {group.number} that are out of order, or there twice", start)
    for after, through, _ in group.returns:
        if group.acknowledged.overlaps(after, through):
            raise reader.failure(f"messages of group {group.number} that are acknowledged and came back", start)
    group.encoded = reader.since(start)
    return group


def _check_groups(image: StateImage, reader: FieldReader) -> None:
    """Refuse groups that are there twice, have numbers that were not given out, or are acknowledged in and not there."""
    numbers = [group.number for group in image.groups]
    names = {(*group.topic, group.name) for group in image.groups}
    if numbers != sorted(set(numbers)) or not min(numbers, default=1) > 0 or len(names) < len(numbers):
        raise reader.failure("groups out of order, or twice")
    if numbers and numbers[-1] > image.groups_made:
        raise reader.failure(f"group {numbers[-1]}, when {image.groups_made} was the last that was made")
    pending = {number for _, groups in image.acknowledging for number, _ in groups}
    if not pending.issubset(numbers):
        raise reader.failure("pending acknowledgements of a group that is not there")


def _read_concurrent(reader: FieldReader, pointers: PointerSet) -> PointerSet:
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


def _read_other_runs(reader: FieldReader, runs: PointerRuns) -> PointerRuns:
    """The runs as the next fields change them: what leaves them was in them, what comes was not."""
    start, gone, added = reader.offset, reader.runs(), reader.runs()
    if gone.without(runs) or runs.without(added) != runs or gone.without(added) != gone:
        raise reader.failure("a change of runs of write pointers that is none", start)
    return runs.without(gone).with_added(added) if gone or added else runs


def _read_loans(reader: FieldReader) -> tuple[LoanImage, ...]:
    start = reader.offset
    loans: tuple[LoanImage, ...] = many(_LOAN).read(reader)
    ends = [(loan.undecided, loan.last) for loan in loans]
    if any(first > last for first, last in ends) or any(left[1] >= right[0] for left, right in pairwise(ends)):
        raise reader.failure("loans that do not ascend, or share a write pointer", start)
    return loans


def _read_invalid(reader: FieldReader, version: int) -> InvalidList:
    start, pointers, runs = reader.offset, reader.pointers(), reader.runs()
    return _invalid_list(reader, start, pointers, version, runs)


def _invalid_list(
    reader: FieldReader, start: int, pointers: tuple[int, ...], version: int, runs: PointerRuns
) -> InvalidList:
    if runs and any(pointer in runs for pointer in pointers):
        raise reader.failure("an invalid list with a write pointer that is in one of its runs, too", start)
    return InvalidList(pointers, version, runs)


def _read_other_invalid(reader: FieldReader, invalid: InvalidList) -> InvalidList:
    start, version = reader.offset, reader.varint()
    gone, added = frozenset(reader.pointers()), frozenset(reader.pointers())
    runs, held = _read_other_runs(reader, invalid.runs), frozenset(invalid.pointers)
    right = gone <= held and not added & held
    if not right or not (gone or added or runs != invalid.runs or version != invalid.version):
        raise reader.failure("a change of the invalid list that is none", start)
    return _invalid_list(reader, start, tuple(sorted(held - gone | added)), version, runs)


def _outcome(outcome: Outcome) -> bytes:
    flags = (
        _LATE * outcome.timed_out
        | _OF_SESSION * (outcome.session is not None)
        | _OF_PRINCIPAL * bool(outcome.principal)
    )
    fixed = _OUTCOME.pack(outcome.id, outcome.state, outcome.kind, flags, outcome.at_ms)
    data = fixed + encode_varint(outcome.write_pointer - outcome.id) + TEXT.encode(outcome.owner)
    if outcome.state is State.INVALID:
        joined = _JOINS.encode(outcome.topics) + _TABLE_JOINS.encode(outcome.tables)
        data += POINTERS.encode(outcome.pointers) + joined
    if outcome.session is not None:
        data += IN_SESSION.encode(outcome.session)
    if outcome.principal:
        data += TEXT.encode(outcome.principal)
    return data


def _outcome_reader() -> Callable[[FieldReader], Outcome]:
    owners: dict[str, str] = {}  # thousands of outcomes have few owners

    def read(reader: FieldReader) -> Outcome:
        start = reader.offset
        key, state, kind, flags, at_ms = reader.unpack(_OUTCOME)
        if key < 0 or state not in _STATES or kind not in _KINDS or flags > _LATE | _OF_SESSION | _OF_PRINCIPAL:
            raise reader.failure("an outcome that no transaction can have", start)
        write_pointer, owner = key + reader.varint(), reader.text()
        invalid = state == State.INVALID
        pointers = reader.pointers() if invalid else ()
        topics = _JOINS.read(reader) if invalid else ()
        tables = _TABLE_JOINS.read(reader) if invalid else ()
        session = IN_SESSION.read(reader) if flags & _OF_SESSION else None
        principal = _read_principal(reader) if flags & _OF_PRINCIPAL else ""
        owner = owners.setdefault(owner, owner)
        found, of_kind, late = _STATES[state], _KINDS[kind], bool(flags & _LATE)
        return Outcome(
            key, write_pointer, found, of_kind, owner, at_ms, late, pointers, topics, tables, session, principal
        )

    return read


def _block_problem(block: OutcomeBlock) -> str | None:
    try:
        block.unpack_columns()
    except CorruptionError as error:
        return f"{error.message}:"
    return None


def _session_problem(session: SessionState) -> str | None:
    if session.epoch < 1:
        return "a session that cannot be"
    repeated = len({*session.replaced, session.run}) <= len(session.replaced)
    return "a session in which a run follows itself" if repeated else None


_COMMITTED = record(CommittedSet, {"id": POINTER, "seen_from": POINTER, "owner": TEXT, "changes": SET})
_BLOCK = record(
    OutcomeBlock,
    {"first": LONG, "last": LONG, "newest_ms": LONG, "count": COUNT, "owners": many(pair(TEXT, TEXT)), "data": BYTES},
    _block_problem,
)
_REQUEST = record(
    RequestUse, {"call": numbered(RequestCall, "call"), "transaction_id": POINTER, "at_ms": LONG, "id": TEXT}
)
_SESSION = record(
    SessionState,
    {"epoch": POINTER, "used_ms": LONG, "committed_by": POINTER, "version": VERSION_OF_WORK, "name": TEXT, "run": TEXT,
     "counter_owner": OPTIONAL_TEXT, "replaced": many(TEXT), "principal": TEXT},
    _session_problem,
)  # fmt: skip
_LOAN = record(LoanImage, {"undecided": POINTER, "last": POINTER, "member": TEXT})
_PENDING = many(pair(COUNT, SPANS))
_GROUP = record(
    GroupState,
    {"number": COUNT, "round": COUNT, "made_ms": LONG, "used_ms": LONG, "paused": FLAG, "generation": COUNT,
     "prefix": BYTES, "name": TEXT, "options": BYTES, "acknowledged": ANY_SPANS},
)  # fmt: skip
_RETURNED = many(
    record(ReturnedSpan, {"attempts": SHORT, "not_before_ms": LONG, "reason": RETURN_REASON, "spans": SPANS})
)


def _ascends(numbers: Iterable[int]) -> bool:
    ordered = list(numbers)
    return ordered == sorted(ordered)


def _unique(image: StateImage) -> bool:
    one_by_one = (*image.outcomes.recent, *image.outcomes.invalid)
    kept = (
        ({outcome.id for outcome in one_by_one}, one_by_one),
        ({request.id for request in image.requests}, image.requests),
        ({session.name for session in image.sessions}, image.sessions),
    )
    return all(len(keys) == len(items) for keys, items in kept)
