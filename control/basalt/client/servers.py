"""The servers of a client: their URLs, and the one that a call goes to: the topic's owner or the leader, as far as the client knows.

A request goes on to another server only where nothing can have come of it: nobody took the connection, or a standby said that
it did nothing. `attempts` judges what else goes wrong, as with one server; what it repeats after a lost answer asks another one first.

A client goes to the server itself that owns a topic, and says so (`Basalt-Direct`), for passing a call on costs a second hop. Who that is it learns where it is
refused (`not_owner`) or its call was passed on (`Basalt-Owner`); all else goes to the leader. Where it cannot, because it may not send what it sends to that
address or does not reach it, it leaves the header out for a while, and the servers that it was given pass its calls on.

A commit or one-shot goes to the owner of the topics that it brings messages for, where the client knows it: that one prepares it, and the leader decides without its bytes. Without
`Basalt-Direct`, for only the body tells whose it is: what that server does not prepare it passes on. Why so: docs/decisions/0081-commits-prepared-where-they-come.md.

A range ends where all is decided, so each server reads it alike, and a client that knows several servers sends its ranges to all of them, evenly and without asking anybody. One that could
not read rests for a while. Small ranges are the owner's, and say so (`Basalt-Direct: owner`), for else no server would refuse them, and a process that asks for nothing else would never learn who that is. Why so: docs/decisions/0082-a-client-spreads-its-ranges.md.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from basalt.api.bodies.messages import Work
from basalt.client.attempts import Send, problem_of
from basalt.client.plans import Answer, AnswerLost, LeaderRefused, NotSent, Reply
from basalt.errors import InputError, NotLeaderError, NotOwnerError
from basalt.redaction import address_without_password

TransportT = TypeVar("TransportT")

MOVES_MAX = (
    4  # within one attempt: past a server that is down, to a standby, to the leader or owner it names, and one more
)
OWNERS_MAX = 10_000  # topics whose owner is kept, where it is another server than the one for all else; some 2 MB

DIRECT_HEADER = "Basalt-Direct"
# Of a call that other servers would answer alike, and that is to be the owner's: another one refuses it, and so the client learns who owns the topic.
TO_OWNER = {DIRECT_HEADER: "owner"}
OWNER_HEADER = "basalt-owner"  # of an answer that another server gave
# After which a client that could not go to the leader itself tries again: ways and leaders change.
DIRECT_AGAIN_MS = 60_000

# Below it the permit, and the call that asks for it, cost all servers together more than the reading does: those ranges stay with the owner.
SPREAD_BYTES_MIN = 1 << 20
REST_MS = 20_000  # of a server that gave no answer: one that restarts is back by then
REST_ANSWERED_MS = 5_000  # of one that answered: a topic has moved by then, and who was full has read what it was reading; also of an owner that prepared nothing
# A larger work comes to a server in pieces, with other calls in between, and an owner prepares only what is there as a whole.
PREPARED_BYTES_MAX = 65_536
MET_MAX = 200  # servers beside those that the caller named; no installation has as many

EMBEDDED_SCHEME = "embedded:"
_KINDS = ("topics", "tables")  # what has an owner
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


def subject_of(target: str) -> str | None:
    """The topic or table that a request is about, as its path has it; None where it is about none."""
    if not target.startswith("/v1/namespaces/"):
        return None
    parts = target.partition("?")[0].split("/", 6)
    return "/".join(parts[3:6]) if len(parts) > 5 and parts[4] in _KINDS else None


def topics_of(work: Work, size_bytes: int) -> tuple[str, ...]:
    """The topics that a commit or one-shot with this work is about, as `subject_of` names them; none where the leader is to have all of it."""
    if work.acknowledge or size_bytes > PREPARED_BYTES_MAX:  # groups acknowledge where all is decided
        return ()
    titles = [(each.namespace, each.topic) for each in work.publish]
    titles += [(each.namespace, each.topic) for each in work.markers]
    return tuple(dict.fromkeys([f"{namespace}/topics/{topic}" for namespace, topic in titles]))


def place_of_range(path: str, after: bytes | None, turn: int | None, size_bytes: int | None) -> int | None:
    """The number by which a server is chosen for a range; None: the topic's owner is to read it, for its answer is small.

    `size_bytes`: how large the answer is at most; None: nobody knows.
    `turn`: its number among ranges that are read side by side, of which neighbours go to different servers; None: chance decides, the same one at each reading.
    """
    if size_bytes is not None and size_bytes < SPREAD_BYTES_MIN:
        return None
    if turn is None:
        return _number(path.encode() + b"/" + (after or b""))
    return _number(path.encode()) + turn


def _number(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=4).digest())


class RangeServers:
    """The servers that a client knows, for its ranges; shared by its threads."""

    def __init__(self, named: Sequence[ServerUrl], monotonic_ms: Callable[[], float]) -> None:
        self._named = tuple(sorted(named))  # in an order that is the same in each process
        self._monotonic_ms = monotonic_ms
        self._met: tuple[ServerUrl, ...] = ()  # the last ones at the end
        self._known = self._named
        self._resting: dict[ServerUrl, float] = {}  # until when
        self._changing = threading.Lock()

    def meet(self, server: ServerUrl) -> None:
        """Another server has named this one: it reads ranges, too."""
        if server not in self._known:
            with self._changing:
                self._know((*(each for each in self._met if each != server), server)[-MET_MAX:])

    def forget(self, server: ServerUrl) -> None:
        """The server cannot be reached, or does not answer. Those that the caller named stay."""
        if server in self._met:
            with self._changing:
                self._know(tuple(each for each in self._met if each != server))

    def choose(self, place: int, *, is_direct: bool = True) -> ServerUrl | None:
        """The server for a range of this place; None: there is no choice. `is_direct`: while the client goes to those, too, that only servers have named."""
        known = self._known if is_direct else self._named
        if len(known) < 2:
            return None
        first = known[place % len(known)]
        if not self._resting or not self._rests(first):
            return first
        others = [each for each in known if not self._rests(each)]
        # Only what was that server's moves, to all of the others alike.
        return others[place // len(known) % len(others)] if others else None

    def judge(self, server: ServerUrl, reply: Reply) -> None:
        """Have the server rest that could not read a range itself."""
        if (
            isinstance(reply, Answer)
            and reply.status < 500
            and not (reply.status == 200 and OWNER_HEADER in reply.headers)
        ):
            return
        with self._changing:
            self._resting = {
                **{each: until_ms for each, until_ms in self._resting.items() if each in self._known},
                server: self._monotonic_ms() + (REST_ANSWERED_MS if isinstance(reply, Answer) else REST_MS),
            }

    def _know(self, met: tuple[ServerUrl, ...]) -> None:
        self._met = met
        self._known = tuple(sorted({*self._named, *met}))

    def _rests(self, server: ServerUrl) -> bool:
        until_ms = self._resting.get(server)
        return until_ms is not None and self._monotonic_ms() < until_ms


class Servers(Generic[TransportT]):
    """The servers that the caller named, the one that answered last, owners of topics, and a transport to each; shared by a client's requests.

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
        self._owners: dict[
            str, ServerUrl
        ] = {}  # by topic or table, those learned of last at the end; none that is `current`
        self._resting: dict[str, float] = {}  # topics whose owner prepared no commit, until when
        self._learning = threading.Lock()
        self.ranges = RangeServers(self.named, monotonic_ms)

    @property
    def goes_direct(self) -> bool:
        """True while the client goes to the leader, and to owners, itself."""
        return self.monotonic_ms() >= self._passed_on_until_ms

    def server_for(self, target: str) -> ServerUrl:
        """The server that a request goes to first, while the client goes there itself."""
        owners = self._owners
        subject = subject_of(target) if owners else None
        return self.current if subject is None else owners.get(subject, self.current)

    def owner_of(self, topics: Sequence[str]) -> ServerUrl | None:
        """The server that is to prepare a commit for these topics; None: the one for all else, for nobody is known to own all of them, or it has just prepared none."""
        owners = self._owners
        if not topics or not owners:
            return None
        first, *others = topics
        owner = owners.get(first)
        if owner is None or any(owners.get(each) != owner for each in others):
            return None
        until_ms = self._resting.get(first)
        return None if until_ms is not None and self.monotonic_ms() < until_ms else owner

    def rest(self, topic: str) -> None:
        """The owner has not prepared a commit for this topic: it has moved, or the commit came in pieces. For a while those go where all else goes."""
        now_ms = self.monotonic_ms()
        with self._learning:
            left = {
                each: until_ms for each, until_ms in self._resting.items() if now_ms < until_ms and each in self._owners
            }
            self._resting = {**left, topic: now_ms + REST_ANSWERED_MS}

    def learn(self, target: str, reply: Answer) -> None:
        """Remember the owner of what the request was about, as this answer names it."""
        named = reply.headers.get(OWNER_HEADER)
        if named is None or (subject := subject_of(target)) is None:
            return
        known = self._owners.get(subject, self.current)
        if named == known.text:
            return
        try:
            owner = parse_url(named)
        except InputError:
            return
        if not self._trusts(owner):
            return
        self.ranges.meet(owner)
        with self._learning:
            self._owners.pop(subject, None)
            self._resting.pop(subject, None)
            if owner != self.current:
                self._owners[subject] = owner
            if len(self._owners) > OWNERS_MAX:
                del self._owners[next(iter(self._owners))]

    def forget(self, server: ServerUrl) -> None:
        """The server cannot be reached, or does not answer: what it owned goes to another one."""
        self.ranges.forget(server)
        with self._learning:
            if server in self._owners.values():
                self._owners = {subject: owner for subject, owner in self._owners.items() if owner != server}

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
            return self._next(tried) if tried == self.current else self.current
        if not _is_elsewhere(reply):
            return None
        goal = _goal_of(reply)
        return goal if goal is not None and self._trusts(goal) else self._next(tried)

    def go_on(self, reply: Reply, instead: ServerUrl) -> None:
        """Have other requests begin there, too; what a topic's owner refused tells only who leads."""
        if not _is_of_another(reply):
            self.current = instead
            self.ranges.meet(instead)
            return
        leader = _url_of(reply, "leader")
        if leader is not None and self._trusts(leader):
            self.current = leader
            self.ranges.meet(leader)

    def standing(self, reply: Reply) -> Reply:
        """The reply that stands where there is no other server to send to: also, that there is one which may not get what is sent."""
        goal = _goal_of(reply) if _is_elsewhere(reply) else None
        return reply if goal is None or self._trusts(goal) else LeaderRefused(goal.text)

    def leave(self, server: ServerUrl) -> None:
        """Have other requests, and the repetition of this one, begin elsewhere: the answer of this server was lost.

        It may stand still, or be dead behind a proxy that takes connections all the same; a standby sends back to it if it leads.
        """
        self.forget(server)
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


def _code_of(reply: Reply) -> str | None:
    """The code of a server's word that another one is to be asked."""
    if not isinstance(reply, Answer) or reply.status != 503:
        return None
    problem = problem_of(reply)
    return None if problem is None else problem.code


def _is_elsewhere(reply: Reply) -> bool:
    return _code_of(reply) in (NotLeaderError.code, NotOwnerError.code)


def _is_of_another(reply: Reply) -> bool:
    """True for the word of a server that another one owns the topic."""
    return _code_of(reply) == NotOwnerError.code


def _goal_of(reply: Reply) -> ServerUrl | None:
    """The server that such a reply names: who owns the topic, or who leads."""
    return _url_of(reply, "owner" if _is_of_another(reply) else "leader")


def _url_of(reply: Reply, field: Literal["leader", "owner"]) -> ServerUrl | None:
    problem = problem_of(reply) if isinstance(reply, Answer) else None
    named = None if problem is None else problem.leader if field == "leader" else problem.owner
    try:
        return None if named is None else parse_url(named)
    except InputError:
        return None


def _changed(request: Send, headers: dict[str, str], timeout_ms: float) -> Send:
    # Made by hand, for it is made for each call: `replace` costs four times as much.
    return Send(request.method, request.target, headers, request.body, timeout_ms, request.spread, request.topics)


def _for_anybody(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a call that the server which gets it is to pass on, or to answer in whatever way it can."""
    return {name: value for name, value in headers.items() if name != DIRECT_HEADER}


class Redirects:
    """The way of one request from server to server."""

    def __init__(self, servers: Servers[Any], request: Send) -> None:
        self._servers = servers
        self._deadline_ms = servers.monotonic_ms() + request.timeout_ms
        self._tried: list[ServerUrl] = []
        self._is_direct = servers.goes_direct
        self.request = request
        self._preparing = servers.owner_of(request.topics) if self._is_direct else None
        if self._is_direct and self._preparing is None:
            self.request = _changed(request, {DIRECT_HEADER: "1", **request.headers}, request.timeout_ms)
        elif DIRECT_HEADER in request.headers:
            self.request = _changed(request, _for_anybody(request.headers), request.timeout_ms)
        self._spread = request.spread
        chosen = None if self._spread is None else servers.ranges.choose(self._spread, is_direct=self._is_direct)
        chosen = chosen or self._preparing
        self.server = chosen or (servers.server_for(request.target) if self._is_direct else servers.current)
        self._unreached = False  # whether a server cannot be reached from here that only another one has named

    def sign(self, header: str) -> bool:
        """Have the request carry this Authorization. False where no time is left to send it."""
        left_ms = self._left_ms()
        self.request = _changed(self.request, {**self.request.headers, "Authorization": header}, left_ms)
        return left_ms > 0

    def follow(self, reply: Reply) -> Reply | None:
        """The reply that stands; None: send `request` again, to another `server`, or to the same one that passes it on."""
        servers = self._servers
        self._tried.append(self.server)
        self._end_preparing(reply)
        if isinstance(reply, AnswerLost):
            servers.leave(self.server)
        elif isinstance(reply, NotSent):
            self._unreached |= self.server not in servers.named
            servers.forget(self.server)
        instead = servers.instead(self.server, reply)
        if instead is not None:
            servers.go_on(reply, instead)
        if self._spread is not None:
            servers.ranges.judge(self.server, reply)
            if isinstance(reply, NotSent):
                instead = servers.ranges.choose(self._spread, is_direct=self._is_direct) or instead
        if isinstance(reply, Answer):
            servers.learn(self.request.target, reply)
        if not isinstance(reply, NotSent) and not _is_elsewhere(reply):
            return reply  # it is done, or may be: nobody else may get the request
        left_ms = self._left_ms()
        if left_ms <= 0:
            return servers.standing(reply)
        headers = self.request.headers
        if instead is None or instead in self._tried or len(self._tried) > MOVES_MAX:
            instead = self._untried(reply)
        if instead is None:
            instead = self._passing_on(reply) if self._is_direct else None
            if instead is None:
                return servers.standing(reply)
            self._is_direct = False
            headers = _for_anybody(headers)
        self.server, self.request = instead, _changed(self.request, headers, left_ms)
        return None

    def _end_preparing(self, reply: Reply) -> None:
        """The owner has had its turn. Where the request goes on it does so as if it had not been asked."""
        if self._preparing is None:
            return
        request, self._preparing = self.request, None
        if isinstance(reply, Answer) and (OWNER_HEADER in reply.headers or _is_elsewhere(reply)):
            self._servers.rest(request.topics[0])
        self.request = _changed(request, {**request.headers, DIRECT_HEADER: "1"}, request.timeout_ms)

    def _untried(self, reply: Reply) -> ServerUrl | None:
        """A named server that was not asked yet, where those that were know nobody else that leads: servers that are cut off name each other for ever."""
        if len(self._tried) > MOVES_MAX or _code_of(reply) != NotLeaderError.code:
            return None
        found = next((each for each in self._servers.named if each not in self._tried), None)
        if found is not None:
            self._servers.current = found
        return found

    def _passing_on(self, reply: Reply) -> ServerUrl | None:
        """The server that is to pass the request on, for its goal cannot be gone to; None where that is not what is wrong."""
        servers = self._servers
        if isinstance(servers.standing(reply), LeaderRefused):
            servers.current = found = self.server
        elif self._unreached:
            servers.current = found = servers.named[0]
        elif _is_of_another(reply):  # servers name each other: their maps will agree soon
            return servers.current
        else:
            return None
        servers.have_passed_on()
        return found

    def _left_ms(self) -> float:
        return self._deadline_ms - self._servers.monotonic_ms()
