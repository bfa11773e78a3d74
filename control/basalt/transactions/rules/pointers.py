"""Write pointers: how the next one is found, and the sorted sets of them that transactions share.

A write pointer is milliseconds since 1970 times 1,000,000, plus a counter. It rises strictly and for ever: when the
clock stands still or steps back, the counter goes on from the last pointer, and borrows from the milliseconds if it must.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

from basalt.errors import CorruptionError, InputError, TransactionNotFoundError
from basalt_engine.snapshot import POINTER_MAX

POINTERS_PER_MS = 1_000_000
CLOCK_MS_MAX = POINTER_MAX // POINTERS_PER_MS - 1  # year 2262; a clock beyond it must not overflow a pointer
CHUNK_POINTERS_MAX = 128  # an addition copies one chunk and the list of chunks, about 1 KiB each at 10,000 pointers

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
        """The set of these pointers, which may come in any order."""
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


ID_PATTERN = "^([1-9][0-9]{0,18}|[0-9a-f]{32})$"

_COORDINATOR = re.compile(r"[0-9a-f]{16}")
_ID = re.compile(ID_PATTERN.strip("^$"))


class TransactionIds:
    """The ids of one installation's transactions. `coordinator` are its 16 hex digits."""

    def __init__(self, coordinator: str) -> None:
        if _COORDINATOR.fullmatch(coordinator) is None:
            raise CorruptionError(
                f"the installation's instance is {coordinator[:40]!r}, not 16 hex digits: it is part of every transaction id"
            )
        self.coordinator = coordinator

    def text(self, transaction_id: int) -> str:
        """The id as it is shown."""
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
