"""Plans for transactions: begin, show, end, and the one-shot kind; and for named sessions. Routes: docs/reference/http-api.md.

Of all runs of a job only the newest may write in its session, and work that has a version is committed once. A run opens the
session, which fences every run before it, and begins its transactions in it. Several processes of one run share a named
transaction: each begins it by session, run and version, and gets the same one. Each stores under segments of its own, and one
of them, which knows which segments count, commits these by the transaction's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import uuid4

from msgspec import Struct, ValidationError

from basalt.api.bodies import json
from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, Work, WorkAcknowledge, WorkMarker, WorkPublish
from basalt.api.bodies.transactions import (
    BeginRequest,
    ChangesRequest,
    CheckpointRequest,
    CommittedBefore,
    DeletedSession,
    ExternalParticipantRequest,
    InvalidateResponse,
    OpenedSession,
    OpenSession,
    SessionInfo,
    SessionList,
    Timeline,
    TransactionInfo,
    TransactionKind,
    TransactionList,
    TransactionOutcome,
)
from basalt.api.codecs import avro, json_bodies
from basalt.api.markers import Marker
from basalt.client.calls.payloads import BODY_BYTES_MAX, Outgoing, are_plain, as_records, size_bytes
from basalt.client.plans import (
    AVRO,
    JSON,
    Answer,
    Call,
    ClientScope,
    Effect,
    Steps,
    act_of,
    ask,
    get_json,
    id_of,
    joined_path,
    json_of,
    nothing,
    query_of,
    send_json,
)
from basalt.client.servers import topics_of
from basalt.errors import TooLargeError, TransactionEndedError

TopicTitle: TypeAlias = str | tuple[str, str]  # a topic of the client's namespace, or (namespace, topic)

_BEGAN_UNHEARD = "Begin again; one that has begun unheard is ended by its time-out."


class SessionScope(Struct, frozen=True):
    """A session that this run has opened. `version` is the newest that was committed by then; None: none was."""

    client: ClientScope
    name: str
    run: str
    epoch: int
    version: int | None


class NamedTransactionScope(Struct, frozen=True):
    """A named transaction: what was asked for, and what was begun or joined, unless its version was committed before."""

    request: BeginRequest
    begun: TransactionInfo | CommittedBefore

    def described(self) -> TransactionInfo:
        """The transaction that was begun or joined; `TransactionEndedError` when its version was committed before."""
        if isinstance(self.begun, TransactionInfo):
            return self.begun
        raise TransactionEndedError(
            f"version {self.request.version} of session {self.request.session!r} was committed before, by transaction"
            f" {self.begun.committed_by}",
            hint="Leave this work out: ask committed_before first.",
        )


def begin(
    scope: ClientScope,
    *,
    kind: TransactionKind = "short",
    timeout_ms: int | None = None,
    owner: str = "",
    external_writes: bool = False,
    snapshot: bool = True,
) -> Steps[TransactionInfo]:
    """Begin a transaction; the caller has to end it. `client.transaction()` does both.

    After `timeout_ms` (None: the server's default) it is aborted, or becomes invalid if it has `external_writes`, which
    nobody but its writer can undo. `snapshot=False` leaves the snapshot's bytes out of the answer.
    """
    body = BeginRequest(kind, timeout_ms, owner, external_writes, snapshot)
    parse = json_of(TransactionInfo)
    return send_json("POST", "begin a transaction", _path(), parse, body=body, lost_hint=_BEGAN_UNHEARD)


def begin_as(body: BeginRequest) -> Steps[TransactionInfo | CommittedBefore]:
    """Begin what is asked for. `CommittedBefore`: the session has committed this version of its work, so nothing was begun."""
    what, hint = "begin a transaction", _BEGAN_UNHEARD
    if body.run is not None:
        # A second begin joins the first.
        return send_json("POST", f"begin version {body.version} of session {body.session}", _path(), _begun, body=body)
    if body.session is not None:
        what = f"begin a transaction in session {body.session}"
    return send_json("POST", what, _path(), _begun, body=body, lost_hint=hint)


def get(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[TransactionInfo]:
    """A transaction, open or ended and still remembered. `TransactionNotFoundError` when it is neither."""
    return get_json(TransactionInfo, f"get transaction {id_of(transaction)}", _path(transaction))


def open_ones(scope: ClientScope) -> Steps[list[TransactionInfo]]:
    """The transactions that are open now."""
    return ask(Call("list transactions", "GET", _path(), _open_ones, Effect.NONE))


def timeline(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[Timeline]:
    """The steps of a transaction, as far as they are still known."""
    what = f"get the timeline of transaction {id_of(transaction)}"
    return get_json(Timeline, what, _path(transaction, "timeline"))


def commit(
    scope: ClientScope, transaction: TransactionInfo | str, work: Work | None = None
) -> Steps[TransactionOutcome]:
    """Commit, and publish what was stored under it and what `work` holds, in all topics or in none.

    `TransactionConflictError`: begin again. A lost answer is asked for again, and the outcome is the first one's.
    """
    body = b"" if work is None else avro.encode_work(work)
    return _commit(transaction, f"commit transaction {id_of(transaction)}", work, body)


def commit_segments(
    scope: ClientScope,
    transaction: TransactionInfo | str,
    segments: Sequence[int],
    markers: Sequence[WorkMarker] = (),
    acknowledge: Sequence[WorkAcknowledge] = (),
) -> Steps[TransactionOutcome]:
    """Commit what was stored under these write pointers of the transaction, in this order, and drop all else it stored.

    Each is one that its begin or a checkpoint answered; without any, nothing stored is published. `markers` come behind the
    messages; what `acknowledge` names is acknowledged in the same decision. A second commit, whatever its segments, answers the first one's outcome.
    """
    work = Work(markers=markers, segments=tuple(segments), acknowledge=acknowledge)
    what = f"commit segments of transaction {id_of(transaction)}"
    return _commit(transaction, what, work, json_bodies.encode_work(work), JSON)


def ask_its_state(transaction: TransactionInfo | str) -> str:
    """The hint for a caller that cannot know whether it was committed."""
    return f"Ask client.transactions.get({id_of(transaction)!r}).state before doing the work again."


def abort(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[TransactionOutcome]:
    """Abort: nothing of it will be seen by those who read committed messages. Repeating it is no error."""
    what = f"abort transaction {id_of(transaction)}"
    return send_json("POST", what, _path(transaction, "abort"), json_of(TransactionOutcome))


def invalidate(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[bool]:
    """Hide all it wrote for good, when its writes cannot be undone. False: it was hidden before."""
    return hide(transaction, Effect.ONCE)


def hide(transaction: TransactionInfo | str, effect: Effect = Effect.REPEATABLE) -> Steps[bool]:
    """Invalidate it. That is idempotent, and so may be sent again where the answer to it does not matter."""
    what, path = f"invalidate transaction {id_of(transaction)}", _path(transaction, "invalidate")
    return send_json("POST", what, path, _invalidated, effect)


def take_part(scope: ClientScope, transaction: TransactionInfo | str, name: str) -> Steps[None]:
    """Tell that a store of this name, outside Basalt, takes part in an open transaction."""
    what, path = f"add a participant to transaction {id_of(transaction)}", _path(transaction, "participants")
    return send_json("POST", what, path, nothing, body=ExternalParticipantRequest(name))


def checkpoint(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[TransactionInfo]:
    """A further write pointer for an open transaction, under the same snapshot."""
    what, path = f"checkpoint transaction {id_of(transaction)}", _path(transaction, "checkpoint")
    return send_json("POST", what, path, json_of(TransactionInfo))


def changes(
    scope: ClientScope, transaction: TransactionInfo | str, changed: Iterable[bytes], *, external_writes: bool = True
) -> Steps[None]:
    """Tell what it changes, as opaque keys, all of them at once: a second set replaces the first.

    Of two open transactions that have a key in common the second to commit fails (`TransactionConflictError`).
    `external_writes=False`: none of the keys stands for a write elsewhere than in Basalt.
    """
    what, path = f"send the changes of transaction {id_of(transaction)}", _path(transaction, "changes")
    return send_json("POST", what, path, nothing, body=ChangesRequest(list(changed), external_writes))


def one_shot(work: Work, what: str, hint: str | None = None) -> Steps[TransactionOutcome]:
    """Do the work in a transaction that begins, does it and commits at once."""
    _check_size(
        sum(len(entry.messages) + len(entry.records) for entry in work.publish), PUBLISH_MESSAGES_MAX, "messages"
    )
    body = avro.encode_work(work)
    _check_size(len(body), BODY_BYTES_MAX, "bytes")
    parse, topics = json_of(TransactionOutcome), topics_of(work, len(body))
    return (
        yield from ask(
            Call(
                what, "POST", _path(), parse, Effect.REPEATABLE, body=body, content_type=AVRO, lost_hint=hint,
                topics=topics,
            )
        )
    )  # fmt: skip


class UnsentWork:
    """Messages, and markers behind them, that wait for one decision: by topic, in the order in which they were given."""

    def __init__(self, namespace: str) -> None:
        self.runs: dict[tuple[str, str], list[Outgoing]] = {}
        self.messages = 0
        self.bytes = 0
        self._namespace = namespace
        self._markers: list[WorkMarker] = []

    def title(self, topic: str, namespace: str | None) -> tuple[str, str]:
        """The namespace and name of a topic that is named here."""
        return (namespace or self._namespace, topic)

    def add(self, title: tuple[str, str], message: Outgoing) -> None:
        """Take a message."""
        self.runs.setdefault(title, []).append(message)
        self.messages += 1
        self.bytes += size_bytes(message)

    def mark(self, topic: str, namespace: str | None, marker: Marker) -> None:
        """Take a marker."""
        title = self.title(topic, namespace)
        self._markers.append(WorkMarker(*title, marker.task, marker.task_count, marker.kind, marker.event_time_ms))

    def take(self, title: tuple[str, str]) -> list[Outgoing]:
        """Give the messages of a topic away."""
        run = self.runs.pop(title, [])
        self.messages -= len(run)
        self.bytes -= sum(map(size_bytes, run))
        return run

    def forget(self) -> None:
        """Drop all of it."""
        self.runs.clear()
        self._markers.clear()
        self.messages = self.bytes = 0

    def work(self, acknowledge: Iterable[WorkAcknowledge]) -> Work | None:
        """The work that does all of it, and acknowledges; None for none."""
        return work_of(self.runs, self._markers, acknowledge)


def work_of(
    buffered: Mapping[tuple[str, str], list[Outgoing]],
    markers: Sequence[WorkMarker] = (),
    acknowledge: Iterable[WorkAcknowledge] = (),
) -> Work | None:
    """The work that publishes these messages, and markers behind them, and acknowledges; None for none."""
    publish = [
        WorkPublish(*title, messages=run) if are_plain(run) else WorkPublish(*title, records=as_records(run))
        for title, run in buffered.items()
        if run
    ]
    acknowledged = list(acknowledge)
    if not (publish or markers or acknowledged):
        return None
    return Work(publish=publish, markers=list(markers), acknowledge=acknowledged)


def open_session(scope: ClientScope, name: str, *, run: str | None = None) -> Steps[SessionScope]:
    """Open a named session, and fence every run that has it open, but for the same `run` (None: a run of its own).

    The same run may open it again, in another process too.
    """
    run = run or uuid4().hex
    parse = json_of(OpenedSession)
    opened = yield from send_json("POST", f"open session {name}", _session_path(name), parse, body=OpenSession(run))
    return SessionScope(scope, opened.name, run, opened.epoch, opened.version)


def get_session(scope: ClientScope, name: str) -> Steps[SessionInfo]:
    """A session. `SessionNotFoundError` when there is none of the name."""
    return get_json(SessionInfo, f"get session {name}", _session_path(name))


def list_sessions(
    scope: ClientScope, *, after: str | None = None, limit: int | None = None
) -> Steps[list[SessionInfo]]:
    """The sessions by name: all, or those `after` a name, `limit` at most."""
    query = query_of(after=after, limit=limit)
    return (yield from get_json(SessionList, "list sessions", _session_path(), query)).sessions


def delete_session(
    scope: ClientScope, name: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[DeletedSession]:
    """End what is open in a session, and forget it with the version that it has committed; or only tell. Its runs stay fenced.

    The audit keeps who did it and why.
    """
    what, path = f"delete session {name}", _session_path(name)
    return ask(Call(what, "DELETE", path, json_of(DeletedSession), Effect.ONCE, act_of(reason, by, dry_run=dry_run)))


def named_transaction(
    scope: ClientScope,
    session: str,
    run: str,
    version: int,
    *,
    counter_owner: str | None = None,
    kind: TransactionKind = "long",
    timeout_ms: int | None = None,
    owner: str = "",
) -> Steps[NamedTransactionScope]:
    """The transaction of this run for this version of a session's work, which all processes of the run share.

    The first one begins it, with its `kind`, `timeout_ms` and `owner`; the others join. `SessionFencedError`: another run has
    taken the session over. `SessionForeignError`: its versions were counted under another `counter_owner`. Leaving it leaves it
    open: it is ended by its id, with `client.transactions`.
    """
    body = BeginRequest(
        kind, timeout_ms, owner, snapshot=False, session=session, version=version, run=run, counter_owner=counter_owner
    )
    return NamedTransactionScope(body, (yield from begin_as(body)))


def segment(scope: NamedTransactionScope) -> Steps[int]:
    """A write pointer of one's own, to store under; it is published if the commit names it, and dropped if not."""
    transaction = scope.described()
    what, path = f"begin a segment of transaction {transaction.id}", _path(transaction, "checkpoint")
    # Repeatable: one under which nobody stores is none.
    body = CheckpointRequest(snapshot=False)
    return (yield from send_json("POST", what, path, json_of(TransactionInfo), body=body)).write_pointer


def _commit(
    transaction: TransactionInfo | str, what: str, work: Work | None, body: bytes, media_type: str = AVRO
) -> Steps[TransactionOutcome]:
    path, hint = _path(transaction, "commit"), ask_its_state(transaction)
    given, topics = (media_type, topics_of(work, len(body))) if work is not None else (None, ())
    parse, effect = json_of(TransactionOutcome), Effect.REPEATABLE
    return ask(Call(what, "POST", path, parse, effect, body=body, content_type=given, lost_hint=hint, topics=topics))


def title_of(scope: ClientScope, topic: TopicTitle) -> tuple[str, str]:
    """Namespace and name of a topic."""
    return (scope.namespace, topic) if isinstance(topic, str) else topic


def _check_size(size: int, limit: int, unit: str) -> None:
    if size > limit:
        raise TooLargeError(
            f"{size} {unit} are more than one request carries, {limit}",
            field="messages",
            hint="Publish them within client.transaction(), which sends them in several requests.",
        )


def _path(transaction: TransactionInfo | str | None = None, *parts: str) -> str:
    below = () if transaction is None else (id_of(transaction), *parts)
    return joined_path("v1", "transactions", *below)


def _session_path(*name: str) -> str:
    return joined_path("v1", "transactions", "sessions", *name)


def _open_ones(answer: Answer) -> list[TransactionInfo]:
    return json.decode(answer.body, TransactionList).transactions


def _invalidated(answer: Answer) -> bool:
    return json.decode(answer.body, InvalidateResponse).invalidated


def _begun(answer: Answer) -> TransactionInfo | CommittedBefore:
    try:
        return json.decode(answer.body, TransactionInfo)
    except ValidationError:
        return json.decode(answer.body, CommittedBefore)
