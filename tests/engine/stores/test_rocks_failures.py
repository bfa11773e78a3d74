"""Writes that fail: what became of them is found out, reads go on, and the store heals without a restart."""

from __future__ import annotations

import json
import threading

import pytest

from basalt_engine.errors import CorruptionError, DiskFullError, StoreError, UnknownOutcomeError
from basalt_engine.table import Put
from tests.engine.stores.faulty_database import Faults

LARGE = bytes(50_000)
BROKEN = StoreError("the disk answered with an input/output error")


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def table(directory, open_store, faults):
    store = open_store(directory, open_database=faults)
    store.table("message").write([Put(b"before", {b"c": LARGE})])
    return store.table("message")


def keys(table):
    return [row.key for row in table.scan(b"", None)]


def test_a_write_whose_sync_failed_but_which_is_in_the_reopened_log_has_succeeded(table, faults):
    faults.next["sync"] = BROKEN
    table.write([Put(b"k", {b"c": LARGE})])
    assert faults.openings == 2  # the log was read again: nothing is acknowledged on the word of a failed sync
    assert keys(table) == [b"before", b"k"]


def test_a_write_that_never_reached_the_log_is_told_as_not_written(table, faults):
    faults.next["write"] = BROKEN
    with pytest.raises(StoreError):
        table.write([Put(b"k", {b"c": LARGE})])
    assert keys(table) == [b"before"]
    table.write([Put(b"k", {b"c": b"2"})])
    assert keys(table) == [b"before", b"k"]


def test_a_write_that_failed_after_it_was_logged_has_succeeded(table, faults):
    faults.next["written"] = BROKEN
    table.write([Put(b"k", {b"c": LARGE}), Put(b"l", {b"c": b"1"})])
    assert keys(table) == [b"before", b"k", b"l"]


def test_a_check_and_write_that_failed_can_be_tried_again(table, faults):
    faults.next["write"] = BROKEN
    with pytest.raises(StoreError):
        table.check_and_write(b"k", b"c", None, {b"c": b"1"})
    assert table.check_and_write(b"k", b"c", None, {b"c": b"1"})
    assert not table.check_and_write(b"k", b"c", None, {b"c": b"2"})


def test_while_the_database_cannot_be_opened_again_the_outcome_is_unknown_and_later_known(table, faults):
    faults.next |= {"sync": BROKEN, "open": StoreError("the disk is away")}
    with pytest.raises(UnknownOutcomeError):
        table.write([Put(b"k", {b"c": LARGE})])
    with pytest.raises(StoreError, match="the disk is away"):
        table.get(b"before")
    table.write([Put(b"later", {b"c": b"1"})])  # opens it first
    assert keys(table) == [b"before", b"k", b"later"]


def test_a_full_disk_is_told_as_such_and_nothing_was_written(table, faults):
    faults.next |= {"write": DiskFullError("no space"), "open": DiskFullError("no space")}
    with pytest.raises(DiskFullError):
        table.write([Put(b"k", {b"c": LARGE})])
    table.write([Put(b"later", {b"c": b"1"})])
    assert keys(table) == [b"before", b"later"]


def test_damage_that_a_write_meets_is_told_as_damage(table, faults):
    faults.next["write"] = CorruptionError("000012.sst is damaged")
    with pytest.raises(CorruptionError, match=r"000012\.sst"):
        table.write([Put(b"k", {b"c": LARGE})])
    assert faults.openings == 1
    assert keys(table) == [b"before"]


def test_damage_that_opening_again_meets_is_told_as_damage(table, faults):
    faults.next |= {"sync": BROKEN, "open": CorruptionError("000012.log is damaged")}
    with pytest.raises(CorruptionError, match=r"000012\.log"):
        table.write([Put(b"k", {b"c": LARGE})])
    with pytest.raises(CorruptionError, match=r"000012\.log"):
        table.get(b"before")


def test_a_scan_goes_on_over_a_reopening(table, faults):
    table.write([Put(b"k%04d" % number, {b"c": b"1", b"large": LARGE[:5_000]}) for number in range(500)])
    scan = table.scan(b"k", b"l")
    seen = [next(scan).key for _ in range(20)]
    faults.next["sync"] = BROKEN
    table.write([Put(b"other", {b"c": b"1"})])
    assert seen + [row.key for row in scan] == [b"k%04d" % number for number in range(500)]


def test_reopening_waits_for_those_who_still_read(directory, open_store):
    reading = []

    class Reluctant(Faults):
        def __call__(self, path, options, *, create):
            if self.openings == 4:  # 1: the first, 2 to 4: in vain
                reading.clear()
            return super().__call__(path, options, create=create)

    faults = Reluctant()
    store = open_store(directory, open_database=faults)
    table = store.table("message")
    reading.append(store._durable.database.rows("message").iter())
    faults.next["sync"] = BROKEN
    table.write([Put(b"k", {b"c": LARGE})])
    assert faults.openings == 5
    assert keys(table) == [b"k"]


def test_readers_on_other_threads_do_not_notice_a_reopening(table, faults):
    table.write([Put(b"k%04d" % number, {b"c": LARGE[:5_000]}) for number in range(300)])
    failures = []
    done = threading.Event()

    def read():
        try:
            while not done.is_set():
                assert len(list(table.scan(b"k", b"l"))) == 300
                assert table.get(b"before") == {b"c": LARGE}
        except Exception as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(5):
            faults.next["sync"] = BROKEN
            table.write([Put(b"other%d" % number, {b"c": LARGE})])
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert faults.openings == 6


def test_what_was_written_before_and_after_a_failure_is_there_after_a_restart(directory, open_store, faults):
    store = open_store(directory, open_database=faults)
    table = store.table("message")
    for number, call in enumerate(["sync", "written", "sync"]):
        table.write([Put(b"a%d" % number, {b"c": LARGE})])
        faults.next[call] = BROKEN
        table.write([Put(b"b%d" % number, {b"c": LARGE})])
    expected = keys(table)
    assert len(expected) == 6
    store.close()
    assert keys(open_store(directory).table("message")) == expected


def test_a_store_that_failed_can_be_closed(directory, open_store, faults):
    store = open_store(directory, open_database=faults)
    faults.next |= {"sync": BROKEN, "open": BROKEN}
    with pytest.raises(UnknownOutcomeError):
        store.table("message").write([Put(b"k", {b"c": b"1"})])
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.table("message").get(b"k")
    assert keys(open_store(directory).table("message")) == [b"k"]


def test_a_full_disk_refuses_writes_serves_reads_and_heals_without_a_restart(start_program, directory, open_store):
    process = start_program("disk_full_program.py", directory)
    told = json.loads(process.stdout.read())
    assert process.wait() == 0
    assert 0 < len(told["acknowledged"]) < 60
    assert set(told["refused"]) == {"disk_full"}
    assert told["read when full"] == ["before", *told["acknowledged"]]
    assert told["read since"] == ["before", *told["acknowledged"], "since"]
    assert [key.decode() for key in keys(open_store(directory).table("message"))] == told["read since"]
