"""The Spark session that a job runs in: the one that `spark-submit` set up, or one on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from basalt.errors import InputError

LOCAL = "local[*,4]"  # all cores of this machine, and three more attempts at a task that fails
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # the command has a bar of its own
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}


@contextmanager
def spark_session(name: str, master: str | None) -> Iterator[Any]:
    """A session as long as the block lasts; `master` None: what Spark's own settings say, else this machine."""
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: offline jobs run on Spark", field="spark",
            hint="pip install 'basalt-mq[spark]', and a Java of version 17 or later",
        ) from None  # fmt: skip
    # Workers are `python3` of the PATH else, which need not be the Python that has Basalt.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = master or SparkConf().get("spark.master") or LOCAL
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.master(chosen).appName(f"basalt {name}")
    for setting, value in (_LOCAL_SETTINGS if chosen.startswith("local") else {}).items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
