"""The stores that the contract is proven for. A further store joins by one more entry in `OPENERS`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Store

_MEMORY_DISK = Path("/dev/shm")


@contextmanager
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: tests that open many stores need no disk that they could wait for."""
    place = _MEMORY_DISK if os.access(_MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="basalt-stores-", dir=place) as path:
        yield Path(path)


@dataclass(frozen=True)
class Opener:
    """How to open a store in an empty directory, and whether opening it again finds what was written."""

    name: str
    open: Callable[[Path], Store]
    persistent: bool

    def __str__(self) -> str:
        return self.name


HBASE = "hbase"  # opened by the fixture, which knows where HBase is; all its stores share one set of tables
OPENERS = [
    Opener("memory", lambda _: MemoryStore(), persistent=False),
    Opener("memory-row-by-row", lambda _: MemoryStore(atomic=False), persistent=False),
    # Without waiting for the disk: what a power failure would take is not what this suite is about.
    Opener("rocks", lambda directory: RocksStore.open(directory, sync=False), persistent=True),
]
