"""The timestamp that each mutation carries, and the attribute by which regions refuse former owners.

Formats: docs/formats/hbase-store.md, "Timestamps" and "Attributes".

HBase orders the versions of a cell, and what a delete hides, by timestamps. Were these left to the region servers, a put
in the same millisecond as a delete would vanish behind it. So would a put over a cell that another server wrote with its
clock ahead, as happens when a region moves. So the store gives each write its own timestamp: an epoch in the upper bits, a number
that grows with every write in the lower ones. The epoch is that of the row's shard, or the leader's for a row of none: a later owner
writes above all earlier ones, whatever the clocks say. Shards are counted apart, for a number that one of them has reached
under a high epoch would put another one's rows above those of its own next owner.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from basalt_engine.errors import FencedError
from basalt_engine.stores.shards import EPOCH_MAX, SHARDS, Epochs, check_epoch, check_epochs, row_shard

TIME_BITS = 42  # milliseconds until the year 2109
assert (
    EPOCH_MAX == (1 << (63 - TIME_BITS)) - 2
)  # a timestamp is a signed 64-bit number, and HBase keeps the highest for itself

EPOCH = b"basalt.epoch"
SHARD = b"basalt.shard"
FENCE = b"basalt.fence"
FENCE_VERSION = 2
_FENCE_HEAD = struct.Struct(">BQH")
_RANGE = struct.Struct(">HH")

Attributes = Mapping[bytes, bytes]


class Stamp(NamedTuple):
    """The timestamp and the attributes of one mutation."""

    timestamp: int
    attributes: Attributes


class Stamps:
    """Stamps the writes of one process: each above all that it gave or saw before in the same row. Any thread may ask.

    A process that neither leads nor has taken a shard (a tool, or a server that is about to take the lease) gives no attributes,
    and timestamps of epoch 0; there the number starts at the time in milliseconds, so that it follows the process before it too.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._leader_epoch = 0
        self._shards: dict[int, int] = {}
        self._last: dict[int | None, int] = {}  # timestamp, by shard; None: of rows of no shard

    def lead(self, epoch: int) -> None:
        """From now on stamp rows of no shard as the leader of this epoch."""
        check_epoch(epoch)
        with self._lock:
            self._leader_epoch = epoch

    def take(self, shards: Epochs) -> None:
        """From now on stamp rows of these shards with these epochs."""
        check_epochs(shards)
        with self._lock:
            self._shards.update(shards)

    def of(self, table: str, keys: Iterable[bytes]) -> list[Stamp]:
        """The stamps of the rows of one call, all of one shard the same; `FencedError` when one is of a shard that was not taken."""
        made: dict[int | None, Stamp] = {}
        found = []
        with self._lock:
            for key in keys:
                shard = row_shard(table, key)
                if shard not in made:
                    made[shard] = self._next(shard, key)
                found.append(made[shard])
        return found

    def one(self, table: str, key: bytes) -> Stamp:
        """The stamp of a call for one row."""
        return self.of(table, [key])[0]

    def saw(self, table: str, key: bytes, timestamp: int) -> None:
        """Stay above a timestamp that another process wrote into this row."""
        shard = row_shard(table, key)
        with self._lock:
            self._last[shard] = max(self._last.get(shard, 0), timestamp)

    def _next(self, shard: int | None, key: bytes) -> Stamp:
        epoch = self._leader_epoch if shard is None else self._shards.get(shard, 0)
        if shard is not None and not epoch and (self._leader_epoch or self._shards):
            raise FencedError(f"row {key.hex()} is of shard {shard}, which this server has not taken")
        timestamp = max(self._last.get(shard, 0) + 1, (epoch << TIME_BITS) + self._now_ms())
        self._last[shard] = timestamp
        if not epoch:
            return Stamp(timestamp, {})
        if shard is None:
            return Stamp(timestamp, {EPOCH: epoch.to_bytes(8, "big")})
        return Stamp(timestamp, {SHARD: shard.to_bytes(2, "big") + epoch.to_bytes(6, "big")})


def encode_fence(leader_epoch: int, shards: Epochs) -> bytes:
    """The value of a fence's attribute; a leader's epoch of 0 says nothing of the leader."""
    check_epoch(leader_epoch)
    check_epochs(shards)
    ranges = list(_ranges(shards))
    packed = (_RANGE.pack(first, last) + epoch.to_bytes(6, "big") for first, last, epoch in ranges)
    return _FENCE_HEAD.pack(FENCE_VERSION, leader_epoch, len(ranges)) + b"".join(packed)


def _ranges(shards: Epochs) -> Iterator[tuple[int, int, int]]:
    """First and last of neighbouring shards that have one epoch, and the epoch; ascending."""
    first: int | None = None
    for shard in range(SHARDS + 1):
        if first is not None and shards.get(shard) != shards[first]:
            yield first, shard - 1, shards[first]
            first = None
        if first is None and shard in shards:
            first = shard
