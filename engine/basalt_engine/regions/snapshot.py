"""The snapshot of transactions that region servers go by, the newest durable one: bytes of a row of the system table.

Kind `snapshot`, name `latest`. Format: docs/formats/region-snapshot.md; the Java class is `Snapshot`. A reader refuses
whatever is not exactly as written here: it then keeps every row, while a list misread would drop the wrong ones.
"""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

from basalt_engine.errors import CorruptionError
from basalt_engine.varints import decode_rising, encode_rising

KIND, NAME = "snapshot", "latest"
FORMAT = 1
_HEAD = struct.Struct(">B8q")
_COUNT = struct.Struct(">I")


class RegionSnapshot(NamedTuple):
    """Which writers have failed and which are undecided, as of (`epoch`, `sequence`): of two copies the higher counts.

    `decided`: every writer up to it has committed, is undone, or is in `invalid`. Below `visibility_upper_bound` no
    reader needs an older version of anything. Both lists rise strictly; `in_progress` has checkpoints, too.
    """

    epoch: int
    sequence: int
    time_ms: int
    read_pointer: int
    write_pointer: int
    decided: int
    visibility_upper_bound: int
    lifetime_ms_max: int
    in_progress: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """By which of two copies the newer is known."""
        return self.epoch, self.sequence

    def encode(self) -> bytes:
        """The body of the row; `ValueError` when a list does not rise, or `decided` cannot be so."""
        fault = _fault(self)
        if fault is not None:
            raise ValueError(fault)
        count = len(self.in_progress)
        return b"".join(
            (
                _HEAD.pack(FORMAT, *self[:8]),
                _COUNT.pack(count),
                struct.pack(f">{count}q", *self.in_progress),
                _COUNT.pack(len(self.invalid)),
                encode_rising(self.invalid),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> RegionSnapshot:
        """The snapshot that a body holds; `CorruptionError` for anything else."""
        if not data or data[0] != FORMAT:
            raise CorruptionError(f"a region snapshot of format {data[:1].hex() or 'none'}, expected {FORMAT:02x}")
        numbers = _unpack(_HEAD, data, 0)[1:]
        offset = _HEAD.size
        (count,) = _unpack(_COUNT, data, offset)
        offset += _COUNT.size
        if count > (len(data) - offset) // 8:
            raise CorruptionError(f"the region snapshot ends within its {count} transactions in progress")
        in_progress = struct.unpack_from(f">{count}q", data, offset)
        offset += 8 * count
        (count,) = _unpack(_COUNT, data, offset)
        try:
            invalid, offset = decode_rising(data, offset + _COUNT.size, count)
        except CorruptionError as error:
            raise CorruptionError(f"the region snapshot's invalid list: {error.message}") from None
        if offset != len(data):
            raise CorruptionError(f"the region snapshot has {len(data) - offset} bytes after its end")
        snapshot = cls._make((*numbers, in_progress, invalid))
        fault = _fault(snapshot)
        if fault is not None:
            raise CorruptionError(f"the region snapshot is damaged: {fault}")
        return snapshot


def _fault(snapshot: RegionSnapshot) -> str | None:
    """Why these values are no snapshot; None when they are. The invalid list is checked by its encoding."""
    if min(snapshot[:8]) < 0:
        return "a number is negative"
    rising = (0, *snapshot.in_progress)
    if any(left >= right for left, right in itertools.pairwise(rising)):
        return "the transactions in progress do not rise strictly from 1"
    if snapshot.decided > snapshot.write_pointer:
        return "it is decided on writers that do not exist yet"
    if snapshot.in_progress and snapshot.decided >= snapshot.in_progress[0]:
        return "it is decided on a writer that is in progress"
    return None


def _unpack(form: struct.Struct, data: bytes, offset: int) -> tuple[int, ...]:
    if len(data) - offset < form.size:
        raise CorruptionError(f"the region snapshot ends at byte {len(data)}, within its numbers")
    return form.unpack_from(data, offset)
