"""The front: what a server refuses whatever it is asked for, so that a web page cannot use it through somebody's browser.

Such a page can send a request to each address that the browser reaches. Under a name of its own that it has point there (DNS
rebinding) it could read the answer too, so a request must name this server by a name that it has. One that may change
something must come from no page, or from one of this server or of `http.cors_origins`. What is refused and how a name
or an origin is let in: docs/operations/security.md.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from basalt.access.networks import Networks
from basalt.errors import CrossOriginError, InputError, WrongHostError
from basalt.http.asgi.requests import Headers, RequestHead, there_twice
from basalt.redaction import address_without_password
from basalt.settings import Settings

HARMLESS_METHODS = frozenset(
    {"GET", "HEAD", "OPTIONS"}
)  # they change nothing, and another origin cannot read their answers
OWN_SITES = frozenset(
    {b"same-origin", b"none"}
)  # of Sec-Fetch-Site: a page of this server, or the person at the browser
OLD_VERSIONS = frozenset({"0.9", "1.0"})  # of HTTP: no browser speaks them, and they need no Host
FORWARDED_BYTES_MAX = 1_024  # of X-Forwarded-For that are looked at: the last proxies of many
AUTHORITIES_KEPT_MAX = 256  # clients go by a handful of names; when there are more, all are read again
SHOWN_CHARS_MAX = 100  # of what was asked for, in an error

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,254})(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_VARY: Headers = [(b"vary", b"origin")]


class Authority(NamedTuple):
    """The host of a request, in lower case without a dot at its end, and its port where it names one."""

    host: str
    port: int | None

    def origin(self, scheme: str) -> str:
        """The origin of a page from there, as browsers write it."""
        default = self.port is None or self.port == _DEFAULT_PORTS.get(scheme)
        return f"{scheme}://{self.host}" if default else f"{scheme}://{self.host}:{self.port}"


class Front:
    """The names that a server goes by, and the origins whose pages may call it."""

    def __init__(
        self, hosts: Iterable[str] = (), origins: Iterable[str] = (), vouching: Iterable[str] = (), *, any_name: bool = False
    ) -> None:  # fmt: skip
        self._any_name = any_name
        self._hosts = frozenset(_whole(host) for host in ("localhost", *hosts))
        self._origins = frozenset(filter(None, (_read_origin(origin.encode()) for origin in origins)))
        # In which a proxy names its user: of two, one may be the client's own.
        self._vouching = frozenset(name.lower().encode("latin-1") for name in vouching)
        self._known: dict[bytes, Authority] = {}  # those that were accepted, by what the header said

    @classmethod
    def of(cls, settings: Settings) -> Front:
        """The front that these settings ask for, on this machine."""
        leader = urlsplit(settings.leader.url or "").hostname or "localhost"
        proxy = settings.auth.proxy
        vouching = (proxy.header, proxy.groups_header) if "proxy" in settings.auth.kinds else ()
        hosts = socket.gethostname(), settings.server.host, leader, *settings.http.hosts
        return cls(hosts, settings.http.cors_origins, vouching, any_name=_goes_by_any_name(settings))

    def admit(self, request: RequestHead) -> None:
        """Refuse a request that names another server, or that another origin's page sends to change something.

        `InputError` for a host that is none, `WrongHostError`, `CrossOriginError`. A call from inside the process is
        nobody's page.
        """
        if request.exchange.internal:
            return
        for name in request.head.repeated:
            if name in self._vouching:
                raise there_twice(name)
        authority = self._authority(request)
        origin = request.headers.get(b"origin")
        if self._origins:
            request.head.cors = self._cors(origin)
        if request.head.method in HARMLESS_METHODS:
            return
        site = request.headers.get(b"sec-fetch-site")
        if origin is not None:
            shown = _read_origin(origin)
            if shown is not None and shown in self._origins:
                return
            if shown is None or authority is None or shown != authority.origin(request.exchange.scheme):
                raise _foreign(request, "Origin", origin)
        if site is not None and site.strip().lower() not in OWN_SITES:
            raise _foreign(request, "Sec-Fetch-Site", site)

    def _authority(self, request: RequestHead) -> Authority | None:
        """The authority that is asked for; None where an old client names none."""
        head = request.head
        given = request.headers.get(b"host")
        if given is None:
            if head.version not in OLD_VERSIONS:
                raise InputError("the request has no Host", field="Host", hint="HTTP/1.1 wants one; send it.")
            named = None
        else:
            named = self._known.get(given) or self._accepted(given, "Host", request)
        return named if head.authority is None else self._accepted(head.authority, "target", request)

    def _accepted(self, given: bytes, field: str, request: RequestHead) -> Authority:
        text = given.decode("latin-1")
        found = _read_authority(text)
        if found is None:
            shown = address_without_password(text)[:SHOWN_CHARS_MAX]
            raise InputError(f"{shown!r} is no host, with or without a port", field=field)
        if request.exchange.is_admitted:  # by another server, which goes by names of its own
            return found
        if not self._any_name and found.host not in self._hosts and not _is_address(found.host):
            raise WrongHostError(
                f"the request is for {found.host[:SHOWN_CHARS_MAX]}, which is not a name of this server",
                field=field,
                hint="Use its IP address, localhost or its machine's name; or have its setting http.hosts list this name.",
            )
        if field == "Host":
            if len(self._known) >= AUTHORITIES_KEPT_MAX:
                self._known.clear()
            self._known[given] = found
        return found

    def _cors(self, origin: bytes | None) -> Headers:
        """The headers that let a page of this origin read the answer. Never with credentials, which are not a page's to use."""
        if origin is None or _read_origin(origin) not in self._origins:
            return _VARY
        return [*_VARY, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*")]


def _goes_by_any_name(settings: Settings) -> bool:
    """Tell whether names need not be known: where every call brings a credential that no browser sends by itself to a page's own host.

    A client certificate is sent so; and where names are listed, they are meant.
    """
    kinds = set(settings.auth.kinds)
    return bool(kinds - {"none"}) and settings.auth.enforce and "cert" not in kinds and not settings.http.hosts


class Forwarders:
    """The proxies whose word counts for the address that a request comes from: in logs and the audit, and nowhere else.

    An address proves nothing, so limits, and the networks of a token, go by the connection's own.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = Networks(networks)

    def client_of(self, request: RequestHead) -> str | None:
        """The address to show: what the last proxy of these was connected to, or else who the connection is from."""
        shown = request.exchange.client
        if not self._networks or shown is None or shown not in self._networks:
            return shown
        hops = request.headers.get(b"x-forwarded-for", b"")[-FORWARDED_BYTES_MAX:].decode("latin-1").split(",")
        for hop in reversed(hops):  # the client's own part stands first, and may say anything
            address = hop.strip()
            try:
                ip_address(address)
            except ValueError:
                break
            shown = address
            if address not in self._networks:
                break
        return shown


def _read_authority(text: str) -> Authority | None:
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    host, port = match[1].lower(), None if match[2] is None else int(match[2])
    if host.startswith("["):
        try:
            host = f"[{IPv6Address(host[1:-1])}]"
        except AddressValueError:
            return None
    if port is not None and port > 65_535:
        return None
    return Authority(_whole(host), port)


def _read_origin(given: bytes) -> str | None:
    """The origin as `Authority.origin` writes it; None for `null`, and for what is none."""
    scheme, separator, rest = given.decode("latin-1").partition("://")
    scheme = scheme.lower()
    authority = _read_authority(rest) if separator and scheme in _DEFAULT_PORTS else None
    return None if authority is None else authority.origin(scheme)


def _whole(host: str) -> str:
    """The name as it is compared: the dot behind a name's last part says only that nothing follows."""
    return host.lower().removesuffix(".")


def _is_address(host: str) -> bool:
    """Tell an IP address: no other server's name can point to this one by it."""
    try:
        return host.startswith("[") or bool(IPv4Address(host))
    except AddressValueError:
        return False


def _foreign(request: RequestHead, field: str, value: bytes) -> CrossOriginError:
    shown = value.decode("latin-1")[:SHOWN_CHARS_MAX]
    return CrossOriginError(
        f"a web page of another origin may not {request.head.method[:20]} here; the request has {field}: {shown}",
        field=field,
        hint="If the page may call this server, have its setting http.cors_origins list the page's origin.",
    )
