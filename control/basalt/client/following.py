"""Reading messages and markers in order: the pure part of an iterator that tells watermarks, and knows where it stands.

`Follower` and `AsyncFollower` ask it what to poll, hand it what comes, and give messages away. What it knows of the topic's
tasks is part of its position, so that a restart there draws the same conclusions. Rules: docs/formats/markers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from basalt.client import markers, messages
from basalt.client.calls import AVRO, BATCHES, Answer, Call, Effect, Steps, ask
from basalt.client.messages import Isolation
from basalt.client.pages import Message
from basalt.client.positions import PositionKind, PositionLike, lowest_id, position
from basalt.client.scopes import TopicScope
from basalt.errors import InputError, MalformedBodyError
from basalt.markers.marker import decode_marker
from basalt.markers.position import MarkedPosition, parse_marked_position
from basalt.markers.reconcile import NOTHING_KNOWN, Idle, advanced, apply, is_ended
from basalt.wire import avro, batches
from basalt.wire.batches import MarkerFrame
from basalt.wire.bodies import MESSAGE_ID_BYTES, ConsumeRequest

FOLLOW_WAIT_MS = 20_000  # a poll that waits; well below the time-outs of proxies, and cheap to repeat

Item: TypeAlias = Message | MarkerFrame
Told = Callable[[int], None]


class MarkedPage:
    """The messages and markers of one poll. `next_id`: go on from here, exclusively."""

    def __init__(self, body: bytes, next_id: bytes | None) -> None:
        self._body = body
        self._frames = batches.decode_marked(body)
        self.next_id = next_id

    def __bool__(self) -> bool:
        return bool(self._frames)

    def __iter__(self) -> Iterator[Item]:
        for frame in self._frames:
            if isinstance(frame, MarkerFrame):
                yield frame
            else:
                yield from map(Message, frame.ids(self._body), frame.payloads(self._body))


class Following:
    """Where a follower stands, and what it knows there."""

    def __init__(
        self,
        scope: TopicScope,
        start: PositionLike | MarkedPosition,
        *,
        on_watermark: Told | None,
        on_end: Callable[[], None] | None,
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
        self._state = NOTHING_KNOWN
        self.watermark_ms: int | None = None

    @property
    def position(self) -> MarkedPosition:
        """Behind what was given away last. `InputError` before the first poll: the start is the position then."""
        if not self._placed:
            raise InputError(
                "nothing was read yet", field="position", hint="Take the position after the first message."
            )
        return MarkedPosition(self._generation, self._after, self._state, self.watermark_ms)

    @property
    def ended(self) -> bool:
        """Whether every expected task has ended."""
        return is_ended(self._state)

    def next_page(self) -> Steps[MarkedPage]:
        """Make the poll that comes next; it waits for messages and markers unless told not to."""
        if not self._placed:
            yield from self._place()
            if self.ended:  # it was told so when it came here
                self.done = True
                return MarkedPage(batches.START + batches.END, None)
        request = ConsumeRequest(self._after, self._after is None)
        page = yield from ask(self._poll(request))
        if not page:
            self.done = not self._wait
            self.passed(page)
        return page

    def take(self, item: Item) -> Message | None:
        """The next item of a page: a message to give away, or None after a marker, whose news are told."""
        self._after = item.id
        if isinstance(item, Message):
            return item
        marker = decode_marker(item.kind, item.payload)
        self._state = apply(self._state, marker, int.from_bytes(item.id[:8], "big"))
        self._tell()
        if self.ended:
            self.done = True
            if self._on_end is not None:
                self._on_end()
        return None

    def passed(self, page: MarkedPage) -> None:
        """All of the page was taken."""
        self._after = page.next_id or self._after
        self._tell()  # tasks that are silent may be left out by now

    def _tell(self) -> None:
        before = self.watermark_ms
        self.watermark_ms = advanced(self._state, before, self._idle, self._scope.now_ms())
        if self.watermark_ms is not None and self.watermark_ms != before and self._on_watermark is not None:
            self._on_watermark(self.watermark_ms)

    def _poll(self, request: ConsumeRequest) -> Call[MarkedPage]:
        wait_ms = FOLLOW_WAIT_MS if self._idle is None else min(FOLLOW_WAIT_MS, max(self._idle.timeout_ms, 1))
        return Call(
            f"follow {self._scope}",
            "POST",
            self._scope.path("poll"),
            _page,
            Effect.NONE,
            query=(*self._query, ("markers", "true")),
            body=avro.encode_consume_request(request),
            content_type=AVRO,
            accept=BATCHES,
            wait_ms=wait_ms if self._wait else 0,
        )

    def _place(self) -> Steps[None]:
        start, scope = self._start, self._scope
        known = yield from markers.facts(scope)
        self._generation = known.generation
        if isinstance(start, MarkedPosition):
            if start.generation != known.generation:
                raise InputError(
                    f"the position is of generation {start.generation} of {scope}, which is generation {known.generation} now",
                    field="position",
                    hint="The topic was deleted and created again: start anew.",
                )
            self._after, self._state, self.watermark_ms = start.after_id, start.state, start.watermark_ms
        else:
            at = position(start, scope.now_ms())
            if at.kind is PositionKind.END:
                at = yield from messages.end(scope)
            lowest = int.from_bytes(lowest_id(at))
            self._after = (lowest - 1).to_bytes(MESSAGE_ID_BYTES) if lowest else None
        self._placed = True


def follow(
    scope: TopicScope,
    position: PositionLike | MarkedPosition = None,
    *,
    on_watermark: Told | None = None,
    on_end: Callable[[], None] | None = None,
    idle_ms: int | None = None,
    quorum: int = 1,
    wait: bool = True,
    isolation: Isolation = "committed",
) -> Following:
    """The messages from a position on, and what the markers between them say, in order; until the topic has ended.

    `on_watermark(ms)` is called each time that event time has advanced, `on_end()` when every task has ended. `position` is
    a former follower's, as text, or any other position, from which on nothing is known of the tasks. With `idle_ms` tasks
    that were silent for so long are left out while `quorum` others are active. `wait=False`: until where the topic ends now.
    """
    idle = None if idle_ms is None else Idle(idle_ms, quorum)
    return Following(
        scope, position, on_watermark=on_watermark, on_end=on_end, idle=idle, wait=wait, isolation=isolation
    )


def _page(answer: Answer) -> MarkedPage:
    next_id = answer.headers.get("basalt-next")
    try:
        return MarkedPage(answer.body, None if next_id is None else bytes.fromhex(next_id))
    except MalformedBodyError as error:
        raise ValueError(error.message) from None
