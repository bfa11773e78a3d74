"""What a call about transactions may carry, against the limits. Pure; every error names the limit and what came."""

from __future__ import annotations

from basalt.errors import InputError, InvalidNameError, TooLargeError
from basalt.transactions.rules.limits import (
    LEDGER_CHARS_MAX,
    OWNER_CHARS_MAX,
    REQUEST_ID_CHARS_MAX,
    SESSION_CHARS_MAX,
    Limits,
)
from basalt.transactions.rules.states import Kind, Transaction


def check_owner(owner: str) -> None:
    """`InvalidNameError` unless the owner can be shown in one line of a message."""
    if len(owner) > OWNER_CHARS_MAX or not owner.isprintable():
        raise InvalidNameError(
            f"an owner is at most {OWNER_CHARS_MAX} printable characters, this one has {len(owner)}:"
            f" {owner[:40]!r}; use a short name that tells people whom to ask",
            field="owner",
        )


def check_request_id(request_id: str | None) -> None:
    """`InputError` unless the request id, if there is one, is printable and of a sensible length."""
    if request_id is not None and not (0 < len(request_id) <= REQUEST_ID_CHARS_MAX and request_id.isprintable()):
        raise InputError(
            f"a request id is 1 to {REQUEST_ID_CHARS_MAX} printable characters, this one has {len(request_id)}:"
            f" {request_id[:40]!r}; use a UUID",
            field="requestId",
        )


def check_session_name(name: str) -> None:
    """`InvalidNameError` unless the name can be shown in one line, and stand in a path as one segment of it."""
    if not (0 < len(name) <= SESSION_CHARS_MAX and name.isprintable()) or "/" in name or name in (".", ".."):
        raise InvalidNameError(
            f"a session's name is 1 to {SESSION_CHARS_MAX} printable characters without a slash, not {name[:40]!r};"
            " name the job whose runs shall fence each other",
            field="name",
        )


def check_run(run: str) -> None:
    """`InputError` unless the run can be shown in one line of a message."""
    if not (0 < len(run) <= SESSION_CHARS_MAX and run.isprintable()):
        raise InputError(
            f"a run is 1 to {SESSION_CHARS_MAX} printable characters, not {run[:40]!r}; use something that differs in each"
            " run of the job, such as a host name and a start time, or a UUID",
            field="run",
        )


def check_ledger(ledger: str | None) -> None:
    """`InputError` unless the ledger's identity, if there is one, can be shown in one line of a message."""
    if ledger is not None and not (0 < len(ledger) <= LEDGER_CHARS_MAX and ledger.isprintable()):
        raise InputError(
            f"a ledger is 1 to {LEDGER_CHARS_MAX} printable characters, not {ledger[:40]!r}; use what names the one whose"
            " versions these are, such as the id of a query",
            field="ledger",
        )


def check_version(version: int | None) -> None:
    """`InputError` unless the version of a session's work, if there is one, fits 63 bits."""
    if version is not None and not 0 <= version < 1 << 63:
        raise InputError(f"a version is a number from 0 to 2^63 - 1, not {version}", field="version")


def checked_timeout_ms(limits: Limits, kind: Kind, timeout_ms: int | None) -> int:
    """The time-out of a new transaction; `InputError` when the one asked for is not positive or too long."""
    if kind is Kind.SHORT:
        default_ms, maximum_ms = limits.timeout_ms_default, limits.timeout_ms_max
    else:
        default_ms, maximum_ms = limits.long_timeout_ms, limits.lifetime_ms_max
    if timeout_ms is None:
        return default_ms
    if not 0 < timeout_ms <= maximum_ms:
        raise InputError(
            f"a {kind.name.lower()} transaction's time-out is 1 to {maximum_ms} ms, not {timeout_ms};"
            " ask for less, or begin a long transaction",
            field="timeoutMs",
        )
    return timeout_ms


def check_changes(limits: Limits, transaction: Transaction, changes: frozenset[bytes]) -> None:
    """`TooLargeError` when a change set is over the limits."""
    changes_bytes = sum(map(len, changes))
    if len(changes) > limits.changes_max or changes_bytes > limits.change_bytes_max:
        raise TooLargeError(
            f"the change set of transaction {transaction.id} (owner {transaction.owner}) has {len(changes)} entries of"
            f" {changes_bytes} bytes, the limits are {limits.changes_max} and {limits.change_bytes_max};"
            " detect conflicts by table instead of by row, or do less in one transaction",
            field="changes",
        )
