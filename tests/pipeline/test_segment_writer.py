"""A task's requests: one on its way while Spark computes the next, never two, and none behind one that failed."""

from __future__ import annotations

from threading import Event, Lock

import pyarrow as pa
import pytest

from basalt.errors import UnavailableError
from basalt_spark.options import SinkColumns
from basalt_spark.sink.commit import Segment
from basalt_spark.sink.segment_writer import SegmentWriter

WAIT_S = 60  # for what comes at once, unless nothing overlaps


def rows_of(body: bytes) -> list[bytes]:
    with pa.ipc.open_stream(body) as stream:
        return stream.read_all()["value"].to_pylist()


def batch_of(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def writer(store, request_bytes_max=1) -> SegmentWriter:
    return SegmentWriter(SinkColumns(("value",)), lambda: Segment("tx", 7), store, request_bytes_max)


def test_rows_are_computed_while_a_request_is_on_its_way():
    computed, stored = Event(), []

    def store(topic, body, write_pointer):
        assert stored or computed.wait(WAIT_S), "the second rows were not asked for while the first were sent"
        stored.extend(rows_of(body))

    def batches():
        yield batch_of(b"a")
        computed.set()
        yield batch_of(b"b")

    told = writer(store).write(batches(), 0, None)
    assert stored == [b"a", b"b"]
    assert told.rows == 2


def test_never_are_two_requests_on_their_way_so_that_rows_keep_their_order():
    busy, stored = Lock(), []

    def store(topic, body, write_pointer):
        assert busy.acquire(blocking=False), "two at once"
        stored.extend(rows_of(body))
        busy.release()

    values = [b"%d" % number for number in range(200)]
    writer(store).write((batch_of(value) for value in values), 0, None)
    assert stored == values


def test_a_request_that_failed_fails_the_task_and_none_follows():
    sent = []

    def store(topic, body, write_pointer):
        sent.append(rows_of(body))
        raise UnavailableError("the server is gone")

    with pytest.raises(UnavailableError, match="the server is gone"):
        writer(store).write((batch_of(value) for value in (b"a", b"b", b"c")), 0, None)
    assert sent == [[b"a"]]


def test_the_last_request_on_its_way_fails_the_task_too():
    def store(topic, body, write_pointer):
        raise UnavailableError("the server is gone")

    with pytest.raises(UnavailableError):
        writer(store).write(iter([batch_of(b"a", b"b")]), 0, None)


def test_no_request_is_left_behind_by_a_task_whose_rows_fail():
    going, stored = Event(), []

    def store(topic, body, write_pointer):
        going.wait(WAIT_S)
        stored.append(rows_of(body))

    def batches():
        yield batch_of(b"a")
        going.set()
        raise ValueError("a row that cannot be computed")

    with pytest.raises(ValueError, match="cannot be computed"):
        writer(store).write(batches(), 0, None)
    assert stored == [[b"a"]]


def test_the_highest_id_of_all_rows_is_told_whichever_came_first():
    def rows(*numbers: int) -> pa.RecordBatch:
        ids = [None if number < 0 else number.to_bytes(20) for number in numbers]
        return pa.record_batch([pa.array([b"a"] * len(ids)), pa.array(ids, pa.binary())], names=["value", "id"])

    columns = SinkColumns(("value",), has_id=True)
    batches = [rows(-1), rows(3, 7, -1), rows(5), rows(-1)]
    told = SegmentWriter(columns, lambda: Segment("tx", 7), lambda *_: None).write(batches, 0, None)
    assert told.through == (7).to_bytes(20)
    none = SegmentWriter(columns, lambda: Segment("tx", 7), lambda *_: None).write([rows(-1)], 0, None)
    assert none.through is None
