"""What a transaction acknowledges in groups, as its description and its timeline tell it."""

from __future__ import annotations

import pytest

from basalt.api.bodies.transactions import PendingAcknowledgement, TransactionDescription
from basalt.cli.commands.diagnosis import _story
from basalt.cli.output import row
from basalt.transactions.rules.edits import AcknowledgedIn, Edit
from basalt_engine.spans.spans import ZERO_ID, Spans
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def made(wired: Wired, *edits: Edit) -> None:
    manager = wired.transactions.manager
    await manager.run(lambda group: manager.apply(group, edits))


async def test_a_transaction_tells_what_it_acknowledges_and_its_timeline_in_which_group():
    wired = await Wired.start()
    await wired.topics.create(A, {})
    await wired.publish(A, *map(str, range(5)))
    page = await wired.messaging.fetch(A, None, True, committed=True)
    ids = [message_id for piece in page.slices for message_id in piece.ids()]
    topic, table = (await wired.topics.open(A)).topic, wired.transactions.state.groups
    now_ms = wired.clock.now_ms()
    await made(
        wired, *table.propose_make(topic.keys.prefix, topic.generation, "billing", b"{}", ZERO_ID, now_ms, 1).edits
    )
    tx = await wired.transactions.begin(owner="etl")
    inspection, text = wired.services.inspection, wired.services.ids.text(tx.id)
    described = await inspection.describe(tx.id)
    assert isinstance(described, TransactionDescription)
    assert described.acknowledges == ()
    [group] = table.of_topic(topic.keys.prefix, topic.generation)
    spans = Spans([(ids[0], ids[2]), (ids[3], ids[4])])
    await made(wired, AcknowledgedIn(tx.id, group.number, now_ms, spans))
    described = await inspection.describe(tx.id)
    assert isinstance(described, TransactionDescription)
    assert described.acknowledges == (PendingAcknowledgement("shop", "orders", "billing", 3, True),)
    told = list(_story(row(described)))
    assert "It acknowledges 3 messages of group billing of shop:orders, which nobody else gets until it ends." in told
    steps = (await inspection.timeline(tx.id)).steps
    assert [(step.event, step.detail.get("group"), step.detail.get("spans")) for step in steps] == [
        ("begun", None, None),
        ("acknowledged", "shop:orders/billing", 2),
    ]
    await made(wired, *table.propose_forget((group.number,), True).edits)
    assert (await inspection.timeline(tx.id)).steps[1].detail["group"] == f"number {group.number}, deleted"
    described = await inspection.describe(tx.id)
    assert isinstance(described, TransactionDescription)
    assert described.acknowledges == ()
    assert text == described.id
