"""Messages as callers may give them, and how a long run of them is cut into requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from basalt.api.bodies.work import PUBLISH_MESSAGES_MAX, Buffer

Payload: TypeAlias = Buffer | str
Payloads: TypeAlias = Payload | Iterable[Payload]

BODY_BYTES_MAX = 10 * 1024 * 1024  # what a server takes unless it is told otherwise (http.body_bytes_max)
ENTRY_BYTES_MAX = 5  # the length in front of a message, of up to 16 GiB
REQUEST_BYTES_MAX = 2_048  # all of a body that is not messages: a pointer, counts, names of up to 255 characters


def each_payload(given: Payloads) -> Iterator[Buffer]:
    """The messages one by one, text as UTF-8. TypeError names the first that is neither bytes nor text."""
    if isinstance(given, str | bytes | bytearray | memoryview):
        yield _payload(given)
        return
    for payload in given:
        yield payload if type(payload) is bytes else _payload(payload)


def chunks(
    payloads: Iterable[Buffer], *, messages_max: int = PUBLISH_MESSAGES_MAX, body_bytes_max: int = BODY_BYTES_MAX
) -> Iterator[list[Buffer]]:
    """Runs of messages, each as long as one request may carry; none for no messages.

    A message over the limit makes a run of its own, which the server refuses by name of its limit.
    """
    room_bytes = body_bytes_max - REQUEST_BYTES_MAX
    run: list[Buffer] = []
    run_bytes = 0
    for payload in payloads:
        payload_bytes = len(payload) + ENTRY_BYTES_MAX
        if run and (run_bytes + payload_bytes > room_bytes or len(run) == messages_max):
            yield run
            run, run_bytes = [], 0
        run.append(payload)
        run_bytes += payload_bytes
    if run:
        yield run


def _payload(given: Payload) -> Buffer:
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, memoryview):
        return given if given.format == "B" and given.ndim == 1 else given.cast("B")
    if isinstance(given, bytes | bytearray):
        return given
    raise TypeError(f"a message is bytes or text, not {type(given).__name__}; encode it first, as JSON say")
