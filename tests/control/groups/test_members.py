"""Members of a group: names, rising epochs, fences, leases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import BusyError, InputError, MemberFencedError
from basalt.groups import members as members_module
from basalt.groups.members import EPOCH_AHEAD_MS_MAX, FormerMembers, Members

CLOCK_MS = 1_700_000_000_000


def test_the_first_call_joins_and_the_next_ones_renew():
    members = Members(lease_ms=100)
    ann = members.join("ann", 0, 0, CLOCK_MS)
    assert (ann.name, ann.epoch, len(members), members.version) == ("ann", CLOCK_MS, 1, 1)
    assert members.join("ann", ann.epoch, 90, CLOCK_MS) is ann
    assert members.version == 1
    assert members.next_expiry_ms() == 190
    assert members.expire(189) == []
    assert members.expire(190) == [ann]
    assert (len(members), members.version, members.next_expiry_ms()) == (0, 2, None)


def test_a_newer_process_of_the_name_fences_the_older():
    members = Members(lease_ms=100)
    old = members.join("ann", 0, 0, CLOCK_MS)
    new = members.join("ann", 0, 1, CLOCK_MS)
    assert new.epoch > old.epoch
    assert members.expire(1) == [old]  # its claims end now, though its lease would run
    assert members.expire(1) == []
    with pytest.raises(MemberFencedError, match=f"epoch {old.epoch} was replaced"):
        members.join("ann", old.epoch, 2, CLOCK_MS)
    with pytest.raises(MemberFencedError):
        members.leave("ann", old.epoch)
    assert members.get("ann") is new


def test_an_older_process_stays_fenced_when_the_newer_has_gone():
    members = Members(lease_ms=100)
    old = members.join("ann", 0, 0, CLOCK_MS)
    new = members.join("ann", 0, 0, CLOCK_MS)
    assert members.leave("ann", new.epoch) is new
    with pytest.raises(MemberFencedError):
        members.check("ann", old.epoch)
    again = members.join("ann", new.epoch, 1, CLOCK_MS)  # it was not the one to be replaced
    assert again.epoch == new.epoch


def test_a_member_whose_lease_ran_out_joins_again_at_its_epoch():
    members = Members(lease_ms=100)
    ann = members.join("ann", 0, 0, CLOCK_MS)
    assert members.expire(100) == [ann]
    assert members.join("ann", ann.epoch, 150, CLOCK_MS).epoch == ann.epoch


def test_after_a_restart_members_join_at_the_epochs_that_they_have():
    before = Members(lease_ms=100)
    old = before.join("ann", 0, 0, CLOCK_MS)
    new = before.join("ann", 0, 0, CLOCK_MS)
    after = Members(lease_ms=100)
    assert after.join("ann", old.epoch, 0, CLOCK_MS + 5).epoch == old.epoch  # nobody knows better yet
    assert after.join("ann", new.epoch, 0, CLOCK_MS + 5).epoch == new.epoch
    with pytest.raises(MemberFencedError):
        after.join("ann", old.epoch, 0, CLOCK_MS + 5)
    assert after.join("bob", 0, 0, CLOCK_MS + 5).epoch == CLOCK_MS + 5


def test_epochs_rise_though_the_clock_falls():
    members = Members(lease_ms=100)
    first = members.join("ann", 0, 0, CLOCK_MS)
    second = members.join("ann", 0, 0, CLOCK_MS - 3_600_000)
    third = members.join("bob", 0, 0, CLOCK_MS - 3_600_000)
    assert first.epoch < second.epoch < third.epoch


@pytest.mark.parametrize("epoch", [-1, CLOCK_MS + EPOCH_AHEAD_MS_MAX + 1, 2**63 - 1])
def test_an_epoch_that_nobody_gave_is_refused(epoch: int):
    members = Members(lease_ms=100)
    with pytest.raises(InputError, match="never given out"):
        members.join("ann", epoch, 0, CLOCK_MS)
    assert len(members) == 0


def test_a_full_group_takes_nobody_in_and_those_who_are_in_go_on():
    members = Members(lease_ms=100, members_max=2)
    ann, bob = (members.join(name, 0, 0, CLOCK_MS) for name in ("ann", "bob"))
    with pytest.raises(BusyError, match="2 members"):
        members.join("cid", 0, 0, CLOCK_MS)
    assert members.join("ann", ann.epoch, 1, CLOCK_MS) is ann
    assert members.join("bob", 0, 1, CLOCK_MS).epoch > bob.epoch  # a newer process takes no further place
    members.leave("ann")
    assert [member.name for member in members] == ["bob"]
    assert members.join("cid", 0, 1, CLOCK_MS).name == "cid"


def test_only_so_many_former_members_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members_module, "FORMER_MEMBERS_MAX", 2)
    members = Members(lease_ms=100, former=FormerMembers(), group=7)
    epochs = {name: members.join(name, 0, 0, CLOCK_MS).epoch for name in ("ann", "bob", "cid")}
    for name in epochs:
        members.leave(name)
    members.check("ann", 1)  # forgotten: it may come back
    for name in ("bob", "cid"):
        with pytest.raises(MemberFencedError):
            members.check(name, 1)


def test_leaving_says_who_left_and_again_says_nobody():
    members = Members(lease_ms=100)
    ann = members.join("ann", 0, 0, CLOCK_MS)
    assert members.leave("ann") is ann
    assert members.leave("ann") is None
    assert members.leave("bob", 5) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 80), st.integers(-50_000, 50_000)), max_size=40
    )
)
def test_of_each_name_one_process_is_in_and_its_epoch_only_rises(calls: list[tuple[str, bool, int, int]]):
    members, now_ms, last = Members(lease_ms=100), 0, dict[str, int]()
    for name, is_new, later_ms, step_ms in calls:
        now_ms += later_ms
        for ended in members.expire(now_ms):
            assert ended.epoch <= last[ended.name]
        epoch = 0 if is_new else last.get(name, 0)
        joined = members.join(name, epoch, now_ms, CLOCK_MS + step_ms)
        assert joined.epoch > last.get(name, 0) if not epoch else joined.epoch == epoch
        last[name] = joined.epoch
        assert all(member.seen_ms + 100 > now_ms for member in members)
        assert len({member.name for member in members}) == len(members)
