"""`make demo` as a whole: a real server, killed three times, and workers of a group, killed as well."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO_TIMEOUT_S = 500  # a bound for a hang on a loaded machine


def run_demo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEMO_TIMEOUT_S, check=False)


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    """The log that the environment names, or one with the same traits: doubled lines, bytes that are no UTF-8, noise."""
    if named := os.environ.get("BASALT_ACCESS_LOG"):
        return Path(named)
    chance = random.Random(7)
    lines = [
        b'10.0.0.%d - - [%02d/May/2015:%02d:00:00 +0000] "GET /%d\xff HTTP/1.1" 200 5'
        % (chance.randrange(200), 17 + number // 1_000, chance.randrange(24), chance.randrange(50))
        for number in range(4_000)
    ]
    path = tmp_path / "access.log"
    path.write_bytes(b"\n".join([*lines, b"not an access log line", lines[0], lines[0]]) + b"\n")
    return path


@pytest.mark.system
def test_a_log_is_published_exactly_once_through_two_kills(tmp_path: Path, access_log: Path):
    folder = tmp_path / "demo"
    folder.mkdir()
    demo = run_demo(access_log, "--folder", folder)
    assert (demo.returncode, demo.stderr) == (0, ""), demo.stdout + demo.stderr
    assert "2 SIGKILLs" in demo.stdout
    assert "None lost, none twice, in order, nothing aborted seen." in demo.stdout
    paths = {line.split()[6] for line in access_log.read_bytes().splitlines() if line.count(b'"') >= 2}
    clients = {line.split()[0] for line in access_log.read_bytes().splitlines() if line.count(b'"') >= 2}
    assert "look at http://127.0.0.1:4780/console in a browser (make demo OPEN=1" in demo.stdout
    assert f"{len(clients):,} clients, {len(paths):,} paths" in demo.stdout
    assert_counted_by_workers(demo.stdout)


@pytest.mark.system
def test_without_a_log_it_takes_the_requests_of_its_own_server_which_stays_where_it_is_to_be_looked_at(tmp_path: Path):
    demo = run_demo("--folder", tmp_path, "--open")
    assert (demo.returncode, demo.stderr) == (0, ""), demo.stdout + demo.stderr
    assert "None lost, none twice, in order, nothing aborted seen." in demo.stdout
    assert_counted_by_workers(demo.stdout)
    process_id = int(demo.stdout.rpartition("kill ")[2])
    try:
        for address in re.findall(r"http://127\.0\.0\.1:\d+/console\S*", demo.stdout):
            with urllib.request.urlopen(address, timeout=DEMO_TIMEOUT_S) as page:
                assert "demo, on purpose" in page.read().decode()
    finally:
        os.kill(process_id, signal.SIGKILL)


def assert_counted_by_workers(printed: str) -> None:
    """The second act came to its end: one worker, three, two, and every visit counted once and in order."""
    steps = [
        "worker-1 begins",
        "worker-2 and worker-3 join",
        "SIGKILL of worker-2",
        "SIGKILL of the server",
        "SIGKILL of worker-3",
    ]
    places = [printed.index(step) for step in (*steps, "all is counted")]
    assert places == sorted(places)
    assert "through 3 SIGKILLs" in printed
    assert "each visit once, and those of each client in order" in printed


def test_a_log_that_is_not_there_is_a_usage_error(tmp_path: Path):
    demo = run_demo(tmp_path / "none.log")
    assert demo.returncode == 2
    assert "is not a file" in demo.stderr
