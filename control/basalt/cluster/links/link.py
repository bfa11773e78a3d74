"""One link: a connection over which two members ask each other, each as often and as much at a time as it wants.

Whoever asks is told what happened: the answer, the error that the other side raised, `UnavailableError` or `BusyError` when nothing was sent, and
`UnknownOutcomeError` when the link broke or the time was up. Nothing is sent twice. Frames that are made in one turn of the event loop leave as one
write. Neither side waits for the other to read: what one has not taken is bounded, and so is what it has asked and got no answer to.
Format: docs/formats/links.md.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast

from basalt.cluster.links.frames import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    UNREADABLE,
    CallKind,
    ErrorBody,
    Frame,
    FrameReader,
    Kind,
    append_frame,
    read_error,
)
from basalt.cluster.links.hello import Accept, Acceptor, Dial, Hello, RefusedError, fingerprint, refusal
from basalt.errors import (
    BasaltError,
    BusyError,
    InternalError,
    MalformedBodyError,
    ProtocolError,
    UnavailableError,
    UnknownOutcomeError,
)

# Bytes that wait for the other side to take them: two frames of the largest kind. A call beyond is refused. By TLS the last write may come on top:
# what is encrypted already lies in the connection below, which nobody can ask.
QUEUE_BYTES_MAX = 2 * FRAME_BYTES_MAX
# An answer cannot be refused. Who asks without reading has the link closed at so many bytes more.
ANSWERS_BYTES_MAX = 2 * QUEUE_BYTES_MAX
CALLS_MAX = (
    4_096  # asked and not answered, each way: what a member's clients can have open at a time (http.connections_max)
)
UNHURRIED_MS = 10  # for an answer that nobody waits for to leave with something else: more of them share a write then
CLOSE_SECONDS_MAX = (
    5.0  # for the other side to take the last frames; one that does not read would hold the connection for ever
)
# Between two looks for calls whose time is up, at least: a call more is a number to compare, and not a timer of its own.
LOOK_SECONDS_MIN = 0.01

log = logging.getLogger("basalt.links")

_KINDS = frozenset(Kind)
# As plain numbers, which are compared and written faster.
_ANSWER, _ERROR, _CANCEL = int(Kind.ANSWER), int(Kind.ERROR), int(Kind.CANCEL)

Q = TypeVar("Q")
A = TypeVar("A")


class Reply(asyncio.Future[A]):
    """The answer of a call that is sent when it is there, and not a turn of the event loop later: so it leaves with what was sent just before. `of` makes it of a result."""

    def __init__(self, of: Callable[[Any], A], loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop=loop)
        self._of = of
        self.then: Callable[[Reply[A]], None] | None = None

    def set_result(self, result: Any) -> None:
        super().set_result(self._of(result))
        if self.then is not None:
            self.then(self)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        if self.then is not None:
            self.then(self)


class _Handled(NamedTuple):
    kind: CallKind[Any, Any]
    answer: Callable[[str, Any], Any]


class Handlers:
    """The calls that a server answers over its links: for each kind of call a function of the asking member's instance and the question."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Handled] = {}

    def add(self, kind: CallKind[Q, A], answer: Callable[[str, Q], A | Awaitable[A]]) -> None:
        """Answer calls of this kind by this function. One that is no coroutine is answered at once, in the order of asking."""
        if kind.number in self._by_number:
            raise ValueError(f"calls of kind {kind.name} are answered already")
        self._by_number[kind.number] = _Handled(kind, answer)

    def from_now_on(self) -> Callable[[], None]:
        """Call what is returned to answer no more calls of kinds that were added since: links last longer than who answers."""
        before = self._by_number.copy()

        def forget() -> None:
            self._by_number = before

        return forget

    def remove(self, kind: CallKind[Any, Any]) -> None:
        """Answer calls of this kind no more."""
        self._by_number.pop(kind.number, None)

    def find(self, number: int) -> _Handled | None:
        """The kind and the function of calls of this number."""
        return self._by_number.get(number)


class _Waiting:
    """A call that is asked and not answered. `then` is told of its answer, where nobody awaits that."""

    __slots__ = ("answer", "due_s", "kind", "then")

    def __init__(
        self, kind: CallKind[Any, Any], answer: asyncio.Future[Any], due_s: float,
        then: Callable[[asyncio.Future[Any]], None] | None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.answer = answer
        self.due_s = due_s
        self.then = then


class Link(asyncio.Protocol):
    """One side of a link. `opened` is done once both sides have proved who they are, `closed` when it is over, with the reason."""

    def __init__(self, hello: Dial | Accept, handlers: Handlers, own: Callable[[], Acceptor] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Hello] = self._loop.create_future()
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self.refused: RefusedError | None = None  # why no link came to be
        self.address = "nowhere"  # of the other side, once it is connected
        self.said_bye = False  # the other side told that it goes, or this one did
        self.is_open = False  # calls can be made
        self._hello = hello
        self._own = own
        self._handlers = handlers
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._out = bytearray()
        self._flush_due = False
        self._later: asyncio.TimerHandle | None = None  # for answers that nobody waits for
        # Calls in the write that is due, and in the last one, of those that wait for others.
        self._gathered = self._gathered_last = 0
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._look_s = math.inf  # when the first of these that are known to be late would be
        self._looking: asyncio.TimerHandle | None = None
        self._running: dict[int, asyncio.Future[Any]] = {}

    @property
    def is_secure(self) -> bool:
        """True where what goes over it is encrypted."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    @property
    def peer(self) -> str:
        """The instance of the member at the other end."""
        hello = self.opened.result()
        return hello.to if isinstance(self._hello, Dial) else hello.instance

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the other side to take them."""
        return len(self._out) + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def held_bytes(self) -> int:
        """Bytes that came and wait for the rest of their frame."""
        return self._reader.held_bytes

    @property
    def calls(self) -> int:
        """Calls that are made here and not answered."""
        return len(self._waiting)

    @property
    def answering(self) -> int:
        """Calls of the other side that are being answered."""
        return len(self._running)

    async def call(self, kind: CallKind[Q, A], question: Q, timeout_ms: float) -> A:
        """Ask the other side. Cancelled or out of time, the call is called off there, too; whether it was done nobody knows then."""
        number, answer = self._ask(kind, question, timeout_ms, None)
        try:
            return await answer
        finally:
            if self._waiting.pop(number, None) is not None:
                self._call_off(number)

    def send(
        self, kind: CallKind[Q, A], question: Q, timeout_ms: float, then: Callable[[asyncio.Future[A]], None], *,
        gathers: bool = False,
    ) -> None:  # fmt: skip
        """Ask without waiting: the frame is behind all that was asked and answered before. `then` gets the answer, as soon as it has come.

        `gathers`: the likes of it come from several connections, so it leaves after these were looked at once more, if several left together before.
        """
        if gathers:
            self._gathered += 1
            if not self._flush_due and self._gathered_last > 1 and self.is_open:
                self._flush_due = True
                self._loop.call_soon(self._loop.call_soon, self._flush)
        self._ask(kind, question, timeout_ms, then)

    def _ask(
        self, kind: CallKind[Q, A], question: Q, timeout_ms: float, then: Callable[[asyncio.Future[A]], None] | None
    ) -> tuple[int, asyncio.Future[A]]:
        if not self.is_open:
            raise UnavailableError("the link to the other server is not there; nothing was done", hint="try again")
        if self.queued_bytes >= QUEUE_BYTES_MAX or len(self._waiting) >= CALLS_MAX:
            raise BusyError(
                f"{self.queued_bytes} bytes and {len(self._waiting)} calls wait for the server {self.peer}; nothing was done",
                hint="try again; the other server, or the network to it, is slow",
            )
        self._number = number = self._number + 1
        self._append(number, kind.number, question)
        answer: asyncio.Future[A] = self._loop.create_future()
        due_s = self._loop.time() + timeout_ms / 1_000
        self._waiting[number] = _Waiting(kind, answer, due_s, then)
        if due_s < self._look_s:
            self._look_at(due_s)
        return number, answer

    def _call_off(self, number: int) -> None:
        if self.is_open:
            self._append(number, _CANCEL, None)

    def close(self, why: str, *, bye: bool = False) -> None:
        """End the link. With `bye` the other side is told that this server goes."""
        if self.closed.done():
            return
        if bye and self.is_open:
            self.said_bye = True
            self._append(0, Kind.BYE, why)
        self._flush()
        if self._transport is not None:
            self._transport.close()  # once the other side has taken what is queued
            self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)
        self._end(why)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed.done():  # given up while the connection was made
            self._transport.abort()
            return
        host, port = transport.get_extra_info("peername")[:2]
        self.address = f"{host}:{port}"
        if isinstance(self._hello, Dial):
            tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
            seen = b"" if tls is None else fingerprint(tls.getpeercert(binary_form=True) or b"")
            self._transport.write(self._hello.opening(seen))

    def connection_lost(self, error: Exception | None) -> None:
        self._end("the connection broke" if error is None else f"the connection broke: {error}")

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if self.closed.done():
                    return
                if self.opened.done():
                    self._take(frame)
                else:
                    self._greet(frame)
        except RefusedError as error:
            self.refused = error
            if isinstance(self._hello, Accept) and self._transport is not None:
                self._transport.write(refusal(error))
            self.close(error.message)
        except ProtocolError as error:
            self.close(error.message)

    # The hello.

    def _greet(self, frame: Frame) -> None:
        assert self._transport is not None
        hello = self._hello
        if isinstance(hello, Dial):
            out = hello.step(frame)
        else:
            assert self._own is not None
            out = hello.step(frame, self._own())
        if out:
            self._transport.write(out)
        if hello.is_done:
            assert hello.hello is not None
            self._reader.frame_bytes_max = FRAME_BYTES_MAX
            self.is_open = True
            self.opened.set_result(hello.hello)

    # Frames.

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind in (_ANSWER, _ERROR):
            self._take_answer(frame)
        elif kind == _CANCEL:
            task = self._running.pop(frame.number, None)
            if task is not None:
                task.cancel()
        elif kind == Kind.BYE:
            self.said_bye = True
            self.close("the other server goes")
        elif handled := self._handlers.find(kind):
            self._answer(frame, handled)
        else:
            self._append_answer(frame.number, _ERROR, ErrorBody.of(_unanswered(kind)))

    def _take_answer(self, frame: Frame) -> None:
        waiting = self._waiting.get(frame.number)
        if waiting is None:
            return  # nobody waits for it any more
        if frame.kind == _ERROR:
            answer = read_error(frame)
        else:
            try:
                answer = waiting.kind.answer.decode(frame.body)
            except UNREADABLE as error:
                answer = UnknownOutcomeError(
                    f"the answer to a call of kind {waiting.kind.name} cannot be read: {error}"
                )
        del self._waiting[frame.number]
        _tell(waiting, answer)

    def _answer(self, frame: Frame, handled: _Handled) -> None:
        if frame.number in self._running or not frame.number:
            raise ProtocolError(f"a call came with the number {frame.number}, which is in use or none")
        try:
            if len(self._running) >= CALLS_MAX:
                raise BusyError(f"the server answers {CALLS_MAX} calls of this link already; nothing was done")
            answer = handled.answer(self.peer, handled.kind.question.decode(frame.body))
        except UNREADABLE as error:
            told = MalformedBodyError(f"a call of kind {handled.kind.name} cannot be read: {error}")
            self._append_answer(frame.number, _ERROR, ErrorBody.of(told))
        except Exception as error:  # noqa: BLE001 - a bug, but the caller must be answered
            self._append_error(frame.number, handled.kind.name, error)
        else:
            if isinstance(answer, Reply) and not answer.done():
                self._running[frame.number] = answer
                answer.then = functools.partial(self._answered, frame.number, handled.kind.name)
            elif inspect.isawaitable(answer):
                task = self._running[frame.number] = asyncio.ensure_future(answer)
                task.add_done_callback(functools.partial(self._answered, frame.number, handled.kind.name))
            else:
                self._append_answer(frame.number, _ANSWER, answer, is_urgent=handled.kind.is_urgent)

    def _answered(self, number: int, name: str, task: asyncio.Future[Any]) -> None:
        if self._running.get(number) is task:
            del self._running[number]
        if task.cancelled():
            return  # called off: nobody waits for an answer
        error = task.exception()
        if error is None:
            self._append_answer(number, _ANSWER, task.result())
        else:
            self._append_error(number, name, error)

    def _append_error(self, number: int, name: str, error: BaseException) -> None:
        if not isinstance(error, BasaltError):
            log.error("a call of kind %s from %s failed", name, self.peer, exc_info=error)
            error = InternalError("a fault of the other server's own", hint="its log has the details")
        self._append_answer(number, _ERROR, ErrorBody.of(error))

    def _append_answer(self, number: int, kind: int, body: Any, *, is_urgent: bool = True) -> None:
        if self.closed.done():
            return
        try:
            self._append(number, kind, body, is_urgent=is_urgent)
        except BasaltError as error:  # too large
            self._append(number, _ERROR, ErrorBody.of(error))
        if self.queued_bytes > ANSWERS_BYTES_MAX:
            self._abort(f"it asks, and has not taken {self.queued_bytes} bytes of answers")

    def _append(self, number: int, kind: int, body: Any, *, is_urgent: bool = True) -> None:
        append_frame(self._out, number, kind, body)
        if self._flush_due:
            return
        if is_urgent:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        elif self._later is None:
            self._later = self._loop.call_later(UNHURRIED_MS / 1_000, self._flush_late)

    def _flush_late(self) -> None:
        self._later = None
        if not self._flush_due:
            self._flush()

    def _flush(self) -> None:
        self._flush_due = False
        self._gathered_last, self._gathered = self._gathered, 0
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(bytes(self._out))
        self._out.clear()

    # Calls whose time is up.

    def _look_at(self, time_s: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._look_s = time_s
        self._looking = self._loop.call_at(time_s, self._look)

    def _look(self) -> None:
        self._looking, self._look_s = None, math.inf
        now_s = self._loop.time()
        late = [number for number, waiting in self._waiting.items() if waiting.due_s <= now_s]
        for number in late:
            waiting = self._waiting.pop(number, None)
            if waiting is None:  # the link was closed by what followed one of them
                return
            self._call_off(number)
            error = UnknownOutcomeError(
                f"the server {self.peer} did not answer a call of kind {waiting.kind.name} in time"
            )
            _tell(waiting, error)
        if self._waiting:
            first_s = min(waiting.due_s for waiting in self._waiting.values())
            self._look_at(max(first_s, now_s + LOOK_SECONDS_MIN))

    # The end.

    def _abort(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def _end(self, why: str) -> None:
        if self.closed.done():
            return
        self.is_open = False
        self.closed.set_result(why)
        if not self.opened.done():
            self.opened.cancel()
        for task in self._running.values():
            task.cancel()
        self._running.clear()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            error = UnknownOutcomeError(f"the link broke before a call of kind {each.kind.name} was answered: {why}")
            if each.then is None:
                _tell(each, error)
            else:  # in a turn of its own: whoever ends the link may be in the middle of something
                self._loop.call_soon(_tell, each, error)
        if self._looking is not None:
            self._looking.cancel()
        self._out.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None


def _tell(waiting: _Waiting, answer: Any) -> None:
    """Give whoever has asked the answer, or the error."""
    told = waiting.answer
    if told.done():  # who awaited it was cancelled
        return
    if isinstance(answer, BasaltError):
        told.set_exception(answer)
    else:
        told.set_result(answer)
    if waiting.then is not None:
        try:
            waiting.then(told)
        except Exception:  # a bug of theirs, of which the link and its other calls must not suffer
            log.exception("what follows a call of kind %s failed", waiting.kind.name)


def _unanswered(kind: int) -> BasaltError:
    """The error of a call that nobody answers here: not now, or never."""
    if kind in _KINDS:
        return UnavailableError(
            f"this server answers no calls of kind {Kind(kind).name.lower()} now, for it begins or ends to serve; nothing was done",
            hint="send the same call again after Retry-After",
        )
    return ProtocolError(f"this server knows no call of kind {kind}", hint="run the same version on all servers")


async def opened(link: Link, timeout_s: float) -> bool:
    """Wait until both sides have said hello; False: no link came to be, and the connection is closed."""
    await asyncio.wait((link.opened, link.closed), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not link.is_open:
        link.close("it said no hello in time")
    return link.is_open
