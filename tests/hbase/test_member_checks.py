"""What the checker of tests on several servers must find, and what it must let pass."""

from __future__ import annotations

import pytest

from tests.hbase import member_checks as checks


def placed(*texts: str) -> list[checks.Message]:
    return [(f"{place:04x}", text) for place, text in enumerate(texts)]


def test_a_message_that_comes_twice_is_found():
    checks.check_once(["a.1", "a.2"])
    with pytest.raises(AssertionError, match=r"a\.1"):
        checks.check_once(["a.1", "a.2", "a.1"])


def test_a_position_that_goes_back_or_stands_is_found():
    checks.check_places(placed("a.1", "a.2"))
    for last in ("01", "00"):
        with pytest.raises(AssertionError, match="went back"):
            checks.check_places([("01", "a.1"), (last, "a.2")])


def test_who_was_answered_before_comes_first():
    checks.check_order(["a.1", "b.1", "a.2", "b.2"], {"a.1", "a.2", "b.1", "b.2"})
    with pytest.raises(AssertionError, match=r"a\.1 was answered"):
        checks.check_order(["a.2", "a.1"], {"a.1", "a.2"})
    with pytest.raises(AssertionError, match=r"a\.1 was answered"):
        checks.check_order(["a.2", "a.1"], {"a.1"})  # the later one was sent after the answer all the same


def test_what_was_not_answered_may_come_late():
    checks.check_order(["a.2", "a.1", "a.3"], {"a.2", "a.3"})


def test_what_is_lost_or_was_refused_is_found():
    checks.check_there({"a.1", "a.2"}, {"a.1"}, {"a.2", "a.3"})
    with pytest.raises(AssertionError, match=r"gone: \['a.1'\]"):
        checks.check_there({"a.2"}, {"a.1"}, {"a.2"})
    with pytest.raises(AssertionError, match=r"refused or aborted: \['a.3'\]"):
        checks.check_there({"a.1", "a.3"}, {"a.1"}, {"a.2"})


def test_what_is_in_one_topic_alone_is_torn():
    checks.check_whole({"one": ["a.1", "b.1"], "other": ["a.1"]}, {"a"})
    with pytest.raises(AssertionError, match=r"not whole in one and other: \['a.2'\]"):
        checks.check_whole({"one": ["a.1", "a.2"], "other": ["a.1"]}, {"a"})


def test_a_committed_reader_that_saw_what_is_not_there_or_missed_what_is_is_found():
    found = placed("a.1", "a.2", "a.3")
    for seen in ([], found[:2], found):
        checks.check_committed_reader(seen, found)
    with pytest.raises(AssertionError, match="at 1 a committed reader saw"):
        checks.check_committed_reader([found[0], found[2]], found)
    with pytest.raises(AssertionError, match="not there"):
        checks.check_committed_reader([*found, ("ff", "a.4")], found)


def test_a_raw_reader_may_have_seen_what_was_rolled_back_and_nothing_turns_up_behind_it():
    raw = placed("a.1", "a.2", "a.3")
    checks.check_raw_reader([raw[0], ("0000ff", "a.9"), raw[1]], raw, raw)
    checks.check_raw_reader([], raw, raw)
    with pytest.raises(AssertionError, match="turned up"):
        checks.check_raw_reader([raw[0], raw[2]], raw, [raw[0]])
