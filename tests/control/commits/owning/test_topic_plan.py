"""The plan of a commit: what it says of its topics, and what no commit can have."""

from __future__ import annotations

import pytest

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, Work, WorkPublish
from basalt.api.markers import Marker
from basalt.commits.owning.topic_plan import (
    MARKER_BYTES,
    NOTHING,
    Publication,
    TopicPlan,
    add_publication,
    check_one_shot,
)
from basalt.errors import InputError, TooLargeError
from basalt.messaging.log.topic_log import TopicLog
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
async def logs() -> list[TopicLog]:
    shop = await Wired.start(MemoryStore(atomic=False))
    return [await shop.topics.open((await shop.topics.create(title, {})).title) for title in (A, B)]


async def test_a_plan_counts_its_payloads_and_its_markers(logs: list[TopicLog]) -> None:
    orders, invoices = logs
    marker = Marker("map-1", 2)
    plan = TopicPlan([Publication(orders, [b"abc", b"de"], None)], [(invoices, marker)])
    assert plan.payload_bytes == 5 + MARKER_BYTES
    assert plan.logs == [orders, invoices]
    assert plan.topics == [orders.topic, invoices.topic]
    assert not plan.is_empty
    assert NOTHING.is_empty
    assert not TopicPlan([], (), ()).is_empty, "it says that nothing of what was stored is published"


async def test_each_write_lane_has_its_part_of_a_plan(logs: list[TopicLog]) -> None:
    orders, invoices = logs
    lanes = TopicLanes.of(MemoryStore(atomic=False), ManualClock(), 2, number=2)
    first, second = lanes.each
    lanes.lane_of = lambda prefix: first if prefix == orders.topic.keys.prefix else second  # type: ignore[method-assign]
    of_orders, of_invoices = Publication(orders, [b"a"], None), Publication(invoices, [b"b"], None)
    plan = TopicPlan([of_orders, of_invoices], segments=(7,))
    assert plan.by_lane(lanes) == {first: TopicPlan([of_orders], [], (7,)), second: TopicPlan([of_invoices], [], (7,))}
    alone = TopicPlan([of_orders])
    assert alone.by_lane(lanes) == {first: alone}


async def test_a_part_without_messages_is_none_and_one_with_too_many_is_refused(logs: list[TopicLog]) -> None:
    found: list[Publication] = []
    add_publication(found, 0, WorkPublish("shop", "orders", []), logs[0])
    assert found == []
    add_publication(found, 1, WorkPublish("shop", "orders", [b"a"]), logs[0])
    assert found == [Publication(logs[0], [b"a"], None)]
    with pytest.raises(TooLargeError) as refused:
        add_publication(found, 2, WorkPublish("shop", "orders", [b""] * (PUBLISH_MESSAGES_MAX + 1)), logs[0])
    assert refused.value.field == "publish[2].messages"


def test_a_one_shot_names_no_segments() -> None:
    check_one_shot(Work())
    with pytest.raises(InputError, match="has stored nothing"):
        check_one_shot(Work(segments=[7]))
