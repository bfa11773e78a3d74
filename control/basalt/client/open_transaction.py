"""Plans for a transaction in use: what it publishes waits here until the commit, so that it holds up no reader.

Messages are buffered and travel in the commit's request. Once they outgrow that they are stored aside on the server, and from
then on all of that topic's are, so that they keep their order: the commit publishes a topic's from one place, never two.
"""

from __future__ import annotations

from collections.abc import Iterable

from basalt.client import messages, transactions
from basalt.client.calls import Steps, ask
from basalt.client.pages import Page
from basalt.client.payloads import Payloads, each_payload
from basalt.client.positions import PositionLike
from basalt.client.reading import Bounds, Cursor
from basalt.client.scopes import ClientScope, TopicScope
from basalt.client.transaction_info import Outcome, TransactionInfo
from basalt.client.transactions import Kind
from basalt.errors import BasaltError, TransactionEndedError, TransactionNotFoundError, UnknownOutcomeError
from basalt.wire.bodies import PUBLISH_MESSAGES_MAX, Buffer

BUFFER_BYTES_MAX = 4 * 1024 * 1024  # below a request's 10 MiB with room for one large message more; small beside a heap


class OpenTransaction:
    """What one `with client.transaction()` block knows: the server's transaction, and the messages it has still to send."""

    def __init__(
        self,
        scope: ClientScope,
        *,
        kind: Kind,
        timeout_ms: int | None,
        owner: str,
        outside_writes: bool,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self.scope = scope
        self.kind: Kind = kind
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.outside_writes = outside_writes
        self.buffer_bytes_max = buffer_bytes_max
        self.info: TransactionInfo | None = None
        self.outcome: Outcome | None = None
        self.ended = False
        self.buffered: dict[tuple[str, str], list[Buffer]] = {}
        self.buffered_messages = 0
        self.buffered_bytes = 0
        self.stored_topics: set[tuple[str, str]] = set()

    def described(self) -> TransactionInfo:
        """The server's transaction. `TransactionEndedError` when it has not begun."""
        if self.info is None:
            raise TransactionEndedError("this transaction has not begun", hint="Use it in a with block.")
        return self.info

    def begun(self) -> TransactionInfo:
        """The same, for use. `TransactionEndedError` when it is over, too."""
        info = self.described()
        if self.ended:
            raise TransactionEndedError(
                f"transaction {info.id} has ended", hint="Begin another: with client.transaction() as tx: ..."
            )
        return info


def enter(tx: OpenTransaction) -> Steps[None]:
    """Begin it."""
    if tx.info is not None:
        raise TransactionEndedError(f"transaction {tx.info.id} was begun before", hint="Begin another.")
    tx.info = yield from transactions.begin(
        tx.scope,
        kind=tx.kind,
        timeout_ms=tx.timeout_ms,
        owner=tx.owner,
        outside_writes=tx.outside_writes,
        snapshot=False,
    )


def leave(tx: OpenTransaction, raised: BaseException | None) -> Steps[None]:
    """Commit it, or abort it when its block has raised; the first exception is the one that its caller sees."""
    if tx.ended:
        return
    if raised is not None:
        yield from _give_up(tx, raised)
        return
    try:
        yield from commit(tx)
    except BasaltError as refused:
        if not tx.ended:
            yield from _give_up(tx, refused)
        raise


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
    """Store messages on the server now, for the commit to publish: as `publish`, without a copy held here until then."""
    info = tx.begun()
    title = (namespace or tx.scope.namespace, topic)
    yield from _store(tx, [title])  # what was published before comes before
    tx.stored_topics.add(title)
    yield from messages.store(tx.scope.topic(topic, namespace), payloads, info)


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
            tx.scope.topic(topic, namespace),
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
) -> Cursor:
    """The messages of a topic from `start` to before `stop`, across pages, under the transaction's snapshot."""
    return Cursor(tx.scope.topic(topic, namespace), Bounds(start, stop, limit, transaction=tx.begun().id))


def changes(tx: OpenTransaction, changed: Iterable[bytes]) -> Steps[None]:
    """Tell what it changes, as opaque keys, all of them at once: a second set replaces the first.

    Of two open transactions that have a key in common the second to commit fails (`TransactionConflictError`).
    """
    yield from transactions.changes(tx.scope, tx.begun(), changed)


def checkpoint(tx: OpenTransaction) -> Steps[TransactionInfo]:
    """A further write pointer, under the same snapshot: what follows can be told from what was before."""
    return (yield from transactions.checkpoint(tx.scope, tx.begun()))


def commit(tx: OpenTransaction) -> Steps[Outcome]:
    """Publish everything and commit; the end of the block does it too, and aborts what was refused.

    When the outcome could not be learnt (`UnknownOutcomeError`), ask for it: `client.transactions.get(tx.id)`.
    """
    info = tx.begun()
    yield from _store(tx, [title for title in tx.buffered if title in tx.stored_topics])
    try:
        tx.outcome = yield from ask(transactions.commit_call(info, transactions.work_of(tx.buffered)))
    except (TransactionEndedError, TransactionNotFoundError, UnknownOutcomeError):
        tx.ended = True  # there is nothing left to abort, or it must not be: it may have been committed
        raise
    tx.ended = True
    tx.buffered.clear()
    return tx.outcome


def abort(tx: OpenTransaction) -> Steps[Outcome]:
    """Abort it now, and leave the block in peace."""
    info = tx.begun()
    tx.ended = True
    tx.buffered.clear()
    tx.outcome = yield from ask(transactions.abort_call(info))
    return tx.outcome


def _give_up(tx: OpenTransaction, because: BaseException) -> Steps[None]:
    try:
        yield from abort(tx)
    except BasaltError as error:
        because.add_note(
            f"transaction {tx.info.id if tx.info else ''} could not be aborted ({error}); its time-out ends it"
        )


def _store(tx: OpenTransaction, titles: list[tuple[str, str]]) -> Steps[None]:
    info = tx.begun()
    for title in titles:
        run = tx.buffered.pop(title, [])
        if not run:
            continue
        tx.buffered_messages -= len(run)
        tx.buffered_bytes -= sum(map(len, run))
        tx.stored_topics.add(title)
        yield from messages.store(TopicScope(*title, tx.scope.now_ms), run, info)
