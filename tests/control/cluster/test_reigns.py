"""The rule of reigns: every phase with every next one, and what calls meet."""

from __future__ import annotations

from itertools import product

import pytest

from basalt.cluster.reigns import MOVING_WAIT_MS_MAX, Meeting, Phase, Reign

FOLLOWS = {
    (Phase.HELD, Phase.RELEASING),
    (Phase.RELEASING, Phase.HELD),
    (Phase.ABSENT, Phase.TAKING),
    (Phase.TAKING, Phase.HELD),
    *((phase, Phase.ABSENT) for phase in (Phase.HELD, Phase.RELEASING, Phase.TAKING)),
}


@pytest.mark.parametrize(("before", "after"), list(product(Phase, Phase)))
def test_a_phase_follows_only_those_from_which_it_can_be_reached(before: Phase, after: Phase):
    reign = Reign(7, 100, before, unknown_up_to=5)
    epoch = 8 if before is Phase.ABSENT else 7
    if (before, after) in FOLLOWS:
        assert reign.become(after, 200, epoch) == Reign(epoch, 200, after, 5)
    else:
        with pytest.raises(ValueError, match=before.value):
            reign.become(after, 200, epoch)


@pytest.mark.parametrize("epoch", [6, 7])
def test_a_shard_is_taken_under_a_higher_epoch_only(epoch: int):
    with pytest.raises(ValueError, match="not taken"):
        Reign(7, 0, Phase.ABSENT).become(Phase.TAKING, 0, epoch)


@pytest.mark.parametrize(("before", "after"), sorted(FOLLOWS - {(Phase.ABSENT, Phase.TAKING)}, key=str))
def test_a_shard_changes_its_epoch_only_where_it_begins_to_be_taken(before: Phase, after: Phase):
    with pytest.raises(ValueError, match="keeps its epoch"):
        Reign(7, 0, before).become(after, 0, 8)


@pytest.mark.parametrize(
    ("phase", "waited_ms", "meeting"),
    [
        (Phase.HELD, 0, Meeting.SERVED), (Phase.HELD, MOVING_WAIT_MS_MAX, Meeting.SERVED),
        (Phase.RELEASING, 0, Meeting.WAITS), (Phase.RELEASING, MOVING_WAIT_MS_MAX, Meeting.MOVING),
        (Phase.TAKING, MOVING_WAIT_MS_MAX - 1, Meeting.WAITS), (Phase.TAKING, MOVING_WAIT_MS_MAX, Meeting.MOVING),
        (Phase.ABSENT, MOVING_WAIT_MS_MAX - 1, Meeting.WAITS), (Phase.ABSENT, MOVING_WAIT_MS_MAX, Meeting.MOVING),
    ],
)  # fmt: skip
def test_a_call_is_served_or_waits_a_second_at_most(phase: Phase, waited_ms: int, meeting: Meeting):
    assert Reign(7, 0, phase).meets(waited_ms) is meeting


def test_what_was_forgotten_stays_so_though_an_older_pointer_is_told():
    assert Reign(7, 0).forgot(9).forgot(5).unknown_up_to == 9
