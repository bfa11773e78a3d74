"""The store against regions with the coprocessor: a new leader's fences, and what the former one's writes end in."""

from __future__ import annotations

import os
import secrets

import pytest

from basalt_engine.errors import FencedError
from basalt_engine.stores.hbase.store import LOG
from basalt_engine.stores.hbase.tables import CoprocessorJar
from basalt_engine.table import TABLE_NAMES, Delete, DeleteRange, Insert, Put
from tests.hbase.tables import Tables

pytestmark = [pytest.mark.hbase, pytest.mark.jvm]

# Rows of two regions: what is refused by all of them was surely not written.
ROWS = [Put(b"\x01k", {b"v": b"1"}), Put(b"\x02k", {b"v": b"1"})]
WRITES = {
    "put": ROWS[:1],
    "puts": ROWS,
    "delete": [Delete(b"\x01k")],
    "deletes": [Delete(b"\x01k"), Delete(b"\x02k", (b"v",))],
    "insert": [Insert(b"\x03k", {b"v": b"1"})],
    "range": [DeleteRange(b"\x01", b"\x04")],
}


@pytest.fixture(scope="module")
def tables(hbase_gateways, coprocessor_jar):
    made = Tables(hbase_gateways.thrift2, f"fenced{os.getpid()}{secrets.token_hex(2)}")
    made.create(CoprocessorJar(coprocessor_jar.as_uri().replace("file://", "file:")))
    yield made
    made.drop()


@pytest.fixture(scope="module")
def leaders(tables):
    """The store of a former leader and that of the one after it; rows as the former one left them."""
    former, later = tables.open(), tables.open()
    former.lead(1)
    for name in TABLE_NAMES:
        former.table(name).write(ROWS)
    later.lead(2)
    yield former, later
    former.close()
    later.close()


def test_the_store_knows_that_the_coprocessor_applies_retention(leaders):
    assert all(store.applies_retention for store in leaders)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("table", [name for name in TABLE_NAMES if name != LOG])  # in the log a place is taken once
def test_a_former_leader_writes_nothing_anywhere(leaders, table, write):
    former, later = leaders
    with pytest.raises(FencedError, match="basalt fenced"):
        former.table(table).write(WRITES[write])
    assert [row.key for row in later.table(table).scan(b"\x01", b"\x04")] == [put.key for put in ROWS]


def test_a_former_leader_replaces_nothing_and_leads_no_more(leaders):
    former, _ = leaders
    with pytest.raises(FencedError):
        former.table("system").check_and_write(b"\x01k", b"v", b"1", {b"v": b"2"})
    with pytest.raises(FencedError):
        former.lead(1)


def test_the_later_leader_and_whoever_does_not_lead_write_on(leaders, tables):
    _, later = leaders
    later.table("metadata").write([Put(b"later", {b"v": b"1"})])
    reader = tables.open()
    reader.table("metadata").write([Put(b"reader", {b"v": b"1"})])
    assert reader.table("metadata").get(b"later") == {b"v": b"1"}
    later.table("metadata").write([Delete(b"later"), Delete(b"reader")])
    reader.close()
