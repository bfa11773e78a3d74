"""Makes and completes Basalt's tables through a Thrift 2 gateway."""

from __future__ import annotations

from collections.abc import Sequence

from basalt.errors import ConflictError
from basalt.hbase_admin.gateway import SystemRows
from basalt.hbase_admin.plan import FoundTable, Step, Wanted, buckets_conflict, plan
from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.tables import (
    FLUSH_INTERVAL_MS_DEFAULT,
    CoprocessorJar,
    TableLayout,
    layouts,
    own_coprocessor,
    table_name,
)
from basalt_engine.stores.hbase.thrift2 import TableDescriptor, Thrift2
from basalt_engine.system import FACTS, InstallationFacts
from basalt_engine.table import TABLE_NAMES


class Installer:
    """The tables of one prefix. Nothing is kept between calls: each looks at HBase anew."""

    def __init__(self, gateway: Thrift2, prefix: str, clock: Clock) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._clock = clock
        self._system = SystemRows(gateway, prefix)

    def found(self) -> dict[str, FoundTable]:
        """Basalt's tables that are there, by their names in HBase, in the order in which they are made."""
        there = set(self._gateway.table_names(f"{self._prefix}."))
        names = [table_name(self._prefix, table) for table in TABLE_NAMES]
        return {name: self._look(name) for name in names if name in there}

    def plan(self, wanted: Wanted) -> list[Step]:
        """The steps that an installation would take now, the row of facts last; `ConflictError` when it must not do anything."""
        found = self.found()
        installed = self.buckets(found)
        steps = plan(self._layouts(wanted, found), found, wanted, installed)
        descriptor = TableDescriptor(self._system.table, {}, {})
        if installed is None:
            return [
                *steps,
                Step(self._system.table, "write", f"install:facts, {wanted.buckets} salt buckets", descriptor),
            ]
        return [*steps, Step(self._system.table, "keep", f"install:facts, {installed} salt buckets", descriptor)]

    def carry_out(self, steps: Sequence[Step], wanted: Wanted) -> None:
        """Do what `plan` said. What is cut short is completed by the next run."""
        for step in steps:
            self._do(step, wanted)

    def _look(self, name: str) -> FoundTable:
        descriptor = self._gateway.descriptor(name)
        if descriptor is None:
            raise ConflictError(f"table {name} was dropped meanwhile", hint="start again")
        starts = tuple(region.start for region in self._gateway.regions(name))
        return FoundTable(descriptor, self._gateway.table_enabled(name), starts)

    def _layouts(self, wanted: Wanted, found: dict[str, FoundTable]) -> list[TableLayout]:
        """New tables get the jar that the others have, when none is named: that completes an installation."""
        jar = wanted.jar or jar_in_use(found)
        flush_interval_ms = wanted.flush_interval_ms or FLUSH_INTERVAL_MS_DEFAULT
        return layouts(self._prefix, wanted.buckets, flush_interval_ms=flush_interval_ms, jar=jar)

    def buckets(self, found: dict[str, FoundTable]) -> int | None:
        """The salt buckets that the installation was made with, where that is written down."""
        table = found.get(self._system.table)
        if table is None or not table.enabled:
            return None
        facts = self._system.record(FACTS)
        return None if facts is None else facts.buckets

    def _do(self, step: Step, wanted: Wanted) -> None:
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


def jar_in_use(found: dict[str, FoundTable]) -> CoprocessorJar | None:
    """The jar and options that the tables which have a coprocessor agree on; None when none has one, or they differ."""
    own = [own_coprocessor(table.descriptor.attributes) for table in found.values()]
    jars = {CoprocessorJar(each[1].jar, each[1].options) for each in own if each is not None}
    return jars.pop() if len(jars) == 1 else None
