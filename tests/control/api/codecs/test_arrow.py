"""Arrow streams, against the library that everybody else reads and writes them with: both ways, and damaged in every way."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import LONG_MAX, REQUEST_HEADERS_MAX
from basalt.api.codecs import arrow
from basalt.api.codecs.arrow import (
    COLUMNS,
    END_OF_STREAM,
    Source,
    Stretch,
    decode_messages,
    encode_batch,
    encode_start,
    wanted,
)
from basalt.errors import InputError, MalformedBodyError, TooLargeError, UnsupportedMediaTypeError
from basalt_engine.records import Extras

pa = pytest.importorskip("pyarrow")

VECTORS = Path(__file__).parents[3] / "vectors" / "arrow-streams.tsv"
SOURCE = Source(b"orders", 3)
ALL = tuple(COLUMNS)
HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("id", pa.binary()), ("publish_time", pa.timestamp("us", "UTC")), ("key", pa.binary()),
        ("value", pa.binary()), ("tx_id", pa.string()), ("headers", HEADERS), ("event_time", pa.timestamp("us", "UTC")),
        ("sequence", pa.int64()), ("generation", pa.int64()),
    ]
)  # fmt: skip
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXT = st.text(max_size=5)
CARRIED = st.builds(
    Extras,
    st.none() | st.binary(max_size=5),
    st.lists(st.tuples(TEXT, st.binary(max_size=5)), max_size=3).map(tuple),
    st.none() | st.integers(-LONG_MAX, LONG_MAX) | st.integers(-5, 5),
)


@st.composite
def stretches(draw: st.DrawFn) -> tuple[Stretch, list[bytes]]:
    """A stretch, and its payloads."""
    payloads = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=12))
    count = len(payloads)
    counted_at = draw(st.sampled_from([8, 18]))
    first = draw(st.sampled_from([0, 255, 65_536 - count]))
    template = draw(st.binary(min_size=18, max_size=18))
    first_id = template[:counted_at] + first.to_bytes(2, "big") + template[counted_at:]
    carried = draw(st.none() | st.lists(CARRIED, min_size=count, max_size=count))
    writer = draw(st.none() | st.just(b"ae075de3bc94406518ea6411c4b54680"))
    lengths = struct.pack(f">{count}I", *map(len, payloads))
    publish_ms = draw(st.integers(0, 1 << 50))
    return Stretch(count, first_id, counted_at, publish_ms, writer, lengths, b"".join(payloads), carried), payloads


def micros(time_ms: int | None) -> int | None:
    return None if time_ms is None else max(-LONG_MAX, min(time_ms * 1_000, LONG_MAX))


def rows_of(stretch: Stretch, payloads: list[bytes]) -> list[dict[str, Any]]:
    """The rows, one at a time."""
    number = int.from_bytes(stretch.first_id[stretch.counted_at :][:2], "big")
    rows = []
    for index, payload in enumerate(payloads):
        counted = (number + index).to_bytes(2, "big")
        row_id = stretch.first_id[: stretch.counted_at] + counted + stretch.first_id[stretch.counted_at + 2 :]
        carried = Extras() if stretch.carried is None else stretch.carried[index]
        rows.append(
            {
                "topic": "orders",
                "id": row_id,
                "publish_time": stretch.publish_ms * 1_000,
                "key": carried.key,
                "value": payload,
                "tx_id": None if stretch.tx_id is None else stretch.tx_id.decode(),
                "headers": [{"name": name, "value": value} for name, value in carried.headers],
                "event_time": micros(carried.event_time_ms),
                "sequence": int.from_bytes(row_id[8:10], "big"),
                "generation": 3,
            }
        )
    return rows


def opened(body: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """The schema and rows of a stream as pyarrow reads them, times as numbers."""
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    table.validate(full=True)
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
    return reader.schema, table.to_pylist()


def stream(names: tuple[str, ...], batches: list[list[Stretch]], source: Source = SOURCE) -> bytes:
    parts = [encode_batch(names, batch, source) for batch in batches]
    return b"".join([encode_start(names), *parts, END_OF_STREAM])


@relaxed
@given(st.lists(st.lists(stretches(), min_size=1, max_size=4), max_size=3))
def test_pyarrow_reads_a_range_as_it_was_laid_out(batches: list[list[tuple[Stretch, list[bytes]]]]) -> None:
    body = stream(ALL, [[stretch for stretch, _ in batch] for batch in batches])
    schema, rows = opened(body)
    assert schema.equals(SCHEMA)
    assert rows == [row for batch in batches for stretch, payloads in batch for row in rows_of(stretch, payloads)]
    assert not len(body) % 8


@relaxed
@given(st.lists(stretches(), min_size=1, max_size=4), st.lists(st.sampled_from(ALL), min_size=1, unique=True))
def test_some_columns_are_the_same_as_in_all_of_them(laid: list[tuple[Stretch, list[bytes]]], names: list[str]) -> None:
    chosen = wanted(",".join(names))
    _, rows = opened(stream(chosen, [[stretch for stretch, _ in laid]]))
    everything = [row for stretch, payloads in laid for row in rows_of(stretch, payloads)]
    assert rows == [{name: row[name] for name in names} for row in everything]


def test_each_column_is_laid_out_without_what_it_does_not_need() -> None:
    bare = Stretch(2, bytes(20), 8, 5, None, b"", b"", None)
    for name in set(ALL) - {"value"}:
        _, rows = opened(stream((name,), [[bare]]))
        assert len(rows) == 2, name


@pytest.mark.parametrize(
    ("text", "said"),
    [("valu", "Did you mean value?"), ("id,zzz", "There are topic, id"), ("", "There are"), ("id,id", "once")],
)
def test_columns_that_a_range_has_not_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        wanted(text)
    assert caught.value.field == "columns"
    assert said in str(caught.value.hint)


def test_no_columns_named_are_all() -> None:
    assert wanted(None) == ALL


def written(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


BYTES_TYPES = [pa.binary(), pa.large_binary()]
TEXT_TYPES = [pa.string(), pa.large_string()]
HEADER_TYPES = [
    HEADERS,
    pa.large_list(pa.struct([("name", pa.large_string()), ("value", pa.large_binary())])),
    pa.list_(pa.struct([("value", pa.binary()), ("key", pa.binary())])),
    pa.map_(pa.string(), pa.binary()),
]
TIMES = {
    pa.timestamp("s"): 1_000,
    pa.timestamp("ms", "UTC"): 1,
    pa.timestamp("us"): 0.001,
    pa.timestamp("ns"): 0.000_001,
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, list[bytes], list[Extras]]:
    """A table that may be published, with its values, and what goes with each."""
    values = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=20))
    each = {"min_size": len(values), "max_size": len(values)}
    keys = draw(st.none() | st.lists(st.none() | st.binary(max_size=5), **each))
    names = st.text(min_size=1, max_size=4)
    headers = draw(
        st.none() | st.lists(st.none() | st.lists(st.tuples(names, st.binary(max_size=4)), max_size=3), **each)
    )
    times = draw(st.none() | st.lists(st.none() | st.integers(-(10**9), 10**9), **each))
    ttls = draw(st.none() | st.lists(st.none() | st.integers(1, LONG_MAX), **each))
    columns: dict[str, Any] = {"value": pa.array(values, draw(st.sampled_from(BYTES_TYPES)))}
    if keys is not None:
        columns["key"] = pa.array(keys, draw(st.sampled_from(BYTES_TYPES)))
    if headers is not None:
        columns["headers"] = header_column(headers, draw(st.sampled_from(HEADER_TYPES)))
    if times is not None:
        columns["event_time"] = pa.array(
            [time and time * 1_000 if time else time for time in times], pa.timestamp("us")
        )
    if ttls is not None:
        columns["ttl_ms"] = pa.array(ttls, pa.int64())
    names_in_order = draw(st.permutations(list(columns)))
    nothing: list[Any] = [None] * len(values)
    extras = [
        Extras(key, tuple(header or ()), time, ttl)
        for key, header, time, ttl in zip(
            keys or nothing, headers or nothing, times or nothing, ttls or nothing, strict=True
        )
    ]
    return pa.table({name: columns[name] for name in names_in_order}), values, extras


def header_column(headers: list[list[tuple[str, bytes]] | None], kind: Any) -> Any:
    if pa.types.is_map(kind):
        return pa.array(headers, kind)
    first, second = (kind.value_type.field(number).name for number in range(2))
    if first == "value":
        shaped: list[Any] = [
            None if each is None else [{first: value, second: name.encode()} for name, value in each]
            for each in headers
        ]
    else:
        shaped = [None if each is None else [{first: name, second: value} for name, value in each] for each in headers]
    return pa.array(shaped, kind)


@relaxed
@given(tables(), st.data())
def test_what_pyarrow_wrote_is_read_as_it_was_meant(
    given_table: tuple[Any, list[bytes], list[Extras]], data: st.DataObject
) -> None:
    table, values, extras = given_table
    start = data.draw(st.integers(0, len(values) - 1))  # a slice: buffers with more in them than its rows
    found = decode_messages(
        written(table.slice(start), options=None) if data.draw(st.booleans()) else chunked(table.slice(start))
    )
    assert [bytes(value) for value in found.values] == values[start:]
    expected = extras[start:]
    assert found.extras == (None if all(each == Extras() for each in expected) else expected)


def chunked(table: Any) -> bytes:
    """The table in record batches of two rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("kind", [*BYTES_TYPES, *TEXT_TYPES], ids=str)
def test_values_and_keys_are_bytes_or_text(kind: Any) -> None:
    column = pa.array(["é", "", "x"], pa.string()).cast(kind)
    found = decode_messages(written(pa.table({"value": column, "key": column})))
    assert [bytes(value) for value in found.values] == ["é".encode(), b"", b"x"]
    assert found.extras is not None
    assert [each.key for each in found.extras] == ["é".encode(), b"", b"x"]


@pytest.mark.parametrize(("kind", "unit"), [*TIMES.items(), (pa.int64(), 1)], ids=str)
def test_event_times_come_in_any_unit(kind: Any, unit: float) -> None:
    counts = pa.array([1_700_000_000, -1, None], pa.int64())
    found = decode_messages(written(pa.table({"value": ["a", "b", "c"], "event_time": counts.cast(kind)})))
    assert found.extras is not None
    expected = [int(1_700_000_000 * unit), -1 if unit < 1 else -int(unit), None]
    assert [each.event_time_ms for each in found.extras] == expected


def test_columns_without_any_value_count_as_absent() -> None:
    table = pa.table(
        {"value": ["a", "b"], "key": pa.nulls(2), "headers": pa.nulls(2), "ttl_ms": pa.array([None, None], pa.int64())}
    )
    assert decode_messages(written(table)).extras is None


@pytest.mark.parametrize(
    ("table", "field", "said"),
    [
        (pa.table({"valu": ["a"]}), "valu", "none of a message"),
        (pa.table({"value": ["a"], "topic": ["t"]}), "topic", "none of a message"),
        (pa.table({"key": ["a"]}), "value", "no column value"),
        (pa.table({"value": [1]}), "value", "type int64"),
        (pa.table({"value": pa.nulls(2)}), "value", "type null"),
        (pa.table({"value": ["a"], "key": [1.5]}), "key", "type"),
        (pa.table({"value": pa.array(["a", None])}), "value", "null in row 1"),
        (pa.table({"value": pa.array(["a"]).dictionary_encode()}), "value", "dictionary"),
        (pa.table({"value": ["a"], "ttl_ms": [0]}), "ttl_ms", "in row 0 it is 0 ms"),
        (pa.table({"value": ["a"], "ttl_ms": pa.array([1], pa.int32())}), "ttl_ms", "type"),
        (pa.table({"value": ["a"], "ttl_ms": pa.array([1], pa.uint64())}), "ttl_ms", "type"),
        (pa.table({"value": ["a"], "ttl_ms": pa.array([1], pa.timestamp("ms"))}), "ttl_ms", "type"),
        (pa.table({"value": ["a"], "event_time": pa.array([-(2**63)], pa.int64())}), "event_time", "in row 0"),
        (pa.table({"value": ["a"], "event_time": pa.array([2**62], pa.timestamp("s"))}), "event_time", "in row 0"),
        (pa.table({"value": ["a"], "headers": [["x"]]}), "headers", "type"),
        (pa.table({"value": ["a"], "headers": [[{"name": "x"}]]}), "headers", "type"),
        (pa.table({"value": ["a"], "headers": [[{"name": "x", "other": "y"}]]}), "headers", "type"),
        (pa.table({"value": ["a"], "headers": [[{"name": "x", "value": 1}]]}), "headers", "type"),
        (pa.table({"value": ["a"], "headers": [[{"name": "", "value": "v"}]]}), "headers", "no name"),
        (pa.table({"value": ["a"], "headers": pa.array([[{"name": None, "value": b"v"}]], HEADERS)}), "headers", "no name"),
        (pa.table({"value": ["a", "b"], "headers": [[], [{"name": "x", "value": None}]]}).slice(0, 2), "headers", "type|null"),
        (pa.table({"value": ["a"], "headers": [[{"name": b"\xff", "value": b"v"}]]}), "headers", "not UTF-8"),
        (pa.table({"value": pa.array([], pa.string())}), "value", "no messages"),
        (pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["value", "value"]), "value", "twice"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_by_its_column(table: Any, field: str, said: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        decode_messages(written(table))
    assert caught.value.field == field
    assert any(each in caught.value.message for each in said.split("|"))


def test_compressed_buffers_are_refused_before_anything_is_unpacked() -> None:
    bomb = pa.table({"value": pa.array([b"x" * 100_000], pa.binary())})
    body = written(bomb, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with pytest.raises(MalformedBodyError, match="compressed"):
        decode_messages(body)


GOOD = written(
    pa.table(
        {
            "value": pa.array([b"a", b"", b"ccc"], pa.binary()),
            "key": pa.array([b"k", None, b""], pa.large_binary()),
            "headers": pa.array([[{"name": "h", "value": b"\xff"}], None, []], HEADERS),
            "event_time": pa.array([1, None, -1], pa.timestamp("ns")),
            "ttl_ms": pa.array([None, 5, None], pa.int64()),
        }
    )
)


def read_or_refuse(body: bytes) -> None:
    try:
        found = decode_messages(body)
    except (MalformedBodyError, TooLargeError):
        return
    assert sum(map(len, found.values)) <= len(body)


def test_a_stream_cut_anywhere_is_refused() -> None:
    assert len(decode_messages(GOOD).values) == 3
    for stop in range(len(GOOD)):
        with pytest.raises(MalformedBodyError):
            decode_messages(GOOD[:stop])
    with pytest.raises(MalformedBodyError, match="follow its end"):
        decode_messages(GOOD + bytes(8))


def test_a_stream_with_any_byte_changed_is_read_or_refused() -> None:
    for at in range(len(GOOD)):
        for flipped in (0x01, 0x80, 0xFF):
            read_or_refuse(GOOD[:at] + bytes([GOOD[at] ^ flipped]) + GOOD[at + 1 :])


@settings(deadline=None, max_examples=500)
@given(st.integers(0, len(GOOD) // 4 - 1), st.sampled_from([2**31 - 1, -1, 2**16, -(2**31)]) | st.integers(-64, 64))
def test_a_stream_with_any_number_changed_is_read_or_refused(place: int, number: int) -> None:
    body = bytearray(GOOD)
    struct.pack_into("<i", body, 4 * place, number)
    read_or_refuse(bytes(body))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(0, len(GOOD)))
@example(b"", 0, 0)
def test_any_bytes_are_read_or_refused(middle: bytes, start: int, stop: int) -> None:
    read_or_refuse(GOOD[:start] + middle + GOOD[stop:])
    read_or_refuse(END_OF_STREAM[:4] + len(middle).to_bytes(4, "little") + middle)


def test_counts_that_nothing_stands_behind_are_refused_before_they_are_used() -> None:
    rows = GOOD.index((3).to_bytes(8, "little"))
    for count in (2**40, 2**62, -1):
        body = GOOD[:rows] + count.to_bytes(8, "little", signed=True) + GOOD[rows + 8 :]
        with pytest.raises((MalformedBodyError, TooLargeError)):
            decode_messages(body)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ((0, 3, 1, 4), "no Arrow"),
        ((-1, 1, 1, 4), "no Arrow"),
        ((0, 1, 1, 400), "no Arrow"),
        ((0, 0, 0, 4), None),
    ],
)
def test_offsets_rise_and_end_within_their_bytes(offsets: tuple[int, ...], said: str | None) -> None:
    laid_out = struct.pack("<4i", 0, 1, 1, 4)
    assert GOOD.count(laid_out) == 1
    body = GOOD.replace(laid_out, struct.pack("<4i", *offsets))
    if said is None:
        assert [bytes(value) for value in decode_messages(body).values] == [b"", b"", b"accc"]
        return
    with pytest.raises(MalformedBodyError, match=said):
        decode_messages(body)


def test_more_than_a_call_may_carry_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"value": ["a"] * 10, "headers": [[{"name": "n", "value": "v"}]] * 10})
    with monkeypatch.context() as limited:
        limited.setattr(arrow, "PUBLISH_MESSAGES_MAX", 9)
        with pytest.raises(TooLargeError, match="10 items"):
            decode_messages(written(table))
        with pytest.raises(TooLargeError):
            decode_messages(chunked(table))
    monkeypatch.setattr(arrow, "REQUEST_HEADERS_MAX", 9)
    for body in (written(table), chunked(table)):
        with pytest.raises(TooLargeError, match="headers"):
            decode_messages(body)
    monkeypatch.setattr(arrow, "BATCHES_MAX", 4)
    with pytest.raises(TooLargeError, match="record batches"):
        decode_messages(chunked(table))


@pytest.mark.parametrize("kind", HEADER_TYPES)
def test_too_many_headers_are_refused_before_any_of_them_is_taken_out(kind: Any) -> None:
    """A few bytes of a coded body unfold to a million of them."""
    column = header_column([[("n", b"v")] * (REQUEST_HEADERS_MAX + 1)], kind)
    body = written(pa.table({"value": ["a"], "headers": column}))
    del column
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match="headers"):
            decode_messages(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_one_record_has_a_limit_of_headers_and_a_name_one_of_bytes() -> None:
    many = pa.table({"value": ["a"], "headers": [[{"name": "n", "value": "v"}] * 1_025]})
    long = pa.table({"value": ["a"], "headers": [[{"name": "n" * 65_536, "value": "v"}]]})
    for table in (many, long):
        with pytest.raises(TooLargeError):
            decode_messages(written(table))


def test_a_dictionary_of_a_header_is_refused() -> None:
    kind = pa.list_(pa.struct([("name", pa.dictionary(pa.int32(), pa.string())), ("value", pa.binary())]))
    table = pa.table({"value": ["a"], "headers": pa.array([[{"name": "x", "value": b"y"}]], kind)})
    with pytest.raises(MalformedBodyError):
        decode_messages(written(table))


def test_a_schema_of_very_many_columns_is_refused_at_its_first_strange_one() -> None:
    table = pa.table({"value": ["a"], **{f"c{number}": ["b"] for number in range(900)}})
    with pytest.raises(MalformedBodyError, match="'c0'"):
        decode_messages(written(table))


def vectors() -> list[tuple[str, str, bytes, Any]]:
    lines = [line.split("\t") for line in VECTORS.read_text().splitlines()]
    return [(name, kind, bytes.fromhex(body), json.loads(meant)) for name, kind, body, meant in lines]


@pytest.mark.parametrize(("name", "kind", "body", "meant"), vectors(), ids=[line[0] for line in vectors()])
def test_streams_are_the_bytes_that_the_vectors_say(name: str, kind: str, body: bytes, meant: Any) -> None:
    if kind == "range":
        names = tuple(meant["columns"])
        assert opened(stream(names, [list(map(laid_out, batch)) for batch in meant["batches"]])) == opened(body)
        _, rows = opened(body)
        assert list(map(shown, rows)) == meant["rows"]
        return
    found = decode_messages(body)
    extras = found.extras or [Extras()] * len(found.values)
    assert [
        {"value": bytes(value).hex(), "key": each.key and each.key.hex(), "eventTimeMs": each.event_time_ms, "ttlMs": each.ttl_ms,
         "headers": [[header, value.hex()] for header, value in each.headers]}
        for value, each in zip(found.values, extras, strict=True)
    ] == meant  # fmt: skip


def laid_out(stretch: dict[str, Any]) -> Stretch:
    payloads = [bytes.fromhex(payload) for payload in stretch["payloads"]]
    lengths = struct.pack(f">{len(payloads)}I", *map(len, payloads))
    carried = stretch["carried"] and [
        Extras(
            None if key is None else bytes.fromhex(key),
            tuple((name, bytes.fromhex(value)) for name, value in headers),
            time,
        )
        for key, headers, time in stretch["carried"]
    ]
    return Stretch(
        len(payloads), bytes.fromhex(stretch["firstId"]), stretch["countedAt"], stretch["publishMs"],
        stretch["txId"] and stretch["txId"].encode(), lengths, b"".join(payloads), carried,
    )  # fmt: skip


def shown(row: dict[str, Any]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return (
            [{"name": each["name"], "value": each["value"].hex()} for each in value]
            if isinstance(value, list)
            else value
        )

    return {name: one(value) for name, value in row.items()}


def test_the_times_of_a_range_are_times_for_pyarrow() -> None:
    stretch = Stretch(1, bytes(20), 8, 1_700_000_000_123, None, struct.pack(">I", 0), b"", [Extras(None, (), 5)])
    row = pa.ipc.open_stream(stream(ALL, [[stretch]])).read_all().to_pylist()[0]
    assert row["publish_time"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert row["event_time"] == datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)


def test_a_server_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arrow.library.cache_clear()
    with pytest.raises(UnsupportedMediaTypeError) as caught:
        decode_messages(GOOD)
    assert "basalt-mq[arrow]" in str(caught.value.hint)
    monkeypatch.undo()
    arrow.library.cache_clear()
    assert decode_messages(GOOD).values
