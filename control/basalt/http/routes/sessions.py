"""The calls on named sessions: open, list, show, delete. What they are for: docs/reference/http-api.md."""

from __future__ import annotations

from basalt.api.bodies.sessions import OpenedSession, OpenSession, SessionInfo, SessionList
from basalt.commits.sessions import SessionStanding
from basalt.errors import BusyError, InvalidNameError, SessionNotFoundError
from basalt.http.asgi.json_input import decode_json
from basalt.http.asgi.request_bodies import content_type, read_body, read_nothing
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.authors import AS, REASON, author_of, reason_of
from basalt.http.routes.operations import Operation

SESSIONS_PATH = "/v1/transactions/sessions"
SESSION_PATH = SESSIONS_PATH + "/{session}"


async def open_session(request: Request) -> Answer:
    """Let a run hold a session; it fences every other run."""
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), OpenSession)
    found = await request.services.transactions.sessions.open(request.path["session"], asked.run)
    return json_answer(OpenedSession(found.name, found.epoch, found.version))


async def show_all(request: Request) -> Answer:
    """List the sessions."""
    listed = await request.services.transactions.sessions.list()
    return json_answer(SessionList([_shown(request, standing) for standing in listed]))


async def show(request: Request) -> Answer:
    """Show a session."""
    return json_answer(_shown(request, await request.services.transactions.sessions.get(request.path["session"])))


async def delete(request: Request) -> Answer:
    """End a session's open transactions, and forget it."""
    await read_nothing(request)
    services, name = request.services, request.path["session"]
    await services.audit.act(
        "delete session", f"session {name}", author_of(request), reason_of(request), request.id,
        lambda: services.transactions.sessions.delete(name),
    )  # fmt: skip
    return Answer()


def _shown(request: Request, standing: SessionStanding) -> SessionInfo:
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


OPERATIONS = (
    Operation(
        method="GET",
        path=SESSIONS_PATH,
        handler=show_all,
        summary="The named sessions",
        tag="transactions",
        answers={200: {JSON: SessionList}},
    ),
    Operation(
        method="POST",
        path=SESSION_PATH,
        handler=open_session,
        summary="Let a run hold a session, and fence every other run",
        tag="transactions",
        body={JSON: OpenSession},
        body_required=True,
        answers={200: {JSON: OpenedSession}},
        errors=(InvalidNameError, BusyError),
    ),
    Operation(
        method="GET",
        path=SESSION_PATH,
        handler=show,
        summary="A session",
        tag="transactions",
        answers={200: {JSON: SessionInfo}},
        errors=(SessionNotFoundError,),
    ),
    Operation(
        method="DELETE",
        path=SESSION_PATH,
        handler=delete,
        summary="End a session's open transactions, and forget it",
        tag="transactions",
        query=(REASON, AS),
        errors=(SessionNotFoundError,),
    ),
)
