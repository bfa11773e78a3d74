"""The ends of transactions: one outcome, a block of many, packed into immutable bytes, a few bytes an outcome, and the memories that
hold them and request ids, bounded by number and age.

A log snapshot holds blocks as they are. The bytes of a block: docs/formats/transaction-log.md.
"""

from __future__ import annotations

import enum
import math
import struct
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Generic, NamedTuple, TypeVar

import msgspec

from basalt.transactions.rules.history import History, Items
from basalt.transactions.rules.transaction import (
    Belonging,
    Join,
    Kind,
    SessionBinding,
    State,
    TableJoin,
    Transaction,
    TransactionLimits,
)
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import POINTERS_PER_MS

PACKED_TOGETHER = 4_096  # outcomes that one edit packs, in about 4 ms; sorted, so that few blocks have old ids
BLOCK_OUTCOMES = 1_024  # unpacked to look one of them up, in a fifth of a millisecond

_WORD = (1 << 64) - 1
_STATE_BITS, _KIND_SHIFT, _KIND_BITS, _TIMED_OUT = 7, 3, 3, 32  # of the flags of a packed outcome
_FLAGS = frozenset(
    state | kind << _KIND_SHIFT | late
    for state in State
    if state is not State.INVALID
    for kind in Kind
    for late in (0, _TIMED_OUT)
)
_COLUMNS = ((8, "Q"), (8, "Q"), (8, "Q"), (2, "H"), (1, "B"))  # the bytes of each number, and its letter in `struct`
_COLUMN_BYTES = sum(width for width, _ in _COLUMNS)
_NOT_COMMITTED = (State.ABORTING, State.ABORTED, State.INVALID)
_COMPRESSION = 1  # of zlib: what is left is mostly zeros


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of a transaction, or its state until then. `at_ms` is when it ended (its deadline while it has not).

    `pointers`, `topics` and `tables` are kept for invalid transactions only: an abort that comes late rolls those topics
    back and takes the pointers off the invalid list, unless there are tables: cells are never rolled back. `session` is kept
    of what did not commit: whoever comes back to it may have been replaced. `principal` is that of the transaction.
    """

    id: int
    write_pointer: int
    state: State
    kind: Kind
    owner: str
    at_ms: int
    timed_out: bool = False
    pointers: tuple[int, ...] = ()
    topics: tuple[Join, ...] = ()
    tables: tuple[TableJoin, ...] = ()
    session: SessionBinding | None = None
    principal: str = ""

    @classmethod
    def of(cls, transaction: Transaction, state: State, at_ms: int, timed_out: bool) -> Outcome:
        """The outcome of a transaction that is now in this state."""
        invalid = state is State.INVALID
        return cls(
            transaction.id, transaction.write_pointer, state, transaction.kind, transaction.owner, at_ms, timed_out,
            transaction.pointers if invalid else (),
            transaction.topics if invalid else (),
            transaction.tables if invalid else (),
            transaction.session if state in _NOT_COMMITTED else None,
            transaction.principal,
        )  # fmt: skip

    @property
    def belonging(self) -> Belonging:
        return Belonging(self.principal, None if self.session is None else self.session.name)

    @property
    def abort_rolls_back(self) -> bool:
        """True when a late abort promises that its writes are undone: see `Transaction.abort_rolls_back`."""
        return not self.tables and self.kind is Kind.SHORT

    def revived(self) -> Transaction:
        """The invalid transaction, with what is left to know of it."""
        assert self.state is State.INVALID, "only of an invalid transaction is enough kept"
        return Transaction(
            id=self.id, kind=self.kind, read_pointer=0, began_ms=self.at_ms, deadline_ms=self.at_ms, owner=self.owner,
            checkpoints=self.pointers[1:], topics=self.topics, tables=self.tables,
            state=State.INVALID, timed_out=self.timed_out, was_invalid=True, principal=self.principal,
        )  # fmt: skip


class OutcomeBlock(msgspec.Struct, frozen=True):
    """Some ended transactions that are not invalid, by id: `first` is the lowest id, `last` the highest one.

    `data` are columns: the difference to the id before, when it ended (counted from its id), the newest checkpoint (counted
    from its id), the index of its owner, and flags. Each of `owners` is a label with the principal of who began.
    """

    first: int
    last: int
    newest_ms: int
    count: int
    owners: tuple[tuple[str, str], ...]
    data: bytes

    @classmethod
    def pack(cls, outcomes: Sequence[Outcome]) -> OutcomeBlock:
        """The block of these outcomes, which ascend by id."""
        count, ids = len(outcomes), [outcome.id for outcome in outcomes]
        named = dict.fromkeys((outcome.owner, outcome.principal) for outcome in outcomes)
        owners = {owner: index for index, owner in enumerate(named)}
        words = (
            [0, *(later - earlier for earlier, later in pairwise(ids))],
            [(outcome.at_ms - outcome.id // POINTERS_PER_MS) & _WORD for outcome in outcomes],
            [outcome.write_pointer - outcome.id for outcome in outcomes],
        )
        columns = [_by_byte(struct.pack(f">{count}Q", *column), 8) for column in words]
        columns.append(
            _by_byte(struct.pack(f">{count}H", *(owners[each.owner, each.principal] for each in outcomes)), 2)
        )
        columns.append(
            bytes([each.state | each.kind << _KIND_SHIFT | _TIMED_OUT * each.timed_out for each in outcomes])
        )
        newest_ms = max(outcome.at_ms for outcome in outcomes)
        return cls(ids[0], ids[-1], newest_ms, count, tuple(owners), zlib.compress(b"".join(columns), _COMPRESSION))

    @property
    def memory_bytes(self) -> int:
        return len(self.data) + sum(len(owner) + len(principal) + 176 for owner, principal in self.owners) + 256

    def get(self, transaction_id: int) -> Outcome | None:
        ids, columns = self.unpack_columns()
        index = bisect_left(ids, transaction_id)
        found = index < self.count and ids[index] == transaction_id
        return self._outcome(transaction_id, index, columns) if found else None

    def unpack_columns(self) -> tuple[list[int], list[tuple[int, ...]]]:
        """The ids, and the columns. `CorruptionError` when the bytes are not what `pack` made."""
        count = self.count
        try:
            raw = zlib.decompressobj().decompress(self.data, min(count, BLOCK_OUTCOMES) * _COLUMN_BYTES + 1)
        except zlib.error:
            raw = b""
        if not count or len(raw) != count * _COLUMN_BYTES:
            raise CorruptionError(f"a block of {count} outcomes holds {len(raw)} bytes")
        start, columns = 0, []
        for width, letter in _COLUMNS:
            stop = start + count * width
            columns.append(struct.unpack(f">{count}{letter}", _by_row(raw[start:stop], width, count)))
            start = stop
        ids = list(accumulate(columns[0], initial=self.first))[1:]
        ascending = (
            not columns[0][0] and min(columns[0][1:], default=1) > 0 and self.first >= 0 and ids[-1] == self.last
        )
        if not ascending or max(columns[3]) >= len(self.owners) or not _FLAGS.issuperset(columns[4]):
            raise CorruptionError(f"a block of {count} outcomes is not what was written")
        return ids, columns

    def _outcome(self, transaction_id: int, index: int, columns: Sequence[Sequence[int]]) -> Outcome:
        _, ages_ms, checkpoints, owners, flags = (column[index] for column in columns)
        at_ms = (transaction_id // POINTERS_PER_MS + ages_ms) & _WORD
        owner, principal = self.owners[owners]
        return Outcome(
            transaction_id,
            transaction_id + checkpoints,
            State(flags & _STATE_BITS),
            Kind(flags >> _KIND_SHIFT & _KIND_BITS),
            owner,
            at_ms - (1 << 64) if at_ms >> 63 else at_ms,
            flags >= _TIMED_OUT,
            principal=principal,
        )


def packed(outcomes: Iterable[Outcome]) -> Iterator[OutcomeBlock]:
    """The blocks of these outcomes, which may come in any order."""
    ordered = iter(sorted(outcomes, key=lambda outcome: outcome.id))
    while together := list(islice(ordered, BLOCK_OUTCOMES)):
        yield OutcomeBlock.pack(together)


def _by_byte(column: bytes, width: int) -> bytes:
    """First all first bytes of the numbers, then all second ones: most are zero, and neighbours compress well."""
    return b"".join([column[byte::width] for byte in range(width)])


def _by_row(column: bytes, width: int, count: int) -> bytes:
    """The inverse of `_by_byte`."""
    rows = bytearray(len(column))
    for byte in range(width):
        rows[byte::width] = column[byte * count : (byte + 1) * count]
    return bytes(rows)


class RequestCall(enum.IntEnum):
    """The call that a request id was used for; the numbers are on disk."""

    BEGIN = 1
    COMMIT = 2
    ONE_SHOT = 3


class RequestUse(msgspec.Struct, frozen=True, gc=False):
    """The first use of a request id."""

    id: str
    call: RequestCall
    transaction_id: int
    at_ms: int


Item = TypeVar("Item", Outcome, RequestUse)


class Memory(Generic[Item]):
    """The newest items by id, oldest first: at most `count_max`, and none older than `age_ms_max` before the newest."""

    def __init__(self, count_max: float, age_ms_max: int, items: Iterable[Item] = ()) -> None:
        assert count_max > 0, "a memory holds at least the newest item"
        self._count_max = count_max
        self._age_ms_max = age_ms_max
        self._history: History[Item] = History(items)
        self._by_id: dict[int | str, Item] = {item.id: item for item in self._history}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, item_id: int | str) -> Item | None:
        return self._by_id.get(item_id)

    def put(self, item: Item) -> None:
        """Remember an item; one of the same id is replaced where it stands."""
        before = self._by_id.get(item.id)
        self._by_id[item.id] = item
        if before is None:
            self._history.append(item)
        else:
            self._history.replace(before, item)
        self.forget(item.at_ms)

    def forget(self, now_ms: int) -> None:
        """Forget what is over the bounds at this time."""
        oldest_ms = now_ms - self._age_ms_max
        while (first := self._history.first) is not None and (
            first.at_ms < oldest_ms or len(self._by_id) > self._count_max
        ):
            self.pop_oldest()

    def pop_oldest(self) -> Item:
        item = self._history.popleft()
        del self._by_id[item.id]
        return item

    def entries(self) -> History[Item]:
        """The items that are remembered now, as a copy: costs their pages."""
        return self._history.copy()


class RememberedOutcomes(NamedTuple):
    """The contents of an `OutcomeMemory`, each part oldest first."""

    recent: Items[Outcome] = ()
    invalid: Items[Outcome] = ()
    blocks: tuple[OutcomeBlock, ...] = ()


class OutcomeMemory:
    """The newest outcomes one by one, older ones in blocks. Invalid ones stay as they are, for an abort may still come; so do
    those of sessions that did not commit, whose runs may come back.
    """

    def __init__(self, limits: TransactionLimits, remembered: RememberedOutcomes | None = None) -> None:
        held = remembered or RememberedOutcomes()
        self._limits = limits
        self._recent = Memory(math.inf, limits.memory_ms_max, held.recent)
        self._invalid = Memory(limits.invalid_outcomes_max, limits.memory_ms_max, held.invalid)
        self._blocks = deque(held.blocks)
        self._block_bytes = sum(block.memory_bytes for block in held.blocks)

    def __len__(self) -> int:
        return len(self._recent) + len(self._invalid) + sum(block.count for block in self._blocks)

    def get(self, transaction_id: int) -> Outcome | None:
        found = self._recent.get(transaction_id) or self._invalid.get(transaction_id)
        if found is not None:
            return found
        for block in reversed(self._blocks):
            if block.first <= transaction_id <= block.last:
                found = block.get(transaction_id)
                if found is not None:
                    return found
        return None

    def put(self, outcome: Outcome) -> None:
        """Remember an outcome; one of the same transaction is replaced where it stands."""
        if self._invalid.get(outcome.id) is None:
            self._recent.put(outcome)
            self._invalid.forget(outcome.at_ms)
        else:
            self._invalid.put(outcome)
            self._recent.forget(outcome.at_ms)
        if len(self._recent) > self._limits.outcomes_max:
            self._pack()
        oldest_ms = outcome.at_ms - self._limits.memory_ms_max
        while self._blocks and (
            self._blocks[0].newest_ms < oldest_ms or self._block_bytes > self._limits.outcome_block_bytes_max
        ):
            self._block_bytes -= self._blocks.popleft().memory_bytes

    def remembered(self) -> RememberedOutcomes:
        """All that is remembered, as a copy: costs pages and blocks, not outcomes."""
        return RememberedOutcomes(self._recent.entries(), self._invalid.entries(), tuple(self._blocks))

    def _pack(self) -> None:
        """Move the oldest of the recent outcomes into blocks; the newest one stays."""
        oldest = [self._recent.pop_oldest() for _ in range(min(PACKED_TOGETHER, len(self._recent) - 1))]
        for outcome in oldest:
            if _stays_whole(outcome):
                self._invalid.put(outcome)
        for block in packed(each for each in oldest if not _stays_whole(each)):
            self._blocks.append(block)
            self._block_bytes += block.memory_bytes


def _stays_whole(outcome: Outcome) -> bool:
    return outcome.state is State.INVALID or outcome.session is not None
