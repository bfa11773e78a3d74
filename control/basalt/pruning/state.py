"""The entries of pruning in the system table: its terms (kind `prune`) and the writers that were forgotten (kind `pruned`).

Formats: docs/formats/system-table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from basalt.errors import ConflictError
from basalt_engine.snapshot import NO_RUNS, POINTERS_PER_MS, PointerRuns
from basalt_engine.system import SystemRecord, SystemTable, number_name

ARCHIVE_POINTERS_MAX = 10_000  # in one entry: a row of some 200 KiB
CHANGE_TRIES = 3  # the publisher and a prune run may meet


class PruneState(msgspec.Struct, frozen=True):
    """`lifetime_ms` is the longest that a region server may still know; a lower one counts once all have read it.

    `lowered_to_ms` and `lowered_at` say which that is, and the first snapshot (epoch, sequence) that had it.
    `first_published_ms` is when the first snapshot was published, from which on regions refuse old writers.
    `newest_pruned` is the highest pointer that was forgotten: no region may ever take it for a young one again.
    `restored` is the last pointer given out when tables were last restored from a copy.
    """

    lifetime_ms: int = 0
    lowered_to_ms: int | None = None
    lowered_at: tuple[int, int] | None = None
    newest_pruned: int = 0
    first_published_ms: int = 0
    restored: int = 0

    def publishing(self, lifetime_ms: int, published_at: tuple[int, int], now_ms: int) -> PruneState:
        """The state when a snapshot with this lifetime is about to be published."""
        if not self.first_published_ms:
            begun = msgspec.structs.replace(self, first_published_ms=now_ms)
            return begun.publishing(lifetime_ms, published_at, now_ms)
        if lifetime_ms >= self.lifetime_ms:
            return msgspec.structs.replace(self, lifetime_ms=lifetime_ms, lowered_to_ms=None, lowered_at=None)
        if lifetime_ms == self.lowered_to_ms:
            return self
        return msgspec.structs.replace(self, lowered_to_ms=lifetime_ms, lowered_at=published_at)

    def when_all_know(self, oldest_known: tuple[int, int]) -> PruneState:
        """The state when no region server has a snapshot older than this one."""
        if self.lowered_to_ms is None or self.lowered_at is None or oldest_known < tuple(self.lowered_at):
            return self
        return msgspec.structs.replace(self, lifetime_ms=self.lowered_to_ms, lowered_to_ms=None, lowered_at=None)

    def lifetime_to_publish_ms(self, wanted_ms: int, now_ms: int, skew_ms: int) -> int:
        """A lifetime that was raised holds little by little, lest a region lets in a writer that was forgotten."""
        if not self.newest_pruned:
            return wanted_ms
        return max(0, min(wanted_ms, now_ms - skew_ms - self.newest_pruned // POINTERS_PER_MS))


class PruneRecord(msgspec.Struct, frozen=True):
    """Writers that were forgotten at one time, ascending; the body of a `pruned` entry. Of a run the first and the last one."""

    pruned_ms: int
    pointers: list[int]
    runs: list[tuple[int, int]] = []

    @property
    def name(self) -> str:
        """Its name in the system table: by time, then by the first pointer."""
        return f"{number_name(self.pruned_ms)}:{number_name(self.first)}"

    @property
    def first(self) -> int:
        return min((*self.pointers[:1], *(first for first, _ in self.runs[:1])))

    @property
    def last(self) -> int:
        return max((*self.pointers[-1:], *(last for _, last in self.runs[-1:])))

    @property
    def count(self) -> int:
        """The number of writers."""
        return len(self.pointers) + PointerRuns(self.runs).pointers


STATE = SystemRecord("prune", "state", PruneState)  # absent in a new installation
ARCHIVE = SystemRecord("pruned", "", PruneRecord)


def change_state(system: SystemTable, change: Callable[[PruneState], PruneState]) -> PruneState:
    """Make the state what `change` makes of it, and return that; `ConflictError` when others go on changing it."""
    for _ in range(CHANGE_TRIES):
        body = system.get(STATE.kind, STATE.name)
        old = PruneState() if body is None else STATE.decode(body)
        new = change(old)
        if new == old or system.replace(STATE.kind, STATE.name, body, STATE.encode(new)):
            return new
    raise ConflictError("another server changes the terms of pruning, too", hint="see which server leads")


def archive(system: SystemTable, pruned_ms: int, pointers: Sequence[int], runs: PointerRuns = NO_RUNS) -> None:
    """Keep writers that are about to be forgotten, for the day on which a table is restored from an older copy."""
    for some, some_runs in in_parts(pointers, runs, ARCHIVE_POINTERS_MAX):
        part = PruneRecord(pruned_ms, list(some), [(first, last) for first, last in some_runs])
        ARCHIVE.write(system, part, part.name)


def in_parts(
    pointers: Sequence[int], runs: PointerRuns, numbers_max: int
) -> Iterator[tuple[Sequence[int], PointerRuns]]:
    """First the pointers, then the runs, not more than so many numbers at a time."""
    for start in range(0, len(pointers), numbers_max):
        yield pointers[start : start + numbers_max], NO_RUNS
    left = iter(runs)
    while some := list(islice(left, numbers_max // 2)):
        yield (), PointerRuns(some)


def archived(system: SystemTable, since_ms: int = 0, *, newest_first: bool = False) -> Iterator[PruneRecord]:
    """Read the writers that were forgotten at or after a time."""
    return (pruned for _, pruned in ARCHIVE.scan(system, number_name(since_ms), reverse=newest_first))
