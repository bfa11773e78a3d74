"""An SQL transaction beside a Basalt transaction: the SQL commit decides, and everything is published once."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from basalt.client.transaction.open_transaction import TransactionAware
from basalt.errors import InputError, TransactionEndedError, TransactionNotFoundError
from basalt.outbox import OutboxParticipant, Relay
from basalt.outbox.tables import OutboxRows
from tests.control.client.participants_world import Broken, Recording


class Breaking(sqlite3.Connection):
    """A connection whose commits fail on order, before they happen or after."""

    fails: str | None = None

    def commit(self) -> None:
        how, self.fails = self.fails, None
        if how == "before":
            raise sqlite3.OperationalError("disk I/O error")
        super().commit()
        if how == "after":
            raise sqlite3.OperationalError("the connection was lost")


@pytest.fixture
def connection(tmp_path, outbox):
    opened = sqlite3.connect(tmp_path / "application.db", timeout=60, factory=Breaking)
    yield opened
    opened.close()


@pytest.fixture
def accounts(connect):
    def count() -> int:
        with connect() as asked:
            return asked.execute("SELECT COUNT(*) FROM accounts").fetchone()[0]

    return count


def work(client, connection, participant, *others: TransactionAware):
    with client.transaction(participants=[*others, participant]) as tx:
        connection.execute("INSERT INTO accounts VALUES ('ann', 5)")
        participant.publish(tx, "orders", ["1", "2"])
    return tx


def test_both_commit_and_no_relay_is_needed(outbox, connection, client, read, left, accounts):
    participant = OutboxParticipant(outbox, connection)
    tx = work(client, connection, participant)
    assert (read(), accounts(), left()) == (["1", "2"], 1, 0)
    assert (tx.outcome.state, participant.decided) == ("COMMITTED", True)
    assert Relay(outbox, client).run_once() == 0


def test_an_exception_rolls_both_back(outbox, connection, client, read, left, accounts):
    participant = OutboxParticipant(outbox, connection)
    with pytest.raises(Broken):
        work(client, connection, participant, Recording("a", [], {"a.commit": "raise"}))
    assert (read(), accounts(), left(), participant.decided) == ([], 0, 0, False)


def test_a_password_in_what_a_driver_says_is_not_logged(outbox, connection, client, monkeypatch, caplog):
    def lost(*_: object) -> None:
        raise sqlite3.OperationalError("lost postgresql://app:hunter2@db/shop")

    caplog.set_level(logging.INFO, "basalt.outbox")
    connection.rollback = lost
    with pytest.raises(Broken):
        work(client, connection, OutboxParticipant(outbox, connection), Recording("a", [], {"a.commit": "raise"}))
    del connection.rollback
    connection.rollback()
    monkeypatch.setattr(OutboxRows, "drop", lost)
    work(client, connection, OutboxParticipant(outbox, connection))
    assert caplog.text.count("lost postgresql://***@db/shop") == 2
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("fails", "happened"), [("before", False), ("after", True)])
def test_an_sql_commit_that_fails_may_have_happened(outbox, connection, client, read, left, accounts, fails, happened):
    participant = OutboxParticipant(outbox, connection)
    connection.fails = fails
    with pytest.raises(sqlite3.OperationalError):
        work(client, connection, participant)
    assert participant.decided is None
    assert (read(), accounts()) == ([], int(happened))
    assert Relay(outbox, client).run_once() == (2 if happened else 0)
    assert (read(), left()) == (["1", "2"] if happened else [], 0)


def test_what_basalt_refuses_after_the_sql_commit_the_relay_publishes(outbox, connection, client, read, left, accounts):
    participant = OutboxParticipant(outbox, connection)

    class Ending(Recording):
        def commit_tx(self) -> None:
            client.transactions.abort(tx.id)

    with pytest.raises(TransactionEndedError), client.transaction(participants=[participant]) as tx:
        tx.add(Ending("late", [], {}))
        connection.execute("INSERT INTO accounts VALUES ('ann', 5)")
        participant.publish(tx, "orders", ["1"])
    assert participant.decided is True
    assert (read(), accounts(), left()) == ([], 1, 1)
    assert Relay(outbox, client).run_once() == 1
    assert (read(), left()) == (["1"], 0)


def test_rows_of_a_transaction_that_is_open_wait_and_hold_nothing_up(outbox, connection, connect, client, read, left):
    tx = client.transactions.begin()
    with connect() as asked:
        outbox.publish(asked, "orders", "early", transaction_id=tx.id)
        outbox.publish(asked, "orders", "free")
    relay = Relay(outbox, client)
    assert relay.run_once() == 1
    assert (read(), left()) == (["free"], 1)
    client.transactions.abort(tx.id)
    assert relay.run_once() == 1
    assert read() == ["free", "early"]


def test_however_many_transactions_are_open_rows_of_later_ones_are_decided(
    outbox, connect, client, read, left, monkeypatch
):
    monkeypatch.setattr("basalt.outbox.relay.UNDECIDED_MAX", 2)
    opened = [client.transactions.begin() for _ in range(5)]
    ended = client.transactions.begin()
    with connect() as asked:
        for number, tx in enumerate([*opened, ended]):
            outbox.publish(asked, "orders", str(number), transaction_id=tx.id)
    client.transactions.abort(ended.id)
    relay = Relay(outbox, client)
    assert sum(relay.run_once() for _ in range(3)) == 1
    assert (read(), left()) == (["5"], 5)
    client.transactions.abort(opened[0].id)  # behind where the relay has come: it begins again
    assert sum(relay.run_once() for _ in range(3)) == 1
    assert (read(), left()) == (["5", "0"], 4)


def test_rows_that_a_transaction_published_are_not_published_again(outbox, connect, client, read, left):
    with client.transaction() as tx:
        tx.publish("orders", "1")
    with connect() as asked:
        outbox.publish(asked, "orders", "1", transaction_id=tx.id)
    assert Relay(outbox, client).run_once() == 0
    assert (read(), left()) == (["1"], 0)


@pytest.mark.parametrize("published", [True, False])
def test_an_outcome_that_is_forgotten_is_an_operators_to_settle(
    outbox, connect, client, read, left, published, monkeypatch
):
    def forgotten(transaction_id):
        raise TransactionNotFoundError("forgotten")

    monkeypatch.setattr(client, "transactions", type("T", (), {"get": staticmethod(forgotten)}))
    with connect() as asked:
        outbox.publish(asked, "orders", "1", transaction_id="42")
    relay = Relay(outbox, client)
    assert relay.run_once() == relay.run_once() == 0
    assert (relay.uncertain, left()) == ({"42"}, 1)
    relay.resolve("42", published=published)
    assert relay.run_once() == (0 if published else 1)
    assert (relay.uncertain, left()) == (set(), 0)


def test_however_many_outcomes_are_forgotten_the_others_are_found(outbox, connect, client, left, monkeypatch):
    monkeypatch.setattr("basalt.outbox.relay.UNDECIDED_MAX", 2)
    with connect() as asked:
        for number in range(7, 12):
            outbox.publish(asked, "orders", str(number), transaction_id=str(number))
    with client.transaction() as tx:
        tx.publish("orders", "12")
    with connect() as asked:
        outbox.publish(asked, "orders", "12", transaction_id=tx.id)
    relay = Relay(outbox, client)
    assert [relay.run_once() for _ in range(4)] == [0] * 4
    assert (relay.uncertain, left()) == ({"7", "8", "9", "10", "11"}, 5)


def test_rows_that_cannot_be_removed_are_left_to_the_relay(outbox, connection, client, read, left):
    participant = OutboxParticipant(outbox, connection)

    class Locking(Recording):
        def post_commit_tx(self) -> None:
            connection.fails = "before"

    work(client, connection, participant, Locking("a", [], {}))
    assert (read(), left()) == (["1", "2"], 2)
    assert Relay(outbox, client).run_once() == 0
    assert (read(), left()) == (["1", "2"], 0)


def test_a_checkpoint_does_not_commit_the_database(outbox, connection, client, read, accounts):
    participant = OutboxParticipant(outbox, connection)
    with pytest.raises(Broken), client.transaction(participants=[participant]) as tx:
        connection.execute("INSERT INTO accounts VALUES ('ann', 5)")
        tx.checkpoint()
        raise Broken
    assert accounts() == 0


def test_it_publishes_in_its_own_transaction_only(outbox, connection, client):
    participant = OutboxParticipant(outbox, connection)
    with client.transaction() as tx, pytest.raises(TransactionEndedError, match="takes no part"):
        participant.publish(tx, "orders", "1")


def test_it_leaves_nothing_on_the_invalid_list(outbox, connection, client):
    participant = OutboxParticipant(outbox, connection)
    with client.transaction(participants=[participant]) as tx:
        assert not client.transactions.get(tx.id).external_writes


def test_a_connection_that_commits_by_itself_takes_no_part(outbox, connection):
    connection.isolation_level = None
    with pytest.raises(InputError, match="autocommit"):
        OutboxParticipant(outbox, connection)
