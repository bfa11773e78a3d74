"""Rows become requests: of bounded size, by topic, in their order, and as the server reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.errors import InputError
from basalt_spark.columns import END_OF_TIME_MS
from basalt_spark.options import MESSAGE_COLUMNS, SinkColumns
from basalt_spark.sink import segment_writer
from basalt_spark.sink.segment_writer import REQUEST_BATCHES_MAX, OutgoingRows
from tests.pipeline.test_archive import rows

VALUE_ONLY = SinkColumns(("value",))
ROUTED = SinkColumns(("value",), has_topic=True)
MARKED = SinkColumns(("value",), has_watermark=True, has_control=True)


def requests(columns, *batches, bytes_max=1_000):
    rows = OutgoingRows(columns, bytes_max)
    made = [request for batch in batches for request in rows.add(batch)]
    return [*made, *rows.remaining()], rows


def read(request):
    with pa.ipc.open_stream(request.body) as stream:
        return stream.read_all()


def values(requests_made):
    return [value for request in requests_made for value in read(request)["value"].to_pylist()]


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(st.binary(max_size=400), max_size=30), max_size=6),
    bytes_max=st.integers(min_value=50, max_value=3_000),
)
def test_all_rows_go_out_once_in_order_and_within_the_limit(batches, bytes_max):
    made, _ = requests(
        VALUE_ONLY,
        *(pa.record_batch([pa.array(rows, pa.binary())], names=["value"]) for rows in batches),
        bytes_max=bytes_max,
    )
    assert values(made) == [value for rows in batches for value in rows]
    for request in made:
        table = read(request)
        assert request.rows == table.num_rows > 0
        assert table.nbytes <= bytes_max or table.num_rows == 1  # one that is larger alone goes alone


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=200)), max_size=20), max_size=6),
    bytes_max=st.integers(min_value=50, max_value=2_000),
)
def test_rows_keep_their_order_within_each_topic(batches, bytes_max):
    made, _ = requests(
        ROUTED,
        *(
            pa.record_batch(
                [pa.array([t for t, _ in rows], pa.utf8()), pa.array([v for _, v in rows], pa.binary())],
                names=["topic", "value"],
            )
            for rows in batches
        ),
        bytes_max=bytes_max,
    )
    for topic in "abc":
        expected = [value for rows in batches for name, value in rows if name == topic]
        assert values([request for request in made if request.topic == topic]) == expected


def test_a_slice_of_unequal_rows_is_cut_again():
    sizes = [10] * 40 + [900] * 3 + [10] * 40
    batch = pa.record_batch([pa.array([b"x" * size for size in sizes])], names=["value"])
    made, _ = requests(VALUE_ONLY, batch)
    assert [len(value) for value in values(made)] == sizes
    assert all(read(request).nbytes <= 1_000 for request in made)


def test_many_small_batches_share_a_request_up_to_what_a_server_takes():
    batch = pa.record_batch([pa.array([b"x"])], names=["value"])
    made, _ = requests(VALUE_ONLY, *([batch] * (REQUEST_BATCHES_MAX + 1)), bytes_max=1_000_000)
    assert [request.rows for request in made] == [REQUEST_BATCHES_MAX, 1]


def test_requests_of_a_job_are_bounded_keep_the_order_and_hold_each_message_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segment_writer, "PUBLISH_MESSAGES_MAX", 10)
    batches = [rows([1] * 37, value_bytes=40), rows([1] * 3, first=37), rows([1], first=40, value_bytes=9_000)]
    found, _ = requests(SinkColumns(MESSAGE_COLUMNS), *batches, bytes_max=2_000)
    back = [read(request) for request in found]
    assert pa.concat_tables(back).equals(pa.Table.from_batches(batches).select(list(MESSAGE_COLUMNS)))
    assert all(table.num_rows <= 10 for table in back)
    assert [request.rows for request in found] == [table.num_rows for table in back]
    assert all(len(request.body) <= 6_000 for request in found[:-1])


def test_what_waits_is_bounded_over_all_topics():
    rows = OutgoingRows(ROUTED, 1_000)
    for number in range(200):
        batch = pa.record_batch([pa.array([f"t{number}"]), pa.array([b"x" * 100])], names=["topic", "value"])
        list(rows.add(batch))
        assert rows._waiting_bytes <= 1_000


def test_columns_arrive_as_the_server_reads_them_whatever_sparks_settings_are():
    columns = SinkColumns(("value", "key", "headers", "event_time"))
    berlin = pa.timestamp("us", tz="Europe/Berlin")
    moment = datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=1)))
    element = pa.field("element", pa.struct([pa.field("name", pa.utf8(), False), pa.field("value", pa.utf8())]))
    batch = pa.record_batch(
        [
            pa.array([moment, None], berlin),
            pa.array([[{"name": "trace", "value": "ü"}], None], pa.list_(element)),
            pa.array(["k", None], pa.large_utf8()),
            pa.array(["grün", ""], pa.large_utf8()),
        ],
        names=["event_time", "headers", "key", "value"],
    )
    made, _ = requests(columns, batch)
    table = read(made[0])
    assert table.column_names == ["value", "key", "headers", "event_time"]
    assert table.to_pylist() == [
        {
            "value": "grün".encode(),
            "key": b"k",
            "headers": [{"name": "trace", "value": "ü".encode()}],
            "event_time": moment.astimezone(UTC),
        },
        {"value": b"", "key": None, "headers": None, "event_time": None},
    ]


@pytest.mark.parametrize("name", ["value", "topic"])
def test_a_null_where_there_must_be_none_names_its_column(name):
    row = {"topic": "a", "value": b"x"} | {name: None}
    batch = pa.record_batch(
        [pa.array([row["topic"]], pa.utf8()), pa.array([row["value"]], pa.binary())], names=["topic", "value"]
    )
    with pytest.raises(InputError, match=f"column {name} is null in 1 of 1 rows") as refused:
        requests(ROUTED, batch)
    assert refused.value.field == name


def marked(*rows):
    values, times, controls = zip(*rows, strict=True)
    return pa.record_batch(
        [
            pa.array(values, pa.binary()),
            pa.array([None if time is None else int(time * 1_000) for time in times], pa.timestamp("us", tz="UTC")),
            pa.array(controls, pa.utf8()),
        ],
        names=["value", "watermark", "control"],
    )


def test_control_rows_are_no_messages_but_their_watermark_counts():
    made, rows = requests(MARKED, marked((b"a", 5, None), (None, 9, "heartbeat")), marked((b"b", 7, None)))
    assert values(made) == [b"a", b"b"]
    assert rows.watermark_ms == 9


def test_a_watermark_is_rounded_down_and_may_lie_before_1970():
    _, rows = requests(MARKED, marked((b"a", -1.5, None)))
    assert rows.watermark_ms == -2
    _, rows = requests(MARKED, marked((b"a", 0, None)), marked((b"a", -7, None)))
    assert rows.watermark_ms == 0


def test_an_unknown_watermark_and_the_end_of_time_are_none():
    _, rows = requests(MARKED, marked((b"a", None, None)))
    assert rows.watermark_ms is None
    _, rows = requests(MARKED, marked((b"a", 3, None), (None, END_OF_TIME_MS, "end")))
    assert rows.watermark_ms == 3
