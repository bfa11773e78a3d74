"""The calls of those that follow the log, as bytes. They are those of tests/vectors/links.tsv."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from basalt.cluster.links.frames import FrameReader, frame_bytes
from basalt.transactions.follow_calls import ASK, ENTRIES, FOLLOW, JOIN, Ask, Entries, Follow, Joined, Standing, Taken
from basalt.transactions.protocol import Joining
from basalt.transactions.rules.transaction import Join, TableJoin
from tests.vector_lines import cases

POINTER = 1_700_000_000_000_000_000
MS = 1_700_000_000_000
BODIES: dict[str, tuple[Any, Any]] = {
    "follow": (FOLLOW.question, Follow(POINTER)),
    "standing": (FOLLOW.answer, Standing(7, 4_100)),
    "no_entries": (ENTRIES.question, Entries(4_200, ())),
    "taken": (ENTRIES.answer, Taken(4_101)),
    "ask": (ASK.question, Ask(4_101)),
    "join": (JOIN.question, Joining(POINTER, Join(b"shop:orders:", 1, MS))),
    "join_table": (JOIN.question, Joining(POINTER, None, TableJoin(b"shop:~accounts:", 1))),
    "joined": (JOIN.answer, Joined(POINTER, MS + 30_000, 4_102)),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_bytes_are_those_of_the_page(name: str) -> None:
    (data,) = [case.values[0] for case in cases("links") if case.id == name]
    decoder, value = BODIES[name]
    assert isinstance(data, bytes)
    (frame,) = FrameReader().feed(data)
    assert decoder.decode(frame.body) == value
    assert frame_bytes(frame.number, frame.kind, value) == data


def test_an_entry_goes_as_its_bytes() -> None:
    entries: Any = Entries(5, (b"\x00\xff",))
    assert ENTRIES.question.decode(msgspec.msgpack.encode(entries)) == entries
