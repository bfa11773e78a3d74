"""What a rule of the transaction manager proposes: edits to log and apply, or a call that was answered before."""

from __future__ import annotations

import msgspec

from basalt.errors import BasaltError
from basalt.transactions.rules.edits import Edit


class Proposal(msgspec.Struct, frozen=True):
    """Edits to log and apply, and the transaction they are about. No edits: the call was answered before.

    With a `refusal` the edits still hold (a transaction is doomed, or has timed out); raise it once they are durable.
    """

    edits: tuple[Edit, ...]
    transaction_id: int = 0  # 0 where a proposal is about several, or none
    refusal: BasaltError | None = None
