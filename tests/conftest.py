"""What tests of several folders share: a real HBase and the coprocessor's jar, made when the first test asks for them."""

from __future__ import annotations

from tests.hbase.gateways import coprocessor_jar, hbase_gateways, hbase_runtime
from tests.hbase.java_gateway import java_class_path, twins
from tests.hbase.mini_cluster import mini_cluster
from tests.hbase.tables import hbase_tables

__all__ = [
    "coprocessor_jar",
    "hbase_gateways",
    "hbase_runtime",
    "hbase_tables",
    "java_class_path",
    "mini_cluster",
    "twins",
]
