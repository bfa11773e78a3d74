"""The data source behind `format("basalt")`: it gives Spark schemas, readers and writers.

Spark makes an instance when a data frame is declared, pickles it, and makes readers and writers from it in processes of
their own. So an instance holds the options alone, and they are checked when it is made, and the topic of a sink when its
writer is: a fault is told before any job runs. docs/spark/source.md and docs/spark/sink.md describe the options.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from basalt_spark.columns import refuse_other_schema, row_schema
from basalt_spark.option_table import FrameUse, refuse_unknown
from basalt_spark.options import read_options
from basalt_spark.source.readers import BasaltFilteringReader, BasaltReader, BasaltStreamReader

if TYPE_CHECKING:
    from basalt_spark.sink.writers import BasaltStreamWriter, BasaltWriter


class BasaltDataSource(DataSource):
    """Topics as data frames: read, followed, written."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        refuse_unknown(options)

    @classmethod
    def name(cls) -> str:
        return "basalt"

    def schema(self) -> StructType:
        return row_schema(read_options(self.options, FrameUse.READ).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, FrameUse.BATCH)
        refuse_other_schema(schema, options.columns)
        return BasaltFilteringReader(options) if options.pushdown else BasaltReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # Spark's name
        options = read_options(self.options, FrameUse.STREAM)
        refuse_other_schema(schema, options.columns)
        return BasaltStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BasaltWriter:
        from basalt_spark.sink.writers import BasaltWriter, refuse_absent_topic  # readers' processes do not need it

        refuse_absent_topic(self.options)
        return BasaltWriter(schema, overwrite, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BasaltStreamWriter:  # Spark's name
        from basalt_spark.sink.writers import BasaltStreamWriter, refuse_absent_topic

        refuse_absent_topic(self.options)
        return BasaltStreamWriter(schema, overwrite, self.options)
