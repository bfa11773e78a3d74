"""What a reader may rely on, over HTTP: the rules of docs/reference/http-api.md, each with a story."""

from __future__ import annotations

import pytest

ALL = "?isolation=committed"


def read_all(client, path, query="", limit=None, start=None):
    """Page through a topic by Basalt-Next, as a consumer does."""
    seen, inclusive = [], True
    while True:
        reply = client.poll(path, query, startFrom=start, inclusive=inclusive, limit=limit)
        assert reply.status == 200, reply.body
        if not reply.json():
            return seen
        seen += [message["payload"] for message in reply.json()]
        start, inclusive = bytes.fromhex(reply.header("basalt-next")).decode("latin-1"), False


def store(client, path, begun, *messages):
    body = {"transactionWritePointer": begun["writePointer"], "messages": list(messages)}
    assert client.call("POST", f"{path}/store", body).status == 200


def end(client, begun, how="commit"):
    reply = client.call("POST", f"/v1/transactions/{begun['id']}/{how}")
    assert reply.status == 200, reply.body
    return reply


def plain_and_references(client):
    """A topic with plain rows, references to several payload rows, an empty one and a rolled back one in between."""
    path = client.topic()
    client.publish(path, "p1", "p2")
    first = client.begin()
    store(client, path, first, "s1", "s2")
    store(client, path, first, "s3")
    end(client, first)
    empty = client.begin()
    client.publish(path, pointer=empty["writePointer"])
    end(client, empty)
    client.publish(path, "p3")
    undone = client.begin()
    store(client, path, undone, "x1", "x2")
    end(client, undone, "abort")
    rolled = client.begin()
    placed = client.publish(path, "x3", pointer=rolled["writePointer"])
    client.call("POST", f"{path}/rollback", placed.body, "application/json")
    end(client, rolled)
    last = client.begin()
    store(client, path, last, "s4")
    end(client, last)
    client.publish(path, "p4", "p5")
    return path, ["p1", "p2", "s1", "s2", "s3", "p3", "s4", "p4", "p5"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 9, 100])
def test_paging_with_any_limit_loses_nothing_and_repeats_nothing(client, limit):
    path, expected = plain_and_references(client)
    assert read_all(client, path, ALL, limit) == expected


def test_an_exclusive_start_at_any_message_loses_nothing_that_follows(client):
    path, expected = plain_and_references(client)
    ids = [message["id"] for message in client.poll(path, ALL).json()]
    for index, start in enumerate(ids):
        for limit in (1, 2, 100):
            assert read_all(client, path, ALL, limit, start)[0] == expected[index]
            following = client.payloads(path, ALL, startFrom=start, inclusive=False, limit=limit)
            assert following == expected[index + 1 :][:limit]


def test_a_start_inside_a_hidden_reference_resumes_after_it(client):
    path = client.topic()
    client.publish(path, "before")
    begun = client.begin()
    store(client, path, begun, "h1", "h2", "h3")
    placed = client.publish(path, pointer=begun["writePointer"])
    client.publish(path, "after")
    hidden = [
        message["id"]
        for message in client.poll(path, "?isolation=uncommitted").json()
        if message["payload"].startswith("h")
    ]
    assert client.call("POST", f"{path}/rollback", placed.body, "application/json").status == 200
    end(client, begun)
    assert len(hidden) == 3
    for start in hidden:
        for inclusive in (True, False):
            assert client.payloads(path, ALL, startFrom=start, inclusive=inclusive) == ["after"]


def test_inclusive_holds_for_a_time_too(client):
    path = client.topic()
    client.publish(path, "first")
    time_ms = client.clock.now_ms()
    client.clock.advance(1)
    client.publish(path, "second")
    assert client.payloads(path, startFrom=time_ms, inclusive=True) == ["first", "second"]
    assert client.payloads(path, startFrom=time_ms, inclusive=False) == ["second"]
    assert client.payloads(path, startFrom=time_ms + 1) == ["second"]
    assert client.payloads(path, startFrom=time_ms + 2) == []


def test_a_roll_back_touches_only_the_rows_of_its_own_pointer(client):
    path = client.topic()
    mine, theirs = client.begin(), client.begin()
    first = client.publish(path, "mine 1", pointer=mine["writePointer"]).json()
    client.publish(path, "theirs", pointer=theirs["writePointer"])
    client.publish(path, "plain")
    last = client.publish(path, "mine 2", pointer=mine["writePointer"]).json()
    whole = {**first, "endTimestamp": last["endTimestamp"], "endSequenceId": last["endSequenceId"]}
    assert client.call("POST", f"{path}/rollback", whole).status == 200
    for begun in (mine, theirs):
        end(client, begun)
    assert client.payloads(path, ALL) == ["theirs", "plain"]


def test_a_roll_back_leaves_what_its_writer_published_outside_the_range(client):
    path = client.topic()
    begun = client.begin()
    placed = client.publish(path, "undone", pointer=begun["writePointer"])
    client.publish(path, "kept", pointer=begun["writePointer"])
    client.call("POST", f"{path}/rollback", placed.body, "application/json")
    end(client, begun)
    assert client.payloads(path, ALL) == ["kept"]


def test_what_is_stored_after_a_reference_belongs_to_the_next_one(client):
    path = client.topic()
    begun = client.begin()
    store(client, path, begun, "a")
    client.publish(path, pointer=begun["writePointer"])
    store(client, path, begun, "b")
    client.publish(path, "between")
    assert client.payloads(path, "?isolation=uncommitted") == ["a", "between"]
    client.publish(path, pointer=begun["writePointer"])
    client.publish(path, pointer=begun["writePointer"])
    assert client.payloads(path, "?isolation=uncommitted") == ["a", "between", "b"]


def test_stored_messages_come_in_the_order_in_which_they_were_stored(client):
    path = client.topic()
    begun = client.begin()
    for number in range(5):
        store(client, path, begun, f"{number}a", f"{number}b")
    end(client, begun)
    assert client.payloads(path, ALL) == [f"{number}{part}" for number in range(5) for part in "ab"]


def test_order_stands_after_the_clock_was_set_back(client):
    path = client.topic()
    client.publish(path, "first")
    client.clock.step(client.clock.now_ms() - 3_600_000)
    client.publish(path, "second")
    ids = [message["id"] for message in client.poll(path).json()]
    assert ids == sorted(ids)
    assert client.payloads(path) == ["first", "second"]


def test_ids_past_a_signed_sequence_sort_as_unsigned_bytes(client):
    path = client.topic()
    for _ in range(5):
        client.publish(path, *["x"] * 10_000)
    messages = []
    start = None
    while True:
        reply = client.poll(path, startFrom=start, inclusive=start is None)
        if not reply.json():
            break
        messages += [message["id"].encode("latin-1") for message in reply.json()]
        start = bytes.fromhex(reply.header("basalt-next")).decode("latin-1")
    assert len(messages) == 50_000
    assert messages == sorted(set(messages))


def test_a_snapshot_skips_the_aborted_and_the_invalid_and_stops_at_the_open(client):
    path = client.topic()
    aborted, invalid, opened = (client.begin() for _ in range(3))
    for name, begun in (("aborted", aborted), ("invalid", invalid)):
        client.publish(path, name, pointer=begun["writePointer"])
    client.publish(path, "plain")
    client.publish(path, "open", pointer=opened["writePointer"])
    client.publish(path, "behind")
    end(client, aborted, "abort")
    assert end(client, invalid, "invalidate").json() == {"invalidated": True}
    reply = client.poll(path, ALL)
    assert [message["payload"] for message in reply.json()] == ["plain"]
    assert reply.header("basalt-held-by") == opened["id"]
    end(client, opened)
    assert client.payloads(path, ALL) == ["plain", "open", "behind"]


def test_a_transaction_sees_its_own_messages_before_it_commits(client):
    path = client.topic()
    own = client.begin()
    client.publish(path, "own", pointer=own["writePointer"])
    assert client.payloads(path, f"?transaction={own['id']}") == ["own"]
    assert client.payloads(path, ALL) == []


def test_a_snapshot_stops_at_what_was_open_when_it_was_taken_whatever_became_of_it(client):
    path = client.topic()
    other, own = client.begin(), client.begin()
    client.publish(path, "other", pointer=other["writePointer"])
    end(client, other)
    reply = client.poll(path, f"?transaction={own['id']}")
    assert (reply.json(), reply.header("basalt-held-by")) == ([], other["id"])


def test_a_reader_without_a_snapshot_sees_rolled_back_messages_again_with_the_same_id(client):
    path = client.topic()
    begun = client.begin()
    client.publish(path, "undone", pointer=begun["writePointer"])
    before = client.poll(path).body
    end(client, begun, "abort")
    assert client.poll(path).body == before


def test_an_open_transaction_holds_nobody_back_until_it_publishes_early(client):
    path = client.topic()
    begun = client.begin()
    store(client, path, begun, "stored")
    client.publish(path, "unrelated")
    assert client.payloads(path, ALL) == ["unrelated"]
    end(client, begun)
    assert client.payloads(path, ALL) == ["unrelated", "stored"]


def test_messages_end_with_their_ttl_and_a_new_ttl_holds_for_old_messages(client):
    path = client.topic(ttl=60)
    client.publish(path, "old")
    client.clock.advance(30_000)
    client.publish(path, "new")
    client.clock.advance(30_000)
    assert client.payloads(path) == ["new"]
    client.call("PUT", f"{path}/properties", {"ttl": 3_600})
    assert client.payloads(path) == ["old", "new"]
    client.call("PUT", f"{path}/properties", {"ttl": 10})
    assert client.payloads(path) == []


def test_two_topics_never_mix(client):
    paths = [client.topic(name) for name in ("a", "aa", "a-", "A")]
    for round_number in range(3):
        for path in paths:
            client.publish(path, f"{path} {round_number}")
    for path in paths:
        assert client.payloads(path) == [f"{path} {round_number}" for round_number in range(3)]


def test_a_topic_created_again_shows_nothing_of_the_one_before(client):
    path = client.topic()
    begun = client.begin()
    client.publish(path, "old")
    placed = client.publish(path, "old open", pointer=begun["writePointer"])
    store(client, path, begun, "old stored")
    old_ids = [message["id"] for message in client.poll(path).json()]
    client.call("DELETE", path)
    client.clock.advance(1)
    client.topic()
    assert client.call("POST", f"{path}/rollback", placed.body, "application/json").status == 200
    client.publish(path, "new")
    end(client, begun)
    for query in ("", ALL):
        assert client.payloads(path, query) == ["new"]
    for start in old_ids:
        assert client.payloads(path, startFrom=start) == ["new"]
    assert client.payloads(path, startFrom=0) == ["new"]


def test_with_an_external_manager_pointers_are_taken_as_given(connect, settings):
    from dataclasses import replace

    client = connect(replace(settings, transactions=replace(settings.transactions, manager="external")))
    path = client.topic()
    pointer = client.clock.now_ms() * 1_000_000 + 7
    client.publish(path, "early", pointer=pointer)
    body = {"transactionWritePointer": pointer, "messages": ["stored"]}
    assert client.call("POST", f"{path}/store", body).status == 200
    client.publish(path, pointer=pointer)
    assert client.payloads(path) == ["early", "stored"]
    assert client.payloads(path, "?isolation=uncommitted") == ["early", "stored"]
    reply = client.poll(path, ALL)
    assert (reply.status, reply.json()["field"]) == (400, "isolation")
