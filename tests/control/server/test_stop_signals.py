"""Which signals stop a server, in processes of their own: handlers are a process's, and some of these end it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from basalt.server.stop_signals import StopSignals

{before}
signals = StopSignals()
signals.install()
signals.stage = "it counted sheep"
{then}
os.kill(os.getpid(), {number})
print("goes on")
"""


def run(number: int, before: str = "", then: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(before=before, then=then, number=int(number))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_start_which_says_what_it_was_doing(number: signal.Signals):
    ended = run(number)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == f"basalt: stopped by {number.name} while it counted sheep, before it served\n"


def test_where_there_is_a_log_it_says_so_there():
    ended = run(signal.SIGTERM, before="import logging; logging.basicConfig(format='log: %(message)s')")
    assert ended.stderr == "log: stopped by SIGTERM while it counted sheep, before it served\n"


def test_a_signal_within_a_line_of_the_log_is_no_error():
    ended = run(
        signal.SIGTERM,
        before="import logging; logging.basicConfig(format='log: %(message)s')",
        then="""
class Stream:
    def write(self, text):
        raise RuntimeError("reentrant call")
    def flush(self):
        pass
logging.getLogger().handlers.clear()
sys.stderr = Stream()
""",
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "basalt: stopped by SIGTERM while it counted sheep, before it served\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_that_serves_is_asked_to_drain(number: signal.Signals):
    went_on = run(number, then="signals.drain_by(lambda number: print('drains', number))")
    assert (went_on.returncode, went_on.stdout) == (0, f"drains {int(number)}\ngoes on\n")


def test_a_server_under_nohup_outlives_its_terminal():
    went_on = run(signal.SIGHUP, before="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert (went_on.returncode, went_on.stdout, went_on.stderr) == (0, "goes on\n", "")


RELOADS = "signals.drain_by(lambda number: print('drains', number)); signals.reload_by(lambda: print('reads anew'))"


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGHUP, signal.SIG_IGN)"])
def test_a_server_that_can_read_something_anew_does_so_at_a_hang_up_under_nohup_too(before: str):
    went_on = run(signal.SIGHUP, before=before, then=RELOADS)
    assert (went_on.returncode, went_on.stdout) == (0, "reads anew\ngoes on\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_other_signals_stop_such_a_server_as_any(number: signal.Signals):
    assert run(number, then=RELOADS).stdout == f"drains {int(number)}\ngoes on\n"
