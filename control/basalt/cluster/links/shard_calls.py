"""The calls about shards between members: release, the map, and that a member stops. Format: docs/formats/links.md, "Shards"."""

from __future__ import annotations

from typing import Annotated

import msgspec

from basalt.cluster.links.beats import RANGES_MAX
from basalt.cluster.links.frames import CallKind, Kind
from basalt_engine.stores.shards import SHARDS

MAP_BYTES_MAX = 1 << 20  # the map of a thousand members with names of some hundred characters

ShardEpochs = Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=SHARDS)]


class Release(msgspec.Struct, frozen=True, array_like=True):
    """The leader of this epoch asks for shards, which the member has under these epochs.

    `at_once`: it is to be theirs no more, whatever it does with them; for one that has not taken what it was given. Else it ends what it took,
    and where that cannot be done in time it says so, and goes on.
    """

    leader_epoch: int
    shards: ShardEpochs
    at_once: bool = False


class Released(msgspec.Struct, frozen=True, array_like=True):
    """The member does not have them any more, and takes them under no epoch up to these."""

    shards: ShardEpochs


class NewMap(msgspec.Struct, frozen=True, array_like=True):
    """The map of owners as it is in its row."""

    owners: Annotated[bytes, msgspec.Meta(max_length=MAP_BYTES_MAX)]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The member holds all that the map gives it and it may take: ranges, first and last. `map_version` is that of the newest map that it knows."""

    map_version: int
    held: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=RANGES_MAX)] = ()


class Leaving(msgspec.Struct, frozen=True, array_like=True):
    """A member stops: its shards are to go elsewhere. It knows itself by this name in the map."""

    member: str


class Left(msgspec.Struct, frozen=True, array_like=True):
    """So many shards went elsewhere; `kept` could not."""

    moved: int
    kept: int


RELEASE: CallKind[Release, Released] = CallKind(Kind.RELEASE, "release", Release, Released)
MAP: CallKind[NewMap, Taken] = CallKind(Kind.MAP, "map", NewMap, Taken)
LEAVING: CallKind[Leaving, Left] = CallKind(Kind.LEAVING, "leaving", Leaving, Left)
