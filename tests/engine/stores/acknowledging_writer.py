"""A program for tests: writes rows into a data directory for ever, and prints each row's number once it is durable.

Usage: acknowledging_writer.py DIRECTORY [FIRST_NUMBER]. Without a number it only opens the directory. The tests end it
with SIGKILL.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Delete, Put, TableWrite


def row(number: int) -> dict[bytes, bytes]:
    """The columns of a row: every third is large."""
    return {b"t": b"%d" % number, b"p": bytes([number % 251]) * (6_000 if number % 3 == 0 else 60)}


def key(number: int) -> bytes:
    """The key of a row."""
    return b"row%08d" % number


def write(store: RocksStore, number: int) -> None:
    """One write over two tables: puts a row, notes its number, and deletes a row of the other table."""
    store.write(
        [
            TableWrite("message", [Put(key(number), row(number))]),
            TableWrite("system", [Put(b"last", {b"v": b"%d" % number}), Delete(b"gone")]),
        ]
    )


def main() -> None:
    store = RocksStore.open(Path(sys.argv[1]))
    if len(sys.argv) == 2:
        signal.pause()
    number = int(sys.argv[2])
    while True:
        write(store, number)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main()
