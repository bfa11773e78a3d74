"""The Spark job: the pipeline in a session of its own, until its topics have ended. Started, and killed, by the demo."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    # A checkpoint's files without their checksums, of which there are three each: Hadoop starts a program for the permissions
    # of every file that it makes on a local disk.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
}
MASTER = "local[2,4]"  # a task whose worker is killed is tried again


def main(url: str, folder: Path) -> None:
    """Run the pipeline against this server, with checkpoints in `folder`; from there, where there are some."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = str(_workers_python(folder))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    from pyspark.sql import SparkSession

    import basalt_spark
    from basalt_spark import Pipeline
    from demo.spark.steps import steps

    builder = SparkSession.builder.master(MASTER).appName("basalt demo")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    basalt_spark.register(spark)
    Pipeline(steps(url, folder)).run("eos", spark=spark)
    spark.stop()


def _workers_python(folder: Path) -> Path:
    """This Python for Spark's workers, where they find the demo's modules and the installed PySpark.

    Spark has them import PySpark from a zip, which holds no compiled code: each of the many processes would compile it
    anew, for more than a second of a core.
    """
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o755)
    return program


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
