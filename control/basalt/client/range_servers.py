"""The servers that read ranges for a client, and the rule which of them reads the next one. No input or output.

A range ends where all is decided, so each server reads it alike (docs/decisions/0067-ranges-are-read-by-permit.md), and a client that knows several spreads its
ranges over all of them, evenly and without asking anybody: processes that know the same servers choose alike. A server that fails, refuses, or had the owner read
rests for a while. Who knows one server, or none that does not rest, sends ranges where all else about the topic goes.
Why so: docs/decisions/0082-a-client-spreads-its-ranges.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from basalt.client.plans import Answer, Reply

ServerT = TypeVar("ServerT", bound=tuple[Any, ...])  # a server's address: they have one order in all processes

# Below it a server that asks the owner for a permit costs that one more than the bytes would: those ranges stay with the owner.
SPREAD_BYTES_MIN = 1 << 20
REST_MS = 20_000  # of a server that gave no answer: one that restarts is back by then
REST_ANSWERED_MS = (
    5_000  # of one that answered: a topic has moved by then, and who was full has read what it was reading
)
MET_MAX = 200  # servers beside those that the caller named; no installation has as many

OWNER_HEADER = "basalt-owner"  # of an answer that another server gave


def place_of_range(path: str, after: bytes | None, turn: int | None, size_bytes: int | None) -> int | None:
    """The number by which a server is chosen for a range; None: the topic's owner is to read it, for its answer is small.

    `size_bytes`: how large the answer is at most; None: nobody knows.
    `turn`: its number among ranges that are read side by side, of which neighbours go to different servers; None: chance decides, the same one at each reading.
    """
    if size_bytes is not None and size_bytes < SPREAD_BYTES_MIN:
        return None
    if turn is None:
        return _number(path.encode() + b"/" + (after or b""))
    return _number(path.encode()) + turn


def _number(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=4).digest())


class RangeServers(Generic[ServerT]):
    """The servers that a client knows, for its ranges; shared by its threads."""

    def __init__(self, named: Sequence[ServerT], monotonic_ms: Callable[[], float]) -> None:
        self._named = tuple(named)
        self._monotonic_ms = monotonic_ms
        self._met: tuple[ServerT, ...] = ()  # the last ones at the end
        self._known = tuple(sorted(self._named))  # in an order that is the same in each process
        self._resting: dict[ServerT, float] = {}  # until when
        self._changing = threading.Lock()

    def meet(self, server: ServerT) -> None:
        """Another server has named this one: it reads ranges, too."""
        if server not in self._known:
            with self._changing:
                self._know((*(each for each in self._met if each != server), server)[-MET_MAX:])

    def forget(self, server: ServerT) -> None:
        """The server cannot be reached, or does not answer. Those that the caller named stay."""
        if server in self._met:
            with self._changing:
                self._know(tuple(each for each in self._met if each != server))

    def choose(self, place: int) -> ServerT | None:
        """The server for a range of this place; None: there is no choice."""
        known = self._known
        if len(known) < 2:
            return None
        first = known[place % len(known)]
        if not self._resting or not self._rests(first):
            return first
        others = [each for each in known if not self._rests(each)]
        # Only what was that server's moves, to all of the others alike.
        return others[place // len(known) % len(others)] if others else None

    def judge(self, server: ServerT, reply: Reply) -> None:
        """Have the server rest that could not read a range itself."""
        if (
            isinstance(reply, Answer)
            and reply.status < 500
            and not (reply.status == 200 and OWNER_HEADER in reply.headers)
        ):
            return
        with self._changing:
            self._resting = {
                **{each: until_ms for each, until_ms in self._resting.items() if each in self._known},
                server: self._monotonic_ms() + (REST_ANSWERED_MS if isinstance(reply, Answer) else REST_MS),
            }

    def _know(self, met: tuple[ServerT, ...]) -> None:
        self._met = met
        self._known = tuple(sorted({*self._named, *met}))

    def _rests(self, server: ServerT) -> bool:
        until_ms = self._resting.get(server)
        return until_ms is not None and self._monotonic_ms() < until_ms
