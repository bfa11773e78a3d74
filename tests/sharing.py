"""Who shares what when tests run in several processes, as `make test` runs them.

What is started once for a run, an HBase, a mini cluster, a Spark, is started in one of the processes: the tests that need it are
one group. Of all others those of a file are one, so that what a module starts is started once as well. Groups that take minutes
are begun first, and so the processes end at about the same time. In a single process nothing of this matters.
"""

from __future__ import annotations

import os

import pytest

# Minutes each, in this order. A file that is not here takes less than one.
GROUPS_FIRST = (
    "hbase",
    "spark",
    "mini-cluster",
    "tests/sim/test_simulation.py",
)

# What brings a test into a group: a fixture that it asks for, or a mark, for some ask for their fixtures as they run. The first counts.
GROUPS = {
    "mini_cluster": "mini-cluster",
    "java_class_path": "mini-cluster",
    "hbase_gateways": "hbase",
    "hbase": "hbase",
    "tephra": "hbase",
    "spark": "spark",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on Spark; in one of several processes, name each test's group and order them."""
    for item in items:
        if "spark" in fixtures(item):
            item.add_marker("spark")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    ranks = {name: rank for rank, name in enumerate(GROUPS_FIRST)}
    items.sort(key=lambda item: ranks.get(group(item), len(ranks)))


def group(item: pytest.Item) -> str:
    """The group of a test: all tests of one run in the same process."""
    has = {*fixtures(item), *(mark.name for mark in item.iter_markers())}
    return next((name for reason, name in GROUPS.items() if reason in has), item.nodeid.partition("::")[0])


def fixtures(item: pytest.Item) -> list[str]:
    """The names of the fixtures that a test asks for, and those that these ask for."""
    return getattr(item, "fixturenames", [])
