"""A reign: one server's ownership of one shard under one epoch. The rule which calls a shard serves, and through which phases it goes.

    absent -> taking     the map gives this server the shard, under a higher epoch than all that it has had or given up
    taking -> held       each region was told that epoch, and the map still says so
    held -> releasing    a planned move begins: what was taken is done, new calls wait
    releasing -> held    it is called off: the shard goes on under its epoch, as if nothing had been
    releasing -> absent  nothing is known of its topics and tables any more, and nothing is under way
    held, taking or releasing -> absent  at once, where the map gives it to another server, or to this one under another epoch

What is known of topics and tables belongs to a reign, and ends with it. Pure: time is an argument. Decisions 0064 and 0072.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

MOVING_WAIT_MS_MAX = 1_000  # that a call waits at a shard that moves: most moves take a tenth of that


class Phase(Enum):
    """The phase of a reign, named as operators read it."""

    HELD = "held"
    RELEASING = "releasing"
    TAKING = "taking"
    ABSENT = "absent"  # another server has it, or is to take it


class Meeting(Enum):
    """The way in which a call to a topic or table of the shard is met."""

    SERVED = 1
    WAITS = 2
    MOVING = 3  # it is refused, and nothing was done


_NEXT = {
    Phase.ABSENT: {Phase.TAKING},
    Phase.TAKING: {Phase.HELD, Phase.ABSENT},
    Phase.HELD: {Phase.RELEASING, Phase.ABSENT},
    Phase.RELEASING: {Phase.HELD, Phase.ABSENT},
}


class Reign(NamedTuple):
    """One shard as this server has it.

    `epoch` is that under which it is held or being taken. Where it is absent: the highest that this server has had or given up, so that it is
    taken under higher ones alone. `unknown_up_to`: of transactions up to this write pointer nothing is known in its topics but what the store says, for they may
    have written there before this reign.
    """

    epoch: int
    since_ms: int  # of the phase, by the wall clock: for people
    phase: Phase = Phase.HELD
    unknown_up_to: int = 0

    def become(self, phase: Phase, now_ms: int, epoch: int | None = None) -> Reign:
        """The reign in another phase; under a higher epoch where it is to be taken. `ValueError` for what does not follow."""
        epoch = self.epoch if epoch is None else epoch
        if phase not in _NEXT[self.phase]:
            raise ValueError(f"a shard that is {self.phase.value} does not become {phase.value}")
        if self.phase is Phase.ABSENT and epoch <= self.epoch:
            raise ValueError(f"a shard of epoch {self.epoch} is not taken under epoch {epoch}")
        if self.phase is not Phase.ABSENT and epoch != self.epoch:
            raise ValueError(f"a shard that is {self.phase.value} keeps its epoch")
        return Reign(epoch, now_ms, phase, self.unknown_up_to)

    def forgot(self, last_pointer: int) -> Reign:
        """The reign once what was known of its topics is gone: `last_pointer` is the newest write pointer there is."""
        return self._replace(unknown_up_to=max(self.unknown_up_to, last_pointer))

    def meets(self, waited_ms: float) -> Meeting:
        """Tell what a call meets that has waited at this shard for so long."""
        if self.phase is Phase.HELD:
            return Meeting.SERVED
        return Meeting.WAITS if waited_ms < MOVING_WAIT_MS_MAX else Meeting.MOVING
