"""Who shares what when tests run in several processes, as `make test` runs them.

What is started once for a run, an HBase, a mini cluster, a Spark, is started in one of the processes: the tests that need it are
one group. Of all others those of a file are one, so that what a module starts is started once as well. Groups that take minutes
are begun first, each in a process of its own, and so the processes end at about the same time. In a single process nothing of this
matters.

Tests are dealt out by their names alone, for whoever deals them has not loaded them; so what a test needs must be seen in its name,
and collecting fails where it is not. (Marks for groups, which pytest-xdist knows as well, it loses with this pytest.)
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

# Most of what takes long waits: for region servers, executors, leases and killed servers. One process keeps less than half of a core busy. More
# than six do not get shorter, for the longest group is then the last.
PROCESSES_PER_CORE = 3
PROCESSES_MAX = 6

# What starts an HBase or a Spark of its own, to kill it or to ask for tickets, needs no company: it would only make a long group longer.
ALONE = "tests/hbase/test_standalone.py"
SECURED = "tests/hbase/test_kerberos.py"
SPARK_DEMO = "tests/demo/test_spark_demo.py"

# By the first of these that is found in a test's name.
GROUPS = {
    SECURED: re.compile(rf"^{re.escape(SECURED)}"),  # also where a parameter has hbase in its name
    "mini-cluster": re.compile(r"^tests/hbase/test_(mini_cluster_\w+|twins|cell_twins)\.py"),
    # As long as all else that needs an HBase: a second one takes a quarter of a minute of a core, and the suite ends minutes earlier. Neither may take
    # longer than its share of the processes' time, for then the suite ends with it.
    "servers-on-hbase": re.compile(
        r"^tests/(hbase/test_(group_faults|member_faults|links|\w*two_(tls_)?servers)|demo/test_demo_on_hbase)\.py"
    ),
    "hbase": re.compile(rf"^(?!{ALONE})tests/(hbase|tephra_client)/|/test_\w*hbase\w*\.py|\[.*hbase"),
    "spark": re.compile(rf"^(?!{SPARK_DEMO})(tests/spark/|.*/test_\w*spark\w*\.py)"),
    "browser": re.compile(r"^tests/browser/"),  # one Chromium, and servers with an operator's data
    "docs": re.compile(r"^tests/docs/"),  # each process that checks the tree parses all of it
}

# What takes longest, in this order: minutes each, and at the end files of a quarter of a minute. A file that is not here takes less.
# build/test-results.xml of a whole run tells when the order has changed.
FIRST = (
    "hbase",
    "mini-cluster",
    "servers-on-hbase",
    "browser",
    "spark",
    "tests/sim/test_simulation.py",
    SPARK_DEMO,
    "tests/guides/test_guides.py",
    SECURED,
    "tests/control/console/test_pages_hostile.py",
    "tests/system/test_consumers.py",
    "tests/system/test_kill_loop.py",
    "tests/system/test_tls.py",
    "tests/system/test_lost_answers.py",
    "tests/system/test_cli.py",
    "tests/system/test_schemathesis.py",
    "tests/sim/test_members.py",
    "docs",
    "tests/system/test_signals_at_start.py",
    "tests/system/test_group_kills.py",
    "tests/control/client/consumer/test_processing_end_to_end.py",
    "tests/system/test_canaries.py",
    "tests/control/http/test_handshake.py",
    "tests/system/test_signals.py",
    "tests/deploy/test_monitoring.py",
    ALONE,
    "tests/system/test_outbox_kills.py",
    "tests/demo/test_demo.py",
    "tests/engine/stores/test_repair.py",
    "tests/system/test_access.py",
    "tests/control/http/test_protocol.py",
    "tests/system/test_starting.py",
)

# Fixtures, and marks, that ask for what a group shares, and the groups in which there may be one.
FIXTURES = {
    "mini_cluster": {"mini-cluster"},
    "java_class_path": {"mini-cluster", "hbase"},
    "hbase_gateways": {"hbase", "servers-on-hbase"},
    "secured_hbase": {SECURED},
    "spark": {"spark", "hbase"},
}
MARKS = {
    "hbase": {"hbase", "servers-on-hbase", "mini-cluster", ALONE, SECURED},
    "tephra": {"hbase", "servers-on-hbase"},
    "spark": {"spark", "hbase", SPARK_DEMO},
}


def group(name: str) -> str:
    """The group of a test of this name: all tests of one run in the same process."""
    return next((known for known, pattern in GROUPS.items() if pattern.search(name)), name.partition("::")[0])


def share(items: list[pytest.Item]) -> None:
    """Mark what runs on Spark, see that each test's group can be told, and in one of several processes order them."""
    for item in items:
        if "spark" in asked_for(item):
            item.add_marker("spark")
        refuse_hidden_needs(item)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: rank(group(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes `--numprocesses auto` starts."""
    return min((os.cpu_count() or 1) * PROCESSES_PER_CORE, PROCESSES_MAX)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Deal tests out by their groups. Called only where there are several processes, and so where there is pytest-xdist."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)


def rank(name: str) -> int:
    """When a group has its turn."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def refuse_hidden_needs(item: pytest.Item) -> None:
    """A test that would start a second HBase, or Spark, ends the run before it begins."""
    needs = [(name, FIXTURES[name]) for name in asked_for(item) if name in FIXTURES]
    needs += [(mark.name, MARKS[mark.name]) for mark in item.iter_markers() if mark.name in MARKS]
    for need, groups in needs:
        if group(item.nodeid) not in groups:
            raise pytest.UsageError(
                f"{item.nodeid} needs {need}, and its name does not say so: put it into a file of tests/hbase or tests/spark,"
                " name its file test_…hbase… or test_…spark…, or have hbase in the name of its parameter (tests/sharing.py)"
            )


def asked_for(item: pytest.Item) -> list[str]:
    """The names of the fixtures that a test asks for, and those that these ask for."""
    return getattr(item, "fixturenames", [])
