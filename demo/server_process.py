"""A `basalt serve` process of the demo's own: started on a free port, killed without mercy, started again."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

START_TIMEOUT_S = 120.0  # a bound for a hang: a start takes about a second, and many on a loaded machine
STOP_TIMEOUT_S = 60.0  # a bound for a hang: the server promises to drain within 10 s
POLL_S = 0.01


class ServerStartError(RuntimeError):
    """The server did not come up; the message holds the end of its log."""


class ServerProcess:
    """The server on one data directory, with these settings (`KEY=VALUE`). After `start`, `url` says where it listens.

    Started again it listens there again, so that whoever was connected finds it.
    """

    def __init__(self, folder: Path, settings: Sequence[str] = (), *, stays: bool = False) -> None:
        self.data = folder / "data"
        self.settings = tuple(settings)
        self.log = folder / "server.log"
        self.url = ""
        self._port_file = folder / "port"
        self._port: socket.socket | None = None  # bound, so that nobody else is given the port while the server is dead
        self._stays = stays  # it may outlive this process, and the terminal's signals
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it is ready; returns the seconds that took."""
        self._port_file.unlink(missing_ok=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "basalt.cli.main", "serve", "--data", str(self.data)]
        if self._port is None:
            self._port = socket.socket()
            # As the server does, which may bind it, too.
            self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._port.bind(("127.0.0.1", 0))
        port = str(self._port.getsockname()[1])
        command += ["--port", port, "--port-file", str(self._port_file), "--set", "log.format=json"]
        command += ["--set", "log.access=all"]  # the demo publishes it
        command += [word for setting in self.settings for word in ("--set", setting)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=self._stays
            )
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                self.kill()
                tail = self.log.read_bytes()[-2_000:].decode(errors="replace")
                raise ServerStartError(f"the server did not start (exit code {self._process.returncode}):\n{tail}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The number of its process, which `start` has started."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write, close or say anything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait until it has drained."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def _is_ready(self) -> bool:
        """True when calls to it are answered: of servers that share a store also by another one, which leads."""
        port = self._port_file.read_text().strip() if self._port_file.exists() else ""
        if not port:
            return False
        self.url = f"http://127.0.0.1:{port}"
        return self.is_ok("/readyz")

    def is_ok(self, target: str) -> bool:
        """True when it answers 200 to a GET."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", target)
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()
