"""Log snapshots and transactions as one run of bytes. The product writes them in pieces, so that no long list is copied."""

from __future__ import annotations

from basalt.transactions.codec import EncodedLongs, TransactionFields, encode_in_pieces
from basalt.transactions.log.snapshot_format import snapshot_pieces
from basalt.transactions.rules.transaction_table import StateImage


def encode_snapshot(image: StateImage) -> bytes:
    return b"".join(snapshot_pieces(image))


def encode_transaction(fields: TransactionFields, *, invalid: EncodedLongs | None = None) -> bytes:
    return b"".join(encode_in_pieces(fields, invalid=invalid))
