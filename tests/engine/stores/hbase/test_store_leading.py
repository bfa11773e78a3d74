"""Leading: fences to every region, the epoch on every mutation, and what a refused write means."""

from __future__ import annotations

import threading

import pytest

import basalt_engine.stores.hbase.gateway as gateway_module
import basalt_engine.stores.hbase.store as store_module
from basalt_engine.errors import CorruptionError, FencedError, InputError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.gateway import NoTableError, refused_read, refused_write
from basalt_engine.stores.hbase.regions import Region, find_hole
from basalt_engine.stores.hbase.stamps import FENCE, SHARD, encode_fence
from basalt_engine.stores.hbase.store import FENCES_MAX, LOG
from basalt_engine.stores.hbase.table import CELL_BYTES_MAX
from basalt_engine.stores.shards import SHARDED_TABLES, every_shard, shard_of
from basalt_engine.table import TABLE_NAMES, Delete, DeleteRange, Insert, Put, TableWrite
from tests.engine.stores.hbase.fake_gateway import nothing

FENCED = (
    "org.apache.hadoop.hbase.DoNotRetryIOException: FencedException: basalt fenced: region epoch 7 is above 6\n"
    "\tat io.basalt.hbase.fence.Fence.check(Fence.java:1)"
)
ORDERS = b"\0shop:orders:"  # a row of this topic
ORDERS_SHARD = shard_of(ORDERS[1:])
# As HBase 2.6.1 wrote it for the region of keys from 01 to 02.
REGION_INFO = bytes.fromhex(
    "50425546 08d2f8af8aa034 1216 0a07 64656661756c74 120b 68316d2e6d657373616765 1a0101 220102 2800 3000 3800"
)


def region_info(start, stop, *, offline=0, split=0):
    bounds = b"\x1a" + bytes([len(start)]) + start + b'"' + bytes([len(stop)]) + stop
    return b"PBUF\x08\x01" + bounds + bytes([0x28, offline, 0x30, split, 0x38, 0])


def add_region(fake, table, start, stop, number, **flags):
    name = b"t.%s,%s,%d.%032x." % (table.encode(), start, number, number)
    cells = {
        b"regioninfo": region_info(start, stop, **flags),
        b"server": b"rs1:16020",
        b"serverstartcode": (1_795_316_763_554).to_bytes(8, "big"),
    }
    for qualifier, value in cells.items():
        fake.handler.tables[b"hbase:meta"].cells[name][qualifier] = 1, value
    return name


@pytest.fixture
def regions(fake):
    """Each table has one region; messages have three, and a parent that was split into the last two."""
    for number, table in enumerate(TABLE_NAMES[1:]):
        add_region(fake, table, b"", b"", number)
    add_region(fake, "message", b"", b"\x01", 10)
    add_region(fake, "message", b"\x01", b"", 11, offline=1, split=1)
    add_region(fake, "message", b"\x01", b"\x01,", 12)
    add_region(fake, "message", b"\x01,", b"", 13)


def fences(fake):
    return [(table, found[FENCE]) for _, table, found in fake.handler.attributes if FENCE in found]


def test_regions_are_read_from_meta_without_those_that_were_split(fake, store, regions):
    found = store.regions("message")
    assert [(region.start, region.stop) for region in found] == [(b"", b"\x01"), (b"\x01", b"\x01,"), (b"\x01,", b"")]
    assert {region.server for region in found} == {"rs1,16020,1795316763554"}
    assert found[2].id == f"{13:032x}"
    assert find_hole(found) is None


def test_a_region_is_read_as_hbase_writes_it(fake, store):
    name = add_region(fake, "message", b"\x01", b"\x02", 1)
    fake.handler.tables[b"hbase:meta"].cells[name][b"regioninfo"] = 1, REGION_INFO
    assert store.regions("message") == [
        Region("message", f"{1:032x}", name, b"\x01", b"\x02", "rs1,16020,1795316763554")
    ]


@pytest.mark.parametrize("cut", range(len(REGION_INFO)))
def test_a_damaged_description_of_a_region_is_never_another_region(fake, store, cut):
    name = add_region(fake, "message", b"\x01", b"\x02", 1)
    fake.handler.tables[b"hbase:meta"].cells[name][b"regioninfo"] = 1, REGION_INFO[:cut]
    try:
        found = store.regions("message")
    except CorruptionError:
        return
    assert [region.name for region in found] == [
        name
    ]  # only flags that are 0 anyway were cut off, or a bound is missing
    assert cut in (4, 11, 35, 38, 41, 43, 45)


def test_regions_of_tables_with_similar_names_are_not_mixed(fake, store):
    add_region(fake, "message", b"", b"", 1)
    add_region(fake, "message2", b"", b"", 2)
    add_region(fake, "messag", b"", b"", 3)
    assert [region.name[:10] for region in store.regions("message")] == [b"t.message,"]


def test_a_hole_between_regions_is_found():
    def region(start, stop):
        return Region("message", "a", b"t,,1.a.", start, stop, "")

    assert find_hole([]) == b""
    assert find_hole([region(b"a", b"")]) == b""
    assert find_hole([region(b"", b"a"), region(b"b", b"")]) == b"a"
    assert find_hole([region(b"", b"b"), region(b"a", b"")]) == b"b"
    assert find_hole([region(b"", b"b")]) == b"b"
    assert find_hole([region(b"", b"b"), region(b"b", b"")]) is None


def test_whoever_leads_sends_a_fence_to_each_region(fake, store, regions):
    store.lead(7)
    fence = encode_fence(7, {})
    assert sorted(fences(fake)) == sorted(
        [(f"t.{name}".encode(), fence) for name in TABLE_NAMES[1:] if name != LOG] + [(b"t.message", fence)] * 3
    )
    fenced_rows = {key for key, _ in fake.handler.tables[b"t.message"].deleted}
    assert fenced_rows == {b"\0", b"\x01", b"\x01,"}


def test_whoever_takes_shards_sends_a_fence_to_each_region_that_may_hold_their_rows(fake, store, regions):
    store.take({3: 5, 4: 5, 9: 2})
    fence = encode_fence(0, {3: 5, 4: 5, 9: 2})
    assert sorted(fences(fake)) == sorted(
        [(f"t.{name}".encode(), fence) for name in SHARDED_TABLES[1:]] + [(b"t.message", fence)] * 3
    )


def test_so_many_fences_are_under_way_at_a_time(fake, store, monkeypatch):
    """The others wait, and the fake answers them all."""
    for number in range(3 * FENCES_MAX):
        start = b"%02d" % number if number else b""
        add_region(fake, "message", start, b"%02d" % (number + 1), number)
    under_way, most, lock, fence = set(), [0], threading.Lock(), store.table("message").fence

    def counted(start, value):
        with lock:
            under_way.add(start)
            most.append(len(under_way))
        fence(start, value)
        with lock:
            under_way.discard(start)

    monkeypatch.setattr(store.table("message"), "fence", counted)
    store.take(every_shard(1))
    assert len(fences(fake)) == 3 * FENCES_MAX
    assert max(most) <= FENCES_MAX


def test_a_fence_that_one_region_refuses_takes_no_shard(fake, store, regions):
    store.take({ORDERS_SHARD: 5})
    fake.fail("deleteSingle", f"refuse:{FENCED}")
    with pytest.raises(FencedError):
        store.take({ORDERS_SHARD: 6})
    del fake.handler.attributes[:]
    store.table("message").write([Put(ORDERS, {b"v": b"1"})])
    assert fake.handler.attributes[-1][2] == {SHARD: ORDERS_SHARD.to_bytes(2) + (5).to_bytes(6)}


def test_a_region_that_splits_while_it_is_fenced_is_fenced_in_its_daughters(fake, store):
    for number, table in enumerate(TABLE_NAMES):
        add_region(fake, table, b"", b"", number)
    make = fake.handler.deleteSingle

    def split_after_first(table, delete):
        make(table, delete)
        if table == b"t.message" and len(store.regions("message")) == 1:
            add_region(fake, "message", b"", b"", 0, offline=1, split=1)
            add_region(fake, "message", b"", b"k", 21)
            add_region(fake, "message", b"k", b"", 22)

    def without_lock(table, delete):
        fake.handler.lock.release()
        try:
            split_after_first(table, delete)
        finally:
            fake.handler.lock.acquire()

    fake.handler.deleteSingle = without_lock
    store.lead(7)
    assert [table for table, _ in fences(fake)].count(b"t.message") == 3


@pytest.mark.parametrize(("splits", "leads"), [(2, True), (3, False)])
def test_regions_that_go_on_splitting_are_fenced_for_a_bounded_number_of_rounds(
    fake, store, monkeypatch, splits, leads
):
    monkeypatch.setattr(store_module, "FENCE_ROUNDS_MAX", 4)  # the last one sees that nothing is left
    for number, table in enumerate(TABLE_NAMES):
        add_region(fake, table, b"", b"", number)
    fence, left = store.table("message").fence, list(range(splits))

    def fence_and_split(start, values):
        fence(start, values)
        if left:
            number = 100 - left.pop()
            add_region(fake, "message", start, b"k", number)

    monkeypatch.setattr(store.table("message"), "fence", fence_and_split)
    if leads:
        store.lead(7)
        assert [table for table, _ in fences(fake)].count(b"t.message") == 1 + splits
    else:
        with pytest.raises(InputError, match=r"tables message, .* change faster than they can be fenced"):
            store.lead(7)


def test_each_mutation_carries_the_epoch_once_the_store_leads(fake, store, regions):
    table = store.table("system")
    table.write([Put(b"a", {b"v": b"1"})])
    assert all(b"basalt.epoch" not in found for _, _, found in fake.handler.attributes)
    store.lead(7)
    del fake.handler.attributes[:]
    table.write([Put(b"a", {b"v": b"1"}), Put(b"b", {b"v": b"1"}), Delete(b"a"), Insert(b"i", {b"v": b"1"})])
    table.write([DeleteRange(b"b", b"c")])
    table.check_and_write(b"i", b"v", b"1", {b"v": b"2"})
    assert [found for _, _, found in fake.handler.attributes] == [{b"basalt.epoch": (7).to_bytes(8, "big")}] * 6


def test_each_mutation_of_a_topic_carries_its_shard_and_the_epoch_under_which_that_was_taken(fake, store, regions):
    store.lead(7)
    store.take({ORDERS_SHARD: 3})
    del fake.handler.attributes[:]
    table = store.table("message")
    table.write([Put(ORDERS, {b"v": b"1"}), Delete(ORDERS), Insert(ORDERS, {b"v": b"1"})])
    table.check_and_write(ORDERS, b"v", b"1", {b"v": b"2"})
    table.write([DeleteRange(ORDERS, ORDERS + b"\xff")])
    own = {b"basalt.shard": ORDERS_SHARD.to_bytes(2, "big") + (3).to_bytes(6, "big")}
    assert [found for _, _, found in fake.handler.attributes] == [own] * 5
    with pytest.raises(FencedError, match="has not taken"):
        table.write([Put(b"\0shop:bills:", {b"v": b"1"})])
    assert len(fake.handler.attributes) == 5


@pytest.mark.parametrize("mutation", [Put(b"a", {b"v": b"1"}), Delete(b"a"), Insert(b"a", {b"v": b"1"})])
def test_a_write_that_a_region_fences_off_is_a_fenced_error(fake, store, mutation):
    method = {Put: "put", Delete: "deleteMultiple", Insert: "checkAndPut"}[type(mutation)]
    fake.fail(method, f"refuse:{FENCED}")
    with pytest.raises(FencedError, match="region epoch 7 is above 6"):
        store.table("system").write([mutation])


def test_a_fence_of_a_lower_epoch_is_a_fenced_error(fake, store, regions):
    fake.fail("deleteSingle", f"refuse:{FENCED}")
    with pytest.raises(FencedError):
        store.lead(3)


def test_once_a_part_was_written_a_failure_does_not_claim_that_nothing_was(fake, store):
    fake.fail("deleteMultiple", f"refuse:{FENCED}")
    with pytest.raises(UnknownOutcomeError, match="another server leads"):
        store.table("system").write([Put(b"a", {b"v": b"1"}), Delete(b"b")])
    fake.fail("put", nothing, f"refuse:{FENCED}")
    with pytest.raises(UnknownOutcomeError, match="first part"):
        store.write([TableWrite(name, [Put(b"a", {b"v": b"1"})]) for name in ("message", "system")])


@pytest.mark.parametrize(
    ("text", "rows", "error"),
    [
        (FENCED, 1, FencedError),
        (f"Failed 2 actions: {FENCED}: 2 times, servers with issues: rs1,16020,1", 2, FencedError),
        (f"Failed 1 action: {FENCED}: 1 time, servers with issues: rs1,16020,1", 2, UnknownOutcomeError),
        ("org.apache.hadoop.hbase.DoNotRetryIOException: basalt refused: writer 17 is too old", 1, StoreError),
        ("Failed 1 action: basalt refused: writer 17 is too old: 1 time", 2, UnknownOutcomeError),
        ("t.message", 5, NoTableError),
        ("Failed 1 action: NotServingRegionException: 1 time", 1, UnknownOutcomeError),
        ("Failed after attempts=16, exceptions: CallTimeoutException", 1, UnknownOutcomeError),
        ("", 1, UnknownOutcomeError),
    ],
)
def test_a_refused_write_says_that_nothing_was_written_only_when_that_is_sure(text, rows, error):
    assert type(refused_write(text, "t.message", rows)) is error


def test_a_refusal_is_told_without_its_stack():
    told = refused_write(FENCED, "t.message", 1)
    assert "basalt fenced: region epoch 7 is above 6" in told.message
    assert "\tat" not in told.message
    assert "Fence.java" not in told.message
    assert len(refused_read("x" * 10_000, "t.message").message) < 1_000


def test_a_missing_table_is_told_with_what_makes_it(fake, store):
    fake.handler.missing.add(b"t.message")
    with pytest.raises(NoTableError, match=r"no table t\.message") as caught:
        store.table("message").get(b"k")
    assert "basalt hbase install" in caught.value.hint


def test_a_value_that_hbase_would_refuse_is_refused_before_it_is_sent(fake, store, monkeypatch):
    monkeypatch.setattr(gateway_module, "CALL_TIMEOUT_MS", 10_000)
    table = store.table("message")
    table.write([Put(b"k", {b"c": bytes(CELL_BYTES_MAX - 1_000)})])
    for call in (
        lambda: table.write([Put(b"k", {b"c": bytes(CELL_BYTES_MAX)})]),
        lambda: table.write([Insert(b"i", {b"c": bytes(CELL_BYTES_MAX)})]),
        lambda: table.check_and_write(b"k", b"d", None, {b"d": bytes(CELL_BYTES_MAX)}),
        lambda: table.write([Put(b"k", {b"%d" % number: bytes(9 << 20) for number in range(4)})]),
    ):
        with pytest.raises(InputError):
            call()
    assert fake.calls["put"] + fake.calls["checkAndPut"] == 1


def test_an_empty_value_is_told_from_an_absent_one(store):
    table = store.table("system")
    table.write([Put(b"k", {b"empty": b""})])
    assert not table.check_and_write(b"k", b"empty", None, {b"v": b"1"})
    assert not table.check_and_write(b"k", b"absent", b"", {b"v": b"1"})
    assert table.get(b"k") == {b"empty": b""}


def test_there_is_no_checkpoint_but_the_operators_own(store, tmp_path):
    with pytest.raises(InputError) as caught:
        store.checkpoint(tmp_path)
    assert "snapshot" in caught.value.hint
