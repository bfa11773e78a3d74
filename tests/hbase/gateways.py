"""Fixtures for tests on a real HBase: one standalone HBase for all tests of a run, started when the first one asks for it.

    BASALT_TEST_HBASE=HOST:PORT,HOST:PORT   use these Thrift 1 and Thrift 2 gateways instead of starting some

Without a JDK and Maven these tests are skipped; where CI is set they fail, so that nobody takes a skipped test for a passed one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest

from deploy import coprocessor_jar as coprocessor
from deploy.hbase.companion import running_hbase
from deploy.hbase.runtime import RuntimeMissingError, classpath
from deploy.hbase.standalone import Gateways

NAMED = "BASALT_TEST_HBASE"

# What makes a test run quicker, and changes nothing that it could see.
#
# A JVM that lives for minutes pays neither for the second compiler nor for collectors with threads: an HBase takes 40 % less of a core.
SHORT_LIVED_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
SETTINGS = {
    # How often a region server looks whether a table's own flush interval is over; 10 s otherwise.
    "hbase.server.thread.wakefrequency": "1000",
}


@pytest.fixture(scope="session")
def hbase_gateways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """Where HBase listens. All tests of the run share it: take a table prefix of your own."""
    if named := os.environ.get(NAMED):
        thrift, _, thrift2 = named.partition(",")
        yield Gateways(thrift, thrift2, 0)
        return
    request.getfixturevalue("hbase_runtime")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in SHORT_LIVED_JAVA.items():
                patch.setenv(name, value)
            gateways = stack.enter_context(running_hbase(tmp_path_factory.mktemp("hbase"), SETTINGS))
        yield gateways


@pytest.fixture(scope="session")
def hbase_runtime() -> None:
    """What an HBase of a test's own needs: Java and HBase's jars."""
    try:
        classpath()
    except RuntimeMissingError as error:
        _cannot(error)


@pytest.fixture(scope="session")
def coprocessor_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coprocessor's jar, built from the sources as they are now.

    Its name tells its content: region servers keep what they have loaded from a path, and BASALT_TEST_HBASE names some that
    may have loaded another build.
    """
    try:
        jar = coprocessor.build()
    except RuntimeMissingError as error:
        _cannot(error)
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()[:16]
    return Path(shutil.copy(jar, tmp_path_factory.mktemp("coprocessor") / f"basalt-coprocessor-{digest}.jar"))


def _cannot(error: RuntimeMissingError) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and so the tests on HBase must run: {error}", pytrace=False)
    pytest.skip(f"needs HBase: {error}")
