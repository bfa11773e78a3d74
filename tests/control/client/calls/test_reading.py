"""Reading across pages: the cursor's polls and where it ends, without a server."""

from __future__ import annotations

import pytest

from basalt.api.codecs import batches
from basalt.api.codecs.avro import decode_consume_request
from basalt.client.calls.messages import FOLLOW_WAIT_MS, position
from basalt.client.calls.pages import Page
from basalt.client.calls.reading import TopicCursor, read
from basalt.errors import UnavailableError


def id_of(number: int) -> bytes:
    return number.to_bytes(20)


def body_of(ids: list[bytes], payloads: list[bytes]) -> bytes:
    return batches.START + batches.encode_list(ids, payloads) + batches.END


def page_of(first: int, stop: int, held_by: str | None = None) -> Page:
    ids = [id_of(number) for number in range(first, stop)]
    return Page(body_of(ids, [b"%d" % number for number in range(first, stop)]), id_of(stop - 1), held_by)


NOTHING = batches.START + batches.END
EMPTY = Page(NOTHING, None)


@pytest.fixture
def drain(play):
    """Read a cursor to its end, with these pages as answers; the messages' numbers, and the polls made."""

    def run(cursor: TopicCursor, *pages: Page):
        numbers, polls = [], []
        left = list(pages)
        while not cursor.done:
            played = play(cursor.next_page(), left.pop(0))
            polls += played.calls
            numbers += [int(message.payload) for message in cursor.take(played.result)]
        assert not left
        return numbers, polls

    return run


def test_pages_follow_each_other_until_one_is_empty(topic_scope, drain):
    cursor = read(topic_scope, limit=None)
    numbers, polls = drain(cursor, page_of(0, 3), page_of(3, 5), EMPTY)
    assert numbers == [0, 1, 2, 3, 4]
    asked = [decode_consume_request(call.body) for call in polls]
    assert [(each.start_from, each.inclusive) for each in asked] == [(None, True), (id_of(2), False), (id_of(4), False)]
    assert all(dict(call.query) == {"isolation": "committed"} for call in polls)
    assert cursor.next_id == id_of(4)


def test_a_limit_is_asked_for_and_kept(topic_scope, drain):
    numbers, polls = drain(read(topic_scope, limit=4), page_of(0, 3), page_of(3, 6))
    assert numbers == [0, 1, 2, 3]
    assert [decode_consume_request(call.body).limit for call in polls] == [4, 1]


def test_a_limit_of_nothing_asks_nothing(topic_scope, drain):
    assert drain(read(topic_scope, limit=0)) == ([], [])


def test_reading_stops_before_the_stop(topic_scope, drain):
    cursor = read(topic_scope, id_of(1), id_of(4))
    numbers, polls = drain(cursor, page_of(1, 3), page_of(3, 9))
    assert numbers == [1, 2, 3]
    assert decode_consume_request(polls[0].body).start_from == id_of(1)
    assert cursor.next_id == id_of(3)


def test_a_stop_that_a_page_ends_at_needs_one_more_look(topic_scope, drain):
    numbers, _ = drain(read(topic_scope, stop=id_of(3)), page_of(0, 3), page_of(3, 5))
    assert numbers == [0, 1, 2]


def test_a_stop_in_time_is_before_that_millisecond(topic_scope, drain):
    first = (5).to_bytes(8) + bytes(12)
    body = body_of([(4).to_bytes(8) + b"\xff" * 12, first], [b"1", b"2"])
    assert drain(read(topic_scope, stop=5), Page(body, first))[0] == [1]


def test_the_end_as_a_stop_is_where_the_topic_ends_now(topic_scope, play):
    cursor = read(topic_scope, stop="end")
    played = play(cursor.next_page(), position(id_of(2), 0), page_of(0, 9))
    assert [call.path.rsplit("/", 1)[1] for call in played.calls] == ["records", "poll"]
    assert [int(message.payload) for message in cursor.take(played.result)] == [0, 1]
    assert cursor.done


def test_following_waits_and_does_not_end(topic_scope, play):
    cursor = read(topic_scope, follow=True)
    for page in (page_of(0, 2), EMPTY, EMPTY, page_of(2, 3)):
        played = play(cursor.next_page(), page)
        assert played.calls[0].wait_ms == FOLLOW_WAIT_MS
        cursor.take(page)
        assert not cursor.done
    assert cursor.next_id == id_of(2)


def test_only_following_waits_for_a_server_too(topic_scope, play):
    for follow in (True, False):
        played = play(read(topic_scope, "end", follow=follow).next_page(), position(id_of(2), 0), EMPTY)
        assert [call.patient for call in played.calls] == [follow, follow]


def test_a_start_at_the_end_that_could_not_be_found_is_looked_for_again(topic_scope, play):
    cursor = read(topic_scope, "end")
    assert play(cursor.next_page(), UnavailableError("nobody there")).raised is not None
    played = play(cursor.next_page(), position(id_of(2), 0), EMPTY)
    assert decode_consume_request(played.calls[1].body).start_from == id_of(2)


def test_following_ends_at_its_limit(topic_scope, drain):
    assert drain(read(topic_scope, follow=True, limit=2), EMPTY, page_of(0, 2))[0] == [0, 1]


def test_who_holds_the_reader_is_told(topic_scope, drain):
    cursor = read(topic_scope)
    drain(cursor, page_of(0, 1), Page(NOTHING, id_of(0), held_by="42", view_age_ms=1_500))
    assert (cursor.held_by, cursor.view_age_ms) == ("42", 1_500)


def test_an_empty_page_may_move_the_reader_on(topic_scope, play):
    # Over rows that it may not see, so that they are not looked at again.
    cursor = read(topic_scope, follow=True)
    play(cursor.next_page(), Page(NOTHING, id_of(7)))
    cursor.take(Page(NOTHING, id_of(7)))
    (call,) = play(cursor.next_page(), EMPTY).calls
    assert decode_consume_request(call.body).start_from == id_of(7)


def test_uncommitted_messages_are_read_when_somebody_asks_for_them(topic_scope, play):
    (call,) = play(read(topic_scope, isolation="uncommitted").next_page(), EMPTY).calls
    assert dict(call.query) == {"isolation": "uncommitted"}


def test_a_transactions_snapshot_is_the_isolation(topic_scope, play):
    (call,) = play(read(topic_scope, transaction="42").next_page(), EMPTY).calls
    assert dict(call.query) == {"transaction": "42"}
