"""What regions report of their files, against what lies in the files: the ground that pruning stands on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

import pytest
from py4j.protocol import Py4JJavaError

from basalt.pruning.rule import Cause, Certificates, Terms
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, UNKNOWN_ORIGIN, Region, RegionReport, StoreFile
from tests.hbase.bare_installation import BUCKETS, HOUR_MS, SECOND_MS, BareInstallation, now_ms, pointer_at
from tests.hbase.mini_cluster import MiniCluster, wait_until

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

LIFETIME_MS = 2 * SECOND_MS  # of writers that a test outlives
SKEW_MS = 200  # all clocks of the mini-cluster are one
TABLES = ("message", "payload", "cell")


@pytest.fixture
def installation(mini_cluster: MiniCluster, request: pytest.FixtureRequest) -> Iterator[BareInstallation]:
    with BareInstallation(
        mini_cluster, f"cert{request.node.name.rpartition('[')[2].rstrip(']')[:4].strip('_')}"
    ) as made:
        made.put_topic("orders")
        yield made
    assert mini_cluster.aborted() == []


def row(sequence: int, writer: int | None = None, bucket: int = 0) -> dict[bytes, dict[bytes, bytes]]:
    """A message row in a bucket."""
    key = BareInstallation.keys().message_key(now_ms(), sequence)
    columns = {b"p": b"%d" % sequence}
    if writer is not None:
        columns[b"t"] = writer.to_bytes(8, "big")
    return {bytes([bucket]) + key[1:]: columns}


def certificates(
    installation: BareInstallation, lifetime_ms: int = LIFETIME_MS, at_ms: int | None = None
) -> Certificates:
    """The rule over what the regions report now, as it is now or was at a time."""
    reports = installation.wait_for_reports(TABLES)
    listed = [
        Region(table, region.encoded_name, region.name, region.start, region.stop, region.server)
        for table in TABLES
        for region in installation.regions(table)
    ]
    return Certificates(listed, reports, Terms(at_ms or now_ms(), lifetime_ms, skew_ms=SKEW_MS))


def fail(installation: BareInstallation, writer: int) -> tuple[int, int]:
    """Tell the regions that a writer has failed; its lifetime, which is over a second from now, and when it is over for every clock.

    However long the test took up to here, what it wrote before was written within that.
    """
    begun_ms = writer // POINTERS_PER_MS
    lifetime_ms = now_ms() + SECOND_MS - begun_ms
    failed = BareInstallation.snapshot(sequence=2, invalid=[writer], lifetime_ms_max=lifetime_ms)
    installation.put_snapshot(failed)
    installation.wait_until_known(failed, TABLES)
    return lifetime_ms, begun_ms + lifetime_ms + SKEW_MS


def files_of(reports: dict[str, RegionReport]) -> dict[str, StoreFile]:
    return {file.name: file for report in reports.values() for file in report.files}


def writers_in_files(installation: BareInstallation) -> dict[str, set[int]]:
    """The writers of the rows in each file."""
    found: dict[str, set[int]] = {}
    for cell in installation.cluster.cells(installation.table("message")):
        if cell.column == b"t":
            found.setdefault(cell.file, set()).add(int.from_bytes(cell.value, "big", signed=True))
    return found


def test_a_writer_may_be_forgotten_after_flushes_and_a_minor_compaction_and_never_before(
    installation: BareInstallation,
) -> None:
    writer = pointer_at(now_ms())
    running = BareInstallation.snapshot(sequence=1, in_progress=[writer])
    installation.put_snapshot(running)
    installation.wait_until_known(running, TABLES)
    installation.write(row(1, writer) | row(2, bucket=1))
    installation.flush()
    holding = next(name for name, writers in writers_in_files(installation).items() if writer in writers)
    installation.write(row(3) | row(4, bucket=1))
    lifetime_ms, over_ms = fail(installation, writer)
    assert certificates(installation, lifetime_ms, at_ms=over_ms).cause(writer) is Cause.LIFETIME
    wait_until(lambda: now_ms() > over_ms, "the writer's lifetime is over")
    assert certificates(installation, lifetime_ms).cause(writer) is Cause.MEMSTORE
    installation.flush()
    rule = certificates(installation, lifetime_ms)
    assert rule.cause(writer) is Cause.FILE
    assert holding in {hold.file.name for hold in rule.holds(writer)}
    assert writer in writers_in_files(installation)[holding]
    installation.compact(major=False)
    assert certificates(installation, lifetime_ms).may_go(writer)
    assert not any(writers_in_files(installation).values())
    with pytest.raises(Py4JJavaError, match="basalt refused"):
        installation.write(row(5, writer))


def test_a_row_that_was_dropped_at_its_flush_holds_nothing_back(installation: BareInstallation) -> None:
    writer = pointer_at(now_ms())
    running = BareInstallation.snapshot(sequence=1, in_progress=[writer])
    installation.put_snapshot(running)
    installation.wait_until_known(running, TABLES)
    installation.write(row(1, writer) | row(2))
    lifetime_ms, over_ms = fail(installation, writer)
    wait_until(lambda: now_ms() > over_ms, "the writer's lifetime is over")
    assert certificates(installation, lifetime_ms).cause(writer) is Cause.MEMSTORE
    installation.flush()
    assert certificates(installation, lifetime_ms).may_go(writer)
    assert not any(writers_in_files(installation).values())


def test_the_row_of_a_failed_writer_that_had_to_be_kept_holds_its_file_back(installation: BareInstallation) -> None:
    """Its topic is unknown at the flush; the snapshot's word for the file would be wrong."""
    writer = pointer_at(now_ms())
    key, columns = next(iter(row(1, writer).items()))
    installation.write({key.replace(b"orders", b"nobody"): columns})
    failed = BareInstallation.snapshot(invalid=[writer], lifetime_ms_max=LIFETIME_MS)
    installation.put_snapshot(failed)
    installation.wait_until_known(failed, TABLES)
    installation.flush()
    over_ms = writer // POINTERS_PER_MS + LIFETIME_MS + SKEW_MS
    wait_until(lambda: now_ms() > over_ms, "the writer's lifetime is over")
    assert certificates(installation).cause(writer) is Cause.FILE
    installation.put_topic("nobody")
    installation.wait_until_known(failed, TABLES)
    installation.compact(major=True)
    assert certificates(installation).may_go(writer)


def test_a_compaction_vouches_only_for_the_writers_that_its_snapshot_had_decided_on(
    installation: BareInstallation,
) -> None:
    writer = pointer_at(now_ms() - HOUR_MS)
    running = BareInstallation.snapshot(sequence=1, in_progress=[writer])
    installation.put_snapshot(running)
    installation.wait_until_known(running, TABLES)
    for sequence in (1, 2):
        installation.write(row(sequence, writer))
        installation.flush()
    installation.compact(major=True)
    failed = BareInstallation.snapshot(sequence=2, invalid=[writer])
    installation.put_snapshot(failed)
    installation.wait_until_known(failed, TABLES)
    (file,) = files_of(installation.wait_for_reports()).values()
    assert writers_in_files(installation)[file.name] == {writer}
    assert file.decided < writer <= file.newest
    installation.compact(major=True)
    assert writers_in_files(installation) == {}
    assert all(file.decided >= writer for file in files_of(installation.wait_for_reports()).values())


def test_certificates_survive_a_move_a_stop_a_crash_a_split_and_a_merge(installation: BareInstallation) -> None:
    cluster, message = installation.cluster, installation.table("message")
    writer = pointer_at(now_ms() - HOUR_MS)
    snapshot = BareInstallation.snapshot(invalid=[writer])
    installation.put_snapshot(snapshot)
    installation.wait_until_known(snapshot, TABLES)
    for batch in range(2):
        installation.write({key: value for number in range(4) for key, value in row(10 * batch + number).items()})
        installation.flush()
    before = files_of(installation.wait_for_reports())
    assert len(before) == 2
    assert all(file.decided == snapshot.decided for file in before.values())
    cluster.move(installation.regions()[0])
    assert files_of(installation.wait_for_reports()) == before
    cluster.stop(installation.regions()[0].server)
    cluster.start_server()
    cluster.settle()
    assert files_of(installation.wait_for_reports()) == before
    cluster.kill(installation.regions()[0].server)
    cluster.start_server()
    cluster.settle()
    assert files_of(installation.wait_for_reports()) == before
    middle = sorted(cluster.scan(message))[4]
    cluster.split(message, installation.regions()[0], middle)
    references = files_of(installation.wait_for_reports())
    assert len(installation.regions()) == BUCKETS + 1
    assert len(references) >= len(before)
    assert {(file.decided, file.newest) for file in references.values()} == {
        (file.decided, file.newest) for file in before.values()
    }
    installation.compact(major=True)
    compacted = files_of(installation.wait_for_reports())
    assert not set(compacted) & set(references)
    assert all(file.decided == snapshot.decided for file in compacted.values())
    cluster.merge(*installation.regions()[:2])
    merged = files_of(installation.wait_for_reports())
    assert all(file.decided != UNKNOWN_ORIGIN for file in merged.values())
    assert {file.newest for file in merged.values()} <= {file.newest for file in compacted.values()}


class Walk:
    """Writers come and fail, and regions flush, compact, move, split and crash, in any order."""

    def __init__(self, installation: BareInstallation, seed: int) -> None:
        self._installation = installation
        self._cluster = installation.cluster
        self._table = installation.table("message")
        self._chances = random.Random(seed)
        self._sequences = count(1)
        self._open: list[int] = []
        self.failed: list[int] = []
        self._published = 0
        self.taken: list[str] = []

    def publish(self) -> None:
        self._published += 1
        snapshot = BareInstallation.snapshot(
            sequence=self._published, invalid=self.failed, in_progress=sorted(self._open)
        )
        self._installation.put_snapshot(snapshot)
        if self._chances.random() < 0.7:  # else it is taken up at any moment from now on
            self._installation.wait_until_known(snapshot)

    def begin(self) -> None:
        self._open += [pointer_at(now_ms(), next(self._sequences)) for _ in range(2)]

    def write(self) -> None:
        writers = [self._chances.choice(self._open or [None]) for _ in range(self._chances.randrange(1, 5))]
        for writer in writers:
            self._installation.write(row(next(self._sequences), writer, self._chances.randrange(BUCKETS)))

    def fail(self) -> None:
        if self._open:
            self.failed.append(self._open.pop(self._chances.randrange(len(self._open))))

    def commit(self) -> None:
        if self._open:
            self._open.pop(self._chances.randrange(len(self._open)))

    def flush(self) -> None:
        self._installation.flush()

    def compact(self) -> None:
        self._installation.compact(major=self._chances.random() < 0.5)

    def move(self) -> None:
        self._cluster.move(self._chances.choice(self._installation.regions()))

    def split(self) -> None:
        region = self._chances.choice(self._installation.regions())
        inside = [
            key
            for key in self._cluster.scan(self._table)
            if region.start < key and (not region.stop or key < region.stop)
        ]
        if not inside or len(self._installation.regions()) > 4:
            return
        if any(file.is_reference for file in self._cluster.files(self._table)):
            self._installation.compact(major=True)
        self._cluster.split(self._table, region, self._chances.choice(inside))

    def crash(self) -> None:
        self._cluster.kill(self._chances.choice(self._installation.regions()).server)
        self._cluster.start_server()
        self._cluster.settle()

    def step(self) -> None:
        """One of these, and then every certificate must be true."""
        steps = [self.publish, self.begin, self.write, self.fail, self.commit, self.flush, self.compact,
                 self.move, self.split, self.crash]  # fmt: skip
        step = self._chances.choices(steps, [3, 3, 6, 4, 1, 6, 5, 1, 1, 1])[0]
        self.taken.append(step.__name__)
        step()
        self.check()

    def end(self) -> None:
        """Nobody is left open, and everything was compacted with a snapshot that says so."""
        self._open.clear()  # what never ends holds everything back
        self.publish()
        self._installation.wait_until_known(BareInstallation.snapshot(sequence=self._published))
        self.flush()
        self._installation.compact(major=True)
        self.check()

    def check(self) -> None:
        reports = self._installation.wait_for_reports()
        files = files_of(reports)
        assert set(files) == {file.name for file in self._cluster.files(self._table)}, self.taken
        failed = set(self.failed)
        for name, writers in writers_in_files(self._installation).items():
            file = files[name]
            untrue = {
                writer
                for writer in writers & failed
                if not file.decided < writer <= file.newest + SKEW_MS * POINTERS_PER_MS
            }
            assert untrue == set(), (file, self.taken)
        if self._cluster.memstore_bytes(self._table):
            assert any(report.oldest_edit_ms != EMPTY_MEMSTORE for report in reports.values()), self.taken


@pytest.mark.parametrize("seed", [1])
def test_no_certificate_is_ever_untrue(installation: BareInstallation, seed: int) -> None:
    walk = Walk(installation, seed)
    walk.publish()
    walk.begin()
    for _ in range(40):
        walk.step()
    walk.end()
    assert not any(writers & set(walk.failed) for writers in writers_in_files(installation).values())
    newest = max(walk.failed, default=0)
    assert all(file.decided >= newest for file in files_of(installation.reports()).values())
