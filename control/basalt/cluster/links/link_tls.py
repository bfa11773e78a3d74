"""TLS of links: a server that speaks TLS takes and makes no link without it, and who dials verifies whom it has reached.

The certificate is that of the HTTP face, as it is in force when a connection comes, and must be for the host of the leader's URL: what is good for calls
that are passed on is good for links. A lease says in its link whether its server speaks TLS (`tls://host:port`), so nobody tries one and then the other.
The hello tells which certificate the one who dials has seen, so nobody between the two can end TLS, whatever certificate they have.
Why: docs/decisions/0092-links-speak-tls.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from basalt.cluster.links.hello import RefusedError, Why, refusal
from basalt.cluster.links.link import CLOSE_SECONDS_MAX, Link

CONNECT_SECONDS_MAX = 2.0  # a host that is gone says nothing
# For the first byte, and for TLS two round trips and some milliseconds of work, by a server that may be busy with a start.
HANDSHAKE_SECONDS_MAX = 5.0
WRONG_BYTES_MAX = 65_536  # of a caller that does not speak as this server does: they are taken before it is told

_SECURE = "tls://"
_HANDSHAKE = b"\x16"  # the first byte of every TLS connection; a hello's first is 0, of its length
_NAMES = frozenset((62, 64))  # OpenSSL's numbers of a host name and of an address that a certificate does not have
_DATES = frozenset((9, 10))  # of one that does not count yet, or no more
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "UNEXPECTED_MESSAGE"))


class Shown(NamedTuple):
    """A certificate in force: a context that shows it and asks nobody for one, and its fingerprint."""

    context: ssl.SSLContext
    certificate: bytes


class LinkAddress(NamedTuple):
    """A place where a server takes links, by TLS or without. As text it is in the lease and in the member's row."""

    host: str
    port: int
    is_secure: bool

    @classmethod
    def read(cls, text: str) -> LinkAddress:
        """The address that a row has; `ValueError` for what is none."""
        host, _, port = text.removeprefix(_SECURE).rpartition(":")
        return cls(host.strip("[]"), int(port), text.startswith(_SECURE))


def link_text(host_and_port: str, *, is_secure: bool) -> str:
    """The address as the rows have it."""
    return _SECURE + host_and_port if is_secure else host_and_port


class LinkTls:
    """TLS of one server's links. `shown`: its certificate at the moment of asking; None: it speaks no TLS. `ca`: a file of those whom it trusts; None: this machine's."""

    def __init__(self, ca: str | None = None, shown: Callable[[], Shown] | None = None) -> None:
        self._ca = ca
        self._shown = shown

    def shown(self) -> Shown | None:
        """The certificate for a connection that comes now; None: no TLS."""
        return None if self._shown is None else self._shown()

    async def accept(self, link: Link, connection: socket.socket, shown: Shown | None) -> None:
        """Have this connection be the link's. `RefusedError` where the other side does not speak as this server does, `OSError` where it has gone."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                first = await _first_byte(connection)
            if (first == _HANDSHAKE) != (shown is not None):
                raise _told_that_it_is_plain(connection, link.address)
        except BaseException:
            connection.close()
            raise
        # From here on the connection is the event loop's, which closes it.
        if shown is None:
            await loop.connect_accepted_socket(lambda: link, connection)
            return
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: link, connection, ssl=shown.context, ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
                ssl_shutdown_timeout=CLOSE_SECONDS_MAX,
            )  # fmt: skip
        except OSError as error:
            raise RefusedError("handshake", f"a link from {link.address} was refused ({_said(error)})") from error
        if transport.get_extra_info("ssl_object") is None:  # the event loop gives it back as if all were well
            raise ConnectionResetError("it was lost in its handshake")

    async def dial(self, link: Link, where: str, name: str) -> None:
        """Connect the link to this address of a lease, by TLS if either side speaks it. `name`: the host of the leader's URL, which must be in its certificate.

        `RefusedError` where the other one is not whom it should be, or speaks another way; `OSError` or `TimeoutError` where nobody is reached.
        """
        address, loop = LinkAddress.read(where), asyncio.get_running_loop()
        if self._shown is None and not address.is_secure:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await loop.create_connection(lambda: link, address.host, address.port)
            return
        if not name:  # some event loops would then look for the address instead, which whoever wrote it has chosen
            raise RefusedError("another_name", f"the server at {where} (its lease has no URL with a host)")
        context = await asyncio.to_thread(self._trusting, where)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX + HANDSHAKE_SECONDS_MAX):
                await loop.create_connection(
                    lambda: link, address.host, address.port, ssl=context, server_hostname=name,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX, ssl_shutdown_timeout=CLOSE_SECONDS_MAX,
                )  # fmt: skip
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            raise RefusedError(_why(error, address), f"the server at {where} ({_said(error)})") from error

    def _trusting(self, where: str) -> ssl.SSLContext:
        """A context with the authorities as the file has them now."""
        try:
            return ssl.create_default_context(cafile=self._ca)
        except OSError as error:  # ssl.SSLError is one
            raise RefusedError("untrusted", f"the server at {where} (cluster.ca cannot be read: {error})") from error


async def _first_byte(connection: socket.socket) -> bytes:
    """The first byte, which is not taken. `ConnectionResetError`: none came."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    if first := connection.recv(1, socket.MSG_PEEK):
        return first
    raise ConnectionResetError("it was closed before its hello")


def _told_that_it_is_plain(connection: socket.socket, address: str) -> RefusedError:
    """Tell a caller, without TLS, that one of the two sides speaks it and the other does not. One that speaks TLS sees at least that no TLS came back."""
    error = RefusedError("plain", f"a link from {address} was refused")
    with suppress(OSError):
        connection.recv(WRONG_BYTES_MAX)  # what is left unread would have the answer lost
        connection.send(refusal(error))
        connection.shutdown(socket.SHUT_WR)
    return error


def _why(error: Exception, address: LinkAddress) -> Why:
    """The reason for which a dialed server gets no link."""
    if isinstance(error, ssl.SSLCertVerificationError):
        number = error.verify_code
        return "another_name" if number in _NAMES else "expired" if number in _DATES else "untrusted"
    if not address.is_secure or (isinstance(error, ssl.SSLError) and error.reason in _NO_TLS):
        return "plain"
    return "handshake"


def _said(error: Exception) -> str:
    return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error) or "broken off"
