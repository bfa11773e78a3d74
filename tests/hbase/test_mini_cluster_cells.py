"""What flushes and compactions leave of the versions of cells, read from the HFiles; and when tombstones go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JJavaError

from basalt_engine.cells.keys import CellKey
from basalt_engine.snapshot import POINTERS_PER_MS
from tests.hbase.bare_installation import HOUR_MS, SECOND_MS, BareInstallation, now_ms, pointer_at
from tests.hbase.mini_cluster import MiniCluster, wait_until

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

KEYS = BareInstallation.table_keys()
MINUTE_MS = 60 * SECOND_MS


class Writers:
    """Writers a minute apart, by letter; `a` began so long ago."""

    def __init__(self, age_ms: int = HOUR_MS) -> None:
        self._first_ms = now_ms() - age_ms

    def __getitem__(self, letter: str) -> int:
        return pointer_at(self._first_ms + (ord(letter) - ord("a")) * MINUTE_MS)

    def letter(self, pointer: int) -> str:
        return next(letter for letter in "abcdefghij" if self[letter] == pointer)


def put(
    installation: BareInstallation, writers: Writers, *versions: str, generation: int = 1, table: str = "stock"
) -> None:
    """Write versions: `x:a` is row x by writer a, `x:a!` its tombstone."""
    keys = BareInstallation.table_keys(table, generation)
    rows: dict[bytes, dict[bytes, bytes | None]] = {}
    for version in versions:
        row, _, name = version.partition(":")
        key = keys.cell_key(row.encode(), b"c", writers[name[0]])
        rows[key] = {b"c": b"\0" if name.endswith("!") else b"\1value"}
    installation.write(rows, "cell")


def stored(installation: BareInstallation, writers: Writers) -> list[str]:
    """The versions in the files, in key order, in the same words."""
    found = []
    for key, columns in sorted(installation.stored("cell").items()):
        cell = CellKey.decode(key)
        found.append(f"{cell.row.decode()}:{writers.letter(cell.write_pointer)}" + "!" * (columns[b"c"] == b"\0"))
    return found


@pytest.fixture
def installation(mini_cluster: MiniCluster, request: pytest.FixtureRequest) -> Iterator[BareInstallation]:
    with BareInstallation(mini_cluster, f"cells{len(request.node.name)}") as made:
        made.put_table()
        yield made
    assert mini_cluster.aborted() == []


MIXED = (
    "failed:a", "failed:b", "failed:d",  # d fails: b is the newest of the others
    "held:a", "held:b", "held:g", "held:h",  # the oldest reader sees b, for g and h are above the bound
    "gone:a", "gone:c!",  # a tombstone may hide what is elsewhere
    "plain:a", "plain:b", "plain:c",
    "alone:c",
)  # fmt: skip
LEFT = [
    "alone:c", "failed:b", "gone:c!", "held:h", "held:g", "held:b", "plain:c",
]  # fmt: skip


def tell(installation: BareInstallation, writers: Writers, **given: int) -> None:
    """Writer d failed; readers at the bound of e are open."""
    snapshot = installation.snapshot(invalid=[writers["d"]], upper_bound=writers["e"], **given)
    installation.put_snapshot(snapshot)
    installation.wait_until_known(snapshot, ("cell",))


def test_a_flush_leaves_what_some_reader_may_need(installation: BareInstallation) -> None:
    writers = Writers()
    put(installation, writers, *MIXED)
    tell(installation, writers)
    installation.flush("cell")
    assert stored(installation, writers) == LEFT


@pytest.mark.parametrize("major", [False, True], ids=["minor", "major"])
def test_a_compaction_leaves_what_some_reader_may_need(installation: BareInstallation, major: bool) -> None:
    """The versions come to lie in three files while no snapshot is known."""
    writers = Writers()
    for part in (MIXED[::3], MIXED[1::3], MIXED[2::3]):
        put(installation, writers, *part)
        installation.flush("cell")
    assert len(stored(installation, writers)) == len(MIXED)
    tell(installation, writers)
    installation.compact("cell", major=major)
    assert stored(installation, writers) == LEFT


def test_old_generations_go_and_tables_that_nobody_knows_stay(installation: BareInstallation) -> None:
    writers = Writers()
    installation.put_table(generation=2)
    installation.put_table("deleted", generation=-1)
    put(installation, writers, "old:a", generation=1)
    put(installation, writers, "present:b", "present:a", generation=2)
    put(installation, writers, "deleted:a", table="deleted")
    put(installation, writers, "unknown:d", "unknown:a", table="unknown")
    tell(installation, writers)
    installation.flush("cell")
    assert sorted(stored(installation, writers)) == ["present:b", "unknown:a", "unknown:d"]
    reports = installation.wait_for_reports(("cell",)).values()
    held = [file for report in reports for file in report.files if file.decided == writers["d"] - 1]
    assert held, "the file that has a failed writer's version does not vouch for it"


def test_a_topic_of_the_same_name_says_nothing_of_a_table(installation: BareInstallation) -> None:
    writers = Writers()
    installation.put_topic("unknown", generation=9)
    put(installation, writers, "unknown:b", "unknown:a", table="unknown")
    tell(installation, writers)
    installation.flush("cell")
    assert stored(installation, writers) == ["unknown:b", "unknown:a"]


def reopen(installation: BareInstallation) -> None:
    """Let the regions open anew: they know of nothing old that they let in themselves."""
    installation.cluster.disable(installation.table("cell"))
    installation.cluster.enable(installation.table("cell"))


def major(installation: BareInstallation) -> None:
    installation.wait_until_known(tables=("cell",))
    installation.compact("cell", major=True)


def test_a_tombstone_goes_once_nothing_older_can_be_outside_the_files(installation: BareInstallation) -> None:
    writers = Writers(age_ms=4 * HOUR_MS)
    put(installation, writers, "x:a", "y:a")
    installation.flush("cell")
    put(installation, writers, "x:c!", "y:c!", "y:e")
    installation.flush("cell")
    tell(installation, writers, lifetime_ms_max=HOUR_MS)
    major(installation)  # the region has let in writers that were four hours old: such may still be in memory
    assert stored(installation, writers) == ["x:c!", "y:e"]
    reopen(installation)
    installation.compact("cell", major=False)
    assert stored(installation, writers) == ["x:c!", "y:e"]
    major(installation)
    assert stored(installation, writers) == ["y:e"]


def test_a_tombstone_waits_for_what_is_in_memory(installation: BareInstallation) -> None:
    writers = Writers(age_ms=4 * HOUR_MS)
    put(installation, writers, "x:a", "x:c!")
    installation.flush("cell")
    reopen(installation)
    young = KEYS.cell_key(b"z", b"c", pointer_at(now_ms()))
    installation.write({young: {b"c": b"\1"}}, "cell")
    at_ms = now_ms() + SECOND_MS  # what is let in from now on is no reason to keep the tombstone
    snapshot = installation.snapshot(lifetime_ms_max=at_ms - writers["c"] // POINTERS_PER_MS - HOUR_MS)
    installation.put_snapshot(snapshot)
    installation.wait_until_known(snapshot, ("cell",))
    wait_until(lambda: now_ms() > at_ms + SECOND_MS, "the tombstone may go but for that")
    installation.compact("cell", major=True)
    assert "x:c!" in stored(installation, writers)
    installation.flush("cell")
    installation.compact("cell", major=True)
    assert list(installation.stored("cell")) == [young]


def test_a_version_of_a_writer_that_is_over_is_refused(installation: BareInstallation) -> None:
    writers = Writers(age_ms=HOUR_MS)
    tell(installation, writers, lifetime_ms_max=HOUR_MS - 3 * MINUTE_MS)
    put(installation, writers, "x:f")
    for version in ("x:a", "x:a!", "x:d"):
        with pytest.raises(Py4JJavaError, match="basalt refused"):
            put(installation, writers, version)
    installation.flush("cell")
    assert stored(installation, writers) == ["x:f"]


def test_a_region_that_was_split_and_moved_goes_on_with_what_its_parent_had(installation: BareInstallation) -> None:
    writers = Writers()
    put(installation, writers, *MIXED)
    installation.flush("cell")
    tell(installation, writers)
    cluster, table = installation.cluster, installation.table("cell")
    region = next(each for each in cluster.regions(table) if each.start <= KEYS.start < (each.stop or b"\xff"))
    cluster.split(table, region, KEYS.row_start(b"gone"))
    wait_until(lambda: len(cluster.regions(table)) == 3, "the region is split")
    for daughter in cluster.regions(table):
        cluster.move(daughter)
    installation.wait_until_known(tables=("cell",))
    installation.compact("cell", major=True)
    assert stored(installation, writers) == LEFT
