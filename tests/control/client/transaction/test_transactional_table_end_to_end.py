"""Tables through both clients against the whole server, embedded in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.client import Client
from basalt.errors import TableExistsError, TableNotFoundError, TransactionConflictError

MEMORY = {"store.kind": "memory"}


@pytest.fixture
def client() -> Iterator[Client]:
    with basalt.connect("embedded:", settings=MEMORY) as client:
        client.tables.create("accounts")
        client.topics.create("payments")
        yield client


def balance(client: Client, name: str) -> int:
    return int(client.table("accounts").get(name).get(b"balance", b"0"))


def test_tables_are_created_shown_listed_and_deleted(client):
    assert client.tables.get("accounts").conflict == "row"
    client.tables.create("notes", conflict="none")
    assert client.tables.list() == ["accounts", "notes"]
    with pytest.raises(TableExistsError):
        client.tables.create("notes")
    client.tables.delete("notes")
    with pytest.raises(TableNotFoundError):
        client.tables.get("notes")
    assert client.tables.create("notes").generation == 2
    assert client.tables.list(namespace="elsewhere") == []


def test_a_client_that_creates_a_table_anew_writes_to_the_new_one_at_once(client):
    for number in range(3):
        with client.transaction() as tx:
            tx.table("accounts").put("alice", {"balance": str(number)})
        assert balance(client, "alice") == number
        client.tables.delete("accounts")
        client.tables.create("accounts", conflict=("cell", "none")[number % 2])


def test_a_state_change_and_its_message_are_one_decision(client):
    with client.transaction() as tx:
        accounts = tx.table("accounts")
        accounts.put("alice", {"balance": "5"})
        assert accounts.get("alice") == {b"balance": b"5"}
        tx.publish("payments", "alice paid in 5")
        assert client.table("accounts").get("alice") == {}
    assert balance(client, "alice") == 5
    assert [message.text for message in client.topic("payments").read()] == ["alice paid in 5"]
    with pytest.raises(ZeroDivisionError):
        with client.transaction() as tx:
            tx.table("accounts").put("alice", {"balance": "0"})
            tx.publish("payments", "alice took out 5")
            raise ZeroDivisionError
    assert balance(client, "alice") == 5
    assert len(list(client.topic("payments").read())) == 1


def test_of_two_that_change_the_same_row_the_second_starts_again(client):
    def pay_in(amount: int) -> None:
        with client.transaction() as tx:
            accounts = tx.table("accounts")
            before = int(accounts.get("alice").get(b"balance", b"0"))
            if amount == 1:
                pay_in(2)
            accounts.put("alice", {"balance": str(before + amount)})

    with pytest.raises(TransactionConflictError, match="on row 'alice' of table default:accounts to"):
        pay_in(1)
    assert balance(client, "alice") == 2
    (first, *_) = client.transactions.list() or [None]
    assert first is None


def test_more_than_a_buffer_is_written_before_the_commit_and_read_all_the_same(client):
    value = b"x" * 1_000_000
    with client.transaction() as tx:
        accounts = tx.table("accounts")
        for number in range(10):
            accounts.put(f"row {number}", {"big": value})
        assert [row.row.decode() for row in accounts.scan()] == [f"row {number}" for number in range(10)]
        assert accounts.get("row 0") == {b"big": value}
        assert list(client.table("accounts").scan()) == []
    assert sum(len(row.cells[b"big"]) for row in client.table("accounts").scan()) == 10_000_000


def test_checkpoints_rows_and_pages(client):
    with client.transaction() as tx:
        accounts = tx.table("accounts")
        for number in range(1_500):
            accounts.put(f"{number:04}", {"n": str(number)})
        tx.checkpoint()
        accounts.delete_row("0001")
        accounts.delete("0002", ["n"])
        accounts.put("0003", {"n": "three"})
        own = {row.row: row.cells[b"n"] for row in accounts.scan(stop="0005")}
        assert own == {b"0000": b"0", b"0003": b"three", b"0004": b"4"}
        before = [row.row for row in accounts.scan(stop="0005", visibility="exclude_current")]
        assert before == [b"0000", b"0001", b"0002", b"0003", b"0004"]
        assert len(list(accounts.scan())) == 1_498
    assert len(list(client.table("accounts").scan(start="0003"))) == 1_497
    assert client.table("accounts").get("0003") == {b"n": b"three"}


def test_a_table_that_was_created_again_under_a_transaction_is_told(client):
    with pytest.raises(basalt.errors.ConflictError, match="generation 2"):
        with client.transaction() as tx:
            tx.table("accounts").put("a", {"b": "1"})
            tx.checkpoint()
            client.tables.delete("accounts")
            client.tables.create("accounts", conflict="none")
            tx.table("accounts").put("c", {"b": "1"})
    with client.transaction() as tx:
        tx.table("accounts").put("a", {"b": "1"})
    assert client.table("accounts").get("a") == {b"b": b"1"}


def test_what_an_aborted_transaction_sent_is_forgotten_by_pruning(client):
    """Its writer is invalid, and no mark of writes outside Basalt keeps it for ever."""
    with pytest.raises(ZeroDivisionError):
        with client.transaction() as tx:
            tx.table("accounts").put("a", {"b": "1"})
            tx.checkpoint()
            raise ZeroDivisionError
    shown = client.transactions.get(tx.id)
    assert (shown.state, shown.external_writes) == ("INVALID", False)
    assert client.table("accounts").get("a") == {}


def test_the_async_client_does_the_same():
    async def story() -> list[str]:
        async with basalt.aio.connect("embedded:", settings=MEMORY) as client:
            await client.tables.create("accounts")
            async with client.transaction() as tx:
                accounts = tx.table("accounts")
                await accounts.put("alice", {"balance": "5"})
                await accounts.put("bob", {"balance": "1"})
                await accounts.delete_row("bob")
                assert [row.row async for row in accounts.scan()] == [b"alice"]
                assert await accounts.get("alice", "balance") == {b"balance": b"5"}
            return [
                f"{row.row.decode()} {row.cells[b'balance'].decode()}" async for row in client.table("accounts").scan()
            ]

    assert asyncio.run(story()) == ["alice 5"]


def test_the_example_of_the_reference_is_true():
    page = (Path(__file__).parents[4] / "docs/reference/client.md").read_text()
    section = page[page.index("\n## Tables\n") :]
    example = section[section.index("```python\n") + len("```python\n") :]
    exec(example[: example.index("```")], {})
