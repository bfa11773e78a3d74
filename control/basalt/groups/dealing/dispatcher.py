"""Deals the messages of one group: finds the next that nobody has, reads them as a poll does, and makes them somebody's claim.

What is free are the gaps between the spans that are acknowledged, pending in a transaction, claimed, or returned (`free_gaps`); so a
fetch costs a poll and a few binary searches, and nothing per message. What was returned and is due comes first (`retries`). Nothing
here is durable: what is said of a message for good is in the transaction log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from basalt.api.bodies.groups import GroupOptions
from basalt.groups.claims import ALONE_ATTEMPTS, Claim, ClaimPart, Claims, parts_of
from basalt.groups.dealing.free_gaps import LAST_ID, FreeGaps
from basalt.groups.dealing.retries import Held, Retries
from basalt.groups.fetches import (
    CLAIMED,
    DRAINING,
    KEYED,
    NO_MESSAGES,
    NOTHING,
    PARKED,
    PAUSED,
    SPANS,
    STANDBY,
    STREAM,
    UNACKED,
    Dealt,
    FetchAsk,
)
from basalt.groups.figures import GroupTotals
from basalt.groups.keyed.lanes import Lanes
from basalt.groups.keyed.window import Picked
from basalt.groups.places import oldest_of
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.messages import Messages
from basalt.messaging.read.log_reader import NO_LIMIT, Fetch, SliceLimits
from basalt.transactions.rules.groups import NEVER_MS, GroupState
from basalt_engine.clock import Clock
from basalt_engine.spans.spans import ZERO_ID, Spans

LOOKS_MAX = 64  # gaps without a living message that one fetch passes; the next one goes on behind them
COUNTS_TURN = 100  # stretches that came back whose messages are counted without a pause
RECOUNT_MS = 60_000  # between two counts of what came back, in a group that has too much unacknowledged

_SEARCHING = "searching"  # no answer to anybody: the search goes on after a pause


class Piece(NamedTuple):
    """A range to read; what is found there becomes a claim. Without `through` it is open to the end of the topic.

    Nothing lives between `after` and `start`. `attempt` counts from 1: beyond that it was returned before.
    """

    after: bytes
    through: bytes | None
    start: bytes
    messages_max: int
    attempt: int = 1
    returned: bool = False


class Dispatcher:
    """The free messages of one group, and the claims on the others. Everything runs on the event loop, one fetch at a time."""

    def __init__(
        self,
        clock: Clock,
        messages: Messages,
        options: GroupOptions,
        next_number: Callable[[], int],
        window_bytes_max: int,
    ) -> None:
        self.options = options
        self.claims = Claims()
        self.totals = GroupTotals()
        self.pending = Spans()  # in transactions
        self.retries = Retries()  # what came back
        self.dead = Spans()  # gaps in which nothing lives any more; the next acknowledgement covers them
        self.unacked = 0  # messages that were dealt and are not acknowledged, as far as this process knows
        self.dealt_through = (
            ZERO_ID  # the end of what was dealt, in this round; readers of committed messages have passed it
        )
        self.dealt_total = 0
        self._clock = clock
        self._messages = messages
        self._next_number = next_number
        self._pending_messages: dict[int, int] = {}  # that were dealt, by transaction
        self._free = FreeGaps()
        self._recount_ms = 0.0  # not before, on the monotonic clock
        self._window_bytes_max = window_bytes_max
        self._known: GroupState | None = None  # the state that all this was made of
        self.lanes = self._lanes_of(options)  # of a keyed group

    def _lanes_of(self, options: GroupOptions) -> Lanes | None:
        return (
            Lanes(self._messages, self.claims, options.key, self._window_bytes_max) if options.mode == KEYED else None
        )

    def change(self, options: GroupOptions) -> None:
        """The group has these options from now on."""
        if (options.mode, options.key) != (self.options.mode, self.options.key):
            self.lanes = self._lanes_of(options)
            if self.lanes is not None:
                self.lanes.clear(self.pending)
        self.options = options

    # What has happened.

    def rebuild(self, state: GroupState, pending: Iterable[Spans]) -> None:
        """Know the group's spans anew: it was just found, or the log was read again. Claims of what was acknowledged end."""
        self._known = state
        self.pending, self.dead = Spans(), Spans()
        for spans in pending:
            self.pending.update(spans)
        self.retries.rebuild(state.returns)
        done = state.acknowledged.copy()
        done.update(self.pending)
        self.claims.tear(parts_of(self.claims.common(done)))
        self.claims.forget_undone(done)
        if not self.pending:
            self._pending_messages.clear()
        # As after a restart: what came back, or was to be written and was not, is not counted, or it would be once more.
        self.unacked = self.claims.messages + sum(self._pending_messages.values())
        self._free.clear()
        if self.lanes is not None:
            self.lanes.clear(self.pending)

    def restart(self) -> list[Claim]:
        """The group was sought: all claims are revoked, and what is free is found anew."""
        self.pending, self.dead = Spans(), Spans()
        self.retries.rebuild(())
        self.unacked = 0
        self.dealt_through = ZERO_ID
        self._pending_messages.clear()
        self._free.clear()
        if self.lanes is not None:
            self.lanes.clear(self.pending)
        return self.claims.revoke_all()

    def _look_again(self, spans: Spans, *, returned: bool) -> None:
        """Nobody has these any more: they are free again, or due at some time if they were `returned`."""
        if not returned:
            self._free.add(spans)
        self.retries.look_again(spans)

    def give_back(self, parts: Sequence[ClaimPart], *, returned: bool) -> None:
        """These parts of claims are not claimed any more; `returned`: they count as failed, else they are as free as if never dealt."""
        spans = Spans.union([part.spans for part in parts])
        if self.lanes is not None:
            for claim, given, _ in parts:
                self.lanes.given_back(given, failed=returned, came_back=claim.attempt > 1)
        if returned:
            self.retries.came_back(spans)
        else:
            self.unacked -= sum([messages for claim, _, messages in parts if claim.attempt == 1])
        self._take(parts, acknowledged=False)
        self._look_again(spans, returned=returned)
        self._reckon()

    def is_held(self, spans: Spans) -> bool:
        """True where an earlier message of the lane of one of these is pending: until that is decided they cannot be acknowledged."""
        if self.lanes is not None:
            return self.lanes.is_held(spans)
        return self.options.mode == STREAM and bool(self.pending and spans) and self.pending.begin < spans.end

    def take(self, parts: Sequence[ClaimPart]) -> None:
        """These parts of claims are acknowledged, or pending."""
        self._take(parts, acknowledged=True)

    def _take(self, parts: Sequence[ClaimPart], *, acknowledged: bool) -> None:
        for ended in self.claims.take(parts, acknowledged=acknowledged):
            if ended.left:  # of its gaps: nobody knows that nothing lives there
                self._look_again(ended.left, returned=False)

    def unparked(self, spans: Spans, messages: int) -> None:
        """So many messages that were parked are as free as if they had never been dealt."""
        self.retries.unparked(spans)
        self._free.add(spans)
        self.unacked -= messages
        if self.lanes is not None:
            self.lanes.look_again()
        self._reckon()

    def settle(self, spans: Spans, transaction_id: int | None, messages: int) -> None:
        """These are acknowledged now, or pending in a transaction; so many messages of them had been dealt."""
        if self.lanes is not None:
            (self.lanes.acknowledged if transaction_id is None else self.lanes.pending)(spans)
        if transaction_id is not None:
            self.pending.update(spans)
            self._pending_messages[transaction_id] = self._pending_messages.get(transaction_id, 0) + messages
            return
        self._forget(spans)
        self.unacked -= messages
        self.totals.was_acknowledged(self._clock.now_ms(), messages)
        self._reckon()

    def let_go(self, spans: Spans) -> None:
        """The transaction in which these were pending has ended: they hold up nothing any more. `decide` says what becomes of them."""
        self.pending.subtract(spans)
        if self.lanes is not None:
            self.lanes.let_go(spans)

    def decide(self, transaction_id: int, spans: Spans, *, committed: bool, returned: bool) -> int:
        """A transaction in which these were pending has ended; where it did not commit, they have failed if `returned`, or are free.

        Returns how many messages these are, of those that were dealt.
        """
        messages = self._pending_messages.pop(transaction_id, 0)
        self.pending.subtract(spans)
        if self.lanes is not None:
            self.lanes.acknowledged(spans) if committed else self.lanes.not_committed(spans, failed=returned)
        if committed:
            self._forget(spans)
            self.unacked -= messages
            self.totals.was_acknowledged(self._clock.now_ms(), messages)
        else:
            if returned:
                self.retries.came_back(spans)
            else:
                self.unacked -= messages
            self.claims.forget_acknowledged(spans)
            self._look_again(spans, returned=returned)
        self._reckon()
        return messages

    def _forget(self, spans: Spans) -> None:
        self.retries.forget(spans)
        self._free.forget(spans)
        self.dead.subtract(spans)

    def _reckon(self) -> None:
        """Nothing is unacknowledged when nobody has anything: what was miscounted, by restarts say, counts no more."""
        if self.unacked < 0 or not (len(self.claims) or self.pending or self.retries.spans):
            self.unacked = 0

    async def _has_room(self, log: TopicLog) -> bool:
        """Count anew what came back, now and then, when there is too much of it: some of that may have expired unnoticed."""
        now_ms = self._clock.monotonic_ms()
        if not self.retries.spans or now_ms < self._recount_ms:
            return False
        self._recount_ms = now_ms + RECOUNT_MS
        limits, before = self._messages.limits, self.unacked
        known = self.claims.messages + sum(self._pending_messages.values())
        place, parts = ZERO_ID, 0
        while known < self.options.unacked_max and (
            part := next(self.retries.unheld(self._held, place, LAST_ID), None)
        ):
            place, through = part
            while place < through and known < self.options.unacked_max:
                wanted = SliceLimits(limits.messages_max, limits.bytes_max, 1, through)
                found = await self._messages.read_committed(log, place, wanted)
                known += found.messages
                place = found.slices[-1].last_id() if found.slices else through
            parts += 1
            if parts % COUNTS_TURN == 0:
                await asyncio.sleep(0)
        self.unacked += known - before  # and what happened meanwhile
        self._reckon()
        return self.unacked < self.options.unacked_max

    # Dealing.

    def is_of(self, state: GroupState) -> bool:
        """True while all that is known here was made of this state: else the log was read again since."""
        return self._known is None or self._known is state

    async def deal(
        self, log: TopicLog, state: GroupState, ask: FetchAsk, epoch: int, *, in_gaps: bool = False
    ) -> Dealt:
        """The next messages for who asks, as a claim. `in_gaps`: none behind all that is acknowledged but what came back.

        None where the log was read again meanwhile: what is free is to be asked of another state then (`is_of`).
        """
        again = self.claims.of_request(ask.request_id)
        if again is not None and again.member == ask.member:
            return Dealt(again, await self._read_again(log, again, ask))
        if self.lanes is not None:
            return await self._deal_keyed(self.lanes, log, state, ask, epoch, in_gaps=in_gaps)
        for _ in range(LOOKS_MAX):
            piece = await self._find_piece(state, ask, in_gaps=in_gaps)
            round_ = state.round
            if isinstance(piece, str):
                if piece.startswith(UNACKED) and await self._has_room(log):
                    continue
                return Dealt(None, NOTHING, piece)
            try:
                found = await self._read(log, piece, ask)
            except BaseException:  # the store fails, or the client has gone
                self._put_back(piece)
                raise
            if log.ended or state.round != round_ or state.paused or not self.is_of(state):
                self._put_back(piece)
                continue  # what is free is another question now; of a topic that is gone nothing is
            if found.messages:
                claim = self._claim(state, piece, found, ask, epoch)
                if claim is not None:
                    return Dealt(claim, found)
                self._put_back(piece)
            elif found.held_by is not None:
                self._put_back(piece)
                self._free.passed(found.next_id or piece.start)
                return Dealt(None, found, f"held {found.held_by}")
            elif piece.through is None:
                self._free.passed(found.next_id or piece.start)
                return Dealt(None, found, self._reason())
            else:
                self._close(piece.after, piece.through)
        return Dealt(None, NOTHING, NO_MESSAGES)

    async def _deal_keyed(
        self, lanes: Lanes, log: TopicLog, state: GroupState, ask: FetchAsk, epoch: int, *, in_gaps: bool
    ) -> Dealt:
        limits, options, clock = self._messages.limits, self.options, self._clock
        messages_max = min(ask.limit or limits.messages_max, limits.messages_max)
        bytes_max = min(ask.bytes_max or limits.bytes_max, limits.bytes_max)
        for _ in range(LOOKS_MAX):
            if state.paused:
                return Dealt(None, NOTHING, PAUSED)
            if lanes.slots.is_standby(ask.member):
                return Dealt(None, NOTHING, STANDBY)
            picked = lanes.pick_returned(
                state, ask.member, messages_max, bytes_max, clock.now_ms(), options.attempts_max
            )
            if picked is None:
                room = options.unacked_max - self.unacked
                if room <= 0 and self.unacked:
                    return Dealt(None, NOTHING, f"{UNACKED} {self.claims.most()}".rstrip())
                through, window = self._acknowledged_through(state) if in_gaps else None, lanes.window
                picked = await lanes.pick(log, state, ask.member, min(messages_max, room), bytes_max, through)
                if not self.is_of(state):
                    break
                if picked is None and window is not lanes.window:
                    continue
            if picked is None:  # reading ahead may have found some that came back before a restart
                picked = lanes.pick_returned(
                    state, ask.member, messages_max, bytes_max, clock.now_ms(), options.attempts_max
                )
            if picked is None:
                return Dealt(None, NOTHING, SPANS) if in_gaps else self._nothing_keyed(lanes, ask.member)
            claim = self._claim_picked(picked, state, ask, epoch)
            try:
                found = await lanes.cut_out(log, picked, oldest_of(log, clock.now_ms()))
            except BaseException:
                self.give_back([ClaimPart.whole(claim)], returned=False)
                raise
            self._drop_expired(lanes, claim, picked, found)
            if claim.end is None:
                return Dealt(claim, found if ask.encoding is None else found._replace(slices=[], encoded=found.slices))
        return Dealt(None, NOTHING, NO_MESSAGES)

    def _nothing_keyed(self, lanes: Lanes, member: str) -> Dealt:
        """Tell what a member waits for that has been dealt all that it may be."""
        if lanes.window.is_draining(member):
            return Dealt(None, NOTHING, DRAINING)
        if lanes.due_ms is not None:
            return Dealt(None, NOTHING, f"delayed {max(lanes.due_ms - self._clock.now_ms(), 0)}")
        if lanes.held is not None:
            return Dealt(
                None, lanes.held._replace(slices=[], messages=0, payload_bytes=0), f"held {lanes.held.held_by}"
            )
        return Dealt(None, NOTHING, CLAIMED if len(self.claims) or self.pending else NO_MESSAGES)

    def _claim_picked(self, picked: Picked, state: GroupState, ask: FetchAsk, epoch: int) -> Claim:
        now_ms, spans = self._clock.monotonic_ms(), picked.spans.copy()
        if state.acknowledged.meets(spans):  # the gap before one of them was closed since it was read ahead
            spans = Spans([gap for each in spans for gap in state.acknowledged.gaps(*each)])
        claim = Claim(
            self._next_number(), spans, picked.total,
            since_ms=now_ms, until_ms=now_ms + (ask.claim_ms or self.options.claim_ms), member=ask.member, epoch=epoch,
            transaction_id=ask.transaction_id, round_=state.round, attempt=picked.attempts + 1, request_id=ask.request_id,
        )  # fmt: skip
        self.claims.add(claim)
        if not picked.attempts:
            self.unacked += picked.total
        self.dealt_through = max(self.dealt_through, picked.last)
        self.dealt_total += picked.total
        self.totals.was_fetched(self._clock.now_ms(), picked.total)
        return claim

    def _drop_expired(self, lanes: Lanes, claim: Claim, picked: Picked, found: Fetch) -> None:
        """Take what lives no more out of a claim that was just made."""
        if found.messages == picked.total or claim.end is not None:
            return
        living = {message_id for each in found.slices for message_id in each.ids()}
        for message in picked.ahead():
            if message.id not in living:
                self.claims.take([ClaimPart(claim, Spans([(message.after, message.id)]), 1)], acknowledged=True)
                lanes.acknowledged([(message.after, message.id)])
                self._close(message.after, message.id)
                self.unacked -= 1

    async def _find_piece(self, state: GroupState, ask: FetchAsk, *, in_gaps: bool) -> Piece | str:
        """Ask `_next_piece` until its search is over, with a pause after each part."""
        piece = self._next_piece(state, ask, in_gaps=in_gaps)
        while piece == _SEARCHING:
            await asyncio.sleep(0)
            piece = self._next_piece(state, ask, in_gaps=in_gaps)
        return piece

    def _next_piece(self, state: GroupState, ask: FetchAsk, *, in_gaps: bool) -> Piece | str:
        """The range to read for the next claim; or what there is to wait for."""
        if not self.is_of(state):
            return NO_MESSAGES
        if state.paused:
            return PAUSED
        limits, options = self._messages.limits, self.options
        messages_max = min(ask.limit or limits.messages_max, limits.messages_max)
        if options.mode == STREAM:
            returned = self._first_returned(state, messages_max)
        else:
            returned = self._next_returned(state, messages_max)
        if returned is not None:
            return CLAIMED if self._waits_for_pending(returned) else returned
        room = options.unacked_max - self.unacked
        if room <= 0 and self.unacked:
            most = self.claims.most()
            return f"{UNACKED} {most}" if most else UNACKED
        piece = self._next_fresh(state, min(messages_max, room))
        if isinstance(piece, Piece) and in_gaps and piece.after >= self._acknowledged_through(state):
            return SPANS
        return CLAIMED if self._waits_for_pending(piece) else piece

    def _waits_for_pending(self, piece: Piece | str) -> bool:
        """True for a piece of a stream that came back and lies behind what is pending: nobody but that transaction could acknowledge it now."""
        if (
            self.options.mode != STREAM
            or isinstance(piece, str)
            or not self.pending
            or piece.after < self.pending.begin
        ):
            return False
        return piece.returned or piece.after < self.dealt_through

    def _acknowledged_through(self, state: GroupState) -> bytes:
        """The end of all that is acknowledged, now or by a transaction: what lies before it lies in a gap."""
        return max(state.acknowledged.end, self.pending.end)

    def _next_fresh(self, state: GroupState, messages_max: int, before: bytes = LAST_ID) -> Piece | str:
        """The first gap, of all that was not dealt yet; any piece behind `before` where there is none up to there."""
        taken = [spans for spans in (*self._held, self.retries.spans, self.dead) if spans]
        gap = self._free.next([*taken, state.acknowledged], before)
        return _SEARCHING if gap is None else Piece(*gap, messages_max)

    def _next_returned(self, state: GroupState, messages_max: int) -> Piece | str | None:
        """The first piece that was returned and is due."""
        found = self.retries.next(state, self._held, self._clock.now_ms())
        if found is None:
            return None if self.retries.is_sorted else _SEARCHING
        return self._returned_piece(*found, messages_max)

    def _put_back(self, piece: Piece) -> None:
        """Nobody was dealt this piece: what was returned is found again by the next search."""
        if piece.returned and piece.through is not None:
            self.retries.put_back(piece.after, piece.through)

    def _first_returned(self, state: GroupState, messages_max: int) -> Piece | str | None:
        """The first piece that was returned, of a lane in which it holds back all that follows; what is free before it goes first."""
        found = self.retries.first(state, self._held)
        if found is None:
            return None
        after, through, attempt = found
        earlier = self._next_fresh(state, messages_max, after)  # given back uncounted, or forgotten by a restart
        if isinstance(earlier, str) or earlier.after < after:
            return earlier
        self.retries.waits_for(state, through, attempt)
        left_ms = attempt.not_before_ms - self._clock.now_ms()
        if attempt.not_before_ms == NEVER_MS:
            return PARKED
        if left_ms > 0:
            return f"delayed {left_ms}"
        return self._returned_piece(after, through, attempt.attempts, messages_max)

    def _returned_piece(self, after: bytes, through: bytes, attempts: int, messages_max: int) -> Piece:
        # The last attempt is alone, whatever was known before: nothing becomes a dead letter for another's failure.
        is_last = attempts + 1 == self.options.attempts_max
        alone = is_last or (attempts >= ALONE_ATTEMPTS and not self.retries.spared.contains(after, through))
        return Piece(after, through, after, 1 if alone else messages_max, attempts + 1, True)

    @property
    def _held(self) -> Held:
        return Held(self.claims.taken, self.pending)

    def living(self, state: GroupState, before: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The gaps up to this place that are not acknowledged, and that nobody has, in order."""
        for gap in state.acknowledged.gaps(ZERO_ID, before):
            yield from self._held.gaps(*gap)

    def dead_ends(self) -> Spans:
        """The gaps in which nothing lives any more, but for what a transaction will acknowledge together with a message behind them."""
        return Spans([free for gap in self.dead for free in self._held.gaps(*gap)])

    def _claim(self, state: GroupState, piece: Piece, found: Fetch, ask: FetchAsk, epoch: int) -> Claim | None:
        """Claim what was found; None where some of it was taken while it was read."""
        last = (found.slices or found.encoded)[-1].last_id()
        held = (self.claims.taken, self.pending, state.acknowledged, Spans() if piece.returned else self.retries.spans)
        for spans in held:
            if spans.overlaps(piece.after, last):
                return None
        now_ms, options = self._clock.monotonic_ms(), self.options
        claim = Claim(
            self._next_number(), Spans([(piece.after, last)]), found.messages,
            since_ms=now_ms, until_ms=now_ms + (ask.claim_ms or options.claim_ms), member=ask.member, epoch=epoch,
            transaction_id=ask.transaction_id, round_=state.round, attempt=piece.attempt, request_id=ask.request_id,
        )  # fmt: skip
        self.claims.add(claim)
        if piece.returned:
            if piece.through is not None and last < piece.through:
                self.retries.goes_on(last, piece.through)
        else:
            self.unacked += found.messages
        self.dealt_through = max(self.dealt_through, last)
        self.dealt_total += found.messages
        self.totals.was_fetched(self._clock.now_ms(), found.messages)
        return claim

    def _close(self, after: bytes, through: bytes) -> None:
        """Nothing lives in this gap any more."""
        self.dead.add(after, through)
        self.retries.close(after, through)

    def _reason(self) -> str:
        """The reason why a group waits that has dealt all that there is."""
        due_ms = self.retries.due_ms
        if due_ms is not None:
            return f"delayed {max(due_ms - self._clock.now_ms(), 0)}"
        return CLAIMED if len(self.claims) or self.pending else NO_MESSAGES

    @property
    def due_ms(self) -> int | None:
        """When the next of what was returned is due, by the wall clock; None when nothing is."""
        if self.lanes is not None:
            return self.lanes.due_ms
        return self.retries.due_ms

    # Reading.

    async def _read(self, log: TopicLog, piece: Piece, ask: FetchAsk) -> Fetch:
        limits = self._messages.limits
        bytes_max = min(ask.bytes_max or limits.bytes_max, limits.bytes_max)
        wanted = SliceLimits(piece.messages_max, bytes_max, 1, piece.through)
        return await self._messages.read_committed(log, piece.start, wanted, ask.encoding)

    async def _read_again(self, log: TopicLog, claim: Claim, ask: FetchAsk) -> Fetch:
        """The messages of a claim that was dealt before, for a fetch whose answer was lost."""
        if self.lanes is not None:
            found = await self.lanes.read(log, self.lanes.of(claim.left))
            return found if ask.encoding is None else found._replace(slices=[], encoded=found.slices)
        parts = [
            await self._messages.read_committed(
                log, after, SliceLimits(NO_LIMIT, NO_LIMIT, 1, through), ask.encoding, whole=True
            )
            for after, through in claim.left
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole._replace(
                slices=[*whole.slices, *part.slices], encoded=[*whole.encoded, *part.encoded],
                messages=whole.messages + part.messages, payload_bytes=whole.payload_bytes + part.payload_bytes,
            )  # fmt: skip
        return whole
