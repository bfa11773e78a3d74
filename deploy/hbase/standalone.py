"""A standalone HBase with its two Thrift gateways, in a directory of its own: start, stop, state, wait until ready.

    DIRECTORY/gateways.json   where it listens, and the settings it was started with
    DIRECTORY/logs/           master.log (with region server and ZooKeeper), thrift.log, thrift2.log
    DIRECTORY/data/           tables; they survive a stop, and a SIGKILL of everything

Whatever is left of an earlier start, however that ended, is seen and cleared by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from deploy.hbase.java_process import JavaProcess, Role, stop_all
from deploy.hbase.ping import answers_thrift, answers_thrift2, demands_sasl
from deploy.hbase.runtime import classpath, java

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 180.0  # it takes 7 s alone on two cores; a machine full of other tests gets its time
PORT_ATTEMPTS = 3  # another program may take a port between our look and HBase's
PORTS = range(
    20_000, 32_000
)  # below the range from which Linux serves outgoing connections, so that none has one of these
POLL_S = 0.1
HEAP_MB = 1_024
GATEWAY_HEAP_MB = 512  # each request of up to 10 MiB lies in it a few times over
LOG_BYTES_SHOWN = 3_000
MASTER, THRIFT, THRIFT2 = "master", "thrift", "thrift2"
ROLES = (MASTER, THRIFT, THRIFT2)
GATEWAY_CLASSES = {
    1: "org.apache.hadoop.hbase.thrift.ThriftServer",
    2: "org.apache.hadoop.hbase.thrift2.ThriftServer",
}
QUALITY = "hbase.thrift.security.qop"  # a gateway that has it asks for Kerberos
PORT_TAKEN = (b"BindException", b"Address already in use", b"Could not start ZK at requested port")


class StandaloneError(RuntimeError):
    """HBase did not start, or not as asked; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Gateways:
    """The addresses of a standalone HBase: both gateways as `host:port`, ZooKeeper's port; and its settings."""

    thrift: str
    thrift2: str
    zookeeper_port: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def thrift_port(self) -> int:
        return int(self.thrift.rpartition(":")[2])

    @property
    def thrift2_port(self) -> int:
        return int(self.thrift2.rpartition(":")[2])

    def answer(self) -> bool:
        """True when both gateways answer calls; where they ask for Kerberos first, when both do that."""
        if QUALITY in self.settings:
            return demands_sasl(self.thrift_port) and demands_sasl(self.thrift2_port)
        return answers_thrift(self.thrift_port) and answers_thrift2(self.thrift2_port)


class Standalone:
    """The HBase of one directory, which need not exist yet. Any process may look at it and stop it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.processes = tuple(JavaProcess(self.directory, role) for role in ROLES)
        self._state = self.directory / "gateways.json"

    @property
    def gateways(self) -> Gateways | None:
        """The addresses at which it listens, or did when it last ran; None when it never has."""
        try:
            return Gateways(**json.loads(self._state.read_text()))
        except FileNotFoundError:
            return None

    def pids(self) -> dict[str, int]:
        """The process id of each role that runs."""
        return {process.role: pid for process in self.processes if (pid := process.pid) is not None}

    def start(
        self, settings: Mapping[str, str] | None = None, *, heap_mb: int = HEAP_MB, timeout_s: float = START_TIMEOUT_S
    ) -> Gateways:
        """Start it with these HBase settings and wait until it is ready. One that runs with the same settings is kept.

        When this fails, or is interrupted, nothing is left running.
        """
        wanted = dict(settings or {})
        with self._alone():
            known, running = self.gateways, self.pids()
            if known is not None and len(running) == len(ROLES):
                if known.settings != wanted:
                    raise StandaloneError(
                        f"an HBase runs in {self.directory} with other settings: {known.settings or 'none'}; stop it first"
                    )
                try:
                    self.wait(timeout_s)
                except StandaloneError:
                    if len(self.pids()) == len(ROLES):
                        raise
                    # Some had been killed, and were still ending: it is started as if they had ended before.
                else:
                    return known
            stop_all(self.processes)
            return self._start(wanted, heap_mb, timeout_s)

    def stop(self) -> None:
        """Stop whatever runs of it; the tables stay."""
        if self.directory.is_dir():
            with self._alone():
                stop_all(self.processes)

    def remove_data(self) -> None:
        """Drop the tables and ZooKeeper's data. It must not run."""
        if running := self.pids():
            raise StandaloneError(f"an HBase runs in {self.directory} ({_listed(running)}); stop it first")
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> Gateways:
        """Wait until both gateways answer; `StandaloneError` when they do not in time, or a process is gone."""
        give_up_s = time.monotonic() + timeout_s
        while time.monotonic() < give_up_s:
            gateways = self.gateways
            gone = [process for process in self.processes if process.pid is None]
            if gateways is None or gone:
                raise StandaloneError(f"no whole HBase runs in {self.directory}{self._ends_of_logs(gone)}")
            if gateways.answer():
                return gateways
            time.sleep(POLL_S)
        raise StandaloneError(f"HBase was not ready within {timeout_s:.0f} s{self._ends_of_logs(self.processes)}")

    def _start(self, settings: dict[str, str], heap_mb: int, timeout_s: float) -> Gateways:
        # Whoever ended without leaving ZooKeeper is waited for until its time there is over: 10 to 20 s. All that ZooKeeper
        # holds here is who runs, and that is nobody.
        shutil.rmtree(self.directory / "data" / "zookeeper", ignore_errors=True)
        for attempt in range(1, PORT_ATTEMPTS + 1):
            log_sizes = {process: _size(process.log) for process in self.processes}
            gateways = self._choose_ports(settings)
            self._state.write_text(json.dumps(asdict(gateways)) + "\n")
            with ExitStack() as undo:
                undo.callback(stop_all, self.processes)
                spawned = self._spawn(gateways, heap_mb)
                try:
                    self.wait(timeout_s)
                except StandaloneError:
                    new = b"".join(_after(process.log, size) for process, size in log_sizes.items())
                    if attempt == PORT_ATTEMPTS or not any(words in new for words in PORT_TAKEN):
                        raise
                else:
                    undo.pop_all()
                    return gateways
            for process in spawned:
                process.wait()
        raise AssertionError("the last attempt returns or raises")

    def _spawn(self, gateways: Gateways, heap_mb: int) -> list[subprocess.Popen[bytes]]:
        """All three at once: the gateways try until the master is there, and load their classes meanwhile."""
        write_configuration(self.directory / "conf", gateways.settings)
        roles = (
            Role(MASTER, ("org.apache.hadoop.hbase.master.HMaster", "start"), heap_mb),
            gateway_role(THRIFT, 1, gateways.thrift_port),
            gateway_role(THRIFT2, 2, gateways.thrift2_port),
        )
        options = java_options(self.directory / "conf", gateways.zookeeper_port)
        return [
            process.spawn(java(), (f"-Xmx{role.heap_mb}m", *options), role.main)
            for process, role in zip(self.processes, roles, strict=True)
        ]

    def _choose_ports(self, settings: dict[str, str]) -> Gateways:
        """The ports of the last time, so that those who know them find it again; others when one is taken."""
        known = self.gateways
        wanted = [known.thrift_port, known.thrift2_port, known.zookeeper_port] if known else []
        thrift, thrift2, zookeeper = wanted if wanted and all(map(_is_free, wanted)) else _free_ports(3)
        return Gateways(f"127.0.0.1:{thrift}", f"127.0.0.1:{thrift2}", zookeeper, settings)

    def _ends_of_logs(self, processes: tuple[JavaProcess, ...] | list[JavaProcess]) -> str:
        return "".join(
            f"\n--- end of {process.log}:\n{_after(process.log, -LOG_BYTES_SHOWN).decode(errors='replace').rstrip()}"
            for process in processes
            if process.log.exists()
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One start or stop at a time; the lock goes with its holder, however that ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def gateway_role(name: str, kind: int, port: int) -> Role:
    """A gateway of the first or the second kind, on this port."""
    arguments = ("start", "--port", str(port), "--bind", "127.0.0.1", "--infoport", "-1")
    return Role(name, (GATEWAY_CLASSES[kind], *arguments), GATEWAY_HEAP_MB)


def java_options(configuration: Path, zookeeper_port: int) -> tuple[str, ...]:
    """What each process of one HBase is started with, beside its memory."""
    path = os.pathsep.join(map(str, [configuration, *classpath()]))
    return f"-Dbasalt.hbase.zookeeper.port={zookeeper_port}", f"@{HERE / 'jvm.options'}", "-classpath", path


def write_configuration(directory: Path, settings: Mapping[str, str]) -> None:
    """The configuration of deploy/hbase/conf with these settings after its own, where Java finds it first.

    Gateways go by no setting on their command line, and who a process is for Hadoop it reads from core-site.xml alone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    site = (HERE / "conf" / "hbase-site.xml").read_text()
    (directory / "hbase-site.xml").write_text(
        site.replace("</configuration>", f"{_properties(settings)}</configuration>")
    )
    hadoop = {name: value for name, value in settings.items() if name.startswith("hadoop.")}
    (directory / "core-site.xml").write_text(f"<configuration>\n{_properties(hadoop)}</configuration>\n")


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )


def _free_ports(count: int) -> list[int]:
    """So many different ports that nothing on this machine has now."""
    chosen: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(chosen) < count and _is_free(port):
            chosen.append(port)
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Java does: an old connection's end does not count
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _after(log: Path, offset: int) -> bytes:
    """The log from this offset on; from so many bytes before its end when negative."""
    return log.read_bytes()[offset:] if log.exists() else b""


def _listed(pids: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {pid}" for role, pid in pids.items())
