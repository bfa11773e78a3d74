"""Reading request bodies: which content type, which content coding, how many bytes, and all of them or none.

A body that is too large is refused before it is read on; one that stops half-way ends the request with no effect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar, cast

import msgspec

from basalt.api.codecs.json_bodies import parse_json
from basalt.errors import MalformedBodyError, RequestTimeoutError, TooLargeError, UnsupportedMediaTypeError
from basalt.http.asgi import codings
from basalt.http.asgi.requests import ClientGoneError, RequestHead
from basalt.http.asgi.responses import AVRO, JSON

BODY_SECONDS_MAX = 60  # for all of a body: 10 MiB need 175 kB/s, and a client that sends less holds memory

MESSAGE_TYPES = (AVRO, JSON)

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_FIELD_CHARS_MAX = 100


def content_type(request: RequestHead, allowed: Collection[bytes]) -> bytes | None:
    """The body's media type, one of `allowed` in lower case without parameters; None when the request names none."""
    given = request.headers.get(b"content-type")
    if given is None or given in allowed:
        return given
    media_type = given.partition(b";")[0].strip().lower()
    if media_type in allowed:
        return media_type
    if media_type == b"":
        return None
    raise unsupported(f"content type {media_type[:60].decode('latin-1')!r} is not one that this call reads", allowed)


def required_type(request: RequestHead, allowed: Collection[bytes]) -> bytes:
    """As `content_type`, where the answer's format depends on it, so that there is no default."""
    media_type = content_type(request, allowed)
    if media_type is None:
        raise unsupported("the request has no Content-Type", allowed)
    return media_type


async def read_body(request: RequestHead) -> bytes:
    """The whole body without its content coding, `http.body_bytes_max` bytes at most before and after decoding.

    Raises `TooLargeError`, `UnsupportedMediaTypeError` (coding), `MalformedBodyError` (coded data),
    `RequestTimeoutError`, and `ClientGoneError` when the connection closes before the end.
    """
    bytes_max = request.bodies.bytes_max
    declared = request.headers.get(b"content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > bytes_max:
        raise _too_large(bytes_max)
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    if message.get("more_body", False):
        body = await _read_on(request, body, bytes_max)
    coding = request.headers.get(b"content-encoding")
    if coding is None:
        return body
    return await _decoded(coding.decode("latin-1").strip().lower(), body, bytes_max)


async def read_nothing(request: RequestHead) -> None:
    """For calls without a body: `MalformedBodyError` when there is one, which would be ignored otherwise."""
    if b"content-length" in request.headers or b"transfer-encoding" in request.headers:
        body = await read_body(request)
        if body:
            raise MalformedBodyError(
                f"this call takes no body, and {len(body)} bytes came with it", hint="Leave the body out."
            )


async def _read_on(request: RequestHead, first: bytes, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    part, size = first, 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            while True:
                if size + len(part) > bytes_max:
                    raise _too_large(bytes_max)
                request.bodies.take(len(part), size)
                size += len(part)
                parts.append(part)
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                if not message.get("more_body", False):
                    if size + len(part) > bytes_max:
                        raise _too_large(bytes_max)
                    return b"".join((*parts, part))
    except TimeoutError:
        raise RequestTimeoutError(
            f"only {size} bytes of the body came within {BODY_SECONDS_MAX} s",
            hint="Nothing was done; send the request again.",
        ) from None
    finally:
        request.bodies.give_back(size)


async def _decoded(coding: str, body: bytes, bytes_max: int) -> bytes:
    if coding in ("", "identity"):
        return body
    parts: list[bytes] = []
    for part in codings.decode(coding, body, bytes_max):
        if parts:
            await asyncio.sleep(0)  # a step takes time: others go in between
        parts.append(part)
    return b"".join(parts)


def _too_large(bytes_max: int) -> TooLargeError:
    return TooLargeError(
        f"the request body is more than {bytes_max} bytes",
        hint="Send it in several requests, or raise http.body_bytes_max.",
    )


def unsupported(message: str, allowed: Collection[bytes]) -> UnsupportedMediaTypeError:
    """The refusal that names the content types which the call reads."""
    types = " or ".join(media_type.decode("ascii") for media_type in allowed)
    return UnsupportedMediaTypeError(message, field="Content-Type", hint=f"Send {types}.")


def accepts(request: RequestHead, media_type: bytes) -> bool:
    """Tell whether the Accept header names this very type; a wildcard does not ask for it."""
    accept = request.headers.get(b"accept")
    if accept is None or media_type not in accept.lower():
        return False
    items = (item.partition(";") for item in accept.decode("latin-1").lower().split(","))
    wanted = media_type.decode("ascii")
    return any(name.strip() == wanted and codings.quality_of(parameters) > 0 for name, _, parameters in items)


def accepted_type(request: RequestHead, offered: Sequence[bytes]) -> bytes:
    """The content type for an answer: the best of `offered` by the Accept header; the first one when none fits."""
    accept = request.headers.get(b"accept")
    if accept is None:
        return offered[0]
    best, best_quality = offered[0], 0.0
    for item in accept.decode("latin-1").split(","):
        name, _, parameters = item.partition(";")
        quality = codings.quality_of(parameters)
        media_type = name.strip().lower().encode("latin-1")
        if media_type in offered and quality > best_quality:
            best, best_quality = media_type, quality
    return best


async def read_json(request: RequestHead, kind: type[T]) -> T:
    """The body as a value of `kind`, a msgspec type. `MalformedBodyError` says what is wrong, and at which field."""
    content_type(request, (JSON,))
    return convert_json(parse_json(await read_body(request)), kind)


async def read_optional_json(request: RequestHead, kind: Callable[[], T]) -> T:
    """As `read_json`; a body that is empty, whatever its type, stands for `kind` with its defaults."""
    body = await read_body(request)
    if not body:
        return kind()
    content_type(request, (JSON,))
    return convert_json(parse_json(body), cast("type[T]", kind))


async def read_no_members(request: RequestHead) -> None:
    """For calls that need no body: none, whatever its content type, or an empty JSON object, as some clients send."""
    body = await read_body(request)
    if not body:
        return
    content_type(request, (JSON,))
    if parse_json(body) != {}:
        raise MalformedBodyError("this call takes no body", hint="Leave the body out.")


def convert_json(value: object, kind: type[T]) -> T:
    """The parsed value as one of `kind`; nothing is coerced."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place, unknown = _PLACE.search(text), _UNKNOWN.search(text)
        field = place[1] if place else unknown[1] if unknown else None
        message = _PLACE.sub("", text)
        shown = f"{field[:_FIELD_CHARS_MAX]}: {message}" if field else f"the body: {message}"
        raise MalformedBodyError(shown, field=field[:_FIELD_CHARS_MAX] if field else None) from None
    except UnicodeEncodeError:  # JSON can write it, and no text can hold it
        raise MalformedBodyError("the body has half of a surrogate pair where no text is expected") from None
