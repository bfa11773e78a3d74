"""The members of a group: names, epochs that tell two processes of one name apart, and leases.

All of it is in memory. A member joins with its first call and stays while it calls; after a restart the next call joins it
again, at the epoch that it has. Leases run on the monotonic clock; epochs come from the wall clock, so that they rise over
restarts too, and never fall within a process, whatever the clock does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from basalt.errors import BusyError, InputError, MemberFencedError

MEMBERS_MAX = 1_000  # of one group, unless the settings say otherwise
FORMER_MEMBERS_MAX = (
    65_536  # names that are gone, of all groups, whose last epochs are remembered: older processes stay fenced
)
EPOCH_AHEAD_MS_MAX = 86_400_000  # an epoch so far ahead of the clock was never given: it would leave none to follow it


class Member:
    """One process that reads for the group, under a name that nobody else in the group has at the time."""

    __slots__ = ("epoch", "joined_ms", "name", "seen_ms")

    def __init__(self, name: str, epoch: int, now_ms: float) -> None:
        self.name = name
        self.epoch = epoch
        self.joined_ms = now_ms  # times on the monotonic clock
        self.seen_ms = now_ms

    def __repr__(self) -> str:
        return f"Member({self.name!r}, {self.epoch})"


class FormerMembers:
    """The last epochs of names that are no members now, by group: they outlive what else is known of a group that nobody uses."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[tuple[int, str], int] = OrderedDict()

    def epoch(self, group: int, name: str) -> int:
        """The last epoch of the name; 0 for one that is not known."""
        return self._epochs.get((group, name), 0)

    def add(self, group: int, member: Member) -> None:
        """The member is gone. Who went first is forgotten for it, when there are too many."""
        self._epochs[group, member.name] = member.epoch
        self._epochs.move_to_end((group, member.name))
        if len(self._epochs) > FORMER_MEMBERS_MAX:
            self._epochs.popitem(last=False)

    def pop(self, group: int, name: str) -> None:
        """The name is a member's again."""
        self._epochs.pop((group, name), None)


class Members:
    """The living members of one group, in the order in which they joined.

    `lease_ms` and `members_max` may change while members live. `version` rises with each change of who is a member.
    """

    def __init__(
        self, lease_ms: int, members_max: int = MEMBERS_MAX, former: FormerMembers | None = None, group: int = 0
    ) -> None:
        self.lease_ms = lease_ms
        self.members_max = members_max
        self.version = 0
        self._members: dict[str, Member] = {}
        self._former = former or FormerMembers()
        self._group = group
        self._replaced: list[Member] = []
        self._epoch = 0  # the highest that was given or seen

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, name: str) -> Member | None:
        """The living member of this name."""
        return self._members.get(name)

    def join(self, name: str, epoch: int, now_ms: float, clock_ms: int) -> Member:
        """The member that calls, its lease renewed; joined if it is none. Without an epoch (0) it becomes the only process of its name.

        `now_ms` is on the monotonic clock, `clock_ms` on the wall clock. `MemberFencedError` when a newer process of this
        name has been seen; the member that a newer one replaces is among the next `expire`.
        """
        member = self._members.get(name)
        if member is not None and epoch == member.epoch:
            member.seen_ms = now_ms
            return member
        self._check(name, epoch, clock_ms)
        if member is None and len(self._members) >= self.members_max:
            raise BusyError(
                f"the group has {self.members_max} members, as many as it may; {name} waits until one of them leaves"
            )
        if member is not None:
            del self._members[name]
            self._replaced.append(member)
        if not epoch:
            epoch = max(clock_ms, self._epoch + 1, self._former.epoch(self._group, name) + 1)
        self._epoch = max(self._epoch, epoch)
        self._former.pop(self._group, name)
        joined = self._members[name] = Member(name, epoch, now_ms)
        self.version += 1
        return joined

    def check(self, name: str, epoch: int) -> None:
        """Refuse an epoch older than the last one of this name: `MemberFencedError`. Renews and joins nothing."""
        member = self._members.get(name)
        last = self._former.epoch(self._group, name) if member is None else member.epoch
        if 0 < epoch < last:
            raise MemberFencedError(
                f"member {name} of epoch {epoch} was replaced by a newer process of this name, which has epoch {last}",
                field="epoch",
                hint="stop this process, or give it a name of its own",
            )

    def _check(self, name: str, epoch: int, clock_ms: int) -> None:
        self.check(name, epoch)
        # After a restart an epoch that this process never gave is taken: but none that later ones could not pass.
        if epoch < 0 or epoch > max(clock_ms, self._epoch) + EPOCH_AHEAD_MS_MAX:
            raise InputError(
                f"epoch {epoch} of member {name} was never given out",
                field="epoch",
                hint="leave it out to join, then use the one that the answer names",
            )

    def leave(self, name: str, epoch: int = 0) -> Member | None:
        """Take the member out; None when it is none already. With an epoch, `MemberFencedError` as `join`."""
        self.check(name, epoch)
        member = self._members.get(name)
        if member is None or epoch > member.epoch:
            return None
        self._end(member)
        return member

    def expire(self, now_ms: float) -> list[Member]:
        """Take out the members whose leases ran out; they, and those that newer processes of their names replaced since the last call."""
        ended, self._replaced = self._replaced, []
        silent = [member for member in self._members.values() if member.seen_ms + self.lease_ms <= now_ms]
        for member in silent:
            self._end(member)
        return ended + silent

    def next_expiry_ms(self) -> float | None:
        """The time on the monotonic clock at which the next lease runs out if nobody calls; None without members."""
        if not self._members:
            return None
        return min(member.seen_ms for member in self._members.values()) + self.lease_ms

    def _end(self, member: Member) -> None:
        del self._members[member.name]
        self._former.add(self._group, member)
        self.version += 1
