"""Reading page after page: the cursors of `Reader` and `Follower`, which know the next poll and when there is none.

A follower reads messages and markers in order, and tells watermarks on the way. Its position includes what the markers said of
the topic's tasks, so that a restart there draws the same conclusions. How many tasks are expected comes with each page, because
the topic's property may change. Rules: docs/formats/markers.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from basalt.api.bodies.messages import MESSAGE_ID_BYTES, ConsumeRequest
from basalt.api.codecs import avro, batches
from basalt.api.codecs.batches import MarkerFrame
from basalt.api.markers import (
    NOTHING_KNOWN,
    Idle,
    MarkedPosition,
    MarkerState,
    advanced,
    apply,
    decode_marker,
    is_ended,
    parse_marked_position,
)
from basalt.api.positions import PositionKind
from basalt.client.calls import messages, topics
from basalt.client.calls.messages import (
    FOLLOW_WAIT_MS,
    Isolation,
    PositionLike,
    TransactionLike,
    lowest_id,
    position,
    start_from,
)
from basalt.client.calls.pages import Message, Page
from basalt.client.plans import AVRO, BATCHES, Answer, Await, Call, Effect, Query, Steps, TopicScope, ask, next_id_of
from basalt.errors import InputError, MalformedBodyError

Item: TypeAlias = Message | MarkerFrame
Told = Callable[[int], object]
ToldEnd = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """The bounds of a read: from `start` to before `stop`, `limit` messages at most; past the end if `follow`."""

    start: PositionLike
    stop: PositionLike
    limit: int | None = None
    isolation: Isolation = "committed"
    follow: bool = False
    transaction: TransactionLike = None


class TopicCursor:
    """The place of a reader. `next_id` is the id of the last message it passed; `held_by` and `view_age_ms` as in `Page`."""

    def __init__(self, scope: TopicScope, bounds: ReadBounds) -> None:
        self.next_id: bytes | None = None
        self.held_by: str | None = None
        self.view_age_ms: int | None = None
        self.done = bounds.limit == 0
        self._scope = scope
        self._bounds = bounds
        self._left = bounds.limit
        self._start: bytes | int | None = None
        self._stop_id: bytes | None = None
        self._query: Query = ()
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
        follow = self._bounds.follow
        call = messages.poll_call(self._scope, request, self._query, FOLLOW_WAIT_MS if follow else 0, patient=follow)
        return (yield from ask(call))

    def take(self, page: Page) -> Page | list[Message]:
        """Return the messages of a page that are wanted; then `done` says whether that was all."""
        self.held_by, self.view_age_ms = page.held_by, page.view_age_ms
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
        bounds, scope = self._bounds, self._scope
        now_ms = scope.now_ms()
        self._query, self._snapshot = messages.seen_under(bounds.isolation, bounds.transaction)
        stop = None if bounds.stop is None else position(bounds.stop, now_ms, "stop")
        if stop is not None:
            bound = (yield from messages.end(scope, patient=bounds.follow)) if stop.kind is PositionKind.END else stop
            self._stop_id = lowest_id(bound)
        start = position(bounds.start, now_ms)
        if start.kind is PositionKind.END:
            start = yield from messages.end(scope, patient=bounds.follow)
        self._start = start_from(start)
        self._placed = True


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
    """The messages from `start` to before `stop`, across pages; committed ones, unless `isolation="uncommitted"`.

    It ends where the topic ends now, or where another transaction is open; with `follow` it waits there for more, and for
    a server that cannot be reached. With a `transaction` it reads under that one's snapshot.
    """
    return TopicCursor(scope, ReadBounds(start, stop, limit, isolation, follow, transaction))


class MarkedPage:
    """The messages and markers of one poll. `next_id`: go on from here, exclusively.

    They are of `generation`; `tasks` is the topic's property of that name at the time, None where it is not set.
    """

    def __init__(self, body: bytes, next_id: bytes | None, generation: int, tasks: int | None) -> None:
        self._body = body
        self._frames = batches.decode_marked(body)
        self.next_id = next_id
        self.generation = generation
        self.tasks = tasks

    def __bool__(self) -> bool:
        return bool(self._frames)

    def __iter__(self) -> Iterator[Item]:
        for frame in self._frames:
            if isinstance(frame, MarkerFrame):
                yield frame
            else:
                carried = frame.carried(self._body)
                columns = () if carried is None else (carried,)
                yield from map(Message, frame.ids(self._body), frame.payloads(self._body), *columns)


class FollowCursor:
    """The place of a follower, and what it knows there of the topic's tasks."""

    def __init__(
        self,
        scope: TopicScope,
        start: PositionLike | MarkedPosition,
        *,
        on_watermark: Told | None,
        on_end: ToldEnd | None,
        idle: Idle | None,
        wait: bool,
        isolation: Isolation,
    ) -> None:
        self.done = False
        self._scope = scope
        self._start = parse_marked_position(start) if isinstance(start, str) and start[:1] == "{" else start
        self._on_watermark = on_watermark
        self._on_end = on_end
        self._idle = idle
        self._wait = wait
        self._query, _ = messages.seen_under(isolation, None)
        self._placed = False
        self._generation = 0
        self._after: bytes | None = None
        self._state = NOTHING_KNOWN  # as the markers say
        self._tasks: int | None = None  # how many the topic itself expects, as the server said last
        self._page: MarkedPage | None = None
        self._items: Iterator[Item] = iter(())
        self._heard = False  # a marker was read, and nothing is told of it yet
        self.watermark_ms: int | None = None

    @property
    def position(self) -> MarkedPosition:
        """Behind what was handed out last. `InputError` before the first poll: the start is the position then."""
        if not self._placed:
            raise InputError(
                "nothing was read yet", field="position", hint="Take the position after the first message."
            )
        return MarkedPosition(self._generation, self._after, self._state, self.watermark_ms)

    @property
    def ended(self) -> bool:
        """True once every expected task has ended."""
        return is_ended(self._expected_markers())

    def refuse_coroutines(self) -> None:
        """Raise `TypeError` for a callback that would have to be awaited."""
        for name, callback in (("on_watermark", self._on_watermark), ("on_end", self._on_end)):
            if inspect.iscoroutinefunction(callback):
                raise TypeError(f"{name} is a coroutine function, which only the async client can await")

    def next_items(self) -> Steps[Iterable[Message]]:
        """Take the next step, and return the messages from there up to the next marker. The step tells of a marker, or
        of a page that was passed; otherwise it polls. A poll waits for messages and markers unless told not to.
        """
        if not self._placed:
            yield from self._place()
            self.done = self.ended  # it was told so when it came here
        elif self._heard:
            yield from self._tell_watermark()
            self._heard = False
        elif self._page is None:
            yield from self._turn()
        else:
            yield from self._pass(self._page)
        return () if self.done else self._until_marker()

    def _until_marker(self) -> Iterator[Message]:
        for item in self._items:
            self._after = item.id
            if not isinstance(item, Message):
                self._state = apply(
                    self._state, decode_marker(item.kind, item.payload), int.from_bytes(item.id[:8], "big")
                )
                self._heard = True
                return
            yield item

    def _expected_markers(self) -> MarkerState:
        return self._state.expecting(self._tasks)

    def _turn(self) -> Steps[None]:
        page = yield from ask(self._poll(ConsumeRequest(self._after, self._after is None)))
        self._check(page.generation)
        self._tasks = page.tasks
        self._page, self._items = page, iter(page)

    def _pass(self, page: MarkedPage) -> Steps[None]:
        self._page, self._after = None, page.next_id or self._after
        yield from self._tell_watermark()  # silent tasks may be left out by now, or the topic's property has changed
        self.done = self.done or not (page or self._wait)

    def _tell_watermark(self) -> Steps[None]:
        if self.ended:  # the property may have changed since the page was read, and an end is never taken back
            facts = yield from topics.markers_now(self._scope, patient=self._wait)
            self._check(facts.generation)
            self._tasks = facts.task_count
        before = self.watermark_ms
        self.watermark_ms = advanced(self._expected_markers(), before, self._idle, self._scope.now_ms())
        if self.watermark_ms is not None and self.watermark_ms != before and self._on_watermark is not None:
            yield from _awaited(self._on_watermark(self.watermark_ms), "on_watermark")
        if self.ended:
            self.done = True
            if self._on_end is not None:
                yield from _awaited(self._on_end(), "on_end")

    def _poll(self, request: ConsumeRequest) -> Call[MarkedPage]:
        wait_ms = FOLLOW_WAIT_MS if self._idle is None else min(FOLLOW_WAIT_MS, max(self._idle.timeout_ms, 1))
        return Call(
            f"follow {self._scope}",
            "POST",
            self._scope.path("poll"),
            _marked_page,
            Effect.NONE,
            (*self._query, ("markers", "true")),
            avro.encode_consume_request(request),
            AVRO,
            BATCHES,
            wait_ms if self._wait else 0,
            patient=self._wait,
        )

    def _place(self) -> Steps[None]:
        start, scope = self._start, self._scope
        known = yield from topics.markers_now(scope, patient=self._wait)
        self._generation, self._tasks = known.generation, known.task_count
        if isinstance(start, MarkedPosition):
            self._generation = start.generation
            self._check(known.generation)
            self._after, self._state, self.watermark_ms = start.after_id, start.state, start.watermark_ms
        else:
            begin = position(start, scope.now_ms())
            if begin.kind is PositionKind.END:
                begin = yield from messages.end(scope, patient=self._wait)
            lowest = int.from_bytes(lowest_id(begin))
            self._after = (lowest - 1).to_bytes(MESSAGE_ID_BYTES) if lowest else None
        self._placed = True

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise InputError(
                f"the position is of generation {self._generation} of {self._scope}, which is generation {generation} now",
                field="position",
                hint="The topic was deleted and created again: start anew.",
            )


def follow(
    scope: TopicScope,
    position: PositionLike | MarkedPosition = None,
    *,
    on_watermark: Told | None = None,
    on_end: ToldEnd | None = None,
    idle_ms: int | None = None,
    quorum: int = 1,
    wait: bool = True,
    isolation: Isolation = "committed",
) -> FollowCursor:
    """The messages from a position on, and what the markers between them say, in order; until the topic has ended.

    `on_watermark(ms)` is called each time that event time has advanced, `on_end()` when every task has ended. The async
    client awaits what they return where it can be awaited; with the blocking one a coroutine function is a `TypeError`.
    `position` is a former follower's, as text, or any other position, from which on nothing is known of the tasks;
    `InputError` once the topic is another generation than it was there. With `idle_ms` tasks that were silent for so long are
    left out while `quorum` others are active. A server that cannot be reached is waited for. `wait=False`: until where the
    topic ends now.
    """
    idle = None if idle_ms is None else Idle(idle_ms, quorum)
    return FollowCursor(
        scope, position, on_watermark=on_watermark, on_end=on_end, idle=idle, wait=wait, isolation=isolation
    )


def _marked_page(answer: Answer) -> MarkedPage:
    tasks, generation = answer.headers.get("basalt-tasks"), answer.headers.get("basalt-generation")
    if generation is None:
        raise ValueError("it does not say of which generation of the topic it is")
    try:
        return MarkedPage(answer.body, next_id_of(answer), int(generation), None if tasks is None else int(tasks))
    except MalformedBodyError as error:
        raise ValueError(error.message) from None


def _awaited(told: object, what: str) -> Steps[None]:
    """Await what a callback has returned, where that can be awaited. The blocking client refuses it."""
    if inspect.isawaitable(told):
        yield Await(told, what)
