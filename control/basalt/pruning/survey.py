"""One look at everything that pruning decides by: the invalid list, the terms, and the certificates of the store.

The invalid list is read first. What is found out afterwards about a writer on it stays true, for such a writer writes
nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from basalt.errors import CorruptionError
from basalt.messaging.log.stored_log import GARBAGE
from basalt.pruning.regions import Cluster, Region
from basalt.pruning.rule import CLOCK_SKEW_MS, Cause, Certificates, EmbeddedCertificate, Hold, Notes, Terms
from basalt.pruning.state import STATE, PruneState
from basalt.runtime.store_calls import StoreCalls
from basalt.tables import garbage_cells
from basalt.transactions.manager import ExternalWriter, ManagerSnapshot
from basalt_engine.clock import Clock
from basalt_engine.regions.report import KIND, RegionReport
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

log = logging.getLogger("basalt.pruning")


class Certificate(Protocol):
    """A judge of writers, with regions or without."""

    @property
    def terms(self) -> Terms:
        """The numbers that it compares with."""
        ...

    @property
    def fault(self) -> str | None:
        """Why nothing at all can be said now."""
        ...

    def may_go(self, pointer: int) -> bool:
        """True when no row of this invalid writer can be anywhere."""
        ...

    def cause(self, pointer: int) -> Cause | None:
        """The first thing in the way of this writer."""
        ...

    def holds(self, pointer: int) -> list[Hold]:
        """All that is in the way of this writer."""
        ...


class Survey(NamedTuple):
    """The findings of one look. `regions` is None where the store has none."""

    moment: ManagerSnapshot
    state: PruneState
    certificate: Certificate
    regions: Certificates | None

    @property
    def invalid(self) -> tuple[int, ...]:
        """The invalid list."""
        return self.moment.view.invalid.pointers

    @property
    def terms(self) -> Terms:
        """The numbers that the rule compares with."""
        return self.certificate.terms


class Surveyor:
    """Takes surveys of one store."""

    def __init__(
        self, store: Store, clock: Clock, cluster: Cluster | None, lifetime_ms_max: int, forget_outside: bool
    ) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._cluster = cluster
        self._lifetime_ms = lifetime_ms_max
        self._forget_outside = forget_outside

    async def survey(self, moment: ManagerSnapshot) -> Survey:
        """Survey the writers in the invalid list of this snapshot of the manager."""
        if self._cluster is None:
            return await self._call.long(self._survey_notes, moment)
        return await self._call.long(self._survey_cluster, moment, self._cluster)

    def _survey_notes(self, moment: ManagerSnapshot) -> Survey:
        state = STATE.get(self._system) or PruneState()
        return Survey(moment, state, EmbeddedCertificate(read_notes(self._system), self._terms(state)), None)

    def _survey_cluster(self, moment: ManagerSnapshot, cluster: Cluster) -> Survey:
        before = cluster.regions()
        reports = self.reports()
        regions = settled(before, cluster.regions())
        state = (STATE.get(self._system) or PruneState()).when_all_know(oldest_known(regions, reports))
        certificates = Certificates(regions, reports, self._terms(state))
        return Survey(moment, state, certificates, certificates)

    def reports(self) -> dict[str, RegionReport]:
        """All reports that can be read, by region; one that cannot is as good as none."""
        found = {}
        for name, body in self._system.scan(KIND):
            try:
                found[name] = RegionReport.decode(body)
            except CorruptionError as error:
                log.warning("the report of region %s is not read: %s", name, error.message)
        return found

    def _terms(self, state: PruneState) -> Terms:
        lifetime_ms = max(state.lifetime_ms, self._lifetime_ms)
        held = frozenset[int]() if self._forget_outside else ExternalWriter.all(self._system)
        return Terms(self._clock.now_ms(), lifetime_ms, state.restored, CLOCK_SKEW_MS, state.first_published_ms, held)


def read_notes(system: SystemTable) -> Notes:
    """All notes that there are; to be read after the invalid list that is asked about."""
    found: dict[int, list[str]] = {}
    for name, garbage in GARBAGE.scan(system):
        for pointer in garbage.write_pointers:
            found.setdefault(pointer, []).append(name)
    for note in garbage_cells.notes(system):
        for pointer in note.write_pointers:
            found.setdefault(pointer, []).append(note.name)
    return found


def settled(before: Sequence[Region], after: Sequence[Region]) -> list[Region]:
    """The regions as they are now; one that was elsewhere a moment ago has no server that could vouch for it."""
    known = {region.id: region for region in before}
    return [region if known.get(region.id) == region else region._replace(server="") for region in after]


def oldest_known(regions: Sequence[Region], reports: dict[str, RegionReport]) -> tuple[int, int]:
    """The oldest snapshot that a region server still goes by; (-1, -1) when that is not known of each."""
    found = (-1, -1)
    for number, region in enumerate(regions):
        report = reports.get(region.id)
        known = (-1, -1)
        if report is not None and region.server and report.server == region.server:
            known = (report.snapshot_epoch, report.snapshot_sequence)
        found = known if number == 0 else min(found, known)
    return found
