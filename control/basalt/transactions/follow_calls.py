"""The calls between the coordinator and the members that follow its log, as they go over a link. Format: docs/formats/links.md."""

from __future__ import annotations

import msgspec

from basalt.cluster.links.frames import CallKind, Kind
from basalt.transactions.protocol import Joining


class Follow(msgspec.Struct, frozen=True, array_like=True):
    """Push all that becomes durable from now on. `oldest_view` is the oldest one in use by readers of this member, 0: none is yet."""

    oldest_view: int


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """The standing of the log: the epoch under which the coordinator leads, and how many entries are durable."""

    epoch: int
    entries: int


class Entries(msgspec.Struct, frozen=True, array_like=True):
    """Entries of the log, just as it has them, the first one with this number. None: all before this number are durable, and not pushed."""

    first: int
    entries: tuple[bytes, ...]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The member has applied all entries before this number."""

    entries: int


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Tell the standing of the log. The member has applied so many entries."""

    entries: int


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """The pointer up to which each reader, of any server, sees all that was committed; known once so many entries are applied."""

    visibility_upper_bound: int
    entries: int


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """The join is one of the first `entries` entries."""

    transaction_id: int
    deadline_ms: int
    entries: int


FOLLOW: CallKind[Follow, Standing] = CallKind(Kind.FOLLOW, "follow", Follow, Standing)
ENTRIES: CallKind[Entries, Taken] = CallKind(Kind.ENTRIES, "entries", Entries, Taken, is_urgent=False)
ASK: CallKind[Ask, Standing] = CallKind(Kind.ASK, "ask", Ask, Standing)
MOMENT: CallKind[Ask, Moment] = CallKind(Kind.MOMENT, "moment", Ask, Moment)
JOIN: CallKind[Joining, Joined] = CallKind(Kind.JOIN, "join", Joining, Joined)
