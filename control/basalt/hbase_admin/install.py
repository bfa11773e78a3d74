"""Makes, completes, upgrades and removes Basalt's tables of one prefix, with the coprocessor's jar in each, through a gateway."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from basalt.cluster.lease import LEASE
from basalt.errors import ConflictError
from basalt.hbase_admin.gateway import SystemRows, read_reports
from basalt.hbase_admin.plan import FoundTable, TableChange, Wanted, buckets_conflict, plan
from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.tables import (
    FLUSH_INTERVAL_MS_DEFAULT,
    SALTED,
    CoprocessorJar,
    layouts,
    own_coprocessor,
    table_name,
)
from basalt_engine.stores.hbase.thrift2 import TableDescriptor, Thrift2
from basalt_engine.system import FACTS, InstallationFacts
from basalt_engine.table import TABLE_NAMES

POLL_MS = 500  # between two looks at the reports


class LostTable(NamedTuple):
    """A table that goes."""

    name: str
    regions: int


class UpgradeProgress(NamedTuple):
    """The regions' reports after an upgrade, counted."""

    regions: int
    reported: int  # of them, since their table was altered
    jars: frozenset[int]  # checksums of the jars that these run

    @property
    def complete(self) -> bool:
        """True when every region has reported that it runs one and the same jar."""
        return self.reported == self.regions and len(self.jars) == 1


class Installation:
    """The tables of one prefix. Nothing is kept between calls: each looks at HBase anew, and completes what was cut short."""

    def __init__(self, gateway: Thrift2, prefix: str, clock: Clock) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._clock = clock
        self._system = SystemRows(gateway, prefix)

    def names(self) -> list[str]:
        """Basalt's tables that are there, in the order in which they are made, and dropped: the system table last."""
        there = set(self._gateway.table_names(f"{self._prefix}."))
        return [name for table in TABLE_NAMES if (name := table_name(self._prefix, table)) in there]

    def existing_tables(self) -> dict[str, FoundTable]:
        """The tables that are there as they are."""
        return {name: self._existing_table(name) for name in self.names()}

    def _existing_table(self, name: str) -> FoundTable:
        descriptor = self._gateway.descriptor(name)
        if descriptor is None:
            raise ConflictError(f"table {name} was dropped meanwhile", hint="start again")
        starts = tuple(region.start for region in self._gateway.regions(name))
        return FoundTable(descriptor, self._gateway.table_enabled(name), starts)

    def buckets(self, found: Mapping[str, FoundTable]) -> int | None:
        """The salt buckets that the installation was made with, where that is written down."""
        table = found.get(self._system.table)
        facts = self._system.record(FACTS) if table is not None and table.enabled else None
        return None if facts is None else facts.buckets

    def plan(self, wanted: Wanted) -> list[TableChange]:
        """The steps that an installation would take now, the row of facts last; `ConflictError` when it must not do anything."""
        existing = self.existing_tables()
        installed = self.buckets(existing)
        # New tables get the jar that the others have, when none is named: that completes an installation.
        made = layouts(
            self._prefix,
            wanted.buckets,
            flush_interval_ms=wanted.flush_interval_ms or FLUSH_INTERVAL_MS_DEFAULT,
            jar=wanted.jar or jar_in_use(existing),
        )
        steps = plan(made, existing, wanted, installed)
        facts = f"install:facts, {wanted.buckets if installed is None else installed} salt buckets"
        descriptor = TableDescriptor(self._system.table, {}, {})
        return [*steps, TableChange(self._system.table, "write" if installed is None else "keep", facts, descriptor)]

    def carry_out(self, steps: Sequence[TableChange], wanted: Wanted) -> None:
        """Carry out the steps of `plan`. The next run completes one that was cut short."""
        for step in steps:
            if step.action == "create":
                self._gateway.create(step.descriptor, step.splits)
            elif step.action == "alter":
                self._gateway.modify(step.descriptor)
            elif step.action == "write":
                self._write_facts(wanted.buckets)
            if step.action in ("alter", "enable") and not self._gateway.table_enabled(step.table):
                self._gateway.enable(step.table)

    def _write_facts(self, buckets: int) -> None:
        if self._system.insert(FACTS, InstallationFacts.new(buckets, self._clock)):
            return
        present = self._system.record(FACTS)
        if present is not None and present.buckets != buckets:
            raise ConflictError(
                buckets_conflict(buckets, present.buckets), hint="somebody else installed at the same time"
            )

    def upgrade(self, steps: Sequence[TableChange]) -> None:
        """Give the tables the new jar, one after the other, while they stay open.

        HBase reopens a table's regions one after the other when its attributes change, and answers when all are open again.
        """
        for step in steps:
            if step.action == "alter":
                self._gateway.modify(step.descriptor)

    def wait_for_reports(self, wait_ms: int) -> UpgradeProgress:
        """Wait until every region that reports has done so anew; how far that came, at the latest after `wait_ms`.

        The regions are open with the new jar when this begins, so a report that is not as it was comes from it, whatever
        the clocks say.
        """
        tables = [table_name(self._prefix, table) for table in sorted(SALTED)]
        regions = {region.id for table in tables for region in self._gateway.regions(table)}
        before = {name: report.report_ms for name, report in read_reports(self._system).by_region.items()}
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        pause = threading.Event()
        while True:
            now = read_reports(self._system).by_region
            fresh = [now[name] for name in regions if name in now and now[name].report_ms != before.get(name)]
            progress = UpgradeProgress(len(regions), len(fresh), frozenset(report.jar_crc32c for report in fresh))
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if progress.complete or left_ms <= 0:
                return progress
            pause.wait(min(POLL_MS, left_ms) / 1_000)

    def lost_tables(self) -> list[LostTable]:
        """The tables that an uninstallation drops, in the order in which they go: cut short, the next run completes it."""
        return [LostTable(name, len(self._gateway.regions(name))) for name in self.names()]

    def topics(self) -> int:
        """Count the topics that go with the tables, deleted ones included."""
        table = table_name(self._prefix, "metadata")
        return sum(1 for _ in self._gateway.scan(table, b"", b"")) if self._serves(table) else 0

    def check_nobody_leads(self) -> None:
        """`ConflictError` while a server holds the lease: it would go on writing to tables that are going."""
        lease = self._system.record(LEASE) if self._serves(self._system.table) else None
        if lease is not None and not lease.is_released and lease.expire_ms > self._clock.now_ms():
            raise ConflictError(
                f"{lease.holder} at {lease.url} leads on these tables",
                hint="stop every server of this installation first; a server that was killed is forgotten in seconds",
            )

    def drop(self, name: str) -> None:
        """Disable and drop one of the tables."""
        if self._gateway.table_enabled(name):
            self._gateway.disable(name)
        self._gateway.drop(name)

    def _serves(self, table: str) -> bool:
        return self._gateway.table_exists(table) and self._gateway.table_enabled(table)


def jar_in_use(found: Mapping[str, FoundTable]) -> CoprocessorJar | None:
    """The jar and options that the tables which have a coprocessor agree on; None when none has one, or they differ."""
    own = [own_coprocessor(table.descriptor.attributes) for table in found.values()]
    jars = {CoprocessorJar(each[1].jar, each[1].options) for each in own if each is not None}
    return jars.pop() if len(jars) == 1 else None
