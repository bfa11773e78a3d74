"""From an SQL transaction to the topics: once, in order, whoever dies or comes back."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from basalt.errors import (
    InputError,
    SessionFencedError,
    TooLargeError,
    TopicNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.outbox import Outbox, OutboxBehindError, OutboxUncertainError, Relay
from basalt.outbox.outbox import MESSAGE_BYTES_MAX
from basalt.outbox.tables import OutboxRows

NUMBERED = "INSERT INTO basalt_outbox (number, namespace, topic, payload) VALUES (?, 'default', 'orders', ?)"


def announce(outbox, connect, *messages, topic="orders"):
    with connect() as connection:
        outbox.publish(connection, topic, messages)


def test_what_the_sql_transaction_commits_is_published(outbox, connect, client, read, left):
    with connect() as connection:
        connection.execute("INSERT INTO accounts VALUES ('ann', 5)")
        assert outbox.publish(connection, "orders", ["1", b"2"]) == 2
        cursor = connection.cursor()
        outbox.publish(cursor, "invoices", "3")
    relay = Relay(outbox, client)
    assert relay.run_once() == 3
    assert (read(), read("invoices"), left()) == (["1", "2"], ["3"], 0)
    assert relay.run_once() == 0


def test_what_it_rolls_back_was_never_said(outbox, connect, client, read):
    connection = connect()
    outbox.publish(connection, "orders", "1")
    connection.rollback()
    assert Relay(outbox, client).run_once() == 0
    assert read() == []


def test_a_batch_is_as_large_as_its_limits(outbox, connect, client, read):
    announce(outbox, connect, *(str(number) for number in range(7)))
    relay = Relay(outbox, client, rows_max=3)
    assert [relay.run_once() for _ in range(4)] == [3, 3, 1, 0]
    announce(outbox, connect, "x" * 600, "y" * 600, "z" * 2_000)
    relay = Relay(outbox, client, batch_bytes_max=1_200)
    assert [relay.run_once() for _ in range(3)] == [2, 1, 0]
    assert read()[:7] == [str(number) for number in range(7)]


def test_a_second_relay_fences_the_first(outbox, connect, client, read):
    first, second = Relay(outbox, client), Relay(outbox, client)
    announce(outbox, connect, "1")
    first.run_once()
    announce(outbox, connect, "2")
    assert second.run_once() == 1
    announce(outbox, connect, "3")
    with pytest.raises(SessionFencedError):
        first.run_once()
    assert second.run_once() == 1
    assert read() == ["1", "2", "3"]


def test_a_relay_that_was_fenced_while_it_took_rows_takes_none(outbox, connect, client, read, monkeypatch):
    """It has begun in Basalt, then a newer one registers in the database, then it goes on."""
    announce(outbox, connect, "1")
    first, second = Relay(outbox, client), Relay(outbox, client)
    plain, came = Relay._take, []

    def slow(relay, held, batch, numbers):
        if not came:
            came.append(True)
            assert second.run_once() == 1
        plain(relay, held, batch, numbers)

    monkeypatch.setattr(Relay, "_take", slow)
    with pytest.raises(SessionFencedError):
        first.run_once()
    assert read() == ["1"]


def test_a_row_that_appears_late_with_a_lower_number_is_published(outbox, connect, client, read):
    """As in PostgreSQL, which gives out numbers before their transactions commit."""
    with connect() as connection:
        connection.execute(NUMBERED, (9, b"9"))
    relay = Relay(outbox, client)
    relay.run_once()
    with connect() as connection:
        connection.execute(NUMBERED, (4, b"4"))
    assert relay.run_once() == 1
    assert read() == ["9", "4"]


@pytest.mark.parametrize("step", ["begin", "commit before", "commit after", "remove"])
def test_whatever_fails_the_next_attempt_goes_on_where_it_was(outbox, connect, client, read, left, step, monkeypatch):
    announce(outbox, connect, "1", "2")
    relay = Relay(outbox, client)
    failing = [True]
    run = client._driver.run

    def broken(steps):
        name = getattr(steps, "__qualname__", "")
        if failing and step == "begin" and name == "enter":
            failing.clear()
            raise UnavailableError("gone")
        if failing and step == "commit before" and name == "leave":
            failing.clear()
            raise UnknownOutcomeError("lost")
        result = run(steps)
        if failing and step == "commit after" and name == "leave" and left() and read():
            failing.clear()
            raise UnknownOutcomeError("lost")
        return result

    monkeypatch.setattr(client._driver, "run", broken)
    if step == "remove":
        remove = OutboxRows.remove

        def locked(rows, batch):
            if failing:
                failing.clear()
                raise sqlite3.OperationalError("database is locked")
            remove(rows, batch)

        monkeypatch.setattr(OutboxRows, "remove", locked)
    with pytest.raises((UnavailableError, UnknownOutcomeError, sqlite3.OperationalError)):
        relay.run_once()
    while relay.run_once() or left():
        pass
    announce(outbox, connect, "3")
    relay.run_once()
    assert (read(), failing) == (["1", "2", "3"], [])


def test_it_waits_for_what_may_pass_and_stops_when_told(outbox, connect, client, read, monkeypatch):
    announce(outbox, connect, "1")
    relay = Relay(outbox, client)
    once, slept = relay.run_once, []
    errors = [UnavailableError("gone"), sqlite3.OperationalError("locked"), TopicNotFoundError("later")]

    def sometimes():
        if len(errors) > 1:
            raise errors.pop(0)
        return once()

    monkeypatch.setattr(relay, "run_once", sometimes)
    relay.run(until=lambda: len(slept) == 3, sleep=slept.append)
    assert read() == ["1"]
    assert slept == [1.0, 1.0, 0.2]
    monkeypatch.setattr(relay, "run_once", lambda: (_ for _ in ()).throw(errors[0]))
    with pytest.raises(TopicNotFoundError):
        relay.run()


def test_it_runs_in_a_thread_of_its_own(outbox, connect, client, read):
    relay, done = Relay(outbox, client), threading.Event()
    thread = threading.Thread(target=relay.run, kwargs={"until": done.is_set, "pause_ms": 5})
    thread.start()
    for number in range(20):
        announce(outbox, connect, str(number))
    while len(read()) < 20 and thread.is_alive():
        done.wait(0.01)
    done.set()
    thread.join()
    assert read() == [str(number) for number in range(20)]


def test_an_older_database_is_noticed(outbox, connect, client):
    announce(outbox, connect, "1")
    Relay(outbox, client).run_once()
    with connect() as connection:
        connection.execute("UPDATE basalt_outbox_relay SET batch = 0")
    announce(outbox, connect, "2")
    with pytest.raises(OutboxBehindError):
        Relay(outbox, client).run_once()


def test_a_session_that_was_forgotten_is_begun_anew_when_nothing_is_in_doubt(outbox, connect, client, read):
    announce(outbox, connect, "1")
    relay = Relay(outbox, client)
    relay.run_once()
    client.sessions.delete("outbox bank")
    announce(outbox, connect, "2")
    with pytest.raises(Exception, match="outbox bank"):
        relay.run_once()
    assert relay.run_once() == 1
    assert read() == ["1", "2"]


def test_a_session_that_was_forgotten_while_a_batch_was_in_doubt_stops_the_relay(outbox, connect, client):
    announce(outbox, connect, "1")
    Relay(outbox, client).run_once()
    announce(outbox, connect, "2")
    with connect() as connection:
        connection.execute("UPDATE basalt_outbox SET batch = 2")
        connection.execute("UPDATE basalt_outbox_relay SET batch = 2")
    client.sessions.delete("outbox bank")
    with pytest.raises(OutboxUncertainError, match="batch 2"):
        Relay(outbox, client).run_once()


def test_a_topic_that_is_not_there_holds_the_relay_up_until_it_is(outbox, connect, client, read):
    announce(outbox, connect, "1", topic="later")
    announce(outbox, connect, "2")
    relay = Relay(outbox, client)
    with pytest.raises(TopicNotFoundError):
        relay.run_once()
    assert read() == []
    client.topics.create("later")
    relay.run_once()
    assert (read("later"), read()) == (["1"], ["2"])


def test_tables_of_another_outbox_are_refused(connect, outbox, client):
    with pytest.raises(InputError, match="of outbox bank, not of other"):
        Relay(Outbox(connect, name="other"), client).run_once()


def test_what_could_never_be_published_is_refused_at_once(outbox, connect):
    with connect() as connection:
        with pytest.raises(TooLargeError):
            outbox.publish(connection, "orders", b"x" * (MESSAGE_BYTES_MAX + 1))
        with pytest.raises(TypeError):
            outbox.publish(connection, "orders", [None])


def test_a_connection_that_commits_by_itself_is_refused(connect, client):
    def alone():
        connection = connect()
        connection.isolation_level = None
        return connection

    with pytest.raises(InputError, match="autocommit"):
        Outbox(alone).create_table()


def test_into_a_connection_that_commits_by_itself_nothing_is_written(outbox, connect, left):
    connection = connect()
    connection.isolation_level = None
    for into in (connection, connection.cursor()):
        with pytest.raises(InputError, match="autocommit"):
            outbox.publish(into, "orders", "1")
    assert left() == 0


@pytest.mark.parametrize(
    ("autocommit", "level", "refused"), [(True, "", True), (False, None, False), (-1, "", False), (-1, None, True)]
)
def test_what_autocommit_says_since_python_3_12_is_heeded(outbox, tmp_path, autocommit, level, refused):
    kind = type("Newer", (sqlite3.Connection,), {"autocommit": autocommit})
    connection = sqlite3.connect(tmp_path / "application.db", isolation_level=level, factory=kind)
    if refused:
        with pytest.raises(InputError, match="autocommit"):
            outbox.refuse_autocommit(connection)
    else:
        outbox.refuse_autocommit(connection)
    connection.close()


def third_time():
    """An `until` that ends a relay which does not stop by itself."""
    return iter((False, False, True)).__next__


def failing_once(monkeypatch, owner, name, message="database is locked"):
    """The method fails when it is called next, as a database that is locked does."""
    plain, failures = getattr(owner, name), [message]

    def method(*given):
        if failures:
            raise sqlite3.OperationalError(failures.pop())
        return plain(*given)

    monkeypatch.setattr(owner, name, method)


def test_an_older_relay_that_comes_back_after_an_error_does_not_fence_the_newer(
    outbox, connect, client, read, monkeypatch
):
    first, second = Relay(outbox, client), Relay(outbox, client)
    first.run_once()
    second.run_once()
    epoch = client.sessions.get("outbox bank").epoch
    failing_once(monkeypatch, OutboxRows, "undecided")
    with pytest.raises(SessionFencedError):
        first.run(until=third_time(), sleep=lambda seconds: None)
    assert client.sessions.get("outbox bank").epoch == epoch
    announce(outbox, connect, "1")
    assert second.run_once() == 1
    with pytest.raises(SessionFencedError):
        first.run_once()
    assert read() == ["1"]


def test_a_password_in_what_a_driver_says_is_not_logged(outbox, client, monkeypatch, caplog):
    failing_once(monkeypatch, OutboxRows, "undecided", 'no answer from "postgresql://app:hunter2@db/shop"')
    Relay(outbox, client).run(until=third_time(), sleep=lambda seconds: None)
    assert 'trying again in 1000 ms: no answer from "postgresql://***@db/shop"' in caplog.text
    assert "hunter2" not in caplog.text


def test_nor_when_basalt_has_forgotten_their_session(outbox, client, monkeypatch):
    first, second = Relay(outbox, client), Relay(outbox, client)
    first.run_once()
    second.run_once()
    client.sessions.delete("outbox bank")
    failing_once(monkeypatch, OutboxRows, "undecided")
    with pytest.raises(SessionFencedError):
        first.run(until=third_time(), sleep=lambda seconds: None)


def test_an_older_relay_that_finds_nothing_to_publish_stops(outbox, client):
    first, second = Relay(outbox, client), Relay(outbox, client)
    assert (first.run_once(), second.run_once(), second.run_once()) == (0, 0, 0)
    with pytest.raises(SessionFencedError, match="newer relay"):
        first.run_once()


@pytest.mark.parametrize("step", ["answer", "register"])
def test_a_relay_that_failed_while_it_opened_its_session_again_is_not_fenced_by_itself(
    outbox, connect, client, read, monkeypatch, step
):
    relay = Relay(outbox, client)
    relay.run_once()
    relay.close()
    announce(outbox, connect, "1")
    opening = client.session

    def lost(*given, **named):
        monkeypatch.undo()
        opening(*given, **named)
        raise UnavailableError("the answer was lost")

    if step == "answer":
        monkeypatch.setattr(client, "session", lost)
    else:
        failing_once(monkeypatch, OutboxRows, "register")
    with pytest.raises((UnavailableError, sqlite3.OperationalError)):
        relay.run_once()
    assert relay.run_once() == 1
    assert read() == ["1"]


def test_after_a_batch_that_was_published_before_the_next_one_follows_at_once(
    outbox, connect, client, read, left, monkeypatch
):
    announce(outbox, connect, "1")
    relay = Relay(outbox, client)
    failing_once(monkeypatch, OutboxRows, "remove")
    with pytest.raises(sqlite3.OperationalError):
        relay.run_once()
    announce(outbox, connect, "2", "3")
    assert relay.run_once() == 2
    assert (read(), left()) == (["1", "2", "3"], 0)


@pytest.mark.parametrize("table", ["basalt_outbox", "Announced"])
def test_without_its_tables_it_stops_and_leaves_the_session_alone(connect, client, table):
    outbox = Outbox(connect, name="bank", table=table)
    with pytest.raises(InputError, match="not in the database") as raised:
        Relay(outbox, client).run(until=third_time(), sleep=lambda seconds: None)
    assert "create_table()" in raised.value.hint
    assert client.sessions.list() == []
    outbox.create_table()
    assert Relay(outbox, client).run_once() == 0


def test_a_database_that_cannot_be_asked_yet_is_not_one_without_tables(outbox, connect, client, read, monkeypatch):
    announce(outbox, connect, "1")
    failing_once(monkeypatch, OutboxRows, "standing")
    Relay(outbox, client).run(until=read, sleep=lambda seconds: None)
    assert read() == ["1"]


@pytest.mark.parametrize("limits", [{"rows_max": 0}, {"batch_bytes_max": 0}])
def test_limits_that_allow_nothing_are_refused(outbox, client, limits):
    with pytest.raises(InputError):
        Relay(outbox, client, **limits)


def test_one_connection_may_be_all_there_is(connect, client, read):
    connection = connect()
    outbox = Outbox(connection, name="bank")
    outbox.create_table()
    outbox.create_table()
    outbox.publish(connection, "orders", "1")
    connection.commit()
    assert Relay(outbox, client).run_once() == 1
    connection.execute("SELECT 1")
    assert read() == ["1"]


def test_a_relay_that_was_fenced_before_it_registered_does_not_take_over(outbox, connect, client, read, monkeypatch):
    """It has opened its session, then a newer one opens it and registers, then it goes on."""
    first, second = Relay(outbox, client), Relay(outbox, client)
    plain, came = Relay._register, []

    def slow(relay, session, rows):
        if not came:
            came.append(True)
            second.run_once()
        plain(relay, session, rows)

    monkeypatch.setattr(Relay, "_register", slow)
    with pytest.raises(SessionFencedError):
        first.run_once()
    announce(outbox, connect, "1")
    assert second.run_once() == 1
    assert read() == ["1"]


def test_a_basalt_that_was_put_back_to_an_older_state_is_served(outbox, connect, client, read):
    with connect() as connection:
        connection.execute("UPDATE basalt_outbox_relay SET epoch = 70, batch = 9")
    announce(outbox, connect, "1")
    relay = Relay(outbox, client)
    assert relay.run_once() == 1
    assert (read(), relay.run_once()) == (["1"], 0)


def test_a_relay_that_was_fenced_can_take_no_rows_in_the_database_either(outbox, connect, client, monkeypatch):
    """The newer one has registered and taken nothing yet, so the numbers of batches alone would not stop the older one."""
    first, second = Relay(outbox, client), Relay(outbox, client)
    plain = Relay._take
    announce(outbox, connect, "1")

    def slow(relay, held, batch, numbers):
        second.close()
        monkeypatch.setattr(Relay, "_publish_next", lambda relay, held: 0)
        second.run_once()
        monkeypatch.undo()
        plain(relay, held, batch, numbers)

    monkeypatch.setattr(Relay, "_take", slow)
    with pytest.raises(SessionFencedError, match="takes its rows"):
        first.run_once()
    with connect() as connection:
        assert connection.execute("SELECT batch FROM basalt_outbox").fetchall() == [(None,)]
