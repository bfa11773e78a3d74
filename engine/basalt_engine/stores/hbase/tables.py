"""The layout of Basalt's tables in HBase: names, family options, split keys, attributes. Pure values and comparisons.

`layouts` are the tables that an installation must have; `differences` tells how an existing table differs from its
layout. The words are those of the HBase shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from basalt_engine.errors import InputError
from basalt_engine.keys import BUCKETS_MAX
from basalt_engine.stores.hbase.thrift2 import TableDescriptor
from basalt_engine.table import TABLE_NAMES

FAMILY = "m"
# Rows are written once, and what is old is decided by generations and time to live, not by versions. Retention is the
# coprocessor's business: HBase's own TTL would drop cells by their timestamps, which mean nothing here.
FAMILY_OPTIONS: Mapping[str, str] = {
    "VERSIONS": "1",
    "MIN_VERSIONS": "0",
    "KEEP_DELETED_CELLS": "FALSE",
    "BLOOMFILTER": "ROW",
    "TTL": "2147483647",  # FOREVER, as HBase stores it
    "IN_MEMORY_COMPACTION": "NONE",  # with it a memstore does not tell how old its oldest cell is, and nothing is pruned
}
SALTED = frozenset({"message", "payload", "cell"})  # the tables whose keys begin with a salt

FLUSH_INTERVAL = "hbase.regionserver.optionalcacheflushinterval"
# An invalid writer's id can be pruned only when no memstore may hold its rows; HBase by itself flushes once an hour.
FLUSH_INTERVAL_MS_DEFAULT = 10 * 60 * 1_000

COPROCESSOR = "coprocessor$1"
COPROCESSOR_PRIORITY = 1001  # HBase's for users' coprocessors; system ones come before
COPROCESSOR_CLASSES: Mapping[str, str] = {
    "message": "io.basalt.hbase.observer.MessageTableObserver",
    "payload": "io.basalt.hbase.observer.PayloadTableObserver",
    "cell": "io.basalt.hbase.observer.CellTableObserver",
    "metadata": "io.basalt.hbase.observer.MetadataTableObserver",
}
COPROCESSOR_CLASS_DEFAULT = "io.basalt.hbase.observer.FencedTableObserver"
REFRESH_INTERVAL = "basalt.refresh.interval.ms"
REPORT_INTERVAL = "basalt.report.interval.ms"

_COPROCESSOR_KEY = re.compile(r"coprocessor\$[0-9]+", re.IGNORECASE)
# HBase's own pattern for the value, HConstants.CP_HTD_ATTR_VALUE_PATTERN.
_COPROCESSOR = re.compile(r"(?P<jar>[^|]*)\|(?P<class_name>[^|]+)\|\s*(?P<priority>[0-9]*)\s*(?:\|(?P<options>.*))?")
# HBase cuts the attribute at bars and its options at commas, and a path with neither scheme nor host is anybody's.
_JAR = re.compile(r"[a-z][a-z0-9+.-]*:/[^|\s]+")


@dataclass(frozen=True, slots=True)
class Coprocessor:
    """The value of a coprocessor attribute: which class, from which jar, with which options."""

    jar: str
    class_name: str
    options: tuple[tuple[str, str], ...] = ()
    priority: int = COPROCESSOR_PRIORITY

    @classmethod
    def decode(cls, text: str) -> Coprocessor | None:
        """The coprocessor that an attribute's value means; None when HBase would not take it for one either."""
        match = _COPROCESSOR.fullmatch(text)
        if match is None:
            return None
        pairs = (pair.partition("=") for pair in (match["options"] or "").split(",") if pair)
        return cls(
            match["jar"].strip(),
            match["class_name"].strip(),
            tuple((name.strip(), value.strip()) for name, _, value in pairs),
            int(match["priority"] or COPROCESSOR_PRIORITY),
        )

    def encode(self) -> str:
        """`jar|class|priority|name=value,…`"""
        options = ",".join(f"{name}={value}" for name, value in self.options)
        return f"{self.jar}|{self.class_name}|{self.priority}|{options}"


class CoprocessorJar(NamedTuple):
    """The jar that an installation runs on every table, and how its threads are set."""

    path: str
    options: tuple[tuple[str, str], ...] = ()

    def of(self, table: str) -> Coprocessor:
        """The coprocessor for the table of this name (one of `TABLE_NAMES`)."""
        return Coprocessor(self.path, COPROCESSOR_CLASSES.get(table, COPROCESSOR_CLASS_DEFAULT), self.options)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The name, splits and attributes that one of Basalt's tables must have."""

    name: str  # in HBase
    table: str  # in the storage SPI
    splits: tuple[bytes, ...]
    flush_interval_ms: int
    coprocessor: Coprocessor | None

    @property
    def attributes(self) -> dict[str, str]:
        found = {FLUSH_INTERVAL: str(self.flush_interval_ms)}
        if self.coprocessor is not None:
            found[COPROCESSOR] = self.coprocessor.encode()
        return found

    def descriptor(self) -> TableDescriptor:
        return TableDescriptor(self.name, {FAMILY: FAMILY_OPTIONS}, self.attributes)


def layouts(
    prefix: str, buckets: int, *, flush_interval_ms: int = FLUSH_INTERVAL_MS_DEFAULT, jar: CoprocessorJar | None = None
) -> list[TableLayout]:
    """The tables of an installation, in the order in which they are made."""
    assert 1 <= buckets <= BUCKETS_MAX, buckets
    splits = tuple(bytes([salt]) for salt in range(1, buckets))
    return [
        TableLayout(
            table_name(prefix, table),
            table,
            splits if table in SALTED else (),
            flush_interval_ms,
            None if jar is None else jar.of(table),
        )
        for table in TABLE_NAMES
    ]


def table_name(prefix: str, table: str) -> str:
    return f"{prefix}.{table}"


def checked_jar(path: str) -> str:
    """The path, if region servers can load a jar from it; `InputError` if not."""
    if not _JAR.fullmatch(path) or "," in path:
        raise InputError(
            f"{path!r} is no path of a jar that every region server sees",
            field="jar",
            hint="name it with its scheme, such as hdfs:///basalt/basalt-coprocessor.jar, or file:/opt/basalt/... "
            "where every region server and master has it there",
        )
    return path


def coprocessors(attributes: Mapping[str, str]) -> dict[str, Coprocessor]:
    """The coprocessors of a table, by the attribute that each is in."""
    found = {key: Coprocessor.decode(value) for key, value in attributes.items() if _COPROCESSOR_KEY.fullmatch(key)}
    return {key: value for key, value in found.items() if value is not None}


def own_coprocessor(attributes: Mapping[str, str]) -> tuple[str, Coprocessor] | None:
    """Basalt's coprocessor and its attribute, among those of a table; others may be there beside it."""
    classes = {*COPROCESSOR_CLASSES.values(), COPROCESSOR_CLASS_DEFAULT}
    return next(((key, found) for key, found in coprocessors(attributes).items() if found.class_name in classes), None)


def with_coprocessor(attributes: Mapping[str, str], coprocessor: Coprocessor) -> dict[str, str]:
    """The attributes with this as Basalt's coprocessor: in the place of an older one, or in the first one free."""
    present = own_coprocessor(attributes)
    taken = {key.lower() for key in attributes}
    numbers = range(1, len(taken) + 2)
    key = present[0] if present else next(f"coprocessor${n}" for n in numbers if f"coprocessor${n}" not in taken)
    return {**attributes, key: coprocessor.encode()}


def differences(layout: TableLayout, actual: TableDescriptor) -> list[str]:
    """The ways in which an existing table breaks this layout, without those that an installation can mend."""
    lines = []
    if set(actual.families) != {FAMILY}:
        lines.append(f"has families {', '.join(sorted(actual.families)) or 'none'} instead of {FAMILY}")
    options = actual.families.get(FAMILY, {})
    lines += [
        f"has {name} {options.get(name, 'unset')} instead of {value} in family {FAMILY}"
        for name, value in FAMILY_OPTIONS.items()
        if FAMILY in actual.families and options.get(name, "").upper() != value
    ]
    return lines


def salts_of(starts: Iterable[bytes]) -> int:
    """The number of salt buckets that regions with these start keys were cut for: one more than the last salt."""
    return 1 + max((start[0] for start in starts if len(start) == 1), default=0)


def missing_splits(layout: TableLayout, starts: Iterable[bytes]) -> Sequence[bytes]:
    """Those of the layout's split keys at which no region starts: regions were merged over them."""
    present = set(starts)
    return [split for split in layout.splits if split not in present]
