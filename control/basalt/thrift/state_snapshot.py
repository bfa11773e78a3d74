"""The manager's state in the bytes of Tephra's snapshots, version 4, for tools that read them. Written only, never read.

Format: docs/formats/tephra-snapshot.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from basalt.transactions.rules.conflicts import NOT_YET
from basalt.transactions.rules.states import Kind, State, Transaction
from basalt.transactions.rules.transaction_table import StateImage

VERSION = 4
_SHORT, _LONG, _CHECKPOINT = 0, 1, 2  # ordinals of Tephra's InProgressType
_OPEN_STATES = (State.OPEN, State.COMMITTING, State.ABORTING)


def encode_state(image: StateImage, told: Mapping[int, Iterable[bytes]], now_ms: int) -> bytes:
    """The bytes of a snapshot taken at `now_ms`; `told` are the change sets that the image does not have."""
    open_ones = [each for each in image.transactions if each.state in _OPEN_STATES and not each.was_invalid]
    sets = {each.id: told.get(each.id, each.changes) for each in open_ones}
    committing = {key: changes for key, changes in sets.items() if changes}
    out = bytearray()
    for number in (VERSION, now_ms, image.read_pointer, image.last_pointer):
        _number(out, number)
    _numbers(out, image.invalid.pointers)
    _in_progress(out, open_ones)
    _change_sets(out, committing)
    _change_sets(out, _committed(image))
    return bytes(out)


def _in_progress(out: bytearray, transactions: list[Transaction]) -> None:
    entries: list[tuple[int, Transaction, int, tuple[int, ...]]] = []
    for each in transactions:
        entries.append((each.id, each, _SHORT if each.kind is Kind.SHORT else _LONG, each.checkpoints))
        entries += [(pointer, each, _CHECKPOINT, ()) for pointer in each.checkpoints]
    entries.sort(key=lambda entry: entry[0])
    if entries:
        _number(out, len(entries))
    for pointer, each, kind, checkpoints in entries:
        for number in (pointer, each.deadline_ms, _visibility_upper_bound(each), kind):
            _number(out, number)
        _numbers(out, checkpoints)
    _number(out, 0)


def _visibility_upper_bound(transaction: Transaction) -> int:
    in_progress = transaction.in_progress
    return in_progress[0] - 1 if in_progress else min(transaction.id - 1, transaction.read_pointer)


def _committed(image: StateImage) -> dict[int, frozenset[bytes]]:
    """Change sets by the first write pointer that sees them, as Tephra keys them."""
    kept: dict[int, frozenset[bytes]] = {}
    for committed in image.committed:
        if committed.seen_from != NOT_YET:
            kept[committed.seen_from] = kept.get(committed.seen_from, frozenset()) | committed.changes
    return kept


def _change_sets(out: bytearray, sets: Mapping[int, Iterable[bytes]]) -> None:
    if sets:
        _number(out, len(sets))
    for pointer in sorted(sets):
        changes = sorted(sets[pointer])
        _number(out, pointer)
        if changes:
            _number(out, len(changes))
        for change in changes:
            _number(out, len(change))
            out += change
        _number(out, 0)
    _number(out, 0)


def _numbers(out: bytearray, numbers: tuple[int, ...]) -> None:
    if numbers:
        _number(out, len(numbers))
    for number in numbers:
        _number(out, number)
    _number(out, 0)


def _number(out: bytearray, number: int) -> None:
    """Zigzag, then seven bits at a time, lowest first. All our numbers are 0 or more."""
    left = number << 1
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    out.append(left)
