"""Event time in a query's progress, and the promise that a step may make then."""

from __future__ import annotations

import json

from basalt_spark.columns import END_OF_TIME_MS
from basalt_spark.event_time import QueryProgress, read_progress
from basalt_spark.offset import Offset, offset_json


def report(*offsets, watermark: str | None = None, dropped: int | None = None, rows: int = 0, batch: int = 7):
    """A progress as Spark gives it."""
    return {
        "batchId": batch,
        "numInputRows": rows,
        "eventTime": {} if watermark is None else {"watermark": watermark},
        "sources": [{"endOffset": offset} for offset in offsets],
        "stateOperators": [] if dropped is None else [{"numRowsDroppedByWatermark": dropped}],
    }


def offset(done: bool) -> str:
    return json.dumps(offset_json(Offset("instance", {}, None, done)))


def test_a_query_is_done_when_each_of_its_sources_is():
    assert read_progress(report(offset(True))).done
    assert not read_progress(report(offset(True), offset(False))).done
    assert read_progress(report(offset(True), offset(True))).done


def test_a_source_of_another_kind_is_never_done():
    assert not read_progress(report('{"done": true}')).done
    assert not read_progress(report("7")).done
    assert not read_progress(report(None)).done


def test_behind_a_batch_at_a_watermark_what_ends_a_millisecond_before_it_is_promised():
    progress = read_progress(report(offset(False), watermark="2015-05-17T11:00:00.000Z", dropped=0))
    assert progress.watermark_ms == 1_431_860_400_000
    assert progress.promise_ms == 1_431_860_399_999


def test_an_idle_report_says_nothing_of_event_time():
    idle = read_progress(report(offset(False)))
    assert (idle.ran, idle.stateful, idle.promise_ms) == (False, False, None)


def test_a_query_without_state_promises_nothing_here_for_its_sink_does():
    assert read_progress(report(offset(False), watermark="2015-05-17T11:00:00.000Z", rows=1)).promise_ms is None


def test_sparks_first_watermark_is_no_promise():
    assert read_progress(report(offset(False), watermark="1970-01-01T00:00:00.000Z", dropped=0)).promise_ms is None


def test_the_batch_under_the_end_of_time_has_closed_every_window_and_is_no_watermark_to_tell():
    last = read_progress(report(offset(True), watermark="9999-12-31T23:59:59.999Z", dropped=0))
    assert last.watermark_ms == END_OF_TIME_MS
    assert (last.closed, last.promise_ms) == (True, None)


def test_a_millisecond_before_the_end_of_time_nothing_is_closed():
    almost = read_progress(report(offset(True), watermark="9999-12-31T23:59:59.998Z", dropped=0))
    assert not almost.closed


def test_rows_that_came_too_late_are_counted_over_all_operators():
    one = report(offset(False), dropped=2)
    one["stateOperators"] *= 2
    assert read_progress(one) == QueryProgress(7, done=False, stateful=True, watermark_ms=None, dropped=4, ran=True)
