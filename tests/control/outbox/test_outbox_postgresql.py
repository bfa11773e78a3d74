"""The outbox on PostgreSQL, through whichever drivers are there.

BASALT_TEST_POSTGRESQL="host=127.0.0.1 port=5432 user=postgres" pytest tests/control/outbox/test_outbox_postgresql.py
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from basalt.errors import InputError, SessionFencedError
from basalt.outbox import Outbox, OutboxParticipant, Relay

GIVEN = os.environ.get("BASALT_TEST_POSTGRESQL", "")
pytestmark = pytest.mark.skipif(not GIVEN, reason="BASALT_TEST_POSTGRESQL names no server")


@pytest.fixture(params=["psycopg", "psycopg2", "pg8000.dbapi"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    driver = pytest.importorskip(request.param)
    given = dict(pair.split("=", 1) for pair in GIVEN.split())
    if "port" in given:
        given["port"] = int(given["port"])

    def connected() -> Any:
        return driver.connect(**given)

    connection = connected()
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS basalt_outbox, basalt_outbox_relay")
    connection.commit()
    yield connected
    connection.close()


@pytest.fixture
def outbox(connect: Callable[[], Any]) -> Outbox:
    made = Outbox(connect, name="bank")
    made.create_table()
    made.create_table()
    return made


@pytest.fixture
def left(connect: Callable[[], Any]) -> Callable[[], int]:
    def count() -> int:
        connection = connect()
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM basalt_outbox")
        ((found,),) = cursor.fetchall()
        connection.close()
        return int(found)

    return count


def test_what_is_committed_is_published_in_order(outbox, connect, client, read, left):
    connection = connect()
    outbox.publish(connection, "orders", ["1", b"2"])
    outbox.publish(connection.cursor(), "orders", "3")
    relay = Relay(outbox, client, rows_max=2)
    assert relay.run_once() == 0
    connection.commit()
    assert [relay.run_once() for _ in range(3)] == [2, 1, 0]
    assert (read(), left()) == (["1", "2", "3"], 0)
    relay.close()
    connection.close()


def test_numbers_are_given_out_before_their_transactions_commit_and_none_is_lost(outbox, connect, client, read):
    slow, fast = connect(), connect()
    outbox.publish(slow, "orders", "slow")
    outbox.publish(fast, "orders", "fast")
    fast.commit()
    relay = Relay(outbox, client)
    assert relay.run_once() == 1
    slow.commit()
    assert relay.run_once() == 1
    assert read() == ["fast", "slow"]
    for each in (relay, slow, fast):
        each.close()


def test_the_newer_relay_goes_on(outbox, connect, client, read):
    first, second = Relay(outbox, client), Relay(outbox, client)
    connection = connect()
    outbox.publish(connection, "orders", ["1"])
    connection.commit()
    assert (first.run_once(), second.run_once()) == (1, 0)
    outbox.publish(connection, "orders", ["2"])
    connection.commit()
    with pytest.raises(SessionFencedError):
        first.run_once()
    assert second.run_once() == 1
    assert read() == ["1", "2"]
    for each in (first, second, connection):
        each.close()


def test_a_participant_publishes_and_what_it_could_not_the_relay_does(outbox, connect, client, read, left):
    connection = connect()
    participant = OutboxParticipant(outbox, connection)
    with client.transaction(participants=[participant]) as tx:
        participant.publish(tx, "orders", "1")
    assert (read(), left()) == (["1"], 0)
    dead = client.transactions.begin()
    outbox.publish(connection, "orders", "2", transaction_id=dead.id)
    connection.commit()
    client.transactions.abort(dead.id)
    relay = Relay(outbox, client)
    assert relay.run_once() == 1
    assert read() == ["1", "2"]
    relay.close()
    connection.close()


def test_a_connection_that_commits_by_itself_is_refused(connect, outbox):
    def alone() -> Any:
        connection = connect()
        connection.autocommit = True
        return connection

    with pytest.raises(InputError, match="autocommit"):
        Outbox(alone).create_table()
    connection = alone()
    for into in (connection, connection.cursor()):
        with pytest.raises(InputError, match="autocommit"):
            outbox.publish(into, "orders", "1")
    with pytest.raises(InputError, match="autocommit"):
        OutboxParticipant(outbox, connection)
    connection.close()


def test_without_its_tables_a_relay_stops(connect, client):
    with pytest.raises(InputError, match="not in the database"):
        Relay(Outbox(connect, name="bank"), client).run()
    assert client.sessions.list() == []


def test_the_drivers_module_is_found(connect):
    connection = connect()
    assert Outbox(connect).driver(connection).paramstyle in ("pyformat", "format")
    assert importlib.import_module(type(connection).__module__.partition(".")[0])
    connection.close()
