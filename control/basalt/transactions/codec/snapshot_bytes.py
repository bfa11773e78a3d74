"""Transactions as the bytes that clients hold, and back: a begin answers them, a poll brings them as its snapshot.

Bytes of an ended transaction, or of another manager, are read as they stand: they name what was true for their owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from basalt.transactions.codec.transaction import (
    VISIBILITY_EXCLUDE_CURRENT,
    EncodedLongs,
    TransactionFields,
    encode_in_pieces,
)
from basalt.transactions.rules.states import Kind, Transaction
from basalt_engine.snapshot import InvalidList, TransactionSnapshot

_KIND_NAMES = {Kind.SHORT: "short", Kind.LONG: "long"}


class SnapshotBytes:
    """Both directions, with what is the same from one transaction to the next kept: the invalid list may be long."""

    def __init__(self) -> None:
        self._encoded: tuple[InvalidList, EncodedLongs] | None = None
        self._decoded: tuple[Sequence[int], InvalidList] | None = None

    def encode(self, transaction: Transaction, level: int | None = None) -> bytes:
        """The bytes of a transaction in progress; at another visibility level, where one is given."""
        return b"".join(self.pieces(transaction, level))

    def pieces(self, transaction: Transaction, level: int | None = None) -> tuple[bytes, ...]:
        """The same in pieces, of which that with the invalid list is shared, not copied."""
        fields = TransactionFields(
            id=transaction.id,
            read_pointer=transaction.read_pointer,
            invalid=transaction.invalid.pointers,
            in_progress=transaction.in_progress,
            first_short=transaction.first_short,
            kind=_KIND_NAMES[transaction.kind],
            write_pointer=transaction.write_pointer,
            checkpoints=transaction.checkpoints,
            visibility=int(transaction.level) if level is None else level,
        )
        return encode_in_pieces(fields, invalid=self._encoded_invalid(transaction.invalid))

    def snapshot(self, fields: TransactionFields) -> TransactionSnapshot:
        """What the transaction of these bytes may see."""
        return TransactionSnapshot(
            read_pointer=fields.read_pointer,
            write_pointer=fields.write_pointer,
            in_progress=tuple(fields.in_progress),
            invalid=self._invalid(fields.invalid),
            own=frozenset((fields.id, fields.write_pointer, *fields.checkpoints)),
            excluded=fields.write_pointer if fields.visibility == VISIBILITY_EXCLUDE_CURRENT else None,
        )

    def _encoded_invalid(self, invalid: InvalidList) -> EncodedLongs:
        if self._encoded is None or self._encoded[0] is not invalid:
            self._encoded = (invalid, EncodedLongs(invalid.pointers))
        return self._encoded[1]

    def _invalid(self, pointers: Sequence[int]) -> InvalidList:
        # The codec answers the same object for the same list, so identity tells.
        if self._decoded is None or self._decoded[0] is not pointers:
            self._decoded = (pointers, InvalidList(tuple(dict.fromkeys(pointers))))  # strangers may say one twice
        return self._decoded[1]
