"""The errors with which calls about transactions are refused, and their words: who, until when or since when, what next."""

from __future__ import annotations

from datetime import UTC, datetime

from basalt.errors import (
    BusyError,
    ConflictError,
    RequestReusedError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.outcomes import Outcome, Request
from basalt.transactions.pointers import POINTERS_PER_MS
from basalt.transactions.states import Loss, State, Transaction


def not_found(transaction_id: int) -> TransactionNotFoundError:
    """Nothing is known about the id."""
    return TransactionNotFoundError(
        f"transaction {transaction_id} is not known: it never began here, or it ended so long ago that its outcome is"
        " forgotten; begin a new one"
    )


def not_writing(write_pointer: int) -> TransactionNotFoundError:
    """Nothing is known about the write pointer."""
    return TransactionNotFoundError(
        f"write pointer {write_pointer} is not in progress: its transaction never began here, or has ended; begin a new"
        " transaction and write under its pointer"
    )


def ended(outcome: Outcome, call: str) -> TransactionEndedError:
    """`call` comes too late for a transaction that is as `outcome` says."""
    story, after = _STORY[outcome.state]
    what = story.format(time=_time(outcome.at_ms))
    if outcome.timed_out:
        what = f"timed out and {what}"
    return TransactionEndedError(f"{_named(outcome.id, outcome.owner)} {what}, so it takes no {call}; {after}")


def timed_out(transaction: Transaction, call: str, now_ms: int) -> TransactionEndedError:
    """`call` comes after the transaction's deadline."""
    return TransactionEndedError(
        f"{_named(transaction.id, transaction.owner)} timed out: its deadline was {_time(transaction.deadline_ms)},"
        f" it is {_time(now_ms)}; begin again, with a longer time-out if the work takes longer"
    )


def lost(transaction: Transaction, loss: Loss) -> TransactionConflictError:
    """The transaction is doomed."""
    return TransactionConflictError(
        f"{_named(transaction.id, transaction.owner)} lost a write conflict on {_key(loss.key)} to"
        f" {_named(loss.winner, loss.winner_owner)}, which committed first; abort it (or invalidate it, if its writes"
        " cannot be undone) and begin again"
    )


def reused(request: Request, call: str) -> RequestReusedError:
    """A request id comes again, for something else."""
    first = request.call.name.lower().replace("_", "-")
    return RequestReusedError(
        f"request id {request.id!r} was used for the {first} of transaction {request.transaction_id}, and now comes with"
        f" {call}; use a new request id for each call, the same one only to repeat it",
        field="requestId",
    )


def too_many(in_progress: int, limit: int, oldest: Transaction | None) -> BusyError:
    """No further write pointer may be in progress."""
    blame = ""
    if oldest is not None:
        blame = f" (the oldest is {_named(oldest.id, oldest.owner)}, deadline {_time(oldest.deadline_ms)})"
    return BusyError(
        f"{in_progress} write pointers are in progress{blame}, the limit is {limit}; try again when some have ended"
    )


def in_the_way(before_ms: int, oldest: Transaction) -> ConflictError:
    """The invalid list cannot be truncated at this time."""
    return ConflictError(
        f"the invalid list cannot be truncated before {_time(before_ms)}: {_named(oldest.id, oldest.owner)} is older and"
        f" in progress, deadline {_time(oldest.deadline_ms)}; choose a time up to {_time(oldest.id // POINTERS_PER_MS)}"
    )


_STORY = {
    State.OPEN: ("is open until {time}", "commit or abort it first"),
    State.COMMITTING: ("is being committed (its deadline was {time})", "ask for its outcome"),
    State.COMMITTED: ("was committed at {time}", "its writes stay; begin a new one to change them"),
    State.ABORTING: ("is being aborted (its deadline was {time})", "begin again"),
    State.ABORTED: ("was aborted at {time}", "begin again"),
    State.INVALID: ("went to the invalid list at {time}", "abort it if its writes are undone, or begin again"),
}


def _named(transaction_id: int, owner: str) -> str:
    return f"transaction {transaction_id} (owner {owner})" if owner else f"transaction {transaction_id}"


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a clock far out must not turn a refusal into a crash
        return f"{ms} ms"


def _key(key: bytes) -> str:
    text = key.decode("utf-8", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
