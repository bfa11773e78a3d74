"""`format("basalt")`: what Spark asks for readers and writers. Nothing here speaks to a server.

Spark makes an instance where a data frame is declared, pickles it, and makes readers and writers of it in processes of
their own. So an instance holds the options alone, and they are read where it is made: what is wrong is told before any
job runs. docs/spark/source.md and docs/spark/sink.md describe the options.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from basalt_spark.batch_reader import BasaltFilteringReader, BasaltReader
from basalt_spark.options import Use, refuse_unknown
from basalt_spark.read_options import read_options
from basalt_spark.schema import refuse_other_schema, row_schema
from basalt_spark.stream_reader import BasaltStreamReader

if TYPE_CHECKING:
    from basalt_spark.batch_writer import BasaltWriter
    from basalt_spark.stream_writer import BasaltStreamWriter


class BasaltDataSource(DataSource):
    """Topics as data frames: read, followed, written."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        refuse_unknown(options)

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "basalt"

    def schema(self) -> StructType:
        """The columns of a row."""
        return row_schema(read_options(self.options, Use.READ).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what is there now."""
        options = read_options(self.options, Use.BATCH)
        refuse_other_schema(schema, options.columns)
        return BasaltFilteringReader(options) if options.pushdown else BasaltReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # Spark's name
        """A reader that follows."""
        options = read_options(self.options, Use.STREAM)
        refuse_other_schema(schema, options.columns)
        return BasaltStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BasaltWriter:
        """A writer of one data frame."""
        from basalt_spark.batch_writer import BasaltWriter

        return BasaltWriter(schema, overwrite, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BasaltStreamWriter:  # Spark's name
        """A writer of micro-batches."""
        from basalt_spark.stream_writer import BasaltStreamWriter

        return BasaltStreamWriter(schema, overwrite, self.options)
