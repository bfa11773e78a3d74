"""Readers at an owner that follows the coordinator: an old view holds more, never shows more, and is asked to be newer once."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.codecs.encoded import BatchedMessages
from basalt.api.markers import Marker
from basalt.errors import BusyError, CoordinatorUnavailableError
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read import first_unstable, views
from basalt.messaging.read.log_reader import SliceLimits
from basalt.messaging.read.views import Views
from basalt.runtime.group_commit import Group
from basalt.transactions.manager import ExternalTransactions, TransactionManager
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Proposal
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put, TableWrite
from tests.control.messaging.behind import Behind
from tests.wiring import A, Wired, shop_work, texts

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def owners_keep_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner forgets where a writer's rows lie when its view has the end; the shop's own would do so sooner."""
    monkeypatch.setattr(TopicLog, "end_writers", lambda log, write_pointers: None)


async def held_by_one_that_has_committed(shop: Wired) -> Behind:
    """A reader here does not know yet that who published "two" has committed."""
    tx = await shop.transactions.begin()
    await shop.publish(A, "one")
    await shop.publish(A, "two", tx=tx)
    behind = Behind(shop)
    await shop.publish(A, "three")
    await shop.commit(tx, orders=["four"])
    return behind


async def test_a_reader_that_an_old_view_stops_asks_once_and_reads_on(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    page = await behind.messaging.fetch(A, None, True, committed=True)
    assert (texts(page), page.held_by, page.view_age_ms) == (["one", "two", "three", "four"], None, None)
    assert (behind.manager.asked, behind.views.asked_total, behind.views.unanswered_total) == (1, 1, 0)


async def test_so_does_one_that_wants_encoded_messages_or_a_page_behind_an_id(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    found = await behind.messaging.fetch(A, None, True, committed=True, encoding=BatchedMessages)
    assert found.messages == 4
    behind = await held_by_one_that_has_committed(shop)
    found = await behind.messaging.fetch(A, None, True, committed=True, messages_max=7)
    assert (found.messages, behind.manager.asked) == (7, 1)


async def test_nobody_asks_whom_nothing_stops_or_who_reads_everything(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    assert texts(await behind.messaging.fetch(A, None, True)) == ["one", "two", "three", "four"]
    first = await behind.messaging.fetch(A, None, True, committed=True, messages_max=1)
    assert texts(first) == ["one"]
    log = await shop.topics.open(A)
    assert (await behind.messaging.read_committed(log, bytes(20), SliceLimits(1, 1 << 20))).messages == 1
    assert behind.manager.asked == 0


async def test_the_coordinator_itself_asks_nobody(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "one", tx=tx)
    page = await shop.messaging.fetch(A, None, True, committed=True)
    assert (page.held_by, page.view_age_ms) == (tx.write_pointer, None)
    await shop.services.ranges.stable_end(A)
    assert shop.services.views.asked_total == 0
    assert not Views(ExternalTransactions()).may_be_old


async def test_who_gets_no_answer_gets_what_comes_before_and_the_age_of_the_view(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    behind.manager.answers, behind.manager.view_age_ms = False, 1_234.5
    page = await behind.messaging.fetch(A, None, True, committed=True)
    assert (texts(page), page.view_age_ms) == (["one"], 1_234.5)
    assert page.held_by is not None
    assert behind.views.unanswered_total == 1


async def test_an_answer_that_takes_too_long_is_none(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    behind = await held_by_one_that_has_committed(shop)
    monkeypatch.setattr(views, "VIEW_ASK_MS_MAX", 1)
    behind.manager.ask = asyncio.Event().wait
    page = await behind.messaging.fetch(A, None, True, committed=True)
    assert (texts(page), behind.views.unanswered_total) == (["one"], 1)
    with pytest.raises(CoordinatorUnavailableError, match="takes too long"):
        await behind.ranges.stable_end(A)


async def test_a_transaction_of_which_the_view_has_never_heard_holds_until_it_is_newer(shop: Wired):
    await shop.publish(A, "one")
    behind = Behind(shop)
    tx = await shop.transactions.begin()
    await shop.publish(A, "two", tx=tx)
    behind.manager.answers = False
    page = await behind.messaging.fetch(A, None, True, committed=True)
    assert (texts(page), page.held_by) == (["one"], tx.write_pointer)
    behind.manager.answers = True
    page = await behind.messaging.fetch(A, None, True, committed=True)
    assert (texts(page), page.held_by, page.view_age_ms) == (["one"], tx.write_pointer, None)
    await shop.transactions.abort(tx.id)
    assert texts(await behind.messaging.fetch(A, None, True, committed=True)) == ["one"]


async def waiting_at(behind: Behind, wait_ms: int = 60_000) -> asyncio.Task[list[str]]:
    """A long poll that has found nothing so far."""
    log = await behind.shop.topics.open(A)

    async def poll() -> list[str]:
        return texts(await behind.messaging.fetch(A, None, True, committed=True, wait_ms=wait_ms))

    task = asyncio.create_task(poll())
    while not log.waiting or not behind.views._holding:
        await asyncio.sleep(0)
    return task


async def test_a_long_poll_goes_on_when_its_view_hears_that_the_writer_has_ended(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    tx = await shop.transactions.begin()
    await shop.publish(A, "one", tx=tx)
    behind = Behind(shop)
    task = await waiting_at(behind)
    log = await shop.topics.open(A)
    with monkeypatch.context() as elsewhere:  # nobody tells the log itself
        elsewhere.setattr(type(log), "notify", lambda log: None)
        await shop.commit(tx)
    await asyncio.sleep(0)
    assert not task.done()
    behind.manager.hear()
    assert await task == ["one"]
    assert behind.views._holding == {}


async def test_a_long_poll_does_not_miss_an_end_that_comes_while_it_reads(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "one", tx=tx)
    behind = Behind(shop)
    await shop.commit(tx)
    log = await shop.topics.open(A)
    arrival = log.waiter()
    behind.manager.hear()
    behind.views.note_held(log, tx.write_pointer)
    assert arrival.done()


async def test_a_stable_end_has_all_that_was_committed_before_it_was_asked_for(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    end = (await behind.ranges.stable_end(A)).id
    assert end == (await shop.services.ranges.stable_end(A)).id
    assert end is not None


async def test_without_a_link_a_stable_end_stays_where_the_view_leaves_it(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    log = await shop.topics.open(A)
    await behind.views.catch_up(log)
    first = (await behind.ranges.stable_end(A)).id
    tx = await shop.transactions.begin()
    behind.manager.hear()
    await shop.publish(A, "five", tx=tx)
    await shop.commit(tx)
    behind.manager.answers = False
    assert (await behind.ranges.stable_end(A)).id == first
    behind.manager.answers = True
    assert (await behind.ranges.stable_end(A)).id != first


async def test_a_new_owner_tells_no_stable_end_before_its_view_is_as_new_as_any_before(shop: Wired):
    """Its own has never heard of the transaction, whose row would pass for one of which all is decided."""
    await shop.publish(A, "one")
    behind = Behind(shop)
    tx = await shop.transactions.begin()
    await shop.publish(A, "two", tx=tx)
    told = (await shop.services.ranges.stable_end(A)).id
    behind.begin_reign()
    behind.manager.answers = False
    with pytest.raises(CoordinatorUnavailableError, match="there is no link"):
        await behind.ranges.stable_end(A)
    behind.manager.answers = True
    assert (await behind.ranges.stable_end(A)).id == told
    log = await shop.topics.open(A)
    assert log.is_caught_up
    assert log.unknown_up_to >= tx.write_pointer


async def test_a_question_that_was_put_before_the_reign_began_does_not_count(shop: Wired):
    await shop.publish(A, "one")
    behind, log = Behind(shop), await shop.topics.open(A)
    asks = behind.manager.ask

    async def ask() -> None:
        await asks()
        if behind.manager.asked == 1:
            behind.begin_reign()
            await shop.topics.open(A)

    behind.manager.ask = ask
    await behind.views.catch_up(log)
    assert behind.manager.asked == 2


async def test_rows_of_a_loan_that_the_owner_before_had_hold_the_stable_end():
    """Which one-shot transactions of it are in flight, nobody here knows."""
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    await shop.transactions.one_shot(shop_work(orders=["one"]))
    await shop.publish(A, "two")
    behind = Behind(shop)
    (loan,) = behind.manager.state.loans
    end = (await behind.ranges.stable_end(A)).id
    (key,) = [row.key for row in shop.store.table("message").scan(b"", None) if b"t" not in row.columns]
    put = Put(key, {b"t": loan.undecided.to_bytes(8, "big")})
    shop.store.write([TableWrite("message", [put])])
    behind.begin_reign()
    held = (await behind.ranges.stable_end(A)).id
    assert held is not None
    assert end is not None
    assert held < end
    await shop.services.close()


async def test_rows_of_another_members_loan_hold_the_coordinators_own_readers_until_that_is_settled():
    """As in a shard that it took from the member: nobody tells the log of such a writer's end."""
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    await shop.publish(A, "two")
    manager = shop.transactions.manager
    lent = await manager.run(
        lambda group: _applied(
            manager, group, manager.state.loans.lend("other", manager.state.last_pointer, shop.clock.now_ms())
        )
    )
    key = min(row.key for row in shop.store.table("message").scan(b"", None) if b"t" not in row.columns)
    shop.store.write([TableWrite("message", [Put(key, {b"t": lent.to_bytes(8, "big")})])])
    Behind(shop).begin_reign()
    assert (await shop.services.ranges.stable_end(A)).id is not None
    assert manager.lent_elsewhere().edges[0] == lent
    log = await shop.topics.open(A)
    task = asyncio.create_task(shop.messaging.fetch(A, None, True, committed=True, wait_ms=60_000))
    while not log.waiting or not shop.services.views._holding:
        await asyncio.sleep(0)
    await manager.run(lambda group: manager.apply(group, [edits.MemberEnded("other")]))
    assert texts(await task) == ["two"]
    assert shop.services.views.asked_total == 0
    await shop.services.close()


def _applied(manager: TransactionManager, group: Group, proposal: Proposal) -> int:
    manager.apply(group, proposal.edits)
    return proposal.transaction_id


def test_rows_are_looked_for_from_before_their_loan_was_made_for_clocks_are_apart():
    assert first_unstable.CLOCKS_APART_MS_MAX == 3_600_000


async def test_a_search_that_has_not_come_to_its_end_tells_no_end_that_might_lie_before_one_that_was_told(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_unstable, "ROWS_MAX", 1)
    tx = await shop.transactions.begin()
    await shop.services.join_topic(tx.id, A)
    for number in range(600):
        await shop.publish(A, str(number))
    behind = Behind(shop)
    behind.begin_reign()
    refused = 0
    while True:
        try:
            end = (await behind.ranges.stable_end(A)).id
            break
        except BusyError:
            refused += 1
            assert refused < 10
    assert refused
    assert end == (await shop.services.ranges.stable_end(A)).id


async def test_a_look_at_messages_asks_whether_open_ones_are_open(shop: Wired):
    behind = await held_by_one_that_has_committed(shop)
    page = await behind.peek.peek(A, None, True)
    assert [message.state for message in page.messages] == ["plain", "committed", "plain", "committed"]
    behind = await held_by_one_that_has_committed(shop)
    behind.manager.answers = False
    assert "open" in {message.state for message in (await behind.peek.peek(A, None, True)).messages}


async def test_markers_behind_a_held_row_count_once_the_view_has_its_end(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "one", tx=tx)
    await shop.services.markers.publish(A, Marker("task", 1))
    behind = Behind(shop)
    assert not (await behind.markers.facts(A)).ended
    waits = asyncio.create_task(behind.markers.facts(A, wait_ms=60_000))
    while not behind.views._holding:
        await asyncio.sleep(0)
    behind.manager.answers = False
    await shop.commit(tx)
    behind.manager.hear()
    assert (await waits).ended
