"""Memories of transactions that have ended, and of request ids: bounded by number and age. Pure."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from basalt.transactions.rules.history import History, Items
from basalt.transactions.rules.outcomes import Outcome, OutcomeBlock, packed
from basalt.transactions.rules.transaction import State, TransactionLimits

PACKED_TOGETHER = 4_096  # outcomes that one edit packs, in about 4 ms; sorted, so that few blocks have old ids


class RequestCall(enum.IntEnum):
    """The call that a request id was used for; the numbers are on disk."""

    BEGIN = 1
    COMMIT = 2
    ONE_SHOT = 3


class RequestUse(msgspec.Struct, frozen=True, gc=False):
    """The first use of a request id."""

    id: str
    call: RequestCall
    transaction_id: int
    at_ms: int


Item = TypeVar("Item", Outcome, RequestUse)


class Memory(Generic[Item]):
    """The newest items by id, oldest first: at most `count_max`, and none older than `age_ms_max` before the newest."""

    def __init__(self, count_max: float, age_ms_max: int, items: Iterable[Item] = ()) -> None:
        assert count_max > 0, "a memory holds at least the newest item"
        self._count_max = count_max
        self._age_ms_max = age_ms_max
        self._history: History[Item] = History(items)
        self._by_id: dict[int | str, Item] = {item.id: item for item in self._history}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, item_id: int | str) -> Item | None:
        return self._by_id.get(item_id)

    def put(self, item: Item) -> None:
        """Remember an item; one of the same id is replaced where it stands."""
        before = self._by_id.get(item.id)
        self._by_id[item.id] = item
        if before is None:
            self._history.append(item)
        else:
            self._history.replace(before, item)
        self.forget(item.at_ms)

    def forget(self, now_ms: int) -> None:
        """Forget what is over the bounds at this time."""
        oldest_ms = now_ms - self._age_ms_max
        while (first := self._history.first) is not None and (
            first.at_ms < oldest_ms or len(self._by_id) > self._count_max
        ):
            self.pop_oldest()

    def pop_oldest(self) -> Item:
        item = self._history.popleft()
        del self._by_id[item.id]
        return item

    def entries(self) -> History[Item]:
        """The items that are remembered now, as a copy: costs their pages."""
        return self._history.copy()


class RememberedOutcomes(NamedTuple):
    """The contents of an `OutcomeMemory`, each part oldest first."""

    recent: Items[Outcome] = ()
    invalid: Items[Outcome] = ()
    blocks: tuple[OutcomeBlock, ...] = ()


class OutcomeMemory:
    """The newest outcomes one by one, older ones in blocks. Invalid ones stay as they are, for an abort may still come; so do
    those of sessions that did not commit, whose runs may come back.
    """

    def __init__(self, limits: TransactionLimits, remembered: RememberedOutcomes | None = None) -> None:
        held = remembered or RememberedOutcomes()
        self._limits = limits
        self._recent = Memory(math.inf, limits.memory_ms_max, held.recent)
        self._invalid = Memory(limits.invalid_outcomes_max, limits.memory_ms_max, held.invalid)
        self._blocks = deque(held.blocks)
        self._block_bytes = sum(block.memory_bytes for block in held.blocks)

    def __len__(self) -> int:
        return len(self._recent) + len(self._invalid) + sum(block.count for block in self._blocks)

    def get(self, transaction_id: int) -> Outcome | None:
        found = self._recent.get(transaction_id) or self._invalid.get(transaction_id)
        if found is not None:
            return found
        for block in reversed(self._blocks):
            if block.first <= transaction_id <= block.last:
                found = block.get(transaction_id)
                if found is not None:
                    return found
        return None

    def put(self, outcome: Outcome) -> None:
        """Remember an outcome; one of the same transaction is replaced where it stands."""
        if self._invalid.get(outcome.id) is None:
            self._recent.put(outcome)
            self._invalid.forget(outcome.at_ms)
        else:
            self._invalid.put(outcome)
            self._recent.forget(outcome.at_ms)
        if len(self._recent) > self._limits.outcomes_max:
            self._pack()
        oldest_ms = outcome.at_ms - self._limits.memory_ms_max
        while self._blocks and (
            self._blocks[0].newest_ms < oldest_ms or self._block_bytes > self._limits.outcome_block_bytes_max
        ):
            self._block_bytes -= self._blocks.popleft().memory_bytes

    def remembered(self) -> RememberedOutcomes:
        """All that is remembered, as a copy: costs pages and blocks, not outcomes."""
        return RememberedOutcomes(self._recent.entries(), self._invalid.entries(), tuple(self._blocks))

    def _pack(self) -> None:
        """Move the oldest of the recent outcomes into blocks; the newest one stays."""
        oldest = [self._recent.pop_oldest() for _ in range(min(PACKED_TOGETHER, len(self._recent) - 1))]
        for outcome in oldest:
            if _stays_whole(outcome):
                self._invalid.put(outcome)
        for block in packed(each for each in oldest if not _stays_whole(each)):
            self._blocks.append(block)
            self._block_bytes += block.memory_bytes


def _stays_whole(outcome: Outcome) -> bool:
    return outcome.state is State.INVALID or outcome.session is not None
