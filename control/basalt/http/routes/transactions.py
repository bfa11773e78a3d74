"""The calls on transactions: begin, one-shot, commit, abort, checkpoint, invalidate; and on the named sessions of jobs."""

from __future__ import annotations

from basalt.api.bodies.transactions import (
    BeginRequest,
    ChangesRequest,
    CheckpointRequest,
    CommittedBefore,
    Invalidated,
    OneShotRequest,
    OpenedSession,
    OpenSession,
    Outcome,
    OutsideParticipant,
    SessionInfo,
    SessionList,
    TopicParticipant,
    TransactionInfo,
    TransactionList,
)
from basalt.api.bodies.work import Work
from basalt.api.codecs import avro, json_bodies
from basalt.api.codecs.json_bodies import parse_json
from basalt.catalog.topics import topic_name
from basalt.commits.commit_stage import Beginning
from basalt.commits.sessions import SessionStanding
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
from basalt.http.asgi.request_bodies import (
    MESSAGE_TYPES,
    content_type,
    convert_json,
    read_body,
    read_json,
    read_no_members,
    read_nothing,
    read_optional_json,
)
from basalt.http.asgi.responses import AVRO, JSON, Response, json_response
from basalt.http.routes import schemas
from basalt.http.routes.operations import AS, REASON, Request, RouteTable, act_by
from basalt.operations.transaction_bodies import KINDS, committed_before, outcome_info, transaction_info
from basalt.transactions.rules.session_rules import WorkVersion
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import SessionBinding, Transaction

TRANSACTIONS_PATH = "/v1/transactions"
TRANSACTION_PATH = TRANSACTIONS_PATH + "/{transaction}"
SESSIONS_PATH = TRANSACTIONS_PATH + "/sessions"
SESSION_PATH = SESSIONS_PATH + "/{session}"

Participant = OutsideParticipant | TopicParticipant
_ENDING = (TransactionNotFoundError, TransactionEndedError, TransactionConflictError)

route = RouteTable("transactions")


@route(
    "POST",
    TRANSACTIONS_PATH,
    body={JSON: (BeginRequest, OneShotRequest), AVRO: schemas.BINARY},
    answer=(TransactionInfo, CommittedBefore, Outcome),
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
)
async def begin(request: Request) -> Response:
    """Begin a transaction; or, given work, do it as a one-shot transaction."""
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
        found = await request.services.sessions.begin_named(session, wished)
    else:
        found = await request.services.sessions.begin(session, wished)
    if isinstance(found, Session):
        return json_response(committed_before(request.services.ids, found))
    return json_response(_open(request, found, asked.snapshot))


@route("GET", TRANSACTIONS_PATH, answer=TransactionList)
async def show_all(request: Request) -> Response:
    """The transactions that have not ended."""
    listed = await request.services.transactions.list()
    return json_response(
        TransactionList([transaction_info(request.services.ids, transaction) for transaction in listed])
    )


# Before the calls on one transaction, of which "sessions" is no id.


@route("GET", SESSIONS_PATH, answer=SessionList)
async def sessions(request: Request) -> Response:
    """The named sessions."""
    listed = await request.services.sessions.list()
    return json_response(SessionList([_session_info(request, standing) for standing in listed]))


@route("POST", SESSION_PATH, body=OpenSession, answer=OpenedSession, errors=(InvalidNameError, BusyError))
async def open_session(request: Request) -> Response:
    """Let a run hold a session, and fence every other run."""
    asked = await read_json(request, OpenSession)
    found = await request.services.sessions.open(request.path["session"], asked.run)
    return json_response(OpenedSession(found.name, found.epoch, found.version))


@route("GET", SESSION_PATH, answer=SessionInfo, errors=(SessionNotFoundError,))
async def session(request: Request) -> Response:
    """A session."""
    return json_response(_session_info(request, await request.services.sessions.get(request.path["session"])))


@route("DELETE", SESSION_PATH, query=(REASON, AS), errors=(SessionNotFoundError,))
async def delete_session(request: Request) -> Response:
    """End a session's open transactions, and forget it."""
    await read_nothing(request)
    services, name = request.services, request.path["session"]
    await services.audit.act(
        "delete session", f"session {name}", *act_by(request), lambda: services.sessions.delete(name)
    )
    return Response()


@route("GET", TRANSACTION_PATH, answer=(TransactionInfo, Outcome), errors=(TransactionNotFoundError,))
async def show(request: Request) -> Response:
    """A transaction, or how it ended."""
    ids = request.services.ids
    found = await request.services.transactions.find(id_of(request))
    return json_response(transaction_info(ids, found) if isinstance(found, Transaction) else outcome_info(ids, found))


@route(
    "POST",
    TRANSACTION_PATH + "/commit",
    body={JSON: schemas.WORK, AVRO: schemas.BINARY},
    answer=Outcome,
    errors=(*_ENDING, InvalidNameError, TopicNotFoundError, MarkerRefusedError, RequestReusedError),
)
async def commit(request: Request) -> Response:
    """Commit, and do the given work in the same moment."""
    transaction_id = id_of(request)
    media_type = content_type(request, MESSAGE_TYPES)
    body = await read_body(request)
    work = None if not body else avro.decode_work(body) if media_type == AVRO else json_bodies.decode_work(body)
    outcome = await request.services.transactions.commit(transaction_id, work, request.client_id)
    return json_response(outcome_info(request.services.ids, outcome))


@route("POST", TRANSACTION_PATH + "/abort", body=schemas.EMPTY_BODY, answer=Outcome, errors=_ENDING)
async def abort(request: Request) -> Response:
    """Abort, and undo what it did to topics."""
    transaction_id = id_of(request)
    await read_no_members(request)
    return json_response(outcome_info(request.services.ids, await request.services.transactions.abort(transaction_id)))


@route("POST", TRANSACTION_PATH + "/invalidate", body=schemas.EMPTY_BODY, answer=Invalidated, errors=_ENDING)
async def invalidate(request: Request) -> Response:
    """Put its writers on the invalid list."""
    transaction_id = id_of(request)
    await read_no_members(request)
    return json_response(Invalidated(await request.services.transactions.invalidate(transaction_id)))


@route("POST", TRANSACTION_PATH + "/checkpoint", body={JSON: CheckpointRequest}, answer=TransactionInfo, errors=_ENDING)
async def checkpoint(request: Request) -> Response:
    """A further write pointer."""
    transaction_id = id_of(request)
    asked = await read_optional_json(request, CheckpointRequest)
    transaction = await request.services.transactions.checkpoint(transaction_id)
    return json_response(_open(request, transaction, asked.snapshot))


@route("POST", TRANSACTION_PATH + "/changes", body=ChangesRequest, errors=_ENDING)
async def set_changes(request: Request) -> Response:
    """Tell its change set, and learn of a conflict."""
    transaction_id = id_of(request)
    asked = await read_json(request, ChangesRequest)
    await request.services.transactions.set_changes(transaction_id, asked.changes, outside=asked.outside_writes)
    return Response()


@route(
    "POST",
    TRANSACTION_PATH + "/participants",
    body=Participant,
    errors=(*_ENDING, InvalidNameError, TopicNotFoundError),
)
async def take_part(request: Request) -> Response:
    """Register a participant."""
    transaction_id = id_of(request)
    # msgspec takes unions, `type[T]` does not
    asked: Participant = await read_json(request, Participant)  # type: ignore[arg-type]
    if isinstance(asked, TopicParticipant):
        await request.services.join_topic(transaction_id, topic_name(asked.namespace, asked.topic))
    else:
        await request.services.transactions.mark_outside(transaction_id, asked.name)
    return Response()


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


async def _one_shot(request: Request, work: Work, owner: str) -> Response:
    outcome = await request.services.transactions.one_shot(work, owner, request.client_id)
    return json_response(outcome_info(request.services.ids, outcome))


def _session_info(request: Request, standing: SessionStanding) -> SessionInfo:
    session, text = standing.session, request.services.ids.text
    return SessionInfo(
        name=session.name,
        run=session.run,
        epoch=session.epoch,
        version=session.version,
        committed_by=text(session.committed_by) if session.committed_by else None,
        used_ms=session.used_ms,
        transactions=tuple(text(transaction.id) for transaction in standing.transactions),
        ledger=session.counter_owner,
        replaced=tuple(session.replaced),
    )
