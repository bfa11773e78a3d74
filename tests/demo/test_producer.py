"""The demo's producer, on a store in this process: exactly once, and how it finds out where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.client import Client, Transaction
from demo.producer import Producer, read_lines

LINES = [f"line {number}".encode() for number in range(10)]


class PowerCutError(Exception):
    """Stands for the end of the producer."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with basalt.connect(f"embedded:{tmp_path / 'data'}") as client:
        yield client


@pytest.fixture
def producer(client: Client) -> Producer:
    producer = Producer(LINES, lines_per_transaction=4)
    producer.create_topics(client)
    return producer


def test_each_transaction_publishes_its_lines_and_how_far_it_is(client: Client, producer: Producer):
    assert producer.publish(client, 0) == 4
    assert (read_lines(client), producer.position(client)) == (LINES[:4], 4)


def test_the_last_transaction_may_be_shorter(client: Client, producer: Producer):
    assert [producer.publish(client, start) for start in (0, 4, 8)] == [4, 8, 10]
    assert read_lines(client) == LINES


def test_an_aborted_transaction_publishes_nothing_and_moves_nothing(client: Client, producer: Producer):
    producer.publish(client, 0)
    producer.publish_and_abort(client, 4)
    assert (read_lines(client), producer.position(client)) == (LINES[:4], 4)


def test_a_transaction_left_open_is_aborted_and_its_lines_are_published_once(client: Client, producer: Producer):
    left_open = client.transactions.begin()
    client.topic("access-log").store(LINES[:4], left_open)
    producer.transaction_id = left_open.id

    assert producer.settle(client) == "aborted"
    producer.publish(client, producer.position(client))
    assert read_lines(client) == LINES[:4]


def test_a_commit_whose_answer_was_lost_is_found_to_have_happened(client: Client, producer: Producer):
    def commit_unheard(tx: Transaction) -> None:
        tx.commit()
        raise PowerCutError

    with pytest.raises(PowerCutError):
        producer.publish(client, 0, before_commit=commit_unheard)

    assert producer.settle(client) == "committed"
    assert producer.position(client) == 4


def test_a_producer_that_had_nothing_open_has_nothing_to_settle(client: Client, producer: Producer):
    assert producer.settle(client) is None
    assert producer.position(client) == 0
