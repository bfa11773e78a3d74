"""Looking at messages whatever became of them: uncommitted and rolled back ones too, each with its state.

It reads as every reader does (tail cache or store, expiry, generations), but under no snapshot, and tells of each message
what readers of committed messages make of it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from basalt.catalog.topics import TopicName
from basalt.errors import InputError, MessageNotFoundError
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import KnownTransactions
from basalt.messaging.read.log_reader import Fetch, LogReader, SliceLimits, start_from
from basalt.messaging.read.slices import Slice
from basalt.messaging.read.views import Views
from basalt_engine.keys import MessageId
from basalt_engine.records import Buffer, Extras, RecordKind
from basalt_engine.snapshot import TransactionSnapshot, Visibility

MESSAGES_MAX = 1_000  # of one page; an operator looks at them one by one
BYTES_MAX = 10 << 20

State = Literal["plain", "committed", "open", "rolled back", "invalid", "unknown"]
_STATES: dict[Visibility, State] = {
    Visibility.VISIBLE: "committed",
    Visibility.HOLD: "open",
    Visibility.SKIP: "invalid",
}


class Peeked(NamedTuple):
    """A message and what became of it; `write_pointer` is its writer's, None without a transaction.

    `state` is `unknown` where transactions are managed elsewhere, and while the manager reads its log.
    """

    id: bytes
    payload: Buffer
    extras: Extras
    kind: RecordKind
    state: State
    write_pointer: int | None


class PeekPage(NamedTuple):
    """Messages, and the markers between them, in their order. `next_id`: go on from here, exclusively; None when nothing was passed."""

    messages: list[Peeked]
    next_id: bytes | None


class Peek:
    """Looks into all topics of one store."""

    def __init__(self, logs: TopicLogs, reader: LogReader, known_transactions: KnownTransactions, views: Views) -> None:
        self._logs = logs
        self._reader = reader
        self._known_transactions = known_transactions
        self._views = views

    async def message(self, title: TopicName, message_id: bytes) -> Peeked:
        """One message; `MessageNotFoundError` when the topic has none of this id, or no longer."""
        MessageId.decode(message_id)
        page = await self._page(await self._logs.open(title), message_id, True, SliceLimits(1, 1))
        if not page.messages or page.messages[0].id != message_id:
            raise MessageNotFoundError(
                f"topic {title} has no message {message_id.hex()}",
                field="id",
                hint="it may have expired, or be of an older generation of the topic",
            )
        return page.messages[0]

    async def peek(
        self, title: TopicName, start: bytes | int | None, inclusive: bool, messages_max: int = MESSAGES_MAX
    ) -> PeekPage:
        """Messages from an id or a time (ms) on, or from the oldest one."""
        if messages_max <= 0:
            raise InputError(f"limit {messages_max} is not a number of messages", field="limit", hint="give 1 or more")
        limits = SliceLimits(min(messages_max, MESSAGES_MAX), BYTES_MAX)
        return await self._page(await self._logs.open(title), start, inclusive, limits)

    async def _page(self, log: TopicLog, start: bytes | int | None, inclusive: bool, limits: SliceLimits) -> PeekPage:
        found, snapshot = await self._judged(log, start, inclusive, limits)
        if self._views.may_be_old and snapshot is not None:
            is_open = any(snapshot.judge(part.written_by) is Visibility.HOLD for part in found.slices)
            if is_open and await self._views.newer():
                found, snapshot = await self._judged(log, start, inclusive, limits)
        return PeekPage([message for part in found.slices for message in _messages(part, snapshot)], found.next_id)

    async def _judged(
        self, log: TopicLog, start: bytes | int | None, inclusive: bool, limits: SliceLimits
    ) -> tuple[Fetch, TransactionSnapshot | None]:
        """Messages, and the snapshot that judges them: of before the rows, or one rolled back in between would pass for committed."""
        snapshot = self._known_transactions.snapshot()
        return await self._reader.read(log, start_from(start, inclusive), limits, None, markers=True), snapshot


def _messages(part: Slice, snapshot: TransactionSnapshot | None) -> list[Peeked]:
    state = state_of(part.written_by, snapshot)
    pointer = None if part.written_by is None else abs(part.written_by)
    return [
        Peeked(message_id, payload, extras, part.batch.kind, state, pointer)
        for message_id, payload, extras in zip(part.ids(), part.payloads(), part.extras(), strict=True)
    ]


def state_of(written_by: int | None, snapshot: TransactionSnapshot | None) -> State:
    """Put the fate of a row, by its column t, into a word; "unknown" without a snapshot to judge the writer by."""
    if written_by is None:
        return "plain"
    if written_by < 0:
        return "rolled back"
    return "unknown" if snapshot is None else _STATES[snapshot.judge(written_by)]
