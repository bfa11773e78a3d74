"""Change sets that the log gets only with the commit: a client that tells one waits for no disk.

A transaction that began for it is marked so in the log (`ChangesUnlogged`). The set that it tells is kept in memory, where
conflicts are found as ever, and becomes a `Changed` in the entry that decides the commit. Reading the log again (a restart,
another leader, a write of which nobody knows what became) loses it, and shows the mark without a set: then the commit is
refused until the set is told again. A commit never passes for one without changes. The mark comes with the begin, for one
that came with the set would have to be on the disk before that is answered. So after a crash nobody can tell who had told
nothing, and they are refused too; a server that stops in order takes their marks away first. Only the Thrift face begins such
transactions, for its clients tell their set and commit at once; what HTTP tells is logged, and takes the mark away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.checks import check_changes
from basalt.transactions.rules.proposals import Proposal
from basalt.transactions.rules.states import Kind, State, Transaction
from basalt.transactions.rules.transaction_table import Ledger


class UnloggedChanges:
    """The change sets of one ledger's open transactions that are not logged yet."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def begin(self, proposal: Proposal) -> Proposal:
        """The begin with the mark. Without it where it makes no sense: a long transaction takes no part in conflicts."""
        began = next((edit for edit in proposal.edits if isinstance(edit, edits.Began)), None)
        if began is None or began.kind is Kind.LONG or not began.outside:
            return proposal
        return Proposal((*proposal.edits, edits.ChangesUnlogged(began.id)), proposal.transaction_id)

    def tell(self, transaction_id: int, changes: Collection[bytes], now_ms: int) -> bool:
        """Keep the change set, in place of the one before, if nothing speaks against it and it need not be logged.

        False where that does not hold (`TransactionState.set_changes` finds out what does), and nothing has changed.
        `TooLargeError` when the set is over the limits.
        """
        found = self._ledger.transactions.get(transaction_id)
        if found is None or not found.changes_unlogged or found.state is not State.OPEN:
            return False
        if found.doomed is not None or now_ms >= found.deadline_ms:
            return False
        kept = frozenset(changes)
        check_changes(self._ledger.limits, found, kept)
        if self._ledger.conflicts.conflict(transaction_id, kept) is not None:
            return False
        self._ledger.told[transaction_id] = kept
        return True

    def of(self, transaction: Transaction) -> frozenset[bytes]:
        """The change set with which an open transaction would commit; `ChangesLostError` when that is lost."""
        if not transaction.changes_unlogged:
            return transaction.changes or frozenset()
        told = self._ledger.told.get(transaction.id)
        if told is None:
            raise refusals.changes_lost(transaction)
        return told

    def note_untold(self, count_max: int) -> Proposal:
        """Take the mark from this many open transactions at most that would commit without changes: nothing can be lost."""
        untold = [key for key, changes in self._ledger.told.items() if not changes and self._is_open(key)]
        changed = [
            edits.Changed(key, self._ledger.transactions[key].outside, frozenset()) for key in untold[:count_max]
        ]
        return Proposal(tuple(changed))

    def _is_open(self, transaction_id: int) -> bool:
        found = self._ledger.transactions.get(transaction_id)
        return found is not None and found.changes_unlogged and found.state is State.OPEN

    def told(self) -> Mapping[int, frozenset[bytes]]:
        """All sets that the log does not have, by transaction: a copy."""
        return dict(self._ledger.told)

    def forget(self) -> None:
        """The log was read: what clients had told since then is not in it."""
        self._ledger.told.clear()
