"""The automatic producers of a client: names under which it numbers its messages, so that one sent twice is there once.

A server knows the last number of each producer in a topic, and takes what it has for a repetition. That holds only while one
producer has one publish on its way. So each publish borrows a producer of its topic, which nobody else has meanwhile, and gives
it back once it knows what became of its numbers. One whose numbers are in doubt is never given back: with the next message
under a number that was taken after all, that message would be dropped. The wire: docs/reference/http-api.md, "Producers".
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from basalt_engine.clock import SystemClock

PRODUCER_HEADER = "basalt-producer"
SEQUENCE_HEADER = "basalt-sequence"
AFTER_HEADER = "basalt-sequence-after"
EPOCH_HEADER = "basalt-producer-epoch"
STORED_BEFORE_HEADER = "basalt-stored-before"

IDLE_MS_MAX = 300_000  # half of the time after which a server forgets one, which costs a publish a second request
TOPICS_MAX = 1_024  # whose producers are kept; with more all are left to be forgotten, and others begin at no cost
NAME_BYTES = 12  # of chance: 16 characters in each row that is published, and no two clients ever have the same

# A server may forget a producer that is idle for 60 s when there are too many of them. What it forgot it takes for new, if it was
# the producer's first publish: so that one is not sent again after this time, of which the last attempt may take the rest.
FIRST_REPEAT_MS_MAX = 50_000

Title: TypeAlias = tuple[str, str]  # of a topic: its namespace and name

_monotonic_ms = SystemClock().monotonic_ms


def _new_name() -> str:
    return secrets.token_urlsafe(NAME_BYTES)


@dataclass(slots=True)
class AutomaticProducer:
    """A producer of one topic, and the number of the next message that it publishes."""

    name: str
    process: int  # after a fork the parent goes on with those that were there
    next_sequence: int = 0
    idle_since_ms: float = 0.0

    def headers(self) -> Mapping[str, str]:
        """Headers that number the messages of its next publish. They follow its last one, which need not be said."""
        return {PRODUCER_HEADER: self.name, SEQUENCE_HEADER: str(self.next_sequence)}


@dataclass(slots=True)
class AutomaticProducers:
    """The producers that wait to be borrowed, by topic. Any number of threads, or of tasks, may borrow at once."""

    monotonic_ms: Callable[[], float] = _monotonic_ms
    new_name: Callable[[], str] = _new_name
    _waiting: dict[Title, deque[AutomaticProducer]] = field(default_factory=dict)

    def borrow(self, title: Title) -> AutomaticProducer:
        """Take the producer that was used last, or a new one. It is the caller's alone, and lost unless given back."""
        waiting = self._waiting.get(title)
        if waiting:
            try:
                producer = waiting.pop()  # those used before it may grow old and be dropped
            except IndexError:
                return self.new()  # another thread was quicker
            if producer.process == os.getpid() and self.monotonic_ms() - producer.idle_since_ms <= IDLE_MS_MAX:
                return producer
            waiting.clear()  # the others wait for longer, or are the parent's too
        return self.new()

    def new(self) -> AutomaticProducer:
        """Make one that no server has heard of."""
        return AutomaticProducer(self.new_name(), os.getpid())

    def give_back(self, title: Title, producer: AutomaticProducer) -> None:
        """Take one back whose last number the server knows, as `next_sequence` says."""
        if producer.process != os.getpid():
            return
        waiting = self._waiting.get(title)
        if waiting is None:
            if len(self._waiting) >= TOPICS_MAX:
                self._waiting = {}
            # `setdefault`: two threads that come here at the same time must get the same one.
            waiting = self._waiting.setdefault(title, deque())
        producer.idle_since_ms = self.monotonic_ms()
        waiting.append(producer)
