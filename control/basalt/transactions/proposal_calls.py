"""The calls by which owners of consumer groups have their edits logged, as they go over a link. Format: docs/formats/links.md, "Groups"."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from basalt.cluster.links.frames import CallKind, ErrorBody, Kind
from basalt.transactions.log.entry_format import decode_entry, encode_entry
from basalt.transactions.rules.edits import Edit


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """The edits that one call wants to be true, all of them or nothing. `force`: open transactions that acknowledge in the group are not in the way."""

    entry: bytes
    force: bool = False

    @classmethod
    def of(cls, made: Sequence[Edit], *, force: bool) -> Unit:
        """The unit of these edits."""
        return cls(encode_entry(0, made), force)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits. `CorruptionError`"""
        return decode_entry(self.entry, "a proposal of a member")[1]


class Propose(msgspec.Struct, frozen=True, array_like=True):
    """Log these units, in this order and in one entry. `member` is the name by which the map knows the owner."""

    member: str
    number: int
    units: tuple[Unit, ...]


class Proposed(msgspec.Struct, frozen=True, array_like=True):
    """The answer: what is logged is in the first `entries` entries. `refused`: for each unit why it is not; None: it is."""

    entries: int
    refused: tuple[ErrorBody | None, ...]


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """If ever the log has an entry at this place that this term wrote, the proposal of this number is in it. Sent before that entry."""

    number: int
    place: int


PROPOSE: CallKind[Propose, Proposed] = CallKind(Kind.PROPOSE, "propose", Propose, Proposed)
PLACED: CallKind[Placed, None] = CallKind(Kind.PLACED, "placed", Placed, type(None), is_urgent=False)
