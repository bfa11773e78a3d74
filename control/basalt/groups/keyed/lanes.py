"""The lanes of a keyed group: which message goes to which member, in the order of its key, and what an acknowledgement leaves behind.

A lane is all messages with one hash of their key. Messages are read ahead into a `Window`, and dealt to the owner of their
slot. In `flight` are those that were dealt, or are pending, or came back, and are not acknowledged: of one lane, all of
them lie before what was never dealt. So an acknowledgement is in order when it leaves nothing of its lanes in flight before it,
which costs nothing per message of the topic.

Most claims are acknowledged as they were dealt, and in their turn. So what one deal was is kept together (`_Deal`) until somebody
asks about its messages one by one; only then are they noted in `flight`, and counted where a slot waits for them.

What came back has rules of its own (`Comebacks`). What the log says of a message is asked there each time (`GroupState`); what is here can
be made again by reading.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from basalt.groups.claims import Claims, Companies
from basalt.groups.fetches import NOTHING
from basalt.groups.keyed.comebacks import Comebacks, attempt_of
from basalt.groups.keyed.slots import SLOTS, Ahead, Sheet, Slots
from basalt.groups.keyed.window import WINDOW_BYTES_MAX, Picked, Window, picked_parts
from basalt.groups.members import Members
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.messages import Messages
from basalt.messaging.read.log_reader import Fetch, SliceLimits, Stopped
from basalt.messaging.read.slices import Slice
from basalt.transactions.rules.groups import GroupState
from basalt_engine.records import BatchSection, Extras
from basalt_engine.spans.spans import ZERO_ID, Spans

READ_MESSAGES_MAX = 4_096  # read ahead at once, some 5 ms of work: then others get their turn
READ_BYTES_MAX = 4 << 20
SHEET_MESSAGES_MIN = 16  # of a batch, on average: of smaller ones each message is packed, and read again later
PICKED_MESSAGES_MIN = 16  # asked for where what is wanted lies far apart
PICK_LOOKS_MAX = 64  # looks at a window that one fetch takes: the next one goes on
HEADER_PREFIX = "header:"  # of the option `key`: the lane is told by this header's value


class Left(NamedTuple):
    """A message that an acknowledgement would leave behind `later`, one of its lane. Not `is_read`: one may lie behind this place.

    `is_untried`: nobody has tried to read as far as `later`.
    """

    id: bytes
    later: bytes
    is_read: bool = True
    is_untried: bool = False


class _Deal:
    """Messages that were dealt for the first time, to one member at once, and are still as they were: nobody asked for one of them."""

    __slots__ = ("is_counted", "member", "picked")

    def __init__(self, picked: Picked, member: str) -> None:
        self.picked = picked
        self.member = member
        self.is_counted = False  # its slots wait for it

    def lanes(self) -> list[int]:
        if self.picked.cuts:
            return [lane for cut in self.picked.cuts for lane in cut.lanes()]
        return [message.lane for message in self.picked.messages]


class Lanes:
    """Everything that one keyed group knows of the messages ahead. One fetch is dealt at a time; everything else comes in between."""

    def __init__(self, messages: Messages, claims: Claims, key: str, bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.slots = Slots()
        self.window = Window(self.slots, bytes_max)
        self.flight: dict[bytes, Ahead] = {}
        self.held: Fetch | None = None  # where reading ahead ended, if at an undecided row
        self._messages = messages
        self._claims = claims
        self._pending = Spans()
        self._bytes_max = bytes_max
        self._header = key.removeprefix(HEADER_PREFIX) if key.startswith(HEADER_PREFIX) else None
        self._deals: dict[bytes, _Deal] = {}  # in flight too, as they were dealt; by where they begin
        self._deals_of: dict[str, list[_Deal]] = {}  # the same by member, first dealt first
        self._by_lane: dict[int, list[bytes]] = {}  # the ids in flight, ascending
        self._counted: set[bytes] = set()  # of those, the ones for which a slot waits: they were claimed
        self._out_of_turn: set[bytes] = set()  # of those, the ones before which undealt messages of their lanes may lie
        self._comebacks = Comebacks()  # of those, the ones that came back, were dealt again, or are pending
        self._companies = Companies()
        self._last = ZERO_ID  # the last message that was read, or where reading began
        self._tried = ZERO_ID  # somebody tried to read ahead up to here
        self._is_complete = True  # False: something came back of which nothing is known here
        self._assigned: tuple[int, Members] | None = None
        self._lock = asyncio.Lock()  # of reading ahead

    # Members.

    def assign(self, members: Members) -> None:
        """Deal the slots anew, when members came or went."""
        if self._assigned is None or self._assigned[0] != members.version:
            self._assigned = members.version, members
            for deal in self._deals.values():
                self._count_slots(deal)
            self.window.rearrange(self.slots.assign([member.name for member in members]))

    # What happened to messages.

    def clear(self, pending: Spans) -> None:
        """Begin again: the group was found, or sought, or its log was read again. `pending` is in transactions, now and later."""
        owners = self.slots.owners
        self.slots = Slots()
        self.slots.owners = owners
        self.window = Window(self.slots, self._bytes_max)
        for known in (
            self.flight, self._deals, self._deals_of, self._by_lane, self._comebacks, self._companies, self._counted,
            self._out_of_turn,
        ):  # fmt: skip
            known.clear()
        self._pending, self._last, self._tried, self._is_complete, self.held = pending, ZERO_ID, ZERO_ID, True, None

    def given_back(self, spans: Iterable[tuple[bytes, bytes]], *, failed: bool, came_back: bool) -> None:
        """Messages of a claim are not claimed any more: they failed now, or came back before, or are as free as if never dealt."""
        self._unfold()
        messages, _ = self._split(spans)
        if failed:
            self._companies.failed([message.id for message in messages])
        for message in messages:
            self._uncount(message)
        if failed or came_back or not self._out_of_turn.isdisjoint(message.id for message in messages):
            self._wait_all(messages)
            return
        for message in messages:
            self._land(message)
        for message in messages:
            # What was dealt behind it and is not decided must not overtake it: then it is next, as if it had come back.
            if message.lane in self._by_lane:
                self._wait(message)
            else:
                self.window.put_back([message])

    def acknowledged(self, spans: Iterable[tuple[bytes, bytes]]) -> None:
        """These are acknowledged, or were pending and their transaction committed."""
        deal = self._deal_of(spans)
        if deal is not None:
            self._end_deal(deal)
            return
        self._unfold()
        messages, unknown = self._split(spans)
        if self._comebacks:
            for message in messages:
                self._comebacks.let_go(message)
                if self._comebacks.has(message.lane):
                    self._stop_waiting(message)
                    self._uncount(message)
        # The work of each message of a group: as little as can be.
        flight, by_lane, counted = self.flight, self._by_lane, self._counted
        self.slots.end([message[2] % SLOTS for message in messages if message[0] in counted])
        ids = [message[0] for message in messages]
        counted.difference_update(ids)
        for lane, count in Counter([message[2] for message in messages]).items():
            if len(by_lane[lane]) == count:  # all that is in flight of it
                del by_lane[lane]
        for message in messages:
            del flight[message[0]]
            left = by_lane.get(message[2])
            if left is not None:
                left.remove(message[0])
        if self._out_of_turn:
            self._out_of_turn.difference_update(ids)
        self._companies.forget(ids)
        for after, through in unknown:
            self.window.forget(after, through)

    def pending(self, spans: Iterable[tuple[bytes, bytes]]) -> None:
        """These are acknowledged by a transaction that has not ended. A slot goes on waiting for those that were claimed."""
        self._unfold()
        messages, unknown = self._split(spans)
        for message in messages:
            self._stop_waiting(message)
            self._comebacks.hold(message)
        if unknown:
            for message in self.window.within(Spans(unknown)):
                self._take_off(message)
                self._out_of_turn.add(message.id)
                self._comebacks.hold(message)
            for after, through in unknown:
                self.window.forget(after, through)

    def let_go(self, spans: Iterable[tuple[bytes, bytes]]) -> None:
        """The transaction in which these were pending has ended: what follows does not wait for them any more."""
        self._unfold()
        for message in self._split(spans)[0]:
            self._comebacks.let_go(message)

    def not_committed(self, spans: Iterable[tuple[bytes, bytes]], *, failed: bool) -> None:
        """These were pending, and their transaction did not commit, which counts as failure or not."""
        self._unfold()
        messages, unknown = self._split(spans)
        if failed:
            self._companies.failed([message.id for message in messages])
        for message in messages:
            self._comebacks.let_go(message)
            self._uncount(message)
        self._wait_all(messages)
        if unknown:
            self._is_complete = False  # nobody here knows their lanes

    def look_again(self) -> None:
        """When they are due may have changed for all that came back."""
        self._comebacks.look_again()

    def _split(self, spans: Iterable[tuple[bytes, bytes]]) -> tuple[list[Ahead], list[tuple[bytes, bytes]]]:
        """The messages in flight among these, and the spans in which there are, or may be, others."""
        found, unknown, flight = list[Ahead](), list[tuple[bytes, bytes]](), self.flight
        ordered: list[bytes] | None = None
        for after, through in spans:
            place, first = through, len(found)
            while place > after:  # each says which is before it
                message = flight.get(place)
                if message is None:
                    break
                found.append(message)
                place = message.after
            if place <= after:
                continue
            if ordered is None:
                ordered = sorted(flight)
            del found[first:]
            ids = ordered[bisect_right(ordered, after) : bisect_right(ordered, through)]
            found += [flight[each] for each in ids]
            unknown.append((after, through))
        return found, unknown

    def _take_off(self, message: Ahead) -> None:
        """The message is in flight from now on."""
        if message.id not in self.flight:
            self.flight[message.id] = message
            insort(self._by_lane.setdefault(message.lane, []), message.id)

    def _dealt(self, picked: Picked, member: str) -> Picked:
        """These are dealt to a member: of each lane they lie behind all that is in flight."""
        deal = _Deal(picked, member)
        self._deals[next(iter(picked.spans))[0]] = deal
        self._deals_of.setdefault(member, []).append(deal)
        return picked

    def _deal_of(self, spans: Iterable[tuple[bytes, bytes]]) -> _Deal | None:
        """The deal that is just these spans."""
        first = next(iter(spans), None) if self._deals else None
        deal = None if first is None else self._deals.get(first[0])
        return deal if deal is not None and deal.picked.spans == spans else None

    def _end_deal(self, deal: _Deal) -> None:
        """All of it is acknowledged."""
        del self._deals[next(iter(deal.picked.spans))[0]]
        deals = self._deals_of[deal.member]
        deals.remove(deal)
        if not deals:
            del self._deals_of[deal.member]
        if deal.is_counted:
            self.slots.end([lane % SLOTS for lane in deal.lanes()])

    def _count_slots(self, deal: _Deal) -> None:
        """Slots wait for the deal's messages from now on: their owners are still those to whom it was dealt."""
        if not deal.is_counted:
            deal.is_counted = True
            self.slots.claim([lane % SLOTS for lane in deal.lanes()], deal.member)

    def _unfold(self) -> None:
        """Note all that was dealt message by message."""
        if not self._deals:
            return
        flight, by_lane = self.flight, self._by_lane
        for deal in self._deals.values():
            self._count_slots(deal)
            for message in deal.picked.ahead():
                flight[message.id] = message
                ids = by_lane.get(message.lane)
                if ids is None:
                    by_lane[message.lane] = [message.id]
                else:
                    insort(ids, message.id)
                self._counted.add(message.id)
        self._deals.clear()
        self._deals_of.clear()

    def _land(self, message: Ahead) -> None:
        """The message is in flight no more: acknowledged, or as if it had not been dealt."""
        del self.flight[message.id]
        self._out_of_turn.discard(message.id)
        ids = self._by_lane[message.lane]
        ids.remove(message.id)
        if not ids:
            del self._by_lane[message.lane]

    def _count(self, message: Ahead, holder: str) -> None:
        self._counted.add(message.id)
        self.slots.claim((message.slot,), holder)

    def _uncount(self, message: Ahead) -> None:
        if message.id not in self._counted:
            return
        self._counted.remove(message.id)
        self.slots.end((message.slot,))
        if self._comebacks.decided(message):
            self.window.unblock(message.lane)

    def _wait(self, message: Ahead) -> None:
        self._take_off(message)
        self._comebacks.add(message)
        self.window.block(message.lane)

    def _wait_all(self, messages: Iterable[Ahead]) -> None:
        """These come again, and before them what of their lanes was never dealt and lies before them."""
        early: dict[int, bytes] = {}
        for message in messages:
            self._wait(message)
            if message.id in self._out_of_turn:
                self._out_of_turn.remove(message.id)
                early[message.lane] = max(message.id, early.get(message.lane, b""))
        for message in self.window.take_before(early) if early else ():
            self._wait(message)

    def _stop_waiting(self, message: Ahead) -> None:
        if self._comebacks.stop(message):
            self.window.unblock(message.lane)

    # Reading ahead.

    async def read_through(self, log: TopicLog, state: GroupState, last: bytes) -> None:
        """Read ahead up to this message, which is decided: somebody acknowledges it without having been dealt it here."""
        if not self._is_complete:
            self.clear(self._pending)
        window = self.window
        while window is self.window and window.place < last and await self._read_ahead(log, state):
            pass
        if window is self.window:  # else whoever needs it asks again
            self._tried = max(self._tried, last)

    def of(self, spans: Iterable[tuple[bytes, bytes]]) -> list[Ahead]:
        """The messages of these spans that are in flight, ascending."""
        self._unfold()
        return sorted(self._split(spans)[0])

    def lane_of(self, message_id: bytes, extras: Extras) -> int:
        """The lane of a message with this key and these headers."""
        value = extras.key
        if self._header is not None:
            value = next((value for name, value in extras.headers if name == self._header), None)
        return crc32c(message_id if value is None else value)

    def peek(self) -> Iterator[tuple[int, bytes, bool]]:
        """The slot and the id of each message that was read and is not acknowledged; True where a member works on it. Changes nothing."""
        for deal in self._deals.values():
            for message in deal.picked.ahead():
                yield message.slot, message.id, True
        yield from ((message.slot, each, each in self._counted) for each, message in self.flight.items())
        for lane, message_id in self.window.peek():
            yield lane % SLOTS, message_id, False

    def first_in_flight(self, lane: int, before_id: bytes) -> bytes | None:
        """The first message of the lane before this one that was dealt, or came back, and is not acknowledged."""
        self._unfold()
        ids = self._by_lane.get(lane)
        return ids[0] if ids and ids[0] < before_id else None

    def knows(self, ids: Iterable[bytes]) -> bool:
        """True when all these were dealt here, or came back."""
        self._unfold()
        return all(message_id in self.flight for message_id in ids)

    async def _read_ahead(self, log: TopicLog, state: GroupState) -> bool:
        """Read the next page of what is not acknowledged, or one that was left out; False when there is none."""
        async with self._lock:
            window, round_ = self.window, state.round
            again = window.refill_after()
            begin = window.place if again is None else again
            place, stop = state.acknowledged.gap_after(begin)
            if again is not None:
                stop = min(stop or window.place, window.place)
                if place >= stop:  # all of it is acknowledged by now
                    window.refill(again, (), window.place if place >= window.place else place)
                    return True
            last = self._last if place == begin and again is None else place
            limits = SliceLimits(READ_MESSAGES_MAX, READ_BYTES_MAX, 1, stop)
            found = await self._messages.read_committed(log, place, limits)
            if window is not self.window or state.round != round_ or log.ended:
                return not log.ended  # all is another question now
            through = found.next_id or place
            if found.held_by is None and stop is not None and found.stopped is Stopped.END:
                through = stop  # nothing lives there any more
            self.held = found if found.held_by is not None else None
            if through <= begin:
                return False
            sheets = self._sheets(found.slices, last)
            if again is None and self._are_available(sheets, state):
                if len(sheets) * SHEET_MESSAGES_MIN <= found.messages:
                    window.add_sheets(begin, sheets, through)
                else:
                    window.add(begin, _entries(sheets), through)
                self._last = sheets[-1].ids[-1] if sheets else last
                return True
            fresh = self._sorted_out(_entries(sheets), state)
            if again is not None:
                if found.slices and through < window.place:  # go on behind a message: spans are to touch
                    through = found.slices[-1].last_id()
                window.refill(again, fresh, through)
                return True
            window.add(begin, fresh, through)
            self._last = found.slices[-1].last_id() if found.slices else last
            return True

    def _sheets(self, slices: Iterable[Slice], last: bytes) -> list[Sheet]:
        sheets = list[Sheet]()
        for each in slices:
            ids = each.ids()
            values: Sequence[bytes | None]
            if self._header is not None:
                header = self._header
                values = [
                    next((value for name, value in extra.headers if name == header), None) for extra in each.extras()
                ]
            else:
                values = each.batch.keys()[each.start : each.stop]
            hashed = [message_id if value is None else value for value, message_id in zip(values, ids, strict=True)]
            lanes = list(map(crc32c, hashed))
            sheets.append(Sheet(ids, [last, *ids[:-1]], lanes, each.batch.lengths()[each.start : each.stop], each))
            last = ids[-1]
        return sheets

    def _are_available(self, sheets: Sequence[Sheet], state: GroupState) -> bool:
        """True when all these messages, which were not read before, are neither acknowledged nor in flight, and none came back."""
        if not sheets:
            return True
        after, through = sheets[0].afters[0], sheets[-1].ids[-1]
        return not (
            state.acknowledged.overlaps(after, through)
            or (self._pending and self._pending.overlaps(after, through))
            or self._claims.overlap(after, through)
            or any(True for _ in state.returns.within(after, through))
            or (self.flight and any(not self.flight.keys().isdisjoint(sheet.ids) for sheet in sheets))
            or any(sheet.source.batch.flags & BatchSection.TTLS for sheet in sheets)
        )

    def _sorted_out(
        self, fresh: list[tuple[bytes, bytes, int, int]], state: GroupState
    ) -> list[tuple[bytes, bytes, int, int]]:
        """Those of the messages that are available. The others are in flight, which is known now if it was not."""
        self._unfold()
        if not fresh:
            return fresh
        after, through = fresh[0][1], fresh[-1][0]
        acknowledged, claims, pending = state.acknowledged, self._claims, self._pending
        parts = [spans for spans in (acknowledged, pending, claims.taken) if spans and spans.overlaps(after, through)]
        came_back = any(True for _ in state.returns.within(after, through))
        if not parts and not came_back and not self.flight:
            return fresh
        available, waiting = list[tuple[bytes, bytes, int, int]](), dict[int, bytes]()
        for entry in fresh:
            message = Ahead._make(entry)
            if message.id in self.flight or (parts and acknowledged.covers(message.id)):
                continue
            holder = claims.holder(message.id) if parts else None
            if holder is not None or (parts and pending.covers(message.id)):
                self._is_somebodys(message, None if holder is None else holder.member)
            elif came_back and state.returns.at(message.id) is not None:
                self._wait(message)
                waiting[message.lane] = message.id
            else:
                available.append(entry)
        if not waiting:
            return available
        # A restart forgot that what lies before these was dealt as well: it goes first.
        for message in self.window.take_before(waiting):
            self._wait(message)
        for entry in available:
            if entry[0] < waiting.get(entry[2], b""):
                self._wait(Ahead._make(entry))
        return [entry for entry in available if entry[0] not in self.flight]

    def _is_somebodys(self, message: Ahead, member: str | None) -> None:
        """A message that was read is claimed by a member, or (None) pending: it was so before it was known here."""
        self._take_off(message)
        self._out_of_turn.add(message.id)
        if member is None:
            self._comebacks.hold(message)
        elif not self.slots.is_taken_by_another(message.slot, member):
            self._count(message, member)

    # Dealing.

    def pick_returned(
        self, state: GroupState, member: str, messages_max: int, bytes_max: int, now_ms: int, attempts_max: int
    ) -> Picked | None:
        """The messages that came back and are due, of lanes whose slots this member has; all with equally many attempts."""
        picked, attempts = list[Ahead](), -1
        for lane, waiting in self._comebacks.ready(state, now_ms):
            if self.slots.owners[lane % SLOTS] != member or self.slots.drains(lane % SLOTS):
                continue
            for message_id in waiting:
                message, attempt = self.flight[message_id], attempt_of(state, message_id)
                if attempts < 0:
                    attempts = attempt.attempts
                    if self._companies.is_alone(message_id, attempts, attempts_max):
                        messages_max = 1
                elif self._companies.is_alone(message_id, attempts, attempts_max):
                    break
                if (
                    attempt.attempts != attempts
                    or attempt.not_before_ms > now_ms
                    or self._comebacks.is_held(lane, message_id)
                ):
                    break
                bytes_max -= message.size_bytes
                if picked and (len(picked) >= messages_max or bytes_max < 0):
                    break
                picked.append(message)
            if picked and (len(picked) >= messages_max or bytes_max < 0):
                break
        for message in picked:
            self._comebacks.deal(message)
            self._count(message, member)
        picked.sort()
        return Picked.of_messages(picked, attempts) if picked else None

    def is_held(self, spans: Iterable[tuple[bytes, bytes]]) -> bool:
        """True where an earlier message of the key of one of these is pending: who has them cannot acknowledge them yet, unless in that transaction."""
        if not self._comebacks.has_pending:
            return False
        self._unfold()
        return any(self._comebacks.is_held(message.lane, message.id) for message in self._split(spans)[0])

    @property
    def due_ms(self) -> int | None:
        """The time, by the wall clock, when the next message that came back is due, or may be; None when nothing waits for a time."""
        return self._comebacks.due_ms

    async def pick(
        self, log: TopicLog, state: GroupState, member: str, messages_max: int, bytes_max: int, through: bytes | None = None,
    ) -> Picked | None:  # fmt: skip
        """The next messages for this member that were never dealt, up to `through` where it is given; reads ahead until it has
        enough, or there are no more.
        """
        if not self._is_complete:
            self.clear(self._pending)
        window = self.window  # of this state: another one is another question
        for _ in range(PICK_LOOKS_MAX):
            more = True
            while more and window is self.window and window.count(member) < messages_max and window.has_room(member):
                more = (through is None or window.place < through) and await self._read_ahead(log, state)
            if state.paused or window is not self.window:
                return None
            cuts = window.deal_cuts(member, messages_max, bytes_max) if through is None else []
            if cuts:
                return self._dealt(Picked.of_cuts(cuts), member)
            is_packed = through is not None or window.is_packed(member)
            dealt = window.deal(member, messages_max, bytes_max, through) if is_packed else []
            if dealt:
                return self._dealt(Picked.of_messages(dealt, 0), member)
            if not more and (through is not None or not window.count(member)):
                return None
            if not window.has_room(member) and not window.count(member):
                return None
            await asyncio.sleep(0)
        return None

    async def cut_out(self, log: TopicLog, picked: Picked, oldest: bytes) -> Fetch:
        """The messages themselves, ascending, but for those that have expired; none lives before `oldest`."""
        if picked.cuts and not log.ended and next(iter(picked.spans))[0] >= oldest:
            slices = [each for cut in picked.cuts for each in cut.slices()]
            size_bytes = sum([each.payload_bytes for each in slices])
            return NOTHING._replace(slices=slices, messages=picked.total, payload_bytes=size_bytes, next_id=picked.last)
        return await self.read(log, picked.ahead())

    async def read(self, log: TopicLog, messages: Sequence[Ahead]) -> Fetch:
        """The messages themselves, ascending, but for those that have expired."""
        found, wanted = NOTHING, [message.id for message in messages]
        slices, count, size_bytes, at, page_max = list[Slice](), 0, 0, 0, PICKED_MESSAGES_MIN + 2 * len(messages)
        while at < len(wanted):
            limits = SliceLimits(page_max, READ_BYTES_MAX, 1, wanted[-1])
            found = await self._messages.read_committed(log, messages[at].after, limits)
            before = count
            for each in found.slices:
                stop = bisect_right(wanted, each.last_id(), at)
                for part in picked_parts(each, wanted[at:stop]):
                    slices.append(part)
                    count += part.count
                    size_bytes += part.payload_bytes
                at = stop
            passed = found.next_id or wanted[-1]
            at = bisect_right(wanted, passed, at) if found.stopped is not Stopped.END else len(wanted)
            if (count - before) * PICKED_MESSAGES_MIN < found.messages:
                page_max = PICKED_MESSAGES_MIN
        return found._replace(slices=slices, messages=count, payload_bytes=size_bytes, next_id=wanted[-1], held_by=None)

    # Order.

    def first_left(self, done: Spans, acknowledged: Spans, oldest: bytes) -> Left | None:
        """The first message that would be left behind a later one of its lane, if all of `done` were acknowledged now.

        What lies before `oldest` lives no more.
        """
        deal = self._deal_of(done)
        if deal is not None and self._is_in_turn(deal):
            return None
        self._unfold()
        missing = done
        if acknowledged.meets(done):  # again
            missing = Spans([gap for each in done for gap in acknowledged.gaps(*each)])
        messages, unknown = self._split(missing)
        last = max((through for _, through in unknown), default=ZERO_ID)
        if not self._is_complete or last > max(self.window.place, self._tried):
            return Left(self.window.place, max(last, self.window.place), False, True)
        undealt = self.window.within(Spans(unknown)) if unknown else []
        by_lane, latest = self._by_lane, dict[int, bytes]()
        # Of a lane of which everything in flight is done now, none of that is left.
        found = Counter([message[2] for message in messages])
        left = {lane for lane, count in found.items() if count < len(by_lane[lane])}
        for message in (*messages, *undealt) if left or undealt else ():
            if undealt or message.lane in left:
                latest[message.lane] = max(message.id, latest.get(message.lane, b""))
        for lane, later in latest.items():
            for earlier in self._by_lane.get(lane, ()):
                if earlier >= later:
                    break
                if earlier > oldest and not done.covers(earlier) and not acknowledged.covers(earlier):
                    return Left(earlier, later)
        # Only what was dealt in its turn has nothing undealt before it.
        early = [message for message in messages if message.id in self._out_of_turn] if self._out_of_turn else []
        if not undealt and not early and not unknown:
            return None
        return self._first_undealt(done, oldest, unknown, [*undealt, *early])

    def _is_in_turn(self, deal: _Deal) -> bool:
        """True when nothing of its lanes lies before a deal. What is not in flight lies behind all that is; so does a later deal."""
        is_first = self._is_complete and self._deals_of[deal.member][0] is deal  # its slots are dealt to nobody else
        return is_first and (not self._by_lane or self._by_lane.keys().isdisjoint(deal.lanes()))

    def _first_undealt(
        self, done: Spans, oldest: bytes, unknown: Sequence[tuple[bytes, bytes]], messages: Sequence[Ahead]
    ) -> Left | None:
        last = max((through for _, through in unknown), default=ZERO_ID)
        read = self.window.known_through()
        if last > read:
            return Left(read, last, False)
        latest: dict[int, bytes] = {}
        for message in messages:
            latest[message.lane] = max(message.id, latest.get(message.lane, b""))
        for later in latest.values():
            if later > read:
                return Left(read, later, False)
        for earlier in sorted(self.window.before(latest)):
            if earlier.id > oldest and not done.covers(earlier.id):
                return Left(earlier.id, latest[earlier.lane])
        return None


def _entries(sheets: Iterable[Sheet]) -> list[tuple[bytes, bytes, int, int]]:
    return [entry for sheet in sheets for entry in zip(*sheet[:4], strict=True)]
