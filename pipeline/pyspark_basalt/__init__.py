"""Spark imports every module `pyspark_*` when a session first looks for a format, and registers its `DefaultSource`.

So this package holds nothing else, and is light to import: it is imported in sessions that never heard of Basalt, too.
"""

from __future__ import annotations

from basalt_spark.data_source import BasaltDataSource as DefaultSource

__all__ = ["DefaultSource"]
