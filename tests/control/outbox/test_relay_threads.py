"""A relay that is made, run, drained and closed in different threads, on connections that can be used in one alone."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from basalt.errors import InputError, SessionFencedError, TopicEndedError
from basalt.outbox import Outbox, Relay


class Counted:
    """Makes connections, and knows which of them are open."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self.made: list[Any] = []
        self.closed: list[Any] = []

    def __call__(self) -> Any:
        counted = self

        class Connection(sqlite3.Connection):
            def close(self) -> None:
                super().close()
                counted.closed.append(id(self))

        path = self._connect().execute("PRAGMA database_list").fetchone()[2]
        made = sqlite3.connect(path, timeout=60, factory=Connection)
        self.made.append(id(made))
        return made

    @property
    def open(self) -> int:
        return len(self.made) - len(self.closed)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do it in a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def announce(outbox, connect, *messages, topic="orders"):
    with connect() as connection:
        outbox.publish(connection, topic, messages)


def test_it_runs_until_nothing_waits(outbox, connect, client, read, left):
    announce(outbox, connect, *(str(number) for number in range(7)))
    relay = Relay(outbox, client, rows_max=3)
    assert relay.run(drain=True) == 7
    assert (read(), left()) == ([str(number) for number in range(7)], 0)
    assert relay.run(drain=True) == 0
    announce(outbox, connect, "more")
    assert relay.run(drain=True) == 1


def test_a_run_gives_its_connection_back_however_it_ends(connect, client):
    counted = Counted(connect)
    outbox = Outbox(counted, name="bank")
    outbox.create_table()
    relay = Relay(outbox, client)
    announce(outbox, connect, "1")
    relay.run(drain=True)
    assert counted.open == 0
    relay.run(until=iter([False, True]).__next__, sleep=lambda _seconds: None)
    assert counted.open == 0
    Relay(outbox, client).run(drain=True)
    with pytest.raises(SessionFencedError):
        relay.run()
    assert counted.open == 0


def test_it_may_go_on_in_any_thread(outbox, connect, client, read):
    relay = elsewhere(lambda: Relay(outbox, client, rows_max=1))
    announce(outbox, connect, "1", "2", "3", "4")
    epochs = set()
    for run in (lambda: relay.run_once(), lambda: elsewhere(relay.run_once)) * 2:
        assert run() == 1
        epochs.add(client.sessions.get("outbox bank").epoch)
    assert len(epochs) == 1, "another thread is no other run"
    assert read() == ["1", "2", "3", "4"]
    elsewhere(relay.close)
    gc.collect()
    announce(outbox, connect, "5")
    assert elsewhere(lambda: relay.run(drain=True)) == 1


def test_an_outbox_with_one_connection_says_that_another_thread_needs_a_function(connect, client):
    outbox = Outbox(connect(), name="bank")
    outbox.create_table()
    relay = Relay(outbox, client)
    assert relay.run(drain=True) == 0, "it is not closed, for it was given"
    relay.run_once()
    with pytest.raises(InputError, match="cannot be used here") as raised:
        elsewhere(relay.run)
    assert raised.value.hint is not None
    assert "Give a function" in raised.value.hint


def test_a_topic_that_has_ended_stops_it_by_name(outbox, connect, client, left):
    client.topic("orders").end("a")
    announce(outbox, connect, "late")
    with pytest.raises(TopicEndedError, match="orders"):
        Relay(outbox, client).run(drain=True)
    assert left() == 1
