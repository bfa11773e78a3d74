"""Plans: what is asked of a server, as values. No input or output, so that the blocking and the async client run the same ones.

A call says what to send, how to read the answer, and whether it may be sent twice. A plan is a generator that yields calls (and
what else takes time) and gets their results back; `attempts` adds retries. A scope is what a plan is about: a client's namespace, a topic or a table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

from basalt.api.bodies import json
from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.producers import AutomaticProducers
from basalt.errors import InputError

T = TypeVar("T")
ItemT_co = TypeVar("ItemT_co", covariant=True)

NAMES_AT_HAND = 1_024  # that are not quoted again for each call; a client uses few
AVRO = "avro/binary"
JSON = "application/json"
BATCHES = "application/vnd.basalt.batches"


class Effect(Enum):
    """The effect of a call on the server. It decides whether the call may be sent again when no answer came."""

    NONE = "none"  # reads only: no outcome to lose
    REPEATABLE = "repeatable"  # the second of two is harmless: it is idempotent, or known by its request id
    NUMBERED = "numbered"  # the second of two is known by its number; but only success tells what became of a lost one
    ONCE = "once"  # sent twice, it may happen twice


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The reason why no answer came."""

    reason: str


class NotSent(NoAnswer):
    """Nothing reached the server: no connection could be made."""


class NoCredential(NoAnswer):
    """Nothing was sent: what proves who calls could not be had now."""


class LeaderRefused(NoAnswer):
    """Nothing was done: the server that leads, or owns the topic, is one that may not get what this client sends. `reason` is its URL."""


class AnswerLost(NoAnswer):
    """The call was sent, at least in part, and no whole answer came: it took effect, or it did not."""


class NotHttp(NoAnswer):
    """The other side answered with something that is not HTTP."""


Reply: TypeAlias = Answer | NotSent | NoCredential | LeaderRefused | AnswerLost | NotHttp
Query: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. `what` names it in error messages; `parse` reads a 2xx answer, or one of a status in `accepted`.

    `path` is quoted and starts with a slash. `wait_ms` is how long the server may hold the answer back (a long poll).
    `lost_hint` is what to do when no answer tells whether it took effect, where the rules of `attempts` do not fit.
    `if_match` is the version that it is for, as an ETag has it. `headers` are those of this call alone.
    `timeout_ms_max` is its own deadline, where the client's is later.
    After `repeat_ms_max` it is not sent again when an answer was lost: what knows the second of two may be forgotten by then.
    One that is `patient` has no deadline: who follows a topic waits for its server, too. It must have no effect, or one that is
    REPEATABLE however late it is repeated.
    A call with a `spread` is answered alike by any server: one is chosen by this number (`servers.RangeServers`).
    One with `topics` is about these, though its path does not say so: their owner, where all have the same, does the most of it (`servers.topics_of`).
    """

    what: str
    method: str
    path: str
    parse: Callable[[Answer], T]
    effect: Effect
    query: Query = ()
    body: bytes = field(default=b"", repr=False)
    content_type: str | None = None
    accept: str = JSON
    wait_ms: int = 0
    accepted: tuple[int, ...] = ()
    lost_hint: str | None = None
    patient: bool = False
    if_match: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat_ms_max: int | None = None
    timeout_ms_max: int | None = None
    spread: int | None = None
    topics: tuple[str, ...] = ()


class CoroutineRefusedError(TypeError):
    """A callback of the blocking client is a coroutine function: a fault of the program, and of nothing that it was called for."""


@dataclass(frozen=True, slots=True)
class Await:
    """Await what a callback or a participant's method has returned, and hand the result back. `what` names it in errors."""

    awaitable: Awaitable[Any]
    what: str

    def refused(self) -> CoroutineRefusedError:
        """Make the error of the blocking client, which cannot await."""
        if isinstance(self.awaitable, Coroutine):
            self.awaitable.close()  # it was never begun: without this Python warns of that
        return CoroutineRefusedError(f"{self.what} is a coroutine, which only the async client can await")


@dataclass(frozen=True, slots=True)
class Rest:
    """Rest for a while, and say why in the log, if a line is given."""

    duration_ms: float
    line: str | None = None


Steps: TypeAlias = Generator[Call[Any] | Await | Rest, Any, T]


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


def get_json(kind: type[T], what: str, path: str, query: Query = ()) -> Steps[T]:
    """Ask for what is at a path, as JSON of this kind."""
    return ask(Call(what, "GET", path, json_of(kind), Effect.NONE, query))


def send_json(
    method: str,
    what: str,
    path: str,
    parse: Callable[[Answer], T],
    effect: Effect = Effect.REPEATABLE,
    body: object = None,
    *,
    query: Query = (),
    lost_hint: str | None = None,
    if_match: str | None = None,
    timeout_ms_max: int | None = None,
) -> Steps[T]:
    """Make a call whose body is this as JSON; None: without a body."""
    encoded = b"" if body is None else json.encode(body)
    media_type = None if body is None else JSON
    return ask(
        Call(
            what, method, path, parse, effect, query, encoded, media_type,
            lost_hint=lost_hint, if_match=if_match, timeout_ms_max=timeout_ms_max,
        )
    )  # fmt: skip


def json_of(kind: type[T]) -> Callable[[Answer], T]:
    """Make the function that reads an answer's body as JSON of this kind."""
    return lambda answer: json.decode(answer.body, kind)


def nothing(_answer: Answer) -> None:
    """Parse an answer whose status says it all."""


def media_type_of(answer: Answer) -> str:
    """The media type of an answer, without parameters."""
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def next_id_of(answer: Answer) -> bytes | None:
    """The id of the message behind those of an answer; None where there is none."""
    hex_id = answer.headers.get("basalt-next")
    return None if hex_id is None else bytes.fromhex(hex_id)


def joined_path(*parts: str) -> str:
    """Make a path of these parts. Each is quoted whole, so that no name leads elsewhere."""
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"a name is text, not {part!r}: {'/'.join(map(str, parts))}")
        if not part:
            raise InputError(
                f"a name is empty: {'/'.join(parts)}", field="name", hint="Names have 1 character or more."
            )
    return "".join(["/" + _quoted(part) for part in parts])


@lru_cache(NAMES_AT_HAND)
def _quoted(name: str) -> str:
    return quote(name, safe="")


def query_of(**given: bytes | str | int | None) -> Query:
    """Make query parameters of what is given, which is what is not None: bytes in hex, truth in words."""
    return tuple((name, _parameter(value)) for name, value in given.items() if value is not None)


def act_of(reason: str, by: str, *, dry_run: bool = False, force: bool = False) -> Query:
    """Make the query parameters of an operator's act, for the audit."""
    return query_of(reason=reason or None, **{"as": by or None}, dryRun=dry_run or None, force=force or None)


def id_of(transaction: TransactionInfo | str) -> str:
    """The id of a transaction that is given by its id, or as the server answered it."""
    return transaction if isinstance(transaction, str) else transaction.id


def _parameter(value: bytes | str | int) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class ClientScope:
    """A client's namespace, and its clock (milliseconds since 1970) for positions such as "-1h".

    `producers` number what it publishes; None: it does not number, and sends nothing again that may have come.
    """

    namespace: str
    now_ms: Callable[[], int]
    producers: AutomaticProducers | None = field(default=None, compare=False)
    table_facts: dict[TableScope, Any] = field(default_factory=dict, compare=False)  # what the server said of each

    def path(self, kind: str, namespace: str | None = None) -> str:
        """The path of all topics, or tables, of a namespace (None: the client's own)."""
        return joined_path("v1", "namespaces", namespace or self.namespace, kind)

    def topic(self, name: str, *, namespace: str | None = None) -> TopicScope:
        """A topic to publish to and read from. It need not exist yet, and nothing is asked of the server."""
        return TopicScope(namespace or self.namespace, name, self.now_ms, self.producers)

    def table(self, name: str, *, namespace: str | None = None) -> TableScope:
        """A table, to read what is committed. It need not exist yet, and nothing is asked of the server."""
        return TableScope(namespace or self.namespace, name)


@dataclass(frozen=True, slots=True)
class NamedScope:
    """A topic or a table, by its name in a namespace."""

    KIND: ClassVar[str]
    namespace: str
    name: str

    def path(self, *parts: str) -> str:
        """The path of it, and of what is below it."""
        return joined_path("v1", "namespaces", self.namespace, self.KIND, self.name, *parts)

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True)
class TableScope(NamedScope):
    KIND = "tables"


@dataclass(frozen=True, slots=True)
class TopicScope(NamedScope):
    KIND = "topics"
    now_ms: Callable[[], int]
    producers: AutomaticProducers | None = field(default=None, compare=False, repr=False)
