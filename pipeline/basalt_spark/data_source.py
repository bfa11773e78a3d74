"""The data source behind `format("basalt")`: it gives Spark schemas, readers and writers.

Spark makes an instance when a data frame is declared, pickles it, and makes readers and writers from it in processes of
their own. So an instance holds the options alone, and they are checked when it is made, and the topic of a sink when its
writer is: a fault is told before any job runs. docs/spark/source.md and docs/spark/sink.md describe the options.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from basalt.errors import BasaltError
from basalt_spark.columns import refuse_other_schema, row_schema
from basalt_spark.option_table import FrameUse, refuse_unknown
from basalt_spark.options import read_options
from basalt_spark.source.readers import BasaltFilteringReader, BasaltReader, BasaltStreamReader

if TYPE_CHECKING:
    from basalt_spark.sink.writers import BasaltStreamWriter, BasaltWriter

P = ParamSpec("P")
T = TypeVar("T")


class RefusedByBasaltError(Exception):
    """An error that Spark prints with the reason above the traceback; else the reason is the last of some 40 lines.

    Spark prints the traceback of an error and takes its `__cause__` away before; so this one cannot be taken away.
    """

    def __init__(self, reason: BasaltError) -> None:
        super().__init__(reason.message)
        self._reason = reason.with_traceback(None)
        if reason.hint is not None:
            reason.add_note(reason.hint)

    @property
    def __cause__(self) -> BaseException | None:
        return self._reason

    @__cause__.setter
    def __cause__(self, _cause: BaseException | None) -> None:
        pass


def reason_first(method: Callable[P, T]) -> Callable[P, T]:
    """Raise an error of Basalt in the form that Spark prints best."""

    @wraps(method)
    def refusing(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except BasaltError as error:
            raise RefusedByBasaltError(error) from None

    return refusing


class BasaltDataSource(DataSource):
    """Topics as data frames: read, followed, written."""

    @reason_first
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        refuse_unknown(options)

    @classmethod
    def name(cls) -> str:
        return "basalt"

    @reason_first
    def schema(self) -> StructType:
        return row_schema(read_options(self.options, FrameUse.READ).columns)

    @reason_first
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, FrameUse.BATCH)
        refuse_other_schema(schema, options.columns)
        return BasaltFilteringReader(options) if options.pushdown else BasaltReader(options)

    @reason_first
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # Spark's name
        options = read_options(self.options, FrameUse.STREAM)
        refuse_other_schema(schema, options.columns)
        return BasaltStreamReader(options)

    @reason_first
    def writer(self, schema: StructType, overwrite: bool) -> BasaltWriter:
        from basalt_spark.sink.writers import (  # readers' processes do not need it
            BasaltWriter,
            make_group,
            refuse_absent_topic,
        )

        refuse_absent_topic(self.options)
        make_group(self.options)
        return BasaltWriter(schema, overwrite, self.options)

    @reason_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> BasaltStreamWriter:  # Spark's name
        from basalt_spark.sink.writers import BasaltStreamWriter, make_group, refuse_absent_topic

        refuse_absent_topic(self.options)
        make_group(self.options)
        return BasaltStreamWriter(schema, overwrite, self.options)
