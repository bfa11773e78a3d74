"""A real server process that speaks TLS, with certificates that a test can change."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

from tests.certificates import Authority
from tests.system.server_process import ANSWER_SECONDS_MAX, START_SECONDS_MAX, ServerProcess


class TlsServer:
    """A server process with certificates that a test can change."""

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        self.authority = authority or Authority(folder / "pki")
        self.own = self.authority.server(folder.name if authority else "server")
        self.process = ServerProcess(folder)
        self.options = [f"tls.certificate={self.own.certificate}", f"tls.key={self.own.key}"]

    def ask_clients(self, client: str = "optional") -> None:
        self.options += [f"tls.client={client}", f"tls.client_ca={self.authority.file}"]

    def flags(self) -> list[str]:
        return [word for option in self.options for word in ("--set", option)]

    def start(self, *options: str, **given: Any) -> None:
        self.process.launch(*self.flags(), *options, **given)
        self.process.wait_until_ready()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.process.port}"

    def shown(self) -> bytes:
        """The certificate that a new connection sees."""
        with socket.create_connection(("127.0.0.1", self.process.port), timeout=60) as plain:
            with self.authority.trusting().wrap_socket(plain, server_hostname="localhost") as line:
                return line.getpeercert(True)

    def wait_until_shown(self, der: bytes) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.shown() != der:
            assert time.monotonic() < deadline, self.process.tail()
            time.sleep(0.01)

    def wait_until_it_says(self, text: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while text not in self.process.log.read_text():
            assert time.monotonic() < deadline, self.process.tail()
            time.sleep(0.01)

    def ask(self, method: str, path: str, value: object = None) -> tuple[int, Any]:
        """The status and the JSON of the answer to a call with this JSON, or without a body."""
        status, _, answer = self.ask_whole(method, path, value)
        return status, answer

    def ask_whole(self, method: str, path: str, value: object = None) -> tuple[int, dict[str, str], Any]:
        """The same, with the headers between the two."""
        status, headers, text = self.ask_text(method, path, value)
        return status, headers, json.loads(text or "null")

    def ask_text(self, method: str, path: str, value: object = None) -> tuple[int, dict[str, str], str]:
        """The status, the headers and the answer as it is."""
        body = None if value is None else json.dumps(value)
        connection = http.client.HTTPSConnection(
            "localhost", self.process.port, timeout=ANSWER_SECONDS_MAX, context=self.authority.trusting()
        )
        try:
            connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read().decode()
        finally:
            connection.close()

    def signal(self, number: int) -> None:
        assert self.process.process is not None
        self.process.process.send_signal(number)
