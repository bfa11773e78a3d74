"""The URL of a server, or of several that share a store, taken apart once."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from basalt.errors import InputError

EMBEDDED_SCHEME = "embedded:"
_PORTS = {"http": 80, "https": 443}
_HINT = "Write http://HOST:PORT (several with commas between them), or embedded:DIRECTORY."


class ServerUrl(NamedTuple):
    """Where a server listens, and what all its paths begin with (a proxy may serve it below a path)."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def text(self) -> str:
        """The URL again, without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_url(url: str) -> ServerUrl:
    """Take a URL apart. `InputError` when it is not one of an HTTP server."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"URL {url!r} cannot be read: {error}", field="url", hint=_HINT) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InputError(f"URL {url!r} is not that of an HTTP server", field="url", hint=_HINT)
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise InputError(
            f"URL {parts.scheme}://{parts.hostname} has a query, a fragment or a password in it",
            field="url",
            hint="Leave them out; credentials go into headers=.",
        )
    if not url.isascii() or any(char <= " " for char in url):
        raise InputError(f"URL {url!r} has characters that URLs do not have", field="url", hint=_HINT)
    return ServerUrl(
        parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, parts.path.rstrip("/")
    )


def parse_urls(urls: str) -> tuple[ServerUrl, ...]:
    """Take the URLs of one or more servers apart, which commas separate. All of them must be http, or all https."""
    servers = tuple(dict.fromkeys(parse_url(url.strip(" ")) for url in urls.split(",")))
    if len({server.scheme for server in servers}) > 1:
        raise InputError(
            f"URLs {urls!r} are partly http and partly https", field="url", hint="What is sent over TLS stays on it."
        )
    return servers


def shown(servers: tuple[ServerUrl, ...]) -> str:
    """The URLs again, for messages."""
    return ",".join(server.text for server in servers)
