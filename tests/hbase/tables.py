"""One set of Basalt's tables in HBase for a run of the tests, and stores over it that find them empty."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from basalt_engine.clock import SystemClock
from basalt_engine.errors import BasaltError
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.hbase.tables import CoprocessorJar, TableLayout, layouts
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.table import KEY_BYTES_MAX, TABLE_NAMES, DeleteRange, Store
from deploy.hbase.standalone import Gateways

BUCKETS = 4  # fewer regions than an installation has by default: they take a while to make and to drop

# A deleted row stays in HBase until a compaction, and each scan passes all of them: after some hundred tests, that is most of what a region
# server does. New tables take as long as some ten tests of that kind.
EMPTIED_MAX = 40


# A store gives each write a higher timestamp than the one before, so many of them in a short time run ahead of the clock. What deletes
# their rows has to be later than they were; a server is, for it leads under an epoch of its own, and stores in tests do not lead.
AHEAD_MS = 60_000


class LaterClock(SystemClock):
    """The time of the system, and so much later."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Tables:
    """A set of tables whose names start with `prefix.`, through the Thrift 2 gateway at `address`."""

    def __init__(self, address: str, prefix: str) -> None:
        self.address = address
        self.prefix = prefix
        self._times_emptied = 0

    def open(self) -> HBaseStore:
        """A store over the tables, as the next process would open them."""
        return HBaseStore.open(self.address, self.prefix, clock=LaterClock(self._times_emptied * AHEAD_MS))

    def emptied(self) -> HBaseStore:
        """A store over the tables without a row."""
        self._times_emptied += 1
        if self._times_emptied % EMPTIED_MAX == 0:
            self.drop()
            self.create()
            return self.open()
        store = self.open()
        empty(store)
        return store

    def create(self, jar: CoprocessorJar | None = None) -> None:
        """Make the tables, with the coprocessor if its jar is given."""
        self._at_once(_create, layouts(self.prefix, BUCKETS, jar=jar))

    def drop(self) -> None:
        """Remove those that are there."""
        with Thrift2(self.address) as gateway:
            names = gateway.table_names(f"{self.prefix}.")
        self._at_once(_drop, names)

    def _at_once(self, do: Callable[[Thrift2, Any], None], tables: Sequence[Any]) -> None:
        """Have HBase work on all tables at the same time."""
        with ThreadPoolExecutor(len(tables) or 1) as threads:
            list(threads.map(partial(self._on_a_connection, do), tables))

    def _on_a_connection(self, do, table) -> None:
        with Thrift2(self.address) as gateway:
            do(gateway, table)


def _create(gateway: Thrift2, layout: TableLayout) -> None:
    gateway.create(layout.descriptor(), layout.splits)


def _drop(gateway: Thrift2, name: str) -> None:
    with suppress(BasaltError):
        gateway.disable(name)
    gateway.drop(name)


def empty(store: Store) -> None:
    """Delete every row of every table."""
    for name in TABLE_NAMES:
        store.table(name).write([DeleteRange(b"", b"\xff" * (KEY_BYTES_MAX + 1))])


@pytest.fixture(scope="session")
def hbase_tables(hbase_gateways: Gateways) -> Iterator[Tables]:
    """Tables for all tests of the run that want just a store; each empties them when it begins."""
    tables = Tables(hbase_gateways.thrift2, f"test{os.getpid()}{secrets.token_hex(2)}")
    tables.create()
    yield tables
    tables.drop()
