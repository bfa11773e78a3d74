"""The lists that the prune audit goes by, as they lie in the store: published snapshot, prune history, notes, metadata.

Read in this order, before any row: the snapshot, then what was forgotten. A writer that is forgotten in between is on the
list still, and then its rows are no fault. Formats: docs/formats/system-table.md and docs/formats/region-snapshot.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from basalt.api.bodies.pruning import ExplainedWriter
from basalt.errors import InputError
from basalt_engine.metadata import MetadataTable
from basalt_engine.regions.snapshot import KIND, NAME, RegionSnapshot
from basalt_engine.system import SystemTable
from basalt_spark.jobs.stored_tables import OpenTables
from basalt_spark.jobs.writers import Writers, held

PRUNED_KIND = "pruned"
OUTSIDE_KIND = "outside"
PRUNE_STATE = ("prune", "state")  # kind and name
EXPLAINED_MAX = 1_000  # writers that one call of a server explains
UNDER_WAY = frozenset({"lifetime"})  # causes that only time frees: such a writer is not kept too long


class _Pruned(msgspec.Struct):
    """Of an entry of kind `pruned`."""

    pointers: list[int]


class _State(msgspec.Struct):
    """Of the entry of pruning's own state."""

    restored: int = 0


def read_writers(store: OpenTables) -> Writers:
    """The lists in a store. Without a published snapshot, as in RocksDB, the invalid list is not known."""
    system = SystemTable(store.table(SystemTable.name))
    body = system.get(KIND, NAME)
    snapshot = None if body is None else RegionSnapshot.decode(body)
    forgotten = {
        pointer
        for _, entry in system.scan(PRUNED_KIND)
        for pointer in msgspec.json.decode(entry, type=_Pruned).pointers
    }
    outside = frozenset(int(name) for name, _ in system.scan(OUTSIDE_KIND))
    metadata = MetadataTable(store.table(MetadataTable.name))
    state = system.get(*PRUNE_STATE)
    restored = 0 if state is None else msgspec.json.decode(state, type=_State).restored
    topics = {prefix: held(found.generation, found.on_invalid) for prefix, found in metadata.scan_all()}
    if snapshot is None:
        unknown = Writers(frozenset(), frozenset(forgotten), outside=outside, topics=topics, restored=restored)
        return unknown._replace(invalid_known=False)
    return Writers(
        frozenset(snapshot.invalid),
        frozenset(forgotten),
        frozenset(snapshot.in_progress),
        snapshot.write_pointer,
        snapshot.lifetime_ms_max,
        outside,
        topics,
        restored=restored,
    )


def with_explained(writers: Writers, explained: Iterable[ExplainedWriter], lifetime_ms: int) -> Writers:
    """The lists with what a server explains of the writers it holds on to, for a store that publishes no snapshot.

    Explained are the oldest; so a list that is longer is known in part, and its younger writers are not kept long yet.
    """
    holds = {each.write_pointer: {hold.cause for hold in each.holds} for each in explained}
    young = frozenset(writer for writer, causes in holds.items() if causes <= UNDER_WAY)
    return writers._replace(invalid=frozenset(holds), young=young, lifetime_ms=lifetime_ms, invalid_known=True)


def only(writers: Writers, wanted: Iterable[int]) -> frozenset[int]:
    """Those of the invalid list that were asked for; all of it when none were named. `InputError` for one not on it."""
    asked = frozenset(wanted)
    if not asked:
        return writers.invalid
    missing = asked - writers.invalid
    if missing and writers.invalid_known:
        raise InputError(
            f"write pointer {min(missing)} is not on the invalid list",
            hint="`basalt prune status` tells how long it is",
        )
    return asked
