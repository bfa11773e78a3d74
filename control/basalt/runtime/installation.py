"""The facts of an installation: what was fixed when its tables were made, and no start may change."""

from __future__ import annotations

import secrets

import msgspec

from basalt.errors import CorruptionError
from basalt_engine.clock import Clock
from basalt_engine.system import SystemTable

KIND, NAME = "install", "facts"


class Facts(msgspec.Struct, frozen=True):
    """What was fixed when the tables were made: system row install:facts."""

    buckets: int
    created_ms: int
    instance: str


def new_facts(buckets: int, clock: Clock) -> Facts:
    """The facts of an installation that is made now."""
    return Facts(buckets, clock.now_ms(), secrets.token_hex(8))


def install(system: SystemTable, clock: Clock, buckets: int) -> Facts:
    """The facts of the installation; written at the first start, and checked at every later one."""
    body = system.get(KIND, NAME)
    if body is None:
        facts = new_facts(buckets, clock)
        system.replace(KIND, NAME, None, encode_facts(facts))
        return facts
    facts = decode_facts(body)
    if facts.buckets != buckets:
        raise CorruptionError(
            f"the tables were made with {facts.buckets} salt buckets, not {buckets}: rows would not be found"
        )
    return facts


def encode_facts(facts: Facts) -> bytes:
    """The body of the system row."""
    return msgspec.json.encode(facts)


def decode_facts(body: bytes) -> Facts:
    """The facts in a body; `CorruptionError` when it is none."""
    try:
        return msgspec.json.decode(body, type=Facts)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"system entry {KIND}:{NAME} is not readable: {error}") from None
