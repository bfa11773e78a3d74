"""The rules of memberships, one by one: how a member's own knowledge changes, and what those who watch make of rows."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from basalt.cluster.lease import MARGIN_PARTS, Read, Refused, Unanswered, Wrote
from basalt.cluster.members import (
    DEAD_KEPT_MS,
    DEAD_MAX,
    MEMBER,
    MEMBERS_MAX,
    SILENT_PARTS,
    MemberRecord,
    OwnMember,
    Seen,
    by_run,
    ended,
    is_full,
    looked,
    removable,
    renewed,
    step,
)

LEASE_MS = 6_000
FIRST = MemberRecord("here:1", "http://here:4780", "1.0", 5, LEASE_MS, 1, 0)
BODY = MEMBER.encode(FIRST)
SECOND = MEMBER.encode(msgspec.structs.replace(FIRST, count=2))
OVER = MEMBER.encode(msgspec.structs.replace(FIRST, ended_ms=9))
BEGUN = step(OwnMember("a"), Wrote(BODY, 1_000, 1_010))


def seen(since_ms: float = 0.0, record: MemberRecord = FIRST) -> Seen:
    return Seen(MEMBER.encode(record), record, since_ms)


def dead(since_ms: float, ended_ms: int = 9) -> Seen:
    return seen(since_ms, msgspec.structs.replace(FIRST, ended_ms=ended_ms))


def test_a_membership_lasts_from_before_its_renewal_was_sent_to_a_margin_before_the_end():
    end_ms = 1_000 + LEASE_MS - LEASE_MS / MARGIN_PARTS
    assert (BEGUN.until_ms, BEGUN.renewed_ms) == (end_ms, 1_010)
    assert (BEGUN.is_on(end_ms - 1), BEGUN.is_on(end_ms)) == (True, False)
    assert not OwnMember("a").is_on(0)


def test_a_renewal_differs_from_all_records_before_it_and_in_nothing_else():
    assert renewed(OwnMember("a")) is None
    assert renewed(BEGUN) == msgspec.structs.replace(FIRST, count=2)


@pytest.mark.parametrize("event", [Refused(), Unanswered()])
def test_after_a_write_that_may_not_have_been_made_the_row_is_read(event: Refused | Unanswered):
    assert step(BEGUN, event) == replace(BEGUN, known=False)


def test_a_renewal_whose_answer_was_lost_is_found_and_not_counted():
    found = step(step(BEGUN, Unanswered()), Read(SECOND, 2_000))
    assert (found.stored, found.known, found.until_ms, found.renewed_ms) == (SECOND, True, BEGUN.until_ms, 1_010)


@pytest.mark.parametrize("stored", [OVER, None])
def test_a_membership_is_over_once_its_row_says_so_or_is_gone(stored: bytes | None):
    over = step(step(BEGUN, Refused()), Read(stored, 2_000))
    assert over.is_over
    assert not over.is_on(1_000)


def test_an_instance_is_begun_once_for_a_first_row_that_did_not_get_there_may_still_do_so():
    assert step(step(OwnMember("a"), Unanswered()), Read(None, 2_000)).is_over
    found = step(step(OwnMember("a"), Unanswered()), Read(BODY, 2_000))
    assert (found.is_over, found.stored, found.is_on(0)) == (False, BODY, False)


def test_a_watcher_counts_from_when_it_first_read_a_row_as_it_is():
    before = looked({}, [("a", BODY), ("b", BODY)], 100)
    after = looked(before, [("a", BODY), ("b", SECOND), ("c", BODY)], 200)
    assert {name: each.since_ms for name, each in after.items()} == {"a": 100, "b": 200, "c": 200}
    assert looked(after, [], 300) == {}


def test_who_misses_two_renewals_is_silent_and_may_be_ended_after_a_whole_lease():
    member, silent_ms = seen(100), 100 + LEASE_MS / SILENT_PARTS
    assert [member.state(now_ms) for now_ms in (silent_ms - 1, silent_ms)] == ["live", "silent"]
    assert [member.may_end(now_ms) for now_ms in (100 + LEASE_MS - 1, 100 + LEASE_MS)] == [False, True]


def test_who_is_dead_is_not_ended_again():
    record = ended(seen(), 77)
    assert (record.ended_ms, record.is_over, ended(seen(), 0).is_over) == (77, True, True)
    over = seen(0, record)
    assert (over.state(1e9), over.may_end(1e9)) == ("dead", False)


def test_rows_of_the_dead_are_kept_for_a_time():
    rows = {"a": dead(100), "b": seen(100)}
    assert removable(rows, 100 + DEAD_KEPT_MS - 1) == []
    assert removable(rows, 100 + DEAD_KEPT_MS) == ["a"]


def test_who_may_not_know_that_it_was_ended_may_go_on_for_a_lease_from_when_that_was_seen():
    unaware = ended(seen(), 9, unaware=True)
    assert seen(100, unaware).may_go_on(100 + LEASE_MS - 1)
    assert not seen(100, unaware).may_go_on(100 + LEASE_MS)
    assert not seen(100, ended(seen(), 9)).may_go_on(100), "its lease had run out, or its process is gone"
    assert seen(100).may_go_on(100 + 2 * LEASE_MS), "nobody has ended it"
    assert unaware.is_over
    rows = {f"m{number}": seen(100, unaware) for number in range(DEAD_MAX + 1)}
    assert removable(rows, 100 + LEASE_MS - 1) == [], "else who follows the leader would not know of it"
    assert removable(rows, 100 + LEASE_MS) != []


def test_of_many_dead_only_the_newest_are_kept():
    rows = {f"m{number}": dead(float(number)) for number in range(DEAD_MAX + 2)}
    assert sorted(removable(rows, 0)) == ["m0", "m1"]
    at_once = {f"m{number}": dead(0.0, 1 + number) for number in range(DEAD_MAX + 1)}  # a new leader found them all
    assert removable(at_once, 0) == ["m0"]


def test_the_dead_leave_room_for_others():
    rows = {f"m{number}": seen() for number in range(MEMBERS_MAX - 1)} | {"dead": dead(0)}
    assert not is_full(rows)
    assert is_full(rows | {"last": seen()})


def test_a_run_is_known_by_the_membership_that_it_has_now_or_had_last():
    def of(run: str, began_ms: int, ended_ms: int = 0) -> Seen:
        return seen(0.0, msgspec.structs.replace(FIRST, run=run, began_ms=began_ms, ended_ms=ended_ms))

    first, second, over, newest = of("a", 1, 9), of("a", 2), of("b", 1, 9), of("b", 3, 9)
    nameless = seen(0.0, FIRST)
    rows = {"a": first, "a-again": second, "b": over, "b-again": newest, "c": nameless}
    assert by_run(rows) == {"a": second, "b": newest, "c": nameless}
    assert by_run(dict(reversed(rows.items()))) == by_run(rows)
    assert by_run({}) == {}


def test_nobody_proves_anything_to_a_member_that_was_ended():
    record = msgspec.structs.replace(FIRST, secret="its secret")
    assert ended(seen(0.0, record), 9) == msgspec.structs.replace(record, ended_ms=9, secret="")
    assert renewed(replace(BEGUN, stored=MEMBER.encode(record))) == msgspec.structs.replace(record, count=2)
