"""Plans for transactions: begin, show, end, and the one-shot kind. Routes: docs/reference/http-api.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import ValidationError

from basalt.api.bodies import json
from basalt.api.bodies.transactions import (
    BeginRequest,
    ChangesRequest,
    CommittedBefore,
    Invalidated,
    Outcome,
    OutsideParticipant,
    Timeline,
    TransactionInfo,
    TransactionKind,
    TransactionList,
)
from basalt.api.bodies.work import PUBLISH_MESSAGES_MAX, Buffer, Work, WorkMarker, WorkPublish
from basalt.api.codecs import avro, json_bodies
from basalt.client.calls.messages import BODY_BYTES_MAX, Payloads, each_payload
from basalt.client.plans.calls import AVRO, JSON, Answer, Call, Effect, Steps, ask, joined_path, json_of, nothing
from basalt.client.plans.scopes import ClientScope
from basalt.errors import TooLargeError

T = TypeVar("T")

TopicTitle: TypeAlias = str | tuple[str, str]  # a topic of the client's namespace, or (namespace, topic)

_BEGAN_UNHEARD = "Begin again; one that has begun unheard is ended by its time-out."


class SessionBinding(NamedTuple):
    """The session that a transaction begins in, and the version of the session's work that it is for, if any."""

    name: str
    epoch: int
    version: int | None = None


def begin(
    scope: ClientScope,
    *,
    kind: TransactionKind = "short",
    timeout_ms: int | None = None,
    owner: str = "",
    outside_writes: bool = False,
    snapshot: bool = True,
) -> Steps[TransactionInfo]:
    """Begin a transaction; whoever begins one this way ends it. `client.transaction()` does both.

    After `timeout_ms` (None: the server's default) it is aborted, or becomes invalid if it has `outside_writes`, which
    nobody but its writer can undo. `snapshot=False` leaves the snapshot's bytes out of the answer.
    """
    body = json.encode(BeginRequest(kind, timeout_ms, owner, outside_writes, snapshot))
    call = _post("begin a transaction", _path(), json_of(TransactionInfo), body=body, lost_hint=_BEGAN_UNHEARD)
    return (yield from ask(call))


def begin_call(body: BeginRequest) -> Call[TransactionInfo | CommittedBefore]:
    """The call of a begin. `CommittedBefore`: the session has committed this version of its work, so nothing was begun."""
    what, lost_hint = "begin a transaction", _BEGAN_UNHEARD
    if body.run is not None:
        # A second begin joins the first.
        return _post(f"begin version {body.version} of session {body.session}", _path(), _begun, body=json.encode(body))
    if body.session is not None:
        what = f"begin a transaction in session {body.session}"
    return _post(what, _path(), _begun, body=json.encode(body), lost_hint=lost_hint)


def get(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[TransactionInfo]:
    """A transaction, open or ended and still remembered. `TransactionNotFoundError` when it is neither."""
    what = f"get transaction {_id(transaction)}"
    return (yield from ask(Call(what, "GET", _path(transaction), json_of(TransactionInfo), Effect.NONE)))


def open_ones(scope: ClientScope) -> Steps[list[TransactionInfo]]:
    """The transactions that are open now."""
    return (yield from ask(Call("list transactions", "GET", _path(), _listing, Effect.NONE)))


def timeline(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[Timeline]:
    """The steps of a transaction, as far as they are still known."""
    what = f"get the timeline of transaction {_id(transaction)}"
    return (yield from ask(Call(what, "GET", _path(transaction, "timeline"), json_of(Timeline), Effect.NONE)))


def commit(scope: ClientScope, transaction: TransactionInfo | str, work: Work | None = None) -> Steps[Outcome]:
    """Commit, and publish what was stored under it and what `work` holds, in all topics or in none.

    `TransactionConflictError`: begin again. A lost answer is asked for again, and the outcome is the first one's.
    """
    return (yield from ask(commit_call(transaction, work)))


def commit_call(transaction: TransactionInfo | str, work: Work | None) -> Call[Outcome]:
    """The call of a commit."""
    what = f"commit transaction {_id(transaction)}"
    body = b"" if work is None else avro.encode_work(work)
    return _post(
        what,
        _path(transaction, "commit"),
        json_of(Outcome),
        body=body,
        content_type=AVRO if body else None,
        lost_hint=ask_its_state(transaction),
    )


def commit_segments(
    scope: ClientScope,
    transaction: TransactionInfo | str,
    segments: Sequence[int],
    markers: Sequence[WorkMarker] = (),
) -> Steps[Outcome]:
    """Commit what was stored under these write pointers of the transaction, in this order, and drop all else it stored.

    Each is one that its begin or a checkpoint answered; without any, nothing stored is published. `markers` come behind the
    messages. A second commit, whatever its segments, answers the first one's outcome.
    """
    body = json_bodies.encode_work(Work(markers=markers, segments=tuple(segments)))
    what = f"commit segments of transaction {_id(transaction)}"
    path = _path(transaction, "commit")
    return (yield from ask(_post(what, path, json_of(Outcome), body=body, lost_hint=ask_its_state(transaction))))


def ask_its_state(transaction: TransactionInfo | str) -> str:
    """The hint for whoever cannot know whether it was committed."""
    return f"Ask client.transactions.get({_id(transaction)!r}).state before doing the work again."


def abort(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[Outcome]:
    """Abort: nothing of it will be seen by those who read committed messages. Repeating it is no error."""
    return (yield from ask(abort_call(transaction)))


def abort_call(transaction: TransactionInfo | str) -> Call[Outcome]:
    """The call of an abort."""
    what = f"abort transaction {_id(transaction)}"
    return _post(what, _path(transaction, "abort"), json_of(Outcome), content_type=None)


def invalidate(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[bool]:
    """Hide all it wrote for good, when its writes cannot be undone. False: it was hidden before."""
    what = f"invalidate transaction {_id(transaction)}"
    path = _path(transaction, "invalidate")
    return (yield from ask(_post(what, path, _invalidated, content_type=None, effect=Effect.ONCE)))


def invalidate_call(transaction: TransactionInfo | str) -> Call[bool]:
    """The call of an invalidation that may be sent again: it is idempotent, and the answer to it does not matter."""
    what = f"invalidate transaction {_id(transaction)}"
    return _post(what, _path(transaction, "invalidate"), _invalidated, content_type=None)


def take_part(scope: ClientScope, transaction: TransactionInfo | str, name: str) -> Steps[None]:
    """Tell that a store of this name, outside Basalt, takes part in an open transaction."""
    what = f"add a participant to transaction {_id(transaction)}"
    body = json.encode(OutsideParticipant(name))
    return (yield from ask(_post(what, _path(transaction, "participants"), nothing, body=body)))


def checkpoint(scope: ClientScope, transaction: TransactionInfo | str) -> Steps[TransactionInfo]:
    """A further write pointer for an open transaction, under the same snapshot."""
    what = f"checkpoint transaction {_id(transaction)}"
    return (yield from ask(_post(what, _path(transaction, "checkpoint"), json_of(TransactionInfo), content_type=None)))


def changes(
    scope: ClientScope,
    transaction: TransactionInfo | str,
    changed: Iterable[bytes],
    *,
    outside_writes: bool = True,
) -> Steps[None]:
    """Tell what it changes, as opaque keys, all of them at once: a second set replaces the first.

    Of two open transactions that have a key in common the second to commit fails (`TransactionConflictError`).
    `outside_writes=False`: none of the keys stands for a write elsewhere than in Basalt.
    """
    what = f"send the changes of transaction {_id(transaction)}"
    body = json.encode(ChangesRequest(list(changed), outside_writes))
    return (yield from ask(_post(what, _path(transaction, "changes"), nothing, body=body)))


def publish_atomically(scope: ClientScope, messages: Mapping[TopicTitle, Payloads]) -> Steps[Outcome]:
    """Publish to several topics in one request, all or nothing: a transaction that begins, writes and commits at once.

    `{"orders": [...], ("billing", "invoices"): [...]}`. Safe to repeat, and repeated when its answer is lost.
    `TooLargeError` when it does not fit into one request (65,536 messages, 10 MiB).
    """
    work = Work(
        publish=[
            WorkPublish(*_title(scope, topic), list(each_payload(payloads))) for topic, payloads in messages.items()
        ]
    )
    work = Work(publish=[entry for entry in work.publish if entry.messages])
    _check_size(sum(len(entry.messages) for entry in work.publish), PUBLISH_MESSAGES_MAX, "messages")
    body = avro.encode_work(work)
    _check_size(len(body), BODY_BYTES_MAX, "bytes")
    hint = "Poll to see whether the messages came before publishing them again."
    call = _post("publish atomically", _path(), json_of(Outcome), body=body, content_type=AVRO, lost_hint=hint)
    return (yield from ask(call))


def work_of(buffered: Mapping[tuple[str, str], list[Buffer]], markers: Sequence[WorkMarker] = ()) -> Work | None:
    """The work that publishes these messages, and markers behind them; None for none."""
    publish = [WorkPublish(namespace, topic, run) for (namespace, topic), run in buffered.items() if run]
    return Work(publish=publish, markers=list(markers)) if publish or markers else None


def _title(scope: ClientScope, topic: TopicTitle) -> tuple[str, str]:
    return (scope.namespace, topic) if isinstance(topic, str) else topic


def _check_size(size: int, limit: int, unit: str) -> None:
    if size > limit:
        raise TooLargeError(
            f"{size} {unit} are more than one request carries, {limit}",
            field="messages",
            hint="Publish them within client.transaction(), which sends them in several requests.",
        )


def _post(
    what: str,
    path: str,
    parse: Callable[[Answer], T],
    *,
    body: bytes = b"",
    content_type: str | None = JSON,
    effect: Effect = Effect.REPEATABLE,
    lost_hint: str | None = None,
) -> Call[T]:
    return Call(what, "POST", path, parse, effect, body=body, content_type=content_type, lost_hint=lost_hint)


def _path(transaction: TransactionInfo | str | None = None, *parts: str) -> str:
    below = () if transaction is None else (_id(transaction), *parts)
    return joined_path("v1", "transactions", *below)


def _id(transaction: TransactionInfo | str) -> str:
    return transaction if isinstance(transaction, str) else transaction.id


def _begun(answer: Answer) -> TransactionInfo | CommittedBefore:
    try:
        return json.decode(answer.body, TransactionInfo)
    except ValidationError:
        return json.decode(answer.body, CommittedBefore)


def _listing(answer: Answer) -> list[TransactionInfo]:
    return json.decode(answer.body, TransactionList).transactions


def _invalidated(answer: Answer) -> bool:
    return json.decode(answer.body, Invalidated).invalidated
