"""What tests of several folders share: a real HBase, the coprocessor's jar and a Spark session, made when the first test asks for them.

Where a run has several processes, `tests.sharing` says which tests run in the same one.
"""

from __future__ import annotations

from tests.budgets import pytest_itemcollected
from tests.hbase.gateways import coprocessor_jar, hbase_gateways, hbase_runtime
from tests.hbase.java_gateway import java_class_path, twins
from tests.hbase.mini_cluster import mini_cluster
from tests.hbase.tables import hbase_tables
from tests.sharing import (
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)
from tests.spark.session import spark

__all__ = [
    "coprocessor_jar",
    "hbase_gateways",
    "hbase_runtime",
    "hbase_tables",
    "java_class_path",
    "mini_cluster",
    "pytest_collection_modifyitems",
    "pytest_itemcollected",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "spark",
    "twins",
]
