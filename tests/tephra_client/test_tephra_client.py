"""Apache Tephra's own Java client and codec against a server with the Thrift face, and its wire ids against our IDL."""

from __future__ import annotations

import http.client
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from basalt.thrift.wire import METHODS, types
from deploy.hbase.runtime import RuntimeMissingError
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess
from tests.tephra_client.runtime import java_command

pytestmark = [pytest.mark.tephra, pytest.mark.jvm]

RUN_SECONDS_MAX = 120  # a bound for a hang; it takes 3 s alone
SEEN_LINES_MIN = 45

STRUCTS = (
    types.TBoolean,
    types.TGenericException,
    types.TInvalidTruncateTimeException,
    types.TTransaction,
    types.TTransactionConflictException,
    types.TTransactionCouldNotTakeSnapshotException,
    types.TTransactionNotInProgressException,
)

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run() -> Run:
    """Runs one of the Java programs; what it prints."""
    try:
        java_command("WireIds")
    except RuntimeMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, and so Tephra's own client must run: {error}", pytrace=False)
        pytest.skip(f"needs a JDK and Maven: {error}")

    def called(program: str, *arguments: str) -> str:
        command = java_command(program, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
        assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
        return done.stdout

    return called


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ServerProcess, int]]:
    """A server whose Thrift face listens on the port."""
    process = ServerProcess(tmp_path)
    with reserved_port() as thrift_port:
        process.start("--set", f"thrift.port={thrift_port}")
        try:
            yield process, thrift_port
        finally:
            process.stop()


def test_the_fields_of_our_idl_are_those_of_tephras_classes(run: Run):
    theirs = dict(line.split(" ", 1) for line in run("WireIds").splitlines())
    ours = {struct.__name__: fields(struct.thrift_spec) for struct in STRUCTS}
    for name in METHODS:
        for part in ("args", "result"):
            ours[f"{name}_{part}"] = fields(getattr(types.TTransactionServer, f"{name}_{part}").thrift_spec)
    theirs["TTransaction"] = theirs["TTransaction"].replace("transactionId", "id")  # names are not on the wire
    assert sorted(theirs) == sorted(ours)
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name].strip()} == {}


def fields(specification: dict[int, tuple[Any, ...]]) -> str:
    text = 18  # thriftpy2 tells bytes from text; the wire does not
    entries = [(number, 11 if entry[0] == text else entry[0], entry[1]) for number, entry in specification.items()]
    return " ".join(sorted(f"{number}:{kind}:{name}" for number, kind, name in entries))


def test_an_application_on_tephras_client_works_with_basalt(run: Run, server: tuple[ServerProcess, int]):
    process, thrift_port = server
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)
    connection.request("PUT", "/v1/namespaces/shop/topics/orders", "{}", {"content-type": "application/json"})
    assert connection.getresponse().status in (200, 201)
    connection.close()
    seen = run("Application", str(thrift_port), str(process.port)).splitlines()
    assert len(seen) >= SEEN_LINES_MIN, seen
    assert "who wins is told" in seen
    assert "nothing is left open" in seen
    assert "failed" not in process.log.read_text()
