"""Which regions are worth a major compaction: those whose files hold back the writers that have waited longest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import NamedTuple

from basalt.pruning.certificate import Certificates, certain_until, held_by_files
from basalt.pruning.regions import Region

ASK_AGAIN_MS = 3_600_000  # a large region takes its time, and asking twice would compact it twice


class Blocked(NamedTuple):
    """A region, and which of the due writers it holds back: ranges of their indexes, ascending and apart."""

    region: Region
    by_files: list[range]
    uncertain: range  # those that may be in its memstore, or about which it has not reported

    @property
    def first(self) -> int | None:
        """The index of the oldest writer that it holds back."""
        firsts = [span.start for span in (*self.by_files[:1], self.uncertain) if span]
        return min(firsts, default=None)

    @property
    def writers(self) -> int:
        """How many writers it holds back."""
        before = sum(max(0, min(span.stop, self.uncertain.start) - span.start) for span in self.by_files)
        return before + len(self.uncertain)


def due(certificates: Certificates, invalid: Sequence[int]) -> Sequence[int]:
    """The writers whose lifetime is over: the rest waits for nothing but time."""
    return invalid[: _index_of_end(certificates, invalid, certificates.terms.now_ms)]


def blocked(certificates: Certificates, pointers: Sequence[int]) -> list[Blocked]:
    """Each region with what it holds back of the ascending, due writers."""
    found = []
    for region in certificates.regions:
        certain_ms, _ = certain_until(region, certificates.reports, certificates.terms)
        uncertain = range(_index_of_end(certificates, pointers, certain_ms), len(pointers))
        report = certificates.reports.get(region.id)
        spans = [] if certain_ms < 0 or report is None else held_by_files(report, certificates.terms, pointers)
        found.append(Blocked(region, spans, uncertain))
    return found


def worth_compacting(
    certificates: Certificates, pointers: Sequence[int], decided: int, asked: Collection[str], count_max: int
) -> list[Region]:
    """At most so many regions, whose files hold back the oldest of the due writers; not those that were asked already.

    A compaction frees the writers that the newest snapshot is decided on, and no others.
    """
    if decided < certificates.terms.restored:
        return []
    freed = pointers[: bisect_right(pointers, decided)]
    held = [
        (each.by_files[0].start, -sum(map(len, each.by_files)), each.region.id, each.region)
        for each in blocked(certificates, freed)
        if each.by_files and each.region.id not in asked
    ]
    return [region for *_, region in sorted(held)[:count_max]]


def _index_of_end(certificates: Certificates, pointers: Sequence[int], time_ms: int) -> int:
    """How many of the ascending writers have ended before a time; later ones end later."""
    return bisect_left(pointers, time_ms, key=certificates.terms.end_ms)
