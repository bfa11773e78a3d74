"""JSON of the bodies in this package: message ids are hex digits, other bytes base64, names in camel case."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MESSAGE_ID_BYTES = 20


class HexMessageId(bytes):
    """A message id: 20 bytes in Python, 40 hex digits in JSON."""

    __slots__ = ()


_HEX_ID = re.compile(f"[0-9a-fA-F]{{{2 * MESSAGE_ID_BYTES}}}")


def message_id(given: bytes | None) -> HexMessageId | None:
    """The bytes as a message id; None stays None."""
    return None if given is None else HexMessageId(given)


def encode(body: object) -> bytes:
    """The body as JSON."""
    return _ENCODER.encode(body)


def decode(encoded: bytes, kind: type[T]) -> T:
    """The body of this kind. `msgspec.MsgspecError` when it is another, or no JSON."""
    decoder = _decoders.get(kind)
    return (_decoder_of(kind) if decoder is None else decoder).decode(encoded)


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Make the decoder of this kind. One thread at a time: another that decodes a struct while msgspec takes it apart crashes the process."""
    with _making:
        return _decoders.setdefault(kind, msgspec.json.Decoder(kind, dec_hook=from_json))


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON schema of the one type that msgspec does not know."""
    return _SCHEMAS[kind]


def from_json(kind: type, value: object) -> object:
    """The value as the one type that msgspec does not know; its ValueError is told as a `ValidationError`."""
    if kind is HexMessageId and isinstance(value, str) and _HEX_ID.fullmatch(value):
        return HexMessageId.fromhex(value)
    raise ValueError(f"{value!r} is no message id of {2 * MESSAGE_ID_BYTES} hex digits")


def _to_json(value: object) -> str:
    return _TEXTS[type(value)](value)


# The one type that msgspec does not know.
_TEXTS: dict[type, Callable[[Any], str]] = {HexMessageId: HexMessageId.hex}
_SCHEMAS: dict[type, dict[str, Any]] = {
    HexMessageId: {"type": "string", "pattern": f"^[0-9a-f]{{{2 * MESSAGE_ID_BYTES}}}$"}
}
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()
_ENCODER = msgspec.json.Encoder(enc_hook=_to_json)
