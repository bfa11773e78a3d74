"""`make spark-demo` as a whole, every process killed once; and what its web servers promise."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from demo.spark.results import Hours, differences
from demo.spark.views import chunks_of, view_of, views_of

ROOT = Path(__file__).resolve().parents[2]
DEMO_TIMEOUT_S = 900  # a bound for a hang: it starts Spark twice
LINES_MAX = 2_000


def access_line(client: int, day: int, hour: int, minute: int, path: str = "/") -> bytes:
    return (
        f'10.0.0.{client} - - [{day:02}/May/2015:{hour:02}:{minute:02}:00 +0000] "GET {path} HTTP/1.1" 200 5'.encode()
    )


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    """The log that the environment names, or one with the same traits: out of time order, bytes that are no UTF-8, noise."""
    if named := os.environ.get("BASALT_ACCESS_LOG"):
        lines = Path(named).read_bytes().splitlines()[:LINES_MAX]
    else:
        chance = random.Random(7)
        lines = [
            b'10.0.0.%d - - [%02d/May/2015:%02d:%02d:00 +0000] "GET /%d\xff HTTP/1.1" 200 5'
            % (chance.randrange(60), 17 + hour // 24, hour % 24, chance.randrange(60), chance.randrange(20))
            for hour in range(48)
            for _ in range(40)
        ]
        lines += [b"not an access log line", lines[0], lines[0]]
    path = tmp_path / "access.log"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.mark.spark
@pytest.mark.system
def test_the_hours_are_right_though_a_worker_the_driver_and_the_server_were_killed(tmp_path: Path, access_log: Path):
    folder = tmp_path / "demo"
    folder.mkdir()
    command = [sys.executable, "-m", "demo.spark", str(access_log), "--folder", str(folder)]
    demo = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEMO_TIMEOUT_S, check=False)
    assert (demo.returncode, demo.stderr) == (0, ""), demo.stdout + demo.stderr
    assert "3 SIGKILLs" in demo.stdout
    assert f"{Hours.counted(access_log.read_bytes().splitlines()).total:,} page views" in demo.stdout
    assert "Each hour once and whole" in demo.stdout


def test_a_watermark_is_below_every_line_that_is_still_to_come_and_as_high_as_that_allows():
    lines = [access_line(1, 17, hour, 0) for hour in (3, 1, 2, 9, 5, 8)]
    chunks = chunks_of([*lines[:3], b"no access line", *lines[3:]], 2)
    assert [list(chunk.lines) for chunk in chunks] == [
        lines[:2],
        [lines[2], b"no access line"],
        lines[3:5],
        lines[5:],
    ]
    hour_ms = 3_600_000
    midnight_ms = view_of(access_line(1, 17, 0, 0)).at_ms
    promised = [None if chunk.watermark_ms is None else chunk.watermark_ms - midnight_ms for chunk in chunks]
    assert promised == [2 * hour_ms - 1, 5 * hour_ms - 1, 8 * hour_ms - 1, None]


def test_no_line_comes_at_or_before_a_watermark_that_was_published_before_it():
    chance = random.Random(3)
    lines = [access_line(1, 17, chance.randrange(24), chance.randrange(60)) for _ in range(200)]
    promised = None
    for chunk in chunks_of(lines, 7):
        assert promised is None or all(view.at_ms > promised for view in views_of(chunk.lines))
        promised = chunk.watermark_ms


def test_lines_without_a_time_promise_nothing():
    assert [chunk.watermark_ms for chunk in chunks_of([b"nothing", b"like it"], 1)] == [None, None]


def test_two_paths_that_are_no_utf_8_stay_two_texts():
    first, second = (
        view_of(b'1.1.1.1 - - [01/Jan/2024:00:00:00 +0000] "GET /%s HTTP/1.1" 200 1' % byte)
        for byte in (b"\xff", b"\xfe")
    )
    assert (first.path, second.path) == ("/\\xff", "/\\xfe")


def test_every_difference_from_the_direct_count_is_named():
    counted = Hours.counted([access_line(1, 17, 3, 0), access_line(2, 17, 3, 5), access_line(1, 18, 3, 0, "/a")])
    assert differences(counted, counted) == []
    wrong = Hours(
        {("2015-05-17 03h", "/"): 1, ("2015-05-19 03h", "/"): 1},
        {"2015-05-17 03h": (2, 2), "2015-05-18 03h": (1, 1)},
        ["2015-05-17 03h /"],
    )
    assert differences(wrong, counted) == [
        "1 results were published twice, the first: 2015-05-17 03h /",
        "views per hour: 1 results missing, the first: ('2015-05-18 03h', '/a')",
        "views per hour: 1 results that should not be, the first: ('2015-05-19 03h', '/')",
        "views per hour: 1 results with other numbers, the first: ('2015-05-17 03h', '/')",
    ]
