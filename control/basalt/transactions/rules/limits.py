"""The bounds of the transaction manager, each with its reason, and what a call may carry against them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from basalt.errors import InputError, InvalidNameError, TooLargeError
from basalt.transactions.rules.states import Kind, Transaction

OWNER_CHARS_MAX = 255  # shown in every message about the transaction
REQUEST_ID_CHARS_MAX = 255  # a UUID takes 36
CHECKPOINTS_MAX = 10_000  # per transaction; each is an entry of every later snapshot
TOPICS_MAX = 1_024  # per transaction; an abort rolls each of them back
TABLES_MAX = 1_024  # per transaction; each is a field of every later snapshot of the log
SESSION_CHARS_MAX = 255  # of a session's name and of a run: shown in messages, and in each path of the session
COUNTER_OWNER_CHARS_MAX = 255  # of who counts a session's versions: shown in messages; a UUID takes 36
# Of a session: its runs of before that may not begin by name any more. Whoever woke up after so many others would take the
# session over as a new run does, which loses nothing that was committed. About 0.1 KiB each.
REPLACED_RUNS_MAX = 64
FORGOTTEN_MAX = 100  # idle sessions that one call forgets, so that its log entry stays small
IDLE_LOOKED_AT_MAX = 20_000  # sessions that one call looks at for idle ones: two milliseconds
EXPIRED_MAX = 1_000  # transactions ended by one call of `expire`, so that its log entry stays small


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in milliseconds; every maximum is inclusive."""

    timeout_ms_default: int = 30_000
    timeout_ms_max: int = 600_000  # short ones hold readers back, and the change sets of all that commit meanwhile
    long_timeout_ms: int = 86_400_000
    lifetime_ms_max: int = 90_000_000  # of any transaction: payloads stored ahead are kept as much longer
    changes_max: int = 50_000  # entries of one change set
    change_bytes_max: int = 10 << 20  # bytes of one change set
    in_progress_max: int = 20_000  # write pointers; the transaction bytes of a client list them all
    # Bytes that all change sets take together: of open transactions, and of those that committed while an older short one is
    # open. About three million rows; a client that keeps one short transaction open must not take the server's memory.
    change_memory_bytes_max: int = 512 << 20
    outcomes_max: int = 16_384  # ended transactions that are remembered one by one, about 0.3 KiB each
    invalid_outcomes_max: int = 100_000  # invalid ones among them that are kept longer, for an abort may still come
    # Older ones are kept in blocks of some three bytes each: six hours of 1,000 transactions a second fit.
    outcome_block_bytes_max: int = 64 << 20
    requests_max: int = 100_000  # request ids that are remembered, about 0.3 KiB each
    memory_ms_max: int = 6 * 3_600_000  # how long outcomes and request ids are remembered at most
    sessions_max: int = 10_000  # named sessions, about 0.4 KiB each, and as much as the runs that were replaced
    session_ms_max: int = 7 * 86_400_000  # for so long a session is remembered that nobody uses
    allow_reset: bool = False  # only on test servers: a reset forgets what failed writers wrote


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


def check_counter_owner(owner: str | None) -> None:
    """`InputError` unless the identity of who counts a session's versions, if there is one, can be shown in one line of a message."""
    if owner is not None and not (0 < len(owner) <= COUNTER_OWNER_CHARS_MAX and owner.isprintable()):
        raise InputError(
            f"a ledger is 1 to {COUNTER_OWNER_CHARS_MAX} printable characters, not {owner[:40]!r}; use what names the one whose"
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
