"""Small calls that write to a topic go to the other server as one frame of the link, where there is one, and their answers come back as one.

Frames of one turn of the event loop leave together, so that the other server reads many calls at once, and writes them in one group. What is
passed on is what would go by HTTP, and the other server judges it in the same way: by the word that proves who passes it on, and by what the caller has sent.
Format: docs/formats/links.md. Why: docs/decisions/0085-small-calls-are-passed-on-over-links.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec

from basalt.access.proofs.certificate import ClientCertificate
from basalt.api.bodies.messages import Buffer
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.links.frames import CallKind, Kind
from basalt.cluster.links.link import Handlers, Link, Reply
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Owner
from basalt.errors import MalformedBodyError, UnknownOutcomeError
from basalt.http.asgi.passed_on import HEADER
from basalt.http.asgi.requests import Head, Headers, Parts, PromptExchange, RequestHead

BODY_BYTES_MAX = 16_384  # a larger one is copied once more by a frame than over HTTP, and holds up the beats
ANSWER_BYTES_MAX = 1 << 20  # ours have some hundred; it bounds what a fault of the other server can bring
LINES_BYTES_MAX = 65_536  # of a head over HTTP, too
HEADS_MAX = 1_024  # that are kept, as of those that come over HTTP
PASS_MS_MAX = 60_000  # from which on nobody knows what became of a call: a write waits 15 s for HBase at most
# The last part of the paths of calls that write messages: each is answered soon, and shortly.
WRITES = frozenset(("publish", "records", "store"))

log = logging.getLogger("basalt.passing")

Begin = Callable[[Head, PromptExchange, str | None, bytes], Coroutine[Any, Any, None] | None]


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """A call: the line and headers with which it would go by HTTP, but for those that change from call to call; and its body."""

    lines: Annotated[bytes, msgspec.Meta(max_length=LINES_BYTES_MAX)]
    request_id: str
    sequence: bytes | None
    body: Annotated[bytes, msgspec.Meta(max_length=BODY_BYTES_MAX)]


class Given(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the caller."""

    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    headers: tuple[tuple[bytes, bytes], ...]
    body: Annotated[bytes, msgspec.Meta(max_length=ANSWER_BYTES_MAX)]


PASS: CallKind[Pass, Given] = CallKind(Kind.PASS, "pass", Pass, Given)


def goes_by_link(head: Head, body: bytes) -> bool:
    """Tell whether a call is of those that a link carries."""
    return (
        head.method == "POST"
        and len(body) <= BODY_BYTES_MAX
        and head.path.startswith("/v1/namespaces/")
        and head.path.rpartition("/")[2] in WRITES
    )


def link_to(links: Links, server: LeaseRecord | Owner) -> Link | None:
    """The link to this server: a member has one to the leader, and the leader one to each member."""
    if isinstance(server, Owner):
        return links.of_run(server.instance)
    link = links.to_leader
    return link if link is not None and link.is_open and link.peer == server.instance else None


class LinkExchange:
    """The way to the client of a call that came over a link: to the server that has passed it on."""

    __slots__ = ("_body", "answer", "sequence")
    internal = False
    is_admitted = False
    id_is_clients = True
    client: str | None = None  # the server's word tells the client's
    scheme = "http"
    certificate: ClientCertificate | None = None
    end_point_hash: bytes | None = None

    def __init__(self, call: Pass, loop: asyncio.AbstractEventLoop) -> None:
        self.sequence = call.sequence
        self._body = call.body
        self.answer: Reply[Given] = Reply(_answer_of, loop)

    async def receive(self) -> tuple[bytes, bool]:
        """The body, which is here."""
        return self._body, False

    def give_again(self, body: bytes) -> None:
        """Have `receive` give this body."""
        self._body = body

    async def until_gone(self) -> None:
        """Wait until nobody waits for the answer any more, or it is given."""
        await asyncio.wait((self.answer,))

    async def send(self, request: RequestHead, status: int, headers: Headers, parts: Parts) -> None:
        """Send the whole answer."""
        collected: list[Buffer] = [part async for part in parts] if isinstance(parts, AsyncIterator) else list(parts)
        self.send_now(request, status, headers, collected)

    def send_now(self, request: RequestHead, status: int, headers: Headers, parts: list[Buffer]) -> None:
        """Send the whole answer."""
        request.sent_bytes = sum(map(len, parts))
        if not self.answer.done():
            self.answer.set_result((status, headers, parts))

    def break_off(self) -> None:
        """There is no answer."""
        if not self.answer.done():
            self.answer.set_exception(
                UnknownOutcomeError(
                    "the server broke off before it answered, so whether the call took effect is unknown"
                )
            )


class PassedByLink:
    """Answers, for one server, the calls that others pass on to it over links. `begin` is what answers them over HTTP."""

    def __init__(self, handlers: Handlers, begin: Begin) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._heads: dict[tuple[bytes, bool], Head] = {}  # by their lines, and whether they have a number of a producer
        self._tasks: set[asyncio.Task[None]] = set()
        handlers.add(PASS, self._answer)

    def _answer(self, _member: str, call: Pass) -> asyncio.Future[Given]:
        key = call.lines, call.sequence is not None
        head = self._heads.get(key)
        if head is None:
            head = _head_of(call)
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[key] = head
        exchange = LinkExchange(call, self._loop)
        answering = self._begin(head, exchange, call.request_id, call.body)
        if answering is not None:
            task = asyncio.ensure_future(answering)
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._ended(task, exchange))
        return exchange.answer

    def _ended(self, task: asyncio.Task[None], exchange: LinkExchange) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a call that came over a link could not be answered", exc_info=error)
        exchange.break_off()


def _answer_of(sent: tuple[int, Headers, list[Buffer]]) -> Given:
    status, headers, parts = sent
    return Given(status, tuple(headers), b"".join(parts))


def _head_of(call: Pass) -> Head:
    """The head, as it would have been found over HTTP. `MalformedBodyError` for what no server of ours passes on."""
    first, *lines = call.lines.removesuffix(b"\r\n").split(b"\r\n")
    words = first.split(b" ")
    pairs = [line.partition(b": ") for line in lines]
    headers = {name: value for name, _, value in pairs}
    if len(words) != 3 or len(headers) != len(lines) or HEADER not in headers or not words[1].startswith(b"/"):
        raise MalformedBodyError("a call that was passed on over a link does not begin as one")
    # What is empty here came with the call: so it is of a head that is known.
    headers[b"content-length"] = b""
    if call.sequence is not None:
        headers[b"basalt-sequence"] = b""
    raw_path, _, query = words[1].partition(b"?")
    return Head(words[0].decode("ascii"), unquote(raw_path.decode("ascii")), raw_path, query, headers)
