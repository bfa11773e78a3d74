"""Automatic producers: lent to one publish at a time, and gone for good when nobody knows what became of their numbers."""

from __future__ import annotations

import os
import threading

import pytest

from basalt.client.producers import IDLE_MS_MAX, TOPICS_MAX, AutomaticProducers

ORDERS, INVOICES = ("shop", "orders"), ("shop", "invoices")


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def producers(clock) -> AutomaticProducers:
    names = iter(f"p{number}" for number in range(10_000))
    return AutomaticProducers(clock, lambda: next(names))


def test_two_publishes_at_once_have_two_producers(producers):
    first, second = producers.borrow(ORDERS), producers.borrow(ORDERS)
    assert first.name != second.name


def test_one_that_was_given_back_is_lent_again_with_its_next_number(producers):
    first = producers.borrow(ORDERS)
    first.next_sequence = 7
    producers.give_back(ORDERS, first)
    assert producers.borrow(ORDERS) is first
    assert first.headers() == {"basalt-producer": "p0", "basalt-sequence": "7"}
    assert producers.borrow(ORDERS) is not first


def test_the_one_used_last_is_lent_first_so_that_the_others_grow_old(producers):
    first, second = producers.borrow(ORDERS), producers.borrow(ORDERS)
    producers.give_back(ORDERS, first)
    producers.give_back(ORDERS, second)
    assert producers.borrow(ORDERS) is second


def test_one_that_the_server_may_have_forgotten_is_not_lent_nor_those_that_wait_for_longer(producers, clock):
    old, older = producers.borrow(ORDERS), producers.borrow(ORDERS)
    producers.give_back(ORDERS, older)
    producers.give_back(ORDERS, old)
    clock.now_ms = IDLE_MS_MAX + 1
    assert producers.borrow(ORDERS).name == "p2"
    assert producers.borrow(ORDERS).name == "p3"


def test_each_topic_has_producers_of_its_own(producers):
    producers.give_back(ORDERS, producers.borrow(ORDERS))
    assert producers.borrow(INVOICES).name == "p1"


def test_those_of_very_many_topics_are_not_all_kept(producers):
    for number in range(TOPICS_MAX):
        producers.give_back(("shop", str(number)), producers.borrow(("shop", str(number))))
    assert producers.borrow(("shop", "0")).name == "p0"
    producers.give_back(ORDERS, producers.new())
    assert producers.borrow(("shop", "1")).name != "p1"


def test_names_are_of_chance_and_what_the_server_takes():
    names = {AutomaticProducers().new().name for _ in range(100)}
    assert len(names) == 100
    assert all(1 <= len(name) <= 64 and name.isascii() and name.isprintable() for name in names)


def test_a_forked_child_never_publishes_under_a_producer_of_its_parent(producers, monkeypatch):
    waits, under_way = producers.borrow(ORDERS), producers.borrow(ORDERS)
    producers.give_back(ORDERS, waits)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    childs = producers.borrow(ORDERS)
    assert childs.name == "p2"
    producers.give_back(ORDERS, under_way)  # one that was on its way in the parent, too
    producers.give_back(ORDERS, childs)
    assert [producers.borrow(ORDERS).name for _ in range(2)] == ["p2", "p3"]


def test_threads_that_borrow_all_the_time_never_share_one(producers):
    shared, held = list[str](), set[str]()

    def work() -> None:
        for _ in range(2_000):
            producer = producers.borrow(ORDERS)
            if producer.name in held:
                shared.append(producer.name)
            held.add(producer.name)
            producer.next_sequence += 1
            held.discard(producer.name)
            producers.give_back(ORDERS, producer)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared == []
