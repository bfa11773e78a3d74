"""One set of Basalt's tables in HBase for a run of the tests, and stores over it that find them empty."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress

import pytest

from basalt_engine.errors import BasaltError
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.hbase.tables import CoprocessorJar, layouts
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.table import KEY_BYTES_MAX, TABLE_NAMES, DeleteRange, Store
from deploy.hbase.standalone import Gateways

BUCKETS = 4  # fewer regions than an installation has by default: they take a while to make and to drop


class Tables:
    """A set of tables whose names start with `prefix.`, through the Thrift 2 gateway at `address`."""

    def __init__(self, address: str, prefix: str) -> None:
        self.address = address
        self.prefix = prefix

    def open(self) -> HBaseStore:
        """A store over the tables, as the next process would open them."""
        return HBaseStore.open(self.address, self.prefix)

    def emptied(self) -> HBaseStore:
        """A store over the tables without a row."""
        store = self.open()
        empty(store)
        return store

    def create(self, jar: CoprocessorJar | None = None) -> None:
        """Make the tables, with the coprocessor if its jar is given."""
        with Thrift2(self.address) as gateway:
            for layout in layouts(self.prefix, BUCKETS, jar=jar):
                gateway.create(layout.descriptor(), layout.splits)

    def drop(self) -> None:
        """Remove those that are there."""
        with Thrift2(self.address) as gateway:
            for name in gateway.table_names(f"{self.prefix}."):
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
