"""A request that another server of the same store has passed on: what that server says of its client, how it proves that, and the request as the server that answers it sees it.

The header `Basalt-Forwarded` has a code of the rest of it and of what the request asks for and proves, made with the secret in the leader's
lease or the owner's row (HMAC-SHA-256). So it is believed of whoever can read these, and so everything else, and of nobody else. It is the same for requests that begin
alike: such are known by their bytes, and are not parsed again. Why so: docs/decisions/0058-any-server-takes-any-call.md.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from basalt.access.proofs.certificate import ClientCertificate
from basalt.api.bodies.messages import Buffer
from basalt.errors import UnavailableError
from basalt.http.asgi.requests import Exchange, Head, Headers, Parts, PromptExchange, RequestHead

HEADER = b"basalt-forwarded"
DIRECT = b"basalt-direct"  # a client's word that it goes to the leader, or to an owner, itself
TO_OWNER = (
    b"owner"  # its value in a call that any server would answer alike, and that is to be the owner's: a small range
)

_NOBODY = b"-"  # in place of the address of a client that has none
_CLIENTS, _SERVERS = b"client", b"server"  # who has made the request id
_SCHEMES = (b"http", b"https")
_PARTS = 3  # of what is said: scheme, maker of the id, client


class PassedOn(NamedTuple):
    """The word of a server about a request that it passes on. `id_is_clients`: the client has chosen the request id, by which a repetition is known."""

    client: str | None
    scheme: str
    id_is_clients: bool

    def header(self, secret: bytes, head: Head, host: bytes) -> bytes:
        """The value of the header, for a request with this head to the server that has this secret."""
        made_by = _CLIENTS if self.id_is_clients else _SERVERS
        client = _NOBODY if self.client is None else self.client.encode("ascii", "replace")
        said = b" ".join((self.scheme.encode("ascii"), made_by, client))
        return _code(secret, said, head, host) + b" " + said


def passed_on(secret: bytes, head: Head) -> PassedOn:
    """The word of the server that has passed on a request with the header.

    `UnavailableError` where it proves nothing: a server of another store, or of a former term, or a client has made it.
    """
    if head.passed is not None and head.passed[0] is secret:
        known: PassedOn = head.passed[1]
        return known
    given = head.headers[HEADER]
    code, _, said = given.partition(b" ")
    parts = said.split(b" ")
    host = head.headers.get(b"host", b"")
    if (
        len(parts) != _PARTS
        or parts[0] not in _SCHEMES
        or not secret
        or not hmac.compare_digest(code, _code(secret, said, head, host))
    ):
        raise UnavailableError(
            "the request says that another server has passed it on, and does not prove it; nothing was done",
            field="Basalt-Forwarded",
            hint="Leave that header out. A server that sends it has yet to see who leads: it is right after Retry-After.",
        )
    client = None if parts[2] == _NOBODY else parts[2].decode("ascii", "replace")
    found = PassedOn(client, parts[0].decode("ascii"), parts[1] == _CLIENTS)
    head.passed = secret, found
    return found


def _code(secret: bytes, said: bytes, head: Head, host: bytes) -> bytes:
    # No part can hold the end of a line, so none can be taken for two. What proves who calls is among them: what was read on the way
    # is of no use with another credential.
    headers = head.headers
    whole = b"\n".join(
        (
            said, head.method.encode("ascii"), host, head.raw_path, head.query_string,
            headers.get(b"authorization", b""), headers.get(b"cookie", b""),
        )
    )  # fmt: skip
    return hmac.digest(secret, whole, "sha256").hex().encode("ascii")


class PassedExchange:
    """The way to the client of a request that was passed on: over the server that did so, and by its word about the client.

    No certificate counts: that of the connection is the server's.
    """

    __slots__ = ("_exchange", "client", "id_is_clients", "scheme")
    internal = False
    is_admitted = True
    certificate: ClientCertificate | None = None
    end_point_hash: bytes | None = None

    def __init__(self, exchange: Exchange, passed: PassedOn) -> None:
        self._exchange = exchange
        self.id_is_clients = passed.id_is_clients
        self.client = passed.client
        self.scheme = passed.scheme

    @property
    def sequence(self) -> bytes | None:
        """The header Basalt-Sequence, where the request's head was known: that one has it empty."""
        return self._exchange.sequence

    async def receive(self) -> tuple[bytes, bool]:
        """Wait for the next part of the body, and learn whether more follow. `ClientGoneError`."""
        return await self._exchange.receive()

    async def until_gone(self) -> None:
        """Wait until the server has closed the connection, as it does when its client is gone. Only after the body was read."""
        await self._exchange.until_gone()

    async def send(self, request: RequestHead, status: int, headers: Headers, parts: Parts) -> None:
        """Send the whole answer as fast as it is taken."""
        await self._exchange.send(request, status, headers, parts)


class PromptPassedExchange(PassedExchange):
    """The same over an exchange that can send a small answer without waiting."""

    __slots__ = ("_prompt",)

    def __init__(self, exchange: PromptExchange, passed: PassedOn) -> None:
        super().__init__(exchange, passed)
        self._prompt = exchange

    def send_now(self, request: RequestHead, status: int, headers: Headers, parts: list[Buffer]) -> None:
        """Send the whole answer, which is small."""
        self._prompt.send_now(request, status, headers, parts)

    def give_again(self, body: bytes) -> None:
        """Have `receive` give this body, which is all of it, though somebody has taken it before."""
        self._prompt.give_again(body)

    def break_off(self) -> None:
        """End the connection: there is no answer, for which the server and its client would wait."""
        self._prompt.break_off()
