"""Producers of a topic: the numbers that a publish gives its messages, in headers; and the calls on named producers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2s

from basalt.access.needs import needs
from basalt.api.bodies.messages import LONG_MAX
from basalt.api.bodies.topics import OpenedProducer, OpenProducer, ProducerInfo, ProducerList
from basalt.catalog.topics import TopicName
from basalt.errors import (
    BusyError,
    InputError,
    ProducerFencedError,
    ProducerNotFoundError,
    ProducerUnknownError,
    RequestReusedError,
    SequenceGapError,
)
from basalt.http.asgi.requests import Headers
from basalt.http.routes.route_table import EXISTING, TOPIC, TOPIC_PATH, Header, Request, RouteTable
from basalt.http.routes.schemas import PRODUCER_NAME
from basalt.messaging.producers import ProducerState, Sequenced
from basalt.operations.audit import is_line
from basalt_engine.messages import PRODUCER_BYTES_MAX

PRODUCERS_PATH = TOPIC_PATH + "/producers"
LONG_DIGITS = 19  # of the largest number; shorter ones need no look at their value
KEY_CHARS_MAX = 100  # of an idempotency key; with what tells the topic it is a request id

_PRODUCER, _SEQUENCE, _AFTER, _EPOCH = (
    b"basalt-producer", b"basalt-sequence", b"basalt-sequence-after", b"basalt-producer-epoch",
)  # fmt: skip
_KEY = b"idempotency-key"
_STORED = b"basalt-stored-before"
_NUMBERING = frozenset((_PRODUCER, _SEQUENCE, _AFTER, _EPOCH, _KEY))
_PRINTABLE = bytes(range(ord("!"), ord("~") + 1))
_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_KEY_TEXT = re.compile(rf"[A-Za-z0-9._:-]{{1,{KEY_CHARS_MAX}}}")

_LONG = {"type": "integer", "minimum": 0, "maximum": LONG_MAX}
NUMBERING_HEADERS = (
    Header(
        "Basalt-Producer", PRODUCER_NAME, "who numbers the messages, so that a publish that is sent again is there once"
    ),
    Header("Basalt-Sequence", _LONG, "the number of the first message; the others count up"),
    Header("Basalt-Sequence-After", {**_LONG, "minimum": -1}, "the producer's last number before; one less by default"),
    Header("Basalt-Producer-Epoch", _LONG, "the epoch of a named producer"),
    Header(
        "Idempotency-Key",
        {"type": "string", "pattern": f"^{_KEY_TEXT.pattern}$"},
        "make it a one-shot transaction that is done once, however often it is sent with this key",
    ),
)

NUMBERED_ERRORS = (SequenceGapError, ProducerUnknownError, ProducerFencedError, RequestReusedError, BusyError)
DUPLICATE: Headers = [(b"basalt-duplicate", b"true")]  # all of it was there already
STORED_HEADERS = (
    Header(
        "Basalt-Stored-Before",
        _LONG,
        "how many messages the write pointer has stored in the topic, and not published, before these",
    ),
)

route = RouteTable("producers")


def is_numbered(request: Request) -> bool:
    """Tell whether the request has any header that makes it more than a plain publish."""
    return not _NUMBERING.isdisjoint(request.headers)


def is_name(producer: bytes) -> bool:
    """Tell whether a producer may have this name."""
    return 0 < len(producer) <= PRODUCER_BYTES_MAX and not producer.translate(None, _PRINTABLE)


def sequenced(request: Request, count: int) -> Sequenced | None:
    """The numbers of a publish of so many messages, as its headers have them; None where it has none. `InputError`."""
    headers = request.headers
    given = headers.get(_SEQUENCE)
    is_known = given == b"" and request.head.found is not None
    if given == b"":  # the head was known, and this cut out
        given = request.exchange.sequence
    if is_known and request.head.found.kept is not None and given is not None and len(given) < LONG_DIGITS:
        producer, epoch = request.head.found.kept
        first = int(given)
        return Sequenced(producer, first, first - 1, epoch)
    read = _read(headers, given, count)
    if is_known and read is not None and _AFTER not in headers:
        request.head.found.kept = (read.producer, read.epoch)
    return read


def _read(headers: Mapping[bytes, bytes], given: bytes | None, count: int) -> Sequenced | None:
    producer = headers.get(_PRODUCER)
    if producer is None:
        stray = next((name for name in (_SEQUENCE, _AFTER, _EPOCH) if name in headers), None)
        if stray is not None:
            raise InputError(
                f"the header {_shown(stray)} needs a Basalt-Producer, and there is none",
                field="Basalt-Producer",
                hint="Name the producer that numbers the messages.",
            )
        return None
    if not is_name(producer):
        raise InputError(
            "the header Basalt-Producer is not 1 to 64 printable ASCII characters without blanks",
            field="Basalt-Producer",
        )
    if given is None:
        raise InputError(
            "a Basalt-Producer needs a Basalt-Sequence: the number of the first message",
            field="Basalt-Sequence",
            hint="Begin with 0, and count up message by message.",
        )
    first = (
        int(given)
        if given.isdigit() and len(given) < LONG_DIGITS
        else _number(_SEQUENCE, given, 0, LONG_MAX - count + 1)
    )
    after = headers.get(_AFTER)
    epoch = headers.get(_EPOCH)
    return Sequenced(
        producer,
        first,
        first - 1 if after is None else _number(_AFTER, after, -1, first - 1),
        0 if epoch is None else _number(_EPOCH, epoch, 1, LONG_MAX),
    )


def key_of(request: Request, title: TopicName) -> str | None:
    """The request id of the one-shot that the publish is to be, by its Idempotency-Key; None where it has none. `InputError`.

    One key at two topics is two publishes.
    """
    given = request.headers.get(_KEY)
    if given is None:
        return None
    text = given.decode("latin-1")
    if len(text) > 1 and text[0] == text[-1] == '"':  # as the draft of the header writes it
        text = text[1:-1]
    if _KEY_TEXT.fullmatch(text) is None:
        raise InputError(
            f"the header Idempotency-Key is not 1 to {KEY_CHARS_MAX} letters, digits, '.', '_', ':' or '-'",
            field="Idempotency-Key",
        )
    if _PRODUCER in request.headers:
        raise InputError(
            "the call has an Idempotency-Key and a Basalt-Producer",
            field="Idempotency-Key",
            hint="Either of them makes it safe to send again; leave one out.",
        )
    topic = blake2s(f"{title.namespace}:{title.name}".encode(), digest_size=6).hexdigest()
    return f"publish:{topic}:{text}"


def refuse_under_transaction(request: Request) -> None:
    """`InputError` where a call under a write pointer has numbers or a key."""
    name = next((name for name in sorted(_NUMBERING) if name in request.headers), None)
    if name is not None:
        raise InputError(
            f"the call is under a write pointer, and takes no {_shown(name)}",
            field=_shown(name),
            hint="Store with Basalt-Stored-Before, or send the messages as Work with the commit: a commit is done once.",
        )


def stored_before(request: Request) -> int | None:
    """The number of messages that a store follows, as its header says; None where it says nothing. `InputError`."""
    refuse_under_transaction(request)
    given = request.headers.get(_STORED)
    return None if given is None else _number(_STORED, given, 0, LONG_MAX)


def _number(name: bytes, given: bytes, low: int, high: int) -> int:
    number = int(given) if _NUMBER.fullmatch(given) is not None else None
    if number is None or not low <= number <= high:
        shown = given[:30].decode("latin-1")
        raise InputError(
            f"the header {_shown(name)} is {shown!r}; it must be a whole number from {low} to {high}",
            field=_shown(name),
        )
    return number


def _shown(name: bytes) -> str:
    return "-".join(part.capitalize() for part in name.decode("ascii").split("-"))


@route("POST", PRODUCERS_PATH + "/{producer}", needs("write", TOPIC), errors=(*EXISTING, BusyError))
async def open_producer(request: Request, asked: OpenProducer) -> OpenedProducer:
    """Be the one that sends as a named producer.

    Another run raises the epoch, and whoever sends with the earlier one is fenced; the same run again gets the same answer.
    """
    if not asked.run or not is_line(asked.run):
        raise InputError("the run is not one line of 1 to 200 printable characters", field="run")
    opened = await request.services.producers.open(request.topic, _named(request), asked.run)
    return OpenedProducer(opened.epoch, opened.last)


@route("GET", PRODUCERS_PATH, needs("observe", TOPIC), errors=EXISTING)
async def list_producers(request: Request) -> ProducerList:
    """The producers that a topic knows, named ones and others."""
    found = await request.services.producers.of_topic(request.topic)
    return ProducerList(tuple(map(_info, found)))


@route("GET", PRODUCERS_PATH + "/{producer}", needs("observe", TOPIC), errors=(*EXISTING, ProducerNotFoundError))
async def describe_producer(request: Request) -> ProducerInfo:
    """One producer of a topic."""
    return _info(await request.services.producers.find(request.topic, _named(request)))


@route("DELETE", PRODUCERS_PATH + "/{producer}", needs("manage", TOPIC), errors=(*EXISTING, ProducerNotFoundError))
async def delete_producer(request: Request) -> None:
    """Forget a producer of a topic: what it sends from then on is refused, unless it begins anew."""
    await request.services.producers.delete(request.topic, _named(request))


def _named(request: Request) -> str:
    name = request.path["producer"]
    if not name.isascii() or not is_name(name.encode("ascii")):
        raise InputError("a producer's name is 1 to 64 printable ASCII characters without blanks", field="producer")
    return name


def _info(producer: ProducerState) -> ProducerInfo:
    return ProducerInfo(producer.name, producer.last, producer.epoch, producer.run or None, producer.used_ms)
