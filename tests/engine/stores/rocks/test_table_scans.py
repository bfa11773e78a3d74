"""Scans of a RocksDB table beside a writer: what they see of rows that are written in their midst."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt_engine.keys import TopicKeys, position
from basalt_engine.messages import MessageRow, MessageTable
from basalt_engine.records import decode, encode, merge
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Delete, Put, TableWrite

KEYS = TopicKeys(b"orders", 1, 16)
SMALL, LARGE = b"small", bytes(8 << 10)  # beside the row's key, and in a file of their own


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_that_comes_to_a_row_which_has_gone_looks_anew_at_those_behind_it(tmp_path: Path, reverse: bool) -> None:
    store = RocksStore.open(tmp_path, sync=False)
    table = store.table("message")
    table.write([Put(b"%d" % number, {b"p": LARGE if number == 2 else SMALL}) for number in range(1, 5)])
    scan = table.scan(b"", None, reverse=reverse)
    first = next(scan).key
    kept = b"1" if reverse else b"4"
    table.write([Delete(key) for key in (b"1", b"2", b"3", b"4") if key not in (first, kept)])
    table.write([Put(kept, {b"p": b"all of them"})])
    rows = [(row.key, row.columns[b"p"]) for row in scan]
    assert rows[-1] == (kept, b"all of them")
    assert b"2" not in [key for key, _ in rows]
    store.close()


@pytest.mark.parametrize("large", [0b000000, 0b111111, 0b010101, 0b001000, 0b000001, 0b110111])
@pytest.mark.parametrize("taken", range(1, 6))
@pytest.mark.parametrize("in_chunk", [2, 16])
def test_every_message_comes_once_though_its_row_is_merged_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, taken: int, in_chunk: int
) -> None:
    monkeypatch.setattr("basalt_engine.stores.rocks.table.CHUNK_ROWS_FIRST", in_chunk)
    store = RocksStore.open(tmp_path, sync=False)
    rows = [
        MessageRow(position(5 + number // 2, number % 2), None, encode([LARGE if large >> number & 1 else SMALL]))
        for number in range(6)
    ]
    puts = [MessageTable.put(KEYS, row) for row in rows]
    store.write([TableWrite("message", puts)])
    merged = rows[-1]._replace(batch=merge([(row.position, decode(row.batch or b"")) for row in rows]))
    scan, found = MessageTable.of(store).stored(KEYS), list[MessageRow]()
    for _ in range(taken):
        found.append(next(scan))
    store.write([TableWrite("message", [MessageTable.put(KEYS, merged), *(Delete(put.key) for put in puts[:-1])])])
    found += scan
    places = []
    for row in found:
        assert row.batch is not None
        count = decode(row.batch).count
        last = int.from_bytes(row.position, "big")
        places += [place.to_bytes(10, "big") for place in range(last - count + 1, last + 1)]
    assert places == [row.position for row in rows]
    store.close()
