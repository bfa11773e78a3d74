"""The calls on transactions: begin, one-shot, commit, abort, checkpoint, invalidate, change sets, participants, showing.

How ids are written: transactions/ids.py.
"""

from __future__ import annotations

from basalt.api.bodies.transactions import (
    BeginRequest,
    ChangesRequest,
    CheckpointRequest,
    CommittedBefore,
    Invalidated,
    OneShotRequest,
    Outcome,
    OutsideParticipant,
    TopicParticipant,
    TransactionInfo,
    TransactionList,
)
from basalt.api.bodies.work import Work
from basalt.api.codecs import avro, json_bodies
from basalt.api.codecs.json_values import parse_json
from basalt.catalog.topics import topic_name
from basalt.commits.commit_stage import Beginning
from basalt.errors import (
    BusyError,
    InputError,
    InvalidNameError,
    MarkerRefusedError,
    RequestReusedError,
    SessionFencedError,
    SessionForeignError,
    SessionNotFoundError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http.asgi.json_input import convert_json, decode_json, read_no_members
from basalt.http.asgi.request_bodies import MESSAGE_TYPES, content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import AVRO, JSON, Answer, json_answer
from basalt.http.routes import schemas
from basalt.http.routes.operations import Operation
from basalt.http.routes.transaction_answers import KINDS, committed_before, outcome_info, transaction_info
from basalt.transactions.rules.session_rules import WorkVersion
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import SessionBinding, Transaction

TRANSACTIONS_PATH = "/v1/transactions"
TRANSACTION_PATH = TRANSACTIONS_PATH + "/{transaction}"


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
    wished = Beginning(KINDS[asked.kind], asked.timeout_ms, asked.owner, asked.outside_writes, request.client_id)
    session, manager = _session(asked), request.services.transactions
    found: Transaction | Session
    if session is None:
        found = await manager.begin(*wished)
    elif isinstance(session, WorkVersion):
        found = await manager.sessions.begin_named(session, wished)
    else:
        found = await manager.sessions.begin(session, wished)
    if isinstance(found, Session):
        return json_answer(committed_before(request.services.ids, found))
    return json_answer(_open(request, found, asked.snapshot))


async def show_all(request: Request) -> Answer:
    """List the transactions that have not ended."""
    listed = await request.services.transactions.list()
    return json_answer(TransactionList([transaction_info(request.services.ids, transaction) for transaction in listed]))


async def show(request: Request) -> Answer:
    """Show one transaction: all of it while it lasts, its outcome after that."""
    ids = request.services.ids
    found = await request.services.transactions.find(id_of(request))
    return json_answer(transaction_info(ids, found) if isinstance(found, Transaction) else outcome_info(ids, found))


async def commit(request: Request) -> Answer:
    """Commit, with work that is to happen at that moment."""
    transaction_id = id_of(request)
    media_type = content_type(request, MESSAGE_TYPES)
    body = await read_body(request)
    work = None if not body else avro.decode_work(body) if media_type == AVRO else json_bodies.decode_work(body)
    outcome = await request.services.transactions.commit(transaction_id, work, request.client_id)
    return json_answer(outcome_info(request.services.ids, outcome))


async def abort(request: Request) -> Answer:
    """Abort: everything that the transaction did to topics is undone."""
    transaction_id = id_of(request)
    await read_no_members(request)
    return json_answer(outcome_info(request.services.ids, await request.services.transactions.abort(transaction_id)))


async def invalidate(request: Request) -> Answer:
    """Give a transaction up: its rows are hidden from snapshots for ever."""
    transaction_id = id_of(request)
    await read_no_members(request)
    return json_answer(Invalidated(await request.services.transactions.invalidate(transaction_id)))


async def checkpoint(request: Request) -> Answer:
    """Give an open transaction a further write pointer."""
    transaction_id = id_of(request)
    body = await read_body(request)
    if body:
        content_type(request, (JSON,))
    asked = decode_json(body, CheckpointRequest) if body else CheckpointRequest()
    transaction = await request.services.transactions.checkpoint(transaction_id)
    return json_answer(_open(request, transaction, asked.snapshot))


async def set_changes(request: Request) -> Answer:
    """Tell what an open transaction changed; a conflict is answered at once."""
    transaction_id = id_of(request)
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), ChangesRequest)
    await request.services.transactions.set_changes(transaction_id, asked.changes, outside=asked.outside_writes)
    return Answer()


async def take_part(request: Request) -> Answer:
    """Register a participant of an open transaction."""
    transaction_id = id_of(request)
    content_type(request, (JSON,))
    asked: OutsideParticipant | TopicParticipant = decode_json(
        await read_body(request),
        OutsideParticipant | TopicParticipant,  # type: ignore[arg-type]  # msgspec takes unions, `type[T]` does not
    )
    if isinstance(asked, TopicParticipant):
        await request.services.join_topic(transaction_id, topic_name(asked.namespace, asked.topic))
    else:
        await request.services.transactions.mark_outside(transaction_id, asked.name)
    return Answer()


def _open(request: Request, transaction: Transaction, with_snapshot: bool) -> TransactionInfo:
    encoded = request.snapshots.encode(transaction) if with_snapshot else None
    return transaction_info(request.services.ids, transaction, encoded)


def id_of(request: Request) -> int:
    """The transaction that the path names; `InputError` when that is no id, `TransactionNotFoundError` when not of here."""
    return request.services.ids.parse(request.path["transaction"], "id")


def _session(asked: BeginRequest) -> SessionBinding | WorkVersion | None:
    """The session that a begin names with its epoch, or with its run, or with neither."""
    if asked.session is None:
        named = (
            ("sessionEpoch", asked.session_epoch),
            ("run", asked.run),
            ("version", asked.version),
            ("ledger", asked.ledger),
        )
        for field, value in named:
            if value is not None:
                raise InputError(f"a begin with {field} names no session", field="session", hint="Name the session.")
        return None
    if asked.run is not None:
        return _name(asked, asked.session, asked.run)
    if asked.ledger is not None:
        raise InputError("a begin with a ledger names no run", field="run", hint="Name the run.")
    if asked.session_epoch is None:
        raise InputError(
            "a begin in a session tells the session's epoch, or a run",
            field="sessionEpoch",
            hint="Open the session first; the answer has its epoch. Or name the run and the version.",
        )
    return SessionBinding(asked.session, asked.session_epoch, asked.version)


def _name(asked: BeginRequest, session: str, run: str) -> WorkVersion:
    if asked.session_epoch is not None:
        raise InputError(
            "a begin tells the session's epoch or a run, and this one both", field="sessionEpoch", hint="Leave it out."
        )
    if asked.version is None:
        raise InputError(
            "a begin by the name of a run has no version",
            field="version",
            hint="Say which version of the session's work this is: those who say the same share the transaction.",
        )
    return WorkVersion(session, run, asked.version, asked.ledger)


async def _one_shot(request: Request, work: Work, owner: str) -> Answer:
    outcome = await request.services.transactions.one_shot(work, owner, request.client_id)
    return json_answer(outcome_info(request.services.ids, outcome))


Participant = OutsideParticipant | TopicParticipant

_ENDING = (TransactionNotFoundError, TransactionEndedError, TransactionConflictError)

OF_ALL = (
    Operation(
        method="POST",
        path=TRANSACTIONS_PATH,
        handler=begin,
        summary="Begin a transaction; or, given work, do it as a one-shot transaction",
        tag="transactions",
        body={JSON: (BeginRequest, OneShotRequest), AVRO: schemas.BINARY},
        answers={200: {JSON: (TransactionInfo, CommittedBefore, Outcome)}},
        errors=(
            InvalidNameError,
            TopicNotFoundError,
            SessionNotFoundError,
            TransactionConflictError,
            MarkerRefusedError,
            SessionFencedError,
            SessionForeignError,
            RequestReusedError,
            BusyError,
        ),
    ),
    Operation(
        method="GET",
        path=TRANSACTIONS_PATH,
        handler=show_all,
        summary="The transactions that have not ended",
        tag="transactions",
        answers={200: {JSON: TransactionList}},
    ),
)

OF_ONE = (
    Operation(
        method="GET",
        path=TRANSACTION_PATH,
        handler=show,
        summary="A transaction, or how it ended",
        tag="transactions",
        answers={200: {JSON: (TransactionInfo, Outcome)}},
        errors=(TransactionNotFoundError,),
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/commit",
        handler=commit,
        summary="Commit, and do the given work in the same moment",
        tag="transactions",
        body={JSON: schemas.WORK, AVRO: schemas.BINARY},
        answers={200: {JSON: Outcome}},
        errors=(*_ENDING, InvalidNameError, TopicNotFoundError, MarkerRefusedError, RequestReusedError),
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/abort",
        handler=abort,
        summary="Abort, and undo what it did to topics",
        tag="transactions",
        body=schemas.EMPTY_BODY,
        answers={200: {JSON: Outcome}},
        errors=_ENDING,
    ),
    Operation(
        method="POST",
        path=TRANSACTION_PATH + "/checkpoint",
        handler=checkpoint,
        summary="A further write pointer",
        tag="transactions",
        body={JSON: CheckpointRequest},
        answers={200: {JSON: TransactionInfo}},
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
