"""One request as the calls see it: id, path and query parameters, headers, content types; and its body, all of it or none.

A path is taken apart after decoding, so what decodes to a separator is refused before that can confuse anyone. A body that
is too large is refused before it is read on; one that stops half-way ends the request with no effect.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from basalt import errors
from basalt.access.proofs.certificate import ClientCertificate
from basalt.api.bodies import json
from basalt.api.bodies.messages import Buffer
from basalt.api.codecs.json_bodies import parse_json
from basalt.http.asgi import content_encoding
from basalt_engine.clock import Stages

JSON = b"application/json"
AVRO = b"avro/binary"

URI_BYTES_MAX = 8_000  # what RFC 9110 asks servers to take at least; names and parameters together need far less
BODY_SECONDS_MAX = 60  # for all of a body: 10 MiB need 175 kB/s, and a client that sends less holds memory
HALF_RECEIVED_BYTES_MAX = 256 << 20  # bodies under way: 25 of the largest size, or thousands of usual ones
HEADERS_AT_HAND = 64  # different Accept headers that are not taken apart again; clients send a few
REQUEST_ID_CHARS_MAX = 128  # room for a UUID with a prefix; ids are kept in memory and in the log

Value = str | int | bool
Headers = list[tuple[bytes, bytes]]
Parts = list[Buffer] | Iterator[Buffer] | AsyncIterator[Buffer]  # the last ones come as there is something to say
NO_HEADERS: Headers = []  # nobody adds to it

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]+")
_ID_PREFIX = secrets.token_hex(4)
_ID_NUMBERS = itertools.count(1)
_PLACE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_FIELD_CHARS_MAX = 100
# Headers that say one thing: of two, another reader of the request (a proxy, a check) may take the other one.
_SINGLE = frozenset(
    {
        b"authorization", b"content-encoding", b"content-length", b"content-type", b"cookie", b"expect", b"host",
        b"idempotency-key", b"if-match", b"origin", b"sec-fetch-site", b"transfer-encoding",
        b"access-control-request-method",
    }
)  # fmt: skip
_LISTS = frozenset({b"accept", b"accept-encoding"})  # of those that are read; of any other the last one counts
_OUR_HEADERS = b"basalt-"
# The names of secrets, alone or behind other words (access_token, x-api-key). Any of their letters may be percent-encoded,
# and what stands around a name too, by a client that encodes too much. The bound keeps the search linear.
_SECRET_NAME = "|".join(
    "".join(f"(?:{letter}|%{ord(letter):x}|%{ord(letter.upper()):x})" for letter in name)
    for name in ("authorization", "key", "password", "secret", "token")
)
_SECRET = re.compile(
    rf"""((?: ^ | [?&;] | %3f | %26 | %3b) (?: [^&;=?\#]{{0,40}} (?: [-_.+\s] | %2[0de] | %5f) )?
    (?:{_SECRET_NAME}) (?: [+\s] | %20)* (?: = | %3d)) [^&;\#]*""",
    re.IGNORECASE | re.VERBOSE,
)


class BodyBudget:
    """The bytes that request bodies may take in memory before they are whole: one body, and all connections together."""

    def __init__(self, bytes_max: int, total_bytes_max: int = HALF_RECEIVED_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._total_bytes_max = total_bytes_max
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """The bytes of the bodies that are not whole yet."""
        return self._taken_bytes

    @property
    def total_bytes_max(self) -> int:
        """The most that these may be together."""
        return self._total_bytes_max

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Take memory for the next part of a body that holds `held_bytes` already.

        `BusyError` when all bodies together would hold too much. A body that is alone always has its place.
        """
        if self._taken_bytes > held_bytes and self._taken_bytes + size_bytes > self._total_bytes_max:
            raise errors.BusyError(
                f"request bodies that are not whole yet hold {self._taken_bytes} bytes; the limit is"
                f" {self._total_bytes_max}",
                hint="Send the request again after Retry-After, or in smaller ones.",
            )
        self._taken_bytes += size_bytes

    def give_back(self, held_bytes: int) -> None:
        """A body is whole, or given up."""
        self._taken_bytes -= held_bytes


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete, or before its answer was."""


class Head:
    """A request's line and headers as they were parsed. Requests that begin alike share one, so nobody changes it.

    `found` and `identified` are for the application: what it found for the target, with its query read, and who calls. `cors` are the headers that its answers
    have for the origin that it names; `proving` those that prove this server to who has sent a ticket. `passed` is what another server has proved of who sends
    it, `passing` what it is passed on as, `place` the server that answers it.
    """

    __slots__ = (
        "authority", "cors", "found", "headers", "identified", "method", "passed", "passing", "path", "place", "proving", "query_string", "raw_path", "repeated",
        "version",
    )  # fmt: skip

    def __init__(
        self, method: str, path: str, raw_path: bytes, query_string: bytes, headers: dict[bytes, bytes],
        version: str = "1.1", authority: bytes | None = None, repeated: tuple[bytes, ...] = (),
    ) -> None:  # fmt: skip
        self.method = method
        self.path = path  # decoded
        self.raw_path = raw_path
        self.query_string = query_string
        self.headers = headers
        self.version = version  # of HTTP
        self.authority = authority  # that an absolute target names
        self.repeated = repeated  # headers that are there twice and are no lists
        self.cors: Headers = NO_HEADERS
        self.proving: Headers = NO_HEADERS
        self.found: Any = None
        self.identified: Any = None
        self.passed: Any = None
        self.passing: Any = None
        self.place: Any = None


class Exchange(Protocol):
    """The way to the client of one request: over ASGI, or over a connection of our own protocol."""

    @property
    def client(self) -> str | None:
        """The client's address; None where it has none."""

    @property
    def internal(self) -> bool:
        """True for a call from inside this process, which came over no socket."""

    @property
    def is_admitted(self) -> bool:
        """True for a call that another server of the same store has let in, by its own names, and passed on."""

    @property
    def id_is_clients(self) -> bool:
        """False for a call that was passed on under an id which that server has made: it means no repetition."""

    @property
    def scheme(self) -> str:
        """`http` or `https`, as the client asked."""

    @property
    def certificate(self) -> ClientCertificate | None:
        """The certificate by which the client proved at the TLS handshake who it is; None where there is none."""

    @property
    def end_point_hash(self) -> bytes | None:
        """The hash of the server's certificate (`tls-server-end-point`, RFC 5929), which ties a ticket to its connection; None without TLS."""

    @property
    def sequence(self) -> bytes | None:
        """The header Basalt-Sequence, where the request's head was known: that one has it empty."""

    async def receive(self) -> tuple[bytes, bool]:
        """Wait for the next part of the body, and learn whether more follow. `ClientGoneError`."""

    async def until_gone(self) -> None:
        """Wait until the client has closed the connection. Only after the body was read."""

    async def send(self, request: RequestHead, status: int, headers: Headers, parts: Parts) -> None:
        """Send the whole answer as fast as the client takes it. A list is sent with its length, which the headers have."""


class PromptExchange(Exchange, Protocol):
    """An exchange over which a small answer can be sent without waiting."""

    def send_now(self, request: RequestHead, status: int, headers: Headers, parts: list[Buffer]) -> None:
        """Send the whole answer, which is small."""

    def give_again(self, body: bytes) -> None:
        """Have `receive` give this body, which is all of it, though somebody has taken it before."""

    def break_off(self) -> None:
        """End the connection: there is no answer, for which the client would wait."""


class RequestHead:
    """A request whose body is not read yet, and (for the log and the metrics) what was answered.

    `id` names the request in answers and logs; `client_id` is the same when the client chose it, else None.
    """

    __slots__ = (
        "bodies", "client_id", "exchange", "head", "headers", "id", "is_head", "path", "query", "route", "sent_bytes",
        "stages", "started_ms", "status",
    )  # fmt: skip

    def __init__(
        self, head: Head, exchange: Exchange, started_ms: float, bodies: BodyBudget, client_id: str | None = None
    ) -> None:
        self.head = head
        self.exchange = exchange
        self.started_ms = started_ms
        self.stages = Stages(started_ms)  # what it waits for
        self.bodies = bodies
        self.headers = head.headers
        self.path: dict[str, str] = {}
        self.query: dict[str, Value] = {}
        self.route = ""
        self.is_head = head.method == "HEAD"
        self.status = 0
        self.sent_bytes = 0
        self.id = client_id or f"{_ID_PREFIX}-{next(_ID_NUMBERS):x}"
        self.client_id = client_id if client_id is None or exchange.id_is_clients else None

    def check(self) -> None:
        """Refuse what no call could mean: a header that is there twice, an over-long or ambiguous target, a bad request id."""
        for repeated in self.head.repeated:
            if repeated in _SINGLE or repeated.startswith(_OUR_HEADERS):
                raise there_twice(repeated)
        raw_path = self.head.raw_path
        length = len(raw_path) + len(self.head.query_string)
        if length > URI_BYTES_MAX:
            raise errors.UriTooLongError(
                f"the path and query are {length} bytes long; the limit is {URI_BYTES_MAX}",
                hint="Shorten the names or the parameters.",
            )
        if b"%" in raw_path:
            unquoted(raw_path, "path", "names")
            slash = re.search(rb"[^/]*(%2[fF]|%5[cC])[^/]*", raw_path)
            if slash is not None:
                raise errors.InputError(
                    f"the path has an encoded slash or backslash in {without_secrets(slash[0].decode('ascii', 'replace'))[:80]!r}",
                    field="path",
                    hint="No name may have one.",
                )
        given = self.headers.get(b"basalt-request-id")
        if given is not None:
            self.id = request_id(given)
            self.client_id = self.id if self.exchange.id_is_clients else None

    def text(self, name: str) -> str | None:
        """A query parameter that the call declares as text, or None when it was not given."""
        value = self.query.get(name)
        assert value is None or isinstance(value, str)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A query parameter that the call declares as a flag."""
        value = self.query.get(name, default)
        assert isinstance(value, bool)
        return value

    def integer(self, name: str) -> int | None:
        """A query parameter that the call declares as a number, or None when it was not given."""
        value = self.query.get(name)
        assert value is None or isinstance(value, int)
        return value

    def content_type(self, allowed: Collection[bytes]) -> bytes | None:
        """The body's media type, one of `allowed` in lower case without parameters; None when the request names none."""
        given = self.headers.get(b"content-type")
        if given is None or given in allowed:
            return given
        media_type = given.partition(b";")[0].strip().lower()
        if media_type in allowed:
            return media_type
        if media_type == b"":
            return None
        shown = media_type[:60].decode("latin-1")
        raise _unsupported(f"content type {shown!r} is not one that this call reads", allowed)

    def required_type(self, allowed: Collection[bytes]) -> bytes:
        """As `content_type`, where the answer's format depends on it, so that there is no default."""
        media_type = self.content_type(allowed)
        if media_type is None:
            raise _unsupported("the request has no Content-Type", allowed)
        return media_type

    def accepts(self, media_type: bytes) -> bool:
        """Tell whether the Accept header names this very type; a wildcard does not ask for it."""
        accept = self.headers.get(b"accept")
        if accept is None or media_type not in accept.lower():
            return False
        return weights(accept).get(media_type, 0.0) > 0

    def accepted_type(self, offered: Sequence[bytes]) -> bytes:
        """The content type for an answer: the best of `offered` by the Accept header; the first one when none fits."""
        wanted = weights(self.headers.get(b"accept", b""))
        fitting = (media_type for media_type, weight in wanted.items() if weight and media_type in offered)
        return max(fitting, key=wanted.__getitem__, default=offered[0])

    async def body(self) -> bytes:
        """The whole body without its content coding, `http.body_bytes_max` bytes at most before and after decoding.

        Raises `TooLargeError`, `UnsupportedMediaTypeError` (coding), `MalformedBodyError` (coded data),
        `RequestTimeoutError`, and `ClientGoneError` when the connection closes before the end.
        """
        bytes_max = self.bodies.bytes_max
        declared = self.headers.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > bytes_max:
            raise content_encoding.too_large(bytes_max)
        body, more = await self.exchange.receive()
        if len(body) > bytes_max:
            raise content_encoding.too_large(bytes_max)
        if more:
            body = await self._read_on(body, bytes_max)
        coding = self.headers.get(b"content-encoding")
        if coding is None:
            return body
        return await _decoded(coding.decode("latin-1").strip().lower(), body, bytes_max)

    async def no_body(self) -> None:
        """Refuse a body with `MalformedBodyError`: it would be ignored otherwise."""
        if b"content-length" in self.headers or b"transfer-encoding" in self.headers:
            body = await self.body()
            if body:
                raise errors.MalformedBodyError(
                    f"this call takes no body, and {len(body)} bytes came with it", hint="Leave the body out."
                )

    async def no_members(self) -> None:
        """Take no body, whatever its content type, or an empty JSON object, as some clients send."""
        body = await self.body()
        if not body:
            return
        self.content_type((JSON,))
        if parse_json(body) != {}:
            raise errors.MalformedBodyError("this call takes no body", hint="Leave the body out.")

    async def _read_on(self, first: bytes, bytes_max: int) -> bytes:
        parts: list[bytes] = []
        part, size = first, 0
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                while True:
                    if size + len(part) > bytes_max:
                        raise content_encoding.too_large(bytes_max)
                    self.bodies.take(len(part), size)
                    size += len(part)
                    parts.append(part)
                    part, more = await self.exchange.receive()
                    if not more:
                        if size + len(part) > bytes_max:
                            raise content_encoding.too_large(bytes_max)
                        return b"".join((*parts, part))
        except TimeoutError:
            raise errors.RequestTimeoutError(
                f"only {size} bytes of the body came within {BODY_SECONDS_MAX} s",
                hint="Nothing was done; send the request again.",
            ) from None
        finally:
            self.bodies.give_back(size)


@lru_cache(HEADERS_AT_HAND)
def weights(header: bytes) -> Mapping[bytes, float]:
    """The items of an Accept or Accept-Encoding header in lower case, and the weight of each, 0 to 1."""
    items = (item.partition(b";") for item in header.lower().split(b","))
    return {name.strip(): _weight(parameters) if parameters else 1.0 for name, _, parameters in items}


def _weight(parameters: bytes) -> float:
    """The parameter q; what is no weight counts as 0."""
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def add_header(headers: dict[bytes, bytes], name: bytes, value: bytes) -> tuple[bytes, ...]:
    """Add a header to those of a head; its name, if it is there already. A list goes on with its items instead."""
    repeated: tuple[bytes, ...] = ()
    if name in headers:
        if name in _LISTS:
            value = headers[name] + b", " + value
        else:
            repeated = (name,)
    headers[name] = value
    return repeated


def there_twice(header: bytes) -> errors.InputError:
    """The refusal of a header that says one thing, and is there twice."""
    name = header[:_FIELD_CHARS_MAX].decode("latin-1").title()
    return errors.InputError(f"the header {name} is there twice", field=name, hint="Send it once.")


def without_secrets(target: str) -> str:
    """The target, or a part of one, with `***` for the values of query parameters whose names say that they are secrets."""
    return _SECRET.sub(r"\1***", target)


def unquoted(text: bytes, field: str, holding: str) -> str:
    """A part of the target without its percent signs; `InputError` names it when they mean nothing."""
    if re.search(rb"%(?![0-9A-Fa-f]{2})", text):
        raise errors.InputError(
            f"the {field} has a % that two hex digits do not follow", field=field, hint="Write % as %25."
        )
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise errors.InputError(
            f"the {field} does not decode to UTF-8", field=field, hint=f"Encode {holding} as UTF-8."
        ) from None


def convert_json(value: object, kind: Any) -> Any:
    """The parsed value as one of `kind`, a msgspec type; nothing is coerced.

    `MalformedBodyError` says what is wrong, and at which field.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=json.from_json)
    except msgspec.ValidationError as error:
        text = str(error)
        place, unknown = _PLACE.search(text), _UNKNOWN.search(text)
        field = place[1] if place else unknown[1] if unknown else None
        message = _PLACE.sub("", text)
        shown = f"{field[:_FIELD_CHARS_MAX]}: {message}" if field else f"the body: {message}"
        hint = "Its values are in /openapi.json." if message.startswith("Invalid enum value") else None
        raise errors.MalformedBodyError(shown, field=field[:_FIELD_CHARS_MAX] if field else None, hint=hint) from None
    except UnicodeEncodeError:  # JSON can write it, and no text can hold it
        raise errors.MalformedBodyError("the body has half of a surrogate pair where no text is expected") from None


async def _decoded(coding: str, body: bytes, bytes_max: int) -> bytes:
    if coding in ("", "identity"):
        return body
    parts: list[bytes] = []
    for part in content_encoding.decode(coding, body, bytes_max):
        if parts:
            await asyncio.sleep(0)  # a step takes time: others go in between
        parts.append(part)
    return b"".join(parts)


def request_id(given: bytes) -> str:
    """The client's own id for a request; `InputError` when it is none."""
    text = given.decode("latin-1")
    if len(text) > REQUEST_ID_CHARS_MAX or _REQUEST_ID.fullmatch(text) is None:
        raise errors.InputError(
            f"the header Basalt-Request-Id is not 1 to {REQUEST_ID_CHARS_MAX} letters, digits, '.', '_', ':' or '-'",
            field="Basalt-Request-Id",
            hint="Send a UUID, or leave the header out.",
        )
    return text


def _unsupported(message: str, allowed: Collection[bytes]) -> errors.UnsupportedMediaTypeError:
    types = " or ".join(media_type.decode("ascii") for media_type in allowed)
    return errors.UnsupportedMediaTypeError(message, field="Content-Type", hint=f"Send {types}.")
