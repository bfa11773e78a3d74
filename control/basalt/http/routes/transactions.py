"""The calls on transactions: begin, one-shot, commit, abort, checkpoint, invalidate; on the named sessions of jobs; and those
of operators: which transactions there are, what they hold back, what happened; end them by hand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import islice

from basalt import errors
from basalt.access import ownership, resources
from basalt.access.needs import acting_on_transaction, needs
from basalt.access.principal import ANONYMOUS
from basalt.access.quotas import OPEN_TRANSACTIONS, PUBLISH_BYTES, SESSIONS
from basalt.api.bodies import transactions as bodies
from basalt.api.bodies.messages import LONG_MAX, Work
from basalt.api.bodies.transactions import OpenedSession, OpenSession, SessionInfo, SessionList
from basalt.api.codecs import avro, json_bodies
from basalt.api.codecs.json_bodies import parse_json
from basalt.catalog.topics import topic_name
from basalt.commits.commit_stage import Beginning
from basalt.commits.coordinator import SessionStanding
from basalt.http.asgi.requests import AVRO, JSON, convert_json
from basalt.http.asgi.responses import Response, json_response
from basalt.http.routes import schemas
from basalt.http.routes.route_table import (
    ADMIN_PATH,
    AS,
    CLUSTER,
    DRY_RUN,
    MS_MAX,
    REASON,
    WORK_NEEDS,
    Request,
    RouteTable,
    WaiterOf,
    choice,
    flag,
    integer,
    text_query,
    words,
)
from basalt.operations.inspection import CALL_ROWS_MAX, SHARES, STATES, Filter, transaction_fields
from basalt.transactions.rules import outcomes
from basalt.transactions.rules.sessions import SessionState, WorkVersion
from basalt.transactions.rules.transaction import Kind, SessionBinding, State, Transaction
from basalt_engine.keys import NAME_EXPRESSION

TRANSACTIONS_PATH = "/v1/transactions"
TRANSACTION_PATH = TRANSACTIONS_PATH + "/{transaction}"
SESSIONS_PATH = TRANSACTIONS_PATH + "/sessions"
SESSION_PATH = SESSIONS_PATH + "/{session}"

OPERATORS_PATH = ADMIN_PATH + "/transactions"
OPERATORS_ONE = OPERATORS_PATH + "/{transaction}"

SESSION = "session:{session}"
PAGE_MAX = 10_000  # entries of one page; some 5 MB of JSON
ACTS = acting_on_transaction("transact")
LOOKS = acting_on_transaction("observe")

_STATE = choice("state", tuple(STATES), "only those in this state")
_OWNER = text_query("owner", "only those of this owner")
_PRINCIPAL = text_query("principal", "only those that this principal began, such as token:etl, or anonymous")
_OLDER = integer("olderThanMs", 0, MS_MAX, "only those that are open longer than this")
_HANGS = integer("olderThanMs", 0, MS_MAX, "what counts as long; half of its own time-out when it is left out")
_TOPIC = words("topic", f"^{NAME_EXPRESSION}:{NAME_EXPRESSION}$", "only those that write to it, as namespace:topic")
_LIMIT = integer("limit", 1, PAGE_MAX, "most to answer; all when it is left out")
_AT_MOST = integer("limit", 1, PAGE_MAX, f"most to answer; {PAGE_MAX:,} when it is left out")
_ROWS = integer(
    "rows",
    SHARES,
    CALL_ROWS_MAX,
    f"most rows to read for it, and a tenth of them for one transaction; {CALL_ROWS_MAX:,} when it is left out",
)
_AFTER = text_query("after", "go on behind this one: `next` of the page before")
_FORCE = flag("force", "abort it though it has writes outside Basalt: they have been undone")
_WITH_SNAPSHOT = bodies.CheckpointRequest()
_ENDING = (
    errors.TransactionNotFoundError,
    errors.TransactionEndedError,
    errors.SessionFencedError,
    errors.TransactionConflictError,
)

route = RouteTable("transactions")
operators = RouteTable("admin")


def submit_one_shot(request: Request, body: bytes, waiter_of: WaiterOf) -> bool:
    """Submit a one-shot transaction as Avro."""
    if request.plain_type != AVRO:
        return False
    waiter = waiter_of(lambda outcome: json_response(_outcome(request, outcome)))
    work = avro.decode_work(body)
    _judge_one_shot(request, work)
    return request.services.transactions.submit_one_shot(waiter, work, "", request.once_id, request.principal)


@route(
    "POST",
    TRANSACTIONS_PATH,
    needs(in_body=("transact cluster", "transact session", *WORK_NEEDS)),
    body={JSON: (bodies.BeginRequest, bodies.OneShotRequest), AVRO: schemas.BINARY},
    answer=(bodies.TransactionInfo, bodies.CommittedBefore, bodies.TransactionOutcome),
    errors=(
        errors.InvalidNameError,
        errors.TopicNotFoundError,
        errors.SessionNotFoundError,
        errors.TransactionConflictError,
        errors.TopicEndedError,
        errors.MarkerRefusedError,
        errors.SessionFencedError,
        errors.SessionForeignError,
        errors.RequestReusedError,
        errors.BusyError,
    ),
    submit=submit_one_shot,
    meters=(PUBLISH_BYTES,),
)
async def begin(request: Request) -> Response:
    """Begin a transaction; or, given work, do it as a one-shot transaction."""
    media_type = request.content_type((AVRO, JSON))
    body = await request.body()
    if media_type == AVRO:
        return await _one_shot(request, avro.decode_work(body), "")
    value = parse_json(body) if body else {}
    if isinstance(value, dict) and "work" in value:
        wanted: bodies.OneShotRequest = convert_json(value, bodies.OneShotRequest)
        return await _one_shot(request, json_bodies.read_work(wanted.work), wanted.owner)
    asked: bodies.BeginRequest = convert_json(value, bodies.BeginRequest)
    if asked.session is not None or request.limits(OPEN_TRANSACTIONS):  # only the leader knows all of what there is
        request.services.transactions.check_leads()
    wished = Beginning(
        Kind[asked.kind.upper()], asked.timeout_ms, asked.owner, asked.external_writes, request.once_id,
        request.principal,
    )  # fmt: skip
    request.caller.must("transact", resources.CLUSTER if asked.session is None else resources.session(asked.session))
    session, services = _session(asked), request.services
    begun: Transaction | SessionState
    if isinstance(session, WorkVersion):
        with _one_more_session(request, session.session), _one_more_transaction(request, session.session):
            begun = await services.transactions.sessions.begin_named(session, wished)
    else:
        with _one_more_transaction(request):
            begun = (
                await services.transactions.begin(*wished)
                if session is None
                else await services.transactions.sessions.begin(session, wished)
            )
    if isinstance(begun, Transaction):
        request.writer = begun.id
        return json_response(_open(request, begun, asked.snapshot))
    assert begun.version is not None, "something was committed"
    committed_by = services.ids.text(
        begun.committed_by
    )  # of the newest version, which covers the one that was to begin
    return json_response(
        bodies.CommittedBefore(None, None, State.COMMITTED.name, begun.name, begun.version, committed_by)
    )


def _one_more_transaction(request: Request, joins: str | None = None) -> AbstractContextManager[None]:
    """Hold a place among the caller's open transactions; not for a begin that is sent again, or that joins one of a named session."""
    if not request.limits(OPEN_TRANSACTIONS):
        return nullcontext()
    state = request.services.transactions.state
    is_known = request.once_id is not None and state.requests.get(request.once_id) is not None
    if is_known or (joins is not None and state.session_table.open_in(joins)):
        return nullcontext()
    return request.one_more(OPEN_TRANSACTIONS, state.open_of[request.principal])


def _one_more_session(request: Request, name: str) -> AbstractContextManager[None]:
    """Hold a place among the caller's sessions; not where it has this one."""
    if not request.limits(SESSIONS):
        return nullcontext()
    table = request.services.transactions.state.session_table
    known = table.get(name)
    if known is not None and known.principal == request.principal:
        return nullcontext()
    return request.one_more(SESSIONS, table.held[request.principal])


@route("GET", TRANSACTIONS_PATH, needs(filters="observe transactions"))
async def show_all(request: Request) -> bodies.TransactionList:
    """The transactions that have not ended."""
    listed = await request.services.transactions.list()
    seen = (transaction for transaction in listed if request.sees(transaction.belonging))
    return bodies.TransactionList([_open(request, transaction, False) for transaction in seen])


# Before the calls on one transaction, of which "sessions" is no id.


@route("GET", SESSIONS_PATH, needs(filters="observe session"), query=(_AFTER, _LIMIT))
async def sessions(request: Request) -> SessionList:
    """The named sessions."""
    after, limit, may = request.text("after") or "", request.integer("limit"), request.caller.may
    listed = await request.services.transactions.sessions.list(after)
    seen = (standing for standing in listed if may("observe", resources.session(standing.session.name)))
    page = [_session_info(request, standing) for standing in islice(seen, limit)]
    return SessionList(page, page[-1].name if page and next(seen, None) is not None else None)


@route("POST", SESSION_PATH, needs("transact", SESSION), errors=(errors.InvalidNameError, errors.BusyError))
async def open_session(request: Request, asked: OpenSession) -> OpenedSession:
    """Let a run hold a session, and fence every other run."""
    name = request.path["session"]
    with _one_more_session(request, name):
        opened = await request.services.transactions.sessions.open(name, asked.run, request.principal)
    return OpenedSession(opened.name, opened.epoch, opened.version)


@route("GET", SESSION_PATH, needs("observe", SESSION), errors=(errors.SessionNotFoundError,))
async def session(request: Request) -> SessionInfo:
    """A session."""
    return _session_info(request, await request.services.transactions.sessions.get(request.path["session"]))


@route(
    "DELETE", SESSION_PATH, needs("manage", SESSION), query=(REASON, AS, DRY_RUN), errors=(errors.SessionNotFoundError,)
)
async def delete_session(request: Request) -> bodies.DeletedSession:
    """End a session's open transactions, and forget it."""
    services, name, dry_run = request.services, request.path["session"], request.flag("dryRun")
    sessions = services.transactions.sessions

    async def delete() -> SessionStanding:
        standing = await sessions.get(name)
        await sessions.delete(name)
        return standing

    standing = (
        await sessions.get(name)
        if dry_run
        else await services.audit.act("delete session", f"session {name}", *request.act, delete, lambda _: "done")
    )
    known = _session_info(request, standing)
    return bodies.DeletedSession(known.name, known.run, known.version, known.transactions, dry_run)


@route("GET", TRANSACTION_PATH, LOOKS, errors=(errors.TransactionNotFoundError,))
async def show(request: Request) -> bodies.TransactionInfo | bodies.TransactionOutcome:
    """A transaction, or how it ended."""
    found = await request.services.transactions.find(request.transaction_id)
    return _open(request, found, False) if isinstance(found, Transaction) else _outcome(request, found)


def submit_commit(request: Request, body: bytes, _: WaiterOf) -> bool:
    """Nothing is submitted: where another server leads, a commit that is not for this one is found out before anything is charged."""
    transactions = request.services.transactions
    if not transactions.manager.follows:
        return False
    try:
        request.work = _read_work(request.plain_type, body)
        transactions.check_commits_here(request.work)
        request.write_pointer_of(request.path["transaction"], "id")
    except errors.BasaltError as error:
        raise errors.NotHereError from error
    return False


def _read_work(media_type: bytes | None, body: bytes) -> Work | None:
    """The work in a commit's body, None where it has none. `NotHereError` for one that only the handler can read."""
    if not body:
        return None
    if media_type == AVRO:
        return avro.decode_work(body)
    if media_type == JSON:
        return json_bodies.decode_work(body)
    raise errors.NotHereError


@route(
    "POST",
    TRANSACTION_PATH + "/commit",
    acting_on_transaction("transact", in_body=("write table", *WORK_NEEDS)),
    body={JSON: schemas.WORK, AVRO: schemas.BINARY},
    errors=(
        *_ENDING,
        errors.InvalidNameError,
        errors.TopicNotFoundError,
        errors.TopicEndedError,
        errors.MarkerRefusedError,
        errors.RequestReusedError,
    ),
    submit=submit_commit,
    meters=(PUBLISH_BYTES,),
)
async def commit(request: Request) -> bodies.TransactionOutcome:
    """Commit, and do the given work in the same moment."""
    transaction_id = request.transaction_id
    media_type = request.content_type((AVRO, JSON))
    body = await request.body()
    work = request.work or _read_work(media_type, body)
    if work is not None:
        request.must_do(work)
    transactions = request.services.transactions
    guard = ownership.commit_guard(request.caller, transactions)
    return _outcome(request, await transactions.commit(transaction_id, work, request.once_id, guard=guard))


@route("POST", TRANSACTION_PATH + "/abort", ACTS, errors=_ENDING)
async def abort(request: Request) -> bodies.TransactionOutcome:
    """Abort, and undo what it did to topics."""
    return _outcome(request, await request.services.transactions.abort(request.transaction_id))


@route("POST", TRANSACTION_PATH + "/invalidate", ACTS, errors=_ENDING)
async def invalidate(request: Request) -> bodies.InvalidateResponse:
    """Put its writers on the invalid list."""
    return bodies.InvalidateResponse(await request.services.transactions.invalidate(request.transaction_id))


@route("POST", TRANSACTION_PATH + "/checkpoint", ACTS, errors=_ENDING)
async def checkpoint(request: Request, asked: bodies.CheckpointRequest = _WITH_SNAPSHOT) -> bodies.TransactionInfo:
    """A further write pointer."""
    transaction = await request.services.transactions.checkpoint(request.transaction_id)
    return _open(request, transaction, asked.snapshot)


@route("POST", TRANSACTION_PATH + "/changes", ACTS, errors=_ENDING, meters=(PUBLISH_BYTES,))
async def set_changes(request: Request, asked: bodies.ChangesRequest) -> None:
    """Tell its change set, and learn of a conflict."""
    transactions = request.services.transactions
    await transactions.set_changes(request.transaction_id, asked.changes, external_writes=asked.external_writes)


@route(
    "POST",
    TRANSACTION_PATH + "/participants",
    acting_on_transaction("transact", in_body=("write topic",)),
    errors=(*_ENDING, errors.InvalidNameError, errors.TopicNotFoundError),
)
async def take_part(
    request: Request, asked: bodies.ExternalParticipantRequest | bodies.TopicParticipantRequest
) -> None:
    """Register a participant."""
    transaction_id = request.transaction_id
    if isinstance(asked, bodies.TopicParticipantRequest):
        request.caller.must("write", resources.topic(asked.namespace, asked.topic))
        await request.services.join_topic(transaction_id, topic_name(asked.namespace, asked.topic))
    else:
        await request.services.transactions.mark_external_writes(transaction_id, asked.name)


@route("GET", TRANSACTION_PATH + "/timeline", LOOKS, errors=(errors.TransactionNotFoundError,))
async def timeline(request: Request) -> bodies.Timeline:
    """List the steps of a transaction."""
    return await request.services.inspection.timeline(request.transaction_id, request.sees)


@operators(
    "GET", OPERATORS_PATH, needs("observe", CLUSTER), query=(_STATE, _OWNER, _PRINCIPAL, _OLDER, _TOPIC, _AFTER, _LIMIT)
)
async def inspect_all(request: Request) -> bodies.InspectedList:
    """Transactions that have not ended, as operators see them."""
    after = request.text("after")
    behind = 0 if after is None else request.write_pointer_of(after, "after")
    return await request.services.inspection.list(
        _filter(request), request.sees, after=behind, limit=request.integer("limit")
    )


@operators(
    "GET",
    OPERATORS_PATH + "/hanging",
    needs("observe", CLUSTER),
    query=(_STATE, _OWNER, _PRINCIPAL, _HANGS, _TOPIC, _LIMIT, _ROWS),
)
async def hanging(request: Request) -> bodies.HangingList:
    """Transactions that hold readers back or take long, worst first."""
    limit, rows = request.integer("limit"), request.integer("rows")
    return await request.services.inspection.hanging(_filter(request), request.sees, limit=limit, rows=rows)


@operators(
    "GET", OPERATORS_PATH + "/invalid", needs("observe", CLUSTER),
    query=(integer("after", 0, LONG_MAX, "go on behind this write pointer: `next` of the page before"), _AT_MOST),
)  # fmt: skip
async def invalid(request: Request) -> bodies.FailedWriters:
    """The invalid list: failed writers whose writes are hidden until they are pruned; a page of them."""
    after, limit = request.integer("after") or 0, request.integer("limit") or PAGE_MAX
    await request.services.transactions.manager.ensure_known()
    return await request.services.inspection.invalid(request.sees, after, limit)


@operators("GET", OPERATORS_ONE, needs("observe", CLUSTER), errors=(errors.TransactionNotFoundError,))
async def describe(request: Request) -> bodies.TransactionDescription | bodies.EndDescription:
    """All there is to know of a transaction."""
    return await request.services.inspection.describe(request.transaction_id, request.sees)


@operators(
    "POST",
    OPERATORS_ONE + "/abort",
    needs("operate", CLUSTER),
    query=(REASON, AS, _FORCE, DRY_RUN),
    errors=(
        errors.TransactionNotFoundError,
        errors.TransactionEndedError,
        errors.ExternalWritesError,
        errors.ConflictError,
    ),
)
async def force_abort(request: Request) -> bodies.ForcedEnd:
    """Abort a transaction by hand."""
    force, dry_run = request.flag("force"), request.flag("dryRun")
    return await request.services.forced_ends.abort(
        request.transaction_id, request.act, request.sees, force=force, dry_run=dry_run
    )


@operators(
    "POST",
    OPERATORS_ONE + "/invalidate",
    needs("operate", CLUSTER),
    query=(REASON, AS, DRY_RUN),
    errors=(errors.TransactionNotFoundError, errors.TransactionEndedError),
)
async def force_invalidate(request: Request) -> bodies.ForcedEnd:
    """Invalidate a transaction by hand."""
    forced_ends = request.services.forced_ends
    return await forced_ends.invalidate(
        request.transaction_id, request.act, request.sees, dry_run=request.flag("dryRun")
    )


def _filter(request: Request) -> Filter:
    return Filter(
        request.text("state"), request.text("owner"), request.integer("olderThanMs"), request.text("topic"), request.text("principal")
    )  # fmt: skip


def _open(request: Request, transaction: Transaction, with_snapshot: bool) -> bodies.TransactionInfo:
    """An open transaction; with its snapshot, for who goes on with it."""
    encoded = request.snapshots.encode(transaction) if with_snapshot else None
    return bodies.TransactionInfo(**transaction_fields(request.services.ids, transaction), transaction=encoded)


def _outcome(request: Request, outcome: outcomes.Outcome) -> bodies.TransactionOutcome:
    return bodies.TransactionOutcome(request.services.ids.text(outcome.id), outcome.write_pointer, outcome.state.name)


def _session(asked: bodies.BeginRequest) -> SessionBinding | WorkVersion | None:
    """The session that a begin names with its epoch, or with its run, or with neither."""
    if asked.session is None:
        named = {
            "sessionEpoch": asked.session_epoch, "run": asked.run, "version": asked.version, "counterOwner": asked.counter_owner
        }  # fmt: skip
        if stray := next((field for field, value in named.items() if value is not None), None):
            raise errors.InputError(f"a begin with {stray} names no session", field="session", hint="Name the session.")
        return None
    if asked.run is None:
        if asked.counter_owner is not None:
            raise errors.InputError("a begin with a counter owner names no run", field="run", hint="Name the run.")
        if asked.session_epoch is None:
            raise errors.InputError(
                "a begin in a session tells the session's epoch, or a run",
                field="sessionEpoch",
                hint="Open the session first; the answer has its epoch. Or name the run and the version.",
            )
        return SessionBinding(asked.session, asked.session_epoch, asked.version)
    if asked.session_epoch is not None:
        raise errors.InputError(
            "a begin tells the session's epoch or a run, and this one both", field="sessionEpoch", hint="Leave it out."
        )
    if asked.version is None:
        raise errors.InputError(
            "a begin by the name of a run has no version",
            field="version",
            hint="Say which version of the session's work this is: those who say the same share the transaction.",
        )
    return WorkVersion(asked.session, asked.run, asked.version, asked.counter_owner)


def _judge_one_shot(request: Request, work: Work) -> None:
    request.caller.must("transact", resources.CLUSTER)
    request.must_do(work)


async def _one_shot(request: Request, work: Work, owner: str) -> Response:
    _judge_one_shot(request, work)
    return json_response(
        _outcome(
            request, await request.services.transactions.one_shot(work, owner, request.once_id, None, request.principal)
        )
    )


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
        counter_owner=session.counter_owner,
        replaced=tuple(session.replaced),
        principal=session.principal or str(ANONYMOUS),
    )
