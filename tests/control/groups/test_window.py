"""The window of a keyed group: what is read ahead is dealt once, each lane in order, and nobody fills it for the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import pytest

from basalt.groups import slots as slots_module
from basalt.groups import window as window_module
from basalt.groups.slots import ENTRY_BYTES, SLOTS, Ahead, Cut, Sheet, Slots
from basalt.groups.window import Window
from basalt_engine.spans.spans import ZERO_ID, Spans

HUGE = 1 << 40


def place(number: int) -> bytes:
    return number.to_bytes(20, "big")


def ahead(number: int, lane: int, size_bytes: int = 1) -> Ahead:
    return Ahead(place(number), place(number - 1), lane, size_bytes)


def numbers(dealt: Iterable[Ahead]) -> list[int]:
    return [int.from_bytes(message.id, "big") for message in dealt]


def opened(*members: str, messages: int = 10_000) -> tuple[Slots, Window]:
    slots = Slots()
    window = Window(slots, messages * ENTRY_BYTES)
    window.rearrange(slots.assign(members))
    return slots, window


def read(window: Window, lanes: Iterable[int], size_bytes: int = 1) -> None:
    first = int.from_bytes(window.place, "big") + 1
    messages = [ahead(number, lane, size_bytes) for number, lane in enumerate(lanes, first)]
    window.add(window.place, messages, messages[-1].id)


def test_each_member_gets_the_messages_of_its_slots_in_order():
    slots, window = opened("ann", "bob")
    read(window, range(SLOTS))
    for name in ("ann", "bob"):
        mine = [slot + 1 for slot in slots.of(name)]
        assert numbers(window.deal(name, 5, HUGE)) == mine[:5]
        assert numbers(window.deal(name, SLOTS, HUGE)) == mine[5:]
    assert len(window) == 0
    assert window.deal("cid", 5, HUGE) == []


def test_a_deal_keeps_to_its_bytes_but_for_a_first_large_message():
    _, window = opened("ann")
    read(window, [1] * 5, size_bytes=10)
    assert numbers(window.deal("ann", 100, 25)) == [1, 2]
    assert numbers(window.deal("ann", 100, 5)) == [3]
    assert numbers(window.deal("ann", 100, 20)) == [4, 5]


def test_what_is_put_back_comes_before_what_follows_it():
    _, window = opened("ann")
    read(window, [7] * 6)
    first = window.deal("ann", 4, HUGE)
    window.put_back(first[:1])
    window.put_back(first[2:3])
    assert numbers(window.deal("ann", 1, HUGE)) == [1]
    window.put_back(first[3:4])
    assert numbers(window.deal("ann", 9, HUGE)) == [3, 4, 5, 6]


def test_a_blocked_lane_waits_and_others_pass_it():
    _, window = opened("ann")
    read(window, [7, 8, 7, 8])
    window.block(7)
    assert numbers(window.deal("ann", 9, HUGE)) == [2, 4]
    read(window, [7])
    assert window.deal("ann", 9, HUGE) == []
    window.unblock(7)
    assert numbers(window.deal("ann", 9, HUGE)) == [1, 3, 5]


def test_a_draining_slot_waits_for_its_former_owner_and_no_other_does():
    slots, window = opened("ann")
    read(window, [*range(SLOTS), *range(SLOTS)])
    for message in window.deal("ann", 10, HUGE):
        slots.claim([message.slot], "ann")
    window.rearrange(slots.assign(["ann", "bob"]))
    assert len(slots.draining_of("bob")) == 5  # half of those that are claimed
    window.rearrange(slots.assign(["bob"]))
    assert sorted(slots.draining_of("bob")) == list(range(10))
    dealt = window.deal("bob", 2 * SLOTS, HUGE)
    assert {message.slot for message in dealt} == set(range(10, SLOTS))
    slots.end([3])
    assert numbers(window.deal("bob", 2 * SLOTS, HUGE)) == [SLOTS + 4]


def test_a_lane_that_comes_back_while_its_slot_drains_keeps_its_order():
    slots, window = opened("ann")
    read(window, [3] * 4)
    for message in window.deal("ann", 2, HUGE):
        slots.claim([message.slot], "ann")
    window.rearrange(slots.assign(["bob"]))
    assert window.deal("bob", 9, HUGE) == []  # 3 and 4 wait with their slot
    window.block(3)  # for 1 came back, while 2 is still claimed
    slots.end([3])
    read(window, [3])
    assert window.deal("bob", 9, HUGE) == []  # 5 waits with its lane
    slots.end([3])
    assert window.deal("bob", 9, HUGE) == []
    window.unblock(3)
    assert numbers(window.deal("bob", 9, HUGE)) == [3, 4, 5]


def test_a_hot_key_that_waits_leaves_room_for_the_others_and_loses_nothing():
    _, window = opened("ann", messages=8_000)
    hot, log = 5, [5] * 100_000
    log[99_999] = 6  # the one behind it
    window.block(hot)
    seen = list[int]()
    for start in range(0, len(log), 1_000):
        read(window, log[start : start + 1_000])
        seen += numbers(window.deal("ann", 1_000, HUGE))
    assert seen == [100_000]
    assert len(window) <= window_module.LANE_ASIDE_MAX
    window.unblock(hot)
    seen = []
    while len(seen) < 99_999:
        dealt = numbers(window.deal("ann", 1_000, HUGE))
        seen += dealt
        after = window.refill_after()
        if after is not None:
            start = int.from_bytes(after, "big") + 1
            stop = min(start + 2_000, len(log) + 1)
            window.refill(after, [ahead(number, log[number - 1]) for number in range(start, stop)], place(stop - 1))
        else:
            assert dealt
    assert seen == list(range(1, 100_000))
    assert (len(window), window.refill_after()) == (0, None)


def test_a_member_that_stands_still_fills_only_its_share():
    slots, window = opened("ann", "bob", messages=4_000)
    got = 0
    for _ in range(100):
        read(window, range(SLOTS))
        got += len(window.deal("ann", SLOTS, HUGE))
    assert got == 100 * SLOTS // 2
    assert window.count("bob") == 1_000
    assert not window.has_room("bob")
    assert window.has_room("ann")
    assert window.refill_after() is None  # until it takes some
    # Its slots go to the other when it leaves: what was left out is read again.
    window.rearrange(slots.assign(["ann"]))
    rest = window.deal("ann", HUGE, HUGE)
    while (after := window.refill_after()) is not None:
        start = int.from_bytes(after, "big") + 1
        stop = min(start + SLOTS, 100 * SLOTS + 1)
        window.refill(after, [ahead(n, (n - 1) % SLOTS) for n in range(start, stop)], place(stop - 1))
        rest += window.deal("ann", HUGE, HUGE)
    assert len(set(numbers(rest))) == len(rest) == 100 * SLOTS - got


def test_what_was_acknowledged_undealt_is_not_dealt(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(window_module, "FORGOTTEN_SPANS_MAX", 2)
    _, window = opened("ann")
    read(window, range(20))
    window.forget(place(2), place(4))
    window.forget(place(30), place(31))  # not read yet: the reader passes it
    assert len(window) == 20
    window.forget(place(5), place(6))
    window.forget(place(7), place(8))
    assert len(window) == 16  # with so many the queues are cleaned
    window.forget(place(1), place(2))
    assert numbers(window.deal("ann", 5, HUGE)) == [1, 5, 7, 9, 10]


def test_undealt_messages_are_found_wherever_they_lie():
    slots, window = opened("ann")

    def before(lane: int, number: int) -> list[int]:
        return numbers(window.before({lane: place(number)}))

    read(window, [7, 8, 7, 8])
    assert (before(7, 4), before(7, 3), before(8, 2), before(9, 4)) == ([1, 3], [1], [], [])
    assert window.known_through() == place(4)
    window.block(7)
    window.deal("ann", 9, HUGE)
    assert before(7, 3) == [1]
    window.forget(place(0), place(1))
    assert before(7, 4) == [3]
    slots.claim([8], "ann")
    read(window, [8])
    window.rearrange(slots.assign(["bob"]))
    window.deal("bob", 9, HUGE)
    assert before(8, 6) == [5]
    assert sorted(numbers(window.within(Spans([(place(2), place(9))])))) == [3, 5]
    assert window.is_aside(8)
    assert numbers(window.take_before({8: place(9), 7: place(3)})) == [5]
    assert len(window) == 1  # 3: what was forgotten is gone as well


def test_one_deal_looks_at_so_many_messages_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(window_module, "LOOKS_MAX", 10)
    _, window = opened("ann")
    read(window, [7] * 25 + [8])
    window.block(7)
    assert window.deal("ann", 5, HUGE) == []
    assert window.count("ann") == 16
    while not (dealt := window.deal("ann", 5, HUGE)):
        assert window.count("ann")
    assert numbers(dealt) == [26]


def test_a_message_takes_forty_bytes_or_so():
    _, window = opened("ann", messages=200_000)
    read(window, range(100_000))
    assert ENTRY_BYTES == 48
    assert sum(len(queue._data) for queue in window._queues.values()) == 48 * 100_000


class _Stored:
    """A batch of so many messages: what a window asks of it."""

    body_bytes = 0

    def __init__(self, count: int) -> None:
        self.batch = self
        self.start, self.count = 0, count

    def picked(self, indexes: Sequence[int]) -> list[int]:
        return list(indexes)


def sheet(messages: Sequence[Ahead]) -> Sheet:
    ids, afters, lanes, sizes = zip(*messages, strict=True)
    return Sheet(ids, afters, lanes, sizes, _Stored(len(messages)))  # type: ignore[arg-type]


def cut_numbers(cuts: Iterable[Cut]) -> list[int]:
    return numbers(message for cut in cuts for message in cut.messages())


def read_batches(window: Window, *batches: Iterable[int], size_bytes: int = 1) -> None:
    first, sheets = int.from_bytes(window.place, "big") + 1, list[Sheet]()
    for lanes in batches:
        sheets.append(sheet([ahead(number, lane, size_bytes) for number, lane in enumerate(lanes, first)]))
        first += len(sheets[-1].ids)
    window.add_sheets(window.place, sheets, sheets[-1].ids[-1])


def test_whole_batches_are_dealt_as_cuts_to_the_owners_of_their_slots():
    slots, window = opened("ann", "bob", messages=100_000)
    read_batches(window, range(SLOTS), range(SLOTS))
    mine = [slot + 1 for slot in slots.of("ann")]
    cuts = window.deal_cuts("ann", len(mine) + 10, HUGE)
    assert len(cuts) == 2
    assert cut_numbers(cuts) == [*mine, *(number + SLOTS for number in mine[:10])]
    assert [cut.slices() for cut in cuts] == [[number - 1 for number in mine], [number - 1 for number in mine[:10]]]
    window.rearrange(slots.assign(["bob"]))
    rest = sorted({*range(1, 2 * SLOTS + 1)} - set(cut_numbers(cuts)))
    assert window.count("bob") == len(rest)
    assert cut_numbers(window.deal_cuts("bob", 5_000, HUGE)) == rest


def test_cuts_keep_to_the_bytes_of_a_deal_but_for_a_first_large_message():
    _, window = opened("ann")
    read_batches(window, [1] * 3, [1] * 3, size_bytes=10)
    assert cut_numbers(window.deal_cuts("ann", 100, 45)) == [1, 2, 3, 4]
    assert cut_numbers(window.deal_cuts("ann", 100, 5)) == [5]
    assert cut_numbers(window.deal_cuts("ann", 100, 5)) == [6]


def test_cuts_of_lanes_that_wait_are_passed_over_and_dealt_first_when_these_go_on():
    _, window = opened("ann")
    read_batches(window, [1, 2], [3, 2, 4])
    window.block(2)
    assert cut_numbers(window.deal_cuts("ann", 2, HUGE)) == [1, 3]
    assert cut_numbers(window.deal_cuts("ann", 9, HUGE)) == [5]
    assert (window.deal_cuts("ann", 9, HUGE), window.count("ann"), window.is_draining("ann")) == ([], 0, False)
    window.unblock(2)
    assert cut_numbers(window.deal_cuts("ann", 9, HUGE)) == [2, 4]


def test_cuts_of_draining_slots_are_passed_over_and_dealt_first_when_these_are_drained():
    slots, window = opened("ann")
    read_batches(window, [1, 2, 1], [2, 1, 3])
    slots.claim([1, 2], "ann")
    window.rearrange(slots.assign(["bob"]))
    assert cut_numbers(window.deal_cuts("bob", 9, HUGE)) == [6]
    assert (window.count("bob"), window.is_draining("bob"), window.is_packed("bob")) == (0, True, False)
    slots.end([1])
    assert cut_numbers(window.deal_cuts("bob", 1, HUGE)) == [1]
    assert cut_numbers(window.deal_cuts("bob", 9, HUGE)) == [3, 5]
    slots.end([2])
    assert cut_numbers(window.deal_cuts("bob", 9, HUGE)) == [2, 4]
    assert not window.is_draining("bob")


def test_what_is_forgotten_is_cut_out():
    _, window = opened("ann")
    read_batches(window, range(5))
    window.forget(place(1), place(3))
    assert cut_numbers(window.deal_cuts("ann", 9, HUGE)) == [1, 4, 5]


def test_where_too_many_wait_they_are_set_aside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(window_module, "HELD_MESSAGES_MAX", 3)
    slots, window = opened("ann")
    read_batches(window, [1, 1], [1, 1, 2])
    slots.claim([1], "ann")
    window.rearrange(slots.assign(["bob"]))
    assert cut_numbers(window.deal_cuts("bob", 9, HUGE)) == [5]
    assert window.deal_cuts("bob", 9, HUGE) == []
    assert window.is_packed("bob")
    assert window.deal("bob", 9, HUGE) == []
    assert window.is_aside(1)
    slots.end([1])
    assert window.deal_cuts("bob", 9, HUGE) == []
    assert numbers(window.deal("bob", 9, HUGE)) == [1, 2, 3, 4]


def test_batches_beyond_their_share_of_the_window_are_packed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slots_module, "SHEET_MESSAGE_BYTES", 40)
    _, window = opened("ann", messages=100)  # 4,800 bytes, of which 2,400 may be batches
    read_batches(window, range(20))
    assert window._sheets_bytes() == 800
    read_batches(window, range(20), range(31))
    assert window._sheets_bytes() == 0
    assert numbers(window.deal("ann", 100, HUGE)) == list(range(1, 51))  # and half of the window is queues


LANES = [3, 3 + SLOTS, 3 + 2 * SLOTS, 700]  # of two slots
MEMBERS = ("ann", "bob", "cid")


class _World:
    """A window of a few messages against sets: each message is dealt once until it comes back, and each lane in order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.slots, self.window = opened("ann", messages=24)
        self.log: list[int] = []  # lanes; message n is at n - 1
        self.read_to = 0
        self.claimed: dict[int, str] = {}
        self.waiting: dict[int, int] = {}  # number → lane: came back, and holds its lane back
        self.done: set[int] = set()
        self.finishing = False

    def step(self) -> None:
        act = self.random.choice([
            self.publish, self.read_on, self.read_on, self.read_again, self.deal, self.deal, self.deal, self.deal,
            self.end_claims, self.end_claims, self.take_returned, self.acknowledge_undealt, self.resize,
        ])  # fmt: skip
        act()

    def available(self, start: int, stop: int) -> list[Ahead]:
        gone = self.done | self.claimed.keys() | self.waiting.keys()
        return [ahead(n, self.log[n - 1]) for n in range(start + 1, stop + 1) if n not in gone]

    def publish(self) -> None:
        self.log += self.random.choices(LANES, k=self.random.randint(1, 8))

    def read_on(self) -> None:
        stop = min(self.read_to + self.random.randint(1, 12), len(self.log))
        found = self.available(self.read_to, stop)
        if found and len(found) == stop - self.read_to and self.random.random() < 0.7:
            at = self.random.randint(0, len(found) - 1)
            sheets = [sheet(part) for part in (found[:at], found[at:]) if part]
            self.window.add_sheets(place(self.read_to), sheets, place(stop))
            self.read_to = stop
            return
        self.window.add(place(self.read_to), self.available(self.read_to, stop), place(stop))
        self.read_to = stop

    def read_again(self) -> None:
        after = self.window.refill_after()
        if after is None:
            return
        start = int.from_bytes(after, "big")
        assert start < self.read_to
        stop = min(start + self.random.randint(1, 12), self.read_to)
        for _ in range(0 if self.finishing else self.random.randint(0, 2)):  # while it is read
            self.random.choice([self.deal, self.end_claims, self.resize, self.take_returned])()
        self.window.refill(after, self.available(start, stop), place(stop))

    def deal(self, member: str = "") -> None:
        member, limit = member or self.random.choice(MEMBERS), self.random.randint(1, 6)
        dealt = [message for cut in self.window.deal_cuts(member, limit, HUGE) for message in cut.messages()]
        dealt = dealt or self.window.deal(member, limit, HUGE)
        assert len(dealt) <= limit
        assert dealt == sorted(dealt)
        for number, message in zip(numbers(dealt), dealt, strict=True):
            lane = self.log[number - 1]
            assert message == ahead(number, lane)
            assert self.slots.owners[message.slot] == member
            assert not self.slots.drains(message.slot)
            assert number not in self.done | self.claimed.keys() | self.waiting.keys()
            for earlier in range(1, number):  # none of its lane is left behind
                assert self.log[earlier - 1] != lane or earlier in self.claimed or earlier in self.done, (
                    earlier,
                    number,
                )
            self.claimed[number] = member
            self.slots.claim([message.slot], member)

    def end(self, number: int) -> int:
        del self.claimed[number]
        lane = self.log[number - 1]
        self.slots.end([lane % SLOTS])
        return lane

    def end_claims(self) -> None:
        if not self.claimed:
            return
        how = self.random.choice(["acknowledge", "put back", "return"])
        for number in self.random.sample(sorted(self.claimed), self.random.randint(1, min(2, len(self.claimed)))):
            lane = self.end(number)
            if how == "acknowledge":
                self.done.add(number)
            elif how == "return":
                self.waiting[number] = lane
                self.window.block(lane)
            else:
                self.window.put_back([ahead(number, lane)])

    def take_returned(self) -> None:
        """Handle one that came back, the first of its lane; when it is the last of them its lane goes on."""
        if self.waiting:
            lane = self.random.choice(sorted(set(self.waiting.values())))
            number = min(number for number, held in self.waiting.items() if held == lane)
            del self.waiting[number]
            self.done.add(number)
            if lane not in self.waiting.values():
                self.window.unblock(lane)

    def acknowledge_undealt(self) -> None:
        number = self.random.randint(1, len(self.log) + 1)
        if number <= len(self.log) and number not in self.claimed and number not in self.waiting:
            self.done.add(number)
            self.window.forget(place(number - 1), place(number))

    def resize(self) -> None:
        members = self.random.sample(MEMBERS, self.random.randint(0, len(MEMBERS)))
        self.window.rearrange(self.slots.assign(members))

    def finish(self) -> None:
        """All of it is dealt in the end."""
        self.finishing = True
        while self.waiting:
            self.take_returned()
        self.window.rearrange(self.slots.assign(["ann"]))
        for _ in range(20 * len(self.log) + 20):
            for number in list(self.claimed):
                self.end(number)
                self.done.add(number)
            if len(self.done) == len(self.log):
                break
            self.deal("ann")
            self.read_again()
            self.read_on()
        assert self.done == set(range(1, len(self.log) + 1))


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_each_message_is_dealt_in_the_order_of_its_lane(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(window_module, "LANE_ASIDE_MAX", 2)
    monkeypatch.setattr(window_module, "LOOKS_MAX", 3)
    monkeypatch.setattr(window_module, "FORGOTTEN_SPANS_MAX", 1)
    monkeypatch.setattr(slots_module, "SHEET_MESSAGE_BYTES", 10)
    monkeypatch.setattr(window_module, "HELD_MESSAGES_MAX", seed % 4)
    world = _World(Random(seed))
    for _ in range(120):
        world.step()
    world.finish()


def test_the_places_begin_before_every_message():
    _, window = opened("ann")
    assert window.place == ZERO_ID
