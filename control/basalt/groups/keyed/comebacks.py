"""The messages of a keyed group that came back: which lane is dealt again, and when. Pure.

A lane of which a message came back waits until that one's next attempt is over: what follows would be refused anyway. And what came back is
not dealt again while a transaction that has not ended acknowledges an earlier message of its lane: nobody but that transaction could acknowledge
it, so each attempt would be for nothing. docs/decisions/0086-begun-one-shots-are-ended.md.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from basalt.groups.keyed.slots import Ahead
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import NEVER_MS, Attempt, GroupState

NO_ATTEMPT = Attempt(0, 0, ReturnReason.RELEASED)


class Comebacks:
    """The messages of one group that came back, and what is pending in transactions, by lane. Ids ascend."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[bytes]] = {}  # that came back
        self._retried: dict[int, set[bytes]] = {}  # that were dealt again
        self._pending: dict[int, list[bytes]] = {}  # that transactions acknowledge
        self._unsorted: set[int] = set()  # waiting lanes whose time is not known yet
        self._due: list[tuple[int, int]] = []  # a heap of times and lanes
        self._ready: dict[int, None] = {}  # lanes whose first waiting message is due

    def clear(self) -> None:
        """Nothing is known any more."""
        for known in (self._waiting, self._retried, self._pending, self._unsorted, self._due, self._ready):
            known.clear()

    def __bool__(self) -> bool:
        return bool(self._waiting or self._retried or self._pending)

    @property
    def has_pending(self) -> bool:
        """True while a transaction that has not ended acknowledges something that is in flight."""
        return bool(self._pending)

    def has(self, lane: int) -> bool:
        """True for a lane of which something came back that is not acknowledged."""
        return lane in self._waiting or lane in self._retried

    # What happens to messages. Where a lane goes on with what was never dealt, the answer is True.

    def add(self, message: Ahead) -> None:
        """The message came back."""
        _insert(self._waiting.setdefault(message.lane, []), message.id)
        self._ready.pop(message.lane, None)
        self._unsorted.add(message.lane)

    def deal(self, message: Ahead) -> None:
        """The message, which came back, is dealt again."""
        self._take(message)
        self._retried.setdefault(message.lane, set()).add(message.id)

    def stop(self, message: Ahead) -> bool:
        """The message waits no more, if it did: it is acknowledged, or pending."""
        lane, ids = message.lane, self._waiting.get(message.lane)
        if ids is None or message.id not in ids:
            return False
        self._take(message)
        return lane not in self._retried and self._goes_on(lane)

    def decided(self, message: Ahead) -> bool:
        """The attempt of the message is over, if it was dealt again."""
        lane, retried = message.lane, self._retried.get(message.lane)
        if retried is None:
            return False
        retried.discard(message.id)
        if retried:
            return False
        del self._retried[lane]
        return self._goes_on(lane)

    def hold(self, message: Ahead) -> None:
        """A transaction acknowledges the message, and has not ended: what came back behind it waits."""
        lane = message.lane
        _insert(self._pending.setdefault(lane, []), message.id)
        if lane in self._ready:
            del self._ready[lane]
            self._unsorted.add(lane)

    def let_go(self, message: Ahead) -> None:
        """The transaction that acknowledged the message has ended."""
        lane, ids = message.lane, self._pending.get(message.lane)
        index = -1 if ids is None else bisect_left(ids, message.id)
        if ids is None or index == len(ids) or ids[index] != message.id:
            return
        del ids[index]
        if not ids:
            del self._pending[lane]
        if lane in self._waiting:
            self._unsorted.add(lane)

    def look_again(self) -> None:
        """When they are due may have changed for all that came back."""
        self._unsorted |= self._waiting.keys()

    def _take(self, message: Ahead) -> None:
        ids = self._waiting[message.lane]
        ids.remove(message.id)
        if not ids:
            del self._waiting[message.lane]
        self._ready.pop(message.lane, None)

    def _goes_on(self, lane: int) -> bool:
        """A lane of which nothing is dealt again: to the next that came back, or (True) to what was never dealt."""
        if lane in self._waiting:
            self._unsorted.add(lane)
            return False
        self._unsorted.discard(lane)
        return True

    # What is to be dealt.

    def is_held(self, lane: int, message_id: bytes) -> bool:
        """True while a transaction that has not ended acknowledges an earlier message of the lane."""
        ids = self._pending.get(lane) if self._pending else None
        return ids is not None and ids[0] < message_id

    def ready(self, state: GroupState, now_ms: int) -> Iterator[tuple[int, Sequence[bytes]]]:
        """The lanes whose first message that came back is due, with all of theirs that did. Do not change anything meanwhile."""
        self._sort(state, now_ms)
        for lane in self._ready:
            yield lane, self._waiting[lane]

    def _sort(self, state: GroupState, now_ms: int) -> None:
        for lane in self._unsorted:
            if self._may_go(lane):
                not_before_ms = attempt_of(state, self._waiting[lane][0]).not_before_ms
                if not_before_ms != NEVER_MS:
                    heapq.heappush(self._due, (not_before_ms, lane))
        self._unsorted.clear()
        while self._due and self._due[0][0] <= now_ms:
            _, lane = heapq.heappop(self._due)
            if self._may_go(lane):
                if attempt_of(state, self._waiting[lane][0]).not_before_ms <= now_ms:
                    self._ready[lane] = None
                else:
                    self._unsorted.add(lane)

    def _may_go(self, lane: int) -> bool:
        ids = self._waiting.get(lane)
        return ids is not None and lane not in self._retried and not self.is_held(lane, ids[0])

    @property
    def due_ms(self) -> int | None:
        """The time, by the wall clock, when the next message that came back is due, or may be; None when nothing waits for a time."""
        return self._due[0][0] if self._due else None


def _insert(ids: list[bytes], message_id: bytes) -> None:
    """Insert an id where it is not there."""
    index = bisect_left(ids, message_id)
    if index == len(ids) or ids[index] != message_id:
        ids.insert(index, message_id)


def attempt_of(state: GroupState, message_id: bytes) -> Attempt:
    """The attempt of a message that waits; one that did not fail was given back, and goes first all the same."""
    return state.returns.at(message_id) or NO_ATTEMPT
