"""A real server process for tests: started on a free port, asked over plain sockets, stopped at the end."""

from __future__ import annotations

import http.client
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS_MAX = 240.0  # bounds for a hang on a loaded machine, not expectations
ANSWER_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 120.0
ORDERS = "/v1/namespaces/shop/topics/orders"  # the topic that most of these tests use


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class ServerProcess:
    """`basalt serve` on a data directory of its own. `program` is what Python runs, with the command line behind it."""

    def __init__(self, folder: Path, program: tuple[str, ...] = ("-m", "basalt.cli.main")) -> None:
        self.program = program
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port_file = folder / "port"
        self.port = 0
        self.names_its_place = True  # data directory and port by flags
        self.start_seconds = 0.0
        self._launched = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *options: str) -> None:
        """Start it, and wait until it says that it is ready."""
        self.launch(*options)
        self.wait_until_ready()

    def launch(
        self,
        *options: str,
        port: int = 0,
        files_max: int | None = None,
        file_bytes_max: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start it without waiting, with so many file descriptors, files of such a size, and more in its environment."""
        self.port_file.unlink(missing_ok=True)
        self._launched = time.monotonic()
        command = [sys.executable, *self.program, "serve"]
        command += ["--data", str(self.data), "--port", str(port)] if self.names_its_place else []
        command += ["--port-file", str(self.port_file), *options]
        given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}

        def limit() -> None:
            for what, most in ((resource.RLIMIT_NOFILE, files_max), (resource.RLIMIT_FSIZE, file_bytes_max)):
                if most is not None:
                    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))

        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=given | (environment or {}),
                preexec_fn=limit if files_max or file_bytes_max else None,  # without it the process need not be copied
            )

    def wait_until_ready(self) -> None:
        """Wait until it has written its port."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.port_file.exists():
            assert self.alive(), f"the server ended at its start:\n{self.tail()}"
            assert time.monotonic() < deadline, f"the server did not start in time:\n{self.tail()}"
            time.sleep(0.01)
        self.start_seconds = time.monotonic() - self._launched
        self.port = int(self.port_file.read_text())

    def wait_until_it_recovers(self) -> None:
        """Wait until it has locked the data directory, as a start does before it looks at the files."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        mine = b"%d\n" % self.process.pid
        while self._read_lock() != mine:
            assert self.alive(), f"the server ended at its start:\n{self.tail()}"
            assert time.monotonic() < deadline, f"the server did not start in time:\n{self.tail()}"
            time.sleep(0.001)

    def _read_lock(self) -> bytes:
        try:
            return (self.data / "LOCK").read_bytes()
        except FileNotFoundError:
            return b""

    def exit_code(self) -> int:
        """Wait until it ends by itself."""
        assert self.process is not None
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server does not end:\n{self.tail()}") from None

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write, close or say anything. Killing one that has ended is no error."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def limit_file_bytes(self, bytes_max: int | None) -> None:
        """No file of the process may grow beyond this from now on, as if the disk were full; None: no limit."""
        assert self.process is not None
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard if bytes_max is None else bytes_max, hard))

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3_000:]

    def stop(self) -> int:
        """End it as an operator does; its exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def peak_memory_bytes(self) -> int:
        """The most memory that the process has had in use."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1_024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))

    def cpu_seconds(self) -> float:
        """The time that it has kept a processor busy. It is the same however long it had to wait for one."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Have `peak_memory_bytes` begin anew with what is in use now."""
        assert self.process is not None
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def open_files(self) -> int:
        """How many file descriptors the process has open."""
        assert self.process is not None
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def ask(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS_MAX)
        try:
            connection.request(method, target, body or None, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def ask_json(self, method: str, target: str, value: object = None, status: int = 200) -> Any:
        """One JSON request that must have this status; the JSON answer, None when it is empty. While its topic has no owner it is sent again, as all clients do."""
        body, headers = b"" if value is None else json.dumps(value).encode(), {"Content-Type": "application/json"}
        reply, until = self.ask(method, target, body, headers), time.monotonic() + ANSWER_SECONDS_MAX
        while reply.status != status and b'"shard_moving"' in reply.body and time.monotonic() < until:
            time.sleep(0.1)
            reply = self.ask(method, target, body, headers)
        assert reply.status == status, (method, target, reply)
        return reply.json() if reply.body else None
