"""Faults to plant in the world of commits over several owners: each leaves out one rule, and the world must find it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from basalt.commits.commit_stage import CommitStage
from basalt.commits.owning.owner import Owner
from basalt.commits.owning.owners import Owners
from basalt.commits.owning.topic_plan import TopicPlan
from basalt.errors import UnavailableError
from basalt.runtime.group_commit import GroupCommit
from basalt.transactions.protocol import JoinedTransaction, Place, Prepared, RollBack
from tests import several_owners


def a_topic_that_moved_is_placed_by_its_new_owner_alone() -> AbstractContextManager[object]:
    """Nobody looks whether a topic has another owner than the one that keeps messages for it."""

    def numbers(owners: Owners, number: int, *_: object) -> Mapping[str, int]:
        if number >= 0:
            return {owners.member: number} if number else {}
        kept = owners._apart.get(number)
        return {} if kept is None else kept.numbers

    return patch.object(Owners, "_numbers", numbers)


def a_silent_owner_has_placed() -> AbstractContextManager[object]:
    """An owner that gives no answer counts as one that has placed its rows."""
    original = Owners.place

    async def place(owners: Owners, asked: Place) -> None:
        with suppress(UnavailableError):
            await original(owners, asked)

    return patch.object(Owners, "place", place)


def only_this_server_rolls_back() -> AbstractContextManager[object]:
    """A roll back is done at this server, and logged as if it were done at all."""

    async def roll_back(owners: Owners, asked: RollBack) -> None:
        part = owners._split(asked.transaction).get(owners.member)
        if part is not None:
            await Owner.roll_back(owners, RollBack(part))

    return patch.object(Owners, "roll_back", roll_back)


def a_roll_back_goes_on_without_an_answer() -> AbstractContextManager[object]:
    """A roll back that an owner did not answer counts as done."""
    original = Owners.roll_back

    async def roll_back(owners: Owners, asked: RollBack) -> None:
        with suppress(UnavailableError):
            await original(owners, asked)

    return patch.object(Owners, "roll_back", roll_back)


def late_places_are_taken() -> AbstractContextManager[object]:
    """A place counts though nobody expects it any more."""
    original = Owner._place

    def place(owner: Owner, transaction: JoinedTransaction, number: int, lane: GroupCommit, group: Any) -> None:
        owner._expected[transaction.id] = set()
        original(owner, transaction, number, lane, group)

    return patch.object(Owner, "_place", place)


def requests_are_not_looked_for_at_the_end() -> AbstractContextManager[object]:
    """A one-shot transaction commits, though its request was carried out meanwhile."""
    return patch.object(CommitStage, "_answered", lambda *_: None)


@contextmanager
def a_new_owner_knows_all_writers() -> Iterator[None]:
    """Who takes a shard takes its memory for all that open transactions did there."""
    original = several_owners.Fleet._take

    def take(fleet: several_owners.Fleet, server: several_owners.Server, shards: Any) -> None:
        original(fleet, server, shards)
        for shard in shards:
            server.gate.reigns[shard] = server.gate.reigns[shard]._replace(unknown_up_to=0)

    with patch.object(several_owners.Fleet, "_take", take):
        yield


def what_was_kept_last_is_placed() -> AbstractContextManager[object]:
    """A commit places whatever its owner kept last, and not what was kept for it."""
    original = Owner._plan_of

    def plan_of(owner: Owner, number: int, transaction_id: int, lane: GroupCommit | None = None) -> TopicPlan:
        kept = owner._prepared[next(reversed(owner._prepared))] if number and owner._prepared else None
        if kept is None:
            return original(owner, number, transaction_id, lane)
        return kept.plan if lane is None else kept.plan.of_lane(owner._writer, lane)

    return patch.object(Owner, "_plan_of", plan_of)


def what_a_member_keeps_is_forgotten() -> AbstractContextManager[object]:
    """The coordinator commits without what the member to which the commit came keeps for it."""
    original = Owners.prepared_by

    async def prepared_by(owners: Owners, carrier: str, prepared: Prepared, *given: Any) -> Prepared:
        return await original(owners, carrier, replace(prepared, number=0), *given)

    return patch.object(Owners, "prepared_by", prepared_by)


def who_was_asked_has_placed() -> AbstractContextManager[object]:
    """The part of the member to which a commit came counts as placed, whatever it answers."""
    original = Owners._place_part

    async def place_part(owners: Owners, member: str, part: Place) -> None:
        carriers = {kept.carrier for kept in owners._apart.values()}
        try:
            await original(owners, member, part)
        except UnavailableError:
            if member not in carriers:
                raise

    return patch.object(Owners, "_place_part", place_part)
