"""Change sets that the log gets only with the commit: a client of this face that tells one waits for no disk.

A transaction that began for it is marked so in the log (`ChangesUnlogged`). The set that it tells is kept here, where
conflicts are found as ever, and becomes a `Changed` in the entry that decides the commit. Whenever the log is read again (a
restart, another leader, a write of which nobody knows what became) the sets are lost, and the mark stays: then the commit is
refused until the set is told again. A commit never passes for one without changes. The begin sets the mark: a
mark that came with the set would cost that call a disk write. So after a crash nobody can tell who had told
nothing, and they are refused too; a server that stops in order takes their marks away first. What HTTP tells is logged, and
takes the mark away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from basalt.commits.commit_stage import Beginning, Guard
from basalt.commits.coordinator import Coordinator
from basalt.errors import BusyError
from basalt.runtime.group_commit import Waiter
from basalt.transactions.rules.conflicts import memory_bytes
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Kind, State, Transaction
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError

LOGGED_TOGETHER_MAX = 10_000  # transactions of which one log entry says that their set is empty: some 300 KiB
# Sets of transactions that have ended are dropped whenever there are twice as many, or twice as large, as after the last time,
# and so many more.
ENDED_SETS_MAX = 1_024
ENDED_BYTES_MAX = 8 << 20

_EMPTY: frozenset[bytes] = frozenset()


class DeferredChangeSets:
    """Begin, change set and commit of transactions whose change sets are deferred.

    Those that answer a bool answer False, and have done nothing, where only the coordinator's coroutine can: while the log
    is to be read, say. They raise what speaks against taking the call at all.
    """

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._state: TransactionProposals | None = None  # the one that the sets were told to
        self._sets: dict[int, frozenset[bytes]] = {}
        self._bytes = 0
        self._sets_max, self._bytes_max = ENDED_SETS_MAX, ENDED_BYTES_MAX

    def begin(self, waiter: Waiter[Transaction], timeout_ms: int | None, owner: str, principal: str = "") -> bool:
        """Begin a short transaction with writes outside Basalt, whose change set is logged with its commit."""
        asked = Beginning(Kind.SHORT, timeout_ms, owner, external_writes=True, principal=principal)
        return self._coordinator.submit_begin(waiter, asked, changes_deferred=True)

    def tell(self, transaction_id: int, changes: Collection[bytes]) -> bool:
        """Keep the change set, in place of the one before, if nothing speaks against it. Done at once, and not logged."""
        manager = self._coordinator.manager
        if not manager.is_known:
            return False
        # The working state may be a group ahead of the log. When that group fails the state is read anew, without this set.
        state = manager.state
        self._follow(state)
        kept = frozenset(changes)
        before = self._sets.get(transaction_id)
        added_bytes = memory_bytes(kept) - (memory_bytes(before) if before else 0)
        may_defer, now_ms = state.may_defer_changes, self._clock.now_ms()
        try:
            deferred = may_defer(transaction_id, kept, now_ms, self._bytes + added_bytes)
        except BusyError:
            self._drop_ended()
            deferred = may_defer(transaction_id, kept, now_ms, self._bytes + added_bytes)
        if deferred:
            self._bytes += added_bytes
            self._sets[transaction_id] = kept
            if len(self._sets) > self._sets_max or self._bytes > self._bytes_max:
                self._drop_ended()
        return deferred

    def get(self, transaction_id: int) -> frozenset[bytes] | None:
        """The set with which the transaction would commit; None where it is lost, or may be."""
        manager = self._coordinator.manager
        if not manager.is_known:
            return None
        self._follow(manager.state)
        found = self._sets.get(transaction_id)
        return _EMPTY if found is None and transaction_id > manager.known_since else found

    def all(self) -> Mapping[int, frozenset[bytes]]:
        """All sets that the log does not have, by transaction: a copy."""
        self._follow(self._coordinator.state)
        self._drop_ended()
        return dict(self._sets)

    def submit_commit(
        self, waiter: Waiter[Outcome | BasaltError], transaction_id: int, guard: Guard | None = None
    ) -> bool:
        """Commit the transaction with what it stored, and nothing more.

        The answer may be a refusal that is durable now.
        """
        return self._coordinator.submit_commit(waiter, transaction_id, self.get(transaction_id), guard)

    async def commit(self, transaction_id: int, guard: Guard | None = None) -> Outcome:
        """The same for a caller that can wait for the log to be read."""
        return await self._coordinator.commit(transaction_id, deferred_changes=self.get(transaction_id), guard=guard)

    async def log_empty_sets(self) -> None:
        """Before the server stops: log of whom no change set is missing, so that they can commit after the restart."""
        opened = self._coordinator.state.transactions(State.OPEN)
        told_nothing = [each.id for each in opened if each.changes_unlogged and self.get(each.id) == _EMPTY]
        for start in range(0, len(told_nothing), LOGGED_TOGETHER_MAX):
            await self._coordinator.log_no_changes(told_nothing[start : start + LOGGED_TOGETHER_MAX])

    def _follow(self, state: TransactionProposals) -> None:
        """Forget everything if the log was read again: what clients had told until then is not in it."""
        if state is not self._state:
            self._state, self._bytes = state, 0
            self._sets.clear()

    def _drop_ended(self) -> None:
        state = self._coordinator.state
        found = ((key, state.find(key)) for key in self._sets)
        open_ones = {key for key, each in found if each is not None and each.changes_unlogged}
        self._sets = {key: changes for key, changes in self._sets.items() if key in open_ones}
        self._bytes = sum(map(memory_bytes, self._sets.values()))
        self._sets_max = 2 * len(self._sets) + ENDED_SETS_MAX
        self._bytes_max = 2 * self._bytes + ENDED_BYTES_MAX
