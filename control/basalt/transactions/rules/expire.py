"""How transactions end that nobody asked to end: their time is up, or another run took their session over."""

from __future__ import annotations

from collections.abc import Iterable

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.states import Transaction


def ends(transactions: Iterable[Transaction], now_ms: int, *, timed_out: bool) -> tuple[Edit, ...]:
    """The edits that end open transactions: what cannot be undone here becomes invalid, the rest is aborted."""
    invalid: list[int] = []
    ended: list[Edit] = []
    for transaction in transactions:
        if transaction.hides:
            invalid.append(transaction.id)
        elif transaction.topics:
            ended.append(edits.Aborting(transaction.id, timed_out))
        else:
            ended.append(edits.Aborted(transaction.id, now_ms, timed_out))
    if invalid:  # one edit for all: each copies the invalid list
        ended.append(edits.Invalidated(tuple(sorted(invalid)), now_ms, timed_out))
    return tuple(ended)
