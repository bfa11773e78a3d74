"""One request as the calls see it: its id, its path and query parameters, its headers.

A path is taken apart after decoding, so what decodes to a separator is refused before that can confuse anyone.
"""

from __future__ import annotations

import itertools
import re
import secrets
from urllib.parse import unquote_to_bytes

from starlette.types import Receive, Scope

from basalt.errors import BusyError, InputError, UriTooLongError

URI_BYTES_MAX = 8_000  # what RFC 9110 asks servers to take at least; names and parameters together need far less
HALF_RECEIVED_BYTES_MAX = 256 << 20  # bodies under way: 25 of the largest size, or thousands of usual ones
REQUEST_ID_CHARS_MAX = 128  # room for a UUID with a prefix; ids are kept in memory and in the log

Value = str | int | bool

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ID_PREFIX = secrets.token_hex(4)
_ID_NUMBERS = itertools.count(1)


class BodyBudget:
    """The bytes that request bodies may take in memory before they are whole: one body, and all connections together."""

    def __init__(self, bytes_max: int, total_bytes_max: int = HALF_RECEIVED_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._total_bytes_max = total_bytes_max
        self._taken_bytes = 0

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Take memory for the next part of a body that holds `held_bytes` already.

        `BusyError` when all bodies together would hold too much. A body that is alone always has its place.
        """
        if self._taken_bytes > held_bytes and self._taken_bytes + size_bytes > self._total_bytes_max:
            raise BusyError(
                f"request bodies that are not whole yet hold {self._taken_bytes} bytes; the limit is"
                f" {self._total_bytes_max}",
                hint="Send the request again after Retry-After, or in smaller ones.",
            )
        self._taken_bytes += size_bytes

    def give_back(self, held_bytes: int) -> None:
        """A body is whole, or given up."""
        self._taken_bytes -= held_bytes


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete, or before its answer was."""


class RequestHead:
    """A request before its body is read, and (for the log and the metrics) what was answered.

    `id` names the request in answers and logs; `client_id` is the same when the client chose it, else None.
    """

    __slots__ = (
        "bodies",
        "client_id",
        "headers",
        "id",
        "is_head",
        "path",
        "query",
        "receive",
        "route",
        "scope",
        "sent_bytes",
        "started_ms",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, started_ms: float, bodies: BodyBudget) -> None:
        self.scope = scope
        self.bodies = bodies
        self.receive = receive
        self.started_ms = started_ms
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.path: dict[str, str] = {}
        self.query: dict[str, Value] = {}
        self.route = ""
        self.is_head = scope["method"] == "HEAD"
        self.status = 0
        self.sent_bytes = 0
        self.client_id: str | None = None
        self.id = f"{_ID_PREFIX}-{next(_ID_NUMBERS):x}"

    def check(self) -> None:
        """Refuse what no call could mean: an over-long or ambiguous target, a bad request id."""
        scope = self.scope
        raw_path: bytes = scope.get("raw_path") or b""
        length = len(raw_path) + len(scope["query_string"])
        if length > URI_BYTES_MAX:
            raise UriTooLongError(
                f"the path and query are {length} bytes long; the limit is {URI_BYTES_MAX}",
                hint="Shorten the names or the parameters.",
            )
        if b"%" in raw_path:
            _check_path(raw_path)
        given = self.headers.get(b"basalt-request-id")
        if given is not None:
            self.client_id = self.id = _request_id(given)

    def text(self, name: str) -> str | None:
        """A query parameter that the call declares as text, or None when it was not given."""
        value = self.query.get(name)
        assert value is None or isinstance(value, str)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A query parameter that the call declares as a flag."""
        value = self.query.get(name, default)
        assert isinstance(value, bool)
        return value

    def integer(self, name: str) -> int | None:
        """A query parameter that the call declares as a number, or None when it was not given."""
        value = self.query.get(name)
        assert value is None or isinstance(value, int)
        return value

    async def until_gone(self) -> None:
        """Wait until the client has closed the connection. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _check_path(raw_path: bytes) -> None:
    if re.search(rb"%(?![0-9A-Fa-f]{2})", raw_path):
        raise InputError("the path has a % that two hex digits do not follow", field="path", hint="Write % as %25.")
    if re.search(rb"%2[fF]|%5[cC]", raw_path):
        raise InputError("the path has an encoded slash or backslash", field="path", hint="No name may have one.")
    try:
        unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("the path does not decode to UTF-8", field="path", hint="Encode names as UTF-8.") from None


def _request_id(given: bytes) -> str:
    text = given.decode("latin-1")
    if _REQUEST_ID.fullmatch(text) is None:
        raise InputError(
            f"the header Basalt-Request-Id is not 1 to {REQUEST_ID_CHARS_MAX} letters, digits, '.', '_', ':' or '-'",
            field="Basalt-Request-Id",
            hint="Send a UUID, or leave the header out.",
        )
    return text
