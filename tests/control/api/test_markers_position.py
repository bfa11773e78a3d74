"""A reader's position as text."""

from __future__ import annotations

import pytest

from basalt.api.markers import NOTHING_KNOWN, MarkedPosition, Marker, apply, parse_marked_position
from basalt.errors import InputError

DOCUMENTED = (
    '{"v":1,"generation":1,"after":"0000018bcfe56bd0000000000000000000000000","taskCount":2,'
    '"watermarkMs":1700000000000,"tasks":{"map-0":[1700000000000,false,1700000001000],"map-1":[null,true,1700000002000]}}'
)


def test_the_documented_text_is_what_is_written_and_read() -> None:
    state = apply(NOTHING_KNOWN, Marker("map-1", 2), 1_700_000_002_000)
    state = apply(state, Marker("map-0", 2, 1_700_000_000_000), 1_700_000_001_000)
    position = MarkedPosition(1, bytes.fromhex("0000018bcfe56bd0000000000000000000000000"), state, 1_700_000_000_000)
    assert str(position) == DOCUMENTED
    assert parse_marked_position(DOCUMENTED) == position


def test_a_position_at_the_start_knows_nothing() -> None:
    assert parse_marked_position(str(MarkedPosition(7))) == MarkedPosition(7)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"v":1', '"v":2'),
        ('"generation":1', '"generation":0'),
        ('"after":"0000', '"after":"00'),
        ('"taskCount":2', '"taskCount":null'),
        ('"taskCount":2', '"taskCount":0'),
        ('"map-0":[1700000000000,false,1700000001000]', '"map-0":[1]'),
        ('"map-0"', '""'),
        ("1700000001000]", "-1]"),
        ("}}", "}"),
        ('"v":1', '"v":1,"w":2'),
    ],
)
def test_any_other_text_is_refused(old: str, new: str) -> None:
    assert old in DOCUMENTED
    with pytest.raises(InputError, match="position"):
        parse_marked_position(DOCUMENTED.replace(old, new))
