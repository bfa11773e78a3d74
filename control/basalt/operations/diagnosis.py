"""A diagnosis of one transaction, in words: what it holds back, its fate at the deadline, what an operator should do.

Rules without I/O: `basalt tx describe`, `explain tx` and `tx find-hanging` only show what these say.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.transactions.rules.transaction import Kind, State, Transaction
from basalt.transactions.rules.transaction_table import StateImage

HALF = 2  # a transaction that has used more than a half of its time-out is looked at


class HeldBack(NamedTuple):
    """The work that cannot go on because the transaction has not ended. Pointers are bounds of the whole store.

    `visibility_bound` is what compactions may drop replaced versions up to; `decided` is what pruning may look at.
    `change_sets` are those of committed transactions that are kept only because this one may still clash with them.
    """

    visibility_bound: int
    visibility: bool
    decided: int
    pruning: bool
    change_sets: int
    changes: int


def held_back(image: StateImage, transaction: Transaction) -> HeldBack:
    """The work that the transaction, one of the image's, holds back beside readers: compactions, pruning, memory."""
    live = [other for other in image.transactions if not other.was_invalid]
    first = min((other.id for other in live), default=None)
    bounds = [_bound(other.read_pointer, other.concurrent.first) for other in live]
    bound = min([_bound(image.read_pointer, first), *bounds])
    own = min(_bound(transaction.read_pointer, transaction.concurrent.first), transaction.id - 1)
    decided = image.last_pointer if first is None else first - 1
    shorts = sorted(other.id for other in live if other.kind is Kind.SHORT)
    kept = []
    if shorts and shorts[0] == transaction.id:
        kept = [each for each in image.committed if len(shorts) == 1 or each.seen_from <= shorts[1]]
    return HeldBack(
        visibility_bound=bound,
        visibility=not transaction.was_invalid and own <= bound,
        decided=decided,
        pruning=transaction.id == first,
        change_sets=len(kept),
        changes=sum(len(each.changes) for each in kept),
    )


def waits_for(transaction: Transaction, now_ms: int) -> str:
    """Who has to do something next."""
    topics = f"{len(transaction.topics)} topic" + ("" if len(transaction.topics) == 1 else "s")
    if transaction.state is State.COMMITTING:
        return f"the rows of its commit, which are being written to {topics}"
    if transaction.state is State.ABORTING:
        return f"the roll back of its rows in {topics}; what fails is tried again by the job expiry"
    if now_ms >= transaction.deadline_ms:
        return "the job expiry, which ends it: its time is up"
    if transaction.doomed is not None:
        return "its client, which can only abort or invalidate it: it lost a write conflict"
    return "its client, which has to commit or abort it"


def at_deadline(transaction: Transaction) -> str:
    """The fate of the transaction at its deadline, in a sentence."""
    if transaction.state is State.COMMITTING:
        return "it is committed once its rows are written, and undone if the server dies before: its time-out counts no more"
    if transaction.state is State.ABORTING:
        return "it will be aborted: its time-out counts no more"
    if transaction.outside:
        return "it becomes invalid: it has, or may have, writes outside Basalt that only its client can undo"
    if transaction.tables:
        return "it becomes invalid: cells of tables are hidden, never undone"
    if transaction.topics:
        return "it is aborted, and its rows in topics are rolled back; nothing stays on the invalid list"
    return "it is aborted; there is nothing to undo"


def next_step(transaction: Transaction, name: str, now_ms: int) -> str:
    """The advice to an operator about the transaction, in a sentence; `name` is its id in the commands."""
    if transaction.state is State.COMMITTING:
        return "wait, and do not restart the server: its rows are being written, and a commit that this interrupts is undone"
    if transaction.state is State.ABORTING:
        return (
            f"wait; if the roll back keeps failing (see the log), `basalt tx invalidate {name}` hides its rows for good"
        )
    if now_ms >= transaction.deadline_ms:
        return "wait: the job expiry ends it in a moment"
    whom = f"ask its owner {transaction.owner}" if transaction.owner else "find its client"
    if transaction.outside:
        return (
            f"{whom} to undo its writes outside Basalt and to abort it; if nobody can, `basalt tx invalidate {name}`"
            " hides what it wrote under its pointers"
        )
    end = "invalidate" if transaction.cannot_roll_back or transaction.kind is Kind.LONG else "abort"
    return f"{whom} to end it, or end it yourself: `basalt tx {end} {name}`"


def why_hanging(
    transaction: Transaction, now_ms: int, older_than_ms: int | None, holds_readers: bool
) -> tuple[str, ...]:
    """Why somebody should look at it: held readers, its age, the half of its time-out; empty when there is no reason."""
    if transaction.was_invalid:
        return ()
    reasons = []
    age_ms = now_ms - transaction.began_ms
    if holds_readers:
        reasons.append("holds readers back")
    if older_than_ms is not None and age_ms > older_than_ms:
        reasons.append("old")
    if older_than_ms is None and HALF * age_ms > transaction.deadline_ms - transaction.began_ms:
        reasons.append("past half of its time-out")
    if transaction.state is not State.OPEN and now_ms >= transaction.deadline_ms:
        reasons.append("its end is not finished")
    return tuple(reasons)


def _bound(read_pointer: int, first: int | None) -> int:
    return read_pointer if first is None else min(read_pointer, first - 1)
