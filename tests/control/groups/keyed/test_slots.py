"""Slots of a keyed group: even, moved as little as can be, and drained where somebody else has messages."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from basalt.groups.keyed.slots import SLOTS, Slots, slot_of

NAMES = [f"m{number}" for number in range(14)]


def test_the_slot_of_a_key_is_its_checksum():
    assert slot_of(b"123456789") == 0xE3069283 % 1_024  # the check value of CRC-32C
    assert slot_of(b"") == 0


def test_one_member_has_them_all_and_nobody_after_it():
    slots = Slots()
    assert len(slots.assign(["ann"])) == SLOTS
    assert slots.of("ann") == list(range(SLOTS))
    assert slots.assign(["ann"]) == []
    assert {move.owner for move in slots.assign([])} == {None}
    assert slots.owners == [None] * SLOTS


def test_a_new_member_gets_its_share_and_no_other_slot_moves():
    slots = Slots()
    slots.assign(NAMES[:3])
    moves = slots.assign(NAMES[:4])
    assert {move.owner for move in moves} == {NAMES[3]}
    assert len(moves) == SLOTS // 4


@given(st.lists(st.lists(st.sampled_from(NAMES), unique=True), max_size=6))
def test_slots_are_even_and_the_fewest_move(changes: list[list[str]]):
    slots = Slots()
    for members in changes:
        before = list(slots.owners)
        moves = slots.assign(members)
        assert [(move.slot, move.before, move.owner) for move in sorted(moves)] == [
            (slot, old, new) for slot, (old, new) in enumerate(zip(before, slots.owners, strict=True)) if old != new
        ]
        if not members:
            continue
        held = Counter(slots.owners)
        assert held.keys() == set(members)
        assert max(held.values()) - min(held.values()) <= 1
        # A slot has to move when its owner left, or when the owner has more than any even dealing leaves it.
        share, more = divmod(SLOTS, len(members))
        kept = sorted((Counter(before)[name] for name in members), reverse=True)
        may_stay = sum(min(count, share + (place < more)) for place, count in enumerate(kept))
        assert len(moves) == SLOTS - may_stay


def test_members_beyond_the_slots_stand_by():
    slots, names = Slots(), [f"m{number}" for number in range(SLOTS + 2)]
    slots.assign(names)
    assert [name for name in names if slots.is_standby(name)] == names[SLOTS:]
    moves = slots.assign(names[1:])
    assert [(move.before, move.owner) for move in moves] == [(names[0], names[SLOTS])]


def test_a_slot_that_moved_drains_until_its_messages_are_decided():
    slots = Slots()
    slots.assign(["ann"])
    for slot in range(SLOTS):
        slots.claim([slot, slot], "ann")
    slots.assign(["ann", "bob"])
    mine = slots.of("bob")
    assert slots.draining_of("bob") == dict.fromkeys(mine, "ann")
    assert slots.draining_of("ann") == {}
    slots.end([mine[0]])
    assert slots.drains(mine[0])
    slots.end([mine[0]])
    assert not slots.drains(mine[0])
    slots.claim([mine[0]], "bob")
    assert not slots.drains(mine[0])  # its own owner has it


def test_a_slot_that_comes_back_goes_on_at_once():
    slots = Slots()
    slots.assign(["ann"])
    for slot in range(SLOTS):
        slots.claim([slot], "ann")
    slots.assign(["ann", "bob"])
    slots.assign(["ann"])
    assert slots.draining_of("ann") == {}


def test_of_busy_and_quiet_slots_the_same_share_moves():
    slots = Slots()
    slots.assign(["ann"])
    for slot in range(SLOTS // 2):
        slots.claim([slot], "ann")
    slots.assign(["ann", "bob"])
    assert sum(slots.claimed(slot) for slot in slots.of("ann")) == SLOTS // 4
    assert len(slots.draining_of("bob")) == SLOTS // 4
