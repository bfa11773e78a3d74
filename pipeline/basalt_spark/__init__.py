"""Topics in Spark: `format("basalt")` for reading, following and writing, and jobs that run on Spark.

    import basalt_spark

    basalt_spark.register(spark)
    spark.readStream.format("basalt").option("server", url).option("topic", "orders").load()

Where the package `pyspark_basalt` is installed beside it, as it is with Basalt's wheel, Spark finds the format by
itself. docs/spark has the rest. Importing this package needs neither Spark nor Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from basalt import __version__
from basalt.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from basalt_spark.event_time import in_event_time, messages_where
    from basalt_spark.pipeline import Pipeline, Step
    from basalt_spark.sink.writers import batch_transaction

__all__ = ["Pipeline", "Step", "__version__", "batch_transaction", "in_event_time", "messages_where", "register"]

# The modules of the names that need Spark; they are imported when they are first asked for.
_NEEDS_SPARK = {
    "Pipeline": "basalt_spark.pipeline",
    "Step": "basalt_spark.pipeline",
    "batch_transaction": "basalt_spark.sink.writers",
    "in_event_time": "basalt_spark.event_time",
    "messages_where": "basalt_spark.event_time",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_NEEDS_SPARK[name]), name)
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def register(spark: SparkSession) -> None:
    """Make `format("basalt")` known to this session. Calling it again does no harm."""
    try:
        from basalt_spark.data_source import BasaltDataSource
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    spark.dataSource.register(BasaltDataSource)


def _missing(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow", "py4j"):
        return error
    return InputError(
        f"{error.name} is not installed: Spark's data source needs pip install 'basalt-mq[spark]'", field="spark"
    )
