"""Shards: the fixed parts into which all topics and transactional tables fall, and which row is of which.

A shard belongs to one server at a time, under an epoch that is higher than all before; who writes a row of it under a lower one
is refused (`Store.take`). The key says which shard a row is of, so no caller can name the wrong one. Rows of no topic or table are
the leader's (`Store.lead`). Format: docs/formats/row-keys.md, "Shards".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from crc32c import crc32c

from basalt_engine.errors import InputError
from basalt_engine.keys import NAME_EXPRESSION, TABLE_MARK

SHARDS = 1_024  # 10 for each of 100 servers; the map of all of them is 8 KiB
EPOCH_MAX = (1 << 21) - 2  # what a timestamp of the HBase store has room for: docs/formats/hbase-store.md

# The tables that hold rows of topics or transactional tables. The first three begin their keys with a salt.
SHARDED_TABLES = ("message", "payload", "cell", "metadata", "system")
_SALTED = frozenset(SHARDED_TABLES[:3])
# The kinds of system rows whose names begin with the prefix of a topic or table. A kind never changes sides: its rows would get
# timestamps of another epoch, perhaps a lower one.
TOPIC_KINDS = frozenset(
    {"hidden", "hidden-cells", "newest", "newest-of-failed", "expired", "swept", "index", "markers", "producers"}
)

_PREFIX = re.compile(f"{NAME_EXPRESSION}:{TABLE_MARK}?{NAME_EXPRESSION}:".encode())
_TOPIC_KINDS = frozenset(kind.encode() for kind in TOPIC_KINDS)

Epochs = Mapping[int, int]  # by shard


def shard_of(prefix: bytes) -> int:
    """The shard of the topic or table with this prefix."""
    return crc32c(prefix) % SHARDS


def row_shard(table: str, key: bytes) -> int | None:
    """The shard of a row; None for one of no topic or table, which is the leader's."""
    start = 0
    if table in _SALTED:
        start = 1
    elif table == "system":
        start = key.find(b":") + 1
        if key[: start - 1] not in _TOPIC_KINDS:
            return None
    elif table != "metadata":
        return None
    found = _PREFIX.match(key, start)
    return None if found is None else crc32c(found[0]) % SHARDS


def every_shard(epoch: int) -> dict[int, int]:
    """All shards, each under this epoch."""
    return dict.fromkeys(range(SHARDS), epoch)


def check_epochs(epochs: Epochs) -> None:
    """`InputError` for a shard that there is not, or an epoch out of range."""
    for shard, epoch in epochs.items():
        if not 0 <= shard < SHARDS:
            raise InputError(f"there is no shard {shard}; they are numbered from 0 to {SHARDS - 1}")
        if not epoch:
            raise InputError(f"shard {shard} cannot be taken under epoch 0, which is nobody's")
        check_epoch(epoch)


def check_epoch(epoch: int) -> None:
    """`InputError` for an epoch that is negative or too high."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise InputError(f"epoch {epoch} is out of range; the highest is {EPOCH_MAX}")
