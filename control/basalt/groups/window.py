"""The window of a keyed group: messages read ahead, each as its place and the hash of its key, in the order of their lanes.

A *lane* is all messages of one hash. Each owner of slots has a queue in reading order, so that dealing is a pop; what may not
be dealt now is set aside when its turn comes: with its slot while that drains, with its lane while an earlier message of the
lane has come back. 48 bytes a message, in one array for each queue; what was just read lies behind that as cuts of the batches
that it came in (`Cut`), and is dealt as such, batch by batch: then nobody reads those again.

The window is bounded, and nobody fills it for the others: an owner has a share, and what is set aside has one. What finds no
room is left out, and the first place left out is remembered, of its slot or of its lane: everything of them behind that place
is read again once there is room (`refill`).

    invariant: in memory is each available message up to `place`, but those of a slot (lane) behind that slot's (lane's) mark;
               the messages of one lane are dealt in ascending order
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from basalt.groups.slots import SLOTS, Move, Slots
from basalt.messaging.read.log_reader import Slice
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.spans import ZERO_ID, Spans

WINDOW_BYTES_MAX = 64 << 20  # of one group, unless the settings say otherwise
SHEETS_PART = (
    4  # of the window's bytes one in so many may be batches that messages lie in; then those messages are packed
)
SHEET_MESSAGE_BYTES = 150  # of the columns of a sheet, for each message
LANE_ASIDE_MAX = 1_000  # messages set aside with one lane: the rest of a hot key is read again when it goes on
LOOKS_MAX = 20_000  # messages looked at for one deal, some 10 ms: then others get their turn
FORGOTTEN_SPANS_MAX = 1_000  # acknowledged without having been dealt; with so many the queues are cleaned of them

_ENTRY = struct.Struct(f">{MESSAGE_ID_BYTES}s{MESSAGE_ID_BYTES}sII")
ENTRY_BYTES = _ENTRY.size
_LANE_BYTES = slice(2 * MESSAGE_ID_BYTES, 2 * MESSAGE_ID_BYTES + 4)


class Ahead(NamedTuple):
    """A message that was read ahead. `after` is the message before it that a committed reader sees."""

    id: bytes
    after: bytes
    lane: int
    size_bytes: int

    @property
    def slot(self) -> int:
        return self.lane % SLOTS


class Sheet(NamedTuple):
    """The messages of a stored batch that were read ahead, by columns: their ids, the ones before, lanes, sizes; and the batch itself."""

    ids: Sequence[bytes]
    afters: Sequence[bytes]
    lanes: Sequence[int]
    sizes: Sequence[int]
    source: Slice

    @property
    def size_bytes(self) -> int:
        return self.source.batch.body_bytes + SHEET_MESSAGE_BYTES * len(self.ids)


class Cut(NamedTuple):
    """Some messages of a sheet, by their ascending indexes."""

    sheet: Sheet
    indexes: list[int]

    def lanes(self) -> list[int]:
        lanes = self.sheet.lanes
        return [lanes[index] for index in self.indexes]

    def spans(self) -> list[tuple[bytes, bytes]]:
        ids, afters = self.sheet.ids, self.sheet.afters
        return [(afters[index], ids[index]) for index in self.indexes]

    def messages(self) -> list[Ahead]:
        ids, afters, lanes, sizes, _ = self.sheet
        return [Ahead(ids[index], afters[index], lanes[index], sizes[index]) for index in self.indexes]

    def slices(self) -> list[Slice]:
        """The messages themselves."""
        source = self.sheet.source
        if len(self.indexes) == source.count:
            return [source]
        return source.picked([source.start + index for index in self.indexes])

    def split(self, at: int) -> tuple[Cut, Cut]:
        return Cut(self.sheet, self.indexes[:at]), Cut(self.sheet, self.indexes[at:])


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
        pairs = [pair for cut in cuts for pair in cut.spans()]
        return cls(Spans(pairs), len(pairs), pairs[-1][1], [], cuts, 0)


class _Queue:
    """Messages in the order in which they are to be dealt: one array of entries, and behind them cuts.

    Its beginning is sorted: there is what was dealt and came back, or was set aside. Of one lane, all of that comes before
    what was only ever added. Whoever looks at messages one by one has the cuts packed first.
    """

    __slots__ = ("_at", "_data", "_in_cuts", "_sorted", "cuts")

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0  # what lies before was taken
        self._sorted = 0  # so many entries at the beginning
        self.cuts: deque[Cut] = deque()
        self._in_cuts = 0  # messages

    def __len__(self) -> int:
        return self.packed + self._in_cuts

    @property
    def packed(self) -> int:
        """The messages that lie before the cuts."""
        return (len(self._data) - self._at) // ENTRY_BYTES

    def __iter__(self) -> Iterator[bytes]:
        self.pack()
        return self._entries()

    def _entries(self) -> Iterator[bytes]:
        data = bytes(memoryview(self._data)[self._at :])
        return (data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))

    def pack(self) -> None:
        """Keep no cuts."""
        while self.cuts:
            self._pack_first()

    def _pack_first(self) -> None:
        for message in self.pop_cut().messages():
            self._data += _ENTRY.pack(*message)

    def add(self, entry: bytes) -> None:
        self.pack()
        self._data += entry

    def add_cut(self, cut: Cut) -> None:
        self.cuts.append(cut)
        self._in_cuts += len(cut.indexes)

    def pop_cut(self) -> Cut:
        cut = self.cuts.popleft()
        self._in_cuts -= len(cut.indexes)
        return cut

    def put_back_cut(self, cut: Cut) -> None:
        self.cuts.appendleft(cut)
        self._in_cuts += len(cut.indexes)

    def pop_cuts(self) -> list[Cut]:
        cuts = list(self.cuts)
        self.cuts.clear()
        self._in_cuts = 0
        return cuts

    def merge_cuts(self, cuts: list[Cut]) -> None:
        """Add these, and put all cuts in ascending order; those of one sheet become one."""
        of_sheet: dict[int, list[Cut]] = defaultdict(list)
        for cut in (*self.pop_cuts(), *cuts):
            of_sheet[id(cut.sheet)].append(cut)
        for same in sorted(of_sheet.values(), key=lambda same: same[0].sheet.ids[0]):
            indexes = same[0].indexes if len(same) == 1 else sorted([index for cut in same for index in cut.indexes])
            self.add_cut(Cut(same[0].sheet, indexes))

    def put_first(self, entries: list[bytes]) -> None:
        """Put these before what was only added, in their places in the sorted beginning."""
        last, data, at = max(entries), self._data, self._at
        before = bisect_left(
            range(self._sorted),
            last,
            key=lambda place: bytes(data[at + place * ENTRY_BYTES : at + (place + 1) * ENTRY_BYTES]),
        )
        first = self.first(before)
        merged = [first[start : start + ENTRY_BYTES] for start in range(0, len(first), ENTRY_BYTES)] + entries
        data[: at + len(first)] = b"".join(sorted(merged))
        self._at = 0
        self._sorted += len(entries)

    def first(self, limit: int) -> bytes:
        """At most so many entries, and at least one if there is one; `drop` takes them out."""
        if limit and self.cuts and not self.packed:
            self._pack_first()
        return bytes(memoryview(self._data)[self._at : self._at + limit * ENTRY_BYTES])

    def drop(self, count: int) -> None:
        self._at += count * ENTRY_BYTES
        self._sorted = max(0, self._sorted - count)
        if self._at * 2 > len(self._data):
            del self._data[: self._at]
            self._at = 0

    def take(self, wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Take out the entries that are wanted."""
        taken, kept, in_order = list[bytes](), list[bytes](), 0
        for place, entry in enumerate(self):
            if wanted(entry):
                taken.append(entry)
            else:
                kept.append(entry)
                in_order += place < self._sorted
        if taken:
            self._data, self._at, self._sorted = bytearray(b"".join(kept)), 0, in_order
        return taken

    def merge(self, entries: list[bytes]) -> None:
        """Add these to what lies before the cuts, and put all of that in ascending order."""
        self._data, self._at = bytearray(b"".join(sorted([*self._entries(), *entries]))), 0
        self._sorted = self.packed


class _Aside:
    """Messages that are set aside, by slot or by lane."""

    __slots__ = ("messages", "queues")

    def __init__(self) -> None:
        self.queues: dict[int, _Queue] = {}
        self.messages = 0

    def __contains__(self, number: int) -> bool:
        return number in self.queues

    def count(self, number: int) -> int:
        return len(self.queues[number]) if number in self.queues else 0

    def add(self, number: int, entry: bytes) -> None:
        self.queues.setdefault(number, _Queue()).add(entry)
        self.messages += 1

    def put_first(self, number: int, entries: list[bytes]) -> None:
        self.queues.setdefault(number, _Queue()).put_first(entries)
        self.messages += len(entries)

    def pop(self, number: int) -> list[bytes]:
        entries = list(self.queues.pop(number, ()))
        self.messages -= len(entries)
        return entries

    def take(self, number: int, wanted: Callable[[bytes], bool]) -> list[bytes]:
        taken = self.queues[number].take(wanted) if number in self.queues else []
        self.messages -= len(taken)
        if number in self.queues and not len(self.queues[number]):
            del self.queues[number]
        return taken


def _lane_of(entry: bytes) -> int:
    return int.from_bytes(entry[_LANE_BYTES], "big")


def _message(entry: bytes) -> Ahead:
    return Ahead._make(_ENTRY.unpack(entry))


class Window:
    """Messages read ahead for the members of one keyed group. Pure."""

    def __init__(self, slots: Slots, bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.place = ZERO_ID  # all available messages up to here have been added
        self._slots = slots
        self._messages_max = bytes_max // ENTRY_BYTES
        self._sheets_bytes_max = bytes_max // SHEETS_PART
        self._queues: dict[str | None, _Queue] = {}  # by the owner of the slot
        self._blocked: set[int] = set()  # lanes that wait for an earlier message
        self._slots_aside, self._lanes_aside = _Aside(), _Aside()
        self._slot_marks: dict[int, bytes] = {}
        self._lane_marks: dict[int, bytes] = {}
        self._forgotten = Spans()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + self._slots_aside.messages + self._lanes_aside.messages

    def count(self, member: str) -> int:
        """The messages in the queue of this member, but for those set aside."""
        queue = self._queues.get(member)
        return 0 if queue is None else len(queue)

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
        owners, queues, pack = self._slots.owners, self._queues, _ENTRY.pack
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
                queue = queues[owner] = _Queue()
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
                self._queues.setdefault(owner, _Queue()).add_cut(Cut(sheet, part))
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
                self._queues.setdefault(owner, _Queue()).add(_ENTRY.pack(*message))
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
            if dealt and not queue.packed and not self._holds_back(queue.cuts[0]):
                break  # the rest is dealt as cuts: were some of them packed for this deal, all after it would be, too
            seen = 0
            wanted = min(messages_max - len(dealt), LOOKS_MAX - looks)
            for message in map(Ahead._make, _ENTRY.iter_unpack(queue.first(wanted))):
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
        """Take what `deal` would, as cuts, while none of the messages must be looked at; nothing where `deal` is to be asked."""
        self._end_draining()
        queue, cuts = self._queues.get(member), list[Cut]()
        if queue is None:
            return cuts
        while messages_max > 0 and queue.cuts and not queue.packed and not self._holds_back(queue.cuts[0]):
            cut = queue.pop_cut()
            if len(cut.indexes) > messages_max:
                cut, rest = cut.split(messages_max)
                queue.put_back_cut(rest)
            size_bytes = sum([cut.sheet.sizes[index] for index in cut.indexes])
            if size_bytes > bytes_max:
                cut, rest = cut.split(self._fitting(cut, bytes_max, least=0 if cuts else 1))
                if rest.indexes:
                    queue.put_back_cut(rest)
                messages_max = 0
            if cut.indexes:
                cuts.append(cut)
            messages_max -= len(cut.indexes)
            bytes_max -= size_bytes
        return cuts

    @staticmethod
    def _fitting(cut: Cut, bytes_max: int, least: int) -> int:
        for count, index in enumerate(cut.indexes):
            bytes_max -= cut.sheet.sizes[index]
            if bytes_max < 0 and count >= least:
                return count
        return len(cut.indexes)

    def _holds_back(self, cut: Cut) -> bool:
        """True when some of the cut's messages wait for others, or are not to be dealt at all."""
        ids, afters, indexes = cut.sheet.ids, cut.sheet.afters, cut.indexes
        if self._forgotten and self._forgotten.overlaps(afters[indexes[0]], ids[indexes[-1]]):
            return True
        if not self._blocked and not self._slots.draining:
            return False
        lanes = cut.lanes()
        if not self._blocked.isdisjoint(lanes):
            return True
        return bool(self._slots.draining) and not self._slots.draining.isdisjoint([lane % SLOTS for lane in lanes])

    def _end_draining(self) -> None:
        """Put what was set aside with slots that drain no more before what follows it."""
        for slot in [slot for slot in self._slots_aside.queues if not self._slots.drains(slot)]:
            self._put_first(self._slots.owners[slot], self._slots_aside.pop(slot))

    def put_back(self, messages: Iterable[Ahead]) -> None:
        """Take dealt messages back as if they had not been: each comes before what follows it in its lane."""
        for message in messages:
            entry, slot = _ENTRY.pack(*message), message.slot
            if self._is_left_out(entry):
                continue  # it is read again
            if message.lane in self._lanes_aside:
                self._lanes_aside.put_first(message.lane, [entry])
            elif slot in self._slots_aside:
                self._slots_aside.put_first(slot, [entry])
            else:
                self._put_first(self._slots.owners[slot], [entry])

    def _put_first(self, owner: str | None, entries: list[bytes]) -> None:
        self._queues.setdefault(owner, _Queue()).put_first(entries)

    def _set_aside(self, message: Ahead) -> bool:
        """Keep the message with its lane, or with its slot; or leave it out, mark from where, and return False."""
        entry, slot, lane = _ENTRY.pack(*message), message.slot, message.lane
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
        place, lane = entry[:MESSAGE_ID_BYTES], _lane_of(entry)
        return place > self._slot_marks.get(lane % SLOTS, place) or place > self._lane_marks.get(lane, place)

    # Lanes and slots

    def block(self, lane: int) -> None:
        """Hold the lane back: an earlier message of it waits for its next attempt."""
        if lane in self._blocked:
            return
        self._blocked.add(lane)
        # What follows with the slot would be overtaken by what comes to lie with the lane.
        entries = self._slots_aside.take(lane % SLOTS, lambda entry: _lane_of(entry) == lane)
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
                moved[owners[_lane_of(entry) % SLOTS]].append(entry)
            if not len(queue):
                del self._queues[before]
        for owner, entries in moved.items():
            if entries:
                self._queues.setdefault(owner, _Queue()).merge(entries)
        for owner, some in cuts.items():
            self._queues.setdefault(owner, _Queue()).merge_cuts(some)

    def _is_of_another(self, owner: str | None, entry: bytes) -> bool:
        return self._slots.owners[_lane_of(entry) % SLOTS] != owner

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
            return entry[:MESSAGE_ID_BYTES] < places.get(_lane_of(entry), b"")

        taken = [entry for queue in self._queues.values() for entry in queue.take(wanted)]
        for aside in (self._slots_aside, self._lanes_aside):
            taken += [entry for number in list(aside.queues) for entry in aside.take(number, wanted)]
        return sorted(message for message in map(_message, taken) if not self._forgotten.covers(message.id))

    def known_through(self) -> bytes:
        """The place up to which every available message is here."""
        return min((self.place, *self._slot_marks.values(), *self._lane_marks.values()))

    def is_aside(self, slot: int) -> bool:
        """True when messages of this slot are set aside while it drains."""
        return slot in self._slots_aside

    def _all(self) -> Iterator[Ahead]:
        parts = (self._queues, self._slots_aside.queues, self._lanes_aside.queues)
        for entry in (entry for part in parts for queue in part.values() for entry in queue):
            message = _message(entry)
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
