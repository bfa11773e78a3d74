"""Batches and what a decision says of them: by claims where it can, by ids where it must."""

from __future__ import annotations

import pytest

from basalt.api.codecs import batches as encoded
from basalt.client.calls.groups import Dealt, GroupScope
from basalt.client.calls.pages import Page
from basalt.client.consumer import batches
from basalt.client.consumer.batches import Acknowledgements, Batch, Membership
from basalt.client.plans import TopicScope
from basalt.errors import MemberFencedError

GROUP = GroupScope(TopicScope("shop", "orders", lambda: 0), "billing")


def id_at(number: int) -> bytes:
    return number.to_bytes(20)


@pytest.fixture
def member() -> Membership:
    made = Membership(GROUP, "m1")
    made.epoch = 3
    return made


def batch_of(member: Membership, *payloads: bytes, claim: int = 7, round_number: int = 2) -> Batch:
    ids = [id_at(100 * claim + at) for at in range(len(payloads))]
    page = Page(b"".join([encoded.START, encoded.encode_list(ids, list(payloads)), encoded.END]))
    return Batch(member, Dealt(page, claim, id_at(0), ids[-1], round_number, 4, 1_700, 3, None, None))


def test_a_batch_has_the_messages_of_its_claim(member):
    batch = batch_of(member, b"a", b"b")
    assert [message.payload for message in batch] == [b"a", b"b"]
    assert (len(batch), batch[1].payload, [each.payload for each in batch[:1]]) == (2, b"b", [b"a"])
    assert (batch.claim, batch.attempt, batch.round, batch.bytes) == (7, 4, 2, 2)
    assert (batch.after, batch.through) == (id_at(0), batch.ids()[-1])
    assert batch[0].batch is batch
    assert batch[0].carried.key is None
    assert repr(batch) == "Batch(2 messages of group billing of shop:orders, claim=7, attempt=4)"


def test_a_batch_is_out_until_all_of_it_is_decided(member):
    batch = batch_of(member, b"a", b"b")
    assert member.out == {7: batch}
    batch.decide([batch[0].id])
    assert (batch.decided, member.out) == (False, {7: batch})
    batch.decide([batch[1].id])
    assert (batch.decided, member.out) == (True, {})


def test_whole_batches_of_a_group_are_an_entry_of_claims(member):
    told = Acknowledgements()
    told.acknowledge([batch_of(member, b"a", b"b"), batch_of(member, b"c", claim=8)])
    (entry,) = told.entries()
    assert (entry.namespace, entry.topic, entry.group) == ("shop", "orders", "billing")
    assert (entry.member, entry.epoch, entry.round) == ("m1", 3, 2)
    assert (list(entry.claims), list(entry.ids)) == ([7, 8], [])


def test_of_more_claims_than_a_call_may_name_the_messages_of_the_others_are_named(member, monkeypatch):
    monkeypatch.setattr(batches, "ACKNOWLEDGED_CLAIMS_MAX", 2)
    told = Acknowledgements()
    dealt = [batch_of(member, b"a", b"b", claim=number, round_number=2 + number // 9) for number in (7, 8, 9, 10)]
    told.acknowledge(dealt)
    first, second = told.entries()
    assert (list(first.claims), list(first.ids), first.round) == ([7, 8], [], 2)
    assert (list(second.claims), list(second.ids)) == ([], [message.id for batch in dealt[2:] for message in batch])
    told.decide()
    assert member.out == {}


def test_claims_of_two_rounds_are_two_entries(member):
    told = Acknowledgements()
    told.acknowledge([batch_of(member, b"a"), batch_of(member, b"b", claim=8, round_number=3)])
    assert [(list(entry.claims), entry.round) for entry in told.entries()] == [([7], 2), ([8], 3)]


def test_single_messages_and_batches_that_were_released_are_named_by_ids(member):
    first, second = batch_of(member, b"a", b"b"), batch_of(member, b"c", claim=8)
    second.released = True
    told = Acknowledgements()
    told.acknowledge(first[1])
    told.acknowledge(second)
    (entry,) = told.entries()
    assert (list(entry.claims), list(entry.ids)) == ([], [first[1].id, second[0].id])


def test_by_ids_a_batch_is_all_its_messages_but_the_rejected(member):
    batch = batch_of(member, b"a", b"b", b"c")
    told = Acknowledgements()
    told.reject(batch[1], "bad")
    told.acknowledge(batch)
    told.acknowledge(batch[1])
    (entry,) = told.entries(by_ids=True)
    assert (list(entry.ids), [(each.id, each.reason) for each in entry.reject]) == (
        [batch[0].id, batch[2].id],
        [(batch[1].id, "bad")],
    )
    (by_claim,) = told.entries()
    assert (list(by_claim.claims), list(by_claim.ids), len(by_claim.reject)) == ([7], [], 1)


def test_a_decision_decides_what_it_named(member):
    batch = batch_of(member, b"a", b"b", b"c")
    told = Acknowledgements()
    told.acknowledge(batch[0])
    told.reject(batch[1], "bad")
    told.decide()
    assert not batch.decided
    rest = Acknowledgements()
    rest.acknowledge(batch)
    rest.decide()
    assert batch.decided


def test_a_fenced_member_decides_nothing(member):
    told = Acknowledgements()
    told.acknowledge(batch_of(member, b"a"))
    member.fenced = MemberFencedError("another is m1")
    with pytest.raises(MemberFencedError):
        told.entries()


def test_nothing_is_no_entry():
    told = Acknowledgements()
    told.acknowledge([])
    assert (bool(told), told.entries(), told.batches) == (False, [], [])
