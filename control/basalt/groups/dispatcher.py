"""Deals the messages of one group: finds the next that nobody has, reads them as a poll does, and makes them somebody's claim.

What is free are the gaps between the spans that are acknowledged, pending in a transaction, claimed, or returned; so a
fetch costs a poll and a few binary searches, and nothing per message. What was returned and is due comes first. Nothing
here is durable: what is said of a message for good is in the transaction log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from basalt.api.bodies.groups import GroupOptions
from basalt.api.codecs.encoded import Encoding
from basalt.groups.claims import Claim, Claims
from basalt.groups.companies import ALONE_ATTEMPTS
from basalt.groups.figures import GroupTotals
from basalt.groups.lanes import Lanes
from basalt.groups.places import oldest_of
from basalt.groups.window import Picked
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.messages import Messages
from basalt.messaging.read.log_reader import NO_LIMIT, Fetch, SliceLimits
from basalt.transactions.rules.groups import NEVER_MS, GroupState
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.spans import ZERO_ID, Spans

SPARED_LOOKS_MAX = 16  # stretches behind a message that failed alone of which it is asked whether they were its company
LOOKS_MAX = 64  # gaps without a living message that one fetch passes; the next one goes on behind them
READY_MAX = 1_000  # returned messages that are found in advance: each search goes through all that were returned
LAST_ID = b"\xff" * MESSAGE_ID_BYTES  # behind every message
RECOUNT_MS = 60_000  # between two counts of what came back, in a group that has too much unacknowledged
NOTHING = Fetch([], None, None, 0, 0)

KEYED = "keyed"

# What a fetch waits for, beside `held ID` (a transaction) and `delayed MS`.
NO_MESSAGES = "no_messages"
PAUSED = "paused"
UNACKED = "unacked"
STANDBY = "standby"
CLAIMED = "claimed"
STOPPING = "stopping"
DRAINING = "draining"
PARKED = "parked"
SPANS = "spans"


class FetchAsk(NamedTuple):
    """The arguments of a fetch. `epoch` 0 joins as the only process of the member's name; without a member no lease ends the claim."""

    member: str = ""
    epoch: int = 0
    limit: int | None = None
    bytes_max: int | None = None
    wait_ms: int = 0
    transaction_id: int | None = None
    claim_ms: int | None = None
    encoding: Encoding | None = None
    request_id: str | None = None


class Dealt(NamedTuple):
    """A claim with its messages; or none, and what the fetch waits for."""

    claim: Claim | None
    fetch: Fetch
    waiting_for: str = ""


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
        self.returned = Spans()  # not acknowledged since; pending or claimed again, some of it
        self.dead = Spans()  # gaps in which nothing lives any more; the next acknowledgement covers them
        # Returned, and dealt in company again: the message before them failed alone, so they had failed for it.
        self.spared = Spans()
        self.unacked = 0  # messages that were dealt and are not acknowledged, as far as this process knows
        self.dealt_through = ZERO_ID  # readers of committed messages have passed this place
        self.dealt_total = 0
        self._clock = clock
        self._messages = messages
        self._next_number = next_number
        self._pending_messages: dict[int, int] = {}  # that were dealt, by transaction
        self._cursor = ZERO_ID  # nothing is free before this place
        self._passed = ZERO_ID  # nothing lives from the cursor's gap on to this place
        self._ready: deque[tuple[bytes, bytes]] = (
            deque()
        )  # (after, through] in which something was returned, and was due
        self._search_ms = 0  # when there may be more of them
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
        self.pending, self.returned, self.spared, self.dead = Spans(), Spans(), Spans(), Spans()
        for spans in pending:
            self.pending.update(spans)
        self.returned = Spans([(after, through) for after, through, _ in state.returns])
        done = state.acknowledged.copy()
        done.update(self.pending)
        for claim in self.claims:
            for after, through in [part for each in claim.left for part in done.within(*each)]:
                self.claims.cut(after, through, acknowledged=True)
        self.claims.forget_undone(done)
        if not self.pending:
            self._pending_messages.clear()
        # As after a restart: what came back, or was to be written and was not, is not counted, or it would be once more.
        self.unacked = self.claims.messages + sum(self._pending_messages.values())
        self.look_again(ZERO_ID)
        if self.lanes is not None:
            self.lanes.clear(self.pending)

    def restart(self) -> list[Claim]:
        """The group was sought: all claims are revoked, and what is free is found anew."""
        self.pending, self.returned, self.spared, self.dead = Spans(), Spans(), Spans(), Spans()
        self.unacked = 0
        self._pending_messages.clear()
        self._ready.clear()
        self.look_again(ZERO_ID)
        if self.lanes is not None:
            self.lanes.clear(self.pending)
        return self.claims.revoke_all()

    def look_again(self, place: bytes) -> None:
        """Something behind this place may be free again, or due."""
        self._cursor = min(self._cursor, place)
        self._passed = ZERO_ID
        self._search_ms = 0

    def end_claim(self, claim: Claim, returned: Spans | None = None) -> None:
        """A claim ends without acknowledgement; `returned` of its messages count as failed, the others are free."""
        places = [after for after, _ in claim.left]
        if returned is not None:
            self._came_back(returned)
        elif claim.attempt == 1:
            self.unacked -= claim.messages_left
        if self.lanes is not None:
            self.lanes.given_back(claim.left, failed=returned is not None, came_back=claim.attempt > 1)
        self.claims.end(claim)
        self.look_again(min(places, default=ZERO_ID))
        self._reckon()

    def free(self, spans: Spans, messages: int, *, returned: bool) -> None:
        """So many messages of one claim were given back, the others are kept; `returned`: they count as failed."""
        if self.lanes is not None:
            holder = self.claims.holder(next(iter(spans), (b"", b""))[1])
            self.lanes.given_back(spans, failed=returned, came_back=holder is not None and holder.attempt > 1)
        for after, through in spans:
            holder = self.claims.holder(through)
            if holder is not None and not returned and holder.attempt == 1:
                self.unacked -= messages
            self.claims.cut(after, through, acknowledged=False, messages=messages)
            self.look_again(after)
            messages = 0
        if returned:
            self._came_back(spans)
        self._reckon()

    def unparked(self, spans: Spans, messages: int) -> None:
        """So many messages that were parked are as free as if they had never been dealt."""
        for after, through in spans:
            self.returned.remove(after, through)
            self.look_again(after)
        self.unacked -= messages
        if self.lanes is not None:
            self.lanes.look_again()
        self._reckon()

    def take(self, spans: Iterable[tuple[bytes, bytes]], messages: int) -> None:
        """So many messages of claims are acknowledged, or pending."""
        for after, through in spans:
            self.claims.cut(after, through, acknowledged=True, messages=messages)
            messages = 0

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
                self._came_back(spans)
            else:
                self.unacked -= messages
            self.claims.forget_acknowledged(spans)
            self.look_again(min((after for after, _ in spans), default=ZERO_ID))
        self._reckon()
        return messages

    def _came_back(self, spans: Spans) -> None:
        self.returned.update(spans)
        self.spared.subtract(spans)

    def _forget(self, spans: Spans) -> None:
        for kept in (self.returned, self.spared, self.dead):
            kept.subtract(spans)

    def _reckon(self) -> None:
        """Nothing is unacknowledged when nobody has anything: what was miscounted, by restarts say, counts no more."""
        if self.unacked < 0 or not (len(self.claims) or self.pending or self.returned):
            self.unacked = 0

    async def _has_room(self, log: TopicLog) -> bool:
        """Count anew what came back, now and then, when there is too much of it: some of that may have expired unnoticed."""
        now_ms = self._clock.monotonic_ms()
        if not self.returned or now_ms < self._recount_ms:
            return False
        self._recount_ms = now_ms + RECOUNT_MS
        limits, before = self._messages.limits, self.unacked
        known = self.claims.messages + sum(self._pending_messages.values())
        for begin, through in [part for each in list(self.returned) for part in self._unheld(*each)]:
            place: bytes = begin
            while place < through and known < self.options.unacked_max:
                wanted = SliceLimits(limits.messages_max, limits.bytes_max, 1, through)
                found = await self._messages.read_committed(log, place, wanted)
                known += found.messages
                place = found.slices[-1].last_id() if found.slices else through
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
            round_ = state.round
            piece = self._next_piece(state, ask, in_gaps=in_gaps)
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
                self._passed = max(self._passed, found.next_id or piece.start)
                return Dealt(None, found, f"held {found.held_by}")
            elif piece.through is None:
                self._passed = max(self._passed, found.next_id or piece.start)
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
                self.end_claim(claim)
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
                self.claims.cut(message.after, message.id, acknowledged=True, messages=1)
                lanes.acknowledged([(message.after, message.id)])
                self._close(message.after, message.id)
                self.unacked -= 1

    def _next_piece(self, state: GroupState, ask: FetchAsk, *, in_gaps: bool) -> Piece | str:
        """The range to read for the next claim; or what there is to wait for."""
        if not self.is_of(state):
            return NO_MESSAGES
        if state.paused:
            return PAUSED
        limits, options = self._messages.limits, self.options
        messages_max = min(ask.limit or limits.messages_max, limits.messages_max)
        in_lane = options.mode == "stream"
        piece = self._first_returned(state, messages_max) if in_lane else self._next_returned(state, messages_max)
        if piece is not None:
            return piece
        room = options.unacked_max - self.unacked
        if room <= 0 and self.unacked:
            most = self.claims.most()
            return f"{UNACKED} {most}" if most else UNACKED
        piece = self._next_fresh(state, min(messages_max, room))
        return SPANS if in_gaps and piece.after >= self._acknowledged_through(state) else piece

    def _acknowledged_through(self, state: GroupState) -> bytes:
        """The end of all that is acknowledged, now or by a transaction: what lies before it lies in a gap."""
        return max(state.acknowledged.end, self.pending.end)

    def _next_fresh(self, state: GroupState, messages_max: int) -> Piece:
        """The first gap, of all that was not dealt yet."""
        place, stop = self._cursor, None
        taken = [spans for spans in (self.claims.taken, self.pending, self.returned, self.dead) if spans]
        taken.append(state.acknowledged)
        settled = False
        while not settled:  # until none of them covers the place
            settled, stop = True, None
            for spans in taken:
                behind, next_after = spans.gap_after(place)
                if behind != place:
                    place, settled = behind, False
                    break
                if next_after is not None and (stop is None or next_after < stop):
                    stop = next_after
        if place != self._cursor:
            self._cursor = place
        start = place if self._passed <= place or (stop is not None and self._passed > stop) else self._passed
        return Piece(place, stop, start, messages_max)

    def _next_returned(self, state: GroupState, messages_max: int) -> Piece | None:
        """The first piece that was returned and is due."""
        if not len(state.returns):
            return None
        while True:
            while self._ready:
                after, through = self._ready.popleft()
                for begin, end, attempts in self._due_within(state, after, through):
                    if end < through:
                        self._ready.appendleft((end, through))
                    before = state.returns.at(begin)
                    if before is not None and before.attempts > max(attempts, ALONE_ATTEMPTS):  # since it was found
                        self._spare(state, begin, before.attempts)
                    return self._returned_piece(begin, end, attempts, messages_max)
            now_ms = self._clock.now_ms()
            if now_ms < self._search_ms:
                return None
            self._search(state, now_ms)
            if not self._ready:
                return None

    def _due_within(self, state: GroupState, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        """The parts of the range that came back, are due, and nobody has, with their attempts: some of it may be acknowledged since it was found."""
        now_ms = self._clock.now_ms()
        for begin, end, attempt in state.returns.within(after, through):
            if attempt.not_before_ms <= now_ms:
                for part in self._unheld_of_returned(begin, end):
                    yield *part, attempt.attempts

    def _put_back(self, piece: Piece) -> None:
        """Nobody was dealt this piece: what was returned is found again by the next search."""
        if piece.returned:
            self._search_ms = 0

    def _search(self, state: GroupState, now_ms: int) -> None:
        """Find what was returned and is due, or when something will be."""
        self._search_ms = NEVER_MS
        for after, through, attempt in state.returns:
            if attempt.attempts > ALONE_ATTEMPTS:
                self._spare(state, through, attempt.attempts)
            if attempt.not_before_ms > now_ms:
                self._search_ms = min(self._search_ms, attempt.not_before_ms)
                continue
            self._ready += self._unheld_of_returned(after, through)
            if len(self._ready) >= READY_MAX:
                self._search_ms = 0  # at once, whatever the clock says then
                return

    def _first_returned(self, state: GroupState, messages_max: int) -> Piece | str | None:
        """The first piece that was returned, of a lane in which it holds back all that follows; what is free before it goes first."""
        for after, through, attempt in state.returns:
            free = next(iter(self._unheld_of_returned(after, through)), None)
            if free is None:
                continue
            earlier = self._next_fresh(state, messages_max)  # given back uncounted, or forgotten by a restart
            if earlier.after < free[0]:
                return earlier
            if attempt.attempts > ALONE_ATTEMPTS:
                self._spare(state, through, attempt.attempts)
            self._search_ms = attempt.not_before_ms
            left_ms = attempt.not_before_ms - self._clock.now_ms()
            if attempt.not_before_ms == NEVER_MS:
                return PARKED
            if left_ms > 0:
                return f"delayed {left_ms}"
            return self._returned_piece(*free, attempt.attempts, messages_max)
        return None

    def _spare(self, state: GroupState, through: bytes, attempts: int) -> None:
        """A message that ends here has failed alone: what failed less often behind it was its company, and is dealt so again."""
        for after, end, attempt in islice(state.returns.within(through, LAST_ID), SPARED_LOOKS_MAX):
            if after != through or not ALONE_ATTEMPTS <= attempt.attempts < attempts:
                return
            self.spared.add(after, end)
            through = end

    def _returned_piece(self, after: bytes, through: bytes, attempts: int, messages_max: int) -> Piece:
        # The last attempt is alone, whatever was known before: nothing becomes a dead letter for another's failure.
        is_last = attempts + 1 == self.options.attempts_max
        alone = is_last or (attempts >= ALONE_ATTEMPTS and not self.spared.contains(after, through))
        return Piece(after, through, after, 1 if alone else messages_max, attempts + 1, True)

    def _unheld(self, after: bytes, through: bytes) -> Iterable[tuple[bytes, bytes]]:
        """The parts of the range that are neither claimed nor pending."""
        for begin, end in list(self.claims.taken.gaps(after, through)):
            yield from list(self.pending.gaps(begin, end)) if self.pending else ((begin, end),)

    def _unheld_of_returned(self, after: bytes, through: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Those of them that came back and live, as far as is known."""
        for free in self._unheld(after, through):
            yield from list(self.returned.within(*free))

    def living(self, state: GroupState, before: bytes) -> Spans:
        """The gaps up to this place that are not acknowledged, and that nobody has."""
        gaps = Spans()
        for gap in state.acknowledged.gaps(ZERO_ID, before):
            for free in self._unheld(*gap):
                gaps.add(*free)
        return gaps

    def dead_ends(self) -> Spans:
        """The gaps in which nothing lives any more, but for what a transaction will acknowledge together with a message behind them."""
        return Spans([free for gap in self.dead for free in self._unheld(*gap)])

    def _claim(self, state: GroupState, piece: Piece, found: Fetch, ask: FetchAsk, epoch: int) -> Claim | None:
        """Claim what was found; None where some of it was taken while it was read."""
        last = (found.slices or found.encoded)[-1].last_id()
        held = [self.claims.taken, self.pending, state.acknowledged]
        if not piece.returned:
            held.append(self.returned)
        if any(spans.overlaps(piece.after, last) for spans in held):
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
                self._ready.appendleft((last, piece.through))
        else:
            self.unacked += found.messages
        self.dealt_through = max(self.dealt_through, last)
        self.dealt_total += found.messages
        self.totals.was_fetched(self._clock.now_ms(), found.messages)
        return claim

    def _close(self, after: bytes, through: bytes) -> None:
        """Nothing lives in this gap any more."""
        self.dead.add(after, through)
        self.returned.remove(after, through)

    def _reason(self) -> str:
        """The reason why a group waits that has dealt all that there is."""
        if self._search_ms not in (0, NEVER_MS) and self.returned:
            return f"delayed {max(self._search_ms - self._clock.now_ms(), 0)}"
        return CLAIMED if len(self.claims) or self.pending else NO_MESSAGES

    @property
    def due_ms(self) -> int | None:
        """When the next of what was returned is due, by the wall clock; None when nothing is."""
        if self.lanes is not None:
            return self.lanes.due_ms
        return None if self._search_ms in (0, NEVER_MS) or not self.returned else self._search_ms

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
