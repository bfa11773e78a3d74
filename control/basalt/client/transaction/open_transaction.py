"""Plans for a transaction in use: what it publishes waits here until the commit, so that it holds up no reader.

Messages are buffered and travel in the commit's request. When there are too many for that, they are stored aside on the
server, and from then on all messages of that topic are: the commit publishes a topic's messages from one place, never from
two, so that they keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from basalt.api.bodies.transactions import Outcome, TransactionInfo, TransactionKind
from basalt.api.bodies.work import PUBLISH_MESSAGES_MAX, Buffer, WorkMarker
from basalt.api.markers import Marker
from basalt.client.calls import messages, transactions
from basalt.client.calls.markers import marked
from basalt.client.calls.messages import Payloads, each_payload
from basalt.client.calls.pages import Page
from basalt.client.calls.positions import PositionLike
from basalt.client.calls.reading import Bounds, TopicCursor
from basalt.client.calls.sessions import SessionScope
from basalt.client.calls.transactions import SessionBinding
from basalt.client.plans.calls import Steps
from basalt.client.plans.scopes import ClientScope, TopicScope
from basalt.client.transaction.participants import Participant, Planned, planned, same
from basalt.errors import TransactionEndedError

BUFFER_BYTES_MAX = 4 * 1024 * 1024  # below a request's 10 MiB with room for one large message more; small beside a heap


class Broken(NamedTuple):
    """Why a transaction must not be committed any more, and what it was that went wrong."""

    why: str
    error: BaseException


class OpenTransaction:
    """The state of one `with client.transaction()` block: the server's transaction, and the messages it has still to send."""

    def __init__(
        self,
        scope: ClientScope,
        *,
        kind: TransactionKind = "short",
        timeout_ms: int | None = None,
        owner: str = "",
        outside_writes: bool = False,
        participants: Iterable[Participant] = (),
        session: SessionBinding | None = None,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self.scope = scope
        self.kind: TransactionKind = kind
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.invited = [planned(participant) for participant in participants]  # they take part once it has begun
        self.outside_writes = outside_writes or not all(participant.hosted for participant in self.invited)
        self.session = session
        self.committed_before = False  # True: the session had committed this version, so no transaction was begun
        self.buffer_bytes_max = buffer_bytes_max
        self.info: TransactionInfo | None = None  # as the newest checkpoint answered it
        self.stored_under = 0  # its first write pointer
        self.outcome: Outcome | None = None
        self.ended = False
        self.broken: Broken | None = None  # by the first failure after which it cannot be whole
        self.participants: list[Planned] = []
        self.own_changes: frozenset[bytes] = frozenset()  # what its user told, without participants
        self.told_changes: frozenset[bytes] = frozenset()
        self.buffered: dict[tuple[str, str], list[Buffer]] = {}
        self.markers: list[WorkMarker] = []
        self.buffered_messages = 0
        self.buffered_bytes = 0
        self.stored_topics: set[tuple[str, str]] = set()

    def described(self) -> TransactionInfo:
        """Return the server's transaction. `TransactionEndedError` when it has not begun."""
        if self.committed_before:
            assert self.session is not None, "only a session knows versions"
            raise TransactionEndedError(
                f"version {self.session.version} of session {self.session.name!r} was committed before",
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
        """Drop the messages and markers that waited for the commit: they are published, or never will be."""
        self.buffered.clear()
        self.markers.clear()

    def attach(self, participant: Planned) -> None:
        """Let a table take part, which needs no call to start. A second time changes nothing."""
        self.begun()
        if not any(same(participant, other) for other in self.participants):
            self.participants.append(participant)


def transaction(
    scope: ClientScope,
    *,
    timeout_ms: int | None = None,
    owner: str = "",
    kind: TransactionKind = "short",
    outside_writes: bool = False,
    participants: Iterable[Participant] = (),
) -> OpenTransaction:
    """A transaction for a `with` block (`async with` in the async client), which begins it.

    After `timeout_ms` (None: the server's default) the server aborts it. `participants` commit and roll back with it
    (`TransactionAware`), in this order.
    """
    return OpenTransaction(
        scope, kind=kind, timeout_ms=timeout_ms, owner=owner, outside_writes=outside_writes, participants=participants
    )


def transaction_in(
    session: SessionScope,
    *,
    version: int | None = None,
    timeout_ms: int | None = None,
    owner: str = "",
    kind: TransactionKind = "short",
    outside_writes: bool = False,
    participants: Iterable[Participant] = (),
) -> OpenTransaction:
    """A transaction of the session, as `client.transaction()` makes them.

    With a `version`, its commit makes that the session's; when it was committed before, `tx.committed_before` says so, and
    there is nothing to do. Versions are compared, not listed: once 9 is committed, 8 counts as done. Give rising versions.
    """
    return OpenTransaction(
        session.client,
        kind=kind,
        timeout_ms=timeout_ms,
        owner=owner,
        outside_writes=outside_writes,
        participants=participants,
        session=SessionBinding(session.name, session.epoch, version),
    )


def publish(tx: OpenTransaction, topic: str, messages: Payloads, *, namespace: str | None = None) -> Steps[None]:
    """Publish to a topic when the transaction commits, in order.

    They get their place in the topic at the commit, so nobody waits for this transaction meanwhile, and its own polls do
    not see them.
    """
    tx.begun()
    title = (namespace or tx.scope.namespace, topic)
    for payload in each_payload(messages):
        tx.buffered.setdefault(title, []).append(payload)
        tx.buffered_messages += 1
        tx.buffered_bytes += len(payload)
        if tx.buffered_bytes >= tx.buffer_bytes_max or tx.buffered_messages >= PUBLISH_MESSAGES_MAX:
            yield from _store(tx, list(tx.buffered))


def store(tx: OpenTransaction, topic: str, payloads: Payloads, *, namespace: str | None = None) -> Steps[None]:
    """Store messages on the server now, for the commit to publish: as `publish`, without a copy held here until then.

    When it fails some of them may be stored and others not, so the transaction cannot be committed any more.
    """
    tx.begun()
    title = (namespace or tx.scope.namespace, topic)
    yield from _store(tx, [title])  # what was published before comes before
    yield from _store_run(tx, title, payloads)


def watermark(
    tx: OpenTransaction, topic: str, task: str, event_time_ms: int, task_count: int = 1, *, namespace: str | None = None
) -> Steps[None]:
    """Say with the commit that a task's event time has come so far; its place is behind the messages of this transaction."""
    _mark(tx, topic, namespace, marked(task, task_count, event_time_ms))
    yield from ()


def end(
    tx: OpenTransaction, topic: str, task: str, task_count: int = 1, *, namespace: str | None = None
) -> Steps[None]:
    """Say with the commit that nothing more comes from a task; its place is behind the messages of this transaction."""
    _mark(tx, topic, namespace, marked(task, task_count))
    yield from ()


def _mark(tx: OpenTransaction, topic: str, namespace: str | None, marker: Marker) -> None:
    tx.begun()
    entry = WorkMarker(
        namespace or tx.scope.namespace, topic, marker.task, marker.task_count, marker.kind, marker.event_time_ms
    )
    tx.markers.append(entry)


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
    info = tx.begun()
    return (
        yield from messages.poll(
            tx.scope.topic(topic, namespace=namespace),
            start,
            inclusive=inclusive,
            limit=limit,
            wait_ms=wait_ms,
            transaction=info.id,
        )
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
    return TopicCursor(
        tx.scope.topic(topic, namespace=namespace), Bounds(start, stop, limit, transaction=tx.begun().id)
    )


def changes(tx: OpenTransaction, changed: Iterable[bytes]) -> Steps[None]:
    """Tell what it changes, as opaque keys, all of them at once: a second set replaces the first.

    Of two open transactions that have a key in common the second to commit fails (`TransactionConflictError`). What
    participants change is told beside it when the transaction commits.
    """
    told = list(changed)
    yield from transactions.changes(tx.scope, tx.begun(), told)
    tx.own_changes = tx.told_changes = frozenset(told)


def store_rest(tx: OpenTransaction) -> Steps[None]:
    """Store what is left of the topics of which messages were stored before; the rest travels with the commit."""
    yield from _store(tx, [title for title in tx.buffered if title in tx.stored_topics])


def _store(tx: OpenTransaction, titles: list[tuple[str, str]]) -> Steps[None]:
    tx.begun()
    for title in titles:
        run = tx.buffered.pop(title, [])
        if not run:
            continue
        tx.buffered_messages -= len(run)
        tx.buffered_bytes -= sum(map(len, run))
        yield from _store_run(tx, title, run)


def _store_run(tx: OpenTransaction, title: tuple[str, str], payloads: Payloads) -> Steps[None]:
    tx.stored_topics.add(title)
    topic = TopicScope(*title, tx.scope.now_ms)
    try:
        yield from messages.store(topic, payloads, tx.stored_under)
    except BaseException as failure:
        # Some of them may be stored: sent again they might come twice, left out they would be missing.
        tx.breaks(f"cannot be committed: messages of topic {topic} may be missing", failure)
        raise
