"""Faults to plant in the world of members: each leaves out one rule of the protocol, and the world must find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any
from unittest.mock import patch

from tests.sim.members.coordinator import Coordinator
from tests.sim.members.hbase import TOPICS, HBase, messages_of
from tests.sim.members.leader import Leader
from tests.sim.members.ledger import View
from tests.sim.members.member import Member
from tests.sim.members.play import CallError
from tests.sim.members.reign import Page, Reign, judged

Fault = Callable[[], AbstractContextManager[object]]

# Of owners.


def nothing_is_fenced() -> AbstractContextManager[object]:
    """Regions take writes from whoever has owned the shard."""
    return patch.object(HBase, "is_fenced", lambda *_: False)


def fences_come_after_reading() -> AbstractContextManager[object]:
    """A new owner reads where its topic ends, and sends the fence then."""
    fence = Reign.fence_all_regions

    async def read_first(reign: Reign) -> None:
        with suppress(CallError):
            if reign.shard in TOPICS:
                end: int = await reign.member.ask_hbase(
                    messages_of(reign.shard), lambda: reign.hbase.end_of(reign.shard)
                )
                reign.end = reign.last_row = end
        await reign.play.sleep(1_500)
        await fence(reign)

    return patch.object(Reign, "fence_all_regions", read_first)


def doubts_are_forgotten() -> AbstractContextManager[object]:
    """Nobody looks what has become of a row whose write was not answered."""

    async def forget(reign: Reign) -> None:
        reign.doubtful.clear()

    return patch.object(Reign, "settle", forget)


def deletes_in_doubt_are_forgotten() -> AbstractContextManager[object]:
    """A row that was in doubt and is there stays, though its delete was sent."""
    settle = Reign.settle

    async def forget(reign: Reign) -> None:
        reign.doubtful = dict.fromkeys(reign.doubtful, False)
        await settle(reign)

    return patch.object(Reign, "settle", forget)


def reigns_are_taken_up_again() -> AbstractContextManager[object]:
    """A member that has released a shard takes it again when it sees a newer map that still has the old grant."""
    return patch.object(Member, "is_new_reign", lambda member, shard, epoch: shard not in member.reigns)


def views_outlive_reigns() -> AbstractContextManager[object]:
    """A new owner reads by a view from before its reign."""

    async def first_view(reign: Reign) -> View:
        return reign.member.view

    return patch.object(Reign, "first_view", first_view)


# Of readers.


def nobody_asks_at_a_hold() -> AbstractContextManager[object]:
    """A reader waits for the view to come by itself."""

    async def view(member: Member) -> View:
        return member.view

    return patch.object(Member, "newer_view", view)


def questions_under_way_are_shared() -> AbstractContextManager[object]:
    """Who comes while a question is under way takes its answer, which may be older than what it knows."""

    async def ask(member: Member, answer: Any) -> None:
        try:
            member.see_view(await member.ask_leader("view"))
            answer.give(member.view)
        except CallError as error:
            answer.give(error=error)
        member._question = None

    return patch.object(Member, "_ask_for_view", ask)


def rows_are_older_than_the_view() -> AbstractContextManager[object]:
    """Rows are read, then the view that judges them is asked for."""

    async def committed(reign: Reign, cursor: int, snapshot: View | None = None) -> Page:
        reign.serve()
        await reign.find_end()
        rows = await reign._rows_after(cursor)
        page = judged(rows, snapshot or await reign.first_view(), cursor)
        if page.held_by is None or snapshot is not None:
            return page
        try:
            await reign.play.sleep(100)  # a page of many rows, or a slow link
            view = await reign.member.newer_view()
        except CallError:
            return page._replace(is_fresh=False)
        more = judged([row for row in rows if row[0] > page.cursor], view, page.cursor)
        return more._replace(rows=page.rows + more.rows)

    return patch.object(Reign, "committed", committed)


def snapshots_have_no_runs() -> AbstractContextManager[object]:
    """What members have been lent is not in views."""
    judge = View.judge
    return patch.object(View, "judge", lambda view, writer: judge(view._replace(lent=()), writer))


# Of transactions.


def late_places_are_taken() -> AbstractContextManager[object]:
    """A `place` counts though nobody expects it any more."""
    return patch.object(Reign, "take_expected", lambda reign, writer: reign.expected.discard(writer))


def joins_are_not_logged() -> AbstractContextManager[object]:
    """The coordinator does not keep where a writer's rows lie."""

    async def join(coordinator: Coordinator, writer: int, shard: str) -> None:
        coordinator._open(writer, "open")

    return patch.object(Coordinator, "join", join)


def commits_have_no_intent() -> AbstractContextManager[object]:
    """Neither what a commit brings nor that it is being placed is logged before its rows."""
    return _both(
        patch.object(Coordinator, "intent", lambda *_: ()),
        patch.object(Coordinator, "may_be_decided", lambda _, found: found.state in ("open", "committing")),
    )


def pointers_are_not_closed() -> AbstractContextManager[object]:
    """Owners take writes under a pointer whose rows were placed or rolled back."""
    return patch.object(Reign, "close", lambda *_: None)


def roll_backs_are_answered_at_once() -> AbstractContextManager[object]:
    """An abort is answered when it is logged, while owners still take writes under the pointer."""

    async def at_once(coordinator: Coordinator, writer: int) -> None:
        if writer in coordinator.ledger.open:
            coordinator.ledger.outcomes.setdefault(writer, "aborted")

    return patch.object(Coordinator, "rolled_back", at_once)


def requests_are_looked_at_in_the_intent_alone() -> AbstractContextManager[object]:
    """A one-shot over several owners commits, though its request id was committed the short way meanwhile."""
    decide = Coordinator.decide

    async def forgetful(coordinator: Coordinator, writer: int, placed: bool) -> tuple[str, int]:
        found = coordinator.ledger.open.get(writer)
        if found is not None:
            found.request = None
        return await decide(coordinator, writer, placed)

    return patch.object(Coordinator, "decide", forgetful)


# Of loans and of failed writers.


def loans_of_the_dead_stay() -> AbstractContextManager[object]:
    """Nobody ends what the loans of a dead member leave undecided."""
    return patch.object(Coordinator, "_end_members", lambda _: ())


def dropped_places_are_given_out_again() -> AbstractContextManager[object]:
    """Region servers hear of failed writers before owners have noted where their topics end."""

    def at_once(coordinator: Coordinator) -> None:
        coordinator.member.world.publish(frozenset(coordinator.ledger.invalid), tuple(coordinator.ledger.invalid_runs))

    return patch.object(Coordinator, "publish_failed_writers", at_once)


# Of the map.


def what_nobody_holds_stays_so() -> AbstractContextManager[object]:
    """The leader does not grant anew what its owner does not hold."""
    return patch.object(Leader, "_is_missing", lambda *_: False)


class _Both(AbstractContextManager[object]):
    def __init__(self, *patches: AbstractContextManager[object]) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for each in self._patches:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self._patches):
            each.__exit__(*error)


def _both(*patches: AbstractContextManager[object]) -> AbstractContextManager[object]:
    return _Both(*patches)
