"""How long the searching tests search: the budgets of `make test`, and those of `make soak`, for nights.

The tests are the same in both, and so is what they assert. `make soak` sets BASALT_SOAK=1, and it is read here alone.
BASALT_SIM_SEEDS, BASALT_KILL_ROUNDS, BASALT_SHARD_MOVES and BASALT_MEMBER_LIVES put another number in place of one of them, to look further by hand.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SOAK = os.environ.get("BASALT_SOAK") == "1"

# Lives of a server in tests/sim/test_simulation.py; a core runs about a hundred a second. Seeds that found a fault are kept and tried in any
# case, and each planted fault is found by these or by the first forty: three hundred see one that is several times as rare, a soak the others.
SIMULATION_SEEDS = int(os.environ.get("BASALT_SIM_SEEDS") or (10_000 if SOAK else 300))

# Lives of three members in each world of tests/sim/test_members.py; a core runs about a dozen a second. Every planted fault has seeds of its own.
MEMBER_SEEDS = int(os.environ.get("BASALT_SIM_SEEDS") or (5_000 if SOAK else 40))

# Rounds of tests/system/test_kill_loop.py, about two seconds each. Each kills a server once under load, and every fourth one twice more
# while it recovers: 20 are the fewest that surely make the 30 kills that the test counts. In 200 each of its 17 named points has some six turns.
KILL_ROUNDS = int(os.environ.get("BASALT_KILL_ROUNDS") or (200 if SOAK else 20))

# Rounds of tests/system/test_group_kills.py, about a second each: every second one kills the server, and most a member or two.
GROUP_KILL_ROUNDS = int(os.environ.get("BASALT_KILL_ROUNDS") or (150 if SOAK else 8))

# Seeds of a Spark stream that is killed everywhere, in tests/pipeline/test_commit_crashes.py: each planted fault of the sink is
# found by one of 60. Twenty are a test.
SINK_SEEDS = 600 if SOAK else 60

# Kills of a process that writes to RocksDB, in tests/engine/stores/test_rocks_crash.py: about a second each.
ROCKS_KILL_ROUNDS = 60 if SOAK else 5

# Rounds in which two leaders fence the same regions at once, in tests/hbase/test_mini_cluster_fence_races.py: seconds each.
FENCE_RACES = 25 if SOAK else 5

# Rounds of what happens to a cluster while shards move on it, in tests/hbase/test_mini_cluster_members.py: a minute each.
CLUSTER_ROUNDS = 5 if SOAK else 1

# Planned moves of shards under load, in tests/hbase/test_shard_moves.py: a tenth of a second each.
SHARD_MOVES = int(os.environ.get("BASALT_SHARD_MOVES") or (200 if SOAK else 20))

# Lives of two to four servers under load and faults, in tests/hbase/test_member_faults.py: about a minute each, three of every kind of fault. A
# soak has each fault alone, at each server, too.
MEMBER_LIVES = int(os.environ.get("BASALT_MEMBER_LIVES") or (1_000 if SOAK else 3))

# Kinds of writes that are late while their server stands still, in tests/hbase/test_paused_with_late_writes.py: half a minute each, with its control.
LATE_WRITES = 4 if SOAK else 1

# For how long the log of transactions is away at least in each stage of tests/hbase/test_log_away.py, and with servers that share. Otherwise as long as it takes until
# every client has met it a few times.
LOG_AWAY_SECONDS = 60.0 if SOAK else 0.0

# In how many ways it is away in tests/hbase/test_log_away_sharing.py: refused, which takes under a minute, and without an answer, twice that.
LOG_AWAY_WAYS = 2 if SOAK else 1

# Most tests of topics, groups and commits run on three stores, with the ends of topics in memory and without. In memory they are the same on
# every store, and so on HBase all tests read what it stores, and one in so many of them what is in memory, too; in a soak all do.
HBASE_CACHED_ONE_IN = 1 if SOAK else 8
_HBASE_CACHED = re.compile(r"[\[-]hbase-cached[-\]]")

# Requests that schemathesis makes up for each of some eighty calls, the same ones in every `make test`; a soak
# multiplies them as it does all examples.
SCHEMATHESIS_EXAMPLES = 8

# A test says itself how many examples Hypothesis makes for it in `make test`, as many as it makes in a few seconds. A soak makes twenty times
# as many of each.
EXAMPLES_FACTOR = 20 if SOAK else 1
EXAMPLES = 50  # of a test that does not say how many
REMOTE_DIVISOR = 4  # where each step of an example is a call of milliseconds, fewer examples take the few seconds

# How long an example takes says nothing about it: the machine may be slow, or stand still for a moment. What hangs is ended by the run.
settings.register_profile(
    "any machine", settings(), deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def examples(number: int, *, remote: bool = False) -> int:
    """How many examples stand for so many of `make test`; fewer on a store that is reached over the network."""
    return number * EXAMPLES_FACTOR // (REMOTE_DIVISOR if remote else 1)


def leave_to_soaks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what only a soak runs, unless the command line names it."""
    if any("hbase-cached" in word for word in (*config.args, config.option.keyword)):
        return
    left = [item for item in items if is_left_to_soaks(item.nodeid)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not is_left_to_soaks(item.nodeid)]


def is_left_to_soaks(name: str) -> bool:
    """Tell whether only a soak runs the test of this name: the same ones in every process and run."""
    test = name.partition("[")[0]
    return _HBASE_CACHED.search(name) is not None and zlib.crc32(test.encode()) % HBASE_CACHED_ONE_IN != 0


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test with Hypothesis its examples: one of `@given`, or a state machine's test case."""
    if EXAMPLES_FACTOR != 1:
        give_examples(item)


def give_examples(item: Any) -> None:
    """Multiply the examples of one collected test. A function is collected once per parameter, and changed once."""
    function = getattr(item, "obj", None)
    function = getattr(function, "__func__", function)
    if not getattr(function, "is_hypothesis_test", False) or getattr(function, "has_its_budget", False):
        return
    case = item.cls if getattr(function, "_hypothesis_state_machine_class", None) else None
    if case is not None:  # its test function is made by Hypothesis, and takes the class's settings
        case.settings = _more(case.settings)
    else:
        # There is no public way to change the settings of a test that has some; tests/docs/test_budgets.py holds this one.
        function._hypothesis_internal_use_settings = _more(function._hypothesis_internal_use_settings)
    function.has_its_budget = True


def _more(given: settings) -> settings:
    return settings(given, max_examples=examples(given.max_examples))
