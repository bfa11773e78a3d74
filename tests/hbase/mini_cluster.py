"""An HBase of two region servers on HDFS in one Java process, and what tests do to it and read from its files.

It is up in about ten seconds and takes about 1 GB; flushes and compactions happen only when a test asks for them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hbase.frames import Frames, framed
from tests.hbase.java_gateway import java_process

ASKED = "BASALT_TEST_MINI_CLUSTER"
REGION_SERVERS = 2
HEAP_MIB_MAX = 1_000
WAIT_SECONDS_MAX = 120.0  # a bound for a hang: whatever is waited for happens within a second or two, or never
POLL_SECONDS = 0.05

Rows = Mapping[bytes, Mapping[bytes, bytes | None]]


class NewTable(NamedTuple):
    """A table to make; `coprocessor` is the value of its attribute, empty for none."""

    name: str
    coprocessor: str = ""
    splits: Sequence[bytes] = ()


class Region(NamedTuple):
    """A region as hbase:meta tells it; `server` is "host,port,startcode"."""

    encoded_name: str
    name: bytes
    server: str
    start: bytes
    stop: bytes


class StoreFile(NamedTuple):
    """One file of a region; a reference stands for half of a parent's file."""

    region: str
    name: str
    is_reference: bool
    size_bytes: int
    modified_ms: int


class Cell(NamedTuple):
    """One cell as it lies in a file."""

    file: str
    row: bytes
    column: bytes
    timestamp_ms: int
    type: str
    value: bytes


class MiniCluster:
    """The running cluster. Tables are named in full, with their prefix."""

    def __init__(self, java: Any) -> None:
        self._java = java
        self._tables = java.tables()
        self._files = java.files()

    # Servers

    def servers(self) -> list[str]:
        """The region servers that run, each "host,port,startcode"."""
        return list(self._java.servers())

    def kill(self, server: str) -> None:
        """End a region server as a crash does: nothing is flushed or closed."""
        self._java.kill(server)

    def stop(self, server: str) -> None:
        """End a region server in good order."""
        self._java.stop(server)

    def start_server(self) -> str:
        """Start one more region server."""
        return self._java.startServer()

    def aborted(self) -> list[str]:
        """The region servers that gave up by themselves."""
        return list(self._java.aborted())

    def settle(self) -> None:
        """Wait until every region is open at a server that runs."""
        self._java.settle()

    @property
    def thrift(self) -> str:
        """Where the Thrift 1 gateway listens; started when first asked for."""
        return f"127.0.0.1:{self._java.thriftPort()}"

    @property
    def thrift2(self) -> str:
        """Where the Thrift 2 gateway listens; started when first asked for."""
        return f"127.0.0.1:{self._java.thrift2Port()}"

    def metrics(self) -> dict[str, int]:
        """All numbers that the coprocessors registered, by name; those of both servers together, or (`.max`) the highest."""
        frames = Frames(self._java.metrics())
        found: dict[str, int] = {}
        while frames:
            name, value = frames.text(), frames.number()
            known = found.get(name, 0)
            found[name] = max(known, value) if name.endswith(".max") else known + value
        return found

    # Tables and regions

    def create(self, *tables: NewTable) -> None:
        """Make tables as Basalt's are, all at once."""
        self._tables.create(
            b"".join(
                framed(table.name.encode())
                + framed(table.coprocessor.encode())
                + struct.pack(">i", len(table.splits))
                + b"".join(map(framed, table.splits))
                for table in tables
            )
        )

    def drop_all(self, start: str) -> None:
        """Remove all tables whose names start so."""
        self._tables.dropAll(start)

    def set_coprocessor(self, table: str, coprocessor: str) -> None:
        """Change the attribute; returns when all regions were opened anew."""
        self._tables.setCoprocessor(table, coprocessor)

    def coprocessor(self, table: str) -> str:
        """The attribute as it is."""
        return self._tables.coprocessor(table)

    def disable(self, table: str) -> None:
        """Take a table off line."""
        self._tables.disable(table)

    def enable(self, table: str) -> None:
        """Take it on line again."""
        self._tables.enable(table)

    def snapshot(self, table: str, name: str) -> None:
        """Copy a table as it is now, under a name."""
        self._tables.snapshot(table, name)

    def restore(self, name: str) -> None:
        """Make a table that is off line what it was when it was copied under this name."""
        self._tables.restore(name)

    def regions(self, table: str) -> list[Region]:
        """In key order."""
        frames = Frames(self._tables.regions(table))
        found = []
        while frames:
            found.append(Region(frames.text(), frames.value(), frames.text(), frames.value(), frames.value()))
        return found

    def move(self, region: Region, server: str | None = None) -> str:
        """Move a region, to any other server if none is named; the server that has it now."""
        target = server or next(name for name in self.servers() if name != region.server)
        self._tables.move(region.encoded_name, target)
        return target

    def split(self, table: str, region: Region, at: bytes) -> None:
        """Split a region in two."""
        self._tables.split(table, region.encoded_name, at)

    def merge(self, first: Region, second: Region) -> None:
        """Make one region of two neighbours."""
        self._tables.merge(first.encoded_name, second.encoded_name)

    def write(self, table: str, rows: Rows, attribute: str = "", attribute_value: bytes = b"") -> None:
        """Write past Basalt. A column that is None is deleted. Raises what the region says."""
        packed = b"".join(
            framed(key)
            + struct.pack(">i", len(columns))
            + b"".join(framed(name) + framed(value) for name, value in columns.items())
            for key, columns in rows.items()
        )
        self._tables.write(table, packed, attribute, attribute_value)

    def scan(self, table: str) -> dict[bytes, dict[bytes, bytes]]:
        """Every row as a reader sees it."""
        return _rows(Frames(self._tables.scan(table)))

    # Files

    def flush(self, table: str) -> None:
        """Write all memstores to files."""
        self._files.flush(table)

    def compact(self, table: str, *, major: bool) -> None:
        """Compact each region that has two files or more (major: in any case); returns when the old files are gone."""
        self._files.compact(table, major)

    def memstore_bytes(self, table: str) -> int:
        """What is in no file yet."""
        return self._files.memstoreBytes(table)

    def files(self, table: str) -> list[StoreFile]:
        """The files of all regions."""
        frames = Frames(self._files.list(table))
        found = []
        while frames:
            found.append(StoreFile(frames.text(), frames.text(), frames.flag(), frames.number(), frames.number()))
        return found

    def cells(self, table: str) -> list[Cell]:
        """Every cell in every file, read from HDFS."""
        frames = Frames(self._files.cells(table))
        found = []
        while frames:
            found.append(
                Cell(frames.text(), frames.value(), frames.value(), frames.number(), frames.text(), frames.value())
            )
        return found

    def stored(self, table: str) -> dict[bytes, dict[bytes, bytes]]:
        """The rows in the files; the newest value of a column where several files have it."""
        rows: dict[bytes, dict[bytes, bytes]] = {}
        for cell in sorted(self.cells(table), key=lambda cell: cell.timestamp_ms):
            assert cell.type == "Put", cell
            rows.setdefault(cell.row, {})[cell.column] = cell.value
        return rows


def _rows(frames: Frames) -> dict[bytes, dict[bytes, bytes]]:
    rows: dict[bytes, dict[bytes, bytes]] = {}
    while frames:
        row, column, value = frames.value(), frames.value(), frames.value()
        rows.setdefault(row, {})[column] = value
    return rows


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Return once `holds` is true; the cluster does its work in threads that nobody can be told to wait for."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(POLL_SECONDS)


@pytest.fixture(scope="session")
def mini_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """One cluster for all tests of the run: take a table prefix of your own, and leave as many servers as you found.

    It is a matter of minutes, and so for CI and for those who ask: by BASALT_TEST_MINI_CLUSTER=1, or by naming the files.
    """
    named = any("mini_cluster" in argument for argument in request.config.args)
    if not (named or os.environ.get("CI") or os.environ.get(ASKED)):
        pytest.skip(f"runs in CI, or with {ASKED}=1")
    class_path = request.getfixturevalue("java_class_path")
    with running_cluster(class_path, tmp_path_factory.mktemp("mini-cluster")) as cluster:
        yield cluster


@contextlib.contextmanager
def running_cluster(
    class_path: str, directory: Path, *options: str, heap_mib_max: int = HEAP_MIB_MAX
) -> Iterator[MiniCluster]:
    """A cluster with its files and its log in `directory`; it ends with the block. `options` are Java's."""
    with java_process(class_path, directory / "mini-cluster.log", heap_mib_max, *options) as gateway:
        yield MiniCluster(gateway.startCluster(str(directory / "data"), REGION_SERVERS))
    shutil.rmtree(directory / "data")
