"""Two real servers on one real HBase, and what tests ask of them: who leads, and who knows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from deploy.hbase.standalone import Gateways
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess

LEASE_MS = 6_000  # by a test that is to lead all along, it may be missed for a second or two
BUCKETS = 2
TAKE_OVER_SECONDS_MAX = (
    120.0  # the lease, half a second until it is noticed, the fence and the log; a bound for a hang on a loaded machine
)
WAIT_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Installation:
    """The tables that both servers share."""

    thrift: str
    thrift2: str
    prefix: str
    buckets: int = BUCKETS

    def options(self, thrift2: str | None = None) -> list[str]:
        """What a server is started with; `thrift2`: through another gateway, or a proxy before it."""
        settings = {
            "store.kind": "hbase", "store.hbase.prefix": self.prefix, "store.hbase.buckets": str(self.buckets),
            "store.hbase.thrift": self.thrift, "store.hbase.thrift2": thrift2 or self.thrift2,
            "leader.lease_ms": str(LEASE_MS),
        }  # fmt: skip
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def still(self, thrift2: str | None = None) -> list[str]:
        """The same, and no shard moves by itself while its owner lives: the first server of a test has all, until it dies."""
        return [*self.options(thrift2), "--set", "cluster.balance=off"]


def install(gateways: Gateways, prefix: str, *coprocessor: str, buckets: int = BUCKETS) -> Installation:
    made = Installation(gateways.thrift, gateways.thrift2, prefix, buckets)
    command = [sys.executable, "-m", "basalt.cli.main", "hbase", "install", *coprocessor, *made.options()]
    given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


class Pair:
    """Two servers; `leader` and `standby` say which is which at the moment of asking."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[ServerProcess] = []
        self._folder = folder
        self._ports = ExitStack()

    def start(self, *options: str) -> ServerProcess:
        """Start one more, at a port that is its own when it is dead, too: whoever still calls it there is answered by nobody else's server."""
        folder = self._folder / f"server-{len(self.servers)}"
        folder.mkdir()
        server = ServerProcess(folder)
        self.servers.append(server)
        # The servers of one command have further ports, behind the one that is named.
        port = 0 if "--processes" in options else self._ports.enter_context(reserved_port())
        server.launch(*options, port=port)
        server.wait_until_ready()
        return server

    def close(self) -> None:
        for server in self.servers:
            if server.process is not None and server.alive():
                server.process.send_signal(signal.SIGCONT)
            server.kill()
        self._ports.close()

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)


def until(is_so: Callable[[], bool], server: ServerProcess, seconds_max: float = WAIT_SECONDS_MAX) -> float:
    """Wait until it is so; how long that took."""
    began = time.monotonic()
    try:
        while not is_so():
            assert time.monotonic() - began < seconds_max, server.tail()
            time.sleep(0.1)
    except ConnectionError as error:  # it has ended: its log says why
        raise AssertionError(f"a server takes no connections; the log of {server.url}:\n{server.tail()}") from error
    return time.monotonic() - began


def serves(server: ServerProcess) -> bool:
    """True for the one that leads, once all shards have live owners: those of servers that a test before has killed, too."""
    if server.ask("GET", "/readyz?leader=true").status != 200:
        return False
    reply = server.ask("GET", "/v1/admin/cluster/shards")
    if reply.status != 200:
        return False
    told = reply.json()
    return bool(told["states"]["live"] == told["shards"])


def names(server: ServerProcess, leader: ServerProcess) -> bool:
    reply = server.ask("GET", "/v1/admin/jobs", headers={"Basalt-Direct": "1"})
    return reply.status == 503 and reply.headers.get("basalt-leader") == leader.url
