"""A topic's properties as a user gives them: which there are, what they may be, and their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from basalt.api.markers import TASKS_MAX
from basalt.errors import InvalidPropertyError
from basalt_engine.retention import OnInvalid

TTL_SECONDS_DEFAULT = 604_800  # seven days
TTL_SECONDS_MAX = 3_155_760_000  # a hundred years; in milliseconds it stays far from 2^63
PROPERTIES_MAX = 64  # beside those of every topic; its row stays small, for every region server reads it
OF_EVERY_TOPIC = frozenset({"ttl", "spread", "onInvalid", "generation"})
PROPERTY_CHARS_MAX = 4_096
DIGITS = re.compile(r"[0-9]{1,10}")
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")


class Settled(NamedTuple):
    """Properties, checked."""

    ttl_ms: int
    spread: int
    on_invalid: OnInvalid
    others: dict[str, str]


def settle(properties: Mapping[str, object], buckets: int, generation: int | None) -> Settled:
    """Check the properties that a user gave; absent ones get their defaults.

    `generation` is read-only, and is the present one, or None for a new topic. An update may give it back as it is now
    (so that a topic's properties can be read, changed and put back); a new topic takes no notice of it, for it comes
    with the properties that were read from another one.
    """
    count = len(properties.keys() - OF_EVERY_TOPIC)
    if count > PROPERTIES_MAX:
        raise InvalidPropertyError(f"{count} properties of its own are given, the limit is {PROPERTIES_MAX}")
    others = {name: _text(name, value) for name, value in properties.items()}
    given = others.pop("generation", None)
    if given is not None and generation is not None and given != str(generation):
        raise InvalidPropertyError(
            f"property generation is read-only, and {given!r} is not the present one",
            field="generation",
            hint="leave it out; deleting and creating the topic raises it",
        )
    ttl = _integer("ttl", others.pop("ttl", str(TTL_SECONDS_DEFAULT)), 1, TTL_SECONDS_MAX)
    spread = _integer("spread", others.pop("spread", "1"), 1, buckets)
    on_invalid = _choice("onInvalid", others.pop("onInvalid", "drop"), ("drop", "retain"))
    if "compression" in others:
        _choice("compression", others["compression"], ("none", "zstd"))
    if "tasks" in others:
        _integer("tasks", others["tasks"], 1, TASKS_MAX)
    return Settled(ttl * 1_000, spread, OnInvalid(on_invalid), others)


def _text(name: str, value: object) -> str:
    if _PROPERTY_NAME.fullmatch(name) is None:
        raise InvalidPropertyError(
            f"{name[:40]!r} is not a property name", field=name[:40], hint="use 1 to 255 of A-Z a-z 0-9 _ . -"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 63 else _refuse(name, "a number beyond 64 bits")
    if not isinstance(value, str):
        return _refuse(name, f"a value of type {type(value).__name__}")
    if len(value) > PROPERTY_CHARS_MAX or any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in value):
        return _refuse(name, "a text that is too long or has control characters")
    return value


def _refuse(name: str, what: str) -> str:
    raise InvalidPropertyError(
        f"property {name} has {what}", field=name, hint=f"give text of at most {PROPERTY_CHARS_MAX} characters"
    )


def _integer(name: str, text: str, least: int, most: int) -> int:
    if DIGITS.fullmatch(text) is None or not least <= int(text) <= most:
        raise InvalidPropertyError(
            f"property {name} is {text[:40]!r}", field=name, hint=f"give a whole number from {least} to {most}"
        )
    return int(text)


def _choice(name: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise InvalidPropertyError(
            f"property {name} is {text[:40]!r}", field=name, hint=f"give one of {', '.join(allowed)}"
        )
    return text
