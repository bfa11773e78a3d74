"""What flushes and compactions leave in HDFS: read from the HFiles, past every scanner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from basalt_engine.keys import topic_prefix
from basalt_engine.payloads import BOUND, BOUND_POSITION
from basalt_engine.retention import OnInvalid
from basalt_engine.stores.hbase.regions import RegionSnapshot
from tests.hbase.bare_installation import DAY_MS, HOUR_MS, BareInstallation, now_ms, pointer_at
from tests.hbase.mini_cluster import MiniCluster

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

BATCH_BYTES = 300
LIFETIME_MS = DAY_MS
Columns = dict[bytes, bytes]


class Planted(NamedTuple):
    """A row, and what is to be left of it; None when nothing is."""

    table: str
    key: bytes
    columns: Columns
    left: Columns | None


class Garden:
    """Every kind of row that the rule tells apart, in topics that drop and topics that retain."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sequence = 0
        self.now_ms = now_ms()
        hour_ago = self.now_ms - HOUR_MS
        self.failed = [pointer_at(hour_ago, 1), pointer_at(hour_ago, 2)]
        self.busy = pointer_at(hour_ago, 3)
        self.done = pointer_at(hour_ago, 4)
        self.rows = {row.name: row.planted for row in self._messages() + self._payloads()}

    class Named(NamedTuple):
        name: str
        planted: Planted

    @property
    def snapshot(self) -> RegionSnapshot:
        return BareInstallation.snapshot(invalid=self.failed, in_progress=[self.busy], lifetime_ms_max=LIFETIME_MS)

    def _batch(self) -> bytes:
        return self._random.randbytes(BATCH_BYTES)

    def _message(
        self,
        name: str,
        topic: str = "orders",
        *,
        age_ms: int = HOUR_MS,
        generation: int = 2,
        writer: int | None = None,
        expire_ms: int | None = None,
        left: str | bool = True,
    ) -> Named:
        self._sequence += 1
        keys = BareInstallation.keys(topic, generation)
        columns = {b"p": self._batch()}
        if writer is not None:
            columns[b"t"] = writer.to_bytes(8, "big", signed=True)
        if expire_ms is not None:
            columns[b"x"] = expire_ms.to_bytes(8, "big")
        remains = columns if left else None
        if left == "rolled back":
            remains = columns | {b"t": (-writer).to_bytes(8, "big", signed=True)}
        key = keys.message_key(self.now_ms - age_ms, self._sequence)
        return self.Named(name, Planted("message", key, columns, remains))

    def _messages(self) -> list[Named]:
        failed, odd = self.failed[0], self._odd
        return [
            self._message("of no transaction"),
            self._message("of a writer who is done", writer=self.done),
            self._message("of a writer in progress", writer=self.busy),
            self._message("expired", age_ms=9 * DAY_MS, left=False),
            self._message("expired within the hour that clocks are given", age_ms=7 * DAY_MS + HOUR_MS // 2),
            self._message("whose last message expired", expire_ms=self.now_ms - 2 * HOUR_MS, left=False),
            self._message("whose last message expires later", expire_ms=self.now_ms + DAY_MS),
            self._message("truncated", "short", age_ms=3 * HOUR_MS, left=False),
            self._message("right behind a truncation", "short", age_ms=2 * HOUR_MS),
            self._message("before a truncation of an older generation", "short", age_ms=3 * HOUR_MS, generation=3),
            self._message("of an old generation", generation=1, left=False),
            self._message("of a generation to come", generation=3),
            self._message("of a deleted topic", "gone", generation=1, left=False),
            self._message("of a failed writer", writer=failed, left=False),
            self._message("of another failed writer", writer=self.failed[1], left=False),
            self._message("rolled back", writer=-self.done, left=False),
            self._message("of a failed writer, retained", "kept", writer=failed, left="rolled back"),
            self._message("rolled back, retained", "kept", writer=-self.done),
            self._message("of an unknown topic and a failed writer", "unknown", writer=failed),
            odd("with a pointer of 7 bytes", {b"t": b"\1" * 7}),
            odd("with a pointer of 9 bytes", {b"t": b"\1" * 9}),
            odd("with the pointer 0", {b"t": bytes(8)}),
            odd("with the least pointer", {b"t": b"\x80" + bytes(7)}),
            odd("with a negative expiry", {b"x": b"\xff" * 8}),
            odd("with an expiry of 4 bytes", {b"x": bytes(4)}),
            odd("with both", {b"r": bytes(24), b"t": failed.to_bytes(8, "big")}),
            odd("with a short reference", {b"p": None, b"r": bytes(23), b"t": failed.to_bytes(8, "big")}),
            odd("with a key cut", {b"t": failed.to_bytes(8, "big")}, cut=1),
            odd("with a key that goes on", {b"t": failed.to_bytes(8, "big")}, tail=b"\0"),
            self.Named("with no key of ours", Planted("message", b"\0zzz", {b"p": b"1"}, {b"p": b"1"})),
        ]

    def _odd(self, name: str, columns: dict[bytes, bytes | None], *, cut: int = 0, tail: bytes = b"") -> Named:
        """A row that would be dropped for its age, could it be read."""
        key = self._message(name, age_ms=9 * DAY_MS).planted.key
        whole = {column: value for column, value in ({b"p": self._batch()} | columns).items() if value is not None}
        return self.Named(name, Planted("message", key[: len(key) - cut] + tail, whole, whole))

    def _payload(
        self,
        name: str,
        topic: str = "orders",
        *,
        age_ms: int = HOUR_MS,
        generation: int = 2,
        writer: int | None = None,
        bound: bool = False,
        left: bool = True,
    ) -> Named:
        self._sequence += 1
        keys = BareInstallation.keys(topic, generation)
        writer = pointer_at(self.now_ms - age_ms, self._sequence) if writer is None else writer
        key = keys.payload_key(writer, self.now_ms - age_ms, self._sequence)
        columns = {b"p": self._batch()}
        if bound:
            key, columns = keys.payload_start(writer) + BOUND_POSITION, {BOUND: bytes(10)}
        return self.Named(name, Planted("payload", key, columns, columns if left else None))

    def _payloads(self) -> list[Named]:
        return [
            self._payload("payload"),
            self._payload("payload that a long transaction may yet publish", age_ms=7 * DAY_MS + DAY_MS // 2),
            self._payload("expired payload", age_ms=9 * DAY_MS, left=False),
            self._payload("payload of an old generation", generation=1, left=False),
            self._payload("payload of a deleted topic", "gone", generation=1, left=False),
            self._payload("payload of a failed writer", writer=self.failed[0], left=False),
            self._payload("payload of a failed writer, retained", "kept", writer=self.failed[0]),
            self._payload("payload of an unknown topic", "unknown", writer=self.failed[0]),
            self._payload("bound", bound=True),
            self._payload("bound of a failed writer", writer=self.failed[1], bound=True, left=False),
            self._payload("expired bound", age_ms=9 * DAY_MS, bound=True, left=False),
        ]

    def plant(self, installation: BareInstallation, names: list[str] | None = None) -> None:
        """Write the rows, each table's in one batch."""
        for table in ("message", "payload"):
            chosen = [row for name, row in self.rows.items() if row.table == table and (names is None or name in names)]
            installation.write({row.key: row.columns for row in chosen}, table)

    def tell(self, installation: BareInstallation) -> None:
        """Let the region servers know the topics and the transactions."""
        installation.put_topic("orders", generation=2)
        installation.put_topic("kept", generation=2, on_invalid=OnInvalid.RETAIN)
        installation.put_topic("gone", generation=-1)
        installation.put_topic("short", generation=2, truncated_before_ms=self.now_ms - 2 * HOUR_MS)
        installation.put_snapshot(self.snapshot)
        installation.wait_until_known(self.snapshot, ("message", "payload"))

    def left_by_a_flush(self, table: str) -> dict[bytes, Columns]:
        """What a flush leaves: a roll back must stay, for what it hides may lie in an older file."""
        row = self.rows["rolled back"]
        return self.left(table) | ({row.key: row.columns} if table == row.table else {})

    def left(self, table: str) -> dict[bytes, Columns]:
        """The rows of a table that are to be left."""
        return {row.key: row.left for row in self.rows.values() if row.table == table and row.left is not None}

    def all(self, table: str) -> dict[bytes, Columns]:
        """All rows of a table, as they were written."""
        return {row.key: row.columns for row in self.rows.values() if row.table == table}

    def names(self, rows: dict[bytes, Columns]) -> set[str]:
        """The rows by their names, for messages of failures."""
        by_key = {row.key: name for name, row in self.rows.items()}
        return {by_key[key] for key in rows}


def assert_left(garden: Garden, installation: BareInstallation, expected: str = "left") -> None:
    for table in ("message", "payload"):
        wanted, found = getattr(garden, expected)(table), installation.stored(table)
        assert garden.names(found) == garden.names(wanted)
        assert found == wanted  # byte by byte
        assert installation.cluster.scan(installation.table(table)) == wanted
        assert installation.cluster.memstore_bytes(installation.table(table)) == 0


@pytest.fixture
def unwary(mini_cluster: MiniCluster) -> Iterator[MiniCluster]:
    """The cluster, of which no server may give up meanwhile."""
    yield mini_cluster
    assert mini_cluster.aborted() == []


def test_a_flush_writes_just_the_rows_that_the_rule_keeps(unwary: MiniCluster) -> None:
    garden = Garden(1)
    with BareInstallation(unwary, "flush") as installation:
        garden.plant(installation)
        garden.tell(installation)
        for table in ("message", "payload"):
            installation.flush(table)
        assert_left(garden, installation, "left_by_a_flush")


@pytest.mark.parametrize("major", [False, True], ids=["minor", "major"])
def test_a_compaction_leaves_just_the_rows_that_the_rule_keeps(unwary: MiniCluster, major: bool) -> None:
    """The rows come to lie in files while nothing is known of them."""
    garden = Garden(2)
    with BareInstallation(unwary, "major" if major else "minor") as installation:
        names = list(garden.rows)
        for part in (names[::3], names[1::3], names[2::3]):
            garden.plant(installation, part)
            for table in ("message", "payload"):
                installation.flush(table)
        assert_left(garden, installation, "all")
        garden.tell(installation)
        for table in ("message", "payload"):
            files = {file.name for file in unwary.files(installation.table(table))}
            installation.compact(table, major=major)
            assert not files & {file.name for file in unwary.files(installation.table(table))}
        assert_left(garden, installation)


def test_what_was_rolled_back_for_good_stays_so_without_the_invalid_list(unwary: MiniCluster) -> None:
    """The flipped t makes the row independent of the list, so that the list may forget its writer."""
    garden = Garden(3)
    with BareInstallation(unwary, "forget") as installation:
        garden.plant(installation)
        garden.tell(installation)
        installation.flush()
        forgetful = BareInstallation.snapshot(sequence=2, in_progress=[garden.busy], lifetime_ms_max=LIFETIME_MS)
        installation.put_snapshot(forgetful)
        installation.wait_until_known(forgetful)
        installation.compact(major=True)
        assert installation.stored() == garden.left("message")


def test_a_row_whose_roll_back_lies_in_a_newer_file_is_judged_whole(unwary: MiniCluster) -> None:
    """A client's roll back changes t alone: flushed by itself it is neither dropped nor taken for a row."""
    writer = pointer_at(now_ms() - HOUR_MS)
    keys = BareInstallation.keys()
    key, kept = (keys.message_key(now_ms(), sequence) for sequence in (1, 2))
    positive, negative = ((writer * sign).to_bytes(8, "big", signed=True) for sign in (1, -1))
    with BareInstallation(unwary, "halves") as installation:
        snapshot = BareInstallation.snapshot(in_progress=[writer])
        installation.put_topic("orders")
        installation.put_snapshot(snapshot)
        installation.wait_until_known(snapshot)
        installation.write({key: {b"p": b"one", b"t": positive}, kept: {b"p": b"two", b"t": positive}})
        installation.flush()
        installation.write({key: {b"t": negative}})
        installation.flush()
        assert installation.cluster.scan(installation.table("message"))[key] == {b"p": b"one", b"t": negative}
        installation.compact(major=True)
        rows = installation.stored()
        assert rows == {kept: {b"p": b"two", b"t": positive}}


def test_an_all_dropped_flush_leaves_nothing_that_a_crash_could_bring_back(unwary: MiniCluster) -> None:
    garden = Garden(4)
    dropped = [name for name, row in garden.rows.items() if row.left is None and name != "rolled back"]
    with BareInstallation(unwary, "nothing") as installation:
        garden.plant(installation, dropped)
        garden.tell(installation)
        for table in ("message", "payload"):
            installation.flush(table)
            assert installation.stored(table) == {}
        for server in {region.server for region in installation.regions()}:
            unwary.kill(server)
            unwary.start_server()
        unwary.settle()
        for table in ("message", "payload"):
            installation.flush(table)
            installation.compact(table, major=True)
            assert unwary.scan(installation.table(table)) == {}
            assert installation.stored(table) == {}


def test_the_topic_of_every_row_is_found_among_many(unwary: MiniCluster) -> None:
    """Rows of many topics alternate, so that the rule of the row before must never be taken."""
    choice = random.Random(5)
    at_ms = now_ms() - 2 * DAY_MS
    rows, left = {}, {}
    with BareInstallation(unwary, "topics") as installation:
        for number in range(40):
            name, is_short = f"t{number}-{choice.randrange(9)}", choice.random() < 0.5
            installation.put_topic(name, ttl_ms=DAY_MS if is_short else 30 * DAY_MS)
            for sequence in range(3):
                key = BareInstallation.keys(name).message_key(at_ms, sequence)
                rows[key] = {b"p": b"%d" % sequence}
                if not is_short:
                    left[key] = rows[key]
        assert topic_prefix("shop", name) in key
        installation.wait_until_known()
        installation.write(rows)
        installation.flush()
        assert installation.stored() == left
