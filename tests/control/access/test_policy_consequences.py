"""Who gains and who loses what by a change: only what they have by nothing else."""

from __future__ import annotations

from basalt.access.policy import CHANGES_MAX, Policy, consequences, parse_grant
from basalt.access.resources import parse_resource

READ = parse_grant("token:a", ["observe", "read"], "topic:shop:*")
ORDERS = parse_grant("token:a", ["read", "write"], "topic:shop:orders")


def test_what_one_has_by_another_grant_is_neither_gained_nor_lost():
    found = consequences(Policy([READ]), Policy([READ, ORDERS]), ["token:a"], [ORDERS])
    (change,) = found.told
    assert (change.gains, change.loses) == (((parse_resource("topic:shop:orders"), ("write",)),), ())
    back = consequences(Policy([READ, ORDERS]), Policy([READ]), ["token:a"], [ORDERS])
    assert back.told[0].loses == change.gains


def test_a_narrow_grant_does_not_stand_in_for_a_wide_one():
    (change,) = consequences(Policy([READ, ORDERS]), Policy([ORDERS]), ["token:a"], [READ]).told
    assert change.loses == ((parse_resource("topic:shop:*"), ("observe", "read")),)


def test_who_comes_into_a_role_gains_what_it_has_and_who_leaves_loses_it():
    grant = parse_grant("role:billing", ["read"], "namespace:shop")
    before, after = (Policy([grant], {"billing": [member]}) for member in ("token:a", "token:b"))
    found = consequences(before, after, ["token:b", "token:a"], [grant])
    assert [(each.subject, len(each.gains), len(each.loses)) for each in found.told] == [
        ("token:a", 0, 1),
        ("token:b", 1, 0),
    ]


def test_what_everyone_has_and_superusers_have_changes_for_nobody():
    everyone = parse_grant("everyone", ["read", "write"], "topic:shop:orders")
    assert consequences(Policy([everyone]), Policy([everyone, ORDERS]), ["token:a"], [ORDERS]).told == ()
    before, after = (Policy(grants, superusers=["token:a"]) for grants in ((), (ORDERS,)))
    assert consequences(before, after, ["token:a"], [ORDERS]).told == ()


def test_of_many_the_first_ones_are_told_and_the_others_counted():
    grant = parse_grant("role:all", ["read"], "namespace:shop")
    members = [f"token:{number:04}" for number in range(CHANGES_MAX + 2)]
    found = consequences(Policy([grant]), Policy([grant], {"all": members}), members, [grant])
    assert (len(found.told), found.left_out) == (CHANGES_MAX, 2)
