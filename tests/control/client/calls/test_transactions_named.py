"""Named transactions through both clients: processes of a run share one, and the driver commits the segments that count."""

from __future__ import annotations

import pytest

from basalt.api.bodies.messages import WorkMarker
from basalt.errors import InputError, SessionFencedError, SessionForeignError, TransactionEndedError
from tests.control.client.test_client_end_to_end import everything


def segment(side, tx, topic, *messages):
    pointer = side.do(tx.segment())
    side.do(topic.store(list(messages), pointer))
    return pointer


def begun(side, connected, run="r1", version=0, **more):
    return side.do(connected.named_transaction("etl", run, version, **more))


def test_what_the_driver_lists_is_published_and_nothing_else(side, connected):
    topic = connected.topic("orders")
    driver, task = (begun(side, connected, counter_owner="query", timeout_ms=60_000, owner="etl") for _ in range(2))
    assert (driver.id, driver.committed_before, driver.committed_by) == (task.id, False, None)
    lost, one, other = (segment(side, task, topic, text) for text in ("lost", "one", "other"))
    assert len({driver.write_pointer, lost, one, other}) == 4
    marker = WorkMarker(connected.namespace, "orders", "etl", 1, "watermark", 700)
    outcome = side.do(connected.transactions.commit_segments(driver.id, [other, one], [marker]))
    assert outcome.state == "COMMITTED"
    assert everything(side, topic.read()) == [b"other", b"one"]
    assert side.do(topic.markers()).watermark_ms == 700
    assert side.do(connected.transactions.commit_segments(driver.id, [lost])) == outcome
    assert everything(side, topic.read()) == [b"other", b"one"]
    with pytest.raises(TransactionEndedError, match="was committed"):
        side.do(connected.transactions.abort(driver.id))


def test_a_long_transaction_is_open_for_as_long_as_was_asked(side, connected):
    found = begun(side, connected, timeout_ms=3_600_000)
    info = side.do(connected.transactions.get(found.id))
    assert (info.kind, info.expires_ms, info.session.version) == ("long", found.expires_ms, 0)
    assert info.expires_ms - info.began_ms == 3_600_000


def test_work_that_was_committed_before_is_left_out(side, connected):
    first = begun(side, connected)
    side.do(connected.transactions.commit_segments(first.id, []))
    again = begun(side, connected, run="r2")
    assert (again.committed_before, again.committed_by) == (True, first.id)
    for use in (lambda: again.id, lambda: again.write_pointer, lambda: side.do(again.segment())):
        with pytest.raises(
            TransactionEndedError, match="version 0 of session 'etl' was committed before, by transaction"
        ):
            use()


def test_a_run_that_was_replaced_is_fenced_for_good(side, connected):
    old = begun(side, connected, "r1")
    begun(side, connected, "r2")
    with pytest.raises(SessionFencedError, match="run 'r1' of session 'etl' was replaced"):
        begun(side, connected, "r1")
    with pytest.raises(SessionFencedError):
        side.do(old.segment())
    with pytest.raises(SessionFencedError):
        side.do(connected.transactions.commit_segments(old.id, [old.write_pointer]))
    info = side.do(connected.sessions.get("etl"))
    assert (info.run, info.replaced, info.counter_owner) == ("r2", ("r1",), None)


def test_versions_of_another_counter_owner_are_not_taken_for_one_s_own(side, connected):
    side.do(connected.transactions.commit_segments(begun(side, connected, counter_owner="query A").id, []))
    with pytest.raises(
        SessionForeignError, match="written by counter owner 'query A', this is counter owner 'query B'"
    ):
        begun(side, connected, "r2", 0, counter_owner="query B")
    assert side.do(connected.sessions.get("etl")).counter_owner == "query A"


def test_an_abort_gives_the_version_back(side, connected):
    topic = connected.topic("orders")
    found = begun(side, connected)
    segment(side, found, topic, "in vain")
    assert side.do(connected.transactions.abort(found.id)).state == "ABORTED"
    assert begun(side, connected).id != found.id
    assert everything(side, topic.read()) == []


def test_a_segment_twice_or_of_nobody_is_refused_before_anything_is_published(side, connected):
    found = begun(side, connected)
    pointer = segment(side, found, connected.topic("orders"), "one")
    for segments in ([pointer, pointer], [pointer, 17]):
        with pytest.raises(InputError):
            side.do(connected.transactions.commit_segments(found.id, segments))
    side.do(connected.transactions.commit_segments(found.id, [pointer]))
    assert everything(side, connected.topic("orders").read()) == [b"one"]


def test_a_lost_answer_to_a_begin_joins(side, connected):
    connected.losing.loses = "/v1/transactions"
    found = begun(side, connected)
    assert sum(target.endswith("/v1/transactions") for target in connected.losing.sent) == 2
    connected.losing.loses = None
    assert [info.id for info in side.do(connected.transactions.list())] == [found.id]
