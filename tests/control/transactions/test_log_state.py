"""What leader and member have in common: views in use, totals, and that a member decides nothing."""

from __future__ import annotations

import pytest

from basalt.errors import CoordinatorUnavailableError
from basalt.transactions.log_state import ActiveSnapshots, Totals, bound_of
from basalt.transactions.protocol import Joining
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import Join
from basalt_engine.snapshot import PointerRuns, TransactionSnapshot
from tests.control.transactions.following import following

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_view_shows_all_that_committed_up_to_the_first_that_is_open() -> None:
    assert bound_of(TransactionSnapshot(50)) == 50
    assert bound_of(TransactionSnapshot(50, in_progress=(30, 60))) == 29
    assert bound_of(TransactionSnapshot(50, in_progress=(60,))) == 50
    assert bound_of(TransactionSnapshot(50, in_progress_runs=PointerRuns([(20, 25)]))) == 19


def test_the_oldest_view_in_use_counts_until_its_reader_is_done() -> None:
    readers = ActiveSnapshots()
    assert readers.bound(100) == 100
    old, new = TransactionSnapshot(50), TransactionSnapshot(80)
    with readers.reading(new), readers.reading(old), readers.reading(old):
        assert readers.bound(100) == 50
        assert readers.bound(40) == 40
    with readers.reading(new):
        assert readers.bound(100) == 80
    assert readers.bound(100) == 100


def test_events_are_counted_by_their_kind() -> None:
    totals = Totals()
    totals.count([edits.OneShot(1, 0, "", None), edits.GivenUp(5, 8), edits.Invalidated((9, 11), 0, timed_out=True)])
    assert totals.events["committed"] == totals.one_shots == 1
    assert totals.events["invalidated"] == 6
    assert totals.events["timed_out"] == 2


async def test_what_only_the_coordinator_decides_a_member_refuses() -> None:
    async with following() as world:
        member = (await world.member()).manager
        await member.ask()
        calls = (
            lambda: member.submit(lambda _: None, None),  # type: ignore[arg-type]
            lambda: member.apply(None, ()),  # type: ignore[arg-type]
            lambda: member.admit(None, Joining(1)),  # type: ignore[arg-type]
            lambda: member.join_in_log(None, 1, Join(b"x:", 1, 1)),  # type: ignore[arg-type]
        )
        for call in calls:
            with pytest.raises(CoordinatorUnavailableError, match="does not coordinate"):
                call()
        with pytest.raises(CoordinatorUnavailableError, match="does not coordinate"):
            await member.run(lambda _: None)
