"""The bounds of the transaction manager, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

OWNER_CHARS_MAX = 255  # shown in every message about the transaction
REQUEST_ID_CHARS_MAX = 255  # a UUID takes 36
CHECKPOINTS_MAX = 10_000  # per transaction; each is an entry of every later snapshot
TOPICS_MAX = 1_024  # per transaction; an abort rolls each of them back
TABLES_MAX = 1_024  # per transaction; each is a field of every later snapshot of the log
SESSION_CHARS_MAX = 255  # of a session's name and of a run: shown in messages, and in each path of the session
LEDGER_CHARS_MAX = 255  # of a ledger's identity: shown in messages; a UUID takes 36
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
    outcomes_max: int = 100_000  # ended transactions that are remembered, about 0.3 KiB each
    requests_max: int = 100_000  # request ids that are remembered, about 0.3 KiB each
    memory_ms_max: int = 6 * 3_600_000  # how long outcomes and request ids are remembered at most
    sessions_max: int = 10_000  # named sessions, about 0.4 KiB each, and as much as the runs that were replaced
    session_ms_max: int = 7 * 86_400_000  # for so long a session is remembered that nobody uses
    allow_reset: bool = False  # only on test servers: a reset forgets what failed writers wrote
