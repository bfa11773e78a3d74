"""What a leader makes of members that it hears, and of those that it does not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.cluster.links.beats import (
    BEAT_MS,
    LINKED_MS,
    LONELY_MS,
    RANGES_MAX,
    SILENT_MAX,
    STALL_MS,
    UNLINKED_MS,
    Beat,
    Beats,
)
from basalt.cluster.members import MEMBERS_MAX

LEASE_MS = 6_000


class Story:
    """A leader that looks four times a second, and members that beat as often."""

    def __init__(self, *live: str) -> None:
        self.beats = Beats()
        self.now_ms = 0.0
        self.live = list(live)
        self.linked: set[str] = set()
        self.gave_up_ms: float | None = None
        self.beats.begin(3, self.now_ms)

    def link(self, *members: str) -> None:
        for each in members:
            self.linked.add(each)
            self.beats.opened(each, self.now_ms)

    def cut(self, *members: str, noticed: bool = True) -> None:
        for each in members:
            self.linked.discard(each)
            if noticed:
                self.beats.closed(each)

    def pass_ms(self, duration_ms: float, lease_ms: int = LEASE_MS) -> None:
        for _ in range(int(duration_ms // BEAT_MS)):
            self.now_ms += BEAT_MS
            for each in self.linked:
                self.beats.hear(each, Beat(1), self.now_ms)
            if self.beats.look(self.live, lease_ms, self.now_ms) and self.gave_up_ms is None:
                self.gave_up_ms = self.now_ms


def test_a_member_is_linked_while_its_beats_come():
    story = Story("a")
    assert not story.beats.is_linked("a", story.now_ms)
    story.link("a")
    story.pass_ms(60_000)
    assert story.beats.linked(story.now_ms) == ["a"]
    story.cut("a", noticed=False)
    story.pass_ms(LINKED_MS - BEAT_MS)
    assert story.beats.is_linked("a", story.now_ms)
    story.pass_ms(BEAT_MS)
    assert not story.beats.is_linked("a", story.now_ms)


def test_a_link_that_is_closed_counts_no_more_at_once():
    story = Story("a")
    story.link("a")
    story.cut("a")
    assert not story.beats.is_linked("a", story.now_ms)


def test_the_last_beat_is_what_is_known():
    story = Story("a")
    story.link("a")
    story.beats.hear("a", Beat(5, ((0, 1_023),), 7, 8, 9, 10), 1.0)
    assert story.beats.heard["a"].beat == Beat(5, ((0, 1_023),), 7, 8, 9, 10)
    story.beats.hear("nobody", Beat(1), 1.0)
    assert "nobody" not in story.beats.heard


def test_a_member_that_renews_and_has_no_link_for_thirty_seconds_is_to_end():
    story = Story("a", "b", "c")
    story.link("a", "b", "c")
    story.pass_ms(5_000)
    story.cut("b")
    story.pass_ms(UNLINKED_MS - BEAT_MS)
    assert story.beats.to_end == frozenset()
    story.pass_ms(BEAT_MS)
    assert story.beats.to_end == {"b"}
    story.link("b")
    story.pass_ms(BEAT_MS)
    assert story.beats.to_end == frozenset()


def test_a_member_that_never_had_a_link_is_counted_from_when_the_leader_first_saw_it():
    story = Story("a")
    story.link("a")
    story.pass_ms(100_000)
    story.live.append("b")
    story.pass_ms(UNLINKED_MS)
    assert story.beats.to_end == frozenset()
    story.pass_ms(BEAT_MS)
    assert story.beats.to_end == {"b"}


def test_long_leases_wait_longer():
    story = Story("a")
    story.pass_ms(UNLINKED_MS + BEAT_MS, lease_ms=60_000)
    assert story.beats.to_end == frozenset()
    story.pass_ms(120_000 - UNLINKED_MS, lease_ms=60_000)
    assert story.beats.to_end == {"a"}


def test_members_that_are_gone_are_forgotten():
    story = Story("a")
    story.link("a")
    story.cut("a")
    story.live.clear()
    story.pass_ms(BEAT_MS)
    assert story.beats.heard == {}


def test_a_leader_that_lost_most_of_its_links_gives_up_after_ten_seconds():
    story = Story("a", "b")
    story.link("a", "b")
    story.pass_ms(5_000)
    story.cut("a")
    story.pass_ms(60_000)
    assert story.gave_up_ms is None, "one of two others is half of the others"
    story.link("a")
    story.pass_ms(BEAT_MS)
    story.cut("a", "b")
    lost_ms = story.now_ms
    story.pass_ms(2 * LONELY_MS)
    assert story.gave_up_ms is not None
    assert lost_ms + LONELY_MS <= story.gave_up_ms <= lost_ms + LONELY_MS + BEAT_MS


def test_of_two_servers_the_one_that_leads_goes_on_whatever_becomes_of_the_other():
    story = Story("a")
    story.link("a")
    story.pass_ms(5_000)
    story.cut("a")
    story.pass_ms(10 * UNLINKED_MS)
    assert story.gave_up_ms is None


def test_a_leader_that_never_had_links_does_not_give_up():
    """Where no server reaches any other, as behind a firewall, the lead would go round for ever, and serve nobody."""
    story = Story("a", "b", "c", "d")
    story.pass_ms(10 * LONELY_MS)
    assert story.gave_up_ms is None
    assert story.beats.lonely_ms >= 9 * LONELY_MS


def test_servers_that_died_without_a_word_take_nobodys_lead():
    """They count as live for a part of a lease, so with long leases the leader waits that long."""
    story = Story("a", "b")
    story.link("a", "b")
    story.pass_ms(BEAT_MS, lease_ms=60_000)
    story.cut("a", "b")
    story.pass_ms(60_000 - BEAT_MS, lease_ms=60_000)
    assert story.gave_up_ms is None
    story.live.clear()
    story.pass_ms(60_000, lease_ms=60_000)
    assert story.gave_up_ms is None


def test_a_leader_that_stood_still_has_heard_nobody_and_concludes_nothing():
    story = Story("a", "b")
    story.link("a", "b")
    story.pass_ms(5_000)
    story.now_ms += UNLINKED_MS + LONELY_MS
    assert not story.beats.look(story.live, LEASE_MS, story.now_ms)
    assert story.beats.to_end == frozenset()
    story.pass_ms(60_000)
    assert story.gave_up_ms is None


def test_a_gap_below_the_limit_of_a_stall_changes_nothing():
    story = Story("a", "b")
    story.link("a", "b")
    story.pass_ms(BEAT_MS)
    story.cut("a", "b")
    for _ in range(int(LONELY_MS / (STALL_MS - 1)) + 1):
        story.now_ms += STALL_MS - 1
        assert not story.beats.look(story.live, LEASE_MS, story.now_ms)
    story.now_ms += STALL_MS - 1
    assert story.beats.look(story.live, LEASE_MS, story.now_ms)


def test_a_new_term_knows_nothing_of_the_last_one():
    story = Story("a", "b")
    story.link("a", "b")
    story.pass_ms(UNLINKED_MS)
    story.beats.begin(4, story.now_ms)
    assert (story.beats.epoch, story.beats.heard, story.beats.to_end) == (4, {}, frozenset())
    story.beats.end()
    assert story.beats.epoch == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["link", "cut", "come", "go", "pass", "stall"]),
            st.sampled_from("abcd"),
            st.integers(1, 200),
        ),
        max_size=40,
    )
)
def test_nobody_who_beats_is_ended_and_no_leader_with_half_of_its_links_gives_up(steps: list[tuple[str, str, int]]):
    story = Story()
    for what, member, count in steps:
        if what == "link" and member in story.live:
            story.link(member)
        elif what == "cut":
            story.cut(member)
        elif what == "come" and member not in story.live:
            story.live.append(member)
        elif what == "go" and member in story.live:
            story.cut(member)
            story.live.remove(member)
        elif what == "stall":
            story.now_ms += count * 1_000
        else:
            before = story.gave_up_ms
            story.pass_ms(count * BEAT_MS)
            assert not story.beats.to_end & story.linked
            assert story.beats.to_end <= set(story.live)
            if 2 * (1 + len(story.linked)) >= 1 + len(story.live):
                assert story.gave_up_ms == before


def test_a_beat_with_more_ranges_than_there_can_be_is_not_read():
    ranges = tuple((2 * place, 2 * place) for place in range(RANGES_MAX))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Beat(1, ranges)), type=Beat).shards == ranges
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Beat(1, (*ranges, (1_023, 1_023)))), type=Beat)


def test_a_beat_that_asks_of_more_silent_members_than_there_can_be_is_not_read():
    silent = tuple(f"{place:016x}" for place in range(SILENT_MAX))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Beat(1, silent=silent)), type=Beat).silent == silent
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Beat(1, silent=(*silent, "one more"))), type=Beat)
    assert SILENT_MAX >= MEMBERS_MAX


def test_of_members_that_are_heard_the_oldest_view_counts_and_of_others_any() -> None:
    beats = Beats()
    beats.begin(3, 0.0)
    assert beats.oldest_view([]) is None
    assert beats.oldest_view(["m1"]) == 0, "it was never heard, and may read under any view"
    beats.opened("m1", 0.0)
    assert beats.oldest_view(["m1"]) == 0, "it has not told yet"
    beats.hear("m1", Beat(1), 1.0)
    assert beats.oldest_view(["m1"]) is None, "it reads nothing"
    beats.views("m1", 70)
    assert beats.oldest_view(["m1"]) == 70
    beats.hear("m1", Beat(2), 2.0)
    assert beats.oldest_view(["m1"]) == 70, "it was not told of its own views yet"
    beats.hear("m1", Beat(3, oldest_view=80), 3.0)
    beats.views("m1", 90)
    assert beats.oldest_view(["m1"]) == 80
    beats.opened("m2", 3.0)
    beats.hear("m2", Beat(1, oldest_view=75), 4.0)
    assert beats.oldest_view(["m1", "m2"]) == 75
    beats.closed("m2")
    beats.closed("m1")
    assert beats.oldest_view(["m1", "m2"]) == 75, "it may still read, until its membership is ended"
    assert beats.oldest_view(["m1"]) == 80
    beats.opened("m1", 5.0)
    assert beats.oldest_view(["m1"]) == 80, "a new link takes nothing back"


def test_a_member_that_read_nothing_and_lost_its_link_may_read_under_any_view() -> None:
    beats = Beats()
    beats.begin(3, 0.0)
    beats.opened("m1", 0.0)
    beats.hear("m1", Beat(1), 1.0)
    beats.closed("m1")
    assert beats.oldest_view(["m1"]) == 0
