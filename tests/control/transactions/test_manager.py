"""The manager over a store: which work a snapshot of the log puts on the event loop, and in which slices it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from basalt.errors import InputError, UnavailableError
from basalt.transactions.log import transaction_log
from basalt.transactions.manager import ExternalTransactions
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Insert, Put, TableWrite
from tests.wiring import Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class LogStore(MemoryStore):
    """Notes how many bytes of the log each write holds."""

    def __init__(self, atomic: bool = True) -> None:
        super().__init__(atomic)
        self.snapshot_writes: list[int] = []

    def write(self, writes: Sequence[TableWrite]) -> None:
        parts = [
            len(value)
            for write in writes
            for mutation in write.mutations
            if isinstance(mutation, Put | Insert) and write.table == "transaction_log"
            for column, value in mutation.columns.items()
            if column == transaction_log.SNAPSHOT
        ]
        if parts:
            self.snapshot_writes.append(sum(parts))
        super().write(writes)


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_snapshot_of_the_log_is_written_one_part_at_a_time(
    atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_log, "PART_BYTES_MAX", 1_000)
    store = LogStore(atomic)
    shop = await Wired.start(store)
    begun = await shop.transactions.begin()
    await shop.transactions.set_changes(begun.id, [b"row %d" % number * 20 for number in range(100)])
    written = await shop.transactions.write_log_snapshot()
    assert sum(store.snapshot_writes) == written > 10_000
    assert max(store.snapshot_writes) <= 1_000 + 100
    again = await shop.restarted()
    assert again.transactions.state.get(begun.id).changes == shop.transactions.state.get(begun.id).changes


async def test_calls_are_answered_between_the_parts_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_log, "PART_BYTES_MAX", 100)
    store = LogStore()
    shop = await Wired.start(store)
    opened = [await shop.transactions.begin(owner="x" * 200) for _ in range(3)]
    snapshot = asyncio.ensure_future(shop.transactions.write_log_snapshot())
    while not store.snapshot_writes:
        await asyncio.sleep(0)
    for each in opened:
        await shop.transactions.commit(each.id)
    assert not snapshot.done(), "there are more parts than calls"
    await snapshot
    again = await shop.restarted()
    assert await again.transactions.list() == []


async def test_a_snapshot_is_encoded_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def noted(call: Any, *given: Any) -> Any:
        threads.append(call)
        return await to_thread(call, *given)

    shop = await Wired.start(MemoryStore(atomic=True))
    await shop.transactions.begin()
    monkeypatch.setattr(asyncio, "to_thread", noted)
    await shop.transactions.write_log_snapshot()
    assert [call.__name__ for call in threads] == ["parts"]


async def test_where_transactions_are_managed_elsewhere_pointers_are_taken_as_given() -> None:
    elsewhere = ExternalTransactions()
    await elsewhere.ensure_known()
    await elsewhere.flush()
    assert elsewhere.snapshots() == (None, None)
    with pytest.raises(InputError, match="isolation=committed"):
        elsewhere.current()
    with pytest.raises(UnavailableError):
        elsewhere.state  # noqa: B018
