"""Basalt's tables in a RocksDB checkpoint: the directory of a backup, or of a server that was stopped.

Executors open it read-only, so each of them must have it under the same path: all on one machine, or a shared disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from basalt.errors import CorruptionError
from basalt_engine.stores.rocks.read_only import ReadOnlyRocksStore
from basalt_engine.system import SystemTable
from basalt_spark.jobs.stored_tables import Span


class _Install(msgspec.Struct):
    """Of the entry `install:facts`, docs/formats/system-table.md."""

    buckets: int


class CheckpointRows(NamedTuple):
    """The tables in a data directory that nobody has open."""

    directory: str

    @property
    def shown(self) -> str:
        """What a report calls it."""
        return f"checkpoint {self.directory}"

    def open(self) -> ReadOnlyRocksStore:
        """The store, to be read only."""
        return ReadOnlyRocksStore.open(Path(self.directory))

    def spans(self, tables: Sequence[str]) -> list[Span]:
        """One range for each salt bucket of a table that may have rows in it."""
        with self.open() as store:
            body = SystemTable(store.table(SystemTable.name)).get("install", "facts")
        if body is None:
            raise CorruptionError(f"{self.directory} has no entry install:facts", hint="take another backup")
        buckets = msgspec.json.decode(body, type=_Install).buckets
        return [
            Span(
                table,
                bytes([salt]) if salt else b"",
                bytes([salt + 1]) if salt + 1 < buckets else None,
                f"bucket {salt}",
            )
            for table in tables
            for salt in range(buckets)
        ]
