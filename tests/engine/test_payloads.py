"""Payload rows over a store: a writer's own, in the order in which it stored them, and up to where they are published."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import TopicKeys, position
from basalt_engine.payloads import BOUND_POSITION, PayloadRow, PayloadTable
from basalt_engine.records import encode
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import Put
from tests.vector_lines import cases, unhex

relaxed = settings(deadline=None)

KEYS = TopicKeys(b"shop:orders:", 1, 16)
BATCH = encode([b"one"])
MINE, OTHER = 1_700_000_000_000_000_001, 1_700_000_000_000_000_002
PLACES = st.tuples(st.integers(0, 3) | st.just(2**63 - 1), st.sampled_from([0, 1, 255, 256, 65_535]))
POSITIONS = PLACES.map(lambda place: position(*place))
STORED = st.sets(POSITIONS, max_size=10)


def table() -> MemoryTable:
    return MemoryStore().table(PayloadTable.name)


def write(store: MemoryTable, places: set[bytes], keys: TopicKeys = KEYS, writer: int = MINE) -> None:
    store.write([PayloadTable.put(keys, writer, PayloadRow(where, BATCH)) for where in places])


def positions(store: MemoryTable, writer: int = MINE) -> list[bytes]:
    first, last = position(0, 0), position(2**64 - 1, 0xFFFE)
    return [row.position for row in PayloadTable(store).scan(KEYS, writer, first, last)]


@relaxed
@given(STORED, POSITIONS, POSITIONS)
def test_a_scan_yields_the_rows_from_the_first_to_the_last_in_order(
    places: set[bytes], first: bytes, last: bytes
) -> None:
    store = table()
    write(store, places)
    expected = [PayloadRow(where, BATCH) for where in sorted(places) if first <= where <= last]
    assert list(PayloadTable(store).scan(KEYS, MINE, first, last)) == expected


@relaxed
@given(STORED, STORED)
def test_a_scan_sees_no_other_writer_topic_or_generation(mine: set[bytes], others: set[bytes]) -> None:
    store = table()
    write(store, mine)
    write(store, others, writer=OTHER)
    write(store, others, KEYS._replace(generation=2))
    write(store, others, KEYS._replace(prefix=b"shop:orders-:"))
    assert positions(store) == sorted(mine)


@relaxed
@given(STORED, st.none() | POSITIONS)
def test_what_lies_after_the_bound_is_not_published_yet(places: set[bytes], bound: bytes | None) -> None:
    store = table()
    write(store, places)
    write(store, places, writer=OTHER)
    if bound is not None:
        store.write([PayloadTable.bind(KEYS, MINE, bound)])
    found, rows = PayloadTable(store).unbound(KEYS, MINE)
    assert found == bound
    assert [row.position for row in rows] == [where for where in sorted(places) if bound is None or where > bound]


def test_a_later_bound_takes_the_place_of_the_earlier_one() -> None:
    store = table()
    for where in (position(1, 0), position(2, 7)):
        store.write([PayloadTable.bind(KEYS, MINE, where)])
    assert PayloadTable(store).unbound(KEYS, MINE)[0] == position(2, 7)


def test_the_bound_row_lies_behind_every_payload_row_of_its_writer() -> None:
    bound = PayloadTable.bind(KEYS, MINE, position(1, 0)).key
    assert bound[-10:] == BOUND_POSITION
    assert KEYS.payload_key(MINE, 2**63 - 1, 0xFFFF) < bound
    assert bound == KEYS.payload_key(MINE, 2**64 - 1, 0xFFFF)


@relaxed
@given(STORED, POSITIONS)
def test_removing_from_a_position_on_takes_the_bound_row_along(places: set[bytes], start: bytes) -> None:
    store = table()
    write(store, places)
    write(store, places, writer=OTHER)
    store.write([PayloadTable.bind(KEYS, MINE, position(0, 0)), PayloadTable.remove(KEYS, MINE, start)])
    assert positions(store) == [where for where in sorted(places) if where < start]
    assert positions(store, OTHER) == sorted(places)
    assert PayloadTable(store).unbound(KEYS, MINE)[0] is None


@relaxed
@given(STORED, POSITIONS, POSITIONS)
def test_removing_the_rows_of_a_reference_leaves_all_others(places: set[bytes], first: bytes, last: bytes) -> None:
    first, last = min(first, last), max(first, last)
    store = table()
    write(store, places)
    store.write([PayloadTable.bind(KEYS, MINE, last), PayloadTable.remove_between(KEYS, MINE, first, last)])
    assert positions(store) == [where for where in sorted(places) if not first <= where <= last]
    assert PayloadTable(store).unbound(KEYS, MINE)[0] == last


def test_a_payload_row_without_a_batch_is_corrupt() -> None:
    store = table()
    key = KEYS.payload_key(MINE, 1, 0)
    store.write([Put(key, {b"z": b""})])
    with pytest.raises(CorruptionError, match=key.hex()):
        positions(store)
    with pytest.raises(CorruptionError, match=key.hex()):
        list(PayloadTable(store).unbound(KEYS, MINE)[1])


@pytest.mark.parametrize(
    "columns",
    [
        {b"b": b""},
        {b"b": bytes(9)},
        {b"b": bytes(11)},
        {b"z": bytes(10)},
        {b"b": bytes(10), b"m": bytes(9)},
        {b"b": bytes(10), b"m": b"", b"a": b""},
        {b"b": bytes(10), b"m": bytes(10), b"a": bytes(9)},
        {b"b": bytes(10), b"m": bytes(10)},
    ],
)
def test_a_bound_row_without_a_position_is_corrupt(columns: dict[bytes, bytes]) -> None:
    """Taken for no bound at all, it would have messages published twice."""
    store = table()
    store.write([Put(KEYS.payload_start(MINE) + BOUND_POSITION, columns)])
    with pytest.raises(CorruptionError, match="bound row"):
        PayloadTable(store).unbound(KEYS, MINE)


PAYLOAD_ROWS = [case for case in cases("message-rows") if case.values[1]["table"] == "payload"]


@pytest.mark.parametrize(("data", "meaning"), PAYLOAD_ROWS)
def test_a_payload_row_vector_has_its_bytes(data: bytes, meaning: dict[str, Any]) -> None:
    columns = unhex(meaning["columns"])
    if "bound" in meaning:
        places = [meaning[name] for name in ("bound", "previous", "announced")]
        where, previous, announced = [each and position(each["ms"], each["sequence"]) for each in places]
        assert PayloadTable.bind(KEYS, MINE, where, previous, announced) == Put(data, columns)
    else:
        assert PayloadTable.put(KEYS, MINE, PayloadRow(data[-10:], columns[b"p"])) == Put(data, columns)


def test_a_bound_counts_only_once_the_message_row_that_it_announces_is_there() -> None:
    store, there = table(), set[bytes]()
    write(store, {position(1, 0), position(2, 0)})
    store.write([PayloadTable.bind(KEYS, MINE, position(2, 0), previous=position(1, 0), announced=position(9, 9))])
    bound, rows = PayloadTable(store).unbound(KEYS, MINE, there.__contains__)
    assert (bound, [row.position for row in rows]) == (position(1, 0), [position(2, 0)])
    there.add(position(9, 9))
    bound, rows = PayloadTable(store).unbound(KEYS, MINE, there.__contains__)
    assert (bound, list(rows)) == (position(2, 0), [])
