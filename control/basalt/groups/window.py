"""The window of a keyed group: messages read ahead, each as its place and the hash of its key, in the order of their lanes.

A *lane* is all messages of one hash. Each owner of slots has a queue in reading order, so that dealing is a pop; what may not
be dealt now is set aside when its turn comes: with its slot while that drains, with its lane while an earlier message of the
lane has come back. 48 bytes a message, in one array for each queue; what was just read lies behind that as cuts of the batches
that it came in (`Cut`), and is dealt as such, batch by batch: then nobody reads those again. Of cuts, what may not be dealt now
stays where it is.

The window is bounded, and nobody fills it for the others: an owner has a share, and what is set aside has one. What finds no
room is left out, and the first place left out is remembered, of its slot or of its lane: everything of them behind that place
is read again once there is room (`refill`).

    invariant: in memory is each available message up to `place`, but those of a slot (lane) behind that slot's (lane's) mark;
               the messages of one lane are dealt in ascending order
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from basalt.groups.slots import (
    ENTRY,
    ENTRY_BYTES,
    SLOTS,
    Ahead,
    Aside,
    Cut,
    Move,
    Queue,
    Sheet,
    Slots,
    lane_of,
    message_of,
)
from basalt.messaging.read.slices import Slice
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.records import taker
from basalt_engine.spans.spans import ZERO_ID, Spans

WINDOW_BYTES_MAX = 64 << 20  # of one group, unless the settings say otherwise
SHEETS_PART = 2  # of the window's bytes one in so many may be batches that messages lie in; then they are packed
LANE_ASIDE_MAX = 1_000  # messages set aside with one lane: the rest of a hot key is read again when it goes on
HELD_MESSAGES_MAX = 4_096  # that one deal passes over where they lie; beyond that they are set aside
LOOKS_MAX = 20_000  # messages looked at for one deal, some 10 ms: then others get their turn
FORGOTTEN_SPANS_MAX = 1_000  # acknowledged without having been dealt; with so many the queues are cleaned of them


class Picked(NamedTuple):
    """Messages for one claim, ascending, that came back `attempts` times; where they are cuts, `messages` is empty."""

    spans: Spans
    total: int
    last: bytes
    messages: list[Ahead]
    cuts: list[Cut]
    attempts: int

    def ahead(self) -> list[Ahead]:
        """The messages one by one."""
        return self.messages or [message for cut in self.cuts for message in cut.messages()]

    @classmethod
    def of_messages(cls, messages: list[Ahead], attempts: int) -> Picked:
        spans = Spans([(message.after, message.id) for message in messages])
        return cls(spans, len(messages), messages[-1].id, messages, [], attempts)

    @classmethod
    def of_cuts(cls, cuts: list[Cut]) -> Picked:
        afters, throughs = list[bytes](), list[bytes]()
        for cut in cuts:
            take = taker(cut.indexes)
            afters += take(cut.sheet.afters)
            throughs += take(cut.sheet.ids)
        return cls(Spans.ascending(afters, throughs), len(throughs), throughs[-1], [], cuts, 0)


class Window:
    """Messages read ahead for the members of one keyed group. Pure."""

    def __init__(self, slots: Slots, bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.place = ZERO_ID  # all available messages up to here have been added
        self._slots = slots
        self._messages_max = bytes_max // ENTRY_BYTES
        self._sheets_bytes_max = bytes_max // SHEETS_PART
        self._queues: dict[str | None, Queue] = {}  # by the owner of the slot
        self._blocked: set[int] = set()  # lanes that wait for an earlier message
        self._slots_aside, self._lanes_aside = Aside(), Aside()
        self._slot_marks: dict[int, bytes] = {}
        self._lane_marks: dict[int, bytes] = {}
        self._forgotten = Spans()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + self._slots_aside.messages + self._lanes_aside.messages

    def peek(self) -> Iterator[tuple[int, bytes]]:
        """The lane and the id of each message that was read ahead and not dealt, in no order."""
        for queue in (*self._queues.values(), *self._slots_aside.queues.values(), *self._lanes_aside.queues.values()):
            yield from queue.peek()

    def count(self, member: str) -> int:
        """The messages in the queue of this member, but for those set aside, and those that the last deal passed over."""
        queue = self._queues.get(member)
        return 0 if queue is None else len(queue) - queue.held

    def is_packed(self, member: str) -> bool:
        """True when `deal` is to be asked for this member's next messages: they are no cuts."""
        queue = self._queues.get(member)
        return queue is not None and queue.packed > 0

    # Reading

    def has_room(self, owner: str | None) -> bool:
        """True when the queue of this member is shorter than its share: reading on may bring it more."""
        return self._room(owner) > 0

    def _room(self, owner: str | None) -> int:
        queue = self._queues.get(owner)
        return self._share() - (0 if queue is None else len(queue))

    def _share(self) -> int:
        """The messages that one queue may have: half of the window is for queues, half for what is set aside."""
        return max(1, self._messages_max // 2 // max(1, len(set(self._slots.owners) - {None})))

    def add(self, after: bytes, messages: Iterable[Sequence[Any]], through: bytes) -> None:
        """Add the messages of (after, through], ascending, that are available now; each its id, the one before it, lane, size in bytes."""
        assert after == self.place, (after, self.place)
        owners, queues, pack = self._slots.owners, self._queues, ENTRY.pack
        slot_marks, lane_marks = self._slot_marks, self._lane_marks
        room = {owner: self._room(owner) for owner in set(owners)}
        for message in messages:
            lane = message[2]
            slot = lane % SLOTS
            if (slot_marks and slot in slot_marks) or (lane_marks and lane in lane_marks):
                continue
            owner = owners[slot]
            if room[owner] <= 0:
                slot_marks[slot] = message[1]
                continue
            room[owner] -= 1
            queue = queues.get(owner)
            if queue is None:
                queue = queues[owner] = Queue()
            queue.add(pack(*message))
        self.place = through

    def add_sheets(self, after: bytes, sheets: Sequence[Sheet], through: bytes) -> None:
        """Add all messages of these sheets, which are those of (after, through] and are all available, as `add` does."""
        assert after == self.place, (after, self.place)
        owners = self._slots.owners
        room = {owner: self._room(owner) for owner in set(owners)}
        bytes_left = self._sheets_bytes_max - self._sheets_bytes()
        for sheet in sheets:
            parts: dict[str | None, list[int]] = defaultdict(list)
            for index, lane in enumerate(sheet.lanes):
                parts[owners[lane % SLOTS]].append(index)
            is_marked = self._slot_marks or self._lane_marks
            if sheet.size_bytes > bytes_left:
                for queue in self._queues.values():
                    queue.pack()
                bytes_left = self._sheets_bytes_max
            if (
                is_marked
                or sheet.size_bytes > bytes_left
                or any(room[each] < len(part) for each, part in parts.items())
            ):
                self.add(self.place, zip(*sheet[:4], strict=True), sheet.ids[-1])
                room = {owner: self._room(owner) for owner in room}
                continue
            bytes_left -= sheet.size_bytes
            for owner, part in parts.items():
                room[owner] -= len(part)
                self._queues.setdefault(owner, Queue()).add_cut(Cut(sheet, part))
            self.place = sheet.ids[-1]
        self.place = through

    def _sheets_bytes(self) -> int:
        sheets = {id(cut.sheet): cut.sheet for queue in self._queues.values() for cut in queue.cuts}
        return sum([sheet.size_bytes for sheet in sheets.values()])

    def refill_after(self) -> bytes | None:
        """The place behind which messages were left out for which there is room again; None when nothing is to be read again.

        Whoever asks reads the available messages behind it, up to `place` at most, and gives them to `refill`.
        """
        if not self._slot_marks and not self._lane_marks:
            return None
        slots, lanes = self._refilled(ZERO_ID)
        return min((*slots.values(), *lanes.values()), default=None)

    def _refilled(self, after: bytes) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """The marks from a place on, of slots and of lanes, for which there is room again: half a queue, lest each message cost a reading."""
        half = max(1, self._share() // 2)
        roomy = {owner for owner in set(self._slots.owners) if self._room(owner) >= half}
        slots = {
            slot: mark
            for slot, mark in self._slot_marks.items()
            if mark >= after and self._slots.owners[slot] in roomy and slot not in self._slots_aside
        }
        lanes = {
            lane: mark
            for lane, mark in self._lane_marks.items()
            if mark >= after
            and self._slots.owners[lane % SLOTS] in roomy
            and lane not in self._blocked
            and lane not in self._lanes_aside
        }
        return slots, lanes

    def refill(self, after: bytes, messages: Iterable[Sequence[Any]], through: bytes) -> None:
        """Add those that were left out, of all messages of (after, through] that are available now; each as `add` gets it."""
        slots, lanes = self._refilled(after)
        room = {owner: self._room(owner) for owner in set(self._slots.owners)}
        full_slots, full_lanes = dict[int, bytes](), dict[int, bytes]()
        for message in messages:
            place, before, lane, _ = message
            slot = lane % SLOTS
            by_slot, by_lane = place > self._slot_marks.get(slot, place), place > self._lane_marks.get(lane, place)
            if not by_slot and not by_lane:
                continue  # it is here
            if by_slot and (slot not in slots or slot in full_slots):
                continue  # this mark stays, and covers it
            if by_lane and (lane not in lanes or lane in full_lanes):
                continue
            owner = self._slots.owners[slot]
            if room[owner] > 0:
                room[owner] -= 1
                self._queues.setdefault(owner, Queue()).add(ENTRY.pack(*message))
            elif by_slot:
                full_slots[slot] = before
            else:
                full_lanes[lane] = before
        for marks, read, full in ((self._slot_marks, slots, full_slots), (self._lane_marks, lanes, full_lanes)):
            for number, mark in read.items():
                if number in full:
                    marks[number] = full[number]
                elif through >= self.place:
                    del marks[number]
                else:
                    marks[number] = max(mark, through)

    # Dealing

    def deal(self, member: str, messages_max: int, bytes_max: int, through: bytes | None = None) -> list[Ahead]:
        """Take the next messages for this member, ascending, up to `through` where it is given; the first one whatever its size.

        It looks at `LOOKS_MAX` messages: while `count` is not 0 though nothing was dealt, there is more to look at.
        """
        self._end_draining()
        queue, dealt, looks = self._queues.get(member), list[Ahead](), 0
        if queue is None:
            return []
        blocked, draining, forgotten = self._blocked, self._slots.draining, self._forgotten
        is_full = False
        while len(dealt) < messages_max and looks < LOOKS_MAX and queue:
            if looks and not queue.packed and through is None:
                break  # the rest is dealt as cuts: were some of them packed for this deal, all after it would be, too
            seen = 0
            wanted = min(messages_max - len(dealt), LOOKS_MAX - looks)
            for message in map(Ahead._make, ENTRY.iter_unpack(queue.first(wanted))):
                if through is not None and message.id > through:
                    messages_max = 0
                    break
                if message.lane in blocked or (draining and message.lane % SLOTS in draining):
                    is_full |= not self._set_aside(message)
                elif not forgotten or not forgotten.covers(message.id):
                    if dealt and message.size_bytes > bytes_max:
                        messages_max = 0
                        break
                    dealt.append(message)
                    bytes_max -= message.size_bytes
                seen += 1
            queue.drop(seen)
            looks += seen
        if is_full:
            queue.take(self._is_left_out)
        dealt.sort()
        return dealt

    def deal_cuts(self, member: str, messages_max: int, bytes_max: int) -> list[Cut]:
        """Take what `deal` would, as cuts; nothing where `deal` is to be asked (`is_packed`).

        What waits for others stays where it is: it comes before what follows it in its lane.
        """
        self._end_draining()
        queue, cuts = self._queues.get(member), list[Cut]()
        if queue is None or queue.packed:
            return cuts
        passed, held, is_draining = list[Cut](), 0, False
        while messages_max > 0 and queue.cuts and held <= HELD_MESSAGES_MAX:
            whole = queue.pop_cut()
            cut, staying = self._parted(whole)
            if staying:
                is_draining = is_draining or not self._slots.draining.isdisjoint(
                    [whole.sheet.lanes[index] % SLOTS for index in staying]
                )
            held += len(staying)
            size_bytes = sum(taker(cut.indexes)(cut.sheet.sizes))
            if len(cut.indexes) > messages_max or size_bytes > bytes_max:
                cut, rest = cut.split(self._fitting(cut, messages_max, bytes_max, least=0 if cuts else 1))
                staying = sorted(staying + rest.indexes)
                messages_max = 0
            if staying:
                passed.append(Cut(whole.sheet, staying))
            if cut.indexes:
                cuts.append(cut)
            messages_max -= len(cut.indexes)
            bytes_max -= size_bytes
        for cut in reversed(passed):
            queue.put_back_cut(cut)
        if held > HELD_MESSAGES_MAX and not cuts:
            queue.pack()
        else:
            queue.hold(held, is_draining=is_draining)
        return cuts

    def _parted(self, cut: Cut) -> tuple[Cut, list[int]]:
        """The part of a cut that may be dealt now, and the indexes of what waits for others; neither has what is forgotten."""
        (ids, afters, lanes, *_), indexes = cut.sheet, cut.indexes
        blocked, draining = self._blocked, self._slots.draining
        if self._forgotten and self._forgotten.overlaps(afters[indexes[0]], ids[indexes[-1]]):
            indexes = [index for index in indexes if not self._forgotten.covers(ids[index])]
        if not blocked and not draining:
            return Cut(cut.sheet, indexes), []
        free = [index for index in indexes if lanes[index] % SLOTS not in draining and lanes[index] not in blocked]
        if len(free) == len(indexes):
            return Cut(cut.sheet, free), []
        return Cut(cut.sheet, free), sorted({*indexes}.difference(free))

    @staticmethod
    def _fitting(cut: Cut, messages_max: int, bytes_max: int, least: int) -> int:
        for count, index in enumerate(cut.indexes[:messages_max]):
            bytes_max -= cut.sheet.sizes[index]
            if bytes_max < 0 and count >= least:
                return count
        return min(len(cut.indexes), messages_max)

    def _end_draining(self) -> None:
        """Put what was set aside with slots that drain no more before what follows it."""
        entries: dict[str | None, list[bytes]] = defaultdict(list)
        for slot in self._slots_aside.queues.keys() - self._slots.draining:
            entries[self._slots.owners[slot]] += self._slots_aside.pop(slot)
        for owner, some in entries.items():
            self._put_first(owner, some)

    def put_back(self, messages: Iterable[Ahead]) -> None:
        """Take dealt messages back as if they had not been: each comes before what follows it in its lane."""
        for message in messages:
            entry, slot = ENTRY.pack(*message), message.slot
            if self._is_left_out(entry):
                continue  # it is read again
            if message.lane in self._lanes_aside:
                self._lanes_aside.put_first(message.lane, [entry])
            elif slot in self._slots_aside:
                self._slots_aside.put_first(slot, [entry])
            else:
                self._put_first(self._slots.owners[slot], [entry])

    def _put_first(self, owner: str | None, entries: list[bytes]) -> None:
        self._queues.setdefault(owner, Queue()).put_first(entries)

    def _set_aside(self, message: Ahead) -> bool:
        """Keep the message with its lane, or with its slot; or leave it out, mark from where, and return False."""
        entry, slot, lane = ENTRY.pack(*message), message.slot, message.lane
        if self._is_left_out(entry):
            return True
        if lane in self._blocked:
            if self._lanes_aside.count(lane) < LANE_ASIDE_MAX and self._lanes_aside.messages < self._messages_max // 4:
                self._lanes_aside.add(lane, entry)
                return True
            self._lane_marks[lane] = message.after
            return False
        if self._slots_aside.messages < self._messages_max // 4:
            self._slots_aside.add(slot, entry)
            return True
        # Lanes that were read again lie behind later messages of others: what is behind the mark goes from everywhere.
        self._slot_marks[slot] = message.after
        self._slots_aside.take(slot, self._is_left_out)
        for held in [held for held in self._lanes_aside.queues if held % SLOTS == slot]:
            self._lanes_aside.take(held, self._is_left_out)
        return False

    def _is_left_out(self, entry: bytes) -> bool:
        """True for a message behind the mark of its slot or of its lane."""
        if not self._slot_marks and not self._lane_marks:
            return False
        place, lane = entry[:MESSAGE_ID_BYTES], lane_of(entry)
        return place > self._slot_marks.get(lane % SLOTS, place) or place > self._lane_marks.get(lane, place)

    # Lanes and slots

    def block(self, lane: int) -> None:
        """Hold the lane back: an earlier message of it waits for its next attempt."""
        if lane in self._blocked:
            return
        self._blocked.add(lane)
        # What follows with the slot would be overtaken by what comes to lie with the lane.
        entries = self._slots_aside.take(lane % SLOTS, lambda entry: lane_of(entry) == lane)
        if entries:
            self._lanes_aside.put_first(lane, entries)

    def unblock(self, lane: int) -> None:
        """Let the lane go on."""
        self._blocked.discard(lane)
        entries = self._lanes_aside.pop(lane)
        if entries:
            self._put_first(self._slots.owners[lane % SLOTS], entries)

    def rearrange(self, moves: Sequence[Move]) -> None:
        """Give the messages of slots that moved to their new owners."""
        owners = self._slots.owners
        moved: dict[str | None, list[bytes]] = {move.owner: [] for move in moves}
        cuts: dict[str | None, list[Cut]] = defaultdict(list)
        for before in {move.before for move in moves} & self._queues.keys():
            queue = self._queues[before]
            for cut in queue.pop_cuts():
                parts: dict[str | None, list[int]] = defaultdict(list)
                for index in cut.indexes:
                    parts[owners[cut.sheet.lanes[index] % SLOTS]].append(index)
                for owner, part in parts.items():
                    cuts[owner].append(Cut(cut.sheet, part))
            for entry in queue.take(partial(self._is_of_another, before)):
                moved[owners[lane_of(entry) % SLOTS]].append(entry)
            if not len(queue):
                del self._queues[before]
        for owner, entries in moved.items():
            if entries:
                self._queues.setdefault(owner, Queue()).merge(entries)
        for owner, some in cuts.items():
            self._queues.setdefault(owner, Queue()).merge_cuts(some)

    def _is_of_another(self, owner: str | None, entry: bytes) -> bool:
        return self._slots.owners[lane_of(entry) % SLOTS] != owner

    def forget(self, after: bytes, through: bytes) -> None:
        """Deal nothing of (after, through] that was not dealt: it is acknowledged, or pending."""
        if after >= self.place:
            return
        self._forgotten.add(after, through)
        if len(self._forgotten) <= FORGOTTEN_SPANS_MAX:
            return
        gone = self._forgotten
        for queue in self._queues.values():
            queue.take(lambda entry: gone.covers(entry[:MESSAGE_ID_BYTES]))
        for aside in (self._slots_aside, self._lanes_aside):
            for number in list(aside.queues):
                aside.take(number, lambda entry: gone.covers(entry[:MESSAGE_ID_BYTES]))
        self._forgotten = Spans()

    def within(self, spans: Spans) -> list[Ahead]:
        """The undealt messages in these spans, as far as they are here."""
        return [message for message in self._all() if spans.covers(message.id)]

    def before(self, places: Mapping[int, bytes]) -> list[Ahead]:
        """The undealt messages of these lanes before a place in each, as far as they are here."""
        return [message for message in self._all() if message.id < places.get(message.lane, b"")]

    def take_before(self, places: Mapping[int, bytes]) -> list[Ahead]:
        """Take out what `before` would tell."""

        def wanted(entry: bytes) -> bool:
            return entry[:MESSAGE_ID_BYTES] < places.get(lane_of(entry), b"")

        taken = [entry for queue in self._queues.values() for entry in queue.take(wanted)]
        for aside in (self._slots_aside, self._lanes_aside):
            taken += [entry for number in list(aside.queues) for entry in aside.take(number, wanted)]
        return sorted(message for message in map(message_of, taken) if not self._forgotten.covers(message.id))

    def known_through(self) -> bytes:
        """The place up to which every available message is here."""
        return min((self.place, *self._slot_marks.values(), *self._lane_marks.values()))

    def is_aside(self, slot: int) -> bool:
        """True when messages of this slot are set aside while it drains."""
        return slot in self._slots_aside

    def is_draining(self, member: str) -> bool:
        """True when messages of this member wait for others who had its slots before."""
        queue = self._queues.get(member)
        return (queue is not None and queue.is_draining) or any(map(self.is_aside, self._slots.draining_of(member)))

    def _all(self) -> Iterator[Ahead]:
        parts = (self._queues, self._slots_aside.queues, self._lanes_aside.queues)
        for entry in (entry for part in parts for queue in part.values() for entry in queue):
            message = message_of(entry)
            if not self._forgotten.covers(message.id):
                yield message


def picked_parts(whole: Slice, ids: Sequence[bytes]) -> list[Slice]:
    """The messages of these ids, ascending, in as few parts as can be; such as are not there are passed over."""
    at = whole.counted_at
    if at is None:
        first = whole.start
        known = {message_id: index for index, message_id in enumerate(whole.ids(), first)}
        indexes = [known[message_id] for message_id in ids if message_id in known]
    else:
        lowest = whole.first_id()
        base = int.from_bytes(lowest[at : at + 2]) - whole.start
        indexes = [int.from_bytes(each[at : at + 2]) - base for each in ids if each >= lowest]
    if len(indexes) == whole.count:
        return [whole]
    return whole.picked(indexes) if indexes else []
