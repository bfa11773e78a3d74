"""What mutations carry: timestamps above all before in the same row, whatever the clocks say, and the epoch of the row's owner."""

from __future__ import annotations

import pytest

from basalt_engine.errors import FencedError, InputError
from basalt_engine.stores.hbase.stamps import EPOCH, SHARD, TIME_BITS, Stamps, encode_fence
from basalt_engine.stores.shards import EPOCH_MAX, SHARDS, every_shard, shard_of
from tests.vector_lines import cases

ORDERS, BILLS = b"\0shop:orders:", b"\0shop:bills:"  # rows of two topics
ORDERS_SHARD, BILLS_SHARD = shard_of(ORDERS[1:]), shard_of(BILLS[1:])


@pytest.fixture
def stamps(clock):
    return Stamps(clock.now_ms)


def of(stamps, key=b"k"):
    return stamps.one("message", key).timestamp


def test_each_write_has_a_timestamp_above_the_last_one_even_when_the_clock_stands_or_goes_back(stamps, clock):
    found = [of(stamps), of(stamps)]
    clock.step(1_000)
    found += [of(stamps), of(stamps)]
    assert found == sorted(set(found))


def test_a_later_leader_writes_above_every_earlier_one(stamps, clock):
    later = Stamps(lambda: 0)
    stamps.lead(4)
    clock.step((1 << TIME_BITS) - 1_000)  # as far ahead as a clock can be
    last = of(stamps)
    later.lead(5)
    assert of(later) > last


def test_a_later_owner_of_a_shard_writes_above_every_earlier_one_whoever_led(stamps, clock):
    """Also one who led under a far higher epoch, and had other shards longer."""
    later = Stamps(lambda: 0)
    stamps.lead(100)
    stamps.take({ORDERS_SHARD: 3, BILLS_SHARD: 90})
    of(stamps, BILLS)
    stamps.saw("message", BILLS, 95 << TIME_BITS)
    clock.step((1 << TIME_BITS) - 1_000)
    last = [of(stamps, ORDERS), of(stamps, ORDERS)]
    later.take({ORDERS_SHARD: 4})
    assert of(later, ORDERS) > max(last)


def test_a_shard_that_moves_there_and_back_is_written_above_what_the_other_one_wrote(stamps, clock):
    other = Stamps(lambda: clock.now_ms() + 3_600_000)
    found = []
    for turn, owner in enumerate((stamps, other, stamps, other)):
        owner.take({ORDERS_SHARD: 1 + turn})
        found += [of(owner, ORDERS), of(owner, ORDERS)]
    assert found == sorted(set(found))


def test_who_read_a_row_writes_above_it(stamps):
    for key in (ORDERS, BILLS, b"k"):
        of(stamps, key)
    stamps.saw("message", ORDERS, 7 << TIME_BITS)
    assert of(stamps, ORDERS) == (7 << TIME_BITS) + 1
    assert of(stamps, BILLS) < 7 << TIME_BITS
    assert of(stamps) < 7 << TIME_BITS


@pytest.mark.parametrize(("data", "meaning"), cases("hbase-timestamps"))
def test_a_timestamp_is_made_of_the_epoch_and_a_number(data, meaning):
    stamps = Stamps(lambda: meaning["number"])
    stamps.lead(meaning["epoch"])
    assert of(stamps).to_bytes(8) == data
    if meaning["epoch"]:
        stamps.take({ORDERS_SHARD: meaning["epoch"]})
        assert of(stamps, ORDERS).to_bytes(8) == data


def test_timestamps_stay_what_hbase_can_hold(stamps):
    stamps.lead(EPOCH_MAX)
    assert 0 < of(stamps) < (1 << 63) - 1
    for epoch in (-1, EPOCH_MAX + 1):
        with pytest.raises(InputError):
            stamps.lead(epoch)
        with pytest.raises(InputError):
            stamps.take({0: epoch})


def test_who_leads_nothing_and_owns_nothing_writes_every_row_without_an_attribute(stamps):
    assert [stamp.attributes for stamp in stamps.of("message", [b"k", ORDERS])] == [{}, {}]


def test_a_row_carries_the_epoch_of_its_shard_and_a_row_of_none_the_leaders(stamps):
    stamps.lead(9)
    stamps.take({ORDERS_SHARD: 3, BILLS_SHARD: 5})
    found = stamps.of("message", [ORDERS + b"1", b"k", BILLS, ORDERS + b"2"])
    assert [stamp.attributes for stamp in found] == [
        {SHARD: ORDERS_SHARD.to_bytes(2) + (3).to_bytes(6)},
        {EPOCH: (9).to_bytes(8)},
        {SHARD: BILLS_SHARD.to_bytes(2) + (5).to_bytes(6)},
        {SHARD: ORDERS_SHARD.to_bytes(2) + (3).to_bytes(6)},
    ]
    assert found[0].timestamp == found[3].timestamp  # one call


@pytest.mark.parametrize("owns", ["leads", "owns another"])
def test_who_leads_or_owns_writes_to_no_shard_that_it_has_not_taken(stamps, owns):
    if owns == "leads":
        stamps.lead(9)
    else:
        stamps.take({BILLS_SHARD: 3})
    with pytest.raises(FencedError, match=f"shard {ORDERS_SHARD}, which this server has not taken"):
        stamps.one("message", ORDERS)


@pytest.mark.parametrize(("data", "meaning"), cases("hbase-fences"))
def test_a_fence_is_written_as_its_vector_says(data, meaning):
    shards = {shard: epoch for first, last, epoch in meaning["ranges"] for shard in range(first, last + 1)}
    assert encode_fence(meaning["leader_epoch"], shards) == data


def test_a_fence_of_shards_that_all_differ_is_ten_kilobytes():
    assert len(encode_fence(0, {shard: shard + 1 for shard in range(SHARDS)})) == 11 + 10 * SHARDS
    assert len(encode_fence(0, every_shard(7))) == 21
