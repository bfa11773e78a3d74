"""What the outbox's tests share: a database in a file, and a Basalt in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import basalt
from basalt.client import Client
from basalt.outbox import Outbox


@pytest.fixture
def client() -> Iterator[Client]:
    """A Basalt with the topics of the tests."""
    with basalt.connect("embedded:", settings={"store.kind": "memory"}) as connected:
        for topic in ("orders", "invoices"):
            connected.topics.create(topic)
        yield connected


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    """Connections to one SQLite file with a table of the application's."""
    path = tmp_path / "application.db"

    def connected() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=60)

    with connected() as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, amount INTEGER)")
    return connected


@pytest.fixture
def outbox(connect: Callable[[], sqlite3.Connection]) -> Outbox:
    """An outbox with its tables."""
    made = Outbox(connect, name="bank")
    made.create_table()
    return made


@pytest.fixture
def read(client: Client) -> Callable[..., list[str]]:
    """The committed messages of a topic."""

    def of(topic: str = "orders") -> list[str]:
        return [message.text for message in client.topic(topic).read(isolation="committed")]

    return of


@pytest.fixture
def left(connect: Callable[[], sqlite3.Connection]) -> Callable[[], int]:
    """How many rows are in the outbox."""

    def count() -> int:
        with connect() as connection:
            (found,) = connection.execute("SELECT COUNT(*) FROM basalt_outbox").fetchone()
            return int(found)

    return count
