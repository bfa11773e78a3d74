"""Why a message is not being worked on: each reason, in the order in which they are asked, with what frees it and when."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.operations.groups.explanation import (
    REASONS,
    RULES,
    Acknowledgement,
    Ahead,
    Draining,
    Explanation,
    Holder,
    Presence,
    Return,
    Situation,
    Unacknowledged,
    Work,
    explain,
)

NOW_MS = 100_000
ALICE = Holder("alice", 90_000, 110_000)

# In the order of the reasons: what makes it hold, the word for it, and by when it ends at the latest.
ORDER: list[tuple[dict[str, Any], str, int | None]] = [
    ({"presence": Presence.ABSENT}, "absent", None),
    ({"acknowledged": Acknowledgement(95_000, "transaction 7")}, "acknowledged", None),
    ({"pending": Work("8", "etl", 130_000)}, "pending", 130_000),
    ({"claimed": ALICE}, "claimed", 110_000),
    ({"held_by": Work("9", "", 140_000)}, "held", 140_000),
    ({"returned": Return(8, "aborted", None)}, "parked", None),
    ({"returned": Return(2, "released", 104_000)}, "delayed", 104_000),
    ({"ahead": Ahead("00aa", "member bob works on")}, "behind", None),
    ({"draining": Draining(17, ALICE)}, "draining", 110_000),
    ({"silent": ALICE}, "silent", 110_000),
    ({"paused": True}, "paused", None),
    ({"needs_member": True}, "no_member", None),
    ({"unacknowledged": Unacknowledged(10_000, 10_000, "bob", 9_000)}, "unacked", None),
    ({"spans": 4_000}, "spans", None),
    ({"before": 3}, "unread", None),
    ({}, "next", None),
]


@pytest.mark.parametrize(("circumstance", "reason", "at_ms"), ORDER, ids=[reason for _, reason, _ in ORDER])
def test_each_reason_is_told_with_what_frees_the_message_and_when(
    circumstance: dict[str, Any], reason: str, at_ms: int | None
):
    found = explain(Situation(NOW_MS, **circumstance))
    assert (found.reason, found.at_ms) == (reason, at_ms)
    assert found.text
    assert found.freed_by


def test_of_two_reasons_the_one_that_comes_first_is_told():
    for index, (earlier, reason, _) in enumerate(ORDER):
        for later, _, _ in ORDER[index + 1 :]:
            if not earlier.keys() & later.keys():  # else it is the same fact, which is either one or the other
                assert explain(Situation(NOW_MS, **{**later, **earlier})).reason == reason
    assert len(RULES) == len(ORDER) - 1, "the last rule has two answers"


def test_the_sentences_name_who_and_what():
    texts = {reason: explain(Situation(NOW_MS, **circumstance)) for circumstance, reason, _ in ORDER}
    assert texts["acknowledged"] == Explanation(
        "acknowledged", "it is acknowledged by transaction 7", "a seek to a place before it", None, 95_000
    )
    assert texts["pending"].text == "transaction 8 of etl acknowledges it, and has not ended"
    assert texts["claimed"].text == "member alice works on it"
    assert texts["claimed"].since_ms == 90_000
    assert texts["held"].text == "it lies at or behind a row of transaction 9, which has not ended"
    assert texts["parked"].text.startswith("it is parked: it came back 8 times, last because its transaction aborted")
    assert texts["behind"].text == "it comes behind message 00aa of its lane, which member bob works on"
    assert texts["draining"].text.startswith("slot 17, where its key is, moves to another member, and member alice")
    assert texts["unacked"].text.endswith("no more than 10,000 may be; 9,000 of them with member bob")
    assert texts["unread"].text == "it was not dealt yet: 3 messages before it were not either"


def test_a_message_that_is_due_again_is_delayed_no_more():
    assert explain(Situation(NOW_MS, returned=Return(1, "released", NOW_MS))).reason == "next"
    assert explain(Situation(NOW_MS, returned=Return(1, "released", NOW_MS + 1))).reason == "delayed"


def test_a_parked_message_names_the_topic_that_does_not_take_it():
    parked = Situation(NOW_MS, returned=Return(8, "timed_out", None), dead_letter_topic="orders-dead")
    assert "topic orders-dead has not taken it" in explain(parked).text
    assert "tried each minute" in explain(parked).freed_by
    assert "names no topic for dead letters" in explain(parked._replace(dead_letter_topic=None)).text


def test_who_gave_no_name_is_told_as_such():
    assert explain(Situation(NOW_MS, claimed=Holder("", 1, 2))).text == "a caller without a member works on it"


def test_a_count_that_was_given_up_is_a_lower_bound():
    assert "500 messages or more before it" in explain(Situation(NOW_MS, before=500, before_exact=False)).text
    assert explain(Situation(NOW_MS, before=0, before_exact=False)).reason == "unread"
    assert explain(Situation(NOW_MS, before=1)).text == "it was not dealt yet: 1 message before it was not either"


def test_every_reason_of_a_return_has_words():
    assert set(REASONS) == {"released", "aborted", "timed_out", "claim_expired", "member_lost"}
    assert "once" in explain(Situation(NOW_MS, returned=Return(1, "claim_expired", None))).text
