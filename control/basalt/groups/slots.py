"""Slots: the 1,024 parts of a keyed group's keys, dealt evenly to its members.

A slot moves only when its owner leaves, or has more than its share. While messages of a slot that another member claimed are
not decided, the slot *drains*: nothing more of it is dealt, then its new owner goes on. No other slot waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c

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
