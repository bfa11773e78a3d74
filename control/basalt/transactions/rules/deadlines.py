"""When open transactions time out: the ones that are due are found without looking at the others."""

from __future__ import annotations

import heapq

STALE_MAX = 1_024  # entries of ended transactions that may lie about before the heap is built anew


class Deadlines:
    """The deadlines of open transactions, in a heap; those of ended ones are dropped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._deadlines: dict[int, int] = {}

    def add(self, transaction_id: int, deadline_ms: int) -> None:
        """The transaction is open until then."""
        self._deadlines[transaction_id] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, transaction_id))

    def remove(self, transaction_id: int) -> None:
        """The transaction is not open any more; nothing happens if it was not."""
        self._deadlines.pop(transaction_id, None)
        if len(self._heap) > 2 * len(self._deadlines) + STALE_MAX:
            self._heap = [(deadline_ms, key) for key, deadline_ms in self._deadlines.items()]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][1] not in self._deadlines:
            heapq.heappop(self._heap)

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[int]:
        """The ids whose deadline has come, earliest deadline first. Changes nothing."""
        found = []
        ahead = [0]
        while ahead:
            index = ahead.pop()
            if index < len(self._heap) and self._heap[index][0] <= now_ms:
                found.append(self._heap[index])
                ahead += (2 * index + 1, 2 * index + 2)
        return [key for _, key in sorted(found) if key in self._deadlines]
