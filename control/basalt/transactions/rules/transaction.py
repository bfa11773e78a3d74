"""A transaction: its states and which event leads from one to another, its write pointers and id, and its bounds. No I/O.

    OPEN --commit--> COMMITTING --finish--> COMMITTED        COMMITTING and ABORTING last while the rows of the
      |--abort-----> ABORTING ----finish--> ABORTED          participants are written or rolled back; `inline` moves
      '--invalidate-----------------------> INVALID          skip them, for stores that write rows and log at once.

A transaction that cannot be undone (`Transaction.cannot_roll_back`) never goes through ABORTING: its abort is an invalidation.

A write pointer is milliseconds since 1970 times 1,000,000, plus a counter. It rises strictly and for ever: when the
clock stands still or steps back, the counter goes on from the last pointer, and borrows from the milliseconds if it must.

The numbers of states are those of the log (docs/formats/transaction-log.md) and, for `Kind` and `VisibilityLevel`, of the
transaction bytes that clients hold.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import msgspec

from basalt.errors import CorruptionError, InputError, InvalidNameError, TooLargeError, TransactionNotFoundError
from basalt_engine.snapshot import (
    NO_INVALID,
    NO_RUNS,
    POINTER_MAX,
    POINTERS_PER_MS,
    InvalidList,
    PointerRuns,
    TransactionSnapshot,
)  # fmt: skip

CLOCK_MS_MAX = POINTER_MAX // POINTERS_PER_MS - 1  # year 2262; a clock beyond it must not overflow a pointer
NO_SHORT = POINTER_MAX  # `first_short` when no short transaction is in progress: every pointer is older than it
CHUNK_POINTERS_MAX = 128  # an addition copies one chunk and the list of chunks, about 1 KiB each at 10,000 pointers
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
ACKNOWLEDGED_KEY = b"message "  # what the key of a loss begins with, where it is the acknowledgement of a message
EXPIRED_MAX = 1_000  # transactions ended by one call of `expire`, so that its log entry stays small

ID_PATTERN = "^([1-9][0-9]{0,18}|[0-9a-f]{32})$"

_COORDINATOR = re.compile(r"[0-9a-f]{16}")
_ID = re.compile(ID_PATTERN.strip("^$"))

Chunk = tuple[int, ...]


def next_pointer(last_pointer: int, now_ms: int) -> int:
    """The pointer to hand out after `last_pointer` at this time; always greater than it, whatever the clock says."""
    return max(last_pointer + 1, min(now_ms, CLOCK_MS_MAX) * POINTERS_PER_MS)


def _first(chunk: Chunk) -> int:
    return chunk[0]


class PointerSet:
    """An immutable sorted set of write pointers, in chunks that successive sets share.

    Each open transaction keeps the set that was in progress when it began. With plain tuples, 10,000 open transactions
    would keep 50 million entries, and each begin would copy 10,000.
    """

    __slots__ = ("_chunks", "_count")

    def __init__(self, chunks: tuple[Chunk, ...] = (), count: int = 0) -> None:
        self._chunks = chunks
        self._count = count

    @classmethod
    def of(cls, pointers: Iterable[int]) -> PointerSet:
        ordered = sorted(set(pointers))
        starts = range(0, len(ordered), CHUNK_POINTERS_MAX)
        return cls(tuple(tuple(ordered[start : start + CHUNK_POINTERS_MAX]) for start in starts), len(ordered))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks)

    def __contains__(self, pointer: int) -> bool:
        index = bisect_right(self._chunks, pointer, key=_first) - 1
        if index < 0:
            return False
        chunk = self._chunks[index]
        place = bisect_left(chunk, pointer)
        return place < len(chunk) and chunk[place] == pointer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PointerSet) and self._count == other._count and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PointerSet({self._count} pointers)"

    @property
    def first(self) -> int | None:
        """The oldest pointer, or None when the set is empty."""
        return self._chunks[0][0] if self._chunks else None

    def as_tuple(self) -> tuple[int, ...]:
        """All pointers, ascending; costs their number."""
        return tuple(chain.from_iterable(self._chunks))

    def with_added(self, pointer: int) -> PointerSet:
        """A set that also holds this pointer, which must not be in it yet. Cheapest at the end, where new ones go."""
        chunks = self._chunks
        index = max(bisect_right(chunks, pointer, key=_first) - 1, 0)
        if not chunks or (len(chunks[index]) == CHUNK_POINTERS_MAX and pointer > chunks[index][-1]):
            changed: tuple[Chunk, ...] = (*chunks[index : index + 1], (pointer,))
        else:
            place = bisect_left(chunks[index], pointer)
            assert place == len(chunks[index]) or chunks[index][place] != pointer, f"{pointer} is in the set already"
            grown = (*chunks[index][:place], pointer, *chunks[index][place:])
            changed = (grown,) if len(grown) <= CHUNK_POINTERS_MAX else _halves(grown)
        return PointerSet(chunks[:index] + changed + chunks[index + 1 :], self._count + 1)

    def without(self, pointer: int) -> PointerSet:
        """A set that does not hold this pointer; itself when it never did."""
        chunks = self._chunks
        index = bisect_right(chunks, pointer, key=_first) - 1
        if index < 0 or pointer not in chunks[index]:
            return self
        place = bisect_left(chunks[index], pointer)
        left = chunks[index][:place] + chunks[index][place + 1 :]
        if index and len(chunks[index - 1]) + len(left) <= CHUNK_POINTERS_MAX // 2:
            # Sets that shrink from all sides would otherwise end as many chunks of one pointer.
            return PointerSet((*chunks[: index - 1], chunks[index - 1] + left, *chunks[index + 1 :]), self._count - 1)
        return PointerSet(chunks[:index] + ((left,) if left else ()) + chunks[index + 1 :], self._count - 1)

    def difference(self, other: PointerSet) -> list[int]:
        """The pointers of this set that `other` does not hold, ascending; chunks that both share cost next to nothing."""
        shared = {id(piece) for piece in other._chunks}
        mine = set(chain.from_iterable(piece for piece in self._chunks if id(piece) not in shared))
        if not mine:
            return []
        kept = {id(piece) for piece in self._chunks}
        mine.difference_update(chain.from_iterable(piece for piece in other._chunks if id(piece) not in kept))
        return sorted(mine)


def _halves(chunk: Chunk) -> tuple[Chunk, Chunk]:
    middle = len(chunk) // 2
    return chunk[:middle], chunk[middle:]


class TransactionIds:
    """The ids of one installation's transactions. `coordinator` are its 16 hex digits."""

    def __init__(self, coordinator: str) -> None:
        if _COORDINATOR.fullmatch(coordinator) is None:
            raise CorruptionError(
                f"the installation's instance is {coordinator[:40]!r}, not 16 hex digits: it is part of every transaction id"
            )
        self.coordinator = coordinator

    def text(self, transaction_id: int) -> str:
        return f"{self.coordinator}{transaction_id:016x}"

    def parse(self, text: str, field: str) -> int:
        """The write pointer in an id; `TransactionNotFoundError` for one of another installation."""
        if _ID.fullmatch(text) is None:
            raise _no_id(text, field)
        if len(text) < 32:
            pointer = int(text)
        else:
            coordinator, pointer = text[:16], int(text[16:], 16)
            if coordinator != self.coordinator:
                raise TransactionNotFoundError(
                    f"transaction {text} belongs to another installation: its ids begin with {coordinator}, those of this"
                    f" one with {self.coordinator}",
                    field=field,
                    hint="Ask the server that it began at.",
                )
        if not 0 < pointer <= POINTER_MAX:
            raise _no_id(text, field)
        return pointer


def _no_id(text: str, field: str) -> InputError:
    return InputError(
        f"{text[:40]!r} is not a transaction id",
        field=field,
        hint="Use the id that begin answered: 32 hex digits; or a write pointer, in decimal.",
    )


class Kind(enum.IntEnum):
    """SHORT: time-outs of seconds, conflict detection. LONG: hours, no conflict detection, its abort is invalid."""

    SHORT = 1
    LONG = 2


class VisibilityLevel(enum.IntEnum):
    """The part of its own writes that a transaction sees."""

    SNAPSHOT = 1
    SNAPSHOT_EXCLUDE_CURRENT = 2  # all but those under its newest pointer
    SNAPSHOT_ALL = 3


class State(enum.IntEnum):
    """The states of a transaction; the numbers are on disk."""

    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5
    INVALID = 6


class Event(enum.Enum):
    """The events that may move a transaction to another state."""

    CHECKPOINT = "checkpoint"
    JOIN = "join"
    CHANGE = "change"  # its change set is told
    LOSE = "lose"  # another transaction won a write conflict: it is doomed
    COMMIT = "commit"
    COMMIT_INLINE = "commit inline"
    ABORT = "abort"
    ABORT_INLINE = "abort inline"
    INVALIDATE = "invalidate"
    FINISH = "finish"  # the participants are done
    GIVE_UP = "give up"  # a commit was interrupted before its outcome was logged: its rows are rolled back
    GIVE_UP_HIDDEN = "give up hidden"  # the same of one whose writes cannot be undone here: they are hidden for good


_WRITES = (Event.CHECKPOINT, Event.JOIN, Event.CHANGE, Event.LOSE)

# The state after each event that a state allows. One that stays itself is a repeated call, answered as the first was.
TRANSITIONS: dict[State, dict[Event, State]] = {
    State.OPEN: dict.fromkeys(_WRITES, State.OPEN)
    | {
        Event.COMMIT: State.COMMITTING,
        Event.COMMIT_INLINE: State.COMMITTED,
        Event.ABORT: State.ABORTING,
        Event.ABORT_INLINE: State.ABORTED,
        Event.INVALIDATE: State.INVALID,
    },
    State.COMMITTING: {
        Event.COMMIT: State.COMMITTING,
        Event.COMMIT_INLINE: State.COMMITTING,
        Event.FINISH: State.COMMITTED,
        Event.GIVE_UP: State.ABORTING,
        Event.GIVE_UP_HIDDEN: State.INVALID,
    },
    State.COMMITTED: dict.fromkeys((Event.COMMIT, Event.COMMIT_INLINE, Event.FINISH), State.COMMITTED),
    State.ABORTING: dict.fromkeys(
        (Event.ABORT, Event.ABORT_INLINE, Event.GIVE_UP, Event.GIVE_UP_HIDDEN), State.ABORTING
    )
    # An operator may give up on a roll back that keeps failing: the writes stay hidden either way.
    | {Event.INVALIDATE: State.INVALID, Event.FINISH: State.ABORTED},
    State.ABORTED: dict.fromkeys(
        (Event.ABORT, Event.ABORT_INLINE, Event.INVALIDATE, Event.FINISH, Event.GIVE_UP, Event.GIVE_UP_HIDDEN),
        State.ABORTED,
    ),
    State.INVALID: dict.fromkeys((Event.INVALIDATE, Event.FINISH, Event.GIVE_UP, Event.GIVE_UP_HIDDEN), State.INVALID)
    # The abort of a short transaction promises that its writes are undone, so it may leave the invalid list.
    | {Event.ABORT: State.ABORTING, Event.ABORT_INLINE: State.ABORTED},
}


def step(state: State, event: Event) -> State | None:
    """The state after the event: the same one for a repeated call, None when the state does not allow it."""
    return TRANSITIONS[state].get(event)


class Join(NamedTuple):
    """A topic that takes part in a transaction: rows of the writer lie in it, from this time on.

    `topic` is the topic prefix `namespace:topic:`.
    """

    topic: bytes
    generation: int
    from_ms: int

    @property
    def key(self) -> tuple[bytes, int]:
        return self[:2]


class TableJoin(NamedTuple):
    """A transactional table that takes part in a transaction: cells of the writer lie in it, or may.

    `table` is the table prefix `namespace:~table:`.
    """

    table: bytes
    generation: int


class SessionBinding(NamedTuple):
    """In which session a transaction began, and the version of the session's work that its commit makes true, if any."""

    name: str
    epoch: int
    version: int | None = None


class Belonging(NamedTuple):
    """Whose a transaction is: its principal's (empty: anonymous), and that of who may act in its session, if it is known to be in one."""

    principal: str
    session: str | None

    @property
    def shown(self) -> str:
        """The principal, for people."""
        return self.principal or "anonymous"


Sees = Callable[
    [Belonging | None], bool
]  # tells whether who asks may look at a transaction; of others it learns the id alone


def sees_all(_: Belonging | None) -> bool:
    """For who may look at every transaction."""
    return True


class Loss(NamedTuple):
    """The lost conflict that dooms a transaction: another one changed `key` and committed first.

    Of a message that it acknowledged: another one did so first, `winner`; or, 0, somebody without a transaction, or a seek.
    """

    winner: int
    key: bytes
    winner_owner: str

    @property
    def is_acknowledgement(self) -> bool:
        """True when `key` is no change, but what a group has of messages."""
        return self.key.startswith(ACKNOWLEDGED_KEY)


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction that has not ended. `id` is its first write pointer; times are in milliseconds since 1970.

    `read_pointer`, `concurrent`, `invalid` and `first_short` are its snapshot: what was true when it began.
    `external_writes` means that it has, or may have, writes outside Basalt that only its client can undo. `was_invalid` marks one
    that is being aborted from the invalid list: its pointers stay on that list until it is rolled back, and its snapshot
    is gone. `changes_unlogged`: its change set is deferred, and comes with the commit. `principal` began it, and is empty where
    nobody had to prove who they are; `owner` is a label, and proves nothing. `for_one_shot`: no client knows it, and the leader that began
    it alone can carry it on.
    """

    id: int
    kind: Kind
    read_pointer: int
    began_ms: int
    deadline_ms: int
    owner: str = ""
    external_writes: bool = False
    request_id: str | None = None
    checkpoints: tuple[int, ...] = ()
    concurrent: PointerSet = PointerSet()
    concurrent_runs: PointerRuns = NO_RUNS
    invalid: InvalidList = NO_INVALID
    first_short: int = NO_SHORT
    level: VisibilityLevel = VisibilityLevel.SNAPSHOT
    topics: tuple[Join, ...] = ()
    tables: tuple[TableJoin, ...] = ()
    session: SessionBinding | None = None
    changes: frozenset[bytes] | None = None
    changes_unlogged: bool = False
    state: State = State.OPEN
    doomed: Loss | None = None
    timed_out: bool = False
    was_invalid: bool = False
    principal: str = ""
    for_one_shot: bool = False

    @property
    def belonging(self) -> Belonging:
        return Belonging(self.principal, None if self.session is None else self.session.name)

    @property
    def write_pointer(self) -> int:
        """The pointer that it writes under now: its newest checkpoint, or its id."""
        return self.checkpoints[-1] if self.checkpoints else self.id

    @property
    def pointers(self) -> tuple[int, ...]:
        """All its write pointers, ascending; they live and die together."""
        return (self.id, *self.checkpoints)

    @property
    def cannot_roll_back(self) -> bool:
        """True when its writes, if it does not commit, can only be hidden: they are cells, or are outside Basalt."""
        return self.external_writes or bool(self.tables)

    @property
    def abort_rolls_back(self) -> bool:
        """True when an abort promises that its writes are undone.

        Of a long one nobody knows where its client wrote, unless it is of a session, which says so.
        """
        return not self.tables and (self.kind is Kind.SHORT or (self.session is not None and not self.external_writes))

    @property
    def in_progress(self) -> tuple[int, ...]:
        """The write pointers that were in progress when it began, ascending; costs their number."""
        return self.concurrent.as_tuple()

    def snapshot(self) -> TransactionSnapshot:
        excluded = self.write_pointer if self.level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT else None
        return TransactionSnapshot(
            read_pointer=self.read_pointer,
            write_pointer=self.write_pointer,
            in_progress=self.in_progress,
            invalid=self.invalid,
            own=self.pointers,
            excluded=excluded,
            in_progress_runs=self.concurrent_runs,
        )


@dataclass(frozen=True, slots=True)
class TransactionLimits:
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
    session_ms_max: int = 7 * 86_400_000  # time for which an unused session is remembered
    # Of acknowledged messages, with gaps between them, about 130 bytes each: of all consumer groups and all that is pending.
    group_spans_max: int = 1_000_000
    allow_reset: bool = False  # only on test servers: a reset forgets what failed writers wrote


def check_owner(owner: str) -> None:
    """`InvalidNameError` unless the owner can be shown in one line of a message."""
    if len(owner) > OWNER_CHARS_MAX or not owner.isprintable():
        raise InvalidNameError(
            f"an owner is at most {OWNER_CHARS_MAX} printable characters, this one has {len(owner)}:"
            f" {owner[:40]!r}; use a short name that tells people whom to ask",
            field="owner",
        )


def _is_text(text: str, chars_max: int) -> bool:
    return 0 < len(text) <= chars_max and text.isprintable()


def check_request_id(request_id: str | None) -> None:
    """`InputError` unless the request id, if there is one, is printable and of a sensible length."""
    if request_id is not None and not _is_text(request_id, REQUEST_ID_CHARS_MAX):
        raise InputError(
            f"a request id is 1 to {REQUEST_ID_CHARS_MAX} printable characters, this one has {len(request_id)}:"
            f" {request_id[:40]!r}; use a UUID",
            field="requestId",
        )


def check_session_name(name: str) -> None:
    """`InvalidNameError` unless the name can be shown in one line, and stand in a path as one segment of it."""
    if not _is_text(name, SESSION_CHARS_MAX) or "/" in name or name in (".", ".."):
        raise InvalidNameError(
            f"a session's name is 1 to {SESSION_CHARS_MAX} printable characters without a slash, not {name[:40]!r};"
            " name the job whose runs shall fence each other",
            field="name",
        )


def check_run(run: str) -> None:
    """`InputError` unless the run can be shown in one line of a message."""
    if not _is_text(run, SESSION_CHARS_MAX):
        raise InputError(
            f"a run is 1 to {SESSION_CHARS_MAX} printable characters, not {run[:40]!r}; use something that differs in each"
            " run of the job, such as a host name and a start time, or a UUID",
            field="run",
        )


def check_counter_owner(owner: str | None) -> None:
    """`InputError` unless the identity of who counts a session's versions, if there is one, can be shown in one line of a message."""
    if owner is not None and not _is_text(owner, COUNTER_OWNER_CHARS_MAX):
        raise InputError(
            f"a counter owner is 1 to {COUNTER_OWNER_CHARS_MAX} printable characters, not {owner[:40]!r}; use what names the one whose"
            " versions these are, such as the id of a query",
            field="counterOwner",
        )


def check_version(version: int | None) -> None:
    """`InputError` unless the version of a session's work, if there is one, fits 63 bits."""
    if version is not None and not 0 <= version < 1 << 63:
        raise InputError(f"a version is a number from 0 to 2^63 - 1, not {version}", field="version")


def checked_timeout_ms(limits: TransactionLimits, kind: Kind, timeout_ms: int | None) -> int:
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


def check_changes(limits: TransactionLimits, transaction: Transaction, changes: frozenset[bytes]) -> None:
    """`TooLargeError` when a change set is over the limits."""
    changes_bytes = sum(map(len, changes))
    if len(changes) > limits.changes_max or changes_bytes > limits.change_bytes_max:
        raise TooLargeError(
            f"the change set of transaction {transaction.id} (owner {transaction.owner}) has {len(changes)} entries of"
            f" {changes_bytes} bytes, the limits are {limits.changes_max} and {limits.change_bytes_max};"
            " detect conflicts by table instead of by row, or do less in one transaction",
            field="changes",
        )
