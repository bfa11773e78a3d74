"""The calls on transactions: begin, one-shot, commit, abort, checkpoint, invalidate, change sets, participants, showing.

Ids are decimal text in JSON, for they are 64-bit numbers that JavaScript would round.
"""

from __future__ import annotations

import base64
import re
from binascii import Error as Base64Error
from typing import Any, Literal

import msgspec

from basalt.errors import (
    BusyError,
    InputError,
    InvalidNameError,
    MalformedBodyError,
    RequestReusedError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http import schemas
from basalt.http.answers import AVRO, JSON, Answer, json_answer
from basalt.http.bodies import MESSAGE_TYPES, content_type, read_body
from basalt.http.json_input import convert_json, decode_json, read_no_members
from basalt.http.operations import Operation
from basalt.http.requests import Request
from basalt.topics import TopicName, title_of, topic_name
from basalt.transactions.outcomes import Outcome
from basalt.transactions.states import Join, Kind, Transaction
from basalt.wire import avro, json_bodies
from basalt.wire.bodies import LONG_MAX, Work
from basalt.wire.json_values import parse_json

TRANSACTIONS_PATH = "/v1/transactions"
TRANSACTION_PATH = TRANSACTIONS_PATH + "/{transaction}"

_ID = re.compile(r"[1-9][0-9]{0,18}")
_KINDS = {"short": Kind.SHORT, "long": Kind.LONG}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_LATER = "It arrives with consumer groups; leave it empty."


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a begin. `outside_writes`: the client also writes elsewhere under the transaction's pointer."""

    kind: Literal["short", "long"] = "short"
    timeout_ms: int | None = None
    owner: str = ""
    outside_writes: bool = False
    snapshot: bool = True


class OneShotRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a one-shot transaction."""

    work: Any
    owner: str = ""


class ChangesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The whole change set of a transaction; it replaces the one told before. Each change is base64."""

    changes: list[str]


class OutsideParticipant(msgspec.Struct, forbid_unknown_fields=True, tag="outside", tag_field="kind"):
    """A store of the client's own takes part."""

    name: str


class TopicTakesPart(msgspec.Struct, forbid_unknown_fields=True, tag="topic", tag_field="kind"):
    """A topic takes part, ahead of its first write."""

    namespace: str
    topic: str


class TopicShown(msgspec.Struct):
    """A topic that takes part in a transaction."""

    namespace: str
    topic: str


class Begun(msgspec.Struct, rename="camel", omit_defaults=True):
    """A transaction that its client goes on with. Times in ms since 1970; `transaction` is TransactionCodec, base64."""

    id: str
    write_pointer: int
    read_pointer: int
    state: str
    kind: str
    owner: str
    expires_at: int
    transaction: str | None = None


class Shown(msgspec.Struct, rename="camel"):
    """A transaction that has not ended, as operators see it."""

    id: str
    write_pointer: int
    read_pointer: int
    state: str
    kind: str
    owner: str
    began_at: int
    expires_at: int
    topics: list[TopicShown]
    outside_writes: bool


class ShownList(msgspec.Struct):
    """All transactions that have not ended, oldest first."""

    transactions: list[Shown]


class Ended(msgspec.Struct, rename="camel"):
    """How a transaction ended, or where it stands."""

    id: str
    write_pointer: int
    state: str


class Invalidated(msgspec.Struct):
    """False when the transaction was not in progress."""

    invalidated: bool


async def begin(request: Request) -> Answer:
    """Begin a transaction; or, when the body carries work, do it as a one-shot transaction."""
    media_type = content_type(request, MESSAGE_TYPES)
    body = await read_body(request)
    if media_type == AVRO:
        return await _one_shot(request, avro.decode_work(body), "")
    value = parse_json(body) if body else {}
    if isinstance(value, dict) and "work" in value:
        wanted = convert_json(value, OneShotRequest)
        return await _one_shot(request, json_bodies.read_work(wanted.work), wanted.owner)
    asked = convert_json(value, BeginRequest)
    transaction = await request.services.transactions.begin(
        _KINDS[asked.kind], asked.timeout_ms, asked.owner, asked.outside_writes, request.client_id
    )
    return json_answer(_begun(request, transaction, asked.snapshot))


async def show_all(request: Request) -> Answer:
    """List the transactions that have not ended."""
    listed = await request.services.transactions.list()
    return json_answer(ShownList([_shown(transaction) for transaction in listed]))


async def show(request: Request) -> Answer:
    """Show one transaction: all of it while it lasts, its outcome after that."""
    transaction_id = id_of(request)
    try:
        return json_answer(_shown(await request.services.transactions.get(transaction_id)))
    except TransactionEndedError:
        return json_answer(_ended(await request.services.transactions.outcome(transaction_id)))


async def commit(request: Request) -> Answer:
    """Commit, with work that is to happen at that moment."""
    transaction_id = id_of(request)
    media_type = content_type(request, MESSAGE_TYPES)
    body = await read_body(request)
    work = None if not body else _built(avro.decode_work(body) if media_type == AVRO else json_bodies.decode_work(body))
    outcome = await request.services.transactions.commit(transaction_id, work, request.client_id)
    return json_answer(_ended(outcome))


async def abort(request: Request) -> Answer:
    """Abort: everything that the transaction did to topics is undone."""
    transaction_id = id_of(request)
    await read_no_members(request)
    return json_answer(_ended(await request.services.transactions.abort(transaction_id)))


async def invalidate(request: Request) -> Answer:
    """Give a transaction up: its rows are hidden from snapshots for ever."""
    transaction_id = id_of(request)
    await read_no_members(request)
    return json_answer(Invalidated(await request.services.transactions.invalidate(transaction_id)))


async def checkpoint(request: Request) -> Answer:
    """Give an open transaction a further write pointer."""
    transaction_id = id_of(request)
    await read_no_members(request)
    transaction = await request.services.transactions.checkpoint(transaction_id)
    return json_answer(_begun(request, transaction, with_bytes=True))


async def set_changes(request: Request) -> Answer:
    """Tell what an open transaction changed; a conflict is answered at once."""
    transaction_id = id_of(request)
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), ChangesRequest)
    changes = [_from_base64(change, f"changes[{index}]") for index, change in enumerate(asked.changes)]
    await request.services.transactions.set_changes(transaction_id, changes)
    return Answer()


async def take_part(request: Request) -> Answer:
    """Register a participant of an open transaction."""
    transaction_id = id_of(request)
    content_type(request, (JSON,))
    asked: OutsideParticipant | TopicTakesPart = decode_json(
        await read_body(request),
        OutsideParticipant | TopicTakesPart,  # type: ignore[arg-type]  # msgspec takes unions, `type[T]` does not
    )
    if isinstance(asked, TopicTakesPart):
        await request.services.join_topic(transaction_id, topic_name(asked.namespace, asked.topic))
    else:
        await request.services.transactions.mark_outside(transaction_id, asked.name)
    return Answer()


def id_of(request: Request) -> int:
    """The transaction that the path names; `InputError` when that is no id."""
    return parse_id(request.path["transaction"], "id")


def parse_id(text: str, field: str) -> int:
    """A transaction id, which is a write pointer in decimal."""
    if _ID.fullmatch(text) is None or int(text) > LONG_MAX:
        raise InputError(
            f"{text[:40]!r} is not a transaction id", field=field, hint="Use the id that begin answered, in decimal."
        )
    return int(text)


async def _one_shot(request: Request, work: Work, owner: str) -> Answer:
    outcome = await request.services.transactions.one_shot(_built(work), owner, request.client_id)
    return json_answer(_ended(outcome))


def _built(work: Work) -> Work:
    """The work, when it asks for nothing that is not built yet."""
    for part in ("acknowledge", "markers"):
        if getattr(work, part):
            raise InputError(f"{part}: this server cannot do that", field=part, hint=_LATER)
    return work


def _from_base64(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (Base64Error, ValueError):
        hint = "Use the standard alphabet (A-Z a-z 0-9 + /) with padding."
        raise MalformedBodyError(f"{field} is not base64", field=field, hint=hint) from None


def _begun(request: Request, transaction: Transaction, with_bytes: bool) -> Begun:
    codec = base64.b64encode(request.snapshots.encode(transaction)).decode("ascii") if with_bytes else None
    return Begun(
        id=str(transaction.id),
        write_pointer=transaction.write_pointer,
        read_pointer=transaction.read_pointer,
        state=transaction.state.name,
        kind=_KIND_NAMES[transaction.kind],
        owner=transaction.owner,
        expires_at=transaction.deadline_ms,
        transaction=codec,
    )


def _shown(transaction: Transaction) -> Shown:
    return Shown(
        id=str(transaction.id),
        write_pointer=transaction.write_pointer,
        read_pointer=transaction.read_pointer,
        state=transaction.state.name,
        kind=_KIND_NAMES[transaction.kind],
        owner=transaction.owner,
        began_at=transaction.began_ms,
        expires_at=transaction.deadline_ms,
        topics=[_topic_shown(join) for join in transaction.topics],
        outside_writes=transaction.outside,
    )


def _topic_shown(join: Join) -> TopicShown:
    title: TopicName = title_of(join.topic)
    return TopicShown(title.namespace, title.name)


def _ended(outcome: Outcome) -> Ended:
    return Ended(str(outcome.id), outcome.write_pointer, outcome.state.name)


Participant = OutsideParticipant | TopicTakesPart

_ENDING = (TransactionNotFoundError, TransactionEndedError, TransactionConflictError)

OPERATIONS = (
    Operation(
        method="POST",
        path=TRANSACTIONS_PATH,
        handler=begin,
        summary="Begin a transaction; or, given work, do it as a one-shot transaction",
        tag="transactions",
        body={JSON: (BeginRequest, OneShotRequest), AVRO: schemas.BINARY},
        answers={200: {JSON: (Begun, Ended)}},
        errors=(InvalidNameError, TopicNotFoundError, TransactionConflictError, RequestReusedError, BusyError),
    ),
    Operation(
        method="GET",
        path=TRANSACTIONS_PATH,
        handler=show_all,
        summary="The transactions that have not ended",
        tag="transactions",
        answers={200: {JSON: ShownList}},
    ),
    Operation(
        method="GET",
        path=TRANSACTION_PATH,
        handler=show,
        summary="A transaction, or how it ended",
        tag="transactions",
        answers={200: {JSON: (Shown, Ended)}},
        errors=(TransactionNotFoundError,),
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/commit",
        handler=commit,
        summary="Commit, and do the given work in the same moment",
        tag="transactions",
        body={JSON: schemas.WORK, AVRO: schemas.BINARY},
        answers={200: {JSON: Ended}},
        errors=(*_ENDING, InvalidNameError, TopicNotFoundError, RequestReusedError),
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/abort",
        handler=abort,
        summary="Abort, and undo what it did to topics",
        tag="transactions",
        body=schemas.EMPTY_BODY,
        answers={200: {JSON: Ended}},
        errors=_ENDING,
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/checkpoint",
        handler=checkpoint,
        summary="A further write pointer",
        tag="transactions",
        body=schemas.EMPTY_BODY,
        answers={200: {JSON: Begun}},
        errors=_ENDING,
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/invalidate",
        handler=invalidate,
        summary="Put its writers on the invalid list",
        tag="transactions",
        body=schemas.EMPTY_BODY,
        answers={200: {JSON: Invalidated}},
        errors=_ENDING,
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/changes",
        handler=set_changes,
        summary="Tell its change set, and learn of a conflict",
        tag="transactions",
        body={JSON: ChangesRequest},
        body_required=True,
        errors=_ENDING,
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/participants",
        handler=take_part,
        summary="Register a participant",
        tag="transactions",
        body={JSON: Participant},
        body_required=True,
        errors=(*_ENDING, InvalidNameError, TopicNotFoundError),
    ),
)
