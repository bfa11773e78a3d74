"""Writes a data frame into a transaction that somebody else commits: what `batch_transaction` uses, and nobody else.

The commit of such a write publishes nothing. It writes the winning segments into a file, for the process that holds the
transaction is another one, on the same machine, and Spark gives no other way from the one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from basalt_spark import sink_commit
from basalt_spark.connection import client_of
from basalt_spark.sink_schema import sink_columns
from basalt_spark.sink_work import Segment, SegmentStored
from basalt_spark.write_options import write_options

if TYPE_CHECKING:
    import pyarrow as pa

PART_FORMAT = "basalt_part"
TRANSACTION = "transaction"
REPORT = "report"


class PartDataSource(DataSource):
    """The format of such writes. Its options are those of a write, and the two above."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return PART_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> PartWriter:
        """A writer of one data frame."""
        return PartWriter(schema, self.options)


class PartWriter(DataSourceArrowWriter):
    """Stores a data frame under segments of one open transaction, and reports them."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        own = (TRANSACTION, REPORT)
        self.options = write_options({name: value for name, value in options.items() if name not in own})
        self.transaction, self.report = (options[name] for name in own)
        self.columns = sink_columns(schema, self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SegmentStored:
        """In a task: store its rows."""
        from basalt_spark.segment_writer import SegmentWriter, storing

        context = TaskContext.get()
        assert context is not None, "Spark calls this in its tasks"
        store = storing(client_of(self.options.server), self.options.topic, self.options.namespace)
        return SegmentWriter(self.columns, self.join, store).write(iterator, context.partitionId(), work=None)

    def join(self) -> Segment:
        """A segment of the transaction."""
        begun = client_of(self.options.server).transactions.checkpoint(self.transaction)
        return Segment(self.transaction, begun.write_pointer)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Beside the driver, once every task has stored its rows: tell which segments count, in order."""
        found = sink_commit.verdict(sink_commit.stored(messages))
        aside = Path(f"{self.report}.new")
        aside.write_bytes(msgspec.json.encode(found.segments))
        aside.replace(self.report)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: the write raises, and whoever holds the transaction ends it."""


def reported_segments(report: Path) -> tuple[int, ...]:
    """What `PartWriter.commit` has told."""
    return msgspec.json.decode(report.read_bytes(), type=tuple[int, ...])
