"""Servers that take turns to lead one store: of the log they share, each place is taken once."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt.transactions.log.transaction_log import TransactionLog, entry_key
from basalt.transactions.rules.transaction import State
from basalt_engine.clock import ManualClock
from basalt_engine.errors import FencedError, RowExistsError, StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Insert
from tests.control.transactions.whole_bytes import snapshot_mutations
from tests.wiring import A, shop_work

pytestmark = pytest.mark.anyio


class LateStore(MemoryStore):
    """A handle whose next write of a log entry waits, as one that hangs in a network does, until it is let go."""

    late = None
    before_insert = None
    hold = False

    def write(self, writes):
        inserts = any(isinstance(mutation, Insert) for write in writes for mutation in write.mutations)
        if inserts and self.hold:
            self.late, self.hold = writes, False
            raise UnknownOutcomeError("no answer")
        if inserts and self.before_insert is not None:
            call, self.before_insert = self.before_insert, None
            call()
        super().write(writes)

    def let_go(self):
        writes, self.late = self.late, None
        super().write(writes)


def late_handle(store: MemoryStore) -> LateStore:
    handle: Any = store.another()
    handle.__class__ = LateStore
    return handle


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def leader(store: MemoryStore, epoch: int) -> RunningServices:
    return await open_services(Settings(), None, store=store, clock=ManualClock(), epoch=epoch)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(atomic=False)


async def test_a_former_leader_appends_nothing_more_and_is_told_so(store):
    first = await leader(store, 1)
    tx = await first.transactions.begin()
    second = await leader(store.another(), 2)
    rows = len(list(store.table("transaction_log").scan(b"\0", None)))
    with pytest.raises(RowExistsError):
        await first.transactions.begin()
    for _ in range(3):
        with pytest.raises(FencedError, match="epoch 1 is over: the server of epoch 2 leads"):
            await first.transactions.commit(tx.id)
    assert len(list(store.table("transaction_log").scan(b"\0", None))) == rows
    await second.transactions.commit(tx.id, shop_work())
    assert second.transactions.state.outcome(tx.id).state is State.COMMITTED


async def test_a_server_that_takes_over_knows_what_the_former_leader_appended_meanwhile(store):
    first = await leader(store, 1)
    began = []
    log = TransactionLog(store.table("transaction_log"))

    def append_as_the_former_leader():
        state = log.recover()
        proposal = state.begin(1_700_000_000_000)
        store.table("transaction_log").write([log.encode_next(proposal.edits)])
        began.append(proposal.transaction_id)

    handle = late_handle(store)
    handle.before_insert = append_as_the_former_leader
    second = await leader(handle, 2)
    assert began == [tx.id for tx in second.transactions.state.transactions()]
    assert second.transactions.state.leader_epoch == 2
    with pytest.raises(RowExistsError):
        await first.transactions.begin()


async def test_a_delayed_append_of_a_former_leader_finds_its_place_taken(store):
    handle = late_handle(store)
    first = await leader(handle, 1)
    handle.hold = True
    with pytest.raises(UnknownOutcomeError):
        await first.transactions.begin()
    second = await leader(store.another(), 2)
    tx = await second.transactions.begin()
    with pytest.raises(RowExistsError):
        handle.let_go()
    assert second.transactions.state.find(tx.id) is not None


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_delayed_append_of_the_leader_itself_is_read_and_does_not_stop_it(store, snapshot):
    handle = late_handle(store)
    services = await leader(handle, 1)
    handle.hold = True
    with pytest.raises(UnknownOutcomeError):
        await services.transactions.begin(owner="late")
    handle.before_insert = handle.let_go
    with pytest.raises(StoreError):
        await services.transactions.begin(owner="in the way")
    if snapshot:
        await services.transactions.write_log_snapshot()
    await services.transactions.begin(owner="after")
    assert [tx.owner for tx in await services.transactions.list()] == ["late", "after"]


async def test_the_next_leader_knows_whose_each_transaction_is(store):
    first = await leader(store, 1)
    await first.topics.create(A, {})
    opened, ended = [await first.transactions.begin(principal="token:etl") for _ in range(2)]
    await first.transactions.abort(ended.id)
    shot = await first.transactions.one_shot(shop_work(orders=["a"]), principal="jwt:alice")
    await first.transactions.sessions.open("billing", "monday", "token:etl")
    second = await leader(store.another(), 2)
    state = second.transactions.state
    owners = [state.belonging(each.id).principal for each in (opened, ended, shot)]
    assert owners == ["token:etl", "token:etl", "jwt:alice"]
    assert state.sessions.get("billing").principal == "token:etl"


async def test_a_log_snapshot_of_a_former_leader_changes_nothing(store):
    first = await leader(store, 1)
    await first.topics.create(A, {})
    await first.transactions.one_shot(shop_work(orders=["a"]))
    drafted = await first.transactions.manager.run(first.transactions.manager.draft_log_snapshot)
    second = await leader(store.another(), 2)
    await second.transactions.one_shot(shop_work(orders=["b"]))
    before = second.transactions.state.image()
    for mutation in snapshot_mutations(drafted):
        store.table("transaction_log").write([mutation])
    third = await leader(store.another(), 3)
    after = third.transactions.state.image()
    assert after.outcomes == before.outcomes
    assert after.leader_epoch == 3


async def test_entries_before_a_snapshot_stay_where_a_delayed_append_may_come(store):
    services = await leader(store, 1)
    await services.transactions.begin()
    await services.transactions.write_log_snapshot()
    assert store.table("transaction_log").get(entry_key(0)) is not None
