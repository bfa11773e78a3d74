"""A region of the cell table on paper: whatever is flushed, compacted, sent twice, late, or stale, readers see what they should.

The rule is the product's (`judge_cells`); how a region server finds the purge bound is written out here once more, and each of
its conditions is left out in turn: then some world must go wrong, or the condition would be for nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from basalt_engine.cells.keys import CellKey
from basalt_engine.retention import CellRun, Fate, Horizon, judge_cells
from basalt_engine.snapshot import InvalidList

WORLDS, STEPS = 300, 400
LIFETIME = 6  # in the units of this world's clock, which is also what write pointers count
PREFIX = b"shop:~stock:"
ROWS = (b"a",)
Content = bytes | None  # None: a tombstone


class Version(NamedTuple):
    """What a row holds; of two puts of one row the one with the higher timestamp counts, in whatever order they come."""

    timestamp: int
    content: Content


class Put(NamedTuple):
    """A put that was let in at a time."""

    key: bytes
    version: Version
    admitted: int


Rows = dict[bytes, Version]


class Reader(NamedTuple):
    """An open transaction: what was committed when it began, and the bound that it asks for."""

    committed: frozenset[int]
    bound: int


class Known(NamedTuple):
    """A published snapshot."""

    invalid: tuple[int, ...]
    bound: int


class World:
    """Transactions, one region, and what its server knows."""

    def __init__(self, seed: int, left_out: str = "") -> None:
        self.random = random.Random(seed)
        self.left_out = left_out
        self.now = 100
        self.open: dict[int, Reader] = {}
        self.committed: frozenset[int] = frozenset()
        self.invalid: set[int] = set()
        self.truth: Rows = {}  # every version that was ever written
        self.published = self.known = Known((), 0)
        self.in_flight: list[Put] = []
        self.memory: dict[bytes, Put] = {}
        self.files: dict[int, Rows] = {}
        self.file_number = 0
        self.longest_age = 0
        self.timestamp = 0
        self.selected: tuple[bool, list[int]] | None = None

    # Transactions.

    def begin(self) -> None:
        self.now += 1
        if len(self.open) < 4:
            self.open[self.now] = Reader(self.committed, min([self.now, *self.open]) - 1)

    def write(self) -> None:
        """Nobody keeps two writers from one cell here, and the older one may be the later."""
        if self.open:
            writer = self.random.choice(sorted(self.open))
            self.send(writer, self.random.choice([None, None, b"%d" % self.now]))

    def send(self, writer: int, content: Content) -> None:
        key = CellKey(0, PREFIX, 1, self.random.choice(ROWS), b"c", writer).encode()
        self.timestamp += 1
        version = Version(self.timestamp, content)
        if self.admit(Put(key, version, self.now), writer):
            self.remember(self.in_flight.pop())  # it is answered
            self.truth[key] = version

    def commit(self) -> None:
        if self.open:
            writer = self.random.choice(sorted(self.open))
            del self.open[writer]
            self.committed |= {writer}

    def fail(self) -> None:
        if self.open:
            writer = self.random.choice(sorted(self.open))
            del self.open[writer]
            self.invalid.add(writer)

    def advance(self) -> None:
        self.now += self.random.choice([1, 2, 5])
        for writer in [writer for writer in self.open if self.now - writer >= LIFETIME - 1]:
            del self.open[writer]
            self.invalid.add(writer)

    # The region.

    def admit(self, put: Put, writer: int) -> bool:
        age = self.now - writer
        if "guard" not in self.left_out and (writer in self.known.invalid or age >= LIFETIME):
            return False
        self.longest_age = max(self.longest_age, age)
        self.in_flight.append(put)
        return True

    def apply(self) -> None:
        while self.in_flight:
            self.remember(self.in_flight.pop())

    def remember(self, put: Put) -> None:
        before = self.memory.get(put.key, put)
        self.memory[put.key] = Put(put.key, newer(put.version, before.version), min(put.admitted, before.admitted))

    def send_again(self) -> None:
        """A put whose answer was lost is sent once more, and hangs on its way into memory."""
        if self.truth:
            key = self.random.choice(sorted(self.truth))
            self.admit(Put(key, self.truth[key], self.now), CellKey.decode(key).write_pointer)

    def refresh(self) -> None:
        """What the leader publishes is read by the region server some time later."""
        if self.random.random() < 0.5:
            self.known = self.published
        bounds = [reader.bound for reader in self.open.values()]
        self.published = Known(tuple(sorted(self.invalid)), min([self.now, *bounds, *(w - 1 for w in self.open)]))

    def filtered(self, rows: Rows, purge_bound: int) -> Rows:
        horizon = Horizon(InvalidList(self.known.invalid), self.known.bound, purge_bound)
        keys = sorted(rows)
        verdicts, _ = judge_cells([(key, rows[key].content is None) for key in keys], {PREFIX: 1}, horizon, CellRun())
        return {key: rows[key] for key, verdict in zip(keys, verdicts, strict=True) if verdict.fate is Fate.KEEP}

    def flush(self) -> None:
        if self.memory:
            self.add_file(self.filtered({key: put.version for key, put in self.memory.items()}, 0))
            self.memory.clear()

    def add_file(self, rows: Rows) -> None:
        self.file_number += 1
        self.files[self.file_number] = rows

    def select(self) -> None:
        """A compaction waits in a queue between the choice of its files and its start."""
        if self.files and self.selected is None:
            everything = self.random.random() < 0.6
            count = len(self.files) if everything else self.random.randint(1, len(self.files))
            chosen = self.random.sample(sorted(self.files), count)
            self.selected = (count == len(self.files), chosen)

    def compact(self) -> None:
        if self.selected is None:
            return
        all_files, chosen = self.selected
        rows = merged(self.files[number] for number in chosen)
        bound = self.purge_bound(chosen) if all_files or "files" in self.left_out else 0
        left = self.filtered(rows, bound)
        for number in chosen:
            del self.files[number]
        self.add_file(left)
        self.selected = None

    def purge_bound(self, chosen: list[int]) -> int:
        times = [self.now]
        if "in flight" not in self.left_out:
            times += [put.admitted for put in self.in_flight]
        if "memory" not in self.left_out:
            times += [put.admitted for put in self.memory.values()]
        if "files" not in self.left_out and set(self.files) != set(chosen):
            return 0
        age = 0 if "age" in self.left_out else max(LIFETIME, self.longest_age)
        return max(0, min(times) - age)

    def reopen(self) -> None:
        """What is in the log goes to a file; what is under way is lost, for it was not answered."""
        self.in_flight.clear()
        self.selected = None
        self.flush()
        self.longest_age = 0

    # What readers see.

    def check(self) -> None:
        stored = merged([*self.files.values(), {key: put.version for key, put in self.memory.items()}])
        views = {writer: reader.committed | {writer} for writer, reader in self.open.items()}
        views[0] = self.committed
        for reader, writers in views.items():
            for row in ROWS:
                expected, found = seen(self.truth, row, writers), seen(stored, row, writers)
                assert found == expected, f"reader {reader} of row {row!r}: {found!r} instead of {expected!r}"

    def run(self) -> None:
        actions: list[Callable[[], None]] = [
            self.begin, self.write, self.write, self.commit, self.fail, self.advance, self.apply, self.send_again,
            self.refresh, self.refresh, self.flush, self.select, self.compact, self.reopen,
        ]  # fmt: skip
        weights = [3, 3, 3, 5, 1, 3, 1, 5, 4, 4, 1.5, 3, 3, 0.5]
        for action in self.random.choices(actions, weights, k=STEPS):
            action()
            self.check()


def newer(first: Version, second: Version) -> Version:
    return first if first.timestamp >= second.timestamp else second


def merged(parts: Iterable[Rows]) -> Rows:
    """The rows that lie in several places, as a scan of all of them shows them."""
    rows: Rows = {}
    for part in parts:
        for key, version in part.items():
            rows[key] = newer(version, rows.get(key, version))
    return rows


def seen(rows: Rows, row: bytes, writers: frozenset[int]) -> Content:
    """The newest version by one of these writers."""
    for key in sorted(rows):
        cell = CellKey.decode(key)
        if cell.row == row and cell.write_pointer in writers:
            return rows[key].content
    return None


def test_readers_see_what_they_should_whatever_a_region_does_to_its_files() -> None:
    for seed in range(WORLDS):
        try:
            World(seed).run()
        except AssertionError as wrong:
            raise AssertionError(f"world {seed}: {wrong}") from None


def test_tombstones_do_go() -> None:
    """Or the test above would tell little."""
    gone = 0
    for seed in range(20):
        world = World(seed)
        world.run()
        stored = {key for rows in world.files.values() for key in rows} | world.memory.keys()
        gone += sum(version.content is None and key not in stored for key, version in world.truth.items())
    assert gone > 100


@pytest.mark.parametrize("condition", ["files", "in flight", "memory", "age", "guard"])
def test_each_condition_is_needed(condition: str) -> None:
    def goes_wrong(seed: int) -> bool:
        try:
            World(seed, condition).run()
        except AssertionError:
            return True
        return False

    assert any(goes_wrong(seed) for seed in range(5 * WORLDS))
