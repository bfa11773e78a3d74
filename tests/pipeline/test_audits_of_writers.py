"""The finding of the prune audit over a row's writer, as a table of every case, and of writers that are kept too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt_engine.cells.keys import TableKeys
from basalt_engine.cells.table import CellTable
from basalt_engine.keys import TopicKeys, position, table_prefix, topic_prefix
from basalt_engine.messages import WRITER, MessageRow, MessageTable
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.table import Put, Row
from basalt_spark.jobs.audits import CLOCK_SKEW_MS, Held, Judged, WriterFinding, Writers, judge_row

ORDERS, OLD, KEEPING = topic_prefix("shop", "orders"), topic_prefix("shop", "old"), topic_prefix("shop", "keeping")
ACCOUNTS = table_prefix("shop", "accounts")
LISTED, FORGOTTEN, OPEN, COMMITTED, NEWEST = 10, 11, 12, 13, 20
WRITERS = Writers(
    invalid=frozenset({LISTED}),
    forgotten=frozenset({LISTED, FORGOTTEN}),  # the first was put back on the list since
    in_progress=frozenset({OPEN}),
    newest=NEWEST,
    topics={ORDERS: Held(2), OLD: Held(-1), KEEPING: Held(1, retains=True), ACCOUNTS: Held(1)},
)


def stored(put: Put) -> Row:
    return Row(put.key, put.columns)


def message(writer: int | None, prefix: bytes = ORDERS, generation: int = 2) -> Row:
    keys = TopicKeys(prefix, generation, 4)
    return stored(MessageTable.put(keys, MessageRow(position(1_000, 0), writer, b"batch")))


def payload(writer: int, prefix: bytes = ORDERS, generation: int = 2) -> Row:
    return stored(PayloadTable.put(TopicKeys(prefix, generation, 4), writer, PayloadRow(position(1_000, 0), b"batch")))


def bound(writer: int) -> Row:
    return stored(PayloadTable.bind(TopicKeys(ORDERS, 2, 4), writer, position(1, 1)))


def cell(writer: int) -> Row:
    return stored(CellTable.put(TableKeys(ACCOUNTS, 1, 4), b"row", b"column", writer, b"value"))


@pytest.mark.parametrize(
    ("table", "row", "finding"),
    [
        ("message", message(None), Judged(WriterFinding.NONE)),
        ("message", message(-FORGOTTEN), Judged(WriterFinding.MARKED, FORGOTTEN)),
        ("message", message(LISTED), Judged(WriterFinding.LISTED, LISTED)),
        ("message", message(OPEN), Judged(WriterFinding.OPEN, OPEN)),
        ("message", message(COMMITTED), Judged(WriterFinding.COMMITTED, COMMITTED)),
        ("message", message(NEWEST), Judged(WriterFinding.COMMITTED, NEWEST)),
        ("message", message(NEWEST + 1), Judged(WriterFinding.LATER, NEWEST + 1)),
        ("message", message(FORGOTTEN), Judged(WriterFinding.FORGOTTEN, FORGOTTEN)),
        ("message", message(FORGOTTEN, generation=1), Judged(WriterFinding.UNREACHABLE, FORGOTTEN)),
        ("message", message(FORGOTTEN, OLD, 1), Judged(WriterFinding.UNREACHABLE, FORGOTTEN)),
        ("message", message(FORGOTTEN, KEEPING, 1), Judged(WriterFinding.FORGOTTEN, FORGOTTEN)),
        ("message", message(FORGOTTEN, topic_prefix("shop", "unknown"), 1), Judged(WriterFinding.FORGOTTEN, FORGOTTEN)),
        ("message", Row(b"nonsense", {}), Judged(WriterFinding.UNREADABLE)),
        ("message", Row(message(None).key, {WRITER: b"short"}), Judged(WriterFinding.UNREADABLE)),
        ("message", Row(message(None).key, {WRITER: bytes(8)}), Judged(WriterFinding.UNREADABLE)),
        ("payload", payload(FORGOTTEN), Judged(WriterFinding.FORGOTTEN, FORGOTTEN)),
        ("payload", bound(FORGOTTEN), Judged(WriterFinding.FORGOTTEN, FORGOTTEN)),
        ("payload", payload(FORGOTTEN, KEEPING, 1), Judged(WriterFinding.RETAINED, FORGOTTEN)),
        ("payload", payload(COMMITTED), Judged(WriterFinding.COMMITTED, COMMITTED)),
        ("cell", cell(FORGOTTEN), Judged(WriterFinding.FORGOTTEN, FORGOTTEN)),
        ("cell", cell(LISTED), Judged(WriterFinding.LISTED, LISTED)),
        ("cell", Row(message(COMMITTED).key, {}), Judged(WriterFinding.UNREADABLE)),
    ],
)
def test_each_row_is_judged_by_its_writer(table: str, row: Row, finding: Judged):
    assert judge_row(table, row, WRITERS) == finding


def test_a_writer_without_rows_is_kept_too_long_only_after_its_life_the_hour_for_clocks_and_the_limit():
    writer = 5_000 * POINTERS_PER_MS
    writers = Writers(frozenset({writer}), frozenset(), lifetime_ms=100)
    end_ms = 5_000 + 100 + CLOCK_SKEW_MS
    assert writers.kept_too_long([], end_ms + 50, 50) == []
    assert writers.kept_too_long([], end_ms + 51, 50) == [writer]
    assert writers.kept_too_long([writer], end_ms + 51, 50) == [], "it has a row"
    assert writers._replace(external_writers=frozenset({writer})).kept_too_long([], end_ms + 51, 50) == [], (
        "it wrote elsewhere"
    )


POINTERS = st.integers(1, 40)


@given(st.frozensets(POINTERS), st.frozensets(POINTERS), st.frozensets(POINTERS), st.integers(0, 40), POINTERS)
def test_only_a_writer_that_is_forgotten_and_not_listed_is_a_fault(invalid, forgotten, in_progress, newest, writer):
    found = Writers(invalid, forgotten, in_progress, newest).judge(writer)
    assert (found is WriterFinding.FORGOTTEN) == (writer in forgotten and writer not in invalid)
    assert (found is WriterFinding.LISTED) == (writer in invalid)
