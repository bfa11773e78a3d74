"""Stretches of answers: found by position, dropped with their rows, bounded together."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from basalt.api.codecs.encoded import AvroMessages, BatchedMessages, Encoding
from basalt.messaging.log.answers import STRETCH_BYTES, Answers, Stretch
from basalt.messaging.log.tails import Tail, Tails
from basalt_engine.keys import position


class Log:
    """Whose stretches they are."""

    tail: Tail | None = None


def at(ms: int) -> bytes:
    return position(ms, 0)


def stretch(start_ms: int, last_ms: int, encoding: Encoding = AvroMessages) -> Stretch:
    """The rows of these milliseconds, of one message each."""
    ids = [at(ms) + bytes(10) for ms in range(start_ms, last_ms + 1)]
    messages = encoding(ids, [1] * len(ids), [b"m"] * len(ids))
    return Stretch(at(start_ms), at(last_ms), array("Q", range(1, len(ids) + 1)), None, messages)


def kept(*stretches: Stretch, bytes_max: int = 1 << 20) -> tuple[Answers, Log]:
    answers, log = Answers(bytes_max), Log()
    for each in stretches:
        answers.keep(log, each)
    return answers, log


def test_a_stretch_is_found_from_any_position_in_it() -> None:
    early, late = stretch(10, 20), stretch(30, 40)
    answers, log = kept(late, early)
    found = [answers.find(log, AvroMessages, at(ms)) for ms in (9, 10, 20, 21, 30, 40, 41)]
    assert found == [None, early, early, None, late, late, None]
    assert answers.find(log, AvroMessages, at(20) + b"\0") is None
    assert answers.find(log, BatchedMessages, at(10)) is None
    behind = [answers.start_behind(log, AvroMessages, at(ms)) for ms in (9, 10, 29, 30)]
    assert behind == [at(10), at(30), at(30), None]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda tails, log: tails.roll_back(log, at(15)), [30]),
        (lambda tails, log: tails.remove(log, at(40)), [10]),
        (lambda tails, log: tails.remove(log, at(25)), [10, 30]),
        (lambda tails, log: tails.remove_before(log, at(11)), [30]),
        (lambda tails, log: tails.remove_before(log, at(10)), [10, 30]),
        (lambda tails, log: tails.drop(log), []),
        (lambda tails, log: tails.answers.clear(), []),
    ],
)
def test_a_stretch_goes_with_its_rows(change: Callable[[Tails, Log], None], left: list[int]) -> None:
    tails, log, other = Tails(0, 1 << 20), Log(), Log()
    for encoding in (AvroMessages, BatchedMessages):
        for each in (stretch(10, 20, encoding), stretch(30, 40, encoding)):
            tails.answers.keep(log, each)
    before = tails.answers.bytes
    change(tails, log)
    for encoding in (AvroMessages, BatchedMessages):
        found = [ms for ms in (10, 30) if tails.answers.find(log, encoding, at(ms)) is not None]
        assert found == left
    assert len(tails.answers) == 2 * len(left)
    assert tails.answers.bytes == before * len(left) // 2
    assert other.tail is None


def test_the_stretch_that_was_not_read_for_the_longest_time_goes_first() -> None:
    size_bytes = stretch(10, 20).size_bytes
    answers, log = kept(stretch(10, 20), stretch(30, 40), stretch(50, 60), bytes_max=3 * size_bytes)
    assert answers.find(log, AvroMessages, at(10)) is not None
    answers.keep(log, stretch(70, 80))
    found = [ms for ms in (10, 30, 50, 70) if answers.find(log, AvroMessages, at(ms))]
    assert (found, answers.bytes) == ([10, 50, 70], 3 * size_bytes)


def test_what_is_larger_than_all_may_be_is_not_kept() -> None:
    answers, _ = kept(stretch(10, 20), bytes_max=STRETCH_BYTES)
    assert (len(answers), answers.bytes) == (0, 0)
