"""The errors with which calls about transactions are refused, and their words: who, until when or since when, what next."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

from basalt.errors import (
    AcknowledgeConflictError,
    BasaltError,
    BusyError,
    ChangesLostError,
    ConflictError,
    GroupNotFoundError,
    SessionFencedError,
    SessionNotFoundError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Loss, State, Transaction
from basalt_engine.cells.names import change_text
from basalt_engine.errors import FencedError
from basalt_engine.snapshot import POINTERS_PER_MS

T = TypeVar("T", bound=BasaltError)


def not_found(transaction_id: int) -> TransactionNotFoundError:
    return TransactionNotFoundError(
        f"transaction {transaction_id} is not known: it never began here, or it ended so long ago that its outcome is"
        " forgotten; begin a new one"
    )


def not_writing(write_pointer: int) -> TransactionNotFoundError:
    return TransactionNotFoundError(
        f"write pointer {write_pointer} is not in progress: its transaction never began here, or has ended; begin a new"
        " transaction and write under its pointer"
    )


def ended(outcome: Outcome, call: str) -> TransactionEndedError:
    story, after = _STORY[outcome.state]
    what = story.format(time=time_text(outcome.at_ms))
    if outcome.timed_out:
        what = f"timed out and {what}"
    return TransactionEndedError(f"{_named(outcome.id, outcome.owner)} {what}, so it takes no {call}; {after}")


def ended_by_fence(outcome: Outcome, fence: SessionFencedError) -> SessionFencedError:
    what = _STORY[outcome.state][0].format(time=time_text(outcome.at_ms))
    return SessionFencedError(f"{_named(outcome.id, outcome.owner)} {what}, and {fence.message}")


def timed_out(transaction: Transaction, now_ms: int) -> TransactionEndedError:
    return TransactionEndedError(
        f"{_named(transaction.id, transaction.owner)} timed out: its deadline was {time_text(transaction.deadline_ms)},"
        f" it is {time_text(now_ms)}; begin again, with a longer time-out if the work takes longer"
    )


def naming(error: T, others: Iterable[int], without_names: str) -> T:
    """The error, which names transactions that may be another's than the caller's; `without_names` is what it says to who may not see them."""
    error.others, error.without_names = tuple(others), without_names
    return error


def lost(transaction: Transaction, loss: Loss) -> TransactionConflictError:
    if loss.winner == 0:
        return TransactionConflictError(
            f"{_named(transaction.id, transaction.owner)} lost {_key(loss.key)} to an acknowledgement or a seek outside"
            " transactions, which came first; abort it, and drop what it read"
        )
    loser = _named(transaction.id, transaction.owner)
    advice = (
        f"which {'came' if loss.is_acknowledgement else 'committed'} first; abort it (or invalidate it, if its writes"
        " cannot be undone) and begin again"
    )
    return naming(
        TransactionConflictError(
            f"{loser} lost a write conflict on {_key(loss.key)} to {_named(loss.winner, loss.winner_owner)}, {advice}"
        ),
        (loss.winner,),
        f"{loser} lost a write conflict to transaction {loss.winner}, {advice}",
    )


def changes_lost(transaction: Transaction) -> ChangesLostError:
    """The refusal of a commit whose deferred change set was lost: it would not know what to check."""
    return ChangesLostError(
        f"{_named(transaction.id, transaction.owner)} may have told its change set before the server read its log again,"
        " which does not have it; tell it again (canCommit; an empty one if nothing was changed) and commit, or abort"
    )


def too_many(in_progress: int, limit: int, oldest: Transaction | None) -> BusyError:
    blame = ""
    if oldest is not None:
        blame = f" (the oldest is {_named(oldest.id, oldest.owner)}, deadline {time_text(oldest.deadline_ms)})"
    told = "{} write pointers are in progress{}, the limit is {}; try again when some have ended"
    return naming(
        BusyError(told.format(in_progress, blame, limit)),
        () if oldest is None else (oldest.id,),
        told.format(in_progress, "", limit),
    )


def too_many_changes(held_bytes: int, added_bytes: int, limit: int, oldest: Transaction | None) -> BusyError:
    blame = ""
    if oldest is not None:
        blame = (
            f"; those of committed transactions are kept for {_named(oldest.id, oldest.owner)}, the oldest short one, until"
            f" it ends, at {time_text(oldest.deadline_ms)} at the latest"
        )
    told = (
        f"all change sets together take {held_bytes} bytes of memory, this one {added_bytes} more, the limit is"
        f" {limit}{{}}; try again when it has ended, or detect conflicts by table instead of by row"
    )
    named = "" if oldest is None else f"; those of committed transactions are kept for transaction {oldest.id}"
    return naming(BusyError(told.format(blame)), () if oldest is None else (oldest.id,), told.format(named))


def too_much(transaction: Transaction, limit: int, parts: str) -> TooLargeError:
    return TooLargeError(
        f"{_named(transaction.id, transaction.owner)} has {limit:,} {parts}, the most that one may have; commit it, and go on"
        " in a new one"
    )


def in_the_way(before_ms: int, oldest: Transaction) -> ConflictError:
    told = (
        f"the invalid list cannot be truncated before {time_text(before_ms)}: {{}} is older and"
        f" in progress, deadline {time_text(oldest.deadline_ms)}; choose a time up to {time_text(oldest.id // POINTERS_PER_MS)}"
    )
    return naming(
        ConflictError(told.format(_named(oldest.id, oldest.owner))), (oldest.id,), told.format(_named(oldest.id, ""))
    )


def led_by(leader_epoch: int, epoch: int) -> FencedError:
    return FencedError(
        f"epoch {epoch} is over: the server of epoch {leader_epoch} leads", hint="ask the present leader"
    )


def no_reset() -> ConflictError:
    return ConflictError(
        "this server keeps its transactions: a reset would make what failed writers wrote visible",
        hint="On a test server, set transactions.allow_reset to true and start it again.",
    )


def no_session(name: str) -> SessionNotFoundError:
    return SessionNotFoundError(
        f"there is no session {name!r}: it was never opened, or was deleted, or nobody has used it for so long that it is"
        " forgotten; open it",
        field="session",
    )


def no_group(which: str) -> GroupNotFoundError:
    return GroupNotFoundError(
        f"there is no consumer group {which}: it was never made, or was deleted, or its topic was", field="group"
    )


def acknowledges(transaction: Transaction, group: str) -> ConflictError:
    """The refusal of what would take a pending acknowledgement away from its transaction."""
    told = (
        f"{{}} has acknowledged messages of group {group} and not committed yet;"
        f" it has time until {time_text(transaction.deadline_ms)}"
    )
    error = ConflictError(
        told.format(_named(transaction.id, transaction.owner)),
        field="group",
        hint="Wait until it has ended, abort it, or force the call.",
    )
    return naming(error, (transaction.id,), told.format(_named(transaction.id, "")))


def acknowledged_by(
    holder: Transaction, message_id: bytes, group: str, *, one_shot: bool = False
) -> TransactionConflictError | AcknowledgeConflictError:
    """The refusal to acknowledge or release what is pending in a transaction."""
    kind = TransactionConflictError if one_shot else AcknowledgeConflictError
    told = (
        f"message {message_id.hex()} of group {group} is acknowledged by {{}}, which has time to"
        f" commit until {time_text(holder.deadline_ms)}"
    )
    error = kind(
        told.format(_named(holder.id, holder.owner)),
        hint="Drop the message: if that transaction does not commit, it is dealt again.",
    )
    return naming(error, (holder.id,), told.format(_named(holder.id, "")))


def acknowledged_before(message_id: bytes, group: str) -> TransactionConflictError:
    """The refusal of a one-shot transaction that acknowledges what is acknowledged."""
    return TransactionConflictError(
        f"message {message_id.hex()} of group {group}, or one before it, is acknowledged already: somebody else has handled"
        " it, and nothing was done; drop what was read"
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


def time_text(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a clock far out must not turn a refusal into a crash
        return f"{ms} ms"


def _key(key: bytes) -> str:
    text = change_text(key)
    if text is not None:
        return text
    text = key.decode("utf-8", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
