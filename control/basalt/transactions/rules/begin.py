"""How a transaction begins, whoever asks: a client, or a run by the name of its session. Pure."""

from __future__ import annotations

from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.checks import check_owner, checked_timeout_ms
from basalt.transactions.rules.pointers import next_pointer
from basalt.transactions.rules.proposals import Proposal
from basalt.transactions.rules.states import InSession, Kind
from basalt.transactions.rules.transaction_table import Ledger


def begun(
    ledger: Ledger,
    now_ms: int,
    kind: Kind,
    timeout_ms: int | None,
    owner: str,
    outside: bool,
    request_id: str | None,
    session: InSession | None,
) -> Proposal:
    """A new transaction, if there is room. `InputError` for a bad time-out or owner."""
    check_owner(owner)
    timeout_ms = checked_timeout_ms(ledger.limits, kind, timeout_ms)
    pointer = next_pointer(ledger.last_pointer, now_ms)
    began = edits.Began(pointer, kind, outside, now_ms, now_ms + timeout_ms, owner, request_id)
    return Proposal((began,) if session is None else (began, edits.SessionBegan(pointer, session)), pointer)


def check_room(ledger: Ledger, ending: int = 0) -> None:
    """`BusyError` when no further write pointer may be in progress. `ending`: so many will be in progress no more."""
    in_progress, limit = ledger.in_progress, ledger.limits.in_progress_max
    if len(in_progress) - ending >= limit:
        oldest = None if in_progress.first is None else ledger.transactions[in_progress.first]
        raise refusals.too_many(len(in_progress), limit, oldest)
