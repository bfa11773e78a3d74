"""Starts the Java side of the tests, coprocessor/src/test/java/io/basalt/hbase/gateway, and speaks to it through Py4J.

Maven compiles it and writes down the class path, unless the sources are those of the last time. The process ends with this one: its standard input is
what keeps it alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway

from deploy.hbase.runtime import ROOT, RuntimeMissingError, java, run_maven

COPROCESSOR = ROOT / "coprocessor"
TARGET = COPROCESSOR / "target"
CLASS_PATH = TARGET / "test-classpath.txt"
SOURCES_MARK = TARGET / "test-classes.sources"  # the digest of the sources that were compiled
MAIN_CLASS = "io.basalt.hbase.gateway.TestGateway"
TWINS_HEAP_MIB_MAX = 256
STOP_TIMEOUT_S = 20.0
JAVA_OPTIONS = (
    f"@{ROOT / 'deploy' / 'hbase' / 'jvm.options'}",
    f"-Dlog4j.configuration=file:{ROOT / 'deploy' / 'hbase' / 'conf' / 'log4j.properties'}",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # a run is too short for the second compiler to pay
)


@pytest.fixture(scope="session")
def java_class_path() -> str:
    """The classes of the coprocessor and its tests, compiled as they are now, and all jars they need."""
    try:
        return compiled()
    except RuntimeMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, and so the tests of the Java side must run: {error}", pytrace=False)
        pytest.skip(f"needs a JDK and Maven: {error}")


@pytest.fixture(scope="session")
def twins(java_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """The Java class `Twins`: rules and codecs, without an HBase."""
    log = tmp_path_factory.mktemp("twins") / "java.log"
    with java_process(java_class_path, log, TWINS_HEAP_MIB_MAX) as gateway:
        yield Twins(gateway.twins())


class Twins:
    """The methods of the Java class of this name. An object of Py4J has every attribute, and so Hypothesis cannot print it."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._java, name)


def compiled() -> str:
    """Compile, and return the class path; `RuntimeMissingError` without a JDK or Maven."""
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two Mavens at once would write over each other's classes
        digest = _digest()
        if not (CLASS_PATH.exists() and SOURCES_MARK.exists() and SOURCES_MARK.read_text() == digest):
            if not (CLASS_PATH.exists() and _is_compiled()):
                run_maven("--file", COPROCESSOR / "pom.xml", "test-compile")
            SOURCES_MARK.write_text(digest)
        jars = CLASS_PATH.read_text().strip()
    return os.pathsep.join([str(TARGET / "classes"), str(TARGET / "test-classes"), jars])


def _is_compiled() -> bool:
    """True when Maven has compiled the tests since any of their sources changed, as `make java` does: it need not be asked again.

    A jar tells nothing of that: one is made without the tests, too.
    """
    made = TARGET / "test-classes" / f"{MAIN_CLASS.replace('.', '/')}.class"
    return made.exists() and all(path.stat().st_mtime_ns < made.stat().st_mtime_ns for path in _sources())


def _sources() -> list[Path]:
    """All that the classes are made of; the vectors are among their resources."""
    folders = (COPROCESSOR / "src", ROOT / "tests" / "vectors")
    files = (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())
    return [COPROCESSOR / "pom.xml", *files]


def _digest() -> str:
    """The digest of all that the classes are made of."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def java_process(class_path: str, log: Path, heap_mib_max: int, *options: str) -> Iterator[Any]:
    """The entry point of a gateway in a Java process of its own, which is gone when the block ends."""
    token = secrets.token_hex(16)
    command = [java(), f"-Xmx{heap_mib_max}m", *JAVA_OPTIONS, *options, "-cp", class_path, MAIN_CLASS]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=log.parent, text=True
        )
    try:
        process.stdin.write(f"{token}\n")  # not an argument: those can be read by every user of the machine
        process.stdin.flush()
        port = next((int(line.split()[1]) for line in process.stdout if line.startswith("PORT ")), None)
        if port is None:
            raise RuntimeError(f"the Java process ended at its start:\n{log.read_text()[-4_000:]}")
        # Java keeps the few objects that were asked for: to tell it of each that Python collects fails once it has ended, and Py4J logs that
        # with a traceback, in the middle of whatever is done then. Python 3.11 parses for one, and a parser that is interrupted so fails.
        parameters = GatewayParameters(
            address="127.0.0.1", port=port, auth_token=token, auto_convert=True, enable_memory_management=False
        )
        gateway = JavaGateway(gateway_parameters=parameters)
        try:
            yield gateway.entry_point
        finally:
            gateway.close()
    finally:
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
