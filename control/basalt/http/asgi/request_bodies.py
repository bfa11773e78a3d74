"""Reading request bodies: which content type, which content coding, how many bytes, and all of them or none.

A body that is too large is refused before it is read on; one that stops half-way ends the request with no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from basalt.errors import MalformedBodyError, RequestTimeoutError, TooLargeError, UnsupportedMediaTypeError
from basalt.http.asgi import codings
from basalt.http.asgi.requests import ClientGoneError, Request
from basalt.http.asgi.responses import AVRO, JSON

BODY_SECONDS_MAX = 60  # for all of a body: 10 MiB need 175 kB/s, and a client that sends less holds memory

MESSAGE_TYPES = (AVRO, JSON)


def content_type(request: Request, allowed: Collection[bytes]) -> bytes | None:
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


def required_type(request: Request, allowed: Collection[bytes]) -> bytes:
    """As `content_type`, where the answer's format depends on it, so that there is no default."""
    media_type = content_type(request, allowed)
    if media_type is None:
        raise unsupported("the request has no Content-Type", allowed)
    return media_type


async def read_body(request: Request) -> bytes:
    """The whole body without its content coding, `http.body_bytes_max` bytes at most before and after decoding.

    Raises `TooLargeError`, `UnsupportedMediaTypeError` (coding), `MalformedBodyError` (coded data),
    `RequestTimeoutError`, and `ClientGoneError` when the connection closes before the end.
    """
    bytes_max = request.services.settings.http.body_bytes_max
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


async def read_nothing(request: Request) -> None:
    """For calls without a body: `MalformedBodyError` when there is one, which would be ignored otherwise."""
    if b"content-length" in request.headers or b"transfer-encoding" in request.headers:
        body = await read_body(request)
        if body:
            raise MalformedBodyError(
                f"this call takes no body, and {len(body)} bytes came with it", hint="Leave the body out."
            )


async def _read_on(request: Request, first: bytes, bytes_max: int) -> bytes:
    parts = [first]
    size = len(first)
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestTimeoutError(
            f"only {size} bytes of the body came within {BODY_SECONDS_MAX} s",
            hint="Nothing was done; send the request again.",
        ) from None


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


def accepts(request: Request, media_type: bytes) -> bool:
    """Whether the Accept header names this very type; a wildcard does not ask for it."""
    accept = request.headers.get(b"accept")
    if accept is None or media_type not in accept.lower():
        return False
    items = (item.partition(";") for item in accept.decode("latin-1").lower().split(","))
    wanted = media_type.decode("ascii")
    return any(name.strip() == wanted and codings.quality_of(parameters) > 0 for name, _, parameters in items)


def accepted_type(request: Request, offered: Sequence[bytes]) -> bytes:
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
