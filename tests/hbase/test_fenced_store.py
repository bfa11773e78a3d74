"""The store against regions with the coprocessor: a new leader's fences, and what the former one's writes end in."""

from __future__ import annotations

import os
import secrets
import threading
import time

import pytest

from basalt_engine.errors import BasaltError, FencedError
from basalt_engine.stores.hbase.store import LOG
from basalt_engine.stores.hbase.tables import CoprocessorJar
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import TABLE_NAMES, Delete, DeleteRange, Insert, Put
from tests.hbase.holding_proxy import HoldingProxy
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


ORDERS = b"\x00shop:orders:"  # a row of this topic, and of this shard
SHARD = shard_of(ORDERS[1:])
OTHER = b"\x00shop:bills:"
HANG_S = 60.0


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


class Owners:
    """Two stores that take a shard in turn. The writes of the first one go through a network that can hold them up."""

    def __init__(self, tables: Tables) -> None:
        self.proxy = HoldingProxy(tables.address)
        self.former = Tables(self.proxy.address, tables.prefix).open()
        self.later = tables.open()

    def take_after_a_write_was_sent(self, epoch: int) -> None:
        """The shard changes its owner while a write of the former one is under way, which then arrives."""
        self.former.take({SHARD: epoch, shard_of(OTHER[1:]): epoch})
        self.former.table("message").write([Put(ORDERS + b"%d in time" % epoch, {b"v": b"1"})])
        self.proxy.hold()
        held = Put(ORDERS + b"%d late" % epoch, {b"v": b"1"})
        outcomes: list[BasaltError | None] = []
        writing = threading.Thread(target=lambda: outcomes.append(self._write(held)), daemon=True)
        writing.start()
        deadline_s = time.monotonic() + HANG_S
        while not self.proxy.holds(b"late"):
            assert time.monotonic() < deadline_s, "nothing was sent"
            time.sleep(0.01)
        self.later.take({SHARD: epoch + 1})
        self.later.table("message").write([Put(ORDERS + b"%d of the next one" % epoch, {b"v": b"1"})])
        self.proxy.let_go()
        writing.join(HANG_S)
        (self.outcome,) = outcomes

    def _write(self, put: Put) -> BasaltError | None:
        try:
            self.former.table("message").write([put])
        except BasaltError as error:
            return error
        return None

    def rows(self, epoch: int) -> list[bytes]:
        start = ORDERS + b"%d " % epoch
        return [row.key[len(start) :] for row in self.later.table("message").scan(start, start + b"\xff")]

    def close(self) -> None:
        self.former.close()
        self.later.close()
        self.proxy.close()


@pytest.fixture
def owners(tables):
    made = Owners(tables)
    yield made
    made.close()


def test_a_write_held_up_until_its_shard_was_taken_is_refused_and_other_shards_write_on(owners):
    owners.take_after_a_write_was_sent(10)
    assert isinstance(owners.outcome, FencedError)
    assert owners.rows(10) == [b"in time", b"of the next one"]
    owners.former.table("message").write([Put(OTHER, {b"v": b"1"})])
    with pytest.raises(FencedError, match=f"epoch 10 of shard {SHARD}"):
        owners.former.table("message").write([Put(ORDERS, {b"v": b"1"})])


def test_without_the_attribute_such_a_write_lands(owners, monkeypatch):
    """That the test above can fail."""
    stamped = owners.former._stamps.of
    monkeypatch.setattr(
        owners.former._stamps,
        "of",
        lambda table, keys: [stamp._replace(attributes={}) for stamp in stamped(table, keys)],
    )
    owners.take_after_a_write_was_sent(20)
    assert owners.outcome is None
    assert owners.rows(20) == [b"in time", b"late", b"of the next one"]


def test_an_epoch_of_a_shard_that_is_over_cannot_be_taken(owners):
    owners.later.take({SHARD: 31})
    with pytest.raises(FencedError, match="a fence of epoch 30 of shard"):
        owners.former.take({SHARD: 30})
