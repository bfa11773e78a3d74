"""The topics to which one-shot transactions write without a word in the log before their rows. docs/decisions/0011.

Where rows and log are not one batch, a one-shot transaction is first heard of when its outcome is logged. What a lost
outcome leaves behind is found by looking at the ends of just these topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from basalt.transactions.rules.states import Join

TopicKey = tuple[bytes, int]  # topic prefix and generation


class UsedTopic(NamedTuple):
    """One-shot transactions with a pointer up to `until` may write to the topic, at or after `join.from_ms`."""

    until: int
    join: Join

    @property
    def key(self) -> TopicKey:
        return self.join.topic, self.join.generation


class TopicsInUse:
    """The topics in use, those first whose use ends first. One whose use has ended may still be held, but does not count."""

    def __init__(self, used: Iterable[UsedTopic] = ()) -> None:
        self._used = {each.key: each for each in used}

    def get(self, key: TopicKey) -> UsedTopic | None:
        """The topic's entry, whether or not its use has ended."""
        return self._used.get(key)

    def use(self, until: int, joins: Iterable[Join], last_pointer: int) -> None:
        """These topics are in use until then, each from its time on; whatever was said of them before counts no more."""
        for join in joins:
            used = UsedTopic(until, join)
            self._used.pop(used.key, None)  # put in anew, for the order
            if until > last_pointer:
                self._used[used.key] = used
        while self._used and (first := next(iter(self._used.values()))).until <= last_pointer:
            del self._used[first.key]

    def entries(self, last_pointer: int) -> tuple[UsedTopic, ...]:
        """The topics that are in use after this pointer."""
        return tuple([used for used in self._used.values() if used.until > last_pointer])
