"""The durable state of consumer groups: what each has acknowledged, what open transactions will acknowledge, what came back.

Progress is kept as spans of message ids (`basalt_engine.spans`). An acknowledgement of an open transaction is *pending*: its
commit makes it the group's, any other end drops it. What was dealt and came back unacknowledged is *returned*, with the number
of attempts and the time before which it is not dealt again. Who works on what right now is no part of this: it is known in memory.
The edits come with `acknowledgements`, which decides; here they are made true. Bytes: docs/formats/transaction-log.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.errors import CorruptionError
from basalt_engine.spans.span_map import SpanMap
from basalt_engine.spans.spans import ZERO_ID, Spans

NEVER_MS = (1 << 63) - 1  # `not_before_ms` of a message that is parked: nobody gets it until somebody asks for that
ATTEMPTS_MAX = 0xFFFF  # what the log's snapshot can hold; counted no further
_NOTHING = Spans()
_NO_SPANS: Mapping[int, Spans] = MappingProxyType({})

TopicGeneration = tuple[bytes, int]  # topic prefix and generation


class Attempt(NamedTuple):
    """The number of times that a message was dealt without being acknowledged, when it may be dealt again, and why it came back last."""

    attempts: int
    not_before_ms: int
    reason: ReturnReason


class ReturnedSpan(NamedTuple):
    """All of a group's spans that came back alike."""

    attempts: int
    not_before_ms: int
    reason: ReturnReason
    spans: Spans


class Returns(SpanMap[Attempt]):
    """Spans with an attempt each, sorted and disjoint; neighbours that came back alike are one."""

    __slots__ = ()

    def __init__(self, returned: Iterable[ReturnedSpan] = ()) -> None:
        super().__init__()
        self.fill([(each.spans, Attempt(each.attempts, each.not_before_ms, each.reason)) for each in returned])

    def copy(self) -> Returns:
        made = Returns()
        made.copied_from(self)
        return made

    def at(self, message_id: bytes) -> Attempt | None:
        """The attempt of the message with this id; None where it never came back."""
        found = self.span_of(message_id)
        return None if found is None else found[2]

    def forget(self, spans: Spans) -> None:
        """Nothing is known of these any more."""
        if self.meets(spans):
            self.subtract(spans)

    def once_more(self, spans: Spans) -> dict[int, Spans]:
        """The parts of these by the attempts that they have had once they come back now."""
        if not self.meets(spans):
            return {1: spans}
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for after, through, attempt in self.common(spans):
            found.setdefault(min(attempt.attempts + 1, ATTEMPTS_MAX), []).append((after, through))
        by_attempts = {attempts: Spans(pairs) for attempts, pairs in found.items()}
        fresh = spans.minus(self)
        if fresh:
            by_attempts[1] = fresh
        return dict(sorted(by_attempts.items()))

    def alike(self) -> list[ReturnedSpan]:
        """The spans by how they came back, fewest attempts and earliest time first."""
        found: dict[Attempt, list[tuple[bytes, bytes]]] = {}
        for after, through, attempt in self:
            found.setdefault(attempt, []).append((after, through))
        return [ReturnedSpan(*attempt, Spans(pairs)) for attempt, pairs in sorted(found.items(), key=itemgetter(0))]


@dataclass(slots=True)
class GroupState:
    """One group. Only `GroupTable` changes it, but for copies, which nobody changes.

    `prefix` is that of its topic, `namespace:topic:`; `options` are JSON with sorted members, which this package does not read.
    `round` is another one after each seek, and of a group of this name that is made again: what was dealt in a former round may
    not be acknowledged any more.
    """

    number: int
    prefix: bytes
    generation: int
    name: str
    options: bytes
    made_ms: int
    used_ms: int
    round: int  # 0 in a call says nothing
    paused: bool = False
    acknowledged: Spans = field(default_factory=Spans)
    returns: Returns = field(default_factory=Returns)
    # What a snapshot of the log says of it, kept until it changes: a copy, and its bytes once somebody has encoded them.
    encoded: bytes | None = field(default=None, compare=False, repr=False)
    _image: GroupState | None = field(default=None, compare=False, repr=False)

    @property
    def topic(self) -> TopicGeneration:
        return self.prefix, self.generation

    @property
    def returned(self) -> list[ReturnedSpan]:
        """The spans that came back, by how they did; costs their number. `returns` tells of a single message."""
        return self.returns.alike()

    def unacknowledged(self, spans: Spans) -> Spans:
        """The parts of these that it has not acknowledged, as a set of its own."""
        return spans.minus(self.acknowledged)

    def image(self) -> GroupState:
        """A copy that stays as it is; the same one until the group changes."""
        if self._image is None:
            self._image = self._copy()
        return self._image

    def working(self) -> GroupState:
        """A copy that may change, of an image that was read or is kept; its bytes stay good until then."""
        made = self._copy()
        made._image = self
        return made

    def changed(self, at_ms: int) -> None:
        """Something about it is not as it was: an image is made anew."""
        self.used_ms = max(self.used_ms, at_ms)
        self._image = None

    def _copy(self) -> GroupState:
        return GroupState(
            self.number, self.prefix, self.generation, self.name, self.options, self.made_ms, self.used_ms, self.round,
            self.paused, self.acknowledged.copy(), self.returns.copy(),
        )  # fmt: skip


class PendingSpans(NamedTuple):
    """The messages that one open transaction will acknowledge, by the numbers of the groups, ascending."""

    transaction_id: int
    groups: tuple[tuple[int, Spans], ...]


class SavedGroup(NamedTuple):
    """One group as it was, and what was pending in it, by transaction."""

    group: GroupState
    pending: Mapping[int, Spans]


class GroupTable:
    """All groups, and what open transactions will acknowledge in them. No call but `images` costs the number of groups."""

    def __init__(
        self, groups_made: int = 0, groups: Iterable[GroupState] = (), pending: Iterable[PendingSpans] = ()
    ) -> None:
        self.groups_made = groups_made  # the highest number that a group got: none is used again
        self.by_number: dict[int, GroupState] = {}
        self.span_count = 0  # of all groups, and of all that is pending
        self._by_name: dict[tuple[bytes, int, str], int] = {}
        self._of_topic: dict[TopicGeneration, dict[int, None]] = {}
        self._pending: dict[int, dict[int, Spans]] = {}  # by transaction and group
        self._pending_in: dict[int, dict[int, Spans]] = {}  # the same by group and transaction
        self._held: dict[int, Spans] = {}  # all that is pending in a group
        for group in groups:
            self._enter(group.working())
        for transaction_id, spans_of in pending:
            for number, spans in spans_of:
                self._hold(transaction_id, number, spans)

    def __len__(self) -> int:
        return len(self.by_number)

    def find(self, prefix: bytes, generation: int, name: str) -> GroupState | None:
        number = self._by_name.get((prefix, generation, name))
        return None if number is None else self.by_number[number]

    def of_topic(self, prefix: bytes, generation: int) -> list[GroupState]:
        """The groups of one generation of a topic, the oldest first."""
        return [self.by_number[number] for number in self._of_topic.get((prefix, generation), ())]

    def pending_in(self, number: int) -> Mapping[int, Spans]:
        """The spans that are pending in a group, by transaction. Not to be changed, and only of the moment."""
        return self._pending_in.get(number, _NO_SPANS)

    def pending_of(self, transaction_id: int) -> Mapping[int, Spans]:
        """The spans that are pending in a transaction, by the group's number. Not to be changed, and only of the moment."""
        return self._pending.get(transaction_id, _NO_SPANS)

    def spans_of(self, number: int) -> int:
        """The number of spans of one group, and of what is pending in it, where that lies together as one."""
        group, held = self.by_number.get(number), self._held.get(number)
        return (0 if group is None else len(group.acknowledged)) + (0 if held is None else len(held))

    def pending_holder(self, number: int, after: bytes, through: bytes) -> int | None:
        """The transaction in which some of (after, through] is pending; where there are several, the one that asked first."""
        held = self._held.get(number)
        if held is None or not held.overlaps(after, through):
            return None
        found = self._pending_in[number].items()
        return next((holder for holder, spans in found if spans.overlaps(after, through)), None)

    def held_in(self, number: int) -> Spans:
        """All that is pending in a group, in whichever transaction. Not to be changed, and only of the moment."""
        return self._held.get(number, _NOTHING)

    # For snapshots of the log.

    def images(self) -> tuple[GroupState, ...]:
        """All groups by number, as they are now: copies of those that have changed since the last call."""
        return tuple([self.by_number[number].image() for number in sorted(self.by_number)])

    def pending_images(self) -> tuple[PendingSpans, ...]:
        """All that is pending, by transaction, as a copy."""
        return tuple([
            PendingSpans(transaction_id, tuple([(number, spans.copy()) for number, spans in sorted(held.items())]))
            for transaction_id, held in sorted(self._pending.items())
        ])  # fmt: skip

    # For a member that guesses what the log will say.

    def saved(self, number: int) -> SavedGroup:
        """The group as it is, for `restore`. `CorruptionError` for none."""
        pending = {transaction_id: spans.copy() for transaction_id, spans in self.pending_in(number).items()}
        return SavedGroup(self._known(number).image(), pending)

    def restore(self, saved: SavedGroup) -> None:
        """Make the group what it was, unless it is gone."""
        image, group = saved.group, self.by_number.get(saved.group.number)
        if group is None:
            return
        for transaction_id in list(self.pending_in(group.number)):
            self._release(transaction_id, group.number)
        self.span_count -= len(group.acknowledged)
        group.options, group.paused, group.used_ms, group.round = (
            image.options,
            image.paused,
            image.used_ms,
            image.round,
        )
        group.acknowledged, group.returns = image.acknowledged.copy(), image.returns.copy()
        group._image = image
        self.span_count += len(group.acknowledged)
        for transaction_id, spans in saved.pending.items():
            self._hold(transaction_id, group.number, spans)

    # What edits do. `CorruptionError`, and nothing changed, when the state does not allow it. No conflict between two
    # transactions is looked for here: proposals do that.

    def made(self, edit: edits.GroupMade) -> None:
        if edit.number <= self.groups_made or (edit.prefix, edit.generation, edit.name) in self._by_name:
            raise CorruptionError(
                f"group {edit.name!r} gets number {edit.number}, or a name, that another one has or had"
            )
        group = GroupState(
            edit.number, edit.prefix, edit.generation, edit.name, edit.options, edit.at_ms, edit.at_ms, edit.round
        )
        if edit.floor != ZERO_ID:
            group.acknowledged.add(ZERO_ID, edit.floor)
        self.groups_made = edit.number
        self._enter(group)

    def options_changed(self, edit: edits.GroupChanged) -> None:
        group = self._known(edit.number)
        group.options, group.paused = edit.options, edit.paused
        group.changed(edit.at_ms)

    def sought(self, edit: edits.GroupSought) -> None:
        """The group starts again behind a place. What was pending is nothing any more: its transactions are doomed."""
        group = self._known(edit.number)
        if edit.round == group.round:
            raise CorruptionError(f"group {edit.number} is sought to round {edit.round}, in which it is")
        for transaction_id in list(self.pending_in(edit.number)):
            self._release(transaction_id, edit.number)
        self.span_count -= len(group.acknowledged)
        group.acknowledged, group.returns, group.round = Spans(), Returns(), edit.round
        if edit.floor != ZERO_ID:
            group.acknowledged.add(ZERO_ID, edit.floor)
        self.span_count += len(group.acknowledged)
        group.changed(edit.at_ms)

    def forgotten(self, edit: edits.GroupsForgotten) -> None:
        """Some groups are gone, with all that was pending in them; their transactions may still commit the rest."""
        gone = [self._known(number) for number in edit.numbers]
        for group in gone:
            for transaction_id in list(self.pending_in(group.number)):
                self._release(transaction_id, group.number)
            self.span_count -= len(group.acknowledged)
            del self.by_number[group.number], self._by_name[group.prefix, group.generation, group.name]
            others = self._of_topic[group.topic]
            del others[group.number]
            if not others:
                del self._of_topic[group.topic]

    def acknowledged(self, edit: edits.Acknowledged, last_one_shot: int) -> None:
        """Some messages are acknowledged at once. Those of a one-shot transaction come in its entry, behind it."""
        group = self._known(edit.number)
        if edit.writer not in (0, last_one_shot):
            raise CorruptionError(
                f"one-shot transaction {edit.writer} acknowledges, and the last one that committed is {last_one_shot}"
            )
        self._acknowledge(group, edit.spans, edit.at_ms)

    def acknowledged_in(self, edit: edits.AcknowledgedIn, transaction: Transaction | None) -> None:
        """Some messages are pending in a transaction; in one whose abort is decided that is nothing."""
        self._known(edit.number)
        state = None if transaction is None else transaction.state
        if state is State.ABORTING:
            return
        if state not in (State.OPEN, State.COMMITTING):
            raise CorruptionError(f"transaction {edit.id} acknowledges in group {edit.number}, and is not in progress")
        self._hold(edit.id, edit.number, edit.spans)

    def returned(self, edit: edits.Returned) -> None:
        """Some messages came back: their attempts are one more. What was acknowledged meanwhile is not among them."""
        group = self._known(edit.number)
        left = group.unacknowledged(edit.spans)
        if edit.reason is ReturnReason.UNPARKED:
            group.returns.forget(left)
        else:
            again = group.returns.once_more(left)
            group.returns.forget(left)
            group.returns.fill([
                (spans, Attempt(attempts, edit.not_before_ms, edit.reason)) for attempts, spans in again.items()
            ])  # fmt: skip
        group.changed(edit.at_ms)

    def committed(self, transaction_id: int, at_ms: int) -> None:
        """All that was pending in the transaction is its groups' from now on."""
        for number in list(self.pending_of(transaction_id)):
            self._acknowledge(self.by_number[number], self._release(transaction_id, number), at_ms)

    def dropped(self, transaction_id: int) -> None:
        """All that was pending in the transaction is nothing any more: it will not commit."""
        for number in list(self.pending_of(transaction_id)):
            self._release(transaction_id, number)

    def _known(self, number: int) -> GroupState:
        group = self.by_number.get(number)
        if group is None:
            raise CorruptionError(f"an edit is about group {number}, which there is not")
        return group

    def _enter(self, group: GroupState) -> None:
        self.by_number[group.number] = group
        self._by_name[group.prefix, group.generation, group.name] = group.number
        self._of_topic.setdefault(group.topic, {})[group.number] = None
        self.span_count += len(group.acknowledged)

    def _acknowledge(self, group: GroupState, spans: Spans, at_ms: int) -> None:
        self.span_count -= len(group.acknowledged)
        group.acknowledged.update(spans)
        self.span_count += len(group.acknowledged)
        group.returns.forget(spans)
        group.changed(at_ms)

    def _hold(self, transaction_id: int, number: int, spans: Spans) -> None:
        held = self._pending.setdefault(transaction_id, {})
        known = held.get(number)
        self.span_count += len(spans)
        if known is None:
            held[number] = known = spans.copy()
            self._pending_in.setdefault(number, {})[transaction_id] = known
        else:
            self.span_count -= len(known) + len(spans)
            known.update(spans)
            self.span_count += len(known)
        self._held.setdefault(number, Spans()).update(spans)

    def _release(self, transaction_id: int, number: int) -> Spans:
        spans = self._pending[transaction_id].pop(number)
        if not self._pending[transaction_id]:
            del self._pending[transaction_id]
        others = self._pending_in[number]
        del others[transaction_id]
        if others:
            self._held[number].subtract(spans)
        else:
            del self._pending_in[number], self._held[number]
        self.span_count -= len(spans)
        return spans
