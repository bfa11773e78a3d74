"""Spans: a set of ranges of message ids, which is how a consumer group's progress is kept.

A span is (after, through]: it begins behind the id `after` and ends with `through`. Ids are the 20 bytes of `MessageId`, and
compare as bytes. A set is kept as short as it can be: spans do not overlap, and such as touch are one. Whoever covers a message
covers all from the message before it on, so neighbours merge without a look at the log, and between two spans of a group
lies a message that it has not acknowledged.

    spans := count varint, (shared u8, length u8, bytes)*2·count

The ids of all spans stand one after the other, so they ascend. `shared` is how many bytes an id has in common with the one
before it, 0 for the first; `bytes` is what follows, without the zero bytes at its end. Format: docs/formats/transaction-log.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice
from operator import eq, getitem, le, lt, ne, xor
from typing import Any

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.varints import decode_varint, encode_varint

_Columns = tuple[list[bytes], list[bytes]]  # the begins and the ends of spans
ZERO_ID = bytes(MESSAGE_ID_BYTES)  # before every message
_ID_BITS = 8 * MESSAGE_ID_BYTES
_LENGTHS = {MESSAGE_ID_BYTES}
# By the bits from the first one on in which an id differs from the one before it: which bytes are its own, and what stands before
# so many of them.
_RESTS = [slice(MESSAGE_ID_BYTES - (bits + 7) // 8, None) for bits in range(_ID_BITS + 1)]
_HEADS = [[bytes((rest.start, length)) for length in range(MESSAGE_ID_BYTES + 1)] for rest in _RESTS]
_ENCODED_SPAN_BYTES_MIN = 4  # two ids without bytes of their own
BLOCK_SPANS_MAX = 512  # of which half are moved for one that comes between them, in a tenth of a microsecond
FEW = 16  # so many times fewer spans than there are: each is searched for, instead of going through all of them


class SpanBlocks:
    """Disjoint spans in order, in blocks: one that comes amid a hundred thousand moves some hundreds, not all behind it.

    A place among them is the number of a block and an index in it; behind the last one it is (number of blocks, 0).
    """

    __slots__ = ("_afters", "_count", "_ends", "_throughs", "_values")

    def __init__(self, values: list[list[Any]] | None = None) -> None:
        self._afters: list[list[bytes]] = []
        self._throughs: list[list[bytes]] = []
        self._values = values  # what belongs to each, where something does
        self._ends: list[bytes] = []  # of the last span of each block
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _at_or_behind(self, place: bytes) -> tuple[int, int]:
        """The place of the first span that ends there or later."""
        block = bisect_left(self._ends, place)
        return (block, bisect_left(self._throughs[block], place)) if block < len(self._ends) else (block, 0)

    def _behind(self, place: bytes) -> tuple[int, int]:
        """The place of the first span that ends later."""
        block = bisect_right(self._ends, place)
        return (block, bisect_right(self._throughs[block], place)) if block < len(self._ends) else (block, 0)

    def _splice(self, first: tuple[int, int], stop: tuple[int, int], *columns: list[Any]) -> None:
        """Put spans, as many as there are in each of the columns, in the place of those from `first` to before `stop`. It keeps the columns."""
        (block, index), (stop_block, stop_index) = first, stop
        if stop_index == 0 and stop_block > block:  # the end of the block before it
            stop_block -= 1
            stop_index = len(self._afters[stop_block])
        if block == len(self._ends) and block:  # behind the last one
            block -= 1
            index = len(self._afters[block])
            stop_block, stop_index = block, index
        mine = (self._afters, self._throughs) if self._values is None else (self._afters, self._throughs, self._values)
        whole: list[list[Any]] = []
        if not self._ends:
            whole += columns
        elif block == stop_block:
            self._count -= len(self._afters[block])
            for blocks, new in zip(mine, columns, strict=True):
                blocks[block][index:stop_index] = new
                whole.append(blocks[block])
        else:
            self._count -= sum(map(len, self._afters[block : stop_block + 1]))
            whole = [
                [*blocks[block][:index], *new, *blocks[stop_block][stop_index:]]
                for blocks, new in zip(mine, columns, strict=True)
            ]
        self._count += len(whole[0])
        if len(whole[0]) <= BLOCK_SPANS_MAX:
            for blocks, own in zip(mine, whole, strict=True):
                blocks[block : stop_block + 1] = [own] if own else []
            self._ends[block : stop_block + 1] = whole[1][-1:]
            return
        # Half full, unless more comes at the end.
        step = BLOCK_SPANS_MAX if stop_block >= len(self._ends) - 1 else BLOCK_SPANS_MAX // 2
        cuts = range(0, len(whole[0]), step)
        for blocks, own in zip(mine, whole, strict=True):
            blocks[block : stop_block + 1] = [own[at : at + step] for at in cuts]
        self._ends[block : stop_block + 1] = [whole[1][min(at + step, len(whole[1])) - 1] for at in cuts]

    def _from(self, block: int, index: int) -> Iterator[tuple[bytes, bytes]]:
        """All spans from a place on."""
        while block < len(self._ends):
            yield from zip(
                islice(self._afters[block], index, None), islice(self._throughs[block], index, None), strict=True
            )
            block, index = block + 1, 0

    def _parts(self, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes]]:
        for begin, end in self._from(*self._behind(after)):
            if begin >= through:
                return
            yield max(after, begin), min(through, end)

    def gaps(self, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The parts of (after, through] that no span covers, in order. Do not change the spans while they are asked."""
        if after >= through:
            return
        for begin, end in self._from(*self._behind(after)):
            if begin >= through:
                break
            if after < begin:
                yield after, begin
            after = end
            if after >= through:
                return
        yield after, through

    def overlaps(self, after: bytes, through: bytes) -> bool:
        """True when some of (after, through] is inside a span."""
        block = bisect_right(self._ends, after)
        return block < len(self._ends) and self._afters[block][bisect_right(self._throughs[block], after)] < through

    def meets(self, other: SpanBlocks) -> bool:
        """True when some id is inside a span of both."""
        if not self._count or not other._count:
            return False
        if self._ends[-1] <= other._afters[0][0] or other._ends[-1] <= self._afters[0][0]:
            return False
        if other._count == 1 or other._count * FEW <= self._count:
            return any(map(self.overlaps, chain.from_iterable(other._afters), chain.from_iterable(other._throughs)))
        if self._count == 1 or self._count * FEW <= other._count:
            return any(map(other.overlaps, chain.from_iterable(self._afters), chain.from_iterable(self._throughs)))
        afters, throughs = self._columns_within(other._afters[0][0], other._ends[-1])
        afters += chain.from_iterable(other._afters)
        throughs += chain.from_iterable(other._throughs)
        afters.sort()
        throughs.sort()
        return not all(map(le, throughs, islice(afters, 1, None)))

    def _parts_outside(self, other: SpanBlocks, afters: list[bytes], throughs: list[bytes]) -> _Columns:
        """The parts of these spans that the other set does not cover: what they have in common with its gaps."""
        begins, ends = other._columns_within(afters[0], throughs[-1])
        gaps, behind = [afters[0], *ends], [*begins, throughs[-1]]
        kept = list(map(lt, gaps, behind))
        return common_parts(afters, throughs, list(compress(gaps, kept)), list(compress(behind, kept)))

    def _columns_within(self, after: bytes, through: bytes) -> _Columns:
        """The blocks in which there are spans that overlap (after, through], and maybe others."""
        return self._columns(self._behind(after)[0], self._at_or_behind(through)[0] + 1)

    def _columns(self, first_block: int, stop_block: int) -> _Columns:
        return (
            list(chain.from_iterable(self._afters[first_block:stop_block])),
            list(chain.from_iterable(self._throughs[first_block:stop_block])),
        )


class Spans(SpanBlocks):
    """A set of ids as disjoint spans, in order. Calls cost a binary search or two."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__()
        if not pairs:
            return
        given = pairs if isinstance(pairs, list) else list(pairs)
        if len(given) == 1:
            _check(*given[0])
            (after, through), self._count = given[0], 1
            self._afters, self._throughs, self._ends = [[after]], [[through]], [through]
        elif given:
            afters, throughs = [after for after, _ in given], [through for _, through in given]
            if (
                set(map(len, afters)) != _LENGTHS
                or set(map(len, throughs)) != _LENGTHS
                or not all(map(lt, afters, throughs))
            ):
                for after, through in given:
                    _check(after, through)
            self._splice((0, 0), (0, 0), *_joined(afters, throughs))

    @classmethod
    def ascending(cls, afters: list[bytes], throughs: list[bytes]) -> Spans:
        """The spans of these begins and ends, which are ids, ascend and do not overlap; some may touch. It keeps the lists."""
        spans = cls()
        if afters:
            behind = afters[1:]
            ends = list(map(ne, throughs, behind))
            if not all(ends):
                afters, throughs = [afters[0], *compress(behind, ends)], [*compress(throughs, ends), throughs[-1]]
            spans._splice((0, 0), (0, 0), afters, throughs)
        return spans

    @classmethod
    def union(cls, sets: Iterable[Spans]) -> Spans:
        """All that any of these sets covers, as a set of its own."""
        given, made = list(sets), cls()
        if len(given) == 1:
            return given[0].copy()
        afters = list(chain.from_iterable(chain.from_iterable([each._afters for each in given])))
        if afters:
            throughs = list(chain.from_iterable(chain.from_iterable([each._throughs for each in given])))
            made._splice((0, 0), (0, 0), *_joined(afters, throughs))
        return made

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(chain.from_iterable(self._afters), chain.from_iterable(self._throughs), strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        if self._count != other._count:
            return False
        # Most are copies, in the same blocks: then nothing is made for each span.
        return (self._throughs == other._throughs and self._afters == other._afters) or all(map(eq, self, other))

    def __repr__(self) -> str:
        return "Spans([" + ", ".join(f"({after.hex()}, {through.hex()}]" for after, through in self) + "])"

    def copy(self) -> Spans:
        made = Spans()
        made._be(self)
        return made

    def _be(self, other: Spans) -> None:
        self._afters, self._throughs = list(map(list.copy, other._afters)), list(map(list.copy, other._throughs))
        self._ends, self._count = other._ends.copy(), other._count

    @property
    def begin(self) -> bytes:
        """The id behind which the first span begins; `ZERO_ID` where there is none."""
        return self._afters[0][0] if self._ends else ZERO_ID

    @property
    def floor(self) -> bytes:
        """The id through which everything is covered, from the first that there can be; `ZERO_ID` where nothing is."""
        return self._throughs[0][0] if self._ends and self._afters[0][0] == ZERO_ID else ZERO_ID

    def covers(self, message_id: bytes) -> bool:
        """True when the id is inside a span."""
        block, index = self._at_or_behind(message_id)
        return block < len(self._ends) and self._afters[block][index] < message_id

    def covered(self, ids: Iterable[bytes]) -> int:
        """The number of these ids that are inside a span."""
        ends, number = self._ends, 0
        for message_id in ids:  # as `covers`, without a call for each
            block = bisect_left(ends, message_id)
            if block < len(ends):
                number += self._afters[block][bisect_left(self._throughs[block], message_id)] < message_id
        return number

    def contains(self, after: bytes, through: bytes) -> bool:
        """True when all of (after, through] is inside a span."""
        block, index = self._at_or_behind(through)
        return block < len(self._ends) and self._afters[block][index] <= after

    @property
    def end(self) -> bytes:
        """The id through which the last span goes; `ZERO_ID` where there is none."""
        return self._ends[-1] if self._ends else ZERO_ID

    def joined_by(self, after: bytes, through: bytes) -> int:
        """The number of spans that would be one with (after, through]: they overlap it, or touch it."""
        (block, index), (stop_block, stop_index) = self._at_or_behind(after), self._at_or_behind(through)
        number = sum(map(len, self._afters[block:stop_block])) + stop_index - index
        return number + (stop_block < len(self._ends) and self._afters[stop_block][stop_index] <= through)

    def gap_after(self, place: bytes) -> tuple[bytes, bytes | None]:
        """The first place at or behind this one where no span goes on, and the `after` of the next span, if there is one."""
        block, index = self._behind(place)
        if block == len(self._ends):
            return place, None
        after = self._afters[block][index]
        if after > place:
            return place, after
        place = self._throughs[block][index]
        block, index = (block, index + 1) if index + 1 < len(self._afters[block]) else (block + 1, 0)
        return place, self._afters[block][index] if block < len(self._ends) else None

    def within(self, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The parts of (after, through] that spans cover, in order. Do not change the spans while they are asked."""
        return self._parts(after, through)

    def beyond(self, other: Spans) -> Iterator[tuple[bytes, bytes]]:
        """The parts that this set covers and the other does not, in order. Do not change either of them while it is asked.

        Where both are alike, a block is passed in one step: of a hundred thousand spans, a few have changed.
        """
        for afters, throughs in zip(self._afters, self._throughs, strict=True):
            if other._has(afters, throughs):
                continue
            for after, through in zip(afters, throughs, strict=True):
                if not other.contains(after, through):
                    yield from other.gaps(after, through)

    def _has(self, afters: list[bytes], throughs: list[bytes]) -> bool:
        """True when these spans are all among this set's, one behind the other."""
        block, index = self._at_or_behind(throughs[0])
        passed = 0
        while passed < len(afters) and block < len(self._ends):
            stop = index + len(afters) - passed
            mine = self._afters[block][index:stop]
            upto = passed + len(mine)
            if mine != afters[passed:upto] or self._throughs[block][index:stop] != throughs[passed:upto]:
                return False
            passed, block, index = upto, block + 1, 0
        return passed == len(afters)

    def add(self, after: bytes, through: bytes) -> None:
        """Cover (after, through]; `ValueError` when it is empty, or an end of it is no id."""
        _check(after, through)
        self._add(after, through)

    def _add(self, after: bytes, through: bytes) -> None:
        block = bisect_left(self._ends, after)
        if block == len(self._ends):
            self._splice((block, 0), (block, 0), [after], [through])
            return
        afters, throughs = self._afters[block], self._throughs[block]
        index = bisect_left(throughs, after)
        if through < afters[index]:
            afters.insert(index, after)
            throughs.insert(index, through)
            self._count += 1
            if len(afters) > BLOCK_SPANS_MAX:
                self._splice((block, index), (block, index), [], [])
            return
        if through > throughs[index]:
            following = index + 1
            if following == len(afters) and block == len(self._ends) - 1:  # the last one goes on
                afters[index], throughs[index], self._ends[block] = min(after, afters[index]), through, through
                return
            if following < len(afters) and through <= throughs[following]:  # most do not go beyond the next one
                after = min(after, afters[index])
                if through < afters[following]:
                    afters[index], throughs[index] = after, through
                else:
                    afters[following] = after
                    del afters[index], throughs[index]
                    self._count -= 1
                return
            stop_block, stop_index = self._at_or_behind(through)
            if stop_block < len(self._ends) and self._afters[stop_block][stop_index] <= through:
                through = self._throughs[stop_block][stop_index]
                stop_index += 1
            self._splice((block, index), (stop_block, stop_index), [min(after, afters[index])], [through])
        elif after < afters[index]:
            afters[index] = after

    def update(self, other: Spans) -> None:
        """Cover what the other covers."""
        if not other._count:
            return
        if not self._count:
            self._be(other)
            return
        if other._count == 1 or other._count * FEW <= self._count:
            for after, through in other:
                self._add(after, through)
            return
        # What lies before or behind all of the other stays as it is.
        first, stop = self._at_or_behind(other._afters[0][0]), self._at_or_behind(other._ends[-1])
        afters, throughs = self._columns(first[0], stop[0] + 1)
        afters += chain.from_iterable(other._afters)
        throughs += chain.from_iterable(other._throughs)
        self._splice((first[0], 0), (min(stop[0] + 1, len(self._ends)), 0), *_joined(afters, throughs))

    def remove(self, after: bytes, through: bytes) -> None:
        """Cover nothing of (after, through] any more; `ValueError` when it is empty, or an end of it is no id."""
        _check(after, through)
        block, index = first = self._behind(after)
        if block == len(self._ends):
            return
        afters, throughs = self._afters[block], self._throughs[block]
        begin, following = afters[index], index + 1
        if begin >= through:
            return
        if after <= begin and throughs[index] <= through and following < len(afters) and through <= afters[following]:
            del afters[index], throughs[index]
            self._count -= 1
            return
        stop_block, stop_index = first if through <= throughs[index] else self._at_or_behind(through)
        begins, ends = ([begin], [after]) if begin < after else ([], [])
        if stop_block < len(self._ends) and self._afters[stop_block][stop_index] < through:
            if through < self._throughs[stop_block][stop_index]:
                begins.append(through)
                ends.append(self._throughs[stop_block][stop_index])
            stop_index += 1
        self._splice(first, (stop_block, stop_index), begins, ends)

    def subtract(self, other: SpanBlocks) -> None:
        """Cover nothing any more that the other covers."""
        if not self._count or not other._count:
            return
        if other._count == 1 or other._count * FEW <= self._count:
            for after, through in other._from(0, 0):
                self.remove(after, through)
            return
        if self._count * FEW <= other._count:
            left = [gap for each in self for gap in other.gaps(*each)]
            self._splice((0, 0), (len(self._ends), 0), [after for after, _ in left], [through for _, through in left])
            return
        # What lies before or behind all of the other stays as it is.
        first, stop = self._behind(other._afters[0][0])[0], self._at_or_behind(other._ends[-1])[0] + 1
        if (columns := self._columns(first, stop))[0]:
            self._splice((first, 0), (min(stop, len(self._ends)), 0), *self._parts_outside(other, *columns))

    def minus(self, other: SpanBlocks) -> Spans:
        """The parts that this set covers and the other does not, as a set of its own."""
        made = self.copy()
        made.subtract(other)
        return made

    def common(self, other: SpanBlocks) -> Spans:
        """The parts that both cover, as a set of its own."""
        if not self._count or not other._count:
            return Spans()
        few, many = (self, other) if self._count <= other._count else (other, self)
        if few._count * FEW <= many._count:
            return Spans([part for each in few._from(0, 0) for part in many._parts(*each)])
        mine, others = self._columns(0, len(self._ends)), other._columns(0, len(other._ends))
        return Spans.ascending(*common_parts(*mine, *others))

    def encode(self) -> bytes:
        parts, last = [encode_varint(len(self))], 0
        for afters, throughs in zip(self._afters, self._throughs, strict=True):  # so that other threads get their turn
            # Column by column: of messages that are dealt by their keys, nearly each has a span of its own.
            ids = list(chain.from_iterable(zip(afters, throughs, strict=True)))
            numbers = list(map(int.from_bytes, ids))
            differing = list(map(int.bit_length, map(xor, numbers, [last, *numbers])))
            if len(parts) == 1:
                differing[0] = _ID_BITS  # the first id stands there as a whole
            rests = [each[_RESTS[bits]].rstrip(b"\0") for each, bits in zip(ids, differing, strict=True)]
            heads = map(getitem, map(_HEADS.__getitem__, differing), map(len, rests))
            parts += chain.from_iterable(zip(heads, rests, strict=True))
            last = numbers[-1]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Spans:
        """The spans that the bytes are; `CorruptionError` for what `encode` does not write."""
        spans, offset = cls.decode_from(data, 0, len(data))
        if offset != len(data):
            raise CorruptionError(f"{len(data) - offset} bytes too many behind the spans at byte {offset}")
        return spans

    @classmethod
    def decode_from(cls, data: bytes, offset: int, stop: int) -> tuple[Spans, int]:
        """The spans that begin at `offset`, and where they end, at `stop` at the latest; `CorruptionError`."""
        count, offset = decode_varint(data, offset)
        if count * _ENCODED_SPAN_BYTES_MIN > stop - offset:
            raise CorruptionError(f"{count} spans cannot be in {stop - offset} bytes")
        ids: list[bytes] = []
        for _ in range(2 * count):
            if offset + 2 > stop:
                raise CorruptionError(f"the spans do not end before byte {stop}")
            shared, length = data[offset], data[offset + 1]
            end = offset + 2 + length
            if end > stop or shared + length > MESSAGE_ID_BYTES:
                raise CorruptionError(f"{shared} shared and {length} further bytes of an id at byte {offset}")
            before = ids[-1] if ids else b""
            message_id = (before[:shared] + data[offset + 2 : end]).ljust(MESSAGE_ID_BYTES, b"\0")
            _check_encoding(before, message_id, shared, length, offset)
            ids.append(message_id)
            offset = end
        spans = cls()
        spans._splice((0, 0), (0, 0), ids[::2], ids[1::2])
        return spans, offset


def common_parts(afters: list[bytes], throughs: list[bytes], begins: list[bytes], ends: list[bytes]) -> _Columns:
    """The parts that two sets of disjoint spans both cover: no more than two of their spans are open at a place.

    Both do so between the n-th end and the n+1-th begin, where the begin comes first.
    """
    behind, throughs = sorted([*afters, *begins])[1:], sorted([*throughs, *ends])
    both = list(map(lt, behind, throughs))
    return list(compress(behind, both)), list(compress(throughs, both))


def _joined(afters: list[bytes], throughs: list[bytes]) -> _Columns:
    """The begins and ends of spans, in any order and overlapping, as those of the set that they make up.

    Sorted, each for itself: nothing covers what lies between the n-th end and the n+1-th begin, where the end comes first.
    """
    afters, throughs = sorted(afters), sorted(throughs)
    behind = afters[1:]
    ends = list(map(lt, throughs, behind))
    if all(ends):
        return afters, throughs
    return [afters[0], *compress(behind, ends)], [*compress(throughs, ends), throughs[-1]]


def _check(after: bytes, through: bytes) -> None:
    if len(after) != MESSAGE_ID_BYTES or len(through) != MESSAGE_ID_BYTES or after >= through:
        raise ValueError(f"({after.hex()}, {through.hex()}] is no span of message ids")


def _check_encoding(before: bytes, message_id: bytes, shared: int, length: int, offset: int) -> None:
    """Refuse an id that does not ascend, or has another encoding."""
    if not before:
        shortest = shared == 0
    elif message_id <= before:
        raise CorruptionError(f"the id at byte {offset} does not ascend: spans overlap, touch or are empty")
    else:
        shortest = shared < MESSAGE_ID_BYTES and message_id[shared] != before[shared]
    if not shortest or (length and message_id[shared + length - 1] == 0):
        raise CorruptionError(f"the id at byte {offset} is longer than it need be")
