"""Stalls of the event loop: `bench.stalls`, its ticker and its data."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from basalt_engine.keys import MessageKey, TopicKeys, topic_prefix
from basalt_engine.table import Row
from bench.filling import ROWS_PER_MS, copies, only_row
from bench.stalls import SCENARIOS, Stalled, names, sizes, table
from bench.ticking_server import Ticks, ticking

PREFIX = topic_prefix("default", "orders")
KEYS = TopicKeys(PREFIX, 1, 16)
ROW = Row(KEYS.message_key(1_700_000_000_000, 0), {b"p": b"batch"})


def test_quick_sizes_are_a_tenth_and_those_of_the_command_line_as_given():
    assert sizes(False, [])["metrics"] == 10_000
    assert sizes(True, ["listing=7"]) == {
        **{name: size // 10 for name, (_, size) in SCENARIOS.items()},
        "listing": 7,
    }


@pytest.mark.parametrize("text", ["metrics", "metrics=0", "metrics=-1", "nothing=5", "metrics=1e3"])
def test_a_size_that_is_none_is_refused(text: str):
    with pytest.raises(ValueError, match="write NAME=NUMBER"):
        sizes(False, [text])


def test_topics_have_names_of_one_length():
    assert names(3) == ["topic-000000", "topic-000001", "topic-000002"]
    assert {len(name) for name in names(100_000)[::9_999]} == {12}


def test_copies_of_a_row_stand_behind_it_in_order_and_never_on_each_other():
    puts = list(copies(ROW, ROWS_PER_MS + 2, 1, {b"x": b"12345678"}))
    places = [(key.publish_ms, key.sequence) for key in (MessageKey.decode(put.key) for put in puts)]
    assert places[0] == (1_700_000_000_001, 0)
    assert places[-1] == (1_700_000_000_002, 1)
    assert places == sorted(set(places))
    assert puts[0].columns == {b"p": b"batch", b"x": b"12345678"}


def test_copies_are_rows_of_the_same_topic_and_bucket():
    (put,) = copies(ROW, 1, -1_000, {})
    assert MessageKey.decode(put.key) == MessageKey.decode(ROW.key)._replace(publish_ms=1_699_999_999_000)


def test_only_a_topic_with_a_single_row_is_multiplied():
    other = Row(TopicKeys(topic_prefix("default", "others"), 1, 16).message_key(1, 0), {})
    assert only_row([other, ROW], PREFIX) == ROW
    with pytest.raises(AssertionError):
        only_row([ROW, ROW], PREFIX)


def test_the_table_has_a_line_for_each_scenario():
    result = Stalled("listing", 100_000, 12.34, 5.6, 0.5, 70.2, "100000 names")
    assert table([result]).splitlines()[1].split() == [
        "listing", "100,000", "12.3", "ms", "5.6", "ms", "0.50", "s", "70", "MiB", "100000", "names",
    ]  # fmt: skip


def test_a_loop_that_is_held_up_is_seen_from_outside(tmp_path: Path):
    watching = Ticks(tmp_path / "ticks")

    async def hold_up() -> None:
        await asyncio.to_thread(watching.start_over)
        time.sleep(0.05)  # what no coroutine may do

    async def serve() -> object:
        await hold_up()
        return await asyncio.to_thread(watching.longest)

    stall = ticking(asyncio.run, Ticks(tmp_path / "ticks"))(serve())
    assert stall.late_ms >= 40


def test_a_loop_that_does_not_tick_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bench.ticking_server.WAIT_S", 0.0)
    with pytest.raises(RuntimeError, match="has not ticked"):
        Ticks(tmp_path / "ticks").longest()
