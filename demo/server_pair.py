"""Two `basalt serve` processes of the demo's own that share a store and its topics: the one that leads is killed, and the other one goes on in its place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from demo.server_process import POLL_S, START_TIMEOUT_S, ServerProcess, ServerStartError


class ServerPair:
    """Servers that share a store, used as one. `url` names both; `log` is that of the first."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self._servers = [ServerProcess(folder / name, settings) for name in ("first", "second")]
        for name in ("first", "second"):
            (folder / name).mkdir()
        self.data = self._servers[0].data
        self.settings = self._servers[0].settings
        self.log = self._servers[0].log

    @property
    def url(self) -> str:
        """Their addresses, with a comma between them, as clients take them."""
        return ",".join(server.url for server in self._servers)

    @property
    def process_id(self) -> int:
        """The number of the first one's process."""
        return self._servers[0].process_id

    def start(self) -> float:
        """Start those that do not run, and wait until one leads; returns the seconds that took."""
        began = time.monotonic()
        for server in self._servers:
            if not server.runs:
                server.start()
        while not any(map(self._leads, self._servers)):  # topics are served without, transactions are not
            if time.monotonic() - began > START_TIMEOUT_S:
                raise ServerStartError("no server leads")
            time.sleep(POLL_S)
        return time.monotonic() - began

    @staticmethod
    def _leads(server: ServerProcess) -> bool:
        return server.is_ok("/readyz?leader=true")

    def kill(self) -> None:
        """SIGKILL of the one that leads. Until `start` there is one less, and no other is killed."""
        if all(server.runs for server in self._servers):
            next(filter(self._leads, self._servers), self._servers[0]).kill()

    def stop(self) -> None:
        """SIGTERM to both, and wait until they have drained."""
        for server in self._servers:
            server.stop()
