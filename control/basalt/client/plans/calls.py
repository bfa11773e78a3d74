"""A call as a value: what to send, how to read the answer, and whether it may be sent twice.

A plan is a generator that yields calls and gets their results back. It does no input or output, so the blocking and the
async client run the same ones. `run_plan` adds retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

from basalt.api.bodies import json

T = TypeVar("T")
ItemT_co = TypeVar("ItemT_co", covariant=True)

AVRO = "avro/binary"
JSON = "application/json"
BATCHES = "application/vnd.basalt.batches"


class Effect(Enum):
    """The effect of a call on the server. It decides whether the call may be sent again when no answer came."""

    NONE = "none"  # reads only: no outcome to lose
    REPEATABLE = "repeatable"  # the second of two is harmless: it is idempotent, or known by its request id
    ONCE = "once"  # sent twice, it may happen twice


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotSent:
    """Nothing reached the server: no connection could be made."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The call was sent, at least in part, and no whole answer came: it took effect, or it did not."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotHttp:
    """The other side answered with something that is not HTTP."""

    reason: str


Reply: TypeAlias = Answer | NotSent | Lost | NotHttp


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. `what` names it in error messages; `parse` reads a 2xx answer, or one of a status in `accepted`.

    `path` is quoted and starts with a slash. `wait_ms` is how long the server may hold the answer back (a long poll).
    `lost_hint` is what to do when no answer tells whether it took effect, where the rules of `replies` do not fit.
    """

    what: str
    method: str
    path: str
    parse: Callable[[Answer], T]
    effect: Effect
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    content_type: str | None = None
    accept: str = JSON
    wait_ms: int = 0
    accepted: tuple[int, ...] = ()
    lost_hint: str | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Await what a callback or a participant's method has returned, and hand the result back. `what` names it in errors."""

    awaitable: Awaitable[Any]
    what: str

    def refused(self) -> TypeError:
        """Make the error of the blocking client, which cannot await."""
        if isinstance(self.awaitable, Coroutine):
            self.awaitable.close()  # it was never begun: without this Python warns of that
        return TypeError(f"{self.what} is a coroutine, which only the async client can await")


Steps: TypeAlias = Generator[Call[Any] | Await, Any, T]


class Cursor(Protocol[ItemT_co]):
    """The place of an iterator, and the plan that moves it on."""

    @property
    def done(self) -> bool:
        """True when there are no more items."""
        ...

    def next_items(self) -> Steps[Iterable[ItemT_co]]:
        """Go on to the next items. None of them does not mean that it is done."""
        ...


def ask(call: Call[T]) -> Steps[T]:
    """Make one call, and give its result the type that the call says."""
    result: T = yield call
    return result


def done(value: T) -> Steps[T]:
    """Return this without any call."""
    yield from ()  # makes it a generator
    return value


def joined_path(*parts: str) -> str:
    """Make a path of these parts. Each is quoted whole, so that no name leads elsewhere."""
    return "".join("/" + quote(part, safe="") for part in parts)


def json_of(kind: type[T]) -> Callable[[Answer], T]:
    """Make the function that reads an answer's body as JSON of this kind."""
    return lambda answer: json.decode(answer.body, kind)


def nothing(_answer: Answer) -> None:
    """Parse an answer whose status says it all."""
