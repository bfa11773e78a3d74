"""The demo's second act: what it counts as a fault, and how it shows who counted what."""

from __future__ import annotations

from demo.counting import BAR_CHARS, Visit, differences, shares, visits_of
from demo.worker import Count, counts_of

VISITS = [Visit("a", 1), Visit("b", 2), Visit("a", 3), Visit("a", 4)]


def test_a_batch_is_counted_by_client_with_its_first_and_last_line():
    assert counts_of(VISITS, "w") == [Count("a", 3, 1, 4, "w"), Count("b", 1, 2, 2, "w")]
    assert counts_of([], "w") == []


def test_lines_that_are_no_page_views_are_no_visits_and_keep_their_numbers():
    line = b'1.1.1.1 - - [17/May/2015:10:00:00 +0000] "GET / HTTP/1.1" 200 5'
    assert visits_of([line, b"nonsense", line]) == [Visit("1.1.1.1", 1), Visit("1.1.1.1", 3)]


def test_counts_of_every_visit_once_and_in_order_differ_in_nothing():
    assert differences(VISITS, [Count("a", 1, 1, 1, "w"), Count("b", 1, 2, 2, "v"), Count("a", 2, 3, 4, "v")]) == []
    assert differences([], []) == []


def test_a_visit_that_was_not_counted_is_told():
    assert differences(VISITS, [Count("a", 3, 1, 4, "w")]) == ["1 visits of 1 clients were not counted"]


def test_a_visit_that_was_counted_twice_is_told_and_that_it_came_out_of_order():
    counts = [*counts_of(VISITS, "w"), Count("a", 2, 3, 4, "v")]
    assert differences(VISITS, counts) == [
        "1 times visits of a client were counted out of order, first line 3 of a behind line 4",
        "2 visits of 1 clients were counted twice",
    ]


def test_a_changed_order_of_one_client_is_told_and_that_of_two_clients_is_none():
    swapped = [Count("b", 1, 2, 2, "w"), Count("a", 2, 3, 4, "w"), Count("a", 1, 1, 1, "w")]
    assert differences(VISITS, swapped) == [
        "1 times visits of a client were counted out of order, first line 1 of a behind line 4"
    ]


def test_each_worker_is_shown_with_its_share():
    lines = shares([Count("a", 3, 1, 4, "w2"), Count("b", 1, 2, 2, "w1"), Count("c", 5, 5, 9, "w2")])
    assert [line.split()[0] for line in lines] == ["w1", "w2"]
    assert lines[1].count("█") == BAR_CHARS
    assert lines[0].count("█") == BAR_CHARS // 8
    assert "8 visits of 2 clients" in lines[1]
    assert shares([]) == []
