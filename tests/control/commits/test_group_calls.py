"""What is acknowledged, and a whole Work, go over a link and are what they were."""

from __future__ import annotations

import msgspec

from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import RecordIn, Rejection, Work, WorkAcknowledge, WorkPublish
from basalt.commits.group_calls import ACKNOWLEDGE, CARRY, AcknowledgeCall, WorkCall

ID = bytes(range(20))
ENTRY = WorkAcknowledge(
    "shop", "orders", "billing", (ID,), ID, "ann", 3, 7, (11, 12), (ID[::-1],), (Rejection(ID, "of no use"),)
)


def test_entries_are_read_as_they_were_sent() -> None:
    given = WorkAcknowledge("shop", "orders", "billing", (HexMessageId(ID),), claims=(1,))
    read = ACKNOWLEDGE.question.decode(msgspec.msgpack.encode(AcknowledgeCall.of(5, [ENTRY, given])))
    assert (read.transaction_id, read.asked) == (
        5, [ENTRY, WorkAcknowledge("shop", "orders", "billing", (ID,), claims=(1,))],
    )  # fmt: skip


def test_a_work_is_read_as_it_was_sent() -> None:
    work = Work([WorkPublish("shop", "copies", [b"a"], [RecordIn(b"b", b"key")])], acknowledge=[ENTRY])
    read = CARRY.question.decode(msgspec.msgpack.encode(WorkCall.of(work, "label", "request", "token:ann")))
    assert (read.owner, read.request_id, read.principal) == ("label", "request", "token:ann")
    assert read.work.acknowledge == [ENTRY]
    (part,) = read.work.publish
    assert [bytes(each) for each in part.messages] == [b"a"]
    assert [bytes(each.payload) for each in part.records] == [b"b"]
