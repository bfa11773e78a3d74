"""One SparkSession for a whole run of the tests: a start takes seconds, and the memory of one JVM is enough.

Without Java these tests are skipped; where CI is set they fail, so that nobody takes a skipped test for a passed one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
STOP_SECONDS_MAX = 60.0  # a bound for a hang; the JVM ends within a second of its standard input
PACKAGES = (
    "engine",
    "control",
    "pipeline",
)  # workers load the tree that is tested, also where another one is installed

# Two cores, and three attempts at each task: with `local[2]` the first failed one fails the job, on a cluster it does not.
MASTER = "local[2,3]"
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A checkpoint's files without their checksums, of which there are three each: Hadoop starts a program for the permissions
    # of every file that it makes on a local disk.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Compile less, start sooner: a test's plans run once.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the run, in which `format("basalt")` is known. Leave its settings as they are when a test ends."""
    _require_java()
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


@contextmanager
def running_spark(folder: Path, settings: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """A session whose JVM ends with the block, and with this process however that ends: its standard input ends then."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import basalt_spark

    with pytest.MonkeyPatch.context() as patch:
        # Python workers load what tests define by its module's name, and run under this very Python.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))))
        patch.setenv("PYSPARK_PYTHON", str(_workers_python(folder)))
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
        patch.delenv("SPARK_CONF_DIR", raising=False)
        builder = SparkSession.builder.master(MASTER).appName("basalt tests")
        placed = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.log.level": "ERROR"}
        for name, value in {**SETTINGS, **placed, **(settings or {})}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    _translate_its_own_errors_only()
    try:
        basalt_spark.register(session)
        yield session
    finally:
        gateway = session.sparkContext._gateway
        session.stop()
        _end(gateway)
        SparkContext._gateway = SparkContext._jvm = None


def _translate_its_own_errors_only() -> None:
    """Leave the errors of other JVMs as they are: PySpark's hook in Py4J is one for the process, also when Spark has stopped.

    Tests on HBase have gateways of their own, and look at what these raise.
    """
    from pyspark import SparkContext
    from pyspark.errors.exceptions import captured

    translate = captured.convert_exception

    def convert_exception(error):
        gateway = SparkContext._gateway
        if gateway is None or error._gateway_client is not gateway._gateway_client:
            return captured.UnknownException.__new__(captured.UnknownException)  # which leaves the error as it came
        return translate(error)

    captured.convert_exception = convert_exception


def _workers_python(folder: Path) -> Path:
    """This Python for Spark's workers, with the installed PySpark.

    Spark has them import it from a zip, which holds no compiled code: each of the many processes of a test would compile
    it anew, for more than a second of a core.
    """
    program = folder / "python"
    folder.mkdir(parents=True, exist_ok=True)
    folders = os.pathsep.join(map(str, (ROOT, *(ROOT / name for name in PACKAGES))))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(folders)} exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o755)
    return program


def _end(gateway) -> None:
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS_MAX)
    finally:
        process.kill()


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        _cannot("there is no java, neither in JAVA_HOME nor in PATH; install a JDK (17)")
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        _cannot(str(error))


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and so the tests on Spark must run: {reason}", pytrace=False)
    pytest.skip(f"needs Spark: {reason}")
