"""Bad input to a consumer: refused at once by an error that names what is wrong, with nothing sent and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from basalt.client.calls import groups
from basalt.client.calls.groups import GroupScope
from basalt.client.calls.pages import Message
from basalt.client.consumer import open_consumer, processing
from basalt.client.consumer.batches import Acknowledgements, Batch
from basalt.client.consumer.open_consumer import OpenConsumer
from basalt.client.consumer.processing import Output
from basalt.client.plans import ClientScope
from basalt.errors import InputError
from tests.control.client.consumer.group_world import GroupWorld


class Hand(NamedTuple):
    """All that the calls are made of: a consumer that has joined, and the batch that it has in hand."""

    world: GroupWorld
    consumer: OpenConsumer
    batch: Any

    @property
    def scope(self) -> ClientScope:
        return self.world.scope

    @property
    def group(self) -> GroupScope:
        return self.consumer.group

    def made(self, group: Any = "billing", **options: Any) -> None:
        self.world.run(open_consumer.enter(open_consumer.consumer(self.scope, "orders", group=group, **options)))


def handled(batch: Batch, out: Output) -> None:
    raise AssertionError("nothing is handled")


FIVE: Any = 5
STRANGE: Any = Message(bytes(20), b"payload", None)
CREATE: Any = groups.create  # as code without types calls it
Do = Callable[[Hand], Any]
BAD: list[tuple[str, Do, type[Exception], str]] = [
    ("no group's name", lambda hand: hand.made(""), InputError, "a name is empty: v1/namespaces/shop/topics/orders/groups/"),
    ("a group None", lambda hand: hand.made(None), TypeError, "a name is text, not None: .*groups/None"),
    ("a group by number", lambda hand: hand.made(5), TypeError, "a name is text, not 5"),
    ("an option that is none", lambda hand: CREATE(hand.group, ack_ms=5), TypeError, "'ack_ms'"),
    ("a member without a name", lambda hand: hand.made(member=""), InputError, "member '' is not the name of a member"),
    ("a member with a slash", lambda hand: hand.made(member="a/b"), InputError, "member 'a/b' is not"),
    ("a member of two lines", lambda hand: hand.made(member="a\nb"), InputError, r"member 'a\\nb' is not"),
    ("a member by number", lambda hand: hand.made(member=5), InputError, "member '5' is not"),
    ("a member of 256 characters", lambda hand: hand.made(member="m" * 256), InputError, "is not the name of a member"),
    ("batches of no messages", lambda hand: open_consumer.batches(hand.consumer, limit=0), InputError, "limit is 0; it must be 1"),
    ("batches of -1", lambda hand: open_consumer.batches(hand.consumer, limit=-1), InputError, "limit is -1"),
    ("a limit as text", lambda hand: open_consumer.batches(hand.consumer, limit="5"), TypeError, "limit is a whole number, not '5'"),
    ("no function to handle", lambda hand: processing.process(hand.consumer, None), TypeError, "handle is a function, not None"),
    ("until as a flag", lambda hand: processing.process(hand.consumer, handled, until=True), TypeError, "until is a function, not True"),
    ("rounds of no messages", lambda hand: processing.process(hand.consumer, handled, limit=0), InputError, "limit is 0"),
    ("no errors", lambda hand: processing.process(hand.consumer, handled, errors_max=0), InputError, "errors_max is 0"),
    ("errors as text", lambda hand: processing.process(hand.consumer, handled, errors_max="3"), TypeError, "errors_max is a whole number, not '3'"),
    ("nothing acknowledged", lambda hand: open_consumer.acknowledge(hand.consumer, None), TypeError, "is of a batch.*not NoneType"),
    ("a number acknowledged", lambda hand: open_consumer.acknowledge(hand.consumer, 5), TypeError, "is of a batch.*not int"),
    ("text acknowledged", lambda hand: open_consumer.acknowledge(hand.consumer, "abc"), TypeError, "is of a batch.*not str"),
    ("an id acknowledged", lambda hand: open_consumer.acknowledge(hand.consumer, [hand.batch[0].id]), TypeError, "is of a batch.*not bytes"),
    ("a message of no batch", lambda hand: open_consumer.acknowledge(hand.consumer, STRANGE), InputError, "message 0{40} is of no batch"),
    ("messages of no batch", lambda hand: open_consumer.acknowledge(hand.consumer, [STRANGE]), InputError, "message 0{40} is of no batch"),
    ("nothing released", lambda hand: open_consumer.release(hand.consumer, None), TypeError, "is of a batch.*not NoneType"),
    ("a reason by number", lambda hand: open_consumer.release(hand.consumer, hand.batch, reason=5), TypeError, "reason is text, not 5"),
    ("a batch rejected", lambda hand: Acknowledgements().reject(hand.batch, "bad"), TypeError, "one message, not Batch.*one by one"),
    ("a rejection by number", lambda hand: Acknowledgements().reject(hand.batch[0], 5), TypeError, "reason of a rejection is text, not 5"),
    ("a message of no batch rejected", lambda hand: Acknowledgements().reject(STRANGE, "bad"), InputError, "is of no batch"),
    ("an object as a place", lambda hand: open_consumer.seek(hand.consumer, object()), TypeError, "give a message, its id, a time"),
    ("ids that are no hex", lambda hand: groups.give_back(hand.group, ids=["zz"]), InputError, "'zz' is not a message id"),
    ("ids of three bytes", lambda hand: groups.give_back(hand.group, ids=[b"abc"]), InputError, "b'abc' is not a message id"),
    ("one id for several", lambda hand: groups.give_back(hand.group, ids="00" * 20), TypeError, "ids are several"),
    ("ids by number", lambda hand: groups.give_back(hand.group, ids=[FIVE]), TypeError, "an id is bytes or hex digits, not 5"),
    ("unparked ids of 38 digits", lambda hand: groups.unpark(hand.group, ["00" * 19]), InputError, "is not a message id"),
    ("a position of three bytes", lambda hand: groups.report_position(hand.group, b"abc"), InputError, "b'abc' is not a message id"),
    ("nobody to remove", lambda hand: groups.remove_member(hand.group, ""), InputError, "a name is empty: .*groups/billing/members/"),
]  # fmt: skip


@pytest.mark.parametrize(("do", "error", "told"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD])
def test_it_is_refused_before_anything_is_sent(do: Do, error: type[Exception], told: str):
    world = GroupWorld(b"a", b"b", b"c")
    consumer = world.consumer()
    batch = world.run(open_consumer.fetch(consumer, limit=2, wait_ms=0))
    before = list(world.story), dict(world.claimed), list(world.waiting)

    def ask() -> None:
        asked = do(Hand(world, consumer, batch))
        if hasattr(asked, "send"):
            world.run(asked)

    with pytest.raises(error, match=told):
        ask()
    assert (world.story, world.claimed, world.waiting) == before
    assert (batch.decided, batch.released, consumer.processing) == (False, False, False)
    assert world.run(open_consumer.acknowledge(consumer, batch)).acknowledged == 2, (
        "it goes on as if nothing had been asked"
    )
