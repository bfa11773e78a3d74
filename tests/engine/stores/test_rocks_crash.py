"""A process is killed at any moment, and everything that it had acknowledged is there when the store is opened again."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import shutil
import subprocess

import pytest

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.store import SyncedFile
from basalt_engine.table import Put, TableWrite
from tests.budgets import ROCKS_KILL_ROUNDS as ROUNDS
from tests.engine.stores.acknowledging_writer import key, row

SEED = 20_240_607


def acknowledge_and_kill(start_program, directory, first, count):
    """Run the writer until it has acknowledged `count` rows, and kill it at once; the number of the last one."""
    process = start_program("acknowledging_writer.py", directory, first)
    last = first - 1
    for line in process.stdout:
        last = int(line)
        if last >= first + count - 1:
            break
    process.kill()
    rest = process.stdout.read().split()
    process.wait()
    return int(rest[-1]) if rest else last


def test_a_killed_writer_loses_nothing_that_it_acknowledged(start_program, directory, open_store):
    random_numbers = random.Random(SEED)
    rows = 0
    for _ in range(ROUNDS):
        acknowledged = acknowledge_and_kill(start_program, directory, rows, random_numbers.randrange(1, 120))
        # Once more, this time while it starts or recovers.
        recovering = start_program("acknowledging_writer.py", directory)
        with contextlib.suppress(subprocess.TimeoutExpired):
            recovering.wait(random_numbers.uniform(0.05, 0.4))
        recovering.kill()
        recovering.wait()

        store = open_store(directory)
        found = {item.key: item.columns for item in store.table("message").scan(b"", None)}
        rows = len(found)
        assert found == {key(number): row(number) for number in range(rows)}
        # The one write that was under way when it was killed is there as a whole or not at all.
        assert acknowledged + 1 <= rows <= acknowledged + 2
        assert store.table("system").get(b"last") == {b"v": b"%d" % (rows - 1)}
        store.close()


@pytest.fixture(scope="module")
def killed_once(start_program, tmp_path_factory):
    """A directory whose writer was killed, and how many rows it had acknowledged."""
    directory = tmp_path_factory.mktemp("killed") / "data"
    return directory, acknowledge_and_kill(start_program, directory, 0, 20) + 1


@pytest.fixture
def killed(killed_once, directory):
    """How many rows were acknowledged in `directory`, a copy: they are in its newest log."""
    shutil.copytree(killed_once[0], directory)
    return killed_once[1]


def newest_log(directory):
    return max((directory / "rocks").glob("*.log"))


def synced_bytes(directory):
    lines = re.findall(rb"turn=(\d+) .* logs=.*?(\d+) crc32c", (directory / "SYNCED").read_bytes())
    return int(max(lines, key=lambda line: int(line[0]))[1])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("torn_bytes", [1, 7, 64, 5_000])
def test_a_torn_write_behind_the_synced_ones_is_cut_off_and_told(
    killed, directory, open_store, caplog, torn_bytes, zeros
):
    with newest_log(directory).open("ab") as log:
        log.truncate(synced_bytes(directory))
        log.write(bytes(torn_bytes) if zeros else os.urandom(torn_bytes))
    with caplog.at_level(logging.WARNING, "basalt.store"):
        store = open_store(directory)
    assert f"cut {torn_bytes} bytes" in caplog.text
    assert [item.columns for item in store.table("message").scan(b"", None)][:killed] == [
        row(number) for number in range(killed)
    ]


@pytest.mark.parametrize("cut_bytes", [1, 10_000, 40_000, 99_000])
def test_a_write_that_was_cut_off_within_is_dropped_as_a_whole(directory, tmp_path, open_store, cut_bytes):
    """Its record is longer than a block of the log, so whole parts of it are there."""
    store = open_store(directory)
    store.table("message").write([Put(b"acknowledged", {b"c": b"1"})])
    marks = (directory / "SYNCED").read_bytes()
    store.write(
        [
            TableWrite("message", [Put(b"torn", {b"p": os.urandom(100_000)})]),
            TableWrite("system", [Put(b"k", {b"c": b"1"})]),
        ]
    )
    crashed = tmp_path / "crashed"
    shutil.copytree(directory, crashed)
    (crashed / "SYNCED").write_bytes(marks)
    log = newest_log(crashed)
    os.truncate(log, log.stat().st_size - cut_bytes)
    store = open_store(crashed)
    assert [row.key for row in store.table("message").scan(b"", None)] == [b"acknowledged"]
    assert store.table("system").get(b"k") is None


@pytest.mark.parametrize("cut_bytes", [1, 7, 64, 2_000])
def test_a_log_that_lost_a_synced_write_is_refused(killed, directory, cut_bytes):
    log = newest_log(directory)
    size = synced_bytes(directory) - cut_bytes
    os.truncate(log, size)
    with pytest.raises(CorruptionError, match=re.escape(str(log))) as refused:
        RocksStore.open(directory)
    assert int(re.search(r"at byte (\d+)", refused.value.message)[1]) <= size
    assert log.stat().st_size == size


def test_a_flipped_bit_in_a_log_is_refused_with_its_offset(killed, directory):
    log = newest_log(directory)
    content = bytearray(log.read_bytes())
    at = synced_bytes(directory) // 2
    content[at] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptionError, match=re.escape(str(log))) as refused:
        RocksStore.open(directory)
    assert 0 <= at - int(re.search(r"at byte (\d+)", refused.value.message)[1]) < 10_000


def test_a_flipped_bit_in_a_log_is_refused_by_the_recovery_mode_too(directory, open_store, killed):
    """Without the marks of SYNCED it is RocksDB that must refuse; its default mode would open with fewer rows."""
    log = newest_log(directory)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    forget_logs(directory)
    with pytest.raises(CorruptionError, match=r"rocks"):
        open_store(directory)


def test_the_recovery_mode_tolerates_no_more_than_a_torn_tail(directory, open_store, killed):
    store = open_store(directory)
    log = (directory / "rocks" / "LOG").read_text("latin-1")
    store.close()
    told = dict(
        re.findall(r"Options\.(wal_recovery_mode|paranoid_checks|track_and_verify_wals_in_manifest): (\d)", log)
    )
    assert told == {"wal_recovery_mode": "0", "paranoid_checks": "1", "track_and_verify_wals_in_manifest": "1"}


def forget_logs(directory):
    """Rewrite the marks as a store that does not sync its writes leaves them: none about the logs' ends."""
    marks = SyncedFile.load(directory / "SYNCED", directory / "rocks")
    logs = dict.fromkeys(marks.marks.logs, 0)
    marks._write(marks.marks._replace(turn=marks.marks.turn + 1, torn_tails=False, sequence=0, logs=logs))
    marks.release()


def test_a_database_that_ends_before_the_noted_sequence_is_refused(killed, directory):
    """The last resort: whatever was lost, RocksDB counts fewer changes than were synced."""
    marks = SyncedFile.load(directory / "SYNCED", directory / "rocks")
    marks._write(marks.marks._replace(turn=marks.marks.turn + 1, sequence=10**9))
    marks.release()
    with pytest.raises(CorruptionError, match="1000000000 changes"):
        RocksStore.open(directory)


def test_without_syncing_a_killed_process_keeps_its_writes(directory, open_store):
    store = open_store(directory, sync=False)
    store.table("message").write([Put(b"k", {b"c": b"1"})])
    store.close()
    assert open_store(directory, sync=False).table("message").get(b"k") == {b"c": b"1"}
