"""`with client.transaction()`: what is sent when, and who wins when things go wrong. Plans alone, without a server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from basalt.api.bodies.messages import check_store
from basalt.api.bodies.transactions import BeginRequest, TransactionInfo, TransactionOutcome
from basalt.api.codecs import avro
from basalt.client.producers import AutomaticProducers
from basalt.client.transaction import commit_protocol, open_transaction
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.errors import (
    BusyError,
    CorruptionError,
    InputError,
    InternalError,
    ProtocolError,
    TooLargeError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)

INFO = TransactionInfo("42", 42, "OPEN")
COMMITTED = TransactionOutcome("42", 42, "COMMITTED")
ABORTED = TransactionOutcome("42", 42, "ABORTED")
COMMIT, ABORT = "POST /v1/transactions/42/commit", "POST /v1/transactions/42/abort"


def store_of(topic: str) -> str:
    return f"POST /v1/namespaces/shop/topics/{topic}/store"


@pytest.fixture
def make(scope, play):
    """A transaction that has begun."""

    def begun(buffer_bytes_max: int = 1_000_000) -> OpenTransaction:
        tx = OpenTransaction(scope, BeginRequest(), buffer_bytes_max=buffer_bytes_max)
        play(commit_protocol.enter(tx), INFO)
        return tx

    return begun


def messages_of(call) -> list[bytes]:
    return [bytes(message) for message in partial(avro.decode_publish_request, check=check_store)(call.body).messages]


def work_of(call) -> dict[tuple[str, str], list[bytes]]:
    return {
        (entry.namespace, entry.topic): [bytes(message) for message in entry.messages]
        for entry in avro.decode_work(call.body).publish
    }


def test_messages_travel_with_the_commit(make, play):
    tx = make()
    assert play(open_transaction.publish(tx, "a", ["1", "2"])).calls == []
    assert play(open_transaction.publish(tx, "b", b"x", namespace="far")).calls == []
    assert play(open_transaction.publish(tx, "a", ["3"])).calls == []
    played = play(commit_protocol.leave(tx, None), COMMITTED)
    assert played.paths == [COMMIT]
    assert work_of(played.calls[0]) == {("shop", "a"): [b"1", b"2", b"3"], ("far", "b"): [b"x"]}
    assert tx.outcome == COMMITTED


def test_a_transaction_without_messages_commits_without_a_body(make, play):
    played = play(commit_protocol.leave(make(), None), COMMITTED)
    assert played.paths == [COMMIT]
    assert played.calls[0].body == b""


def test_what_outgrows_the_buffer_is_stored_and_keeps_its_order(make, play):
    tx = make(buffer_bytes_max=10)
    played = play(open_transaction.publish(tx, "a", [b"1234", b"5678", b"9012", b"tail"]))
    assert [messages_of(call) for call in played.calls] == [[b"1234", b"5678", b"9012"]]
    assert play(open_transaction.publish(tx, "b", [b"b"])).calls == []
    # The rest of a's go where its first went, ahead of the commit; b's fit into it.
    played = play(commit_protocol.leave(tx, None), None, COMMITTED)
    assert played.paths == [store_of("a"), COMMIT]
    assert messages_of(played.calls[0]) == [b"tail"]
    assert work_of(played.calls[1]) == {("shop", "b"): [b"b"]}


def test_storing_on_purpose_comes_after_what_was_published_before(make, play):
    tx = make()
    play(open_transaction.publish(tx, "a", ["1"]))
    played = play(open_transaction.store(tx, "a", ["2"]))
    assert [messages_of(call) for call in played.calls] == [[b"1"], [b"2"]]
    play(open_transaction.publish(tx, "a", ["3"]))
    played = play(commit_protocol.leave(tx, None), None, COMMITTED)
    assert played.paths == [store_of("a"), COMMIT]
    assert played.calls[1].body == b""


def test_many_small_messages_are_stored_too(make, play):
    tx = make()
    played = play(open_transaction.publish(tx, "a", [b""] * 65_537))
    assert [len(messages_of(call)) for call in played.calls] == [65_536]


def test_an_exception_in_the_block_aborts(make, play):
    tx = make()
    play(open_transaction.publish(tx, "a", ["1"]))
    assert play(commit_protocol.leave(tx, KeyError("mine")), ABORTED).paths == [ABORT]
    assert tx.outcome == ABORTED


def test_the_first_exception_wins_and_mentions_the_failed_abort(make, play):
    mine = KeyError("mine")
    played = play(commit_protocol.leave(make(), mine), UnavailableError("gone"))
    assert played.raised is None  # so Python raises the block's own exception
    assert mine.__notes__ == ["transaction 42 could not be aborted, its time-out ends it (UnavailableError: gone)"]


def test_a_conflict_aborts_and_is_raised(make, play):
    played = play(commit_protocol.leave(make(), None), TransactionConflictError("lost"), ABORTED)
    assert played.paths == [COMMIT, ABORT]
    assert isinstance(played.raised, TransactionConflictError)


@pytest.mark.parametrize("error", [TooLargeError("big"), BusyError("busy"), UnavailableError("gone")])
def test_a_commit_that_did_nothing_is_aborted(make, play, error):
    played = play(commit_protocol.leave(make(), None), error, ABORTED)
    assert played.paths == [COMMIT, ABORT]
    assert played.raised is error


def test_an_abort_that_comes_too_late_blames_no_time_out(make, play):
    mine = KeyError("mine")
    play(commit_protocol.leave(make(), mine), TransactionEndedError("INVALID"))
    assert mine.__notes__ == ["transaction 42 could not be aborted (TransactionEndedError: INVALID)"]


@pytest.mark.parametrize(
    "error", [InternalError("broke"), CorruptionError("bad bytes"), ProtocolError("the answer cannot be read")]
)
def test_a_commit_that_was_answered_by_a_fault_may_have_happened(make, play, error):
    error.request_id = "r1"
    played = play(commit_protocol.leave(make(), None), error)
    assert played.paths == [COMMIT]  # and no abort
    assert isinstance(played.raised, UnknownOutcomeError)
    assert str(played.raised) == f"whether transaction 42 was committed is unknown: {error}"
    assert played.raised.hint == "Ask client.transactions.get('42').state before doing the work again."
    assert (played.raised.__cause__, played.raised.request_id) == (error, "r1")


@pytest.mark.parametrize(
    "error", [UnknownOutcomeError("?"), TransactionEndedError("aborted"), TransactionNotFoundError("forgotten")]
)
def test_a_commit_that_may_have_happened_or_cannot_is_left_alone(make, play, error):
    played = play(commit_protocol.leave(make(), None), error)
    assert played.paths == [COMMIT]
    assert played.raised is error


def test_a_store_that_fails_before_the_commit_aborts(make, play):
    tx = make()
    play(open_transaction.store(tx, "a", ["1"]))
    play(open_transaction.publish(tx, "a", ["2"]))
    lost = UnknownOutcomeError("lost")
    played = play(commit_protocol.leave(tx, None), lost, ABORTED)
    assert played.paths == [store_of("a"), ABORT]
    assert played.raised is lost


@pytest.mark.parametrize(
    "failure", [UnknownOutcomeError("lost"), BusyError("busy"), TopicNotFoundError("gone")], ids=lambda each: each.code
)
def test_messages_whose_early_store_failed_are_never_left_out_of_a_commit(make, play, failure):
    tx = make(buffer_bytes_max=3)
    play(open_transaction.publish(tx, "b", ["1"]))
    assert play(open_transaction.publish(tx, "a", ["23"]), failure).raised is failure  # and its caller goes on
    play(open_transaction.publish(tx, "c", ["4"]))
    played = play(commit_protocol.leave(tx, None), ABORTED)
    assert played.paths == [ABORT]
    assert isinstance(played.raised, TransactionEndedError)
    assert str(played.raised) == "transaction 42 cannot be committed: messages of topic shop:b may be missing"
    assert played.raised.__cause__ is failure


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_an_interrupted_store_leaves_messages_missing_too(make, play, interrupt):
    tx = make()
    with pytest.raises(type(interrupt)):
        play(open_transaction.store(tx, "a", ["1"]), interrupt)
    played = play(commit_protocol.commit(tx), ABORTED)
    assert played.paths == [ABORT]
    assert isinstance(played.raised, TransactionEndedError)


def test_a_commit_by_hand_whose_last_store_failed_cannot_be_repeated(make, play):
    tx = make()
    play(open_transaction.store(tx, "a", ["1"]))
    play(open_transaction.publish(tx, "a", ["2"]))
    assert play(commit_protocol.commit(tx), BusyError("busy")).paths == [store_of("a")]
    assert play(commit_protocol.commit(tx), ABORTED).paths == [ABORT]
    assert "may be missing" in str(play(commit_protocol.leave(tx, None)).raised)


def test_who_aborts_after_a_failed_store_is_left_in_peace(make, play):
    tx = make()
    play(open_transaction.store(tx, "a", ["1"]), BusyError("busy"))
    assert play(commit_protocol.abort(tx), ABORTED).paths == [ABORT]
    played = play(commit_protocol.leave(tx, None))
    assert (played.paths, played.raised) == ([], None)


def test_ending_it_by_hand_leaves_the_end_of_the_block_nothing_to_do(make, play):
    for plan, outcome in ((commit_protocol.commit, COMMITTED), (commit_protocol.abort, ABORTED)):
        tx = make()
        assert play(plan(tx), outcome).result == outcome
        assert play(commit_protocol.leave(tx, None)).calls == []


def test_an_aborted_transaction_forgets_its_messages(make, play):
    tx = make()
    play(open_transaction.publish(tx, "a", ["1"]))
    play(commit_protocol.abort(tx), ABORTED)
    assert tx.unsent.runs == {}


@pytest.mark.parametrize(
    "plan",
    [
        lambda tx: open_transaction.publish(tx, "a", "1"),
        lambda tx: open_transaction.store(tx, "a", "1"),
        lambda tx: open_transaction.poll(tx, "a"),
        lambda tx: open_transaction.changes(tx, [b"k"]),
        commit_protocol.checkpoint,
        commit_protocol.commit,
        commit_protocol.abort,
    ],
)
def test_nothing_can_be_done_after_the_end_or_before_the_begin(make, play, scope, plan):
    ended = make()
    play(commit_protocol.commit(ended), COMMITTED)
    fresh = OpenTransaction(scope, BeginRequest())
    for tx, says in ((ended, "has ended"), (fresh, "has not begun")):
        played = play(plan(tx))
        assert isinstance(played.raised, TransactionEndedError)
        assert says in str(played.raised)
        assert played.calls == []


def test_a_transaction_is_begun_once(make, play):
    played = play(commit_protocol.enter(make()))
    assert isinstance(played.raised, TransactionEndedError)


def test_reads_are_under_its_snapshot(make, play):
    tx = make()
    (polled,) = play(open_transaction.poll(tx, "a")).calls
    (read,) = play(open_transaction.read(tx, "a", namespace="far").next_page()).calls
    assert dict(polled.query) == dict(read.query) == {"transaction": "42"}
    assert read.path == "/v1/namespaces/far/topics/a/poll"


@pytest.fixture
def numbering(scope, play) -> OpenTransaction:
    """A transaction of a client that numbers its messages, which stores every second one at once."""
    tx = OpenTransaction(replace(scope, producers=AutomaticProducers()), BeginRequest(), buffer_bytes_max=2)
    play(commit_protocol.enter(tx), INFO)
    return tx


def stored_before(played) -> list[str | None]:
    return [call.headers.get("basalt-stored-before") for call in played.calls]


def test_each_store_says_how_many_messages_of_its_topic_came_before_it(numbering, play):
    assert stored_before(play(open_transaction.store(numbering, "orders", ["a", "b", "c"]))) == ["0"]
    assert stored_before(play(open_transaction.store(numbering, "orders", ["d"], key="k"))) == ["3"]
    assert stored_before(play(open_transaction.publish(numbering, "orders", ["e", "f"]))) == ["4"]
    assert stored_before(play(open_transaction.store(numbering, "invoices", ["1"]))) == ["0"]
    play(commit_protocol.checkpoint(numbering), INFO)  # all of them are stored under its first pointer
    assert stored_before(play(open_transaction.store(numbering, "orders", ["g"]))) == ["6"]


def test_without_dedup_a_store_says_nothing_of_what_came_before(make, play):
    assert stored_before(play(open_transaction.store(make(), "orders", ["a"]))) == [None]


def test_two_stores_at_once_would_have_the_same_number_and_so_the_second_is_refused(numbering, play):
    first = open_transaction.store(numbering, "orders", ["a"])
    next(first)
    second = play(open_transaction.store(numbering, "orders", ["b"]))
    assert isinstance(second.raised, InputError)
    assert second.calls == []
    with pytest.raises(StopIteration):
        first.send(None)
    refused = play(commit_protocol.commit(numbering), ABORTED)
    assert isinstance(refused.raised, TransactionEndedError), "its message is missing"
