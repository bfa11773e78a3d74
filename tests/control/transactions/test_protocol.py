"""What owners and coordinator tell each other can go over a link as it is."""

from __future__ import annotations

import msgspec
import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.transactions.protocol import (
    Admitted,
    Close,
    Decide,
    End,
    Expect,
    Intend,
    Intended,
    JoinedTransaction,
    Joining,
    Place,
    Prepare,
    Prepared,
    RollBack,
)
from basalt.transactions.rules.transaction import Join, TableJoin

JOIN, TABLE = Join(b"shop:orders:", 3, 1_700), TableJoin(b"shop:~stock:", 2)
JOINED = JoinedTransaction(7, (7, 9), (JOIN,), (TABLE,), was_invalid=True)


@pytest.mark.parametrize(
    "message",
    [
        Joining(7, JOIN),
        Joining(7, table=TABLE),
        Admitted(7, 1_800),
        Prepared(3, (JOIN,), 20),
        Intend(7, (JOIN,), "r", frozenset((b"a", b"b"))),
        Intended(JOINED),
        Expect(7),
        Place(JOINED, 3),
        Decide(7, placed=True),
        Close(7),
        RollBack(JOINED),
        End(JOINED),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_the_same_when_it_was_encoded(message: msgspec.Struct) -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
    assert again == message


def test_what_a_commit_brings_can_be_encoded() -> None:
    work = Work(publish=[WorkPublish("shop", "orders", [b"\xff"])], segments=[7])
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(Prepare(work, JOINED)))
    assert encoded["work"]["publish"][0]["messages"] == [b"\xff"]
    assert msgspec.convert(encoded["transaction"], JoinedTransaction) == JOINED


def test_a_transaction_writes_under_its_newest_pointer() -> None:
    assert JOINED.write_pointer == 9
