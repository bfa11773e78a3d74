"""Plans for a transaction in use: what it publishes waits here until the commit, so that it holds up no reader.

Messages are buffered and travel in the commit's request. When there are too many for that, they are stored aside on the
server, and from then on all messages of that topic are: the commit publishes a topic's messages from one place, never from
two, so that they keep their order.

Beside its topics a transaction has participants: users' objects (`TransactionAware`, Apache Tephra's protocol), and Basalt's
own tables. When each method is called, and what happens when one fails: docs/reference/client.md, "Participants"; the order
itself is in `commit_protocol`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import structs

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX
from basalt.api.bodies.transactions import BeginRequest, TransactionInfo, TransactionKind, TransactionOutcome
from basalt.client.calls import messages, transactions
from basalt.client.calls.messages import PositionLike
from basalt.client.calls.pages import Page
from basalt.client.calls.payloads import (
    Beside,
    HeadersLike,
    Outgoing,
    Payloads,
    Text,
    each_message,
    json_payload,
)
from basalt.client.calls.reading import ReadBounds, TopicCursor
from basalt.client.calls.topics import marked
from basalt.client.calls.transactions import SessionScope, UnsentWork
from basalt.client.consumer.batches import Acknowledgements, Consumed, ConsumedMessage
from basalt.client.plans import Await, ClientScope, Steps
from basalt.errors import BasaltError, InputError, TransactionEndedError

ParticipantMethod: TypeAlias = Literal[
    "start_tx", "update_tx", "tx_changes", "flush_tx", "commit_tx", "post_commit_tx", "rollback_tx"
]
METHODS = ("start_tx", "update_tx", "tx_changes", "commit_tx", "post_commit_tx", "rollback_tx")  # one must have
BUFFER_BYTES_MAX = 4 * 1024 * 1024  # below a request's 10 MiB with room for one large message more; small beside a heap


class TransactionAware(Protocol):
    """A store, or a buffer, that takes part in a client's transaction: what it keeps under it becomes true with its commit.

    For the async client each method may be a coroutine. Two more that a participant may have: `hosted`, True when all it
    writes is in Basalt's own store, so that the server can undo it; and `flush_tx()`, called before a checkpoint in place of
    `commit_tx`, for a participant whose `commit_tx` cannot be called twice.
    """

    @property
    def name(self) -> str:
        """The name that messages and operators use."""
        ...

    def start_tx(self, tx: TransactionInfo) -> Any:
        """The transaction has begun: forget the one before, and write under `tx.write_pointer` from now on."""
        ...

    def update_tx(self, tx: TransactionInfo) -> Any:
        """After a checkpoint: the same transaction, with a further write pointer to write under from now on."""
        ...

    def tx_changes(self) -> Any:
        """Return what it changed since `start_tx`, as opaque keys (bytes), for conflict detection; none: an empty collection."""
        ...

    def commit_tx(self) -> Any:
        """Persist everything. The transaction is not committed yet, and may still be rolled back."""
        ...

    def post_commit_tx(self) -> Any:
        """The transaction is committed. Whatever happens here cannot undo it."""
        ...

    def rollback_tx(self) -> Any:
        """Undo what was persisted under the transaction, if anything was; True when nothing of it is left."""
        ...


class Participant:
    """A participant by the methods of `TransactionAware`, as plans, which do for both clients."""

    name: str  # for messages and operators
    hosted = True  # all it writes is in Basalt's own store, so that the server can hide it

    def ask(self, method: ParticipantMethod, *arguments: object) -> Steps[Any]:
        """Do what the method says, and return what it answers."""
        raise NotImplementedError


class UsersParticipant(Participant):
    """A user's participant; what it answers with a coroutine is awaited."""

    def __init__(self, of: TransactionAware) -> None:
        missing = [method for method in METHODS if not callable(getattr(of, method, None))]
        if missing:
            raise TypeError(f"{of!r} is no participant: it has no {missing[0]} (see basalt.client.TransactionAware)")
        self.of = of
        self.name = str(getattr(of, "name", type(of).__name__))
        self.hosted = getattr(of, "hosted", False) is True

    def ask(self, method: ParticipantMethod, *arguments: object) -> Steps[Any]:
        """Call it. One without `flush_tx` is asked for `commit_tx` instead, as Tephra's contexts do it."""
        called = "commit_tx" if method == "flush_tx" and not hasattr(self.of, method) else method
        answer = getattr(self.of, called)(*arguments)
        if isinstance(answer, Awaitable):
            answer = yield Await(answer, f"{self.name}.{called}")
        return answer


class PostCommitError(BasaltError):
    """The transaction is committed, and a participant failed after that (`__cause__`). Do not do its work again."""


class Broken(NamedTuple):
    """The reason why a transaction must not be committed any more, and the failure behind it."""

    why: str
    error: BaseException


class OpenTransaction:
    """The state of one `with client.transaction()` block: the server's transaction, and the messages it has still to send."""

    def __init__(
        self,
        scope: ClientScope,
        request: BeginRequest,
        participants: Iterable[TransactionAware] = (),
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self.scope = scope
        self.request = request
        self.invited = [UsersParticipant(participant) for participant in participants]  # part of it once it has begun
        self.external_writes = request.external_writes or not all(participant.hosted for participant in self.invited)
        self.committed_before = False  # True: the session had committed this version, so no transaction was begun
        self.buffer_bytes_max = buffer_bytes_max
        self.info: TransactionInfo | None = None  # as the newest checkpoint answered it
        self.stored_under = 0  # its first write pointer
        self.outcome: TransactionOutcome | None = None
        self.ended = False
        self.broken: Broken | None = None  # by the first failure after which it cannot be whole
        self.participants: list[Participant] = []
        self.own_changes: frozenset[bytes] = frozenset()  # what its user told, without participants
        self.told_changes: frozenset[bytes] = frozenset()
        self.wrote_elsewhere = False  # as its user said
        self.unsent = UnsentWork(scope.namespace)
        self.acknowledged = Acknowledgements()
        self.stored_topics: dict[tuple[str, str], int] = {}  # each with how many messages it has stored there
        self.storing: set[tuple[str, str]] = set()

    def described(self) -> TransactionInfo:
        """Return the server's transaction. `TransactionEndedError` when it has not begun."""
        if self.committed_before:
            raise TransactionEndedError(
                f"version {self.request.version} of session {self.request.session!r} was committed before",
                hint="Leave this work out: ask tx.committed_before first.",
            )
        if self.info is None:
            raise TransactionEndedError("this transaction has not begun", hint="Use it in a with block.")
        return self.info

    def begun(self) -> TransactionInfo:
        """Return the same, for use. `TransactionEndedError` when it is over, too."""
        info = self.described()
        if self.ended:
            self.check_whole()
            raise TransactionEndedError(
                f"transaction {info.id} has ended", hint="Begin another: with client.transaction() as tx: ..."
            )
        return info

    def breaks(self, why: str, error: BaseException) -> None:
        """Note that it must not be committed from now on, and why. The first reason stays."""
        self.broken = self.broken or Broken(why, error)

    def check_whole(self) -> None:
        """Raise `TransactionEndedError` when it must not be committed, even if its user has swallowed the failure."""
        if self.broken is not None:
            raise TransactionEndedError(
                f"transaction {self.described().id} {self.broken.why}", hint="Begin again."
            ) from self.broken.error

    def forget_work(self) -> None:
        """Drop the messages, markers and acknowledgements that waited for the commit: they are there, or never will be."""
        self.unsent.forget()
        self.let_go()
        self.acknowledged = Acknowledgements()

    def let_go(self, *, blameless: bool = False) -> None:
        """Hold no batch any more, for its end is known or never will be. `blameless`: that was no attempt at their messages."""
        for batch in self.acknowledged.batches:
            batch.held, batch.blameless = False, batch.blameless or blameless

    def joins(self, participant: Participant) -> bool:
        """Let it take part, unless it does; True if it did not before."""
        of = getattr(participant, "of", participant)
        joins = all(getattr(other, "of", other) is not of for other in self.participants)
        if joins:
            self.participants.append(participant)
        return joins


def transaction(
    scope: ClientScope | SessionScope,
    *,
    version: int | None = None,
    timeout_ms: int | None = None,
    owner: str = "",
    kind: TransactionKind = "short",
    external_writes: bool = False,
    participants: Iterable[TransactionAware] = (),
) -> OpenTransaction:
    """A transaction for a `with` block (`async with` in the async client), which begins it.

    After `timeout_ms` (None: the server's default) the server aborts it. `participants` commit and roll back with it
    (`TransactionAware`), in this order.

    In a session it may have a `version`, which its commit makes the session's; when that was committed before,
    `tx.committed_before` says so, and there is nothing to do. Versions are compared, not listed: once 9 is committed, 8 counts
    as done. Give rising versions.
    """
    request = BeginRequest(kind, timeout_ms, owner, external_writes)
    if isinstance(scope, SessionScope):
        held = structs.replace(request, session=scope.name, session_epoch=scope.epoch, version=version)
        return OpenTransaction(scope.client, held, participants)
    if version is not None:
        hint = "Begin it in one: client.session(name).transaction(version=...)."
        raise InputError(f"version {version} is of no session's work", field="version", hint=hint)
    return OpenTransaction(scope, request, participants)


def publish(
    tx: OpenTransaction,
    topic: str,
    messages: Payloads,
    *,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
    namespace: str | None = None,
) -> Steps[None]:
    """Publish to a topic when the transaction commits, in order; what may be given is as with `topic.publish`.

    They get their place in the topic at the commit, so nobody waits for this transaction meanwhile, and its own polls do
    not see them.
    """
    tx.begun()
    unsent = tx.unsent
    title = unsent.title(topic, namespace)
    for message in each_message(messages, Beside(key, headers, event_time_ms, ttl_ms)):
        unsent.add(title, message)
        if unsent.bytes >= tx.buffer_bytes_max or unsent.messages >= PUBLISH_MESSAGES_MAX:
            yield from _store(tx, list(unsent.runs))


def publish_json(
    tx: OpenTransaction,
    topic: str,
    content: object,
    *,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
    namespace: str | None = None,
) -> Steps[None]:
    """Publish one message when the transaction commits: any value as JSON in UTF-8."""
    return publish(
        tx, topic, json_payload(content), key=key, headers=headers, event_time_ms=event_time_ms, ttl_ms=ttl_ms,
        namespace=namespace,
    )  # fmt: skip


def store(
    tx: OpenTransaction,
    topic: str,
    messages: Payloads,
    *,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
    namespace: str | None = None,
) -> Steps[None]:
    """Store messages on the server now, for the commit to publish: as `publish`, without a copy held here until then.

    When it fails some of them may be stored and others not, so the transaction cannot be committed any more.
    """
    tx.begun()
    title = tx.unsent.title(topic, namespace)
    yield from _store(tx, [title])  # what was published before comes before
    yield from _store_run(tx, title, each_message(messages, Beside(key, headers, event_time_ms, ttl_ms)))


def watermark(
    tx: OpenTransaction, topic: str, task: str, event_time_ms: int, task_count: int = 1, *, namespace: str | None = None
) -> Steps[None]:
    """Say with the commit that a task's event time has come so far; its place is behind the messages of this transaction."""
    tx.begun()
    tx.unsent.mark(topic, namespace, marked(task, task_count, event_time_ms))
    yield from ()


def end(
    tx: OpenTransaction, topic: str, task: str, task_count: int = 1, *, namespace: str | None = None
) -> Steps[None]:
    """Say with the commit that nothing more comes from a task; its place is behind the messages of this transaction."""
    tx.begun()
    tx.unsent.mark(topic, namespace, marked(task, task_count))
    yield from ()


def acknowledge(tx: OpenTransaction, given: Consumed) -> Steps[None]:
    """Acknowledge a batch of a consumer, or some of its messages, with the commit: in one decision with all else.

    An abort gives the batch back to its group at once. Of two transactions that acknowledge one message in one group the second to
    commit gets `TransactionConflictError`.
    """
    tx.begun()
    tx.acknowledged.acknowledge(given)
    _hold(tx)
    yield from ()


def reject(tx: OpenTransaction, message: ConsumedMessage, reason: str) -> Steps[None]:
    """Make a message a dead letter of its group with the commit, whatever else is said of its batch."""
    tx.begun()
    tx.acknowledged.reject(message, reason)
    _hold(tx)
    yield from ()


def _hold(tx: OpenTransaction) -> None:
    for batch in tx.acknowledged.batches:
        batch.held, batch.blameless = True, False


def poll(
    tx: OpenTransaction,
    topic: str,
    start: PositionLike = None,
    *,
    inclusive: bool = True,
    limit: int | None = None,
    wait_ms: int = 0,
    namespace: str | None = None,
) -> Steps[Page]:
    """The messages of a topic from a position on, under the transaction's snapshot."""
    source, seen_by = tx.scope.topic(topic, namespace=namespace), tx.begun().id
    return (
        yield from messages.poll(source, start, inclusive=inclusive, limit=limit, wait_ms=wait_ms, transaction=seen_by)
    )


def read(
    tx: OpenTransaction,
    topic: str,
    start: PositionLike = None,
    stop: PositionLike = None,
    *,
    limit: int | None = None,
    namespace: str | None = None,
) -> TopicCursor:
    """The messages of a topic from `start` to before `stop`, across pages, under the transaction's snapshot."""
    bounds = ReadBounds(start, stop, limit, transaction=tx.begun().id)
    return TopicCursor(tx.scope.topic(topic, namespace=namespace), bounds)


def changes(tx: OpenTransaction, changed: Iterable[bytes], *, external_writes: bool = True) -> Steps[None]:
    """Tell what it changes, as opaque keys, all of them at once: a second set replaces the first.

    Of two open transactions that have a key in common the second to commit fails (`TransactionConflictError`). What
    participants change is told beside it when the transaction commits. `external_writes=False`: none of the keys stands for a
    write elsewhere than in Basalt, so that nothing stays on the invalid list for it when this program is killed or replaced.
    """
    told = list(changed)
    yield from transactions.changes(tx.scope, tx.begun(), told, external_writes=external_writes)
    tx.own_changes = tx.told_changes = frozenset(told)
    tx.wrote_elsewhere = tx.wrote_elsewhere or (external_writes and bool(told))


def store_rest(tx: OpenTransaction) -> Steps[None]:
    """Store what is left of the topics of which messages were stored before; the rest travels with the commit."""
    yield from _store(tx, [title for title in tx.unsent.runs if title in tx.stored_topics])


def _store(tx: OpenTransaction, titles: list[tuple[str, str]]) -> Steps[None]:
    tx.begun()
    for title in titles:
        run = tx.unsent.take(title)
        if run:
            yield from _store_run(tx, title, run)


def _store_run(tx: OpenTransaction, title: tuple[str, str], run: Iterable[Outgoing]) -> Steps[None]:
    stored_before = tx.stored_topics.setdefault(title, 0)
    topic = tx.scope.topic(title[1], namespace=title[0])
    try:
        _check_alone(tx, title)
        tx.storing.add(title)
        numbered = None if tx.scope.producers is None else stored_before
        stored = yield from messages.store_messages(topic, run, tx.stored_under, stored_before=numbered)
    except BaseException as failure:
        # Some of them may be stored: sent again they might come twice, left out they would be missing.
        tx.breaks(f"cannot be committed: messages of topic {topic} may be missing", failure)
        raise
    tx.storing.discard(title)
    tx.stored_topics[title] = stored_before + stored


def _check_alone(tx: OpenTransaction, title: tuple[str, str]) -> None:
    """Two at once would give their messages the same numbers, and the server would drop those of one as a repetition."""
    if title in tx.storing:
        raise InputError(
            f"messages of topic {title[1]} are being stored in transaction {tx.described().id}, and others came meanwhile",
            hint="A transaction belongs to one thread or task: store one after the other.",
        )
