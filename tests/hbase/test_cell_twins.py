"""The fate of a cell's versions, in Python and in Java: both get the same runs of versions, and must say the same.

What Hypothesis draws is a small world: tables, a snapshot, bounds, and versions of few cells by few writers, so that they
meet at every edge; all of a world's versions go in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from basalt_engine.cells.keys import CellKey
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import GENERATION_MAX
from basalt_engine.retention import CellRun, Horizon, judge_cells
from basalt_engine.snapshot import InvalidList
from basalt_engine.stores.hbase.regions import RegionSnapshot
from tests.hbase.frames import Frames, framed
from tests.vector_lines import lines

pytestmark = pytest.mark.jvm

relaxed = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))

LONG_MAX = (1 << 63) - 1
PREFIXES = [b"shop:~stock:", b"shop:~stocks:", b"shop:~s:"]
NAMES = st.sampled_from([b"a", b"a\x00", b"a\x00\x01", b"a\xff", b"ab", b"\x00", b"\xff"])
WRITERS = st.integers(1, 9) | st.sampled_from([LONG_MAX - 1, LONG_MAX])
BOUNDS = st.integers(0, 10) | st.just(LONG_MAX)
CELLS = st.builds(CellKey, st.just(3), st.sampled_from(PREFIXES), st.integers(1, 3), NAMES, NAMES, st.just(1))
DAMAGE = st.sampled_from(
    [
        lambda key: key + b"\x00",
        lambda key: key[:-1],
        lambda key: key.replace(b"~", b""),
        lambda key: key[:-8] + b"\x7f" + b"\xff" * 7,  # writer 0
        lambda key: key[:-8] + b"\x80" + key[-7:],
        lambda key: key[:18] + b"\x00\x01" + key[18:],
        lambda key: key[:7],
    ]
)
CONTENTS = st.sampled_from([b"\x01", b"\x01value", b"\x00", b"\x00"])
ODD_CONTENTS = CONTENTS | st.sampled_from([None, b"", b"\x02", b"\x00\x00", b"\xff"])
Rows = dict[bytes, bytes | None]


@st.composite
def runs(draw: st.DrawFn, *, odd: bool = False) -> Rows:
    """Versions of a few cells by a few writers."""
    rows: Rows = {}
    for cell in draw(st.lists(CELLS, min_size=1, max_size=6)):
        for writer in draw(st.lists(WRITERS, min_size=1, max_size=9)):
            key = cell._replace(write_pointer=writer).encode()
            if odd and draw(st.booleans()):
                key = draw(DAMAGE)(key)
            rows[key] = draw(ODD_CONTENTS if odd else CONTENTS)
    return rows


TABLES = st.dictionaries(
    st.sampled_from(PREFIXES), st.integers(1, 3) | st.integers(-3, -1) | st.just(GENERATION_MAX), max_size=3
)
SNAPSHOTS = st.builds(
    lambda invalid, bound: RegionSnapshot(1, 1, 1, LONG_MAX, LONG_MAX, LONG_MAX, bound, 1, (), tuple(sorted(invalid))),
    st.sets(WRITERS, max_size=4),
    BOUNDS,
)


def key_of(row: bytes, writer: int, *, generation: int = 2, prefix: bytes = PREFIXES[0]) -> bytes:
    return CellKey(3, prefix, generation, row, b"a", writer).encode()


# With the bounds below, versions of every verdict: what is drawn may leave one of them out.
EVERY_KIND: Rows = {
    **{key_of(b"a", writer): b"\x01" for writer in (9, 5, 4, 3)},  # live, live at the bound, superseded, invalid
    key_of(b"b", 2): b"\x00",  # deleted
    key_of(b"b", 1): b"\x01",
    key_of(b"a", 1, generation=1): b"\x01",
    key_of(b"a", 1, prefix=PREFIXES[1]): b"\x01",  # of a table that nobody knows
    key_of(b"a", 1)[:7]: b"\x01",
}
EVERY_SNAPSHOT = RegionSnapshot(1, 1, 1, LONG_MAX, LONG_MAX, LONG_MAX, 6, 1, (), (3,))
EVERY_PURGE_BOUND = 8


def tombstone(content: bytes | None) -> bool | None:
    """What column `c` says, as `CellTable` reads it."""
    if content == b"\x00":
        return True
    return False if content is not None and content[:1] == b"\x01" else None


def verdicts_of_java(
    twins: Any,
    rows: Sequence[tuple[bytes, bytes | None]],
    tables: Mapping[bytes, int],
    snapshot: RegionSnapshot | None,
    purge_bound: int,
) -> list[str]:
    parts = [framed(None if snapshot is None else snapshot.encode()), struct.pack(">qi", purge_bound, len(tables))]
    parts += [framed(prefix) + struct.pack(">i", generation) for prefix, generation in tables.items()]
    parts.append(struct.pack(">i", len(rows)))
    for key, content in rows:
        name, value = (b"x", b"1") if content is None else (b"c", content)
        parts.append(framed(key) + struct.pack(">i", 1) + framed(name) + framed(value))
    names = list(twins.verdicts())
    return [names[number] for number in twins.judgeCells(b"".join(parts))]


def assert_alike(
    twins: Any,
    rows: Mapping[bytes, bytes | None],
    tables: Mapping[bytes, int],
    snapshot: RegionSnapshot | None,
    purge_bound: int,
    piece: int,
) -> None:
    """Python judges in pieces, and carries on what it has learnt; Java has the whole run."""
    ordered = sorted(rows.items())
    horizon = None
    if snapshot is not None:
        horizon = Horizon(InvalidList(snapshot.invalid), snapshot.visibility_upper_bound, purge_bound)
    expected, run = [], CellRun()
    for start in range(0, len(ordered), piece):
        part = [(key, tombstone(content)) for key, content in ordered[start : start + piece]]
        found, run = judge_cells(part, tables, horizon, run)
        expected += [f"{verdict.fate.value}: {verdict.reason}" for verdict in found]
    assert verdicts_of_java(twins, ordered, tables, snapshot, purge_bound) == expected
    seen.update(expected)


seen: set[str] = set()


@relaxed
@given(runs(), TABLES, SNAPSHOTS, BOUNDS, st.integers(1, 7))
def test_both_judge_versions_alike(twins, rows, tables, snapshot, purge_bound, piece) -> None:
    assert_alike(twins, rows, {**tables, PREFIXES[0]: tables.get(PREFIXES[0], 2)}, snapshot, purge_bound, piece)


@relaxed
@example(rows=EVERY_KIND, tables={PREFIXES[0]: 2}, snapshot=EVERY_SNAPSHOT, purge_bound=EVERY_PURGE_BOUND, piece=3)
@example(rows=EVERY_KIND, tables={PREFIXES[0]: 2}, snapshot=None, purge_bound=EVERY_PURGE_BOUND, piece=3)
@given(runs(odd=True), TABLES, st.none() | SNAPSHOTS, BOUNDS, st.integers(1, 7))
def test_both_judge_damaged_versions_alike(twins, rows, tables, snapshot, purge_bound, piece) -> None:
    assert_alike(twins, rows, tables, snapshot, purge_bound, piece)


def test_every_verdict_came_up(request: pytest.FixtureRequest) -> None:
    """Of the tests above; when one of them was left out there is nothing to tell."""
    names = {item.name for item in request.session.items}
    if not {"test_both_judge_versions_alike", "test_both_judge_damaged_versions_alike"} <= names:
        pytest.skip("the tests that compare did not run")
    assert {verdict.partition(": ")[2] for verdict in seen} == {
        "unreadable", "unknown table", "old generation", "no snapshot", "invalid", "live", "superseded", "deleted",
    }  # fmt: skip


def keys_of_java(twins: Any, keys: Sequence[bytes]) -> list[CellKey | None]:
    frames = Frames(twins.cellKeys(b"".join(map(framed, keys))))
    found: list[CellKey | None] = []
    for key in keys:
        if not frames.flag():
            found.append(None)
            continue
        salt, prefix, generation = frames.number(), frames.value(), frames.number()
        row, column, pointer, again = frames.value(), frames.value(), frames.number(), frames.value()
        assert again == key
        found.append(CellKey(salt, prefix or b"", generation, row or b"", column or b"", pointer))
    return found


def keys_of_python(keys: Sequence[bytes]) -> list[CellKey | None]:
    found: list[CellKey | None] = []
    for key in keys:
        try:
            found.append(CellKey.decode(key))
        except CorruptionError:
            found.append(None)
    return found


@relaxed
@given(
    st.lists(
        st.builds(
            CellKey, st.integers(0, 255), st.sampled_from(PREFIXES), st.integers(0, (1 << 32) - 1),
            st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9), st.integers(1, LONG_MAX),
        ).map(CellKey.encode)
        | runs(odd=True).map(lambda rows: next(iter(rows)))
        | st.binary(max_size=40).map(lambda end: b"\x00shop:~stock:" + end)
        | st.lists(st.sampled_from([b"\x00", b"\x01", b"\xff", b"a"]), max_size=12).map(
            lambda parts: b"\x00shop:~stock:\x00\x00\x00\x01" + b"".join(parts) + b"\x00\x01" + b"\x7f" + bytes(7)
        ),
        max_size=60,
    )
)  # fmt: skip
def test_both_read_the_same_keys_of_cells_and_refuse_the_same(twins, keys: list[bytes]) -> None:
    assert keys_of_java(twins, keys) == keys_of_python(keys)


def test_both_read_the_keys_of_the_vectors(twins: Any) -> None:
    keys = [data for name in ("cells", "cells-corrupt") for _, data, _ in lines(name)]
    found = keys_of_java(twins, keys)
    assert found == keys_of_python(keys)
    assert None in found
