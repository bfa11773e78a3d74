"""The rows that a task makes of a server's answers: record batches of the very schema that Spark expects, page after page."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from basalt.client.calls.messages import ArrowPage
from basalt.errors import GenerationError, InputError, ProtocolError
from basalt_spark import connection
from basalt_spark.columns import COLUMNS, DEFAULT_COLUMNS, arrow_schema, refuse_other_schema, row_schema
from basalt_spark.connection import QualifiedTopic, Server, client_of
from basalt_spark.option_table import FrameUse
from basalt_spark.options import read_options
from basalt_spark.source.partitions import ROWS_MAX, ControlPartition, ControlRow, RangePartition, read_partition
from tests.pipeline.topics_in_memory import id_at

SENT = pa.schema(
    [
        ("id", pa.binary()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("tx_id", pa.utf8()),
        ("headers", pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("sequence", pa.int64()),
        ("generation", pa.int64()),
    ]
)


class Pages:
    """A topic that answers one page for each list of payloads."""

    def __init__(self, *pages: list[bytes], generation: int = 1, broken: bool = False) -> None:
        self.pages, self.generation, self.broken = pages, generation, broken
        self.asked: list[tuple] = []

    def topic(self, name, *, namespace):
        return SimpleNamespace(range=self.range)

    def range(self, after, through, *, columns, bytes_max, isolation, generation, turn, size_bytes):
        self.asked.append((after, columns, bytes_max, isolation))
        if generation != self.generation:
            raise GenerationError("topic default:orders is of another generation")
        number = 0 if after is None else int.from_bytes(after[:8])
        last = number == len(self.pages) - 1
        body = b"no Arrow" if self.broken else arrow(self.pages[number], columns)
        return ArrowPage(body, None if last else id_at(number + 1), generation)


def arrow(payloads: list[bytes], columns: tuple[str, ...]) -> bytes:
    rows = [
        {"id": id_at(5, place), "value": value, "sequence": place, "headers": [{"name": "h", "value": b"v"}]}
        for place, value in enumerate(payloads)
    ]
    whole = pa.RecordBatch.from_pylist(rows, SENT)
    sink = pa.BufferOutputStream()
    chosen = whole.select(list(columns))
    with pa.ipc.new_stream(sink, chosen.schema) as stream:
        stream.write_batch(chosen)
    return sink.getvalue().to_pybytes()


def read(pages: Pages, partition=None, **given: str) -> list[pa.RecordBatch]:
    options = read_options({"server": "http://memory:2", "topic": "orders", **given}, FrameUse.STREAM)
    connection._clients[options.server] = pages
    partition = partition or RangePartition(QualifiedTopic("default", "orders"), None, id_at(9), 1, 7_000)
    return list(read_partition(options, partition))


def test_pages_follow_each_other_until_the_range_is_whole():
    pages = Pages([b"a", b"b"], [], [b"c"])
    batches = read(pages, fetchBytes="1 KiB", isolation="uncommitted")
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [b"a", b"b", b"c"]
    assert [after for after, *_ in pages.asked] == [None, id_at(1), id_at(2)]
    assert pages.asked[0][2:] == (1024, "uncommitted")
    assert "topic" not in pages.asked[0][1]


@pytest.mark.parametrize("columns", [DEFAULT_COLUMNS, COLUMNS, ("value", "topic"), ("watermark",)])
def test_a_batch_has_the_very_schema_that_spark_compares_with(columns):
    (batch,) = read(Pages([b"a"]), columns=",".join(columns))
    assert batch.schema.equals(arrow_schema(columns))
    (row,) = batch.to_pylist()
    assert row.get("topic", "orders") == "orders"
    assert row.get("watermark", at(7)) == at(7)
    assert row.get("headers", [{"name": "h", "value": b"v"}]) == [{"name": "h", "value": b"v"}]


def test_large_answers_are_cut_and_nothing_is_lost():
    payloads = [b"%d" % number for number in range(ROWS_MAX + 5)]
    batches = read(Pages(payloads), columns="value")
    assert [batch.num_rows for batch in batches] == [ROWS_MAX, 5]
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == payloads


def test_rows_that_are_no_messages_have_the_same_schema():
    rows = (ControlRow("watermark", "orders", b"map-0", 5_000), ControlRow("heartbeat"))
    (batch,) = read(Pages(), ControlPartition(rows, 4_000), columns="event_time,key,topic,watermark,control,value")
    assert batch.to_pylist() == [
        {"event_time": at(5), "key": b"map-0", "topic": "orders", "watermark": at(4), "control": "watermark", "value": None},
        {"event_time": None, "key": None, "topic": None, "watermark": at(4), "control": "heartbeat", "value": None},
    ]  # fmt: skip
    assert batch.schema.equals(arrow_schema(("event_time", "key", "topic", "watermark", "control", "value")))


def test_another_generation_fails_the_task_unless_loss_is_allowed(caplog):
    with pytest.raises(GenerationError):
        read(Pages([b"a"], generation=2))
    assert read(Pages([b"a"], generation=2), failOnDataLoss="false") == []
    assert "are gone while they were read" in caplog.text


def test_what_is_no_arrow_stream_is_told():
    with pytest.raises(ProtocolError, match="no Arrow stream"):
        read(Pages([b"a"], broken=True))


def test_a_schema_of_ones_own_is_refused_unless_it_is_the_same():
    refuse_other_schema(row_schema(("id", "value")), ("id", "value"))
    with pytest.raises(InputError, match="the schema given is struct<value:binary,id:binary>"):
        refuse_other_schema(row_schema(("value", "id")), ("id", "value"))


def test_a_process_has_one_client_for_a_server_and_its_secret_comes_from_its_own_environment(monkeypatch):
    server = Server("http://127.0.0.1:1", "shop", "BASALT_SPARK_TOKEN")
    monkeypatch.delenv("BASALT_SPARK_TOKEN", raising=False)
    with pytest.raises(InputError, match="variable BASALT_SPARK_TOKEN that is not set in this process"):
        client_of(server)
    with pytest.raises(InputError, match="may be the token itself") as refused:
        client_of(server._replace(token_variable="s3cret-of-somebody"))
    assert "s3cret" not in str(refused.value)
    monkeypatch.setenv("BASALT_SPARK_TOKEN", "s3cret")
    assert client_of(server) is client_of(server)
    assert client_of(server).namespace == "shop"
    assert client_of(server) is not client_of(server._replace(timeout_ms=1))


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
