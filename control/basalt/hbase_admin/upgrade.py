"""A new version of the coprocessor, table after table, while the tables stay open.

HBase reopens a table's regions one after the other when its attributes change, and answers when all are open again. Its
region servers keep a loaded jar under its path: the same path with other bytes in it would go on running the old ones.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from basalt.errors import ConflictError
from basalt.hbase_admin.gateway import SystemRows, jar_of, read_reports
from basalt.hbase_admin.plan import FoundTable, Step
from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.tables import (
    SALTED,
    CoprocessorJar,
    TableLayout,
    own_coprocessor,
    table_name,
    with_coprocessor,
)
from basalt_engine.stores.hbase.thrift2 import Thrift2

POLL_MS = 500  # between two looks at the reports


class Upgraded(NamedTuple):
    """The regions' reports after an upgrade, counted."""

    regions: int
    reported: int  # of them, since their table was altered
    jars: frozenset[int]  # checksums of the jars that these run

    @property
    def complete(self) -> bool:
        """True when every region has reported that it runs one and the same jar."""
        return self.reported == self.regions and len(self.jars) == 1


def plan_upgrade(layouts: Sequence[TableLayout], found: Mapping[str, FoundTable], jar: CoprocessorJar) -> list[Step]:
    """One step for each table, in the layouts' order; tables that run the jar already are kept, which ends a run that was
    cut short. `ConflictError` when a table is missing, or there is nothing to upgrade.
    """
    missing = [layout.name for layout in layouts if layout.name not in found]
    if missing:
        raise ConflictError(
            f"table {missing[0]} is not there" + (f", nor are {len(missing) - 1} more" if missing[1:] else ""),
            hint="`basalt hbase install` makes what is missing",
        )
    steps = [_step(layout, found[layout.name], jar) for layout in layouts]
    if all(step.action == "keep" for step in steps):
        raise ConflictError(
            f"every table runs the coprocessor from {jar.path} already",
            hint="region servers keep a jar that they have loaded under its path; put the new one beside it under another name",
        )
    return steps


def _step(layout: TableLayout, present: FoundTable, jar: CoprocessorJar) -> Step:
    before = present.descriptor.attributes
    own = own_coprocessor(before)
    kept = own[1].options if own is not None and not jar.options else jar.options
    after = with_coprocessor(before, jar._replace(options=kept).of(layout.table))
    descriptor = present.descriptor._replace(attributes=after)
    if own is not None and own[1].jar == jar.path:
        return Step(layout.name, "keep", f"runs {jar.path} already", present.descriptor)
    old = "no coprocessor" if own is None else own[1].jar
    return Step(layout.name, "alter", f"{old} -> {jar.path}", descriptor)


class Upgrade:
    """Carries the steps out and waits for the regions to say that they run the new jar."""

    def __init__(self, gateway: Thrift2, rows: SystemRows, clock: Clock) -> None:
        self._gateway = gateway
        self._rows = rows
        self._clock = clock
        self._pause = threading.Event()

    def carry_out(self, step: Step) -> None:
        """Give a table the new jar, and return when all its regions were reopened with it."""
        if step.action == "alter":
            self._gateway.modify(step.descriptor)

    def wait(self, prefix: str, wait_ms: int) -> Upgraded:
        """Wait until every region that reports has done so anew; how far that came, at the latest after `wait_ms`.

        The regions are open with the new jar when this begins, so a report that is not as it was comes from it, whatever
        the clocks say.
        """
        tables = [table_name(prefix, table) for table in sorted(SALTED)]
        regions = {region.id for table in tables for region in self._gateway.regions(table)}
        before = {name: report.report_ms for name, report in read_reports(self._rows).by_region.items()}
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            now = read_reports(self._rows).by_region
            fresh = [now[name] for name in regions if name in now and now[name].report_ms != before.get(name)]
            upgraded = Upgraded(len(regions), len(fresh), frozenset(jar_of(report) for report in fresh))
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if upgraded.complete or left_ms <= 0:
                return upgraded
            self._pause.wait(min(POLL_MS, left_ms) / 1_000)
