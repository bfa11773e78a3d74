"""Markers through both clients: emitted, asked for, waited for, and followed from a position on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from basalt.errors import InputError, MarkerRefusedError


def used(side, tx, work):
    """Run a `with` block of either client; `work` gives the calls to make in it."""
    if side.name == "blocking":
        with tx:
            work(tx)
        return

    async def block():
        async with tx:
            for call in work(tx):
                await call

    side.do(block())


def following(side, topic, position=None, **options):
    """All that a follower tells and gives, in order, and the position behind each."""
    told = []
    follower: Any = topic.follow(
        position,
        on_watermark=lambda ms: told.append((ms, follower.position)),
        on_end=lambda: told.append(("end", follower.position)),
        **options,
    )
    if side.name == "blocking":
        for message in follower:
            told.append((message.text, follower.position))
    else:

        async def run():
            async for message in follower:
                told.append((message.text, follower.position))

        side.do(run())
    return told, follower


def shown(told):
    return [what for what, _ in told]


@pytest.fixture
def orders(side, connected):
    """Two tasks write a topic, and end it."""
    topic = connected.topic("orders")
    side.do(topic.publish("one"))
    side.do(topic.watermark("a", 100, 2))
    side.do(topic.publish(["two", "three"]))
    side.do(topic.watermark("b", 50, 2))
    side.do(topic.watermark("b", 120, task_count=2))
    side.do(topic.publish("four"))
    side.do(topic.end("a", 2))
    side.do(topic.end("b", 2))
    return topic


EVERYTHING = ["one", "two", "three", 50, 100, "four", 120, "end"]


def test_a_follower_is_told_in_order_what_the_markers_say(side, orders):
    told, follower = following(side, orders)
    assert shown(told) == EVERYTHING
    assert (follower.watermark_ms, follower.ended) == (120, True)


def test_a_follower_that_starts_again_anywhere_is_told_the_rest(side, orders):
    told, _ = following(side, orders)
    for index, (_, position) in enumerate(told):
        again, follower = following(side, orders, position)
        assert shown(again) == EVERYTHING[index + 1 :], index
        assert follower.ended


def test_a_follower_need_not_wait(side, connected):
    topic = connected.topic("orders")
    side.do(topic.publish(["one", "two"]))
    side.do(topic.watermark("a", 7))
    told, follower = following(side, topic, wait=False)
    assert shown(told) == ["one", "two", 7]
    assert not follower.ended
    side.do(topic.publish("three"))
    assert shown(following(side, topic, follower.position, wait=False)[0]) == ["three"]


def test_a_follower_may_start_at_any_position_and_knows_nothing_before_it(side, connected):
    topic = connected.topic("orders")
    side.do(topic.watermark("a", 7))
    told, follower = following(side, topic, "end", wait=False)
    assert told == []
    side.do(topic.publish("one"))
    assert shown(following(side, topic, follower.position, wait=False)[0]) == ["one"]
    assert shown(following(side, topic, "start", wait=False)[0]) == [7, "one"]


def test_silent_tasks_are_left_out_when_asked_for(side, connected):
    topic = connected.topic("orders")
    side.do(topic.watermark("a", 7, 3))
    side.do(topic.watermark("b", 9, 3))
    assert shown(following(side, topic, wait=False)[0]) == []
    assert shown(following(side, topic, wait=False, idle_ms=60_000, quorum=3)[0]) == []
    assert shown(following(side, topic, wait=False, idle_ms=60_000, quorum=2)[0]) == [7]


def test_a_position_of_another_generation_is_refused(side, connected, orders):
    told, _ = following(side, orders)
    side.do(connected.topics.delete("orders"))
    side.do(connected.topics.create("orders"))
    with pytest.raises(InputError, match=r"generation 1 of .*orders, which is generation 2 now"):
        following(side, orders, told[0][1], wait=False)
    with pytest.raises(InputError, match="position"):
        following(side, orders, told[0][1][:-1])


def next_of(side, follower):
    """The next message of either follower."""
    return side.do(next(follower) if side.name == "blocking" else anext(follower))


def test_the_topics_property_says_how_many_tasks_are_expected(side, connected):
    topic = connected.topic("orders")
    side.do(topic.watermark("a", 100))
    side.do(topic.end("a"))
    side.do(connected.topics.update("orders", tasks=2))
    side.do(topic.publish("one"))
    told, follower = following(side, topic, wait=False)
    assert (shown(told), follower.ended) == (["one"], side.do(topic.markers()).ended) == (["one"], False)
    side.do(topic.watermark("b", 120, 2))
    side.do(topic.publish("two"))
    side.do(topic.end("b", 2))
    assert shown(following(side, topic, told[0][1])[0]) == [120, "two", "end"]


def test_a_follower_learns_of_a_changed_property_on_its_way(side, connected):
    topic = connected.topic("orders")
    side.do(topic.publish("one"))
    side.do(topic.end("a"))
    side.do(connected.topics.update("orders", tasks=2))  # it goes on for one more task
    side.do(topic.publish("two"))
    side.do(connected.topics.update("orders", tasks=1))
    told = []
    follower: Any = topic.follow(on_end=lambda: told.append("end"), wait=False)
    assert next_of(side, follower).text == "one"  # the page is here, and says that one task is expected
    side.do(connected.topics.update("orders", tasks=2))
    assert next_of(side, follower).text == "two"
    assert (told, follower.ended) == ([], False)
    side.do(connected.topics.update("orders", tasks=1))
    with pytest.raises(StopAsyncIteration if side.name == "async" else StopIteration):
        next_of(side, follower)
    assert (told, follower.ended) == (["end"], True)


def test_a_follower_does_not_take_two_generations_for_one(side, connected):
    topic = connected.topic("orders")
    side.do(topic.publish("one"))
    follower: Any = topic.follow()
    assert next_of(side, follower).text == "one"
    side.do(connected.topics.delete("orders"))
    side.do(connected.topics.create("orders"))
    side.do(topic.publish("of another"))
    with pytest.raises(InputError, match=r"generation 1 of .*orders, which is generation 2 now"):
        next_of(side, follower)
    assert json.loads(follower.position)["generation"] == 1


def test_an_end_of_a_topic_that_was_created_again_is_not_told(side, connected):
    topic = connected.topic("orders")
    side.do(topic.publish("one"))
    side.do(topic.end("a"))
    follower: Any = topic.follow()
    assert next_of(side, follower).text == "one"
    side.do(connected.topics.delete("orders"))
    side.do(connected.topics.create("orders"))
    with pytest.raises(InputError, match="which is generation 2 now"):
        next_of(side, follower)


def test_async_callbacks_are_awaited_or_refused(side, orders):
    told = []

    async def on_watermark(ms):
        told.append(ms)

    async def on_end():
        told.append("end")

    if side.name == "blocking":
        for callbacks in ({"on_watermark": on_watermark}, {"on_end": on_end}):
            with pytest.raises(TypeError, match=r"on_\w+ is a coroutine.*async client"):
                orders.follow(**callbacks)
        with pytest.raises(TypeError, match=r"on_watermark is a coroutine.*async client"):
            list(orders.follow(on_watermark=lambda ms: on_watermark(ms)))  # which nobody sees beforehand
        return

    async def run():
        async for message in orders.follow(on_watermark=on_watermark, on_end=on_end):
            told.append(message.text)

    side.do(run())
    assert told == EVERYTHING


def test_a_callback_that_fails_leaves_the_follower_where_it_was(side, orders):
    def fails(_ms):
        raise ArithmeticError

    follower: Any = orders.follow(on_watermark=fails)
    got: list[str] = []
    while not follower.ended:
        try:
            got.append(next_of(side, follower).text)
        except ArithmeticError:
            got.append(follower.watermark_ms)
        except (StopIteration, StopAsyncIteration):
            break
    assert got == EVERYTHING[:-1]


def test_what_the_markers_say_can_be_asked_for(side, connected, orders):
    found = side.do(orders.markers())
    assert (found.watermark_ms, found.ended, found.task_count, found.generation) == (120, True, 2, 1)
    assert [(task.task, task.watermark_ms, task.ended) for task in found.tasks] == [("a", 100, True), ("b", 120, True)]
    assert side.do(orders.wait_until_ended(timeout_ms=0))
    assert [message.text for message in side.do(orders.poll())] == ["one", "two", "three", "four"]


def test_a_topic_that_goes_on_is_waited_for_as_long_as_allowed(side, connected):
    topic = connected.topic("orders")
    side.do(topic.watermark("a", 1))
    assert not side.do(topic.wait_until_ended(timeout_ms=30))


def test_a_task_that_has_ended_is_refused_by_name(side, orders):
    with pytest.raises(MarkerRefusedError, match="task 'a' has ended"):
        side.do(orders.watermark("a", 500, 2))
    with pytest.raises(InputError, match="printable"):
        side.do(orders.end("", 2))
    side.do(orders.end("a", 2))  # again


def test_a_transaction_brings_its_markers_with_its_messages(side, connected):
    topic = connected.topic("orders")
    used(
        side,
        connected.transaction(),
        lambda tx: [
            tx.watermark("orders", "a", 5),
            tx.publish("orders", ["one"]),
            tx.end("orders", "a", task_count=1),
        ],
    )
    assert shown(following(side, topic)[0]) == ["one", 5, "end"]


def test_a_transaction_that_fails_emits_nothing(side, connected):
    topic = connected.topic("orders")

    class StopError(Exception):
        pass

    def fails(tx):
        calls = [tx.end("orders", "a")]
        if side.name == "blocking":
            raise StopError
        return [*calls, failing()]

    async def failing():
        raise StopError

    with pytest.raises(StopError):
        used(side, connected.transaction(), fails)
    assert not side.do(topic.markers()).tasks


def test_a_refused_marker_fails_the_commit(side, connected, orders):
    with pytest.raises(MarkerRefusedError, match="'b' has ended"):
        used(
            side,
            connected.transaction(),
            lambda tx: [tx.publish("orders", ["lost"]), tx.watermark("orders", "b", 1, 2)],
        )
    assert [message.text for message in side.do(orders.poll())] == ["one", "two", "three", "four"]


def test_the_position_is_the_documented_text(side, orders):
    told, _ = following(side, orders)
    position = json.loads(told[-1][1])
    assert list(position) == ["v", "generation", "after", "taskCount", "watermarkMs", "tasks"]
    assert [task[:2] for task in position["tasks"].values()] == [[100, True], [120, True]]
