"""The rows of a stream that are no messages: the markers of tasks, and heartbeats."""

from __future__ import annotations

from basalt.api.markers import MarkerState
from basalt_spark.source.partitions import ControlRow
from basalt_spark.source.readers import control_rows
from tests.pipeline.test_micro_batch_watermark import offset, spoke


def test_a_heartbeat_goes_out_where_the_watermark_moved_or_the_end_came():
    known = MarkerState(1, {"map-0": spoke(5)})
    start, end = offset(MarkerState(), None), offset(known, 5)
    assert control_rows(start, end, "hide") == ()
    assert control_rows(start, end, "heartbeat") == (ControlRow("heartbeat"),)
    assert control_rows(end, end, "heartbeat") == ()
    assert control_rows(end, offset(known, 5, done=True), "heartbeat") == (ControlRow("heartbeat"),)


def test_rows_tell_what_each_task_said():
    start = offset(MarkerState(2, {"map-0": spoke(5), "map-1": spoke(6)}), 5)
    end = offset(MarkerState(2, {"map-1": spoke(6, ended=True), "map-0": spoke(9)}), 9)
    assert control_rows(start, end, "rows") == (
        ControlRow("watermark", "orders", b"map-0", 9),
        ControlRow("end", "orders", b"map-1"),
        ControlRow("heartbeat"),
    )
