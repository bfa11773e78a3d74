"""An owner's memory of open pointers: who is asked, who goes by memory, and who is refused."""

from __future__ import annotations

from functools import partial

import pytest

from basalt.errors import CoordinatorUnavailableError, TransactionEndedError
from basalt.runtime.group_commit import Group
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.protocol import Close, End, Told
from basalt.transactions.rules.transaction import Join
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.following import following
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop() -> Wired:
    shop = await Wired.start(MemoryStore(atomic=False))
    for title in (A, B):
        await shop.topics.create(title, {})
    return shop


def pointers(shop: Wired) -> OpenPointers:
    """Those of the shop's one owner."""
    return shop.transactions._owner._pointers


def asked(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pointers that the coordinator is asked about from now on."""
    manager, seen = shop.transactions.manager, list[int]()
    admit = manager.admit

    def noted(group: Group, joining):
        seen.append(joining.write_pointer)
        return admit(group, joining)

    monkeypatch.setattr(manager, "admit", noted)
    return seen


async def test_the_coordinator_is_asked_once_for_each_topic_and_pointer(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = await shop.transactions.begin()
    seen = asked(shop, monkeypatch)
    for _ in range(3):
        await shop.store_aside(A, "stored", tx=tx)
        await shop.publish(A, "early", tx=tx)
    assert seen == [tx.id]
    await shop.store_aside(B, "stored", tx=tx)
    assert seen == [tx.id] * 2
    tx = await shop.transactions.checkpoint(tx.id)
    await shop.store_aside(A, "stored", tx=tx)
    assert seen[2:] == [tx.write_pointer]


async def test_later_writes_need_no_coordinator(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "first", tx=tx)
    shop.transactions.manager.lost()  # whoever asks it waits until the log is read
    await shop.store_aside(A, "second", tx=tx)
    assert not shop.transactions.manager.is_known
    await shop.commit(tx)
    assert await shop.read(A, committed=True) == ["first", "second"]


async def test_what_comes_behind_the_deadline_is_refused(shop: Wired) -> None:
    tx = await shop.transactions.begin(timeout_ms=1_000)
    await shop.store_aside(A, "in time", tx=tx)
    shop.clock.advance(1_000)
    with pytest.raises(TransactionEndedError, match="time"):
        await shop.store_aside(A, "late", tx=tx)


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate"])
async def test_what_comes_behind_the_end_is_refused_and_nothing_is_remembered(shop: Wired, end: str) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "in time", tx=tx)
    assert len(pointers(shop)) == 1
    await getattr(shop.transactions, end)(tx.id)
    with pytest.raises(TransactionEndedError):
        await shop.store_aside(A, "late", tx=tx)
    assert len(pointers(shop)) == 0


async def test_who_only_asked_whether_a_pointer_is_open_leaves_nothing_behind(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.transactions.manager.lanes.topics.each[0].run(partial(pointers(shop).check_open, write_pointer=tx.id))
    assert len(pointers(shop)) == 1
    await shop.transactions.abort(tx.id)
    assert len(pointers(shop)) == 0


async def test_a_closed_pointer_takes_nothing_though_its_join_is_answered_later(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "in time", tx=tx)
    pointers(shop).close(tx.id)
    shop.transactions.state.get(tx.id)  # the coordinator has it open, and would admit it
    with pytest.raises(Exception, match="leaves memory faster than it is read"):
        await shop.store_aside(B, "late", tx=tx)
    assert await shop.read(B) == []


async def test_a_transaction_that_joined_nothing_here_is_closed_too_until_its_end(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    pointers(shop).close(tx.id)
    with pytest.raises(Exception, match="leaves memory faster than it is read"):
        await shop.store_aside(A, "late", tx=tx)
    await shop.transactions.abort(tx.id)
    assert pointers(shop)._transactions == {}


async def test_a_log_that_is_read_anew_ends_what_was_told(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "first", tx=tx)
    shop.transactions.manager.lost()
    await shop.transactions.get(tx.id)
    assert len(pointers(shop)) == 0
    await shop.store_aside(A, "second", tx=tx)
    await shop.commit(tx)
    assert await shop.read(A, committed=True) == ["first", "second"]


async def test_where_the_store_is_atomic_nothing_is_remembered() -> None:
    shop = await Wired.start(MemoryStore(atomic=True))
    await shop.topics.create(A, {})
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    assert len(pointers(shop)) == 0
    await shop.commit(tx)
    with pytest.raises(TransactionEndedError):
        await shop.store_aside(A, "late", tx=tx)


async def test_where_transactions_are_managed_elsewhere_pointers_are_taken_as_given(shop: Wired) -> None:
    elsewhere = OpenPointers(shop.transactions.manager, external=True)
    topic = (await shop.topics.open(A)).topic
    elsewhere.check_open(Group(0), 17)
    elsewhere.join(Group(0), 17, topic, 0)
    assert len(elsewhere) == 0


async def test_a_member_opens_pointers_by_the_coordinators_leave_and_closes_them_by_its_entries() -> None:
    async with following() as world:
        member = await world.member()
        opened = OpenPointers(member.manager)
        member.manager.tells(lambda told: [close_or_end(opened, each) for each in told])
        topic = (await world.shop.topics.open(A)).topic
        tx = await world.shop.transactions.begin()
        writer = member.manager.lanes.topics.each[0]
        for _ in range(2):  # the second time by memory alone
            await writer.run(lambda group: opened.join(group, tx.write_pointer, topic, 5))
        assert len(opened) == 1
        assert world.manager.state.get(tx.id).topics == (Join(topic.keys.prefix, topic.generation, 5),)
        await member.cut()
        await writer.run(lambda group: opened.check_open(group, tx.write_pointer))
        another = await world.shop.transactions.begin()
        with pytest.raises(CoordinatorUnavailableError):
            await writer.run(lambda group: opened.join(group, another.write_pointer, topic, 5))
        await member.link()
        await world.shop.transactions.abort(tx.id)
        await member.manager.ask()
        assert len(opened) == 0
        with pytest.raises(TransactionEndedError):
            await writer.run(lambda group: opened.join(group, tx.write_pointer, topic, 5))


def close_or_end(opened: OpenPointers, told: Told) -> None:
    """Tell open pointers as an owner does."""
    if isinstance(told, Close):
        opened.close(told.transaction_id)
    elif isinstance(told, End):
        opened.end(told.transaction.id)
