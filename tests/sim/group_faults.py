"""Faults of groups that owners deal, planted one at a time: the world must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from basalt.commits.begun_one_shots import BegunOneShots
from basalt.commits.groups_elsewhere import GroupsElsewhere
from basalt.groups.keyed.comebacks import Comebacks
from basalt.groups.live_group import LiveGroup
from basalt.groups.owned_groups import OwnedGroups
from basalt.transactions.rules.edits import Proposal
from basalt.transactions.rules.transaction_proposals import TransactionProposals


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


@contextmanager
def the_next_leader_leaves_open_what_was_begun() -> Iterator[None]:
    """A leader that reads the log leaves one-shot transactions to their time that the former one had begun."""
    given_up = TransactionProposals.give_up_begun

    def give_up_begun(self: TransactionProposals, now_ms: int, *carried: Any) -> Proposal:
        return given_up(self, now_ms, *carried) if carried else Proposal(())

    with patch.object(TransactionProposals, "give_up_begun", give_up_begun):
        yield


@contextmanager
def a_call_that_fails_leaves_open_what_it_began() -> Iterator[None]:
    """Nobody ends a one-shot transaction whose call is over, but a new leader."""
    with patch.object(BegunOneShots, "has_uncarried", lambda _: False):
        yield


@contextmanager
def a_key_that_a_transaction_held_waits_for_ever() -> Iterator[None]:
    """A message that came back behind one that was pending is not dealt again."""
    with patch.object(Comebacks, "let_go", lambda *_: None):
        yield


FAULTS = (
    the_next_leader_leaves_open_what_was_begun,
    a_call_that_fails_leaves_open_what_it_began,
    a_key_that_a_transaction_held_waits_for_ever,
    memory_is_trusted_though_nobody_answered,
    a_commit_asks_no_other_owner,
    ends_of_transactions_are_not_heard,
)
