"""What tests of several folders share: a real HBase, the coprocessor's jar and a Spark session, made when the first test asks for them.

Where a run has several processes, `tests.sharing` says which tests run in the same one.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from tests.budgets import leave_to_soaks, pytest_itemcollected
from tests.hbase.gateways import coprocessor_jar, hbase_gateways, hbase_runtime
from tests.hbase.java_gateway import java_class_path, twins
from tests.hbase.mini_cluster import mini_cluster
from tests.hbase.secured import secured_hbase
from tests.hbase.tables import hbase_tables
from tests.kdc import kdc
from tests.sharing import pytest_xdist_auto_num_workers, pytest_xdist_make_scheduler, share
from tests.spark.session import spark

__all__ = [
    "coprocessor_jar",
    "hbase_gateways",
    "hbase_runtime",
    "hbase_tables",
    "java_class_path",
    "kdc",
    "mini_cluster",
    "pytest_itemcollected",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "secured_hbase",
    "spark",
    "twins",
]

# Requests and examples leave few cycles, and the tests themselves none.
GC_THRESHOLDS = (5_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among ten thousand tests: while they are collected it takes two thirds of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.set_threshold(*GC_THRESHOLDS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what only a soak runs, and order the rest."""
    leave_to_soaks(config, items)
    share(items)
