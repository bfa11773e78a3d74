"""The words for an owner that follow from entries of the log, in the log's order. Pure.

In its own process the coordinator tells the owner as it decides. A member that follows the log hears the same from the edits themselves: `told_by`
is what follows from one edit, and `told_between` from all that lie between two states, where those edits cannot be had any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from basalt.transactions.protocol import Close, End, Expect, JoinedTransaction, Recovered, Settled, Told
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Aborted, Aborting, Committed, Edit, Invalidated, ReturnReason
from basalt.transactions.rules.transaction import State, Transaction
from basalt.transactions.rules.transaction_table import TransactionTable
from basalt_engine.spans.spans import Spans


class EndedInGroups(NamedTuple):
    """A transaction that acknowledges no more, why not (None: it committed), and whether that is a failed attempt.

    It is none when somebody else was first, and when a commit was interrupted, by a restart say.
    """

    transaction_id: int
    reason: ReturnReason | None
    counts: bool
    pending: Mapping[int, Spans]


def ended_in_groups(state: TransactionTable, edit: Edit) -> list[EndedInGroups]:
    """The transactions that the edit, once it is applied, takes out of the groups in which they acknowledged, or were dealt messages."""
    if isinstance(edit, Committed):
        return [EndedInGroups(edit.id, None, False, dict(state.groups.pending_of(edit.id)))]
    if not isinstance(edit, Aborting | Aborted | Invalidated):
        return []
    found = []
    reason = ReturnReason.TIMED_OUT if edit.timed_out else ReturnReason.ABORTED
    for key in edit.ids if isinstance(edit, Invalidated) else (edit.id,):
        transaction = state.by_id.get(key)
        if transaction is not None and transaction.state is not State.ABORTING:  # whose abort they have heard of
            counts = transaction.state is State.OPEN and transaction.doomed is None
            found.append(EndedInGroups(key, reason, counts, dict(state.groups.pending_of(key))))
    return found


def told_by(state: TransactionTable, made: Sequence[Edit], apply: Callable[[Edit], None]) -> list[Told]:
    """Apply the edits of an entry, and return what the owner is to hear once all of them are true."""
    told: list[Told] = []
    settled: list[int] = []
    for edit in made:
        kind = type(edit)
        if kind is edits.OneShot:
            settled.append(edit.id)  # type: ignore[attr-defined]
        elif (tell := _TELLINGS.get(kind)) is not None:
            told += tell(state, edit)
        apply(edit)
    if settled:
        told.append(Settled(tuple(settled)))
    return told


def told_at_first(state: TransactionTable, known: Collection[int] = ()) -> list[Told]:
    """The words about a state that was read, for an owner that knew nothing of it: no commit of those that it did know is expected."""
    committing = [each.id for each in state.transactions(State.COMMITTING)]
    return [
        Recovered(state.last_pointer, tuple(map(tuple, state.loans.in_progress))),  # type: ignore[arg-type]
        *(Expect(each) for each in committing if each not in known),
    ]


def told_between(before: TransactionTable, after: TransactionTable) -> list[Told]:
    """The words that follow from all edits between these two states of one log."""
    told: list[Told] = []
    for was in before.transactions():
        now = after.by_id.get(was.id)
        told += [End(JoinedTransaction.of(was))] if now is None else _changed(was, now)
    told += [Expect(each.id) for each in after.transactions(State.COMMITTING) if each.id not in before.by_id]
    settled = before.loans.in_progress.without(after.loans.in_progress)
    if settled:
        told.append(Settled((), tuple((first, last) for first, last in settled)))
    return told


def _changed(was: Transaction, now: Transaction) -> list[Told]:
    if now.state is State.COMMITTING and was.state is State.OPEN:
        return [Expect(now.id)]
    if now.state is State.ABORTING and was.state is not State.ABORTING:
        return [Close(now.id)]
    if now.doomed is not None and was.doomed is None:
        return [Close(now.id)]
    return []


def _ended(state: TransactionTable, *ids: int) -> list[Told]:
    found = [state.by_id.get(each) for each in ids]
    return [End(JoinedTransaction.of(each)) for each in found if each is not None]


def _of_member(state: TransactionTable, edit: edits.MemberEnded) -> list[Told]:
    return [Settled((), ((loan.undecided, loan.last),)) for loan in state.loans.of(edit.member)]


_TELLINGS: dict[type, Callable[[TransactionTable, Any], list[Told]]] = {
    edits.Committing: lambda _, edit: [Expect(edit.id)],
    edits.Doomed: lambda _, edit: [Close(edit.id)],
    edits.Aborting: lambda _, edit: [Close(edit.id)],
    edits.Committed: lambda state, edit: _ended(state, edit.id),
    edits.Aborted: lambda state, edit: _ended(state, edit.id),
    edits.Invalidated: lambda state, edit: _ended(state, *edit.ids),
    edits.Reset: lambda state, _: _ended(state, *state.by_id),
    edits.GivenUp: lambda _, edit: [Settled((), ((edit.first, edit.last),))],
    edits.MemberEnded: _of_member,
}
