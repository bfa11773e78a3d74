"""The map of owners: which member has which shard, and under which epoch. One record in the system table, and its rules.

Only the leader replaces it, by check-and-write, so no two grants of a shard have one epoch. A grant raises the shard's epoch by
one, also when it goes to the member that has the shard already. The record is written before the fences of its owner are sent, so
that a region which opens after a fence finds that epoch, or a higher one, in the record. Format: docs/formats/system-table.md, "owners".
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from basalt.cluster.members import MEMBER, ROWS_MAX
from basalt_engine.errors import CorruptionError, FencedError, StoreError
from basalt_engine.stores.shards import EPOCH_MAX, SHARDS
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

KIND, NAME = "owners", "map"
FORMAT = 1
GRANT_TRIES_MAX = 5  # only a former leader can write beside this one, once for each call that it has under way
_HEAD = struct.Struct(">BQQH")
_SHARDS = struct.Struct(">" + "HHI" * SHARDS)  # of each: its member, and its epoch in two parts


class OwnersMap(NamedTuple):
    """One version of the map. `owners` has the place of each shard's owner in `members`, and `epochs` its epoch."""

    version: int
    leader_epoch: int
    members: tuple[str, ...]  # as each run of a server names itself
    owners: tuple[int, ...]
    epochs: tuple[int, ...]

    def shards_of(self, member: str) -> dict[int, int]:
        """The epochs of the shards that this member owns."""
        owned = enumerate(zip(self.owners, self.epochs, strict=True))
        return {shard: epoch for shard, (owner, epoch) in owned if self.members[owner] == member}

    def by_owner(self) -> dict[str, dict[int, int]]:
        """The same of each member, by one look at all shards."""
        found: dict[str, dict[int, int]] = {member: {} for member in self.members}
        for shard, (owner, epoch) in enumerate(zip(self.owners, self.epochs, strict=True)):
            found[self.members[owner]][shard] = epoch
        return found

    def owner_of(self, shard: int) -> str:
        """The member that owns this shard."""
        return self.members[self.owners[shard]]

    def counts(self) -> dict[str, int]:
        """By member, how many shards it owns."""
        return {self.members[place]: count for place, count in Counter(self.owners).items()}

    def encode(self) -> bytes:
        """The body of the record; `ValueError` for what is no map."""
        fault = _fault(self)
        if fault is not None:
            raise ValueError(fault)
        names = (name.encode() for name in self.members)
        parts = [0] * (3 * SHARDS)
        parts[0::3] = self.owners
        parts[1::3] = [epoch >> 32 for epoch in self.epochs]
        parts[2::3] = [epoch & 0xFFFFFFFF for epoch in self.epochs]
        return b"".join(
            (
                _HEAD.pack(FORMAT, self.version, self.leader_epoch, len(self.members)),
                *(len(name).to_bytes(2, "big") + name for name in names),
                _SHARDS.pack(*parts),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> OwnersMap:
        """The map that a body holds; `CorruptionError` for anything else."""
        try:
            form, version, leader_epoch, count = _HEAD.unpack_from(data)
            at, members = _HEAD.size, []
            for _ in range(count):
                end = at + 2 + int.from_bytes(data[at : at + 2], "big")
                members.append(data[at + 2 : end].decode())
                at = end
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptionError(f"the map of owners has no whole head: {error}") from None
        if form != FORMAT or len(data) != at + _SHARDS.size:
            raise CorruptionError(f"the map of owners has format {form} and {len(data)} bytes, which do not fit")
        parts = _SHARDS.unpack_from(data, at)
        epochs = tuple(high << 32 | low for high, low in zip(parts[1::3], parts[2::3], strict=True))
        found = cls(version, leader_epoch, tuple(members), parts[0::3], epochs)
        fault = _fault(found)
        if fault is not None:
            raise CorruptionError(f"the map of owners is damaged: {fault}")
        return found


class Granted(NamedTuple):
    """A map as the leader wrote it when its term began, and when that was, by its wall clock."""

    owners: OwnersMap
    at_ms: int

    def still_holds(self, shard: int, now: OwnersMap) -> bool:
        """True where nobody has granted the shard since."""
        return now.epochs[shard] == self.owners.epochs[shard]


def read_map(system: SystemTable) -> OwnersMap | None:
    """The map as it is stored; None before the first leader has written one."""
    stored = system.get(KIND, NAME)
    return None if stored is None else OwnersMap.decode(stored)


def _fault(found: OwnersMap) -> str | None:
    """The reason why these values are no map; None when they are one."""
    if not 0 < found.version < 1 << 63 or not 0 < found.leader_epoch <= EPOCH_MAX:
        return f"it has version {found.version} of leader {found.leader_epoch}"
    if len(set(found.members)) != len(found.members) or not all(0 < len(m.encode()) < 1 << 16 for m in found.members):
        return "a member is there twice, or has no name"
    if not len(found.owners) == len(found.epochs) == SHARDS or len(found.members) > SHARDS:
        return f"it has {len(found.members)} members for {len(found.owners)} shards"
    if min(found.owners) < 0 or max(found.owners) >= len(found.members):
        return "a shard's owner is no member"
    if min(found.epochs) <= 0 or max(found.epochs) > EPOCH_MAX:
        return "a shard's epoch is out of range"
    return None


def granted(before: OwnersMap | None, member: str, shards: Iterable[int], leader_epoch: int) -> OwnersMap:
    """The map after the leader of this epoch has granted these shards to a member: to own them all where there is no map yet.

    Then each shard begins with the leader's epoch, and so above all that leaders before the map wrote to its rows.
    """
    return dealt(before, dict.fromkeys(shards, member), member, leader_epoch)


def dealt(before: OwnersMap | None, to: Mapping[int, str], leader: str, leader_epoch: int) -> OwnersMap:
    """The same for shards that go to several members at once. Where there is no map yet all go to the leader first."""
    if before is None:
        before = OwnersMap(0, leader_epoch, (leader,), (0,) * SHARDS, (leader_epoch - 1,) * SHARDS)
        to = dict.fromkeys(range(SHARDS), leader) | dict(to)
    names = [before.members[owner] for owner in before.owners]
    epochs = list(before.epochs)
    for shard, member in to.items():
        names[shard] = member
        epochs[shard] += 1
    members = tuple(sorted(set(names)))
    places = {name: place for place, name in enumerate(members)}
    return OwnersMap(before.version + 1, leader_epoch, members, tuple(places[name] for name in names), tuple(epochs))


def grant(store: Store, member: str, shards: Collection[int], leader_epoch: int) -> OwnersMap:
    """Write the map in which this member has these shards, each under its next epoch. Also when it may be written already: a
    write whose answer was lost costs an epoch.

    Raises `FencedError` when a later leader has written the map.
    """
    return deal(store, lambda _: dict.fromkeys(shards, member), member, leader_epoch)


def deal(
    store: Store, choose: Callable[[OwnersMap | None], Mapping[int, str]], leader: str, leader_epoch: int
) -> OwnersMap:
    """Write the map in which shards go to the members that `choose` names for the map as it is stored. Raises as `grant`."""
    system = SystemTable(store.table(SystemTable.name))
    for _ in range(GRANT_TRIES_MAX):
        stored = system.get(KIND, NAME)
        before = None if stored is None else OwnersMap.decode(stored)
        if before is not None and before.leader_epoch > leader_epoch:
            raise FencedError(
                f"epoch {leader_epoch} is over: the leader of epoch {before.leader_epoch} dealt the shards"
            )
        now = dealt(before, choose(before), leader, leader_epoch)
        if system.replace(KIND, NAME, stored, now.encode()):
            return now
    raise StoreError("the map of owners changed at each try to replace it")


def take_all(store: Store, member: str, leader_epoch: int) -> OwnersMap:
    """Grant every shard to this member, which leads under this epoch, and take them: written first, fenced after."""
    now = grant(store, member, range(SHARDS), leader_epoch)
    store.take(now.shards_of(member))
    return now


def take_up(store: Store, member: str, leader_epoch: int) -> OwnersMap:
    """The same for a leader beside whom others own shards: it takes what it had, and what nobody has whose membership lasts, or who may not know of its end."""
    now = deal(store, lambda before: _left_over(store, member, before), member, leader_epoch)
    store.take(now.shards_of(member))
    return now


def _left_over(store: Store, member: str, before: OwnersMap | None) -> dict[int, str]:
    if before is None:
        return {}
    rows = SystemTable(store.table(SystemTable.name)).scan(MEMBER.kind, rows_max=ROWS_MAX)
    records = (MEMBER.decode(stored) for _, stored in rows)
    others = {record.run for record in records if not record.is_over or record.unaware} - {member}
    return {shard: member for shard in range(SHARDS) if before.owner_of(shard) not in others}
