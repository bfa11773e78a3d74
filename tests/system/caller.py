"""One client's connection to a server that may die at any moment."""

from __future__ import annotations

import http.client

from tests.system.server_process import ANSWER_SECONDS_MAX, Reply

AVRO, JSON = "avro/binary", "application/json"


class Caller:
    """A kept connection. Whatever breaks it, the answer is None: nobody knows what became of the call."""

    def __init__(self, port: int, answer_seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self._port = port
        self._answer_seconds_max = answer_seconds_max
        self._connection: http.client.HTTPConnection | None = None
        self.answers = 0  # that it got

    def ask(
        self, method: str, target: str, body: bytes = b"", content_type: str = "", request_id: str = ""
    ) -> Reply | None:
        """Send once, and wait for the whole answer."""
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._answer_seconds_max)
        self._connection = None
        headers = {"Content-Type": content_type} if content_type else {}
        if request_id:
            headers["Basalt-Request-Id"] = request_id
        try:
            connection.request(method, target, body or None, headers)
            response = connection.getresponse()
            reply = Reply(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        except (OSError, http.client.HTTPException):
            connection.close()
            return None
        self.answers += 1
        if response.will_close:
            connection.close()
        else:
            self._connection = connection
        return reply

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
