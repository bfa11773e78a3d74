"""Slots: the 1,024 parts of a keyed group's keys, dealt evenly to its members.

A slot moves only when its owner leaves, or has more than its share. While messages of a slot that another member claimed are
not decided, the slot *drains*: nothing more of it is dealt, then its new owner goes on. No other slot waits for it.

Messages that were read ahead wait for the owner of their slot in a `Queue`: one array of entries, and behind it cuts of batches.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from basalt.messaging.read.slices import Slice
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.records import taker

SHEET_MESSAGE_BYTES = 150  # of the columns of a sheet, for each message
SLOTS = 1_024  # a power of two; members beyond it stand by


def slot_of(key: bytes) -> int:
    """The slot of a key, or of an id where there is no key."""
    return crc32c(key) % SLOTS


class Move(NamedTuple):
    """A slot that has another owner than before; None is nobody."""

    slot: int
    before: str | None
    owner: str | None


class Slots:
    """The owner of each slot, and who has claimed messages of it. Pure."""

    def __init__(self) -> None:
        self.owners: list[str | None] = [None] * SLOTS
        self._claimed = [0] * SLOTS  # messages that are claimed, or pending out of a claim
        self._holders: list[str] = [""] * SLOTS  # by whom, where there are any
        self.draining: set[int] = set()  # slots that wait for messages which somebody else than their owners has

    def assign(self, members: Sequence[str]) -> list[Move]:
        """Deal the slots evenly to these members, moving the fewest; they come in the order in which they joined."""
        assert len(set(members)) == len(members), members
        owned: dict[str | None, list[int]] = {name: [] for name in members}
        free = list[int]()
        for slot, owner in enumerate(self.owners):
            owned.get(owner, free).append(slot)
        share, more = divmod(SLOTS, len(members)) if members else (0, 0)
        # Who has the most may keep one more than the others: then the fewest slots move. `sorted` keeps ties in order.
        by_slots = sorted(members, key=lambda name: -len(owned[name]))
        shares = {name: share + (place < more) for place, name in enumerate(by_slots)}
        for name in members:
            free += self._surplus(owned[name], len(owned[name]) - shares[name])
        free.sort(reverse=True)
        moves = [self._move(free.pop(), name) for name in members for _ in range(shares[name] - len(owned[name]))]
        moves += [self._move(slot, None) for slot in free if self.owners[slot] is not None]
        for move in moves:
            if self._claimed[move.slot] and self._holders[move.slot] != move.owner:
                self.draining.add(move.slot)
            else:
                self.draining.discard(move.slot)
        return moves

    def of(self, member: str) -> list[int]:
        """The slots that this member owns, ascending."""
        return [slot for slot, owner in enumerate(self.owners) if owner == member]

    def is_standby(self, member: str) -> bool:
        """True for a member that owns no slot: others have them all."""
        return member not in self.owners

    def claim(self, slots: Iterable[int], holder: str) -> None:
        """Note that messages of these slots were dealt to this member, one for each time that a slot is named."""
        claimed, holders = self._claimed, self._holders
        for slot in slots:
            assert not claimed[slot] or holders[slot] == holder, (slot, holder, holders[slot])
            claimed[slot] += 1
            holders[slot] = holder
            if self.owners[slot] != holder:
                self.draining.add(slot)

    def is_taken_by_another(self, slot: int, holder: str) -> bool:
        """True when somebody else has messages of the slot."""
        return self._claimed[slot] > 0 and self._holders[slot] != holder

    def end(self, slots: Iterable[int]) -> None:
        """Note that messages of these slots are decided, or given back, one for each time that a slot is named."""
        claimed, draining = self._claimed, self.draining
        for slot in slots:
            assert claimed[slot] > 0, slot
            claimed[slot] -= 1
            if not claimed[slot] and slot in draining:
                draining.remove(slot)

    def drains(self, slot: int) -> bool:
        """True while the slot waits for messages that somebody else than its owner has."""
        return slot in self.draining

    def claimed(self, slot: int) -> int:
        """The messages of the slot that were dealt and are not decided."""
        return self._claimed[slot]

    def draining_of(self, member: str) -> dict[int, str]:
        """The slots of this member that drain, and who has their messages."""
        return {slot: self._holders[slot] for slot in sorted(self.draining) if self.owners[slot] == member}

    def _move(self, slot: int, owner: str | None) -> Move:
        before, self.owners[slot] = self.owners[slot], owner
        return Move(slot, before, owner)

    def _surplus(self, slots: list[int], number: int) -> list[int]:
        """Take so many slots away, busy and quiet ones alike: those without claimed messages need not drain, but they may have no keys.

        To take these first would leave who has them with nearly all of the work, while the others had as many slots.
        """
        if number <= 0:
            return []
        by_claimed = sorted(slots, key=lambda slot: (self._claimed[slot], slot))
        taken = [by_claimed[(2 * place + 1) * len(slots) // (2 * number)] for place in range(number)]
        gone = set(taken)
        slots[:] = [slot for slot in slots if slot not in gone]
        return taken


ENTRY = struct.Struct(f">{MESSAGE_ID_BYTES}s{MESSAGE_ID_BYTES}sII")
ENTRY_BYTES = ENTRY.size
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
        return list(taker(self.indexes)(self.sheet.lanes))

    def messages(self) -> list[Ahead]:
        ids, afters, lanes, sizes, _ = self.sheet
        return [Ahead(ids[index], afters[index], lanes[index], sizes[index]) for index in self.indexes]

    def slices(self) -> list[Slice]:
        """The messages themselves."""
        source = self.sheet.source
        if len(self.indexes) == source.count:
            return [source]
        return source.picked([source.start + index for index in self.indexes] if source.start else self.indexes)

    def split(self, at: int) -> tuple[Cut, Cut]:
        return Cut(self.sheet, self.indexes[:at]), Cut(self.sheet, self.indexes[at:])


class Queue:
    """Messages in the order in which they are to be dealt: one array of entries, and behind them cuts.

    Its beginning is sorted: there is what was dealt and came back, or was set aside. Of one lane, all of that comes before
    what was only ever added. Whoever looks at messages one by one has the cuts packed first.
    """

    __slots__ = ("_at", "_data", "_in_cuts", "_sorted", "cuts", "held", "is_draining")

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0  # what lies before was taken
        self._sorted = 0  # so many entries at the beginning
        self.cuts: deque[Cut] = deque()
        self._in_cuts = 0  # messages
        self.held = 0  # of those, the ones that the last deal passed over
        self.is_draining = False  # some of them, for their slots drain

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

    def peek(self) -> Iterator[tuple[int, bytes]]:
        """The lane and the id of each message, as they lie."""
        data = self._data
        for at in range(self._at, len(data), ENTRY_BYTES):
            entry = bytes(data[at : at + ENTRY_BYTES])
            yield lane_of(entry), entry[:MESSAGE_ID_BYTES]
        for cut in self.cuts:
            lanes, ids = cut.sheet.lanes, cut.sheet.ids
            for index in cut.indexes:
                yield lanes[index], ids[index]

    def pack(self) -> None:
        """Keep no cuts."""
        self.hold(0)
        while self.cuts:
            self._pack_first()

    def _pack_first(self) -> None:
        for message in self.pop_cut().messages():
            self._data += ENTRY.pack(*message)

    def hold(self, messages: int, *, is_draining: bool = False) -> None:
        """So many messages of cuts wait for others."""
        self.held, self.is_draining = messages, is_draining

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
        self.hold(0)
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
            self.hold(0)
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


class Aside:
    """Messages that are set aside, by slot or by lane."""

    __slots__ = ("messages", "queues")

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.messages = 0

    def __contains__(self, number: int) -> bool:
        return number in self.queues

    def count(self, number: int) -> int:
        return len(self.queues[number]) if number in self.queues else 0

    def add(self, number: int, entry: bytes) -> None:
        self.queues.setdefault(number, Queue()).add(entry)
        self.messages += 1

    def put_first(self, number: int, entries: list[bytes]) -> None:
        self.queues.setdefault(number, Queue()).put_first(entries)
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


def lane_of(entry: bytes) -> int:
    return int.from_bytes(entry[_LANE_BYTES], "big")


def message_of(entry: bytes) -> Ahead:
    return Ahead._make(ENTRY.unpack(entry))
