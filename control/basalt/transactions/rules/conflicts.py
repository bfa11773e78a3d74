"""Conflict detection: the change sets of committed transactions, for as long as a transaction may still clash with them.

First committer wins. A transaction clashes with every change that was committed after it began, and with those whose
commit is decided but whose rows are still being written, for its snapshot holds neither. Only short transactions take
part.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from basalt.transactions.rules.history import History
from basalt.transactions.rules.transaction import Loss
from basalt_engine.snapshot import POINTER_MAX

NOT_YET = POINTER_MAX  # `seen_from` of a commit whose rows are still being written: no transaction sees it
CHANGE_BYTES = 160  # that one change takes in memory beside its own bytes: in a set, and in the dictionary of all


def memory_bytes(changes: Collection[bytes]) -> int:
    """The approximate memory that a change set takes."""
    return sum(map(len, changes)) + CHANGE_BYTES * len(changes) if changes else 0


class CommittedSet(msgspec.Struct, frozen=True):
    """The change set of a committed transaction. Those from pointer `seen_from` on see it, so do not clash with it."""

    id: int
    owner: str
    seen_from: int
    changes: frozenset[bytes]


class CommittedChanges:
    """Finds the newest commit of any change at the cost of the asker's changes, however many sets are kept."""

    def __init__(self) -> None:
        self._latest: dict[bytes, CommittedSet] = {}
        self._visible = History[CommittedSet]()
        self._seen_from = 0  # of the newest visible set
        self.memory_bytes = 0  # of the visible sets; a reserved one counts with its transaction

    def reserve(self, transaction_id: int, owner: str, changes: frozenset[bytes]) -> None:
        """The commit is decided: from now on everyone else loses, until `show` says who sees it."""
        self._enter(CommittedSet(transaction_id, owner, NOT_YET, changes))

    def release(self, transaction_id: int, changes: frozenset[bytes]) -> None:
        """The commit that reserved these changes was given up: the transaction that committed them before counts
        again."""
        for key in changes:
            if self._latest[key].id == transaction_id:
                del self._latest[key]
                before = next((committed for committed in reversed(self._visible) if key in committed.changes), None)
                if before is not None:
                    self._latest[key] = before

    def show(self, committed: CommittedSet, size_bytes: int) -> None:
        """The commit is visible to transactions from `seen_from` on. Calls come in the order of `seen_from`.

        `size_bytes` is what its changes take in memory.
        """
        assert self._seen_from <= committed.seen_from, "commits become visible in order"
        if committed.changes:
            self._enter(committed)
            self._visible.append(committed)
            self._seen_from = committed.seen_from
            self.memory_bytes += size_bytes

    def conflict(self, transaction_id: int, changes: Collection[bytes]) -> Loss | None:
        """The commit that this transaction lost to, if any: of several, the one of the lowest key."""
        lost = [key for key in self._latest.keys() & changes if self._latest[key].seen_from > transaction_id]
        if not lost:
            return None
        winner = self._latest[min(lost)]
        return Loss(winner.id, min(lost), winner.owner)

    def forget(self, first_short: int) -> None:
        """Drop the sets with which no open transaction can clash, the oldest short one being `first_short`."""
        while (old := self._visible.first) is not None and old.seen_from <= first_short:
            self._visible.popleft()
            self.memory_bytes -= memory_bytes(old.changes)
            for key in old.changes:
                if self._latest[key] is old:
                    del self._latest[key]

    def visible(self) -> History[CommittedSet]:
        """A copy of the sets that are kept, in the order of their commits; reserved ones are not among them."""
        return self._visible.copy()

    def _enter(self, committed: CommittedSet) -> None:
        for key in committed.changes:
            self._latest[key] = committed
