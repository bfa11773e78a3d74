"""Retention of cells drops only what no reader can get: not those that read now, nor any that comes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.cells.keys import CellKey, TableKeys
from basalt_engine.cells.table import CellVersion, is_tombstone
from basalt_engine.keys import table_prefix
from basalt_engine.retention import DELETED, SUPERSEDED, CellRun, Fate, Horizon, judge_cells
from basalt_engine.snapshot import InvalidList, TransactionSnapshot
from tests.vector_lines import cases
from tests.visible_cells import visible

relaxed = settings(deadline=None)

STOCK = TableKeys(table_prefix("shop", "stock"), 2, 16)
GENERATIONS = {STOCK.prefix: 2}
WRITERS = st.integers(1, 20)
NAMES = st.sampled_from([b"a", b"a\0", b"b"])


class History(NamedTuple):
    """Versions in the order of their keys, and who of their writers has failed or is open, below and above the bound."""

    versions: list[CellVersion]
    bound: int
    invalid: tuple[int, ...]
    readers: list[TransactionSnapshot]

    @property
    def rows(self) -> list[tuple[bytes, bool]]:
        return [(STOCK.cell_key(*version[:3]), version.value is None) for version in self.versions]

    def left(self, dropped: set[bytes]) -> list[CellVersion]:
        """The versions that are left without these keys."""
        return [version for version in self.versions if STOCK.cell_key(*version[:3]) not in dropped]

    def views(self, versions: list[CellVersion]) -> list[list[CellVersion]]:
        """What each reader gets."""
        return [list(visible(versions, reader)) for reader in self.readers]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A bound as the transaction manager defines it, and readers as it leaves them possible: each sees all up to the bound
    but who is invalid, and knows of those above it what it may: visible, open, not begun, or invalid."""
    versions = draw(st.dictionaries(st.tuples(NAMES, NAMES, WRITERS), st.none() | st.just(b"x"), max_size=30))
    bound = draw(st.integers(0, 20))
    invalid = draw(st.frozensets(WRITERS, max_size=6))
    readers = []
    for _ in range(draw(st.integers(1, 4))):
        above = st.frozensets(st.integers(bound + 1, 25), max_size=4)
        later, concurrent = draw(above), draw(above)
        hidden = {pointer for pointer in invalid if pointer <= bound} | (invalid - draw(above)) | later
        unknown = {pointer for pointer in invalid if pointer not in hidden}  # it failed after the reader began
        own = draw(st.frozensets(st.integers(bound + 1, 25), max_size=2)) - invalid - later
        readers.append(
            TransactionSnapshot(
                read_pointer=draw(st.integers(bound, 25)),
                in_progress=tuple(sorted(concurrent | unknown)),
                invalid=InvalidList(tuple(sorted(hidden))),
                own=own,
            )
        )
    ordered = sorted((CellVersion(*key, value) for key, value in versions.items()), key=lambda v: (v[0], v[1], -v[2]))
    return History(ordered, bound, tuple(sorted(invalid)), readers)


@relaxed
@given(histories(), st.integers(0, 20), st.data())
def test_every_reader_sees_the_same_whatever_was_dropped_so_far(
    history: History, purge_bound: int, data: st.DataObject
) -> None:
    horizon = Horizon(InvalidList(history.invalid), history.bound, purge_bound)
    verdicts, _ = judge_cells(history.rows, GENERATIONS, horizon, CellRun())
    dropped = [
        (key, verdict) for (key, _), verdict in zip(history.rows, verdicts, strict=True) if verdict.fate is Fate.DROP
    ]
    before = history.views(history.versions)
    older = {key for key, verdict in dropped if verdict is not DELETED}
    tombstones = {key for key, verdict in dropped if verdict is DELETED}
    some_older = {key for key in sorted(older) if data.draw(st.booleans())}
    some_tombstones = {key for key in sorted(tombstones) if data.draw(st.booleans())}
    # Tombstones go last; until then and after that, nobody can tell.
    assert history.views(history.left(some_older)) == before
    assert history.views(history.left(older | some_tombstones)) == before
    assert history.views(history.left(older | tombstones)) == before


@relaxed
@given(histories())
def test_nothing_is_left_of_what_nobody_gets(history: History) -> None:
    horizon = Horizon(InvalidList(history.invalid), history.bound, history.bound)
    verdicts, _ = judge_cells(history.rows, GENERATIONS, horizon, CellRun())
    kept = [version for version, verdict in zip(history.versions, verdicts, strict=True) if verdict.fate is Fate.KEEP]
    decided = [version for version in kept if version.write_pointer <= history.bound]
    assert all(version.value is not None and version.write_pointer not in history.invalid for version in decided)
    assert len({version[:2] for version in decided}) == len(decided)


@relaxed
@given(histories(), st.integers(0, 20), st.integers(1, 5))
def test_rows_in_batches_get_the_verdicts_of_one_batch(history: History, purge_bound: int, size: int) -> None:
    horizon = Horizon(InvalidList(history.invalid), history.bound, purge_bound)
    whole, _ = judge_cells(history.rows, GENERATIONS, horizon, CellRun())
    run, parts = CellRun(), []
    for start in range(0, len(history.rows), size):
        verdicts, run = judge_cells(history.rows[start : start + size], GENERATIONS, horizon, run)
        parts += verdicts
    assert parts == whole


@relaxed
@given(histories(), st.integers(0, 20))
def test_an_older_snapshot_drops_no_more(history: History, earlier: int) -> None:
    bound = min(earlier, history.bound)
    older = Horizon(InvalidList(history.invalid), bound, bound)
    newer = Horizon(InvalidList(history.invalid), history.bound, history.bound)
    first, _ = judge_cells(history.rows, GENERATIONS, older, CellRun())
    second, _ = judge_cells(history.rows, GENERATIONS, newer, CellRun())
    assert all(late.fate is Fate.DROP for early, late in zip(first, second, strict=True) if early.fate is Fate.DROP)


@relaxed
@given(histories())
def test_who_misses_newer_versions_drops_no_more_of_the_others(history: History) -> None:
    """As a compaction of some of a region's files does."""
    horizon = Horizon(InvalidList(history.invalid), history.bound, 0)
    whole, _ = judge_cells(history.rows, GENERATIONS, horizon, CellRun())
    of_all = dict(zip(history.rows, whole, strict=True))
    some = history.rows[::2]
    verdicts, _ = judge_cells(some, GENERATIONS, horizon, CellRun())
    dropped = [row for row, verdict in zip(some, verdicts, strict=True) if verdict.fate is Fate.DROP]
    assert all(of_all[row].fate is Fate.DROP for row in dropped)
    assert DELETED not in verdicts


@pytest.mark.parametrize(("data", "meaning"), cases("cell-retention"))
def test_the_vectors_are_judged(data: bytes, meaning: dict[str, Any]) -> None:
    given_snapshot = meaning["snapshot"]
    horizon = None
    if given_snapshot is not None:
        invalid = InvalidList(tuple(given_snapshot["invalid"]))
        horizon = Horizon(invalid, given_snapshot["upperBound"], given_snapshot["purgeBound"])
    generations = {prefix.encode(): generation for prefix, generation in meaning["tables"].items()}
    contents = [{} if row["c"] is None else {b"c": bytes.fromhex(row["c"])} for row in meaning["rows"]]
    rows = [
        (bytes.fromhex(row["key"]), is_tombstone(columns))
        for row, columns in zip(meaning["rows"], contents, strict=True)
    ]
    verdicts, _ = judge_cells(rows, generations, horizon, CellRun())
    assert rows[0][0] == data
    wanted = [(row["fate"], row["reason"]) for row in meaning["rows"]]
    assert [(verdict.fate.value, verdict.reason) for verdict in verdicts] == wanted


def test_what_was_learnt_of_a_cell_is_carried_on() -> None:
    horizon = Horizon(InvalidList(), 10, 0)
    keys = [STOCK.cell_key(b"r", b"c", writer) for writer in (9, 8)]
    _, run = judge_cells([(keys[0], False)], GENERATIONS, horizon, CellRun())
    assert run == (CellKey.decode(keys[0]).encode()[:-8], True)
    assert judge_cells([(keys[1], True)], GENERATIONS, horizon, run)[0] == [SUPERSEDED]
