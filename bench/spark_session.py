"""A Spark with two cores for a measurement, and what its processes hold in memory."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
CORES = 2
STOP_S = 60
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.sql.session.timeZone": "UTC",
    # Checkpoints lie on a local disk here, where Hadoop starts a program for the permissions of every file that it makes: without
    # their checksums there are a quarter as many. The bare source has the same settings.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


@contextmanager
def running_spark(folder: Path) -> Iterator[SparkSession]:
    """A session with the Basalt source and the bare one; its JVM ends with the block."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import basalt_spark
    from bench.spark_bare import BareSource

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("basalt bench")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        session.dataSource.register(BareSource)
        basalt_spark.register(session)
        yield session
    finally:
        gateway = session.sparkContext._gateway
        assert gateway is not None
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(STOP_S)
        SparkContext._gateway = SparkContext._jvm = None


def memory_mib() -> dict[str, float]:
    """The memory that the driver, its JVM and the Python workers have for themselves."""
    held = {"driver": _anonymous_mib(os.getpid()), "JVM": 0.0, "workers": 0.0}
    for pid in _descendants(os.getpid()):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if name == "java":
                held["JVM"] += _anonymous_mib(pid)
            elif b"pyspark" in command:
                held["workers"] += _anonymous_mib(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return held


def tree_cpu_s() -> float:
    """Processor seconds of this process and all below it, those included that have ended and were waited for."""
    total = 0.0
    for pid in (os.getpid(), *_descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        total += sum(map(int, fields[11:15])) / TICKS_PER_S
    return total


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return  # it has just ended
    for task in tasks:
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            yield child
            yield from _descendants(child)


def _anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1_024
    return 0.0


def fresh(folder: Path, name: str) -> str:
    """A directory that is not there yet, for a checkpoint or an output."""
    return str(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder)) / "new")
