"""Message rows over a store: the topic's order out of any spread, within limits, and damage refused as corruption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import TopicKeys, position, position_fields
from basalt_engine.messages import (
    MERGED_SPAN_MS_MAX,
    MessageRow,
    MessageTable,
    ProducerNumbers,
    Reference,
    decode_producers,
    decode_row,
    encode_producers,
    merged_producers,
)
from basalt_engine.records import decode, encode, merge
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import Delete, Mutation, Put, Row, Table
from tests.vector_lines import cases, lines, unhex

relaxed = settings(deadline=None)

KEYS = TopicKeys(b"shop:orders:", 2, 16)
BATCH = encode([b"one"])
PLACES = st.tuples(st.integers(0, 5) | st.sampled_from([2**31, 2**63 - 1]), st.sampled_from([0, 1, 255, 256, 65_535]))
POSITIONS = PLACES.map(lambda place: position(*place))
LONGS = st.integers(1, 2**63 - 1)
REFERENCES = st.builds(Reference, POSITIONS, POSITIONS, st.integers(1, 2**32 - 1))


@st.composite
def rows(draw: st.DrawFn) -> MessageRow:
    where, expire_ms = draw(POSITIONS), draw(st.none() | st.integers(0, 2**63 - 1))
    writer = draw(LONGS.flatmap(lambda pointer: st.sampled_from([pointer, -pointer])))
    if draw(st.booleans()):
        return MessageRow(where, writer, None, draw(REFERENCES), expire_ms)
    return MessageRow(where, draw(st.sampled_from([None, writer])), BATCH, None, expire_ms)


@st.composite
def merged_topics(draw: st.DrawFn) -> tuple[list[bytes], list[MessageRow]]:
    """The positions of messages, and the rows, some of them merged, in which they are stored."""
    places = sorted(draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1)))
    found, at = list[MessageRow](), 0
    while at < len(places):
        some = places[at : at + draw(st.integers(1, 5))]
        if len(some) == 1:
            found.append(row_at(position(*some[0])))
        else:
            found.append(row_at(position(*some[-1]), merge([(position(*place), decode(BATCH)) for place in some])))
        at += len(some)
    return [position(*place) for place in places], found


def messages_of(rows: Iterable[MessageRow]) -> list[bytes]:
    """The positions of the messages in rows of one millisecond each."""
    places = []
    for row in rows:
        assert row.batch is not None
        assert not row.is_merged
        ms, last = position_fields(row.position)
        places += [position(ms, number) for number in range(last - decode(row.batch).count + 1, last + 1)]
    return places


class Interrupted(MemoryTable):
    """A table in which something is written while it is scanned, as soon as the first row was taken."""

    def __init__(self, store: Table, meanwhile: Sequence[Mutation]) -> None:
        self._whole = store
        self._meanwhile = list(meanwhile)

    def scan(self, start: bytes, stop: bytes | None, **limits: Any) -> Iterator[Row]:
        rows = list(self._whole.scan(start, stop, **limits))  # as they are when it begins
        yield from rows[:1]
        self._whole.write(self._meanwhile)
        self._meanwhile = []
        yield from rows[1:]


def table() -> MemoryTable:
    return MemoryStore().table(MessageTable.name)


def row_at(where: bytes, batch: bytes = BATCH) -> MessageRow:
    return MessageRow(where, None, batch)


@relaxed
@given(rows())
def test_a_row_comes_back_as_it_was_with_the_key_it_was_read_from(row: MessageRow) -> None:
    put = MessageTable.put(KEYS, row)
    assert decode_row(Row(*put)) == row._replace(key=put.key)


@relaxed
@given(st.lists(rows(), max_size=12, unique_by=lambda row: row.position), st.integers(1, 16), st.booleans())
def test_a_scan_merges_the_buckets_into_the_topics_order(found: list[MessageRow], spread: int, reverse: bool) -> None:
    keys, store = KEYS._replace(spread=spread), table()
    store.write([MessageTable.put(keys, row) for row in found])
    expected = sorted((row.position for row in found), reverse=reverse)
    scanned = list(MessageTable(store).scan(keys, reverse=reverse))
    assert [row.position for row in scanned] == expected
    assert [row._replace(key=b"") for row in scanned] == sorted(found, key=lambda row: row.position, reverse=reverse)


@relaxed
@given(st.sets(POSITIONS, max_size=12), st.integers(1, 16), POSITIONS, st.none() | POSITIONS, st.booleans())
def test_a_scan_starts_at_one_position_and_stops_before_another(
    places: set[bytes], spread: int, start: bytes, stop: bytes | None, reverse: bool
) -> None:
    keys, store = KEYS._replace(spread=spread), table()
    store.write([MessageTable.put(keys, row_at(where)) for where in places])
    expected = [where for where in sorted(places, reverse=reverse) if where >= start and (stop is None or where < stop)]
    scanned = MessageTable(store).scan(keys, start, stop, reverse=reverse)
    assert [row.position for row in scanned] == expected


MERGED_BOUNDS = st.builds(position, st.integers(0, 4), st.integers(0, 4))


@settings(deadline=None, max_examples=300)
@given(merged_topics(), MERGED_BOUNDS, st.none() | MERGED_BOUNDS, st.booleans(), st.booleans())
def test_a_scan_finds_the_messages_of_a_range_however_they_were_merged(
    topic: tuple[list[bytes], list[MessageRow]], start: bytes, stop: bytes | None, behind: bool, reverse: bool
) -> None:
    (places, found), store = topic, table()
    store.write([MessageTable.put(KEYS, row) for row in found])
    start += b"\0" * behind
    expected = [place for place in places if place >= start and (stop is None or place < stop)]
    scanned = list(MessageTable(store).scan(KEYS, start, stop, reverse=reverse))
    assert messages_of(scanned[::-1] if reverse else scanned) == expected
    assert [row.position for row in scanned] == sorted((row.position for row in scanned), reverse=reverse)


@settings(deadline=None, max_examples=300)
@given(merged_topics(), MERGED_BOUNDS, st.none() | MERGED_BOUNDS, st.booleans())
def test_a_scan_finds_each_message_once_while_rows_are_merged(
    topic: tuple[list[bytes], list[MessageRow]], start: bytes, stop: bytes | None, reverse: bool
) -> None:
    (places, merged_rows), store = topic, table()
    singles = [MessageTable.put(KEYS, row_at(place)) for place in places]
    store.write(singles)
    kept = [MessageTable.put(KEYS, row) for row in merged_rows]
    gone = {put.key for put in singles} - {put.key for put in kept}
    meanwhile: list[Mutation] = [*kept, *map(Delete, sorted(gone))]
    expected = [place for place in places if place >= start and (stop is None or place < stop)]
    scanned = list(MessageTable(Interrupted(store, meanwhile)).scan(KEYS, start, stop, reverse=reverse))
    assert messages_of(scanned[::-1] if reverse else scanned) == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_messages_before_a_place_are_found_in_a_row_a_minute_behind_it(reverse: bool) -> None:
    store, places = table(), [position(5, 0), position(5 + MERGED_SPAN_MS_MAX, 0)]
    row = row_at(places[-1], merge([(place, decode(BATCH)) for place in places]))
    store.write([MessageTable.put(KEYS, row)])
    (found,) = MessageTable(store).scan(KEYS, stop=position(5, 1), reverse=reverse)
    assert (found.position, found.batch) == (places[0], BATCH)


def test_stored_rows_are_as_they_are_stored() -> None:
    store, places = table(), [position(5, 0), position(6, 0), position(9, 0)]
    row = row_at(places[-1], merge([(place, decode(BATCH)) for place in places]))
    store.write([MessageTable.put(KEYS, row)])
    (found,) = MessageTable(store).stored(KEYS, places[1])
    assert (found.batch, found.first, found.position) == (row.batch, places[0], places[-1])
    assert list(MessageTable(store).stored(KEYS, b"", places[1])) == []


@relaxed
@given(
    st.dictionaries(POSITIONS, st.integers(0, 40), max_size=12),
    st.integers(1, 4),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(1, 400),
    st.booleans(),
)
def test_limits_end_a_merged_scan_without_leaving_a_row_out(
    sizes: dict[bytes, int], spread: int, rows_max: int | None, bytes_max: int | None, reverse: bool
) -> None:
    """Rows of one bucket may be large and those of its neighbour small: the limits count them together."""
    keys, store = KEYS._replace(spread=spread), table()
    puts = {where: MessageTable.put(keys, row_at(where, bytes(size))) for where, size in sizes.items()}
    store.write(list(puts.values()))
    expected, read_bytes = list[bytes](), 0
    for where in sorted(sizes, reverse=reverse)[: len(sizes) if rows_max is None else rows_max]:
        expected.append(where)
        read_bytes += len(puts[where].key) + sizes[where]
        if bytes_max is not None and read_bytes >= bytes_max:
            break
    scanned = MessageTable(store).scan(keys, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max)
    assert [row.position for row in scanned] == expected


@relaxed
@given(st.sets(POSITIONS, max_size=8), st.integers(1, 16), POSITIONS)
def test_the_first_and_the_last_row_are_those_of_all_buckets(places: set[bytes], spread: int, start: bytes) -> None:
    keys, store = KEYS._replace(spread=spread), table()
    store.write([MessageTable.put(keys, row_at(where)) for where in places])
    messages = MessageTable(store)
    first, last, later = messages.first(keys), messages.last(keys), messages.first(keys, start)
    assert (first and first.position) == min(places, default=None)
    assert (last and last.position) == max(places, default=None)
    assert (later and later.position) == min((where for where in places if where >= start), default=None)


def test_a_scan_over_the_widest_spread_finds_what_narrower_ones_wrote() -> None:
    store = table()
    places = [position(1_000 + number, number) for number in range(30)]
    for number, where in enumerate(places):
        store.write([MessageTable.put(KEYS._replace(spread=(1, 4, 2)[number % 3]), row_at(where))])
    assert [row.position for row in MessageTable(store).scan(KEYS._replace(spread=4))] == places


def test_a_scan_sees_no_other_topic_and_no_other_generation() -> None:
    store, where = table(), position(1_000, 0)
    others = [
        KEYS._replace(generation=1),
        KEYS._replace(generation=3),
        KEYS._replace(prefix=b"shop:orders-:"),
        KEYS._replace(prefix=b"shop:order:"),
        KEYS._replace(prefix=b"a-shop:orders:"),
    ]
    for keys in others:
        for spread in (1, 16):
            store.write([MessageTable.put(keys._replace(spread=spread), row_at(where))])
    assert list(MessageTable(store).scan(KEYS._replace(spread=16))) == []
    assert MessageTable(store).first(KEYS) is None
    assert MessageTable(store).last(KEYS) is None


def test_a_roll_back_negates_the_writer_and_changes_nothing_else() -> None:
    store, row = table(), MessageRow(position(1, 0), 77, BATCH, None, 9_000)
    put = MessageTable.put(KEYS, row)
    store.write([put])
    store.write([MessageTable.roll_back(put.key, 77)])
    assert list(MessageTable(store).scan(KEYS)) == [row._replace(written_by=-77, key=put.key)]


def test_what_a_roll_back_leaves_of_a_row_that_was_dropped_is_passed_over() -> None:
    store, places = table(), [position(ms, 1) for ms in range(1, 7)]
    store.write([MessageTable.put(KEYS, row_at(where)) for where in places[2:4]])
    husks = [KEYS.message_key(*position_fields(where)) for where in (*places[:2], *places[4:])]
    store.write([MessageTable.roll_back(key, 17) for key in husks])
    messages = MessageTable(store)
    assert [row.position for row in messages.scan(KEYS)] == places[2:4]
    ends = messages.first(KEYS), messages.last(KEYS)
    assert [row and row.position for row in ends] == places[2:4]
    assert messages.first(KEYS, places[4]) is None
    store.write([Put(husks[0], {b"t": (17).to_bytes(8, "big")})])
    with pytest.raises(CorruptionError):
        messages.first(KEYS)


def test_whole_generations_and_what_is_older_than_a_time_are_ranges_of_their_bucket() -> None:
    store = table()
    keys = KEYS._replace(spread=3)
    for generation in (1, 2, 3):
        for ms in (10, 11, 12):
            store.write([MessageTable.put(keys._replace(generation=generation), row_at(position(ms, 0)))])
    messages = MessageTable(store)
    for salt in keys.scanned():
        store.write([MessageTable.whole_generations(keys, salt, 2), MessageTable.before(keys, salt, 12)])
    left = {generation: list(messages.scan(keys._replace(generation=generation))) for generation in (1, 2, 3)}
    assert [position_fields(row.position)[0] for row in left[2]] == [12]
    assert (len(left[1]), len(left[3])) == (0, 3)


def test_the_size_is_that_of_the_generations_rows() -> None:
    store = table()
    messages = MessageTable(store)
    assert messages.size_bytes(KEYS) == 0
    store.write([MessageTable.put(KEYS, row_at(position(1, 0), bytes(1_000)))])
    store.write([MessageTable.put(KEYS._replace(generation=3), row_at(position(1, 0), bytes(5_000)))])
    assert 1_000 <= messages.size_bytes(KEYS) < 1_200


GOOD = unhex(lines("message-rows")[1][2]["columns"])
WHERE = KEYS.message_key(1, 0)
LONG = bytes(7) + b"\x05"


def test_the_row_of_the_following_tests_is_good() -> None:
    assert decode_row(Row(WHERE, GOOD)).written_by == 1_700_000_000_000_000_001


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({}, id="no columns"),
        pytest.param({b"t": LONG}, id="a writer alone"),
        pytest.param({b"x": LONG}, id="an expiry alone"),
        pytest.param({**GOOD, b"r": bytes(24)}, id="both a batch and a reference"),
        *(pytest.param({**GOOD, b"t": bytes(length)}, id=f"t of {length} bytes") for length in (0, 1, 7, 9, 16)),
        *(pytest.param({**GOOD, b"x": bytes(length)}, id=f"x of {length} bytes") for length in (0, 7, 9)),
        *(pytest.param({b"r": bytes(length)}, id=f"r of {length} bytes") for length in (0, 20, 23, 25)),
        pytest.param({**GOOD, b"t": bytes(8)}, id="a writer of zero"),
        pytest.param({**GOOD, b"t": b"\x80" + bytes(7)}, id="a writer that no pointer negated makes"),
        pytest.param({**GOOD, b"x": b"\xff" * 8}, id="an expiry before all time"),
    ],
)
def test_columns_that_no_row_can_have_are_corrupt(columns: dict[bytes, bytes]) -> None:
    store = table()
    with pytest.raises(CorruptionError, match=WHERE.hex()):
        decode_row(Row(WHERE, columns))
    if columns:
        store.write([Put(WHERE, columns)])
        with pytest.raises(CorruptionError):
            list(MessageTable(store).scan(KEYS))


@relaxed
@given(
    st.dictionaries(
        st.sampled_from([b"p", b"t", b"x", b"r", b"z"]), st.binary(max_size=26) | st.binary(min_size=8, max_size=8)
    )
)
def test_any_columns_are_a_row_or_corrupt(columns: dict[bytes, bytes]) -> None:
    try:
        row = decode_row(Row(WHERE, columns))
    except CorruptionError:
        return
    known = {column: value for column, value in columns.items() if column != b"z"}
    assert MessageTable.put(KEYS, row).columns == known


MESSAGE_ROWS = [case for case in cases("message-rows") if case.values[1]["table"] == "message"]


@pytest.mark.parametrize(("data", "meaning"), MESSAGE_ROWS)
def test_a_message_row_vector_has_its_meaning_and_its_bytes(data: bytes, meaning: dict[str, Any]) -> None:
    row = decode_row(Row(data, unhex(meaning["columns"])))
    refers = meaning["reference"]
    reference = None
    if refers is not None:
        reference = Reference(
            position(refers["firstMs"], refers["firstSequence"]),
            position(refers["lastMs"], refers["lastSequence"]),
            refers["messages"],
        )
    assert (row.written_by, row.expire_ms, row.reference) == (meaning["writtenBy"], meaning["expireMs"], reference)
    numbered = unhex(meaning["columns"]).get(b"d")
    producers = None if numbered is None else decode_producers(numbered)
    assert {name.decode(): [*numbers] for name, numbers in (producers or {}).items()} == meaning.get("producers", {})
    row = row._replace(producers=producers)
    keys = TopicKeys(b"shop:orders:", 1, 16)
    assert MessageTable.put(keys, row) == Put(data, unhex(meaning["columns"]))


# Column d.

PRODUCER = st.binary(min_size=1, max_size=64)
NUMBERS = st.integers(0, 2**63 - 1).flatmap(
    lambda last: st.tuples(st.just(last), st.integers(1, min(last + 1, 2**32 - 1)))
)


@relaxed
@given(st.dictionaries(PRODUCER, NUMBERS, min_size=1))
def test_producers_come_back_as_they_were(producers: ProducerNumbers) -> None:
    assert decode_producers(encode_producers(producers)) == producers


@relaxed
@given(
    st.binary(max_size=40) | st.dictionaries(PRODUCER, NUMBERS, min_size=1).map(encode_producers).map(lambda d: d[:-1])
)
def test_any_bytes_are_producers_in_their_one_encoding_or_corrupt(data: bytes) -> None:
    try:
        producers = decode_producers(data)
    except CorruptionError:
        return
    assert encode_producers(producers) == data


@pytest.mark.parametrize(
    "data",
    ["", "00" + "00" * 8 + "00000001", "0170" + "00" * 8, "0170" + "00" * 8 + "00000000", "0170" + "00" * 8 + "00000002",
     "0170" + "ff" * 8 + "00000001", "0171" + "00" * 8 + "00000001" + "0170" + "00" * 8 + "00000001",
     ("0170" + "00" * 8 + "00000001") * 2, "41" + "70" * 65 + "00" * 8 + "00000001"],
)  # fmt: skip
def test_a_column_d_that_no_row_can_have_is_corrupt_and_names_its_row(data: str) -> None:
    with pytest.raises(CorruptionError):
        decode_producers(bytes.fromhex(data))
    store = table()
    store.write([Put(WHERE, {b"p": BATCH, b"d": bytes.fromhex(data)})])
    with pytest.raises(CorruptionError, match=WHERE.hex()):
        list(MessageTable(store).numbered(KEYS, b""))
    assert len(list(MessageTable(store).scan(KEYS))) == 1  # readers of messages pass over it


def with_producers(producers: ProducerNumbers | None) -> MessageRow:
    return MessageRow(position(1, 0), None, BATCH, producers=producers)


def test_numbers_of_merged_rows_are_those_of_the_later_row_and_all_messages_together() -> None:
    rows = [with_producers(each) for each in ({b"p": (4, 2), b"q": (9, 1)}, None, {b"p": (7, 3), b"r": (0, 1)})]
    assert merged_producers(rows) == {b"p": (7, 5), b"q": (9, 1), b"r": (0, 1)}
    assert rows[0].producers == {b"p": (4, 2), b"q": (9, 1)}
    assert merged_producers(rows[1:2]) is None


def test_a_producer_that_began_anew_is_where_the_later_row_says() -> None:
    assert merged_producers([with_producers({b"p": (last, messages)}) for last, messages in ((40, 3), (0, 1))]) == {
        b"p": (0, 1)
    }


def test_numbers_behind_a_position_are_read_without_payloads_over_all_buckets() -> None:
    store, keys = table(), KEYS._replace(spread=4)
    numbered: dict[bytes, ProducerNumbers] = {position(ms, 0): {b"p": (ms, 1)} for ms in range(0, 20, 2)}
    rows = [MessageRow(position(ms, 0), None, BATCH, producers=numbered.get(position(ms, 0))) for ms in range(20)]
    store.write([MessageTable.put(keys, row) for row in rows])
    for after in (b"", position(0, 0), position(7, 0), position(18, 0)):
        found = dict(MessageTable(store).numbered(keys, after))
        assert found == {where: each for where, each in numbered.items() if where > after}
