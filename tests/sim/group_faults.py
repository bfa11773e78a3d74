"""Faults of groups that owners deal, planted one at a time: the world must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from basalt.commits.groups_elsewhere import GroupsElsewhere
from basalt.groups.live_group import LiveGroup
from basalt.groups.owned_groups import OwnedGroups


@contextmanager
def memory_is_trusted_though_nobody_answered() -> Iterator[None]:
    """An owner that gets no answer goes on with the claims that it had ended for it."""
    with patch.object(LiveGroup, "look_anew", lambda *_, **__: None):
        yield


@contextmanager
def a_commit_asks_no_other_owner() -> Iterator[None]:
    """What is acknowledged elsewhere is left out."""

    async def acknowledged(self: GroupsElsewhere, work: Any, _: Any) -> Any:
        return work and type(work)(
            work.publish, work.markers, work.segments,
            [each for each in work.acknowledge if self._member_of(each) == self._owners.member],
        )  # fmt: skip

    with patch.object(GroupsElsewhere, "acknowledged", acknowledged):
        yield


@contextmanager
def ends_of_transactions_are_not_heard() -> Iterator[None]:
    """An owner does not hear that a transaction acknowledges no more: what it had is dealt to nobody."""
    with patch.object(OwnedGroups, "hear", lambda *_: None):
        yield


FAULTS = (
    memory_is_trusted_though_nobody_answered,
    a_commit_asks_no_other_owner,
    ends_of_transactions_are_not_heard,
)
