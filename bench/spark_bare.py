"""A data source in Python with nothing behind it: constant rows as Arrow batches, the most that any such source can do.

Its rows have the columns of Basalt's. As a stream it has one row for each trigger.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

MESSAGE_BYTES = 1_024  # as bench.setting_up has it, which no older tree can import: bench.versus compares with such
BATCH_ROWS = 2_048
SCHEMA = (
    "topic string, id binary, publish_time timestamp, key binary, value binary, tx_id string, "
    "watermark timestamp, control string"
)


class BareSource(DataSource):
    """`format("bare")`: option `rows`, and `partitions`."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> BareReader:
        return BareReader(int(self.options["rows"]), int(self.options.get("partitions", 2)))

    def streamReader(self, schema: StructType) -> BareStreamReader:
        return BareStreamReader()


class Slice(InputPartition):
    """So many rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class BareReader(DataSourceReader):
    """Rows by the partition."""

    def __init__(self, rows: int, partitions: int) -> None:
        self._slices = [Slice(rows // partitions) for _ in range(partitions)]

    def partitions(self) -> list[InputPartition]:
        return list(self._slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return batches(partition.rows)


class BareStreamReader(DataSourceStreamReader):
    """One more row whenever it is asked for the latest."""

    def __init__(self) -> None:
        self._latest = 0

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # Spark gives no limits to one that takes none
        self._latest += 1
        return {"n": self._latest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Slice(end["n"] - start["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return batches(partition.rows)


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """So many rows, in batches whose bytes are all the same."""
    whole = _batch(BATCH_ROWS)
    for _ in range(rows // BATCH_ROWS):
        yield whole
    if rest := rows % BATCH_ROWS:
        yield whole.slice(0, rest)


def _batch(rows: int) -> pa.RecordBatch:
    stamp = pa.timestamp("us", tz="UTC")
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["bench"] * rows, pa.string()),
            "id": pa.array([bytes(20)] * rows, pa.binary()),
            "publish_time": pa.array([0] * rows, stamp),
            "key": pa.nulls(rows, pa.binary()),
            "value": pa.array([b"x" * MESSAGE_BYTES] * rows, pa.binary()),
            "tx_id": pa.nulls(rows, pa.string()),
            "watermark": pa.array([0] * rows, stamp),
            "control": pa.nulls(rows, pa.string()),
        }
    )
