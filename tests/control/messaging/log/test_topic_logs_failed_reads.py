"""A store that cannot be read in the middle of a commit: the commit is refused as a whole, and can be tried again."""

from __future__ import annotations

import pytest

from basalt.errors import StoreError
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.table import Columns
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
async def opened(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> Transaction:
    """A transaction that has stored in both topics, of which the process remembers the second one only."""
    monkeypatch.setattr(shop.topics.memory.writers, "_idle_max", 1)
    tx = await shop.transactions.begin()
    for title in (A, B):
        await shop.store_aside(title, f"stored in {title.name}", tx=tx)
    return tx


async def refused_commit(shop: Wired, tx: Transaction) -> None:
    """Commit while what was stored in the second topic cannot be read: the first one's is known by then."""
    table = shop.store.table("payload")
    read = table.get

    def failing(key: bytes) -> Columns | None:
        if B.name.encode() in key:
            raise StoreError("the disk does not answer")
        return read(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "get", failing)
        with pytest.raises(StoreError):
            await shop.commit(tx, orders=["work"])


async def test_a_commit_that_fails_half_way_shows_nothing_of_it_to_anybody(shop: Wired, opened: Transaction) -> None:
    await refused_commit(shop, opened)
    for title in (A, B):
        assert await shop.read(title) == []
        assert await shop.read(title, committed=True) == []


async def test_a_commit_that_failed_half_way_can_be_repeated(shop: Wired, opened: Transaction) -> None:
    await refused_commit(shop, opened)
    await shop.commit(opened, orders=["work"])
    assert await shop.read(A, committed=True) == ["stored in orders", "work"]
    assert await shop.read(B, committed=True) == ["stored in invoices"]


async def test_an_abort_after_a_commit_that_failed_half_way_leaves_nothing_for_later(
    shop: Wired, opened: Transaction
) -> None:
    await refused_commit(shop, opened)
    await shop.transactions.abort(opened.id)
    await shop.commit(await shop.transactions.begin(), orders=["later"], invoices=["later"])
    for title in (A, B):
        assert await shop.read(title, committed=True) == ["later"]
        assert await shop.read(title) == ["later"]
    assert list(shop.store.table("payload").scan(b"", None)) == []
