"""The plan of an installation or an upgrade, as a value: the steps from the tables that are there to those that should be.

Pure, so that a dry run tells exactly what a run would do, and a second run finds nothing left. `create_line` and
`alter_line` write the same as lines for `hbase shell`, for operators whose Thrift gateways may not make tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from basalt.errors import ConflictError
from basalt_engine.stores.hbase.tables import (
    FAMILY,
    FAMILY_OPTIONS,
    FLUSH_INTERVAL,
    CoprocessorJar,
    TableLayout,
    differences,
    missing_splits,
    own_coprocessor,
    salts_of,
    with_coprocessor,
)
from basalt_engine.stores.hbase.thrift2 import TableDescriptor

Action = Literal["create", "alter", "enable", "keep", "write"]
_SHELL_NUMBERS = {"VERSIONS", "MIN_VERSIONS"}  # numbers to the shell; the rest is text
_FOREVER = "2147483647"


class FoundTable(NamedTuple):
    """A table of Basalt's name as it is in HBase now."""

    descriptor: TableDescriptor
    enabled: bool
    starts: tuple[bytes, ...]  # of its regions


@dataclass(frozen=True, slots=True)
class Wanted:
    """The operator's wishes; None leaves an attribute as it is, or gives a new table the default."""

    buckets: int
    flush_interval_ms: int | None = None
    jar: CoprocessorJar | None = None


class TableChange(NamedTuple):
    """One thing to do to one table, and why; `descriptor` is what the table will be."""

    table: str
    action: Action
    detail: str
    descriptor: TableDescriptor
    splits: tuple[bytes, ...] = ()

    def changed(self, before: TableDescriptor) -> dict[str, str]:
        """The attributes that the table gets or has changed."""
        return {
            name: value for name, value in self.descriptor.attributes.items() if before.attributes.get(name) != value
        }

    @property
    def lacks_coprocessor(self) -> bool:
        """True when this makes a table without one."""
        return self.action == "create" and own_coprocessor(self.descriptor.attributes) is None


def plan(
    layouts: Sequence[TableLayout], existing: Mapping[str, FoundTable], wanted: Wanted, buckets_installed: int | None
) -> list[TableChange]:
    """The steps from what is there to what is wanted, none of which loses anything.

    `ConflictError` when a table is there that is not of this layout: it tells every difference of every table.
    """
    conflicts = _bucket_conflicts(layouts, existing, wanted.buckets, buckets_installed)
    for layout in layouts:
        present = existing.get(layout.name)
        if present is not None:
            conflicts += [f"{layout.name} {each}" for each in differences(layout, present.descriptor)]
            conflicts += _jar_conflicts(layout, present, wanted.jar)
    if conflicts:
        raise ConflictError(
            "the tables that are there are not as asked for: " + "; ".join(conflicts),
            hint="choose another store.hbase.prefix or settings that fit; nothing was changed",
        )
    return [_step(layout, existing.get(layout.name), wanted) for layout in layouts]


def buckets_conflict(asked: int, installed: int) -> str:
    """The message for salt buckets that are not those of the installation."""
    return f"the installation has {installed} salt buckets, store.hbase.buckets asks for {asked}"


def _bucket_conflicts(
    layouts: Sequence[TableLayout], existing: Mapping[str, FoundTable], buckets: int, installed: int | None
) -> list[str]:
    if installed is not None:
        # Regions may have been merged since; the number that was written down counts.
        return [] if installed == buckets else [buckets_conflict(buckets, installed)]
    conflicts = []
    for layout in layouts:
        present = existing.get(layout.name)
        if present is not None and layout.splits and salts_of(present.starts) > buckets:
            conflicts.append(f"{layout.name} is split for {salts_of(present.starts)} salt buckets instead of {buckets}")
        elif present is not None and missing_splits(layout, present.starts):
            conflicts.append(
                f"{layout.name} has {len(present.starts)} regions, none of which begins at "
                + ", ".join(split.hex() for split in missing_splits(layout, present.starts)[:3])
                + f", as {buckets} salt buckets need"
            )
    return conflicts


def _jar_conflicts(layout: TableLayout, present: FoundTable, jar: CoprocessorJar | None) -> list[str]:
    own = own_coprocessor(present.descriptor.attributes)
    if jar is None or own is None or own[1].jar == jar.path:
        return []
    return [
        f"{layout.name} runs the coprocessor from {own[1].jar} (`basalt hbase upgrade --jar {jar.path}` changes it)"
    ]


def _step(layout: TableLayout, present: FoundTable | None, wanted: Wanted) -> TableChange:
    if present is None:
        detail = f"{count(len(layout.splits) + 1, 'region')}, {_running(layout.attributes)}"
        return TableChange(layout.name, "create", detail, layout.descriptor(), layout.splits)
    before = present.descriptor.attributes
    after = dict(before)
    if wanted.flush_interval_ms is not None or FLUSH_INTERVAL not in before:
        after[FLUSH_INTERVAL] = str(layout.flush_interval_ms)
    if wanted.jar is not None:
        after = with_coprocessor(after, _jar_kept(wanted.jar, before).of(layout.table))
    descriptor = present.descriptor._replace(attributes=after)
    changes = [
        f"{name}: {before.get(name, 'unset')} -> {after[name]}" for name in after if after[name] != before.get(name)
    ]
    if changes:
        return TableChange(layout.name, "alter", "; ".join(changes), descriptor)
    if not present.enabled:
        return TableChange(layout.name, "enable", "is disabled", descriptor)
    return TableChange(layout.name, "keep", f"as it should be, {_running(after)}", descriptor)


def plan_upgrade(
    layouts: Sequence[TableLayout], existing: Mapping[str, FoundTable], jar: CoprocessorJar
) -> list[TableChange]:
    """One step for each table, in the layouts' order; tables that run the jar already are kept, which ends a run that was
    cut short. `ConflictError` when a table is missing, or there is nothing to upgrade.
    """
    missing = [layout.name for layout in layouts if layout.name not in existing]
    if missing:
        raise ConflictError(
            f"table {missing[0]} is not there" + (f", nor are {len(missing) - 1} more" if missing[1:] else ""),
            hint="`basalt hbase install` makes what is missing",
        )
    steps = [_upgrade_step(layout, existing[layout.name], jar) for layout in layouts]
    if all(step.action == "keep" for step in steps):
        raise ConflictError(
            f"every table runs the coprocessor from {jar.path} already",
            hint="region servers keep a jar that they have loaded under its path; put the new one beside it under another name",
        )
    return steps


def _upgrade_step(layout: TableLayout, present: FoundTable, jar: CoprocessorJar) -> TableChange:
    before = present.descriptor.attributes
    own = own_coprocessor(before)
    if own is not None and own[1].jar == jar.path:
        return TableChange(layout.name, "keep", f"runs {jar.path} already", present.descriptor)
    after = with_coprocessor(before, _jar_kept(jar, before).of(layout.table))
    old = "no coprocessor" if own is None else own[1].jar
    return TableChange(layout.name, "alter", f"{old} -> {jar.path}", present.descriptor._replace(attributes=after))


def _jar_kept(jar: CoprocessorJar, attributes: Mapping[str, str]) -> CoprocessorJar:
    """The jar with the options that it has on the table already, unless new ones are asked for."""
    own = own_coprocessor(attributes)
    return jar if own is None or jar.options else jar._replace(options=own[1].options)


def _running(attributes: Mapping[str, str]) -> str:
    own = own_coprocessor(attributes)
    return "no coprocessor" if own is None else f"coprocessor {own[1].class_name.rpartition('.')[2]} from {own[1].jar}"


def count(number: int, noun: str) -> str:
    """A number and what it counts: 1 region, 16 regions."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def create_lines(layouts: Sequence[TableLayout]) -> list[str]:
    return [create_line(layout.name, layout.attributes, layout.splits) for layout in layouts]


def create_line(table: str, attributes: Mapping[str, str], splits: Sequence[bytes]) -> str:
    """The `create` of one table with Basalt's family."""
    options = ", ".join(f"{name} => {_option(name, value)}" for name, value in FAMILY_OPTIONS.items())
    parts = [f"METADATA => {{{_pairs(attributes)}}}"]
    if splits:
        parts.insert(0, f"SPLITS => [{', '.join(split_key(split) for split in splits)}]")
    return f"create {quoted(table)}, {{NAME => {quoted(FAMILY)}, {options}}}, {{{', '.join(parts)}}}"


def alter_line(table: str, attributes: Mapping[str, str]) -> str:
    """An `alter` that sets these attributes of a table and leaves the others.

    METADATA, and not the shell's own `'coprocessor' => …`, which would add a second coprocessor to the first.
    """
    return f"alter {quoted(table)}, {{METADATA => {{{_pairs(attributes)}}}}}"


def quoted(text: str) -> str:
    """A Ruby string that means exactly `text`: in single quotes Ruby leaves backslashes and dollars alone."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def split_key(key: bytes) -> str:
    """A Ruby string that the shell reads as these bytes.

    The shell itself reads `\\x0A` as a byte, with upper-case digits only; in double quotes Ruby would make a character of
    it, and of one over 0x7F two bytes.
    """
    return "'" + "".join(f"\\x{byte:02X}" for byte in key) + "'"


def _pairs(attributes: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} => {quoted(value)}" for name, value in attributes.items())


def _option(name: str, value: str) -> str:
    if name in _SHELL_NUMBERS:
        return value
    return quoted("FOREVER" if value == _FOREVER else value)
