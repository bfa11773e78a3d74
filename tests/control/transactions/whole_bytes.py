"""Log snapshots and transactions whole. The product writes them in pieces, so that no long list is copied."""

from __future__ import annotations

from basalt.transactions.codec import EncodedLongs, TransactionFields, encode_in_pieces
from basalt.transactions.log.snapshot_format import snapshot_pieces
from basalt.transactions.log.transaction_log import SnapshotDraft
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.table import Mutation


def encode_snapshot(image: StateImage) -> bytes:
    return b"".join(snapshot_pieces(image))


def encode_transaction(fields: TransactionFields, *, invalid: EncodedLongs | None = None) -> bytes:
    return b"".join(encode_in_pieces(fields, invalid=invalid))


def snapshot_mutations(draft: SnapshotDraft) -> list[Mutation]:
    """All writes of a log snapshot in the order in which they may be made; any prefix does no harm."""
    first, *others = draft.parts()
    return [*others, first, *draft.replaced()]
