"""Answers to operators about consumer groups: how far each is behind, what state its messages are in, why one is not worked on.

All of it is put together when somebody asks, from what the transaction log has decided (acknowledged, pending, returned), from
what this process knows (members, claims), and from the topic's index. Nothing here changes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import NamedTuple

from msgspec import structs

from basalt.api.bodies import groups as bodies
from basalt.api.bodies.json import HexMessageId
from basalt.catalog.topics import TopicName, title_of
from basalt.commits.coordinator import Coordinator
from basalt.errors import (
    GroupNotFoundError,
    MessageNotFoundError,
    SessionFencedError,
    ShardMovingError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.groups.claims import Claim, Claims
from basalt.groups.figures import Figures, GroupTotals, Lag, expired_through, reason_text
from basalt.groups.groups import Groups
from basalt.groups.keyed.slots import SLOTS
from basalt.groups.live_group import LiveGroup
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.peek import Peek
from basalt.messaging.ranges import SCAN_BYTES_MAX, SCAN_ROWS_MAX, Ranges
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.last_stable import Settled
from basalt.messaging.read.log_reader import LogReader, ReadBudget, SliceLimits, Start, before
from basalt.operations.groups.explanation import (
    Acknowledgement,
    Ahead,
    Draining,
    Holder,
    Presence,
    Return,
    Situation,
    Unacknowledged,
    Work,
    explain,
    named,
)
from basalt.transactions.rules import edits
from basalt.transactions.rules.groups import NEVER_MS, Attempt, GroupState
from basalt.transactions.rules.transaction import Sees, TransactionIds, sees_all
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.records import RecordKind
from basalt_engine.spans.spans import ZERO_ID, Spans
from basalt_engine.table import Store

LOOKS_MAX = 250  # pieces in one state before others get their turn: some milliseconds, for there are four states
TURNS_MAX = 2_000  # of one list: pieces that it passes, in all, to find what is asked for
COUNT_TURNS = 4  # of one count: of more pieces, a part is counted
LAST_ID = b"\xff" * MESSAGE_ID_BYTES  # behind every message
PAGE_MS = 1_000  # of counting for one page of a list with figures: a client waits longer, and sees that it goes on
LOOKS_PER_ENTRY = 4  # parts that are looked into for each entry that is wanted: in some, nothing lives any more
ENTRIES_MAX = 1_000  # of one list of messages: an operator looks at them one by one
FIGURES_MAX = (
    10_000  # groups whose counts stay in memory; beyond, that of whom nobody has asked longest is counted anew
)

SILENT_PART = 2  # a member that has not been heard of for half of its lease is silent: it renews three times in one

AVAILABLE, CLAIMED, PENDING, DELAYED, PARKED, ACKNOWLEDGED = (
    "available",
    "claimed",
    "pending",
    "delayed",
    "parked",
    "acknowledged",
)
STATES = (AVAILABLE, CLAIMED, PENDING, DELAYED, PARKED)


class Stretch(NamedTuple):
    """A part of a topic that a group has not acknowledged, all of it in one state."""

    after: bytes
    through: bytes
    state: str
    attempts: int = 0
    reason: str | None = None
    claim: Claim | None = None
    transaction_id: int | None = None
    not_before_ms: int | None = None


class Known(NamedTuple):
    """All that is known of a group's messages at one moment, to be read at once."""

    state: GroupState
    pending: Mapping[int, Spans]  # by transaction
    held: Spans  # all of it together
    claims: Claims
    returned: Spans  # all that came back

    def at(self, message_id: bytes, now_ms: int) -> Stretch:
        """The state of one message."""
        found = Stretch(message_id, message_id, AVAILABLE)
        if self.state.acknowledged.covers(message_id):
            return found._replace(state=ACKNOWLEDGED)
        if self.held.covers(message_id):
            holders = (holder for holder, spans in self.pending.items() if spans.covers(message_id))
            return found._replace(state=PENDING, transaction_id=next(holders, None))
        claim = self.claims.holder(message_id)
        if claim is not None:
            return found._replace(state=CLAIMED, attempts=claim.attempt - 1, claim=claim)
        attempt = self.state.returns.at(message_id)
        return found if attempt is None else _returned(message_id, message_id, attempt, now_ms)


class Found(NamedTuple):
    """The parts of a stretch that was looked through, up to `through`."""

    parts: list[Stretch]
    through: bytes


class _Looks:
    """The looks that are left for parts in one state; `at` is where they were over."""

    __slots__ = ("at", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.at: bytes | None = None

    def free(self, layers: Sequence[Spans], source: Stretch, wanted: str | None) -> Iterator[tuple[bytes, bytes]]:
        """The parts of a stretch that no layer covers, in order, as long as there are looks left. None of an unwanted one, which costs
        a look, too.
        """
        after, through = source.after, source.through
        if wanted not in (None, source.state) and self.left:
            self.left -= 1
            return
        while after < through:
            if not self.left:
                self.at = after
                return
            self.left -= 1
            begin, stop = after, through
            for layer in layers:
                after, following = layer.gap_after(after)
                stop = stop if following is None else min(stop, following)
            if after == begin:  # else a layer that was asked before may go on there
                yield after, stop
                after = stop


def stretches(known: Known, now_ms: int, begin: bytes, end: bytes, looks_max: int, wanted: str | None = None) -> Found:
    """The parts behind `begin` that a group has not acknowledged, in order: each place once, under the strongest state that it is in.

    What is just available is told up to `end`. Of each state no more than `looks_max` pieces are looked at, whatever comes of
    them: a group may be in a hundred thousand. `wanted`: of this state alone.
    """
    found, through = list[Stretch](), LAST_ID

    def take(sources: Iterable[Stretch], *stronger: Spans) -> None:
        nonlocal through
        looks = _Looks(looks_max)
        for source in sources:
            parts = looks.free((known.state.acknowledged, *stronger), source, wanted)
            found.extend(source._replace(after=after, through=through) for after, through in parts)
            if looks.at is not None:
                through = min(through, looks.at)
                return

    if wanted in (None, PENDING):
        take(_pending(known.pending, begin))
    if wanted in (None, CLAIMED):
        claimed = known.claims.holders(begin, LAST_ID)
        take((Stretch(first, last, CLAIMED, each.attempt - 1, claim=each) for first, last, each in claimed), known.held)
    if wanted not in (PENDING, CLAIMED):
        returned = known.state.returns.within(begin, LAST_ID)
        take((_returned(*each, now_ms) for each in returned), known.held, known.claims.taken)
    if wanted in (None, AVAILABLE) and begin < end:
        take([Stretch(begin, end, AVAILABLE)], known.held, known.claims.taken, known.returned)
    complete = sorted((part for part in found if part.after < through), key=itemgetter(0))
    if complete and through < LAST_ID:
        through = max(through, complete[-1].through)
    return Found(complete, through)


def _pending(pending: Mapping[int, Spans], begin: bytes) -> Iterator[Stretch]:
    """All that is pending behind a place, in order."""

    def of(holder: int, spans: Spans) -> Iterator[Stretch]:
        return (Stretch(*span, PENDING, transaction_id=holder) for span in spans.within(begin, LAST_ID))

    return merge(*(of(*each) for each in pending.items()), key=itemgetter(0))


def _returned(after: bytes, through: bytes, attempt: Attempt, now_ms: int) -> Stretch:
    """The state of messages that came back."""
    attempts, not_before_ms, reason = attempt
    state = PARKED if not_before_ms == NEVER_MS else DELAYED if not_before_ms > now_ms else AVAILABLE
    due_ms = not_before_ms if state == DELAYED else None
    return Stretch(after, through, state, attempts, reason_text(reason), not_before_ms=due_ms)


class GroupInspection:
    """Answers operators' questions about the groups of one store."""

    def __init__(
        self, store: Store, clock: Clock, groups: Groups, logs: TopicLogs, ranges: Ranges, peek: Peek,
        first_unstable: FirstUnstable, transactions: Coordinator, ids: TransactionIds,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._groups = groups
        self._ranges = ranges
        self._reader = LogReader(store, clock, logs)
        self._peek = peek
        self._first_unstable = first_unstable
        self._transactions = transactions
        self._ids = ids
        self._figures: dict[int, Figures] = {}

    # Figures.

    async def figures(self, live: LiveGroup) -> bodies.GroupFigures:
        """The figures of a group."""
        log, state = await live.open()
        lag = await self.lag(live)
        now_ms = self._clock.now_ms()
        parts, through = await self._first_parts(live, state, ZERO_ID)
        figures, exact = self._figures_of(live), lag.exact and through == LAST_ID
        counts = dict[str, int]()
        for kind in (CLAIMED, PENDING, DELAYED, PARKED, AVAILABLE):
            counts[kind], all_of_it = await figures.messages_of(log, [part[:2] for part in parts if part.state == kind])
            exact = exact and all_of_it
        back = counts.pop(AVAILABLE)
        totals = live.totals
        return bodies.GroupFigures(
            lag_messages=lag.messages,
            exact=exact,
            lag_seconds=lag.age_ms(now_ms) / 1_000,
            unread=max(lag.messages - sum(counts.values()) - back, 0),
            **counts,
            spans=len(state.acknowledged),
            acknowledged_ms=totals.acknowledged_ms,
            fetched_per_second=totals.fetched_rate.per_second(now_ms),
            acknowledged_per_second=totals.acknowledged_rate.per_second(now_ms),
            oldest=None if lag.oldest_id is None else HexMessageId(lag.oldest_id),
            returned=dict(totals.returned),
            dead_lettered=totals.dead_lettered,
            conflicts=totals.conflicts,
        )

    async def page(
        self, title: TopicName, start: str, limit: int | None, shows: Callable[[str], bool], *, figures: bool
    ) -> bodies.GroupList:
        """The groups of a topic by name, from this name on, of those that `shows` lets through.

        With their figures as many as are counted in `PAGE_MS`.
        """
        shown: list[bodies.GroupInfo] = []
        end_ms = self._clock.monotonic_ms() + PAGE_MS
        for state in await self._groups.list(title, start):
            if not shows(state.name):
                continue
            if len(shown) == limit or (figures and shown and self._clock.monotonic_ms() >= end_ms):
                return bodies.GroupList(tuple(shown), state.name)
            info = self._groups.info(title, state)
            if figures:
                try:
                    counted = await self.figures(await self._groups.find(title, state.name))
                except GroupNotFoundError:  # deleted since the list was made
                    continue
                info = structs.replace(info, figures=counted)
                await asyncio.sleep(0)
            shown.append(info)
        return bodies.GroupList(tuple(shown))

    async def lag(self, live: LiveGroup) -> Lag:
        """The lag of a group."""
        log, state = await live.open()
        return await self._figures_of(live).lag(log, state.acknowledged, state.round)

    async def parked(self, live: LiveGroup, ids: Sequence[bytes] | None) -> bodies.Unparked:
        """The messages that an unpark of these, or of all, would deal again."""
        log, state = await live.open()
        if ids is not None:
            known, now_ms = self._known(live, state), self._clock.now_ms()
            return bodies.Unparked(sum(known.at(each, now_ms).state == PARKED for each in set(ids)), dry_run=True)
        found = await self._first_parts(live, state, ZERO_ID, PARKED)
        messages, exact = await self._figures_of(live).messages_of(log, [part[:2] for part in found.parts])
        return bodies.Unparked(messages, exact and found.through == LAST_ID, dry_run=True)

    # Of all groups.

    def known_lag(self, number: int) -> Lag | None:
        """The lag of a group as it was counted last; None where nobody has counted it."""
        figures = self._figures.get(number)
        return None if figures is None else figures.last

    def counted(self, number: int) -> int | None:
        """The time at which it was counted."""
        figures = self._figures.get(number)
        return None if figures is None or figures.last is None else figures.counted_ms

    def is_here(self, state: GroupState) -> bool:
        """True for a group that this server deals."""
        return self._groups.live.is_here(state.prefix)

    def states(self) -> list[GroupState]:
        """Every group of every topic."""
        return list(self._transactions.state.groups.by_number.values())

    def totals(self) -> dict[int, GroupTotals]:
        """The counts of the groups that this process works with, by their numbers."""
        return {live.number: live.totals for live in self._groups.live.all()}

    def member_counts(self) -> dict[int, int]:
        """The number of members of each."""
        return {live.number: len(live.members) for live in self._groups.live.all()}

    async def live_of(self, state: GroupState) -> LiveGroup:
        """The group as this process knows it; `ShardMovingError` where another server deals it."""
        if not self.is_here(state):
            raise ShardMovingError(f"group {state.name} is dealt by another server", hint="ask the owner of its topic")
        return await self._groups.find(title_of(state.prefix), state.name)

    def _figures_of(self, live: LiveGroup) -> Figures:
        found = self._figures.pop(live.number, None) or Figures(self._ranges, self._reader, self._clock)
        self._figures[live.number] = found
        if len(self._figures) > FIGURES_MAX:
            del self._figures[next(iter(self._figures))]
        return found

    def _wall_ms(self, monotonic_ms: float) -> int:
        return round(self._clock.now_ms() + monotonic_ms - self._clock.monotonic_ms())

    # Messages.

    async def messages(
        self, live: LiveGroup, wanted: str | None, limit: int, sees: Sees = sees_all
    ) -> tuple[bodies.GroupMessage, ...]:
        """The messages that are not acknowledged, in order; neighbours in one state are one entry. `wanted`: of this state alone."""
        log, state = await live.open()
        settled = await self._ranges.settled(log)
        limit = min(limit, ENTRIES_MAX)
        shown: list[bodies.GroupMessage] = []
        looked_into = 0
        async for part in self._sweep(live, state, settled.id, wanted):
            first = await self._first_in(log, settled, part.after, part.through)
            if first is not None:
                shown.append(self._shown(part, first, sees))
            looked_into += 1
            if len(shown) >= limit or looked_into >= LOOKS_PER_ENTRY * limit:
                break
        return tuple(shown)

    def _known(self, live: LiveGroup, state: GroupState) -> Known:
        pending, dispatcher = self._transactions.state.groups.pending_in(live.number), live.dispatcher
        return Known(state, pending, dispatcher.pending, dispatcher.claims, dispatcher.retries.spans)

    async def _sweep(
        self, live: LiveGroup, state: GroupState, end: bytes, wanted: str | None
    ) -> AsyncIterator[Stretch]:
        """The parts that a group has not acknowledged, in order, as they are when the sweep comes there: a turn at a time.

        It is given up after `TURNS_MAX` turns.
        """
        at = ZERO_ID
        for _ in range(TURNS_MAX):
            found = stretches(self._known(live, state), self._clock.now_ms(), at, end, LOOKS_MAX, wanted)
            for part in found.parts:
                yield part
            if found.through == LAST_ID:
                return
            at = found.through
            await asyncio.sleep(0)

    async def _first_parts(self, live: LiveGroup, state: GroupState, end: bytes, wanted: str | None = None) -> Found:
        """The parts that come first, of `COUNT_TURNS` turns."""
        parts, at = list[Stretch](), ZERO_ID
        for turn in range(COUNT_TURNS):
            if turn:
                await asyncio.sleep(0)
            found = stretches(self._known(live, state), self._clock.now_ms(), at, end, LOOKS_MAX, wanted)
            parts += found.parts
            at = found.through
            if at == LAST_ID:
                break
        return Found(parts, at)

    async def _first_in(self, log: TopicLog, settled: Settled, after: bytes, through: bytes) -> bytes | None:
        """The first message of a stretch that a committed reader gets."""
        limits = SliceLimits(1, 1, through=min(through, settled.id))
        page = await self._reader.read(log, Start(after, False), limits, settled.snapshot)
        return page.slices[0].first_id() if page.slices else None

    def _shown(self, part: Stretch, message_id: bytes, sees: Sees) -> bodies.GroupMessage:
        claim, owner, until_ms = part.claim, None, part.not_before_ms
        if claim is not None:
            until_ms = self._wall_ms(claim.until_ms)
        if part.transaction_id is not None:
            work = self._work(part.transaction_id, sees)
            owner, until_ms = work.owner or None, work.deadline_ms or None
        return bodies.GroupMessage(
            HexMessageId(message_id),
            part.state,
            through=None if part.through == message_id else HexMessageId(part.through),
            attempts=part.attempts,
            reason=part.reason,
            member=None if claim is None else claim.member or None,
            claim=None if claim is None else claim.number,
            transaction=None if part.transaction_id is None else self._ids.text(part.transaction_id),
            owner=owner,
            since_ms=None if claim is None else self._wall_ms(claim.since_ms),
            until_ms=until_ms,
        )

    def _work(self, transaction_id: int, sees: Sees) -> Work:
        transaction = self._transactions.state.find(transaction_id)
        text = self._ids.text(transaction_id)
        if transaction is None or not sees(transaction.belonging):
            return Work(text)
        return Work(text, transaction.owner, transaction.deadline_ms)

    # One message.

    async def message(self, live: LiveGroup, message_id: bytes, sees: Sees = sees_all) -> bodies.GroupMessage:
        """The state of one message, why it is not worked on, what frees it and when."""
        log, state = await live.open()
        part = self._known(live, state).at(message_id, self._clock.now_ms())
        found = explain(await self._situation(live, log, state, part, message_id, sees))
        shown = self._shown(part, message_id, sees)
        return bodies.GroupMessage(
            shown.id, shown.state if found.reason != Presence.ABSENT.value else found.reason, None, shown.attempts, found.reason,
            shown.member, shown.claim, shown.transaction, shown.owner, found.since_ms or shown.since_ms,
            found.at_ms or shown.until_ms, found.text, found.freed_by,
        )  # fmt: skip

    async def _situation(
        self, live: LiveGroup, log: TopicLog, state: GroupState, part: Stretch, message_id: bytes, sees: Sees
    ) -> Situation:
        now_ms = self._clock.now_ms()
        presence = await self._presence(live.title, log, message_id)
        if presence is not Presence.THERE:
            return Situation(now_ms, presence)
        if part.state == ACKNOWLEDGED:
            return Situation(now_ms, acknowledged=await self._acknowledgement(live.number, message_id))
        if part.transaction_id is not None:
            return Situation(now_ms, pending=self._work(part.transaction_id, sees))
        if part.claim is not None:
            claim = part.claim
            since_ms, until_ms = self._wall_ms(claim.since_ms), self._wall_ms(claim.until_ms)
            return Situation(now_ms, claimed=Holder(claim.member, since_ms, until_ms))
        held = await self._held_by(log, message_id, sees)
        returned = None
        if part.reason is not None:
            never = part.state == PARKED
            returned = Return(part.attempts, part.reason, None if never else part.not_before_ms or 0)
        before_it, exact = await self._before(live, log, state, message_id)
        ahead, draining, silent = await self._of_lane(live, message_id)
        return Situation(
            now_ms,
            ahead=ahead,
            draining=draining,
            silent=silent,
            held_by=held,
            returned=returned,
            paused=state.paused,
            needs_member=live.options.mode in ("keyed", "stream") and not len(live.members),
            unacknowledged=self._unacknowledged(live),
            spans=self._scattered(state, message_id),
            dead_letter_topic=live.options.dead_letter_topic,
            before=before_it,
            before_exact=exact,
        )

    async def _of_lane(self, live: LiveGroup, message_id: bytes) -> tuple[Ahead | None, Draining | None, Holder | None]:
        """In a keyed group: the message before it in its lane, who still works on its slot, and its owner if he is silent."""
        lanes = live.dispatcher.lanes
        if lanes is None:
            return None, None, None
        found = await self._peek.message(live.title, message_id)
        lane = lanes.lane_of(message_id, found.extras)
        lanes.assign(live.members)
        slot, claims, first = lane % SLOTS, live.dispatcher.claims, lanes.first_in_flight(lane, message_id)
        ahead = None
        if first is not None:
            claim = claims.holder(first)
            ahead = Ahead(first.hex(), "is not acknowledged" if claim is None else f"{named(claim.member)} works on")
        owner = lanes.slots.owners[slot]
        holder = None if owner is None else lanes.slots.draining_of(owner).get(slot)
        draining = None
        if holder is not None and (held := claims.of_member(holder)):
            since_ms, until_ms = min(claim.since_ms for claim in held), max(claim.until_ms for claim in held)
            draining = Draining(slot, Holder(holder, self._wall_ms(since_ms), self._wall_ms(until_ms)))
        member = None if owner is None else live.members.get(owner)
        silent = None
        if member is not None and self._clock.monotonic_ms() - member.seen_ms > live.members.lease_ms / SILENT_PART:
            end_ms = member.seen_ms + live.members.lease_ms
            silent = Holder(member.name, self._wall_ms(member.seen_ms), self._wall_ms(end_ms))
        return ahead, draining, silent

    async def _presence(self, title: TopicName, log: TopicLog, message_id: bytes) -> Presence:
        if message_id <= expired_through(log, self._clock.now_ms()):
            return Presence.EXPIRED
        try:
            found = await self._peek.message(title, message_id)
        except MessageNotFoundError:
            return Presence.ABSENT
        if found.kind is not RecordKind.USER:
            return Presence.ABSENT
        return Presence.HIDDEN if found.state in ("rolled back", "invalid") else Presence.THERE

    async def _acknowledgement(self, number: int, message_id: bytes) -> Acknowledgement:
        """The entry of the journal that acknowledged it, on a thread: there may be a hundred thousand."""
        entries = list(self._transactions.journal.entries())

        def search() -> Acknowledgement:
            committed: dict[int, int] = {}
            for entry in reversed(entries):
                for edit in entry.edits:
                    kind = type(edit)
                    if kind is edits.Committed:
                        committed[edit.id] = entry.at_ms
                    elif kind is edits.Acknowledged and edit.number == number and edit.spans.covers(message_id):
                        writer: int = edit.writer
                        return Acknowledgement(entry.at_ms, self._by(writer) if writer else "")
                    elif kind is edits.AcknowledgedIn and edit.number == number and edit.spans.covers(message_id):
                        transaction_id: int = edit.id
                        if transaction_id in committed:
                            return Acknowledgement(committed[transaction_id], self._by(transaction_id))
            return Acknowledgement()

        return await asyncio.to_thread(search)

    def _by(self, transaction_id: int) -> str:
        return f"transaction {self._ids.text(transaction_id)}"

    async def _held_by(self, log: TopicLog, message_id: bytes, sees: Sees) -> Work | None:
        """The transaction at whose row readers stop, at this message or before it."""
        found = await self._first_unstable.of_topic(log)
        if found.held_by is None or found.held_at is None or found.held_at > message_id:
            return None
        transaction_id = self._transactions.manager.id_of(found.held_by)
        try:
            return self._work(transaction_id, sees)
        except (TransactionEndedError, SessionFencedError, TransactionNotFoundError):  # between the two looks
            return None

    async def _before(self, live: LiveGroup, log: TopicLog, state: GroupState, message_id: bytes) -> tuple[int, bool]:
        """The messages that can be dealt and come before this one."""
        settled = await self._ranges.settled(log)
        end = min(before(message_id), settled.id)
        found = await self._first_parts(live, state, end, AVAILABLE)
        exact = found.through >= end
        stretches_before = [(part.after, min(part.through, end)) for part in found.parts if part.after < end]
        counted = await self._ranges.count(log, settled, stretches_before, ReadBudget(SCAN_ROWS_MAX, SCAN_BYTES_MAX))
        return counted.messages, counted.exact and exact

    def _scattered(self, state: GroupState, message_id: bytes) -> int | None:
        table = self._transactions.state.groups
        held_up = table.is_scattered(state.number) and message_id > state.acknowledged.end
        return table.spans_of(state.number) if held_up else None

    def _unacknowledged(self, live: LiveGroup) -> Unacknowledged | None:
        messages, messages_max = live.dispatcher.unacked, live.options.unacked_max
        if messages < messages_max:
            return None
        claims = live.dispatcher.claims
        member = claims.most()
        return Unacknowledged(
            messages, messages_max, member, sum(each.messages_left for each in claims.of_member(member))
        )
