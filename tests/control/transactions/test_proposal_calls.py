"""Edits go over a link as the log has them."""

from __future__ import annotations

import msgspec
import pytest

from basalt.transactions.proposal_calls import PLACED, PROPOSE, Placed, Propose, Unit
from basalt.transactions.rules import edits
from basalt_engine.errors import CorruptionError
from basalt_engine.spans.spans import ZERO_ID, Spans


def test_a_proposal_is_read_as_it_was_sent() -> None:
    made = (edits.Acknowledged(0, 3, 9, Spans([(ZERO_ID, bytes(19) + b"\5")])), edits.GroupsForgotten((1, 2)))
    asked = Propose("run", 4, (Unit.of(made, force=True),))
    read = PROPOSE.question.decode(msgspec.msgpack.encode(asked))
    assert read == asked
    assert read.units[0].edits == made
    assert PLACED.question.decode(msgspec.msgpack.encode(Placed(4, 7))) == Placed(4, 7)


def test_edits_that_are_damaged_are_refused() -> None:
    entry = bytearray(Unit.of((edits.GroupsForgotten((1,)),), force=False).entry)
    entry[-1] ^= 1
    with pytest.raises(CorruptionError):
        _ = Unit(bytes(entry)).edits
