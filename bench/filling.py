"""Data directories with very many rows, made in seconds: one row is written by a server, and multiplied in the store itself.

No server may have the directory open meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from basalt_engine.keys import MessageKey, topic_prefix
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Put, Row, TableWrite

NAMESPACE = "default"
WRITE_ROWS = 10_000  # in one batch,
WRITE_BYTES = 32 << 20  # of so many bytes
ROWS_PER_MS = 60_000  # below the 65,536 sequences that a millisecond has


def multiply_topic(data: Path, topic: str, names: Iterable[str]) -> None:
    """Topics of these names, each with the properties of one that is there."""
    store = RocksStore.open(data, sync=False)
    try:
        columns = store.table("metadata").get(topic_prefix(NAMESPACE, topic))
        assert columns is not None, topic
        _write(store, "metadata", (Put(topic_prefix(NAMESPACE, name), columns) for name in names))
    finally:
        store.close()


def multiply_row(
    data: Path, topic: str, count: int, *, shift_ms: int = 1, columns: Mapping[bytes, bytes] | None = None
) -> None:
    """Copies of the one row that a topic has, from so long after it on; with these columns too."""
    store = RocksStore.open(data, sync=False)
    try:
        row = only_row(store.table("message").scan(b"\0", None), topic_prefix(NAMESPACE, topic))
        _write(store, "message", copies(row, count, shift_ms, columns or {}))
    finally:
        store.close()


def only_row(rows: Iterable[Row], prefix: bytes) -> Row:
    """The row of the topic with this prefix, which must have a single one."""
    found = [row for row in rows if MessageKey.decode(row.key).prefix == prefix]
    assert len(found) == 1, (prefix, len(found))
    return found[0]


def copies(row: Row, count: int, shift_ms: int, columns: Mapping[bytes, bytes]) -> Iterator[Put]:
    """So many copies of a row, at places that follow each other."""
    key = MessageKey.decode(row.key)
    for number in range(count):
        publish_ms = key.publish_ms + shift_ms + number // ROWS_PER_MS
        yield Put(
            key._replace(publish_ms=publish_ms, sequence=number % ROWS_PER_MS).encode(), {**row.columns, **columns}
        )


def _write(store: RocksStore, table: str, puts: Iterable[Put]) -> None:
    puts = iter(puts)
    while first := next(puts, None):
        size = sum(map(len, first.columns.values())) + len(first.key)
        some = islice(puts, max(0, min(WRITE_ROWS, WRITE_BYTES // size) - 1))
        store.write([TableWrite(table, [first, *some])])
