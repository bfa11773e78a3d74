"""The demo's counting, and what it says when what was read is not what was published."""

from __future__ import annotations

from demo.report import Views, differences


def line(client: str = "1.1.1.1", hour: int = 10, path: str = "/") -> bytes:
    return f'{client} - - [17/May/2015:{hour:02}:00:00 +0000] "GET {path} HTTP/1.1" 200 5'.encode()


def test_views_and_unique_clients_are_counted_by_day_and_by_path():
    views = Views()
    for each in (line(), line(), line("2.2.2.2", 11, "/a"), line("1.1.1.1", 11, "/a")):
        views.add(each)

    assert (views.total, len(views.clients), len(views.paths)) == (4, 2, 2)
    [(day, group, hours)] = views.by_day()
    assert (day, group.views, len(group.clients)) == ("2015-05-17", 4, 2)
    assert hours == [0] * 10 + [2, 2] + [0] * 12
    assert [(path, group.views, len(group.clients)) for path, group in views.top_paths(1)] == [("/", 2, 1)]


def test_a_line_that_is_no_page_view_is_kept_but_not_counted():
    views = Views()
    views.add(b"nonsense")
    views.add(line())
    assert (views.total, views.skipped) == (1, 1)


def test_the_same_lines_in_the_same_order_differ_in_nothing():
    lines = [line(), line(), line("2.2.2.2")]
    assert differences(lines, list(lines), aborted_marks=[]) == []


def test_a_lost_line_is_told():
    lines = [line(), line("2.2.2.2")]
    assert differences(lines, lines[:1], aborted_marks=[]) == ["1 of 2 lines lost, the first is line 2"]


def test_a_line_that_came_twice_is_told():
    lines = [line(), line("2.2.2.2")]
    assert differences(lines, [lines[0], *lines], aborted_marks=[]) == ["1 line more than the log has: it came twice"]


def test_a_changed_order_is_told():
    lines = [line(), line("2.2.2.2")]
    assert differences(lines, lines[::-1], aborted_marks=[]) == ["the order changed from line 1 on"]


def test_a_message_of_an_aborted_transaction_is_told():
    lines = [line()]
    mark = b"aborted attempt 1"
    assert differences(lines, [mark, *lines], aborted_marks=[mark]) == ["1 message of an aborted transaction was seen"]
