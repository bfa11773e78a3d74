"""The address that a server listens on, and to whom that is open.

A name is looked up once, before anything is opened, and what is judged is what is bound: "localhost" may be another machine's
address somewhere, and "broker" this one's own. Nobody is open by accident: beyond loopback `auth.kinds` must have been written. And no
token goes through a network in clear: what a client sends as a header needs TLS there, here or before this server.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from basalt.errors import InvalidSettingError, UnavailableError
from basalt.settings import Settings


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to bind, `literal`, and what the settings call it, `host`."""

    host: str
    literal: str

    @classmethod
    def find(cls, host: str) -> ListenAddress:
        """The one that this name or address stands for; `UnavailableError` when it stands for none."""
        try:
            found = socket.getaddrinfo(host or None, 0, family_of(host), socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {host}: {error.strerror or error}",
                field="server.host",
                hint="name an address of this machine, or a name that has one",
            ) from error
        return cls(host, str(found[0][4][0]))

    @property
    def is_loopback(self) -> bool:
        """True when only programs on this machine reach it."""
        address = ipaddress.ip_address(self.literal)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        return self.host if self.host == self.literal else f"{self.host} ({self.literal})"


ANY_HOST = ("0.0.0.0", "::", "")  # addresses to listen on that name no host  # noqa: S104
# Of cluster.secret, in characters: whoever takes a server's address can try guesses at a proof as fast as they can reckon.
SECRET_CHARACTERS_MIN = 32

# Kinds of proof that a request carries in its head: who reads that on its way can send the same.
SENT_IN_CLEAR = ("token", "jwt", "kerberos", "proxy")


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listen_address(settings: Settings) -> ListenAddress:
    """The address of these settings; `InvalidSettingError` when it is open to others and nobody wrote that it is to be."""
    address = ListenAddress.find(settings.server.host)
    if not address.is_loopback and not settings.auth.kinds:
        raise InvalidSettingError(
            f"setting auth.kinds is not given, and server.host is {address}, which others than this machine may reach",
            field="auth.kinds",
            hint='listen on 127.0.0.1; or, where whoever reaches it may read, write and delete everything, write that: kinds = ["none"]'
            " under [auth] (--set auth.kinds=none, BASALT__AUTH__KINDS=none)",
        )
    sent = [kind for kind in settings.auth.kinds if kind in SENT_IN_CLEAR]
    if not address.is_loopback and sent and settings.tls.certificate is None and not settings.http.tls_elsewhere:
        raise InvalidSettingError(
            f"setting tls.certificate is not given: server.host is {address}, and clients would send what auth.kinds has"
            f" ({', '.join(sent)}) through the network for all to read",
            field="tls.certificate",
            hint="name the server's certificate and key; or, where a proxy or a mesh before it speaks TLS, set http.tls_elsewhere to true",
        )
    return address


def link_address(settings: Settings) -> tuple[ListenAddress, int]:
    """The address and port at which links of other servers are taken; `InvalidSettingError` when that is beyond this machine, and no good secret is given."""
    host, port = settings.server.host, 0
    if settings.cluster.listen is not None:
        host, _, number = settings.cluster.listen.rpartition(":")
        host, port = host.strip("[]"), int(number)
    address, secret = ListenAddress.find(host), settings.cluster.secret
    hint = "make a file with `openssl rand -hex 32`, that only the server's user can read, and name the same content on all servers"
    if secret is not None and len(secret) < SECRET_CHARACTERS_MIN:
        raise InvalidSettingError(
            f"setting cluster.secret has {len(secret)} characters, and could be guessed: {SECRET_CHARACTERS_MIN} are the fewest",
            field="cluster.secret",
            hint=hint,
        )
    if secret is None and not address.is_loopback:
        raise InvalidSettingError(
            f"setting cluster.secret_file is not given, and links of other servers are taken at {address}, which others than this"
            " machine may reach",
            field="cluster.secret",
            hint=f"{hint}; or, where all servers run on this machine, take links on it alone: cluster.listen = 127.0.0.1:4790",
        )
    return address, port


def has_clear_links(settings: Settings) -> bool:
    """True where messages go over links beyond this machine that nothing encrypts, for this server speaks no TLS."""
    address, _ = link_address(settings)
    return settings.cluster.share and settings.tls.certificate is None and not address.is_loopback
