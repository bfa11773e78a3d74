"""The servers of a client: their URLs, and redirects to the one that leads, as far as the client knows.

A request goes on to another server only where nothing can have come of it: nobody took the connection, or a standby said that
it did nothing. `attempts` judges what else goes wrong, as with one server; what it repeats after a lost answer asks another one first.

A client goes to the leader itself, and says so (`Basalt-Direct`), for passing a call on costs a second hop. Where it cannot, because it may not send what
it sends to the leader's address or does not reach it, it leaves that header out for a while, and the servers that it was given pass its calls on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from basalt.client.attempts import Send, problem_of
from basalt.client.plans import Answer, AnswerLost, LeaderRefused, NotSent, Reply
from basalt.errors import InputError, NotLeaderError
from basalt.redaction import address_without_password

TransportT = TypeVar("TransportT")

MOVES_MAX = 4  # within one attempt: past a server that is down, to a standby, to the leader it names, and one more

DIRECT_HEADER = "Basalt-Direct"
# After which a client that could not go to the leader itself tries again: ways and leaders change.
DIRECT_AGAIN_MS = 60_000

EMBEDDED_SCHEME = "embedded:"
_PORTS = {"http": 80, "https": 443}
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}(/.*)?")
_HINT = "Write http://HOST:PORT (several with commas between them), or embedded:DIRECTORY."


class ServerUrl(NamedTuple):
    """The address of a server, and the beginning of all its paths (a proxy may serve it below a path)."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def text(self) -> str:
        """The URL again, without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def http_url(text: str) -> str:
    """A URL as it is; HOST:PORT, which has no scheme, as the http URL of that server."""
    return f"http://{text}" if _HOST_AND_PORT.fullmatch(text) else text


def parse_url(url: str) -> ServerUrl:
    """Take a URL, or HOST:PORT, apart. `InputError` when it is not one of an HTTP server."""
    url = http_url(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        reason = "its port is not 1 to 65535" if "port" in str(error).lower() else "it is not a URL"
        raise InputError(f"URL {_quoted(url)} cannot be read: {reason}", field="url", hint=_HINT) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InputError(f"URL {_quoted(url)} is not that of an HTTP server", field="url", hint=_HINT)
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise InputError(
            f"URL {parts.scheme}://{parts.hostname} has a query, a fragment or a password in it",
            field="url",
            hint="Leave them out; a token goes into token=, or into BASALT_TOKEN_FILE.",
        )
    if not url.isascii() or any(char <= " " for char in url):
        raise InputError(f"URL {_quoted(url)} has characters that URLs do not have", field="url", hint=_HINT)
    return ServerUrl(
        parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, parts.path.rstrip("/")
    )


def _quoted(url: str) -> str:
    return repr(address_without_password(url))


def parse_urls(urls: str) -> tuple[ServerUrl, ...]:
    """Take the URLs of one or more servers apart, which commas separate. All of them must be http, or all https."""
    if urls.startswith(EMBEDDED_SCHEME):
        raise InputError(f"{urls!r} is no server", field="url", hint="Use basalt.connect or basalt.aio.connect for it.")
    servers = tuple(dict.fromkeys(parse_url(url.strip(" ")) for url in urls.split(",")))
    if len({server.scheme for server in servers}) > 1:
        raise InputError(
            f"URLs {urls!r} are partly http and partly https", field="url", hint="What is sent over TLS stays on it."
        )
    return servers


def shown(servers: tuple[ServerUrl, ...]) -> str:
    """The URLs again, for messages."""
    return ",".join(server.text for server in servers)


def is_loopback(host: str) -> bool:
    """Tell whether the name or address is that of this machine, and of no other."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def in_the_open(servers: Sequence[ServerUrl]) -> str | None:
    """The URL of the first server that is elsewhere and is not spoken to over TLS: what proves who calls can be read on the way there."""
    return next((each.text for each in servers if each.scheme == "http" and not is_loopback(each.host)), None)


class Servers(Generic[TransportT]):
    """The servers that the caller named, the one that answered last, and a transport to each; shared by a client's requests.

    `guarded`: what is sent may prove who calls, so it goes only to those that the caller named, or over TLS.
    """

    def __init__(
        self,
        named: Sequence[ServerUrl],
        open_one: Callable[[ServerUrl], TransportT],
        monotonic_ms: Callable[[], float],
        *,
        guarded: bool = False,
    ) -> None:
        self.named = tuple(named)
        self._guarded = guarded
        self.current = self.named[0]
        self.monotonic_ms = monotonic_ms
        self._open_one = open_one
        self._open: dict[ServerUrl, TransportT] = {}
        self._passed_on_until_ms = float("-inf")

    @property
    def goes_direct(self) -> bool:
        """True while the client goes to the leader itself."""
        return self.monotonic_ms() >= self._passed_on_until_ms

    def have_passed_on(self) -> None:
        """The leader cannot be gone to: have the servers that were named pass calls on for a while."""
        self._passed_on_until_ms = self.monotonic_ms() + DIRECT_AGAIN_MS

    def transport_to(self, url: ServerUrl) -> TransportT:
        """The transport to a server, which is opened when it is first needed."""
        transport = self._open.get(url)
        # `setdefault`: two threads that come here at the same time must get the same one.
        return self._open.setdefault(url, self._open_one(url)) if transport is None else transport

    def transports(self) -> list[TransportT]:
        """The transports to close. There is always one: a client that was never used must refuse calls after that, too."""
        self.transport_to(self.named[0])
        return list(self._open.values())

    def instead(self, tried: ServerUrl, reply: Reply) -> ServerUrl | None:
        """Return the server to send a request to that got this reply; None when the reply stands."""
        if isinstance(reply, NotSent):
            return self._next(tried)
        if not _of_a_standby(reply):
            return None
        leader = _leader_of(reply)
        return leader if leader is not None and self._trusts(leader) else self._next(tried)

    def standing(self, reply: Reply) -> Reply:
        """The reply that stands where there is no other server to send to: also, that there is one which may not get what is sent."""
        leader = _leader_of(reply) if _of_a_standby(reply) else None
        return reply if leader is None or self._trusts(leader) else LeaderRefused(leader.text)

    def leave(self, server: ServerUrl) -> None:
        """Have other requests, and the repetition of this one, begin elsewhere: the answer of this server was lost.

        It may stand still, or be dead behind a proxy that takes connections all the same; a standby sends back to it if it leads.
        """
        if self.current == server:
            self.current = self._next(server) or server

    def _trusts(self, leader: ServerUrl) -> bool:
        if leader in self.named:
            return True
        # What was to go over TLS never goes without, and what goes without goes to nobody whom only a standby has named.
        return leader.scheme == self.named[0].scheme and (leader.scheme == "https" or not self._guarded)

    def _next(self, tried: ServerUrl) -> ServerUrl | None:
        if tried not in self.named:
            return self.named[0]
        following = self.named[(self.named.index(tried) + 1) % len(self.named)]
        return None if following == tried else following


def _of_a_standby(reply: Reply) -> bool:
    if not isinstance(reply, Answer) or reply.status != 503:
        return False
    problem = problem_of(reply)
    return problem is not None and problem.code == NotLeaderError.code


def _leader_of(reply: Reply) -> ServerUrl | None:
    problem = problem_of(reply) if isinstance(reply, Answer) else None
    try:
        return None if problem is None or problem.leader is None else parse_url(problem.leader)
    except InputError:
        return None


class Redirects:
    """The way of one request from server to server."""

    def __init__(self, servers: Servers[Any], request: Send) -> None:
        self._servers = servers
        self._deadline_ms = servers.monotonic_ms() + request.timeout_ms
        self._tried: list[ServerUrl] = []
        self._is_direct = servers.goes_direct
        # Made by hand, for it is made for each call: `replace` costs four times as much.
        self.request = request
        if self._is_direct:
            headers = {**request.headers, DIRECT_HEADER: "1"}
            self.request = Send(request.method, request.target, headers, request.body, request.timeout_ms)
        self.server = servers.current

    def sign(self, header: str) -> bool:
        """Have the request carry this Authorization. False where no time is left to send it."""
        left_ms, request = self._left_ms(), self.request
        headers = {**request.headers, "Authorization": header}
        self.request = Send(request.method, request.target, headers, request.body, left_ms)
        return left_ms > 0

    def follow(self, reply: Reply) -> Reply | None:
        """The reply that stands; None: send `request` again, to another `server`, or to the same one that passes it on."""
        self._tried.append(self.server)
        if isinstance(reply, AnswerLost):
            self._servers.leave(self.server)
        instead = self._servers.instead(self.server, reply)
        if instead is not None:
            self._servers.current = instead
        left_ms = self._left_ms()
        if left_ms <= 0:
            return self._servers.standing(reply)
        headers = self.request.headers
        if instead is None or instead in self._tried or len(self._tried) > MOVES_MAX:
            instead = self._passing_on(reply) if self._is_direct else None
            if instead is None:
                return self._servers.standing(reply)
            self._is_direct = False
            self._servers.current = instead
            headers = {name: value for name, value in headers.items() if name != DIRECT_HEADER}
        self.server, self.request = instead, replace(self.request, headers=headers, timeout_ms=left_ms)
        return None

    def _passing_on(self, reply: Reply) -> ServerUrl | None:
        """The server that is to pass the request on, for the leader cannot be gone to; None where that is not what is wrong."""
        named = self._servers.named
        if isinstance(self._servers.standing(reply), LeaderRefused):
            found = self.server
        elif isinstance(reply, NotSent) and self.server not in named:
            found = named[0]
        else:
            return None
        self._servers.have_passed_on()
        return found

    def _left_ms(self) -> float:
        return self._deadline_ms - self._servers.monotonic_ms()
