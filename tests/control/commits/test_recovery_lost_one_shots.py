"""One-shot transactions on a store that is not atomic: two writes each, and what becomes of one without an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from basalt_engine.clock import ManualClock
from basalt_engine.errors import RowExistsError, UnknownOutcomeError
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, Insert, TableWrite
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio


@dataclass
class Faults:
    """What goes wrong with the next writes, and what of them is still on its way."""

    lose: Callable[[TableWrite], bool] | None = (
        None  # of the next write that it is true of, only the caller hears no more
    )
    before: bool = True  # the write is not made, and arrives when told to; else it is made
    late: list[TableWrite] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)  # the first table of each write


class LosingStore(MemoryStore):
    """Not atomic. Loses answers when told to; a delete that was sent after a late row hides it, as in HBase."""

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.faults = Faults()

    def another(self) -> LosingStore:
        made = LosingStore()
        made._open(self._shared)
        return made

    def write(self, writes: Sequence[TableWrite]) -> None:
        faults = self.faults
        faults.writes.append(writes[0].table)
        gone = {row.key for write in writes for row in write.mutations if isinstance(row, Delete)}
        faults.late = [
            TableWrite(name, [row for row in rows if getattr(row, "key", b"") not in gone])
            for name, rows in faults.late
        ]
        if faults.lose is not None and any(map(faults.lose, writes)):
            faults.lose = None
            if faults.before:
                faults.late = list(writes)
            else:
                super().write(writes)
            raise UnknownOutcomeError("no answer")
        super().write(writes)

    def arrive(self) -> None:
        late, self.faults.late = self.faults.late, []
        super().write(late)


def is_rows(write: TableWrite) -> bool:
    return write.table == "message"


def is_entry(write: TableWrite) -> bool:
    return any(isinstance(mutation, Insert) for mutation in write.mutations)


@pytest.fixture(params=[True, False], ids=["cached", "stored"])
async def shop(request: pytest.FixtureRequest) -> Wired:
    shop = await Wired.start(LosingStore(), cached=request.param)
    await shop.topics.create(A, {})
    await shop.topics.create(B, {"spread": "3"})
    await shop.transactions.one_shot(shop_work(orders=["first"], invoices=["first"]))  # from here on it has a loan
    return shop


def faults(shop: Wired) -> Faults:
    assert isinstance(shop.store, LosingStore)
    return shop.store.faults


async def lose(shop: Wired, part: Callable[[TableWrite], bool], *, made: bool = False, request_id: str = "r") -> None:
    """A one-shot transaction of "lost" in both topics, of which one write's answer gets lost."""
    faults(shop).lose, faults(shop).before = part, not made
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.one_shot(shop_work(orders=["lost"], invoices=["lost"]), request_id=request_id)


async def both(shop: Wired) -> list[list[str]]:
    return [await shop.read(title, committed=True) for title in (A, B)]


def lent(shop: Wired) -> list[tuple[int, int]]:
    return [tuple(run) for run in shop.transactions.state.loans.in_progress]


@pytest.mark.parametrize("crash", [True, False], ids=["a new process", "the same process"])
async def test_rows_without_an_outcome_are_skipped_and_the_transaction_can_be_carried_out_anew(
    shop: Wired, crash: bool
):
    await lose(shop, is_entry)
    await shop.publish(A, "plain")
    faults(shop).late = []
    assert await both(shop) == [["first"], ["first"]]  # readers wait at the rows of which nobody knows
    if crash:
        shop = await shop.restarted()
    else:
        await shop.transactions.expire()
    assert await both(shop) == [["first", "plain"], ["first"]]
    await shop.transactions.one_shot(shop_work(orders=["lost"], invoices=["lost"]), request_id="r")
    assert await both(shop) == [["first", "plain", "lost"], ["first", "lost"]]
    assert await both(await shop.restarted()) == await both(shop)


async def test_an_outcome_whose_answer_was_lost_counts_and_a_retry_gets_it(shop: Wired):
    await lose(shop, is_entry, made=True)
    await shop.transactions.one_shot(shop_work(orders=["lost"], invoices=["lost"]), request_id="r")
    assert await both(shop) == [["first", "lost"]] * 2


async def test_an_outcome_that_arrives_after_recovery_finds_its_place_taken(shop: Wired):
    await lose(shop, is_entry)
    await shop.transactions.expire()
    with pytest.raises(RowExistsError):
        shop.store.arrive()  # type: ignore[attr-defined]
    assert await both(await shop.restarted()) == await both(shop) == [["first"]] * 2


async def test_rows_that_arrive_after_recovery_are_never_seen(shop: Wired):
    await lose(shop, is_rows)
    shop.clock.advance(1)
    tx = await shop.transactions.begin()  # the log is read again, and nobody has looked at the topics
    shop.store.arrive()  # type: ignore[attr-defined]
    await shop.transactions.commit(tx.id)
    assert shop.transactions.manager.current().read_pointer == tx.id
    assert await both(shop) == [["first"]] * 2
    assert await both(await shop.restarted()) == [["first"]] * 2


async def test_an_intent_that_arrives_late_gives_its_pointer_to_no_one_shot(shop: Wired):
    tx = await shop.transactions.begin()
    faults(shop).lose = is_entry
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.checkpoint(tx.id)
    await shop.transactions.expire()
    with pytest.raises(RowExistsError):
        shop.store.arrive()  # type: ignore[attr-defined]
    await lose(shop, is_entry)
    await shop.transactions.expire()
    assert await both(shop) == [["first"]] * 2


async def test_what_was_lost_is_a_run_on_the_invalid_list_and_no_transaction(shop: Wired):
    ((first, last),) = lent(shop)
    await lose(shop, is_entry)
    moment = await shop.transactions.manager_snapshot()
    assert moment.view.invalid.runs == PointerRuns([(first, last)])
    assert moment.decided == moment.write_pointer == last
    assert await shop.transactions.list() == []
    other = await shop.transactions.begin()
    assert other.id > last
    await shop.transactions.commit(other.id, shop_work(orders=["next"]))
    assert await both(shop) == [["first", "next"], ["first"]]
    assert await both(await shop.restarted()) == await both(shop)


async def test_a_topic_that_was_created_again_has_nothing_of_it(shop: Wired):
    await lose(shop, is_entry)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    again = await shop.restarted()
    assert await both(again) == [[], ["first"]]
    assert await again.read(A) == []
    await again.transactions.one_shot(shop_work(orders=["new"]))
    assert await both(again) == [["new"], ["first"]]


async def test_a_leader_whose_clock_is_behind_finds_what_it_lost_itself(shop: Wired):
    await lose(shop, is_rows)  # its place stays empty
    behind = await Wired.start(shop.store, ManualClock(shop.clock.now_ms() - 60_000))
    await lose(behind, is_entry)
    again = await Wired.start(shop.store, behind.clock)
    await again.transactions.commit((await again.transactions.begin()).id)
    assert await both(again) == [["first"]] * 2


async def test_a_checkpoints_pointer_lies_behind_the_loan_beside_which_it_is_given_out(shop: Wired):
    tx = await shop.transactions.begin()
    outcome, moved = await asyncio.gather(
        shop.transactions.one_shot(shop_work(orders=["a"])), shop.transactions.checkpoint(tx.id)
    )
    assert outcome.id < tx.id < moved.write_pointer
    assert not moved.snapshot().is_visible(outcome.id)
    again = await shop.restarted()
    assert again.transactions.state.last_pointer == moved.write_pointer


async def test_many_of_one_group_are_all_skipped(shop: Wired):
    faults(shop).lose = is_entry
    calls = [shop.transactions.one_shot(shop_work(orders=[f"lost {n}"], invoices=[f"lost {n}"])) for n in range(20)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnknownOutcomeError}
    again = await shop.restarted()
    assert await both(again) == [["first"]] * 2
    assert len(await again.read(A)) == 21  # those who read without transactions see it all the same
