"""Messages that a call acknowledges or gives back: found in rows and claims before its stage, checked and made edits within it.

`plan` reads and waits, `check` and `stage` do neither. Between them anything may have happened, so whatever claims, members,
rounds and transactions say is asked in the stage. What is acknowledged by ids was looked up in rows; that does not change any more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from basalt.api.bodies.groups import ReleaseRequest
from basalt.api.bodies.messages import WorkAcknowledge
from basalt.errors import AcknowledgeConflictError, AcknowledgeOrderError, ClaimLostError
from basalt.groups.claims import Caller, Claim, ClaimEnd, ClaimPart, Claims, parts_of
from basalt.groups.live_group import LiveGroup, options_of
from basalt.groups.live_groups import LiveGroups
from basalt.groups.places import PLACES_TURN, MessagePlaces, Place
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.ranges import SCAN_BYTES_MAX, SCAN_ROWS_MAX, STRETCHES_TURN, Ranges
from basalt.messaging.read.log_reader import ReadBudget
from basalt.runtime.group_commit import Group, NotLoadedError
from basalt.transactions.log_state import LogState
from basalt.transactions.rules.edits import Doomed, Edit, Proposal, ReturnReason
from basalt.transactions.rules.groups import NEVER_MS, GroupState
from basalt.transactions.rules.refusals import naming
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.spans.spans import ZERO_ID, Spans

UNPARKED_TOGETHER = 1_000  # stretches of parked messages that are freed by one entry of the log: a few milliseconds
COUNTED_MAX = 1_000  # stretches of what `upTo` covers whose messages are counted


class PlannedAcknowledgement:
    """One entry of a Work, or a call: what of one group is to be acknowledged, and by whom. `check` fills in the spans."""

    __slots__ = (
        "acknowledged", "already", "asked", "by_id", "came_back", "claims", "counted", "edits", "exact", "left_out", "live", "places", "spans",
        "unclaimed",
    )  # fmt: skip

    def __init__(
        self, live: LiveGroup, asked: WorkAcknowledge, places: Sequence[Place], left_out: Sequence[Place]
    ) -> None:
        self.live = live
        self.asked = asked
        self.places = places  # of its ids
        self.left_out = left_out  # of `except_ids`
        self.spans = Spans()
        self.claims: list[ClaimPart] = []  # what of each is acknowledged
        self.by_id: list[tuple[bytes, bytes]] = []  # the spans of single messages
        self.acknowledged = self.already = 0  # messages
        # Of what `upTo` covers: stretches that were counted, the messages in them, and whether these are all.
        self.counted: dict[tuple[bytes, bytes], tuple[int, bool]] = {}
        self.unclaimed: list[tuple[bytes, bytes]] = []  # what nobody has claimed
        self.came_back = 0  # messages of that which had been dealt
        self.exact = True  # False: of what `upTo` covers, there are so many messages at least
        self.edits: Sequence[Edit] = ()  # that acknowledge them


class _Reach(NamedTuple):
    """Stretches that `upTo` covers beside what is acknowledged, left out, or named otherwise: of claims, returned, and never dealt."""

    claimed: list[tuple[Claim, Spans]]
    returned: list[tuple[bytes, bytes]]
    free: list[tuple[bytes, bytes]]


class Acknowledging:
    """Plans, checks and stages what is acknowledged in all groups of one store. It has no state."""

    def __init__(self, manager: LogState, places: MessagePlaces, ranges: Ranges, live: LiveGroups) -> None:
        self._manager = manager
        self._ranges = ranges
        self._live = live
        self._places = places

    async def planned(
        self, live: LiveGroup, asked: WorkAcknowledge, transaction_id: int | None = None, *, counting: bool = False
    ) -> PlannedAcknowledgement:
        """Look up what the entry names by id. `ConflictError` behind an undecided row, `MessageNotFoundError`.

        `counting`: somebody wants to know how many messages these are.
        """
        if asked.member:
            live.touch(asked.member, asked.epoch)
        if not (asked.ids or asked.except_ids or asked.reject or asked.up_to is not None):
            return PlannedAcknowledgement(live, asked, (), ())  # claims alone, as most are: there is nothing to look up
        ids = list(dict.fromkeys([bytes(each) for each in asked.ids]))  # named twice, it is one message
        assert {bytes(each.id) for each in asked.reject} <= {*ids}, "a coordinator makes dead letters of these first"
        left_out = [bytes(each) for each in asked.except_ids]
        log, state = await live.open()
        last = max([*ids, *left_out, bytes(asked.up_to or b"")])
        if last > max(live.dispatcher.dealt_through, state.acknowledged.floor):
            await self._places.check_decided(log, last)
        lanes = live.dispatcher.lanes
        if lanes is not None and (asked.up_to is not None or not lanes.knows(ids)):
            await live.read_through(last)
        found = await self._places.find(log, [*ids, *left_out])
        if live.options.mode == "stream":
            found = await self._joined(log, live, found)
        for place in found[: len(ids)]:
            if not place.is_known and live.dispatcher.claims.holder(place.id) is None:
                self._places.refuse_unknown(log, place)
        planned = PlannedAcknowledgement(live, asked, found[: len(ids)], found[len(ids) :])
        if asked.up_to is not None:
            named = [live.dispatcher.claims.find(number, asked.member) for number in asked.claims]
            planned.spans = Spans.union([claim.spans for claim in named if claim is not None])
            await self._count(planned, log, self._reach(planned, live.state, transaction_id), counting=counting)
        return planned

    async def _joined(self, log: TopicLog, live: LiveGroup, places: Sequence[Place]) -> list[Place]:
        """The places, each from the end of what is acknowledged on, or of the one before it, where no message lives in between.

        In a lane nothing may be left out, be it rows of aborted transactions, markers, or what has expired.
        """
        begins, done = dict[bytes, bytes](), ZERO_ID
        for place in sorted(set(places)):
            last = max([done, *(after for after, _ in live.state.acknowledged.gaps(done, place.id))])
            joins = last < place.after and not await live.has_messages(log, last, place.after)
            begins[place.id], done = last if joins else place.after, place.id
        return [place._replace(after=begins[place.id]) for place in places]

    async def _count(self, planned: PlannedAcknowledgement, log: TopicLog, reach: _Reach, *, counting: bool) -> None:
        """Count the messages of stretches that no claim knows the number of; of what was never dealt only for who wants to know."""
        stretches = [
            pair for claim, spans in reach.claimed if spans is not claim.left and spans != claim.left for pair in spans
        ]
        stretches += reach.returned + (reach.free if counting else [])
        if not stretches:
            return
        settled, budget = await self._ranges.settled(log), ReadBudget(SCAN_ROWS_MAX, SCAN_BYTES_MAX)
        for number, stretch in enumerate(stretches[:COUNTED_MAX], 1):
            if number % STRETCHES_TURN == 0:
                await asyncio.sleep(0)
            found = await self._ranges.count(log, settled, [stretch], budget)
            planned.counted[stretch] = found.messages, found.exact
            if not found.exact:
                return

    # In a stage.

    def check(
        self, planned: Sequence[PlannedAcknowledgement], transaction_id: int | None, now_ms: int, *, committing: bool, writer: int = 0,
    ) -> Proposal | None:  # fmt: skip
        """In a stage, before anything is changed: what each entry covers, and whether it may; in order, where it is decided now.

        Raises why not; returns a proposal where a transaction is doomed by it, with edits to apply and its refusal.
        """
        table = self._manager.state.groups
        for each in planned:
            state = each.live.state
            each.live = self._live.present(state)  # as it is now: an idle one may have been dropped and made anew since
            totals = each.live.totals
            try:
                self._resolve(each, state, transaction_id)
                if transaction_id is None:
                    each.edits = table.propose_acknowledge(state.number, each.spans, now_ms, writer).proposal.edits
                    continue
            except (ClaimLostError, AcknowledgeConflictError):
                totals.conflicts += 1
                raise
            proposal = self._manager.state.acknowledge_in(transaction_id, state.number, each.spans, now_ms)
            each.edits = proposal.edits
            if proposal.refusal is not None:
                if any(not isinstance(edit, Doomed) for edit in proposal.edits):
                    raise proposal.refusal  # its time is up, and others end it
                totals.conflicts += 1
                return proposal
        if committing:
            self._check_order(planned, transaction_id)
        return None

    def stage(
        self, planned: Sequence[PlannedAcknowledgement], transaction_id: int | None, now_ms: int, writer: int = 0
    ) -> list[Edit]:
        """In a stage, after `check`: the edits that acknowledge, to be applied in the same stage. Claims end here.

        Without a transaction at once, under the one-shot transaction `writer` if there is one.
        """
        made: list[Edit] = []
        for each in planned:
            made += each.edits
            self._settle(each, transaction_id)
        return made

    def release(self, planned: PlannedAcknowledgement, asked: ReleaseRequest, now_ms: int) -> tuple[list[Edit], int]:
        """In a stage: the edits by which messages that the caller holds come back, to be applied, and how many these are."""
        state, made = planned.live.state, list[Edit]()
        live = planned.live = self._live.present(state)
        self._resolve(planned, state, None, releasing=True)
        claims, pending, refused = live.dispatcher.claims, live.dispatcher.pending, list[Spans]()
        given = [part for part in planned.claims if part.claim.end is None and part.spans]
        by_id, unheld = _by_claim(claims, planned.by_id)
        given += [part for part in by_id if part.messages]
        if pending:  # what of it is meant is refused
            refused = [part.claim.spans for part in planned.claims if part.claim.end is ClaimEnd.ACKNOWLEDGED]
            met = [pair for pair in planned.unclaimed if pending.overlaps(*pair)]
            held = {message_id for message_id in unheld if pending.covers(message_id)}
            refused.append(Spans(met + [pair for pair in planned.by_id if pair[1] in held]))
        self._manager.state.groups.propose_return(
            live.number, Spans.union(refused), ReturnReason.RELEASED, now_ms, now_ms
        )
        if asked.counts:
            made = live.failed(state, given, ReturnReason.RELEASED, now_ms, asked.delay_ms)
        else:
            live.dispatcher.give_back(given, returned=False)
        for claim, _, _ in given:
            claim.released = claim.end is not None
        return made, sum([messages for _, _, messages in given])

    async def unpark(self, live: LiveGroup, ids: Sequence[bytes] | None) -> int:
        """Free parked messages, as if they had never been dealt: these, or all (None), a part at a time; how many."""
        log, state = await live.open()
        round_ = state.round
        parked = [(after, through) for after, through, attempt in state.returns if attempt.not_before_ms == NEVER_MS]
        if ids is not None:
            known, parked = Spans(parked), []
            for number, place in enumerate(await self._places.find(log, ids), 1):
                if known.covers(place.id):
                    parked.append((place.after, place.id))
                if number % PLACES_TURN == 0:
                    await asyncio.sleep(0)
        total = 0
        for first in range(0, len(parked), UNPARKED_TOGETHER):
            spans, messages = Spans(parked[first : first + UNPARKED_TOGETHER]), 0
            for number, span in enumerate(spans, 1):
                if number % STRETCHES_TURN == 0:
                    await asyncio.sleep(0)
                messages += await live.count(log, *span)
            total += await self._manager.run_for_groups(partial(self._unparked, live, round_, spans, messages))
        return total

    def _unparked(self, live: LiveGroup, round_: int, spans: Spans, messages: int, group: Group) -> int:
        """In a stage: free these, which were parked, unless the group was sought since."""
        live = self._live.present(live.state)
        if live.state.round != round_:
            return 0
        table = self._manager.state.groups
        made = table.propose_return(live.number, spans, ReturnReason.UNPARKED, 0, group.now_ms).edits
        self._manager.apply(group, made)
        live.dispatcher.unparked(spans, messages)
        group.when_durable(live.wake)
        return messages

    def close(self, live: LiveGroup, spans: Spans, now_ms: int) -> list[Edit]:
        """In a stage: cover gaps in which nothing lives any more."""
        made = self._manager.state.groups.propose_acknowledge(live.number, spans, now_ms).proposal.edits
        live.dispatcher.settle(spans, None, 0)
        return list(made)

    def _resolve(
        self, planned: PlannedAcknowledgement, state: GroupState, transaction_id: int | None, *, releasing: bool = False
    ) -> None:
        asked = planned.asked
        if asked.round and asked.round != state.round:
            raise ClaimLostError(
                f"group {state.name} was sought since: what was dealt in round {asked.round} is void in round {state.round}",
                field="round",
                hint="drop the batch and fetch again",
            )
        if asked.member:
            planned.live.members.check(asked.member, asked.epoch)
        caller = Caller(asked.member, asked.epoch, frozenset(asked.claims), transaction_id)
        planned.spans, planned.claims, planned.by_id, planned.unclaimed = Spans(), [], [], []
        planned.acknowledged = planned.already = planned.came_back = 0
        if asked.claims:
            self._resolve_claims(planned, state, caller, releasing=releasing)
        if asked.up_to is not None:
            self._take_reach(planned, state, self._reach(planned, state, transaction_id), caller)
        if planned.places:
            self._resolve_ids(planned, state, caller)

    def _resolve_claims(
        self, planned: PlannedAcknowledgement, state: GroupState, caller: Caller, *, releasing: bool
    ) -> None:
        """The spans of claims, but for those left out."""
        places = [(place.after, place.id) for place in planned.left_out]
        left_out, kept = Spans(places), dict[Claim, int]()
        if places:
            kept = {claim: messages for claim, _, messages in _by_claim(planned.live.dispatcher.claims, places)[0]}
        for number in dict.fromkeys(planned.asked.claims):
            claim = self._owned(planned, number, caller, releasing=releasing)
            spans = self._covered(claim, state, caller.transaction_id, releasing=releasing)
            if places:
                spans = spans.minus(left_out)
            messages = max(claim.messages_left - kept.get(claim, 0), 0)
            planned.claims.append(ClaimPart(claim, spans, messages))
            planned.acknowledged += messages
            planned.already += claim.messages - claim.messages_left
        planned.spans = Spans.union([spans for _, spans, _ in planned.claims])

    def _resolve_ids(self, planned: PlannedAcknowledgement, state: GroupState, caller: Caller) -> None:
        """The spans of single messages, but for those that claims or `upTo` cover."""
        claims, pending = planned.live.dispatcher.claims, planned.live.dispatcher.pending
        named = planned.spans
        places = [each for each in planned.places if not named.covers(each.id)] if named else planned.places
        found = [(place.after, place.id) for place in places]
        spans = Spans(found)
        touched = {holder for _, _, holder in claims.common(spans)} if len(claims) else ()
        if pending.meets(spans) or not all(map(caller.owns, touched)):
            for index, place in enumerate(places):
                holder = claims.holder(place.id)
                if holder is not None and not caller.owns(holder):
                    raise _held(state, place.id, holder)
                found[index] = (self._trimmed(planned, place, caller), place.id)
            spans = Spans(found)
        already = 0
        if state.acknowledged.meets(spans):  # begin where that ends: what was between was removed since, with its rows
            found = [(_behind(state.acknowledged, *pair), pair[1]) for pair in found]
            spans = Spans(found)
            already = state.acknowledged.covered([place.id for place in places])
        planned.by_id = found
        planned.spans.update(spans)
        planned.already += already
        planned.acknowledged += len(found) - already

    def _reach(self, planned: PlannedAcknowledgement, state: GroupState, transaction_id: int | None) -> _Reach:
        dispatcher = planned.live.dispatcher
        others = Spans([(place.after, place.id) for place in planned.left_out])
        others.update(planned.spans)
        if transaction_id is not None:
            others.update(self._manager.state.groups.pending_of(transaction_id).get(state.number, Spans()))
        open_ = Spans([(ZERO_ID, bytes(planned.asked.up_to or ZERO_ID))])
        open_.subtract(state.acknowledged)
        open_.subtract(others)
        held = parts_of(dispatcher.claims.common(open_))
        unclaimed = open_.minus(dispatcher.claims.taken)
        returned = unclaimed.common(dispatcher.retries.spans)
        return _Reach([(claim, spans) for claim, spans, _ in held], list(returned), list(unclaimed.minus(returned)))

    def _take_reach(self, planned: PlannedAcknowledgement, state: GroupState, reach: _Reach, caller: Caller) -> None:
        for claim, spans in reach.claimed:
            if not caller.owns(claim):
                raise _held(state, next(iter(spans))[1], claim)
            is_whole = spans is claim.left or spans == claim.left
            messages = claim.messages_left if is_whole else self._number(planned, spans)
            planned.claims.append(ClaimPart(claim, spans, messages))
            planned.acknowledged += messages
        planned.came_back = self._number(planned, reach.returned)
        planned.acknowledged += planned.came_back + self._number(planned, reach.free)
        planned.unclaimed = [*reach.returned, *reach.free]
        planned.spans = Spans.union([planned.spans, Spans(planned.unclaimed), *(spans for _, spans in reach.claimed)])

    @staticmethod
    def _number(planned: PlannedAcknowledgement, stretches: Iterable[tuple[bytes, bytes]]) -> int:
        """The messages of these, as they were counted; what has changed since then is not among them, which is noted."""
        number = 0
        for each in stretches:
            messages, exact = planned.counted.get(each, (0, False))
            number += messages
            planned.exact = planned.exact and exact
        return number

    @staticmethod
    def _owned(planned: PlannedAcknowledgement, number: int, caller: Caller, *, releasing: bool) -> Claim:
        claim = planned.live.dispatcher.claims.find(number, caller.member)
        again = releasing and claim is not None and claim.released  # for the answer was lost
        lost = claim is None or (claim.end is ClaimEnd.LOST and not again) or (claim.torn and not releasing)
        if claim is None or lost or not caller.owns(claim):
            raise ClaimLostError(
                f"claim {number} is not there (any more): it ran out, was given back, or is another's",
                field="claims",
                hint="send the ids of its messages, and the round, once; whoever holds them now keeps them",
            )
        return claim

    @staticmethod
    def _covered(claim: Claim, state: GroupState, transaction_id: int | None, *, releasing: bool) -> Spans:
        """The spans that a claim stands for: all that it did not give back. To be released is what it has left."""
        if releasing:
            return claim.left
        if transaction_id is None or claim.end is not None or claim.messages_left == claim.messages:
            return claim.spans
        # What this claim has acknowledged before, and kept the rest, is no conflict.
        return claim.spans.minus(state.acknowledged)

    @staticmethod
    def _trimmed(planned: PlannedAcknowledgement, place: Place, caller: Caller) -> bytes:
        """The begin of a single message's span: not before the end of what another holds, for that one may have expired."""
        dispatcher, begin = planned.live.dispatcher, place.after
        for _, end, claim in dispatcher.claims.holders(begin, place.id):
            if not caller.owns(claim):
                begin = max(begin, end)
        return _behind(dispatcher.pending, begin, place.id)

    def _settle(self, planned: PlannedAcknowledgement, transaction_id: int | None) -> None:
        dispatcher = planned.live.dispatcher
        claims, before = dispatcher.claims, dispatcher.claims.messages
        unclaimed = planned.came_back  # and claimed by nobody since
        dispatcher.take([part for part in planned.claims if part.claim.end is None and part.spans])
        if planned.by_id and (dispatcher.retries.spans or len(claims)):
            parts, unheld = _by_claim(claims, planned.by_id)
            dispatcher.take(parts)
            unclaimed += dispatcher.retries.spans.covered(unheld)
        taken = before - claims.messages
        dispatcher.settle(planned.spans, transaction_id, taken + unclaimed)
        if transaction_id is None and planned.live.waiting:
            planned.live.wake()

    def _check_order(self, planned: Sequence[PlannedAcknowledgement], transaction_id: int | None) -> None:
        """Refuse what would leave an earlier message unacknowledged: of a stream, or of a key."""
        table = self._manager.state.groups
        pending = {} if transaction_id is None else table.pending_of(transaction_id)
        for number in dict.fromkeys((*(each.live.number for each in planned), *pending)):
            state = table.by_number.get(number)
            mode = None if state is None else options_of(state).mode
            if state is None or mode not in ("stream", "keyed") or not self._live.is_here(state.prefix):
                continue  # of what is dealt elsewhere its owner was asked
            done = pending[number].copy() if number in pending else Spans()
            for each in planned:
                if each.live.number == number:
                    done.update(each.spans)
            live = self._live.present(state)
            if mode == "stream":
                _refuse_disorder(state, done, live)
            else:
                self._refuse_disorder_of_keys(live, done)

    def _refuse_disorder_of_keys(self, live: LiveGroup, done: Spans) -> None:
        """All of a key before the last of `done` is acknowledged, or done now, or lives no more."""
        state, lanes = live.state, live.dispatcher.lanes
        if lanes is None:
            return
        left = lanes.first_left(done, state.acknowledged, live.oldest())
        if left is None:
            return
        if left.is_untried:
            raise NotLoadedError(partial(_loaded, live, left.later))
        if not left.is_read:
            raise AcknowledgeOrderError(
                f"group {state.name} has not read all that lies before {left.later.hex()}: from {left.id.hex()} on there may be"
                " earlier messages of its key",
                field="ids",
                hint="fetch, and acknowledge what was dealt",
            )
        before = (
            f"message {left.id.hex()} of group {state.name} comes before {left.later.hex()}, with the same key, and"
        )
        hint = "acknowledge them together, or the earlier one first; or give this one back and fetch again"
        holder = self._acknowledging(live, left.id)
        if holder is None:
            raise AcknowledgeOrderError(f"{before} {self._standing(live, left.id)}", field="ids", hint=hint)
        held = f"{before} is acknowledged by a transaction that has not ended"
        named = f"{held}, of {holder.owner}" if holder.owner else held
        raise naming(AcknowledgeOrderError(named, field="ids", hint=hint), (holder.id,), held)

    def _acknowledging(self, live: LiveGroup, message_id: bytes) -> Transaction | None:
        """The transaction that acknowledges a message which is in the way, unless somebody has claimed it."""
        if live.dispatcher.claims.holder(message_id) is not None:
            return None
        state = self._manager.state
        holders = (key for key, spans in state.groups.pending_in(live.number).items() if spans.covers(message_id))
        found = next(holders, None)
        return None if found is None else state.get(found)

    def _standing(self, live: LiveGroup, message_id: bytes) -> str:
        """Words for who has a message that is in the way, if that is no transaction."""
        holder = live.dispatcher.claims.holder(message_id)
        if holder is not None:
            return f"is in claim {holder.number} of {holder.member or 'somebody without a name'}"
        attempt = live.state.returns.at(message_id)
        if attempt is None:
            return "was not dealt"
        if attempt.not_before_ms == NEVER_MS:
            return f"is parked after {attempt.attempts} attempts"
        return f"came back after {attempt.attempts} attempts"


async def _loaded(live: LiveGroup, last: bytes) -> Callable[[], None]:
    """Read ahead, for a stage that is run again then."""
    await live.read_through(last)
    return lambda: None


def _behind(spans: Spans, after: bytes, message_id: bytes) -> bytes:
    """The begin of a message's span, not before the end of those of these spans that do not have the message itself."""
    if not spans.overlaps(after, message_id) or spans.covers(message_id):
        return after
    *_, (begin, _) = spans.gaps(after, message_id)
    return begin


def _by_claim(claims: Claims, by_id: Sequence[tuple[bytes, bytes]]) -> tuple[list[ClaimPart], list[bytes]]:
    """The parts of claims in which these single messages lie, with the number of them; and the ids that nobody has.

    Of a claim that only has what lives no more before such a message there are none.
    """
    found, ids = claims.common(Spans(by_id)), sorted([through for _, through in by_id])
    numbers, unheld, at = dict[Claim, int](), list[bytes](), 0
    for begin, end, claim in found:
        first = bisect_right(ids, begin, at)
        stop = bisect_right(ids, end, first)
        unheld += ids[at:first]
        numbers[claim] = numbers.get(claim, 0) + stop - first
        at = stop
    return parts_of(found, numbers), unheld + ids[at:]


def _refuse_disorder(state: GroupState, done: Spans, live: LiveGroup | None) -> None:
    """All before the last of `done` is acknowledged, or done now, or nothing lives there."""
    last = max((through for _, through in done), default=ZERO_ID)
    dead = live.dispatcher.dead if live is not None else Spans()
    for gap in state.acknowledged.gaps(ZERO_ID, last):
        for open_ in done.gaps(*gap):
            for after, through in dead.gaps(*open_):
                holder = None if live is None else next(live.dispatcher.claims.holders(after, through), None)
                who = (
                    f", which claim {holder[2].number} of {holder[2].member or 'nobody by name'} holds"
                    if holder
                    else ""
                )
                raise AcknowledgeOrderError(
                    f"group {state.name} is a stream, and has not acknowledged what lies up to {through.hex()}{who}",
                    field="ids",
                    hint="acknowledge in order, or give back what is claimed and fetch again",
                )


def _held(state: GroupState, message_id: bytes, holder: Claim) -> ClaimLostError:
    who = f"member {holder.member}" if holder.member else "somebody without a name"
    return ClaimLostError(
        f"message {message_id.hex()} of group {state.name} is in claim {holder.number} of {who}",
        field="ids",
        hint="if the claim is yours, name it in claims; else drop the message: its holder will handle it",
    )
