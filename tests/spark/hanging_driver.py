"""A driver to be killed: it runs a query that hangs right after the sink's commit. Used by test_crash_table.

python -m tests.spark.hanging_driver SERVER TOPIC FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.session import running_spark
from tests.spark.sink_faults import FAULT, FAULTY, PIPE, FaultySource
from tests.spark.sink_stream import numbers, run


def main(server: str, topic: str, folder: Path) -> None:
    """Run it; it does not end by itself."""
    with running_spark(folder / "spark", {"spark.driver.memory": "512m"}) as spark:
        spark.dataSource.register(FaultySource)
        writer = numbers(spark).writeStream.format(FAULTY).options(server=server, topic=topic, txnAppId=topic)
        fault = {FAULT: "the driver hangs after the commit", PIPE: str(folder / "pipe")}
        run(writer.options(**fault), folder / "checkpoint")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
