"""Batches in a transaction: acknowledged with its commit, given back with its abort, and who may try again."""

from __future__ import annotations

import pytest

from basalt.api.bodies.messages import WorkAcknowledge
from basalt.client.consumer import open_consumer
from basalt.client.consumer.batches import Batch
from basalt.client.consumer.open_consumer import BatchCursor, OpenConsumer
from basalt.client.transaction import commit_protocol, open_transaction
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.errors import (
    AcknowledgeOrderError,
    ClaimLostError,
    MemberFencedError,
    TransactionConflictError,
    TransactionEndedError,
    UnknownOutcomeError,
)
from tests.control.client.consumer.group_world import GroupWorld


def started(world: GroupWorld, limit: int | None = None) -> tuple[OpenConsumer, BatchCursor, Batch]:
    """A consumer with its first batch in hand."""
    consumer = world.consumer()
    cursor = open_consumer.batches(consumer, limit=limit)
    (batch,) = world.run(cursor.next_items())
    world.story.clear()
    return consumer, cursor, batch


def begun(world: GroupWorld) -> OpenTransaction:
    tx = open_transaction.transaction(world.scope)
    world.run(commit_protocol.enter(tx))
    return tx


def leave(world: GroupWorld, tx: OpenTransaction, raised: BaseException | None = None) -> None:
    world.run(commit_protocol.leave(tx, raised))


def entries(world: GroupWorld) -> list[WorkAcknowledge]:
    return [entry for work in world.works for entry in work.acknowledge]


def test_a_commit_acknowledges_and_publishes_in_one_request():
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.publish(tx, "invoices", [b"A", b"B"]))
    world.run(open_transaction.acknowledge(tx, batch))
    assert world.acknowledged == []
    leave(world, tx)
    world.run(cursor.next_items())
    assert world.story == ["begin", "commit", "fetch"]
    assert (world.texts(world.acknowledged), len(world.published), batch.decided) == (["a", "b"], 2, True)


def test_some_messages_are_acknowledged_others_rejected_and_the_rest_goes_back():
    world = GroupWorld(b"a", b"b", b"c")
    _, cursor, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, [batch[0], batch[1]]))
    world.run(open_transaction.reject(tx, batch[1], "no customer"))
    leave(world, tx)
    (entry,) = entries(world)
    assert (world.texts(list(entry.ids)), world.texts([each.id for each in entry.reject])) == (["a"], ["b"])
    world.run(cursor.next_items())
    assert [(world.messages[each], counted) for each, counted, _ in world.returned] == [(b"c", True)]


def test_batches_of_one_group_are_one_entry_and_those_of_another_member_are_another():
    world = GroupWorld(b"a", b"b", b"c")
    _, cursor, first = started(world, limit=1)
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, first))
    (second,) = world.run(cursor.next_items())
    assert world.returned == []  # the transaction holds the first
    (third,) = world.run(open_consumer.batches(world.consumer("m2")).next_items())
    world.run(open_transaction.acknowledge(tx, [second, third]))
    leave(world, tx)
    assert [(entry.member, list(entry.claims)) for entry in entries(world)] == [("m1", [1, 2]), ("m2", [3])]


@pytest.mark.parametrize(
    ("raised", "counted"), [(ValueError("bad"), True), (KeyboardInterrupt(), False), (UnknownOutcomeError("x"), False)]
)
def test_an_abort_gives_the_batch_back_at_once(raised, counted):
    world = GroupWorld(b"a", b"b")
    _, _, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    leave(world, tx, raised)
    assert world.story == ["begin", "abort", "release"]
    assert [each[1] for each in world.returned] == [counted] * 2
    assert world.acknowledged == []


def test_an_abort_by_hand_counts():
    world = GroupWorld(b"a")
    _, _, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    world.run(commit_protocol.abort(tx))
    assert [each[1:] for each in world.returned] == [(True, "its transaction was aborted")]


def test_after_an_abort_the_batch_may_be_acknowledged_by_ids_while_nobody_else_has_it():
    world = GroupWorld(b"a")
    _, _, batch = started(world)
    first = begun(world)
    world.run(open_transaction.acknowledge(first, batch))
    leave(world, first, ValueError("bad"))
    second = begun(world)
    world.run(open_transaction.acknowledge(second, batch))
    leave(world, second)
    (entry,) = entries(world)
    assert (entry.claims, world.texts(list(entry.ids))) == ([], ["a"])


def test_after_a_conflict_the_batch_stays_in_hand_for_another_try():
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world, limit=1)
    world.fails["commit"] = [TransactionConflictError("a cell")]
    first = begun(world)
    world.run(open_transaction.acknowledge(first, batch))
    with pytest.raises(TransactionConflictError):
        leave(world, first)
    assert world.returned == []
    second = begun(world)
    world.run(open_transaction.acknowledge(second, batch))
    leave(world, second)
    world.run(cursor.next_items())
    assert (world.texts(world.acknowledged), world.returned) == (["a"], [])


def test_a_conflict_that_is_given_up_is_no_attempt():
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world, limit=1)
    world.fails["commit"] = [TransactionConflictError("a cell")]
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    with pytest.raises(TransactionConflictError):
        leave(world, tx)
    world.run(cursor.next_items())
    assert [each[1] for each in world.returned] == [False]


def test_after_a_restart_the_commit_sends_the_ids_once():
    world = GroupWorld(b"a")
    _, _, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.publish(tx, "invoices", b"A"))
    world.run(open_transaction.acknowledge(tx, batch))
    world.restart()
    leave(world, tx)
    assert world.story == ["begin", "commit", "commit"]
    assert (world.texts(world.acknowledged), world.published) == (["a"], [("invoices", b"A")])


def test_a_commit_whose_claim_another_has_fails_and_aborts():
    world = GroupWorld(b"a")
    _, _, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    world.restart()
    world.others.update(batch.ids())
    with pytest.raises(ClaimLostError):
        leave(world, tx)
    assert world.story == ["begin", "commit", "commit", "abort", "release"]
    assert world.acknowledged == []


def test_a_fenced_member_commits_nothing():
    world = GroupWorld(b"a")
    consumer, _, batch = started(world)
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    world.fence()
    world.run(open_consumer.renew(consumer))
    with pytest.raises(MemberFencedError):
        leave(world, tx)
    assert world.story == ["begin", "renew", "abort"]


@pytest.mark.parametrize(
    ("error", "counted"), [(TransactionEndedError("timed out"), True), (UnknownOutcomeError("lost"), False)]
)
def test_a_transaction_that_is_over_holds_its_batch_no_more(error, counted):
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world, limit=1)
    world.fails["commit"] = [error]
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    with pytest.raises(type(error)):
        leave(world, tx)
    world.run(cursor.next_items())
    assert [each[1] for each in world.returned] == [counted]


def test_a_commit_that_was_interrupted_holds_its_batch_no_more_and_was_no_attempt():
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world, limit=1)
    world.fails["commit"] = [KeyboardInterrupt()]
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    with pytest.raises(KeyboardInterrupt):
        world.run(commit_protocol.commit(tx))
    world.run(cursor.next_items())
    assert [each[:2] for each in world.returned] == [(batch[0].id, False)]


def test_batches_of_a_transaction_that_lost_a_conflict_are_not_kept_for_ever():
    world = GroupWorld(b"a", b"b", b"c")
    consumer, cursor, first = started(world, limit=1)
    world.fails["commit"] = [TransactionConflictError("a cell")]
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, first))
    (second,) = world.run(cursor.next_items())
    world.run(open_transaction.acknowledge(tx, second))
    with pytest.raises(TransactionConflictError):
        leave(world, tx)
    (third,) = world.run(cursor.next_items())
    assert [(world.messages[each[0]], each[1]) for each in world.returned] == [(b"a", False), (b"b", False)]
    assert consumer.member.out == {third.claim: third}


def test_a_commit_that_is_refused_still_holds_its_batch():
    """Its user may mend what was refused and commit again, and look at the next batch meanwhile."""
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world, limit=1)
    world.fails["commit"] = [AcknowledgeOrderError("behind another")]
    tx = begun(world)
    world.run(open_transaction.acknowledge(tx, batch))
    with pytest.raises(AcknowledgeOrderError):
        world.run(commit_protocol.commit(tx))
    world.run(cursor.next_items())
    assert world.returned == []
    leave(world, tx)
    assert world.texts(world.acknowledged) == ["a"]
