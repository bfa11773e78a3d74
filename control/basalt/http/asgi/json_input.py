"""JSON bodies of the control calls, read as strictly as the messaging ones: one type, no unknown or doubled names."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from basalt.api.codecs.json_values import parse_json
from basalt.errors import MalformedBodyError
from basalt.http.asgi.request_bodies import content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_FIELD_CHARS_MAX = 100


def decode_json(body: bytes, kind: type[T]) -> T:
    """The body as a value of `kind` (a msgspec type). `MalformedBodyError` says what is wrong, and at which field."""
    return convert_json(parse_json(body), kind)


async def read_no_members(request: Request) -> None:
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
