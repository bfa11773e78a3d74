"""Reading page after page: the cursor of `Reader` and `AsyncReader`, which knows the next poll and when there is none."""

from __future__ import annotations

from dataclasses import dataclass

from basalt.api.bodies.work import ConsumeRequest
from basalt.api.positions import PositionKind
from basalt.client.calls import messages
from basalt.client.calls.messages import FOLLOW_WAIT_MS, Isolation, TransactionLike
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.positions import PositionLike, lowest_id, position, start_from
from basalt.client.plans.calls import Steps, ask
from basalt.client.plans.scopes import TopicScope


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a read: from `start` to before `stop`, `limit` messages at most; past the end if `follow`."""

    start: PositionLike
    stop: PositionLike
    limit: int | None = None
    isolation: Isolation = None
    follow: bool = False
    transaction: TransactionLike = None


class TopicCursor:
    """The place of a reader. `next_id` is the id of the last message it passed; `held_by` as in `Page`."""

    def __init__(self, scope: TopicScope, bounds: Bounds) -> None:
        self.next_id: bytes | None = None
        self.held_by: str | None = None
        self.done = bounds.limit == 0
        self._scope = scope
        self._bounds = bounds
        self._left = bounds.limit
        self._start: bytes | int | None = None
        self._stop_id: bytes | None = None
        self._query: tuple[tuple[str, str], ...] = ()
        self._snapshot: bytes | None = None
        self._placed = False

    def next_items(self) -> Steps[Page | list[Message]]:
        """Poll, and return the messages that are wanted; a whole page where all of them are."""
        return self.take((yield from self.next_page()))

    def next_page(self) -> Steps[Page]:
        """Make the poll that comes next; when following, it waits for messages."""
        if not self._placed:
            yield from self._place()
        start = self._start if self.next_id is None else self.next_id
        request = ConsumeRequest(start, self.next_id is None, self._left, self._snapshot)
        wait_ms = FOLLOW_WAIT_MS if self._bounds.follow else 0
        return (yield from ask(messages.poll_call(self._scope, request, self._query, wait_ms)))

    def take(self, page: Page) -> Page | list[Message]:
        """Return the messages of a page that are wanted; then `done` says whether that was all."""
        self.held_by = page.held_by
        if not page:
            self.done = not self._bounds.follow
            self.next_id = page.next_id or self.next_id
            return []
        count = wanted = len(page)
        if self._stop_id is not None:
            wanted = page.count_before(self._stop_id)
        if self._left is not None:
            wanted = min(wanted, self._left)
            self._left -= wanted
            self.done = self._left == 0
        if wanted == count:
            self.next_id = page.next_id
            return page
        self.done = True
        taken = page[:wanted]
        self.next_id = taken[-1].id if taken else self.next_id
        return taken

    def _place(self) -> Steps[None]:
        self._placed = True
        bounds, scope = self._bounds, self._scope
        now_ms = scope.now_ms()
        self._query, self._snapshot = messages.seen_under(bounds.isolation, bounds.transaction)
        stop = None if bounds.stop is None else position(bounds.stop, now_ms, "stop")
        if stop is not None:
            bound = (yield from messages.end(scope)) if stop.kind is PositionKind.END else stop
            self._stop_id = lowest_id(bound)
        start = position(bounds.start, now_ms)
        if start.kind is PositionKind.END:
            start = yield from messages.end(scope)
        self._start = start_from(start)


def read(
    scope: TopicScope,
    start: PositionLike = None,
    stop: PositionLike = None,
    *,
    limit: int | None = None,
    isolation: Isolation = "committed",
    follow: bool = False,
    transaction: TransactionLike = None,
) -> TopicCursor:
    """The messages from `start` to before `stop`, across pages; committed ones, unless `isolation=None`.

    It ends where the topic ends now, or where another transaction is open; with `follow` it waits there for more. With a
    `transaction` it reads under that one's snapshot.
    """
    return TopicCursor(scope, Bounds(start, stop, limit, None if transaction else isolation, follow, transaction))
