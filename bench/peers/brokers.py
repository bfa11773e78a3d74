"""Brokers of other systems, each one process with what Maven brings, and a program that works on it through the system's own client."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Process
from deploy.hbase.runtime import ROOT
from deploy.java_programs import JavaPrograms

HERE = Path(__file__).resolve().parent
KAFKA = JavaPrograms(HERE / "kafka", ROOT / "build" / "bench-kafka")
PULSAR = JavaPrograms(HERE / "pulsar", ROOT / "build" / "bench-pulsar")
START_S_MAX = 120
STOP_S_MAX = 30
HEAP = ("-Xmx1g",)
FLUSHED = (
    "log.flush.interval.messages=1",
)  # sync before it answers, as Basalt does; Kafka as it is installed leaves that to the system
OPENED = tuple(  # what Pulsar and its network library take from Java
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.io", "java.lang", "java.nio", "java.util.zip", "jdk.internal.misc", "sun.nio.ch")
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker, and the program that works on it."""

    broker: Process
    worker: subprocess.Popen[str]

    def seconds(self, *words: object) -> float:
        """Have a piece of work done; how long it took."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        print(*words, file=self.worker.stdin, flush=True)
        told = self.worker.stdout.readline()
        if not told:
            raise RuntimeError(f"{' '.join(map(str, words))}: the program ended")
        return float(told)


@contextmanager
def kafka(folder: Path, *settings: str) -> Iterator[Peer]:
    """A Kafka of one process that is broker and controller, with topics that are kept once."""
    port, controller = _free_ports(2)
    folder.mkdir(parents=True)
    configuration = folder / "server.properties"
    lines = [
        "process.roles=broker,controller", "node.id=1", f"log.dirs={folder / 'data'}",
        f"controller.quorum.voters=1@127.0.0.1:{controller}", "controller.listener.names=CONTROLLER",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "offsets.topic.replication.factor=1", "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1", "group.initial.rebalance.delay.ms=0", *settings,
    ]  # fmt: skip
    configuration.write_text("\n".join(lines) + "\n")
    format_it = KAFKA.command("kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(configuration))
    subprocess.run(format_it, check=True, capture_output=True)
    with _running(
        KAFKA.command("kafka.Kafka", str(configuration), options=HEAP), lambda: _listens(port), folder
    ) as broker:
        yield from _worked_on(broker, KAFKA.command("io.basalt.peers.KafkaWork", f"127.0.0.1:{port}"))


@contextmanager
def pulsar(folder: Path) -> Iterator[Peer]:
    """Pulsar's standalone: a broker and a bookie in one process, which syncs its journal."""
    port, web = _free_ports(2)
    folder.mkdir(parents=True)
    configuration = folder / "standalone.conf"
    lines = [
        "clusterName=standalone", f"brokerServicePort={port}", f"webServicePort={web}", "bindAddress=127.0.0.1",
        "advertisedAddress=127.0.0.1", "managedLedgerDefaultEnsembleSize=1", "managedLedgerDefaultWriteQuorum=1",
        "managedLedgerDefaultAckQuorum=1", "transactionCoordinatorEnabled=true", "systemTopicEnabled=true",
        "loadBalancerEnabled=false", "acknowledgmentAtBatchIndexLevelEnabled=true",
    ]  # fmt: skip
    configuration.write_text("\n".join(lines) + "\n")
    command = PULSAR.command(
        "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(configuration), "-nfw", "-nss",
        "--metadata-dir", str(folder / "metadata"), "--bookkeeper-dir", str(folder / "bookkeeper"),
        options=(*HEAP, "-XX:MaxDirectMemorySize=1g", *OPENED),
    )  # fmt: skip
    with _running(command, lambda: _has_namespace(web), folder) as broker:
        program = PULSAR.command("io.basalt.peers.PulsarWork", f"pulsar://127.0.0.1:{port}", options=OPENED)
        yield from _worked_on(broker, program)


def _worked_on(broker: Process, program: Sequence[str]) -> Iterator[Peer]:
    worker = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield Peer(broker, worker)
    finally:
        worker.kill()
        worker.wait(STOP_S_MAX)


@contextmanager
def _running(command: Sequence[str], is_ready: Callable[[], bool], folder: Path) -> Iterator[Process]:
    """A broker that is ready; what it says is in the folder."""
    began = time.monotonic()
    with (folder / "output.log").open("w") as output:
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        while not is_ready():
            if child.poll() is not None or time.monotonic() - began > START_S_MAX:
                raise RuntimeError(f"{command[-1]} did not start (exit status {child.poll()})")
            time.sleep(0.1)
        yield Process(0, child.pid, time.monotonic() - began)
    finally:
        child.kill()  # its data is thrown away
        child.wait(STOP_S_MAX)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _has_namespace(port: int) -> bool:
    """Pulsar makes the namespace where topics are by default when it has started; before, nobody can publish."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/admin/v2/namespaces/public", timeout=1) as answer:
            return b"public/default" in answer.read()
    except OSError:
        return False


def _free_ports(number: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports
