"""A program for tests: writes into a data directory while its files may not grow, and tells what happened as JSON.

Usage: disk_full_program.py DIRECTORY. The limit on the size of a file stands for a full disk.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from basalt_engine.errors import BasaltError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Put

VALUE = bytes(30_000)
LIMIT_BYTES = 1_000_000


def main() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = RocksStore.open(Path(sys.argv[1]))
    table = store.table("message")
    acknowledged, refused = [], []
    table.write([Put(b"before", {b"c": VALUE})])
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, limits[1]))
    for number in range(60):
        try:
            table.write([Put(b"k%02d" % number, {b"c": VALUE})])
            acknowledged.append(f"k{number:02d}")
        except BasaltError as error:
            refused.append(error.code)
    read_when_full = [row.key.decode() for row in table.scan(b"", None)]
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    table.write([Put(b"since", {b"c": VALUE})])
    read_since = [row.key.decode() for row in table.scan(b"", None)]
    store.close()
    told = {
        "acknowledged": acknowledged,
        "refused": refused,
        "read when full": read_when_full,
        "read since": read_since,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
