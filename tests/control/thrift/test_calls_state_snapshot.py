"""The state in the bytes of Tephra's snapshots, read back by a reader that knows nothing of the writer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from basalt.thrift.calls import encode_state
from basalt.thrift.wire import types
from basalt.transactions.rules.conflicts import CommittedSet
from basalt.transactions.rules.transaction import Kind, Transaction
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.snapshot import InvalidList
from tests.control.thrift.conftest import Serving
from tests.vector_lines import cases


@dataclass
class Found:
    """What a snapshot holds, as Tephra's codec reads it."""

    version: int
    time_ms: int
    read_pointer: int
    write_pointer: int
    invalid: list[int]
    in_progress: dict[int, tuple[int, int, int, list[int]]] = field(default_factory=dict)
    committing: dict[int, list[bytes]] = field(default_factory=dict)
    committed: dict[int, list[bytes]] = field(default_factory=dict)


class Reading:
    """Zigzag varints and what is made of them; lists come in blocks, each with its length, the last one empty."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (value >> 1) ^ -(value & 1)

    def blocks(self, read):
        found = []
        while count := self.number():
            found += [read() for _ in range(count)]
        return found

    def text(self) -> bytes:
        size = self.number()
        self.at += size
        return self.data[self.at - size : self.at]

    def change_sets(self) -> dict[int, list[bytes]]:
        return dict(self.blocks(lambda: (self.number(), self.blocks(self.text))))

    def writer(self):
        key, expires, upper, kind = (self.number() for _ in range(4))
        return key, (expires, upper, kind, self.blocks(self.number))


def read(data: bytes) -> Found:
    reading = Reading(data)
    version, time_ms, read_pointer, write_pointer = (reading.number() for _ in range(4))
    found = Found(version, time_ms, read_pointer, write_pointer, reading.blocks(reading.number))
    found.in_progress = dict(reading.blocks(reading.writer))
    found.committing, found.committed = reading.change_sets(), reading.change_sets()
    assert reading.at == len(data)
    return found


def test_an_empty_state_is_its_pointers(serving: Serving):
    with serving.client() as client:
        found = read(client.getSnapshot())
    assert (found.version, found.time_ms, found.invalid) == (4, serving.clock.now_ms(), [])
    assert (found.in_progress, found.committing, found.committed) == ({}, {}, {})


def test_lists_checkpoints_and_change_sets_are_in_it(serving: Serving):
    with serving.client() as client:
        oldest, failed, winner = client.startShort(), client.startShort(), client.startShort()
        long_one = client.startLong()
        client.invalidateTx(failed.id)
        client.canCommitOrThrow(winner.id, {b"b", b"a"})
        client.commitOrThrow(winner.id, winner.id)
        client.canCommitOrThrow(oldest.id, {b"c"})
        checked = client.checkpoint(oldest)
        found = read(client.getSnapshot())
    assert found.invalid == [failed.id]
    assert (found.read_pointer, found.write_pointer) == (winner.id, checked.writePointer)
    assert sorted(found.in_progress) == [oldest.id, long_one.id, checked.writePointer]
    deadline_ms = serving.clock.now_ms() + 30_000
    assert found.in_progress[oldest.id] == (deadline_ms, oldest.readPointer, 0, [checked.writePointer])
    assert found.in_progress[long_one.id][1:] == (oldest.id - 1, 1, [])
    assert found.in_progress[checked.writePointer] == (deadline_ms, oldest.readPointer, 2, [])
    assert found.committing == {oldest.id: [b"c"]}
    ((seen_from, changes),) = found.committed.items()
    assert winner.id < seen_from <= checked.writePointer
    assert changes == [b"a", b"b"]


def test_a_state_that_no_client_would_read_is_refused_as_tephra_refuses(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("basalt.thrift.calls.RESULT_BYTES_MAX", 10)
    with serving.client() as client, pytest.raises(types.TTransactionCouldNotTakeSnapshotException, match="at most 10"):
        client.getSnapshot()


@pytest.mark.parametrize(("data", "meaning"), cases("tephra-snapshot"))
def test_the_examples_are_what_is_written(data: bytes, meaning):
    transactions = tuple(
        Transaction(
            id=each["id"],
            kind=Kind[each["kind"].upper()],
            read_pointer=each["read_pointer"],
            began_ms=0,
            deadline_ms=each["deadline_ms"],
            checkpoints=tuple(each["checkpoints"]),
            changes=frozenset(change.encode() for change in each["changes"]),
        )
        for each in meaning["in_progress"]
    )
    committed = tuple(
        CommittedSet(each["id"], "", each["seen_from"], frozenset(change.encode() for change in each["changes"]))
        for each in meaning["committed"]
    )
    image = StateImage(
        last_pointer=meaning["write_pointer"],
        read_pointer=meaning["read_pointer"],
        invalid=InvalidList(tuple(meaning["invalid"]), 1),
        transactions=transactions,
        committed=committed,
    )
    assert encode_state(image, {}, meaning["time_ms"]) == data
