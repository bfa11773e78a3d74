"""The messages that a client may publish: payloads, records that carry more, or both. All else is refused with the way out.

They are cut into runs of as many messages as one request carries. A run of payloads alone is sent as such; where one message
carries more, all of its run are sent as records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypedDict, TypeGuard

from msgspec import Struct

from basalt.api.bodies import messages as bodies
from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, Buffer

BODY_BYTES_MAX = 10 * 1024 * 1024  # what a server takes unless it is told otherwise (http.body_bytes_max)
ENTRY_BYTES_MAX = 5  # the length in front of a message, of up to 16 GiB
REQUEST_BYTES_MAX = 2_048  # all of a body that is not messages: a pointer, counts, names of up to 255 characters
RECORD_BYTES_MAX = 40  # of a record beside its payload, key and headers: lengths, union branches, two times
_NUMBER_TYPES = (int, float, complex)

Text: TypeAlias = Buffer | str
HeadersLike: TypeAlias = Mapping[str, Text] | Iterable[tuple[str, Text]]


class RecordIn(Struct, frozen=True):
    """One message to publish with what it is to carry. Text is sent as UTF-8; `ttl_ms` counts from publishing.

    `headers` are a mapping, or pairs, of which several may have one name.
    """

    payload: Text
    key: Text | None = None
    headers: HeadersLike = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None


Payload: TypeAlias = Text | RecordIn
Payloads: TypeAlias = Payload | Iterable[Payload]
Outgoing: TypeAlias = Buffer | bodies.RecordIn  # a message as it is sent


class Beside(Struct, frozen=True):
    """The key, headers and times that each message of a call carries beside its payload."""

    key: Text | None = None
    headers: HeadersLike | None = None
    event_time_ms: int | None = None
    ttl_ms: int | None = None


class PublishingOptions(TypedDict, total=False):
    """The options of a publish to a topic that is named: what each of its messages carries, and the namespace."""

    key: Text | None
    headers: HeadersLike | None
    event_time_ms: int | None
    ttl_ms: int | None
    namespace: str | None


_NOTHING = Beside()


def each_payload(given: Text | Iterable[Text]) -> Iterator[Buffer]:
    """The payloads one by one, text as UTF-8. TypeError names the first that is neither bytes nor text."""
    for message in _each(given):
        yield message if type(message) is bytes else _payload(message)


def each_message(given: Payloads, beside: Beside = _NOTHING) -> Iterator[Outgoing]:
    """The messages one by one, as they are sent. TypeError names the first that is none."""
    if beside == _NOTHING:
        for message in _each(given):
            if type(message) is bytes:
                yield message
            else:
                yield record_of(message) if isinstance(message, RecordIn) else _payload(message)
        return
    headers = () if beside.headers is None else _headers(beside.headers)
    for message in _each(given):
        if isinstance(message, RecordIn):
            raise TypeError("a RecordIn says itself what it carries: give key, headers and times to it, or to the call")
        yield record_of(RecordIn(_payload(message), beside.key, headers, beside.event_time_ms, beside.ttl_ms))


def record_of(record: RecordIn) -> bodies.RecordIn:
    """The record as it is sent; TypeError names what is of a wrong type."""
    for name in ("event_time_ms", "ttl_ms"):
        value = getattr(record, name)
        if value is not None and type(value) is not int:
            raise TypeError(f"{name} is {_a(value)}; give whole milliseconds, such as int(time.time() * 1000)")
    key = None if record.key is None else _bytes(record.key, "a key")
    return bodies.RecordIn(_payload(record.payload), key, _headers(record.headers), record.event_time_ms, record.ttl_ms)


def json_payload(content: object) -> bytes:
    """Any value as JSON in UTF-8. TypeError, or ValueError for NaN, where JSON has no such value."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def chunks(
    messages: Iterable[Outgoing], *, messages_max: int = PUBLISH_MESSAGES_MAX, body_bytes_max: int = BODY_BYTES_MAX
) -> Iterator[list[Outgoing]]:
    """Runs of messages, each as long as one request may carry; none for no messages.

    A message over the limit makes a run of its own, which the server refuses by name of its limit.
    """
    room_bytes = body_bytes_max - REQUEST_BYTES_MAX
    run: list[Outgoing] = []
    run_bytes = 0
    for message in messages:
        message_bytes = (len(message) if type(message) is bytes else size_bytes(message)) + ENTRY_BYTES_MAX
        if run and (run_bytes + message_bytes > room_bytes or len(run) == messages_max):
            yield run
            run, run_bytes = [], 0
        run.append(message)
        run_bytes += message_bytes
    if run:
        yield run


def are_plain(run: Sequence[Outgoing]) -> TypeGuard[Sequence[Buffer]]:
    """True if no message of the run carries more than a payload."""
    return bodies.RecordIn not in set(map(type, run))


def as_records(run: Sequence[Outgoing]) -> list[bodies.RecordIn]:
    """All messages of the run as records."""
    return [message if isinstance(message, bodies.RecordIn) else bodies.RecordIn(message) for message in run]


def size_bytes(message: Outgoing) -> int:
    """About the bytes that a message takes in a request; of a record never fewer than it takes."""
    if not isinstance(message, bodies.RecordIn):
        return len(message)
    key_bytes = 0 if message.key is None else len(message.key)
    headers_bytes = sum(4 * len(name) + len(value) + 2 * ENTRY_BYTES_MAX for name, value in message.headers)
    return len(message.payload) + key_bytes + headers_bytes + RECORD_BYTES_MAX


def _each(given: Any) -> Iterable[Payload]:
    """The messages that were given, whether it was one or any number of them."""
    if isinstance(given, str | bytes | bytearray | memoryview | RecordIn):
        return (given,)
    if isinstance(given, Mapping):
        raise TypeError(
            f"{_a(given)} is no message, and its keys alone would be published: publish_json(obj) sends it as one message of"
            " JSON, publish(list(obj.values())) its values"
        )
    if isinstance(given, AbstractSet):
        raise TypeError(f"{_a(given)} has no order, and messages have: publish a list of it, such as sorted(obj)")
    if not isinstance(given, Iterable):
        raise _no_message(given)
    return given


def _payload(given: object) -> Buffer:
    if isinstance(given, str | bytes | bytearray | memoryview):
        return _bytes(given, "a message")
    raise _no_message(given)


def _bytes(given: object, what: str) -> Buffer:
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, memoryview):
        return given if given.format == "B" and given.ndim == 1 else given.cast("B")
    if isinstance(given, bytes | bytearray):
        return given
    raise TypeError(f"{what} is bytes or text, not {_a(given)}; encode it first")


def _headers(given: Any) -> tuple[tuple[str, Buffer], ...]:
    pairs = given.items() if isinstance(given, Mapping) else given
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f'headers are a mapping of names to values, such as {{"trace": "abc"}}, not {_a(given)}')
    headers = list[tuple[str, Buffer]]()
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is text, not {_a(name)}")
        headers.append((name, _bytes(value, f"header {name}")))
    return tuple(headers)


def _no_message(given: object) -> TypeError:
    if given is None:
        return TypeError('None is no message: leave it out, or publish b"" for a message without bytes')
    if isinstance(given, bool):
        return TypeError(f"{given} is no message: publish_json({given}) sends it as JSON")
    if isinstance(given, _NUMBER_TYPES):
        return TypeError(f"{_a(given)} is no message: publish its text, str({given!r}), or bytes of your own format")
    if isinstance(given, Iterable) and not isinstance(given, RecordIn):
        return TypeError(
            f"a message is bytes or text, not {_a(given)}: publish_json(obj) sends one object as JSON, and several are"
            " publish(json.dumps(obj) for obj in objects)"
        )
    return TypeError(f"a message is bytes or text, not {_a(given)}; encode it first, as JSON say")


def _a(value: object) -> str:
    """The type of a value with its article: a dict, an int."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
