"""Pruning of the invalid list: status, runs, and what is in the way. Meanings: docs/operations/pruning.md."""

from __future__ import annotations

from msgspec import Struct


class PublishedSnapshot(Struct, frozen=True, rename="camel"):
    """A snapshot as it was published for the region servers."""

    epoch: int
    sequence: int
    time_ms: int
    decided: int
    visibility_upper_bound: int
    lifetime_ms_max: int
    in_progress: int
    invalid: int


class PruneRun(Struct, frozen=True, rename="camel"):
    """A prune run. `waiting`: writers whose lifetime is not over; `held`: writers that something else is in the way of."""

    dry_run: bool
    invalid: int
    pruned: int
    waiting: int
    held: int
    regions: int
    compactions: tuple[str, ...]
    pointers: tuple[int, ...]


class PruneCause(Struct, frozen=True, rename="camel"):
    """One kind of thing in the way, the number of writers that it is the first obstacle of, and what frees them."""

    cause: str
    writers: int
    freed_by: str


class PruneHold(Struct, frozen=True, rename="camel"):
    """One thing in the way of one writer."""

    cause: str
    detail: str
    freed_by: str
    table: str | None
    region: str | None
    server: str | None
    file: str | None


class ExplainedWriter(Struct, frozen=True, rename="camel"):
    """An invalid writer, the earliest time (`ends_ms`) at which it may be pruned, and what is in its way now."""

    write_pointer: int
    began_ms: int
    ends_ms: int
    free: bool
    holds: tuple[PruneHold, ...]
    holds_left_out: int


class PruneStatus(Struct, frozen=True, rename="camel"):
    """The state of pruning. `regions` is null where the store has none."""

    invalid: int
    free: int
    causes: tuple[PruneCause, ...]
    oldest: ExplainedWriter | None
    lifetime_ms: int
    skew_ms: int
    restored: int
    fault: str | None
    regions: int | None
    reports: int | None
    last_run: PruneRun | None


class RegionInfo(Struct, frozen=True, rename="camel"):
    """A region. `held_back`: writers whose lifetime is over; `idle`: why its report vouches for nothing."""

    id: str
    table: str
    server: str
    start: str
    stop: str
    report_ms: int | None
    oldest_edit_ms: int | None
    files: int | None
    unknown_files: int | None
    held_back: int
    oldest_held: int | None
    idle: str | None


class RegionFile(Struct, frozen=True, rename="camel"):
    """A file of a region; it can hold rows of writers above `decided` (-1: of any) up to `newest`."""

    name: str
    decided: int
    newest: int
    bytes: int
    modified_ms: int


class RegionDetail(RegionInfo, frozen=True, rename="camel"):
    """A region with everything that its server reported of it."""

    name: str
    snapshot_epoch: int | None
    snapshot_sequence: int | None
    snapshot_time_ms: int | None
    store_files: tuple[RegionFile, ...]
    counters: dict[str, int]


class PrunedWriters(Struct, frozen=True, rename="camel"):
    """Writers that one run pruned, or a part of them where they were very many."""

    pruned_ms: int
    writers: int
    oldest: int
    newest: int


class RestoreRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The time (ms since 1970) of the copy that a table was restored from."""

    since_ms: int


class RestoredWriters(Struct, frozen=True, rename="camel"):
    """The number of writers that are invalid again; of a dry run, that would be."""

    restored: int
    dry_run: bool
