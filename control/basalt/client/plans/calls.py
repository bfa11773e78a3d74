"""A call as a value: what to send, how to read the answer, and whether it may be sent twice.

Plans (`topics`, `messages`, `transactions`, `admin`) are generators that yield calls and get their results back; they do no
input or output, so the blocking and the async client run the very same ones. `conversation` adds retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

T = TypeVar("T")

AVRO = "avro/binary"
JSON = "application/json"
BATCHES = "application/vnd.basalt.batches"


class Effect(Enum):
    """What a call may do to the server, which decides whether it may be sent again when no answer came."""

    NONE = "none"  # reads only: no outcome to lose
    REPEATABLE = "repeatable"  # the second of two is harmless: it is idempotent, or known by its request id
    ONCE = "once"  # sent twice, it may happen twice


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back over any transport; header names are in lower case."""

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
    `lost_hint` is what to do when no answer tells whether it took effect, where the rules of `problems` do not fit.
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
class Later:
    """What a participant's coroutine method answered: to be awaited, and its result to be handed back."""

    awaitable: Awaitable[Any]
    what: str


Steps: TypeAlias = Generator[Call[Any] | Later, Any, T]


def ask(call: Call[T]) -> Steps[T]:
    """The one step of a plan that is one call; also what gives a yielded call its result's type."""
    result: T = yield call
    return result


def done(value: T) -> Steps[T]:
    """A plan without any step."""
    yield from ()  # what makes it a plan
    return value


def joined_path(*parts: str) -> str:
    """A path of these parts, each quoted whole, so that no name can lead elsewhere."""
    return "".join("/" + quote(part, safe="") for part in parts)


def nothing(_answer: Answer) -> None:
    """Parse an answer whose status says it all."""
