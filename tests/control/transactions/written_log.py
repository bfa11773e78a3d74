"""A log that a coordinator writes, entry by entry, of whatever may happen to transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from basalt.errors import BasaltError
from basalt.transactions.log.transaction_log import ENTRY, TransactionLog
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import Join, Loss, State, TableJoin, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)
TABLE = TableJoin(b"shop:~accounts:", 1)
MEMBERS = ("m1", "m2")


class Author:
    """Writes the log. `entries` are the bytes of all that it wrote."""

    def __init__(self, store: MemoryStore, entries_kept: int = 0) -> None:
        self.store, self.clock = store, ManualClock()
        self.limits = TransactionLimits(allow_reset=True)
        self.log = TransactionLog(store.table("transaction_log"), self.limits, entries_kept=entries_kept)
        self.state = TransactionProposals(self.limits)
        self.entries: list[bytes] = []
        self._made: list[Edit] = []
        self._acts: Sequence[Callable[[int], Sequence[Edit]]] = (
            self._begin, self._begin, self._join, self._join_table, self._checkpoint, self._commit, self._commit, self._finish, self._finish,
            self._abort, self._give_up, self._invalidate, self._doom, self._one_shot, self._lend, self._decide, self._decide,
            self._give_up_pointer, self._return, self._end_member, self._lead, self._reset, self._change,
        )  # fmt: skip

    def act(self, *picks: tuple[int, int]) -> None:
        """One entry of these acts; those that cannot be done are left out, and nothing is written where all are."""
        self.clock.advance(1)
        for act, pick in picks:
            with suppress(BasaltError):
                self.make(*self._acts[act % len(self._acts)](pick))
        self.write()

    def make(self, *made: Edit) -> None:
        """These edits are true, and part of the next entry."""
        for edit in made:
            self.state.apply(edit)
            self._made.append(edit)

    def write(self) -> None:
        """The next entry is durable."""
        if self._made:
            row = self.log.encode_next(self._made)
            self.store.write([TableWrite("transaction_log", [row])])
            self.entries.append(row.columns[ENTRY])
            self._made = []

    def snapshot(self) -> None:
        """A snapshot of the log, which removes the entries before it, but for those that are kept."""
        draft = self.log.draft(self.state)
        first, *others = draft.parts()
        self.store.write([TableWrite("transaction_log", [*others, first, *draft.replaced()])])
        self.log.snapshot_written(draft)

    def _any(self, pick: int, *states: State) -> int:
        found = self.state.transactions(*states)
        return found[pick % len(found)].id if found else 0

    def _begin(self, pick: int) -> Sequence[Edit]:
        return self.state.begin(self.clock.now_ms(), for_one_shot=pick % 4 == 3).edits

    def _join(self, pick: int) -> Sequence[Edit]:
        return self.state.join(self._any(pick, State.OPEN), TOPIC, self.clock.now_ms()).edits

    def _join_table(self, pick: int) -> Sequence[Edit]:
        return self.state.join_table(self._any(pick, State.OPEN), TABLE, self.clock.now_ms()).edits

    def _checkpoint(self, pick: int) -> Sequence[Edit]:
        return self.state.checkpoint(self._any(pick, State.OPEN), self.clock.now_ms()).edits

    def _change(self, pick: int) -> Sequence[Edit]:
        return self.state.set_changes(self._any(pick, State.OPEN), [b"row %d" % (pick % 3)], self.clock.now_ms()).edits

    def _commit(self, pick: int) -> Sequence[Edit]:
        return self.state.commit(self._any(pick, State.OPEN), self.clock.now_ms()).edits

    def _finish(self, pick: int) -> Sequence[Edit]:
        return self.state.finish(self._any(pick, State.COMMITTING, State.ABORTING), self.clock.now_ms()).edits

    def _abort(self, pick: int) -> Sequence[Edit]:
        return self.state.abort(self._any(pick), self.clock.now_ms()).edits

    def _give_up(self, pick: int) -> Sequence[Edit]:
        if pick % 4 == 3:
            return self.state.give_up_begun(self.clock.now_ms()).edits
        return self.state.give_up(self._any(pick, State.COMMITTING), self.clock.now_ms()).edits

    def _invalidate(self, pick: int) -> Sequence[Edit]:
        return self.state.invalidate(self._any(pick), self.clock.now_ms()).edits

    def _doom(self, pick: int) -> Sequence[Edit]:
        now_ms = self.clock.now_ms()
        return (edits.Doomed(self._any(pick, State.OPEN), Loss(1, b"row", ""), None, now_ms),)

    def _one_shot(self, pick: int) -> Sequence[Edit]:
        return self.state.begin_committed(self.clock.now_ms()).edits

    def _lend(self, pick: int) -> Sequence[Edit]:
        return self.state.loans.lend(MEMBERS[pick % 2], self.state.last_pointer, self.clock.now_ms()).edits

    def _decide(self, pick: int) -> Sequence[Edit]:
        loans = list(self.state.loans)
        if not loans:
            return ()
        return self.state.committed_one_shot(loans[pick % len(loans)].undecided, self.clock.now_ms(), "", None, "")

    def _give_up_pointer(self, pick: int) -> Sequence[Edit]:
        loans = list(self.state.loans)
        if not loans:
            return ()
        first = loans[pick % len(loans)].undecided
        return (edits.GivenUp(first, min(first + pick % 3, loans[pick % len(loans)].last)),)

    def _return(self, pick: int) -> Sequence[Edit]:
        loans = list(self.state.loans)
        if not loans:
            return ()
        loan = loans[pick % len(loans)]
        return self.state.loans.give_back(loan.member, loan.undecided).edits

    def _end_member(self, pick: int) -> Sequence[Edit]:
        return self.state.loans.end({MEMBERS[pick % 2]}).edits

    def _lead(self, pick: int) -> Sequence[Edit]:
        return self.state.lead(self.state.leader_epoch + 1).edits

    def _reset(self, pick: int) -> Sequence[Edit]:
        return self.state.reset(self.clock.now_ms()).edits if pick % 8 == 0 else ()
