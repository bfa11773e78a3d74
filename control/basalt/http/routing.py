"""Routing: from a request's head to its operation, behind the front, the credential, the quota, and the rights that the call needs.

All of it is found once for requests that begin alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from basalt.access.authentication import Authentication, Identified, without_do_as
from basalt.access.needs import PUBLIC, Needs
from basalt.access.policy import Caller
from basalt.access.quotas import REQUESTS, Quota, Quotas
from basalt.access.sightings import NOTED_EVERY_MS
from basalt.errors import MethodNotAllowedError, RouteNotFoundError
from basalt.http.asgi.front import Front
from basalt.http.asgi.requests import Headers, RequestHead, Value, without_secrets
from basalt.http.asgi.responses import Response, method_not_allowed
from basalt.http.routes.route_table import Handler, Operation, Query, Request, Submit, read_query

KNOWN_PATHS_MAX = 4_096  # paths of calls whose operations are at hand; beyond, they are found anew
PREFLIGHT_SECONDS = 600  # that a browser need not ask again whether another origin's page may call
KNOWN_PATH_CHARS_MAX = 512  # of such a path: they take 2 MB at most

UNMETERED = frozenset(("/livez", "/readyz"))  # who asks whether a server lives must not be told to wait


class _Method(NamedTuple):
    """All that a path has for a method. `query`: the parameters that it takes; None: it does not look at them."""

    needs: Needs
    handler: Handler
    query: dict[str, Query] | None
    submit: Submit | None
    is_reading: bool
    meters: tuple[Quota, ...]


@cache
def _segments(path: str) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """The segments of an operation's path, None for a parameter, and the names of the parameters."""
    split = path.split("/")
    segments = tuple(None if segment.startswith("{") else segment for segment in split)
    return segments, tuple(segment[1:-1] for segment in split if segment.startswith("{"))


class Endpoint:
    """All operations of one path."""

    def __init__(self, path: str, operations: Sequence[Operation]) -> None:
        self.path = path
        self.segments, self.names = _segments(path)
        self._operations = operations

    @cached_property
    def _methods(self) -> dict[str, _Method]:
        """By their names. A server starts, and takes over, without those of all calls: most are never made."""
        methods = {
            operation.method: _Method(
                operation.needs,
                operation.answer,
                {query.name: query for query in operation.query},
                operation.submit,
                operation.needs.is_reading,
                operation.meters,
            )
            for operation in self._operations
        }
        if "GET" in methods:
            methods.setdefault("HEAD", methods["GET"])
        methods.setdefault("OPTIONS", _Method(PUBLIC, self._tell_allowed, None, None, False, ()))  # whatever the query
        return methods

    @cached_property
    def _allowed(self) -> tuple[str, ...]:
        return (*sorted(self._methods.keys() - {"OPTIONS"}), "OPTIONS")

    def method(self, request: RequestHead) -> _Method:
        """The entry of the request's method; `MethodNotAllowedError`."""
        found = self._methods.get(request.head.method)
        if found is None:
            raise method_not_allowed(request, self._allowed)
        return found

    async def _tell_allowed(self, request: Request) -> Response:
        allowed = ", ".join(self._allowed).encode("ascii")
        headers: Headers = [(b"allow", allowed)]
        if b"access-control-request-method" in request.headers and len(request.head.cors) > 1:
            headers += [
                (b"access-control-allow-methods", allowed),
                (b"access-control-allow-headers", b"authorization, *"),  # which the star leaves out
                (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
            ]
        return Response(204, headers=headers)


class Found:
    """All that the routes have for one head: the operation's handler, and the values of path and query.

    `caller` is who was last found to have the rights that it needs: requests that begin alike may be of different ones.
    """

    __slots__ = (
        "caller", "handler", "is_reading", "kept", "meters", "needs", "path", "query", "route", "routes", "submit",
    )  # fmt: skip

    def __init__(
        self, routes: Routes, route: str, method: _Method, path: dict[str, str], query: dict[str, Value], caller: Caller
    ) -> None:
        self.routes = routes
        self.route = route
        self.kept: Any = None  # what the call has read in the head, for the next request that begins alike
        self.needs = method.needs
        self.caller = caller
        self.handler = method.handler
        self.path = path
        self.query = query
        self.submit = method.submit
        self.meters = method.meters
        self.is_reading = method.is_reading


class Routes:
    """All operations, by their paths, behind the front of the server and the quotas of who calls."""

    def __init__(
        self, operations: Iterable[Operation], front: Front, quotas: Quotas, authentication: Authentication | None = None,
        public: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._front = front
        self._quotas = quotas
        self._authentication = authentication
        self._public = frozenset(public)  # paths that the settings open to everybody
        self._unmetered = UNMETERED | self._public
        by_path: dict[str, list[Operation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, []).append(operation)
        self._by_length: dict[int, list[Endpoint]] = {}  # of a path, in segments; each list in the order of the tables
        for path, grouped in by_path.items():
            endpoint = Endpoint(path, grouped)
            self._by_length.setdefault(len(endpoint.segments), []).append(endpoint)
        self._known: dict[str, tuple[Endpoint, dict[str, str]]] = {}

    def find(self, request: Request) -> Found:
        """The operation that the request's head asks for; the head remembers it, for requests that begin alike.

        Refuses what no call could mean, what the front does not take up, a credential that does not count, a caller whose quota is used
        up, a path that no call has, a method that its route does not have, a caller who lacks a right that the call needs, and query
        parameters that it does not declare. Of paths and methods only those learn who say who they are.
        """
        head = request.head
        found: Found | None = head.found
        if found is not None and found.routes is self:
            request.route = found.route
            if self._authentication is not None:
                self._identify(request, self._authentication, request.started_ms)
            if self._quotas.are_on:
                self._admit(request)
                self._meter(request, found.meters)
            if found.caller is not request.caller:
                self._judge(request, found.needs, found.path)
                found.caller = request.caller  # for whom it stays as it is: a transaction's owner never changes
            return found
        request.check()
        self._front.admit(request)
        if self._authentication is not None:
            self._identify(request, self._authentication, request.started_ms)
        if self._quotas.are_on:
            self._admit(request)
        try:
            endpoint, path = self._known.get(head.path) or self._look_up(head.path)
            request.route = endpoint.path
            method = endpoint.method(request)
        except (RouteNotFoundError, MethodNotAllowedError):
            self._must_be_somebody(request)
            raise
        self._meter(request, method.meters)
        self._judge(request, method.needs, path)
        declared = method.query
        asked = head.query_string
        if asked and self._authentication is not None and self._authentication.takes_do_as:
            asked = without_do_as(asked)
        query = read_query(asked, declared) if asked and declared is not None else {}
        found = head.found = Found(self, endpoint.path, method, path, query, request.caller)
        return found

    def judge_again(self, request: Request, found: Found) -> None:
        """Refuse an answer that was made over a time, where the caller's credential or rights are gone by now."""
        if self._authentication is not None:
            before = request.caller
            self._identify(request, self._authentication, self._authentication.now_ms())
            if request.caller is not before:
                self._judge(request, found.needs, found.path)

    def _identify(self, request: Request, authentication: Authentication, now_ms: float) -> None:
        """Find who makes the call. Requests that begin alike have one credential, which is verified once."""
        exchange, head = request.exchange, request.head
        headers: Mapping[bytes, bytes] = request.headers
        if exchange.internal:
            return
        if authentication.takes_do_as and head.query_string:
            headers = authentication.naming(headers, head.query_string)
        known: Identified | None = head.identified
        certificate, secure = exchange.certificate, exchange.scheme == "https"
        if certificate is not None and authentication.reads_certificates and b"authorization" not in headers:
            # The head says nothing of the connection: others send the same bytes with another certificate, or without one.
            found = authentication.identify(headers, exchange.client, now_ms, certificate, secure=secure)
            request.caller = found.caller
            authentication.seen(request.caller, exchange.client, now_ms)
            return
        if (
            known is None
            or known.entries is not authentication.directory.entries
            or now_ms >= known.until_ms
            or known.networks
        ):
            known = authentication.identify(
                headers, exchange.client, now_ms, before=known, end_point=exchange.end_point_hash, secure=secure
            )
            head.identified = known
            if known.answer:
                head.proving = [(b"www-authenticate", b"Negotiate " + known.answer.encode("ascii"))]
        request.caller = caller = known.caller
        if now_ms - caller.noted_ms >= NOTED_EVERY_MS:
            authentication.seen(caller, exchange.client, now_ms)

    def _judge(self, request: Request, needs: Needs, path: dict[str, str]) -> None:
        if needs.is_public or request.route in self._public:
            return
        self._must_be_somebody(request)
        needs.judge(request.caller, path)
        if needs.on_transaction is not None:
            request.check_is_known(path["transaction"])
            request.must_act(needs.on_transaction, path["transaction"], "id")

    def _must_be_somebody(self, request: Request) -> None:
        if self._authentication is not None and self._authentication.is_nobody(request.caller):
            raise self._authentication.missing(request.exchange.client, request.started_ms)

    def _admit(self, request: Request) -> None:
        """Charge the request to its caller, who waits where a quota is used up: before anything of the body is read.

        A call that a page makes is charged like any other, for its bytes and for what it holds. For its number alone it is never refused:
        whoever asked for the page was let in, and what its calls overdraw is paid back before the next one.
        """
        if request.account is not None or request.head.path in self._unmetered:
            return  # it is charged, and is looked for again
        account = self._quotas.account_of(request.caller, request.started_ms)
        if account is None:
            return
        if request.exchange.internal:
            account.charge(REQUESTS, 1, request.started_ms)
        else:
            self._quotas.admit(account, request.started_ms)
        request.account = account

    def _meter(self, request: Request, meters: tuple[Quota, ...]) -> None:
        """Have the caller wait whose bytes are used up; others are charged when they are known."""
        if request.account is not None:
            request.meters = meters
            for meter in meters:
                self._quotas.admit_bytes(request.account, meter, request.started_ms)

    def _look_up(self, path: str) -> tuple[Endpoint, dict[str, str]]:
        given = path.split("/")
        for endpoint in self._by_length.get(len(given), ()):
            values = [text for wanted, text in zip(endpoint.segments, given, strict=True) if wanted is None]
            if all(values) and all(
                wanted is None or wanted == text for wanted, text in zip(endpoint.segments, given, strict=True)
            ):
                known = endpoint, dict(zip(endpoint.names, values, strict=True))
                if len(path) <= KNOWN_PATH_CHARS_MAX:
                    if len(self._known) >= KNOWN_PATHS_MAX:
                        self._known.clear()
                    self._known[path] = known
                return known
        raise RouteNotFoundError(
            f"no call has the path {without_secrets(path)[:200]!r}",
            field="path",
            hint="GET /openapi.json lists every call.",
        )
