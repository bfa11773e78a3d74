"""The rules of the lease, without a store: every event in every state, and when a standby may take what it sees."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.cluster.lease import (
    LEASE,
    Candidate,
    Ended,
    Event,
    Lease,
    LeaseRecord,
    Passed,
    Read,
    Refused,
    Role,
    Unanswered,
    Wrote,
    is_free,
    released,
    renewed,
    step,
    taken,
)
from basalt.errors import CorruptionError

ME = Candidate("me:1", "http://me:4780", "aaaa", 6_000)
MINE = LeaseRecord("me:1", "http://me:4780", 3, 100, "aaaa", 6_000)
MINE_RENEWED = LeaseRecord("me:1", "http://me:4780", 3, 200, "aaaa", 6_000)
MINE_BEFORE = LeaseRecord("me:1", "http://me:4780", 2, 50, "aaaa", 6_000)
OTHERS = LeaseRecord("you:1", "http://you:4780", 4, 300, "bbbb", 6_000)
RELEASED = LeaseRecord("", "", 4, 0, "", 6_000)


def lease(role: Role, record: LeaseRecord | None, known: bool, since_ms: float | None, until_ms: float = 0.0) -> Lease:
    return Lease(role, None if record is None else LEASE.encode(record), record, known, since_ms, until_ms)


UNREAD = Lease()
WATCHING = lease(Role.STANDBY, OTHERS, True, 1_000.0)
DOUBTING = lease(Role.STANDBY, OTHERS, False, 1_000.0)  # it tried to take the lease, and got no answer
LEADING = lease(Role.LEADER, MINE, True, 1_000.0, 6_000.0)
UNSURE = lease(Role.LEADER, MINE, False, 1_000.0, 6_000.0)  # a renewal got no answer
STATES = {"unread": UNREAD, "watching": WATCHING, "doubting": DOUBTING, "leading": LEADING, "unsure": UNSURE}

READ_NOTHING = Read(None, 2_000.0)
READ_OTHERS = Read(LEASE.encode(OTHERS), 2_000.0)
READ_MINE = Read(LEASE.encode(MINE_RENEWED), 2_000.0)
READ_MINE_BEFORE = Read(LEASE.encode(MINE_BEFORE), 2_000.0)
WROTE = Wrote(LEASE.encode(MINE_RENEWED), 2_000.0, 2_100.0)
WROTE_TOO_LATE = Wrote(LEASE.encode(MINE_RENEWED), 2_000.0, 7_000.0)
EVENTS: dict[str, Event] = {
    "read nothing": READ_NOTHING, "read another's": READ_OTHERS, "read mine": READ_MINE,
    "read an older one of mine": READ_MINE_BEFORE, "wrote": WROTE, "wrote too late": WROTE_TOO_LATE,
    "refused": Refused(), "unanswered": Unanswered(), "time passed": Passed(5_999.0), "the end passed": Passed(6_000.0),
    "ended": Ended(),
}  # fmt: skip

SEEN_NOTHING = lease(Role.STANDBY, None, True, 2_000.0)
SEEN_OTHERS = lease(Role.STANDBY, OTHERS, True, 2_000.0)
SEEN_MINE = lease(Role.STANDBY, MINE_RENEWED, True, 2_000.0)
SEEN_MINE_BEFORE = lease(Role.STANDBY, MINE_BEFORE, True, 2_000.0)
LEADS = lease(Role.LEADER, MINE_RENEWED, True, 2_100.0, 7_000.0)  # 2,000 + 6,000 - a sixth of that
MISSED = lease(Role.STANDBY, MINE_RENEWED, False, 7_000.0)
STOPPED = lease(Role.STANDBY, MINE, False, 1_000.0, 6_000.0)

EXPECTED: dict[tuple[str, str], Lease] = {
    ("unread", "read nothing"): SEEN_NOTHING,
    ("unread", "read another's"): SEEN_OTHERS,
    ("unread", "read mine"): SEEN_MINE,
    ("unread", "read an older one of mine"): SEEN_MINE_BEFORE,
    ("unread", "wrote"): LEADS,
    ("unread", "wrote too late"): MISSED,
    ("unread", "refused"): UNREAD,
    ("unread", "unanswered"): UNREAD,
    ("unread", "time passed"): UNREAD,
    ("unread", "the end passed"): UNREAD,
    ("unread", "ended"): UNREAD,
    ("watching", "read nothing"): SEEN_NOTHING,
    ("watching", "read another's"): WATCHING,  # the same bytes: they have been there since it first saw them
    ("watching", "read mine"): SEEN_MINE,
    ("watching", "read an older one of mine"): SEEN_MINE_BEFORE,
    ("watching", "wrote"): LEADS,
    ("watching", "wrote too late"): MISSED,
    ("watching", "refused"): DOUBTING,
    ("watching", "unanswered"): DOUBTING,
    ("watching", "time passed"): WATCHING,
    ("watching", "the end passed"): WATCHING,
    ("watching", "ended"): DOUBTING,
    ("doubting", "read nothing"): SEEN_NOTHING,
    ("doubting", "read another's"): WATCHING,
    ("doubting", "read mine"): SEEN_MINE,
    ("doubting", "read an older one of mine"): SEEN_MINE_BEFORE,
    ("doubting", "wrote"): LEADS,
    ("doubting", "wrote too late"): MISSED,
    ("doubting", "refused"): DOUBTING,
    ("doubting", "unanswered"): DOUBTING,
    ("doubting", "time passed"): DOUBTING,
    ("doubting", "the end passed"): DOUBTING,
    ("doubting", "ended"): DOUBTING,
    ("leading", "read nothing"): SEEN_NOTHING,
    ("leading", "read another's"): SEEN_OTHERS,
    ("leading", "read mine"): lease(Role.LEADER, MINE_RENEWED, True, 1_000.0, 6_000.0),  # counts for no more time
    ("leading", "read an older one of mine"): SEEN_MINE_BEFORE,
    ("leading", "wrote"): LEADS,
    ("leading", "wrote too late"): MISSED,
    ("leading", "refused"): STOPPED,
    ("leading", "unanswered"): UNSURE,
    ("leading", "time passed"): LEADING,
    ("leading", "the end passed"): STOPPED,
    ("leading", "ended"): STOPPED,
    ("unsure", "read nothing"): SEEN_NOTHING,
    ("unsure", "read another's"): SEEN_OTHERS,
    ("unsure", "read mine"): lease(Role.LEADER, MINE_RENEWED, True, 1_000.0, 6_000.0),
    ("unsure", "read an older one of mine"): SEEN_MINE_BEFORE,
    ("unsure", "wrote"): LEADS,
    ("unsure", "wrote too late"): MISSED,
    ("unsure", "refused"): STOPPED,
    ("unsure", "unanswered"): UNSURE,
    ("unsure", "time passed"): UNSURE,
    ("unsure", "the end passed"): STOPPED,
    ("unsure", "ended"): STOPPED,
}


def test_the_table_has_every_pair():
    assert set(EXPECTED) == {(state, event) for state in STATES for event in EVENTS}


@pytest.mark.parametrize(("state", "event"), EXPECTED)
def test_every_event_in_every_state(state: str, event: str):
    assert step(STATES[state], EVENTS[event]) == EXPECTED[state, event]


@pytest.mark.parametrize(
    ("known", "now_ms", "free"),
    [
        (UNREAD, 10_000.0, False),  # it has not looked yet
        (SEEN_NOTHING, 2_000.0, True),
        (lease(Role.STANDBY, RELEASED, True, 2_000.0), 2_000.0, True),
        (SEEN_OTHERS, 7_999.9, False),
        (SEEN_OTHERS, 8_000.0, True),  # a whole lease after it was first seen
        (lease(Role.STANDBY, OTHERS, False, 2_000.0), 8_000.0, False),  # in doubt: it looks first
        (SEEN_MINE, 2_000.0, True),  # a term of its own that is over
        (LEADING, 100_000.0, False),
    ],
)
def test_when_a_standby_may_take_the_lease(known: Lease, now_ms: float, free: bool):
    assert is_free(known, ME.instance, now_ms) is free


def test_a_standby_waits_for_as_long_as_the_leader_said_and_not_as_its_own_settings_say():
    patient = LeaseRecord("you:1", "http://you:4780", 4, 300, "bbbb", 60_000)
    seen = step(Lease(), Read(LEASE.encode(patient), 2_000.0))
    assert not is_free(seen, ME.instance, 61_999.0)
    assert is_free(seen, ME.instance, 62_000.0)


def test_every_taking_raises_the_epoch():
    assert taken(Lease(), ME, 1_000).epoch == 1
    assert taken(SEEN_OTHERS, ME, 1_000).epoch == 5
    assert taken(lease(Role.STANDBY, RELEASED, True, 0.0), ME, 1_000).epoch == 5


@pytest.mark.parametrize("now_ms", [-(10**12), 0, 1_700_000_000_000])
def test_no_two_records_are_the_same_whatever_the_wall_clock_shows(now_ms: int):
    assert taken(SEEN_OTHERS, ME, now_ms).expire_ms > OTHERS.expire_ms
    once = renewed(LEADING, now_ms)
    again = renewed(lease(Role.LEADER, once, True, 0.0), now_ms)
    assert MINE.expire_ms < once.expire_ms < again.expire_ms


def test_a_lease_that_is_given_up_keeps_its_epoch():
    given_up = released(LEADING)
    assert given_up.is_released
    assert given_up.epoch == MINE.epoch


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"holder":"a","url":"b","epoch":"1"}'])
def test_a_record_that_is_none_is_refused(body: Any):
    with pytest.raises(CorruptionError):
        step(Lease(), Read(body, 0.0))
