"""One-shot transactions: what they may leave out of the log before their rows, and what recovery finds again. Pure.

Where rows and log are not one batch, a one-shot transaction is logged only when its rows are written. Until then it is in
flight, and its write pointer is above the log's last one: before the log gives out a later pointer, it hears of all that are
in flight. TopicsUsed tells recovery where to look for their rows. It is logged before a topic's first use, and again from
time to time. docs/decisions/0011-one-shots-without-an-intent.md, 0056-two-write-lanes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit, Proposal
from basalt.transactions.rules.transaction import Join, Kind, next_pointer
from basalt_engine.snapshot import POINTERS_PER_MS

USE_POINTERS = 10_000 * POINTERS_PER_MS  # how long a topic's use lasts; recovery reads what was written in this time
RENEWED_POINTERS = 2_000 * POINTERS_PER_MS  # how old a steady use gets before the log hears of it again
LOST_OWNER = "one-shot without an outcome"

TopicKey = tuple[bytes, int]  # topic prefix and generation
_NOTHING: Mapping[TopicKey, UsedTopic | None] = {}


class UsedTopic(NamedTuple):
    """One-shot transactions with a pointer up to `until` may write to the topic, at or after `join.from_ms`."""

    until: int
    join: Join


class OneShotInFlight(NamedTuple):
    """A one-shot transaction whose rows are written, or being written, and which is not decided."""

    id: int
    began_ms: int
    owner: str
    principal: str
    request_id: str | None
    joins: tuple[Join, ...]

    def began(self) -> list[Edit]:
        """The edits by which the log hears of it before it is decided."""
        made: list[Edit] = [edits.Began(self.id, Kind.SHORT, False, self.began_ms, self.began_ms, self.owner, None)]
        if self.principal:
            made.append(edits.Owned(self.id, self.principal))
        return [*made, *(edits.Joined(self.id, join) for join in self.joins)]


class OneShotsInFlight:
    """The one-shot transactions in flight. What recovery finds again: it is no part of the state that the log makes."""

    def __init__(self) -> None:
        self._by_id: dict[int, OneShotInFlight] = {}  # ids rise
        self._requests: dict[str, int] = {}
        self.last_pointer = 0  # the newest that was given out here
        self.last_decided = 0  # the one that the last edit about one-shot transactions has committed

    def __iter__(self) -> Iterator[OneShotInFlight]:
        return iter(self._by_id.values())

    def __contains__(self, transaction_id: int) -> bool:
        return transaction_id in self._by_id

    @property
    def first(self) -> int | None:
        """The lowest pointer in flight."""
        return next(iter(self._by_id), None)

    def has_request(self, request_id: str | None) -> bool:
        """True while the one-shot transaction of this request id is in flight."""
        return request_id in self._requests

    def add(self, placed: OneShotInFlight) -> None:
        """Its rows are about to be written."""
        self._by_id[placed.id] = placed
        self.last_pointer = placed.id
        if placed.request_id is not None:
            self._requests[placed.request_id] = placed.id

    def failed(self, placed: OneShotInFlight) -> None:
        """It will be given up: the same request is carried out anew."""
        if placed.request_id is not None and self._requests.get(placed.request_id) == placed.id:
            del self._requests[placed.request_id]

    def remove(self, placed: OneShotInFlight) -> None:
        """It is decided, durably."""
        self.failed(placed)
        self._by_id.pop(placed.id, None)

    def announcement(self, last_pointer: int) -> list[Edit]:
        """The edits to log before a later pointer is given out, of those that the log has not heard of. Rows of theirs may be there."""
        made: list[Edit] = []
        for placed in self:
            if placed.id > last_pointer:
                made += [*placed.began(), edits.Committing(placed.id, None, placed.began_ms)]
        return made


class TopicUseEdits(NamedTuple):
    """The edits by which the log learns to which topics a one-shot transaction writes."""

    before: tuple[Edit, ...] = ()  # durable before its rows are written
    with_outcome: tuple[Edit, ...] = ()


class OneShotTopics:
    """The topics in use, those first whose use ends first. One whose use has ended may still be held, but does not count."""

    def __init__(self, used: Iterable[UsedTopic] = ()) -> None:
        self._used = {each.join.key: each for each in used}

    def get(self, key: TopicKey) -> UsedTopic | None:
        """The topic's entry, whether or not its use has ended."""
        return self._used.get(key)

    def entries(self, last_pointer: int) -> tuple[UsedTopic, ...]:
        """The topics that are in use after this pointer."""
        return tuple([used for used in self._used.values() if used.until > last_pointer])

    def apply(self, edit: edits.TopicsUsed, last_pointer: int) -> None:
        """These topics are in use until then, each from its time on; whatever was said of them before counts no more."""
        for join in edit.topics:
            used = UsedTopic(edit.until, join)
            self._used.pop(used.join.key, None)  # put in anew, for the order
            if edit.until > last_pointer:
                self._used[used.join.key] = used
        while self._used and (first := next(iter(self._used.values()))).until <= last_pointer:
            del self._used[first.join.key]

    # Proposals.

    def use(
        self, write_pointer: int, joins: Iterable[Join], durable: Mapping[TopicKey, UsedTopic | None] = _NOTHING
    ) -> TopicUseEdits:
        """The edits to log for these topics, to which no one-shot transaction of the same group has written yet.

        `durable` is what the log has of topics of which it is about to hear something else.
        """
        new: list[Join] = []
        renewed: list[Join] = []
        for join in joins:
            known = durable[join.key] if join.key in durable else self._used.get(join.key)
            # Where a topic ends may have been read anew from the store, and places that were lost are not known there.
            if known is None or write_pointer > known.until or join.from_ms < known.join.from_ms:
                new.append(join)
            elif write_pointer > known.until - USE_POINTERS + RENEWED_POINTERS:
                renewed.append(join)
        until = write_pointer + USE_POINTERS
        return TopicUseEdits(*((edits.TopicsUsed(until, tuple(some)),) if some else () for some in (new, renewed)))

    def end_idle(self, last_pointer: int, now_ms: int, first_in_flight: int | None = None) -> Proposal:
        """End the use of topics to which no one-shot transaction has written for long, where no other pointer does so."""
        now = next_pointer(last_pointer, now_ms)
        if first_in_flight is not None:
            now = min(now, first_in_flight)
        idle = tuple(used.join for used in self.entries(last_pointer) if used.until < now)
        return Proposal((edits.TopicsUsed(last_pointer, idle),) if idle else ())

    def roll_back_unknown(self, last_pointer: int, joins_of_writer: Mapping[int, Sequence[Join]]) -> Proposal:
        """Make aborting transactions of writers that the log does not know, by where their rows lie.

        From then on no topic is in use. So before the next one-shot transaction writes a row, an entry takes its place in
        the log, and nothing that was given up can turn up there any more and hand out that transaction's pointer too.
        """
        made: list[Edit] = []
        for writer in sorted(joins_of_writer):
            began_ms = writer // POINTERS_PER_MS
            made.append(edits.Began(writer, Kind.SHORT, False, began_ms, began_ms, LOST_OWNER, None))
            made += [edits.Joined(writer, join) for join in joins_of_writer[writer]]
            made.append(edits.Aborting(writer, False))
        in_use = tuple(used.join for used in self.entries(last_pointer))
        if in_use:
            made.append(edits.TopicsUsed(max(joins_of_writer, default=last_pointer), in_use))
        return Proposal(tuple(made))
