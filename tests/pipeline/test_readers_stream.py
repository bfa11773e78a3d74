"""A stream's batches over topics in memory: where they end, what they hold, and that they are the same when planned again."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from basalt.errors import ConflictError, GenerationError, InputError, TopicNotFoundError, UnavailableError
from basalt_engine.clock import ManualClock
from basalt_spark import connection
from basalt_spark.columns import END_OF_TIME_MS
from basalt_spark.offset import parse_offset
from basalt_spark.option_table import FrameUse
from basalt_spark.options import read_options
from basalt_spark.source.partitions import ControlPartition, RangePartition
from basalt_spark.source.readers import BasaltStreamReader
from tests.pipeline.topics_in_memory import ServerInMemory, TopicInMemory, id_at

URL = "http://memory:1"
ALL = ReadAllAvailable()


class Stream:
    """A query as Spark drives it, over a checkpoint that outlives its readers."""

    def __init__(self, server: ServerInMemory, **given: str) -> None:
        if "topics" not in given:
            given = {"topic": next(iter(server.topics)), **given}
        self.options = read_options({"server": URL, **given}, FrameUse.STREAM)
        self.server = server
        self.clock = ManualClock(1_000_000)
        self.offsets: list[str] = []
        self.restart()

    def restart(self) -> None:
        connection._clients[self.options.server] = self.server
        self.reader = BasaltStreamReader(self.options)
        self.reader._clock = self.clock

    def batch(self) -> list | None:
        """The next batch's partitions; None where there is nothing new."""
        start = self.start()
        end = json.dumps(self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit()))
        if end == start:
            return None
        self.offsets.append(end)
        return self.plan(len(self.offsets) - 1)

    def start(self, number: int | None = None) -> str:
        before = self.offsets[:number]
        return before[-1] if before else json.dumps(self.reader.initialOffset())

    def commit(self) -> None:
        """Let Spark say that the last batch is done."""
        self.reader.commit(json.loads(self.offsets[-1]))

    def plan(self, number: int) -> list:
        return list(self.reader.partitions(json.loads(self.start(number)), json.loads(self.offsets[number])))

    def payloads(self, parts: list | None) -> list[bytes]:
        return [
            payload
            for part in parts or []
            if isinstance(part, RangePartition)
            for payload in self.server.topics[str(part.topic)].read(part.after, part.through, part.generation)
        ]

    def rest(self) -> list[bytes]:
        found = []
        while (parts := self.batch()) is not None:
            found += self.payloads(parts)
        return found

    @property
    def last(self):
        return parse_offset(json.loads(self.offsets[-1]))


@pytest.fixture
def orders() -> TopicInMemory:
    return TopicInMemory()


def stream(*topics: TopicInMemory, **given: str) -> Stream:
    if len(topics) > 1:
        given["topics"] = ",".join(topic.name for topic in topics)
    return Stream(ServerInMemory(*topics), **given)


def several(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


logs = st.lists(st.lists(st.sampled_from([b"a", b"bb", b"", None]), max_size=12), min_size=1, max_size=3)
limits = st.fixed_dictionaries(
    {},
    optional={
        "maxRowsPerTrigger": st.integers(1, 5).map(str),
        "maxBytesPerTrigger": st.integers(1, 6).map(str),
        "minPartitions": st.integers(1, 4).map(str),
    },
)


@settings(deadline=None, max_examples=60)
@given(logs, limits, st.integers(1, 4), st.data())
def test_batches_hold_each_message_once_and_in_order_whatever_the_limits_and_restarts(log, given, steps_max, data):
    topics = [TopicInMemory(f"default:t{number}", steps_max=steps_max) for number in range(len(log))]
    for topic, entries in zip(topics, log, strict=True):
        for number, entry in enumerate(entries):
            if entry is None:
                topic.mark("map-0", 1, number)
            else:
                topic.publish(entry + b"#%d" % number)
    query = stream(*topics, **given)
    found = {topic.name: [] for topic in topics}
    while (parts := query.batch()) is not None:
        if data.draw(st.booleans()):
            query.restart()
            again = query.plan(len(query.offsets) - 1)
            assert query.payloads(again) == query.payloads(parts)
            parts = again
        assert "maxRowsPerTrigger" not in given or len(query.payloads(parts)) <= int(given["maxRowsPerTrigger"])
        for part in parts:
            found[str(part.topic)] += query.payloads([part])
    assert found == {topic.name: [entry.payload for entry in topic.entries if entry.marker is None] for topic in topics}


def test_a_batch_ends_where_the_topic_is_decided_and_not_at_its_newest_message(orders):
    orders.publish(b"settled", b"of an open transaction", b"published behind it")
    orders.held = 2
    query = stream(orders)
    assert query.rest() == [b"settled"]
    orders.held = 0
    assert query.rest() == [b"of an open transaction", b"published behind it"]


def test_nothing_new_gives_the_very_same_text(orders):
    orders.mark("b", 3, 5)
    orders.mark("a", 3, 7)
    orders.publish(b"one")
    query = stream(orders)
    assert query.batch() is not None
    orders.mark("c", 3, 6)
    assert query.batch() is not None
    query.restart()
    assert [query.batch() for _ in range(3)] == [None, None, None]


def test_a_limit_is_shared_by_topics_and_the_one_behind_catches_up():
    busy, idle = TopicInMemory("default:busy"), TopicInMemory("default:idle")
    busy.publish(*several(10))
    idle.publish(b"x")
    query = stream(busy, idle, maxRowsPerTrigger="6")
    assert sorted(query.payloads(query.batch())) == sorted([*several(5), b"x"])
    assert query.payloads(query.batch()) == several(10)[5:]


def test_a_limit_in_bytes_holds_but_for_a_single_large_message(orders):
    orders.publish(b"123", b"456", b"7890123456789", b"0")
    query = stream(orders, maxBytesPerTrigger="6")
    assert [query.payloads(query.batch()) for _ in range(3)] == [[b"123", b"456"], [b"7890123456789"], [b"0"]]


def test_a_limit_in_bytes_holds_where_the_server_answers_in_steps(orders):
    orders.publish(b"123", b"45678")
    orders.steps_max = 1
    query = stream(orders, maxBytesPerTrigger="6")
    assert [query.payloads(query.batch()) for _ in range(2)] == [[b"123"], [b"45678"]]


def test_a_trigger_that_asks_for_all_gets_all_whatever_the_options_say(orders):
    orders.publish(*several(10))
    query = stream(orders, maxRowsPerTrigger="3")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(3)
    end = query.reader.latestOffset(query.reader.initialOffset(), ALL)
    assert parse_offset(end).topics[query.options.topics[0]].id == orders.entries[-1].id


def test_too_few_messages_are_waited_for_but_not_for_ever(orders):
    orders.publish(b"one")
    query = stream(orders, minRowsPerTrigger="3", maxTriggerDelay="10 seconds")
    assert query.batch() is None
    query.clock.advance(9_999)
    assert query.batch() is None
    query.clock.advance(1)
    assert query.payloads(query.batch()) == [b"one"]
    orders.publish(b"two", b"three", b"four")
    assert query.payloads(query.batch()) == [b"two", b"three", b"four"]


def test_available_now_reads_up_to_the_end_at_its_beginning_and_waits_for_nothing(orders):
    orders.publish(*several(5))
    query = stream(orders, maxRowsPerTrigger="2", minRowsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    orders.publish(b"later")
    assert query.rest() == several(5)
    orders.entries.clear()
    empty = stream(TopicInMemory())
    empty.reader.prepareForTriggerAvailableNow()
    assert empty.rest() == []


def test_the_first_batch_is_planned_again_from_where_latest_was(orders):
    orders.publish(b"old")
    query = stream(orders, startingOffsets="latest")
    query.reader.initialOffset()
    orders.publish(b"new")
    assert query.payloads(query.batch()) == [b"new"]
    orders.publish(b"newer")
    query.restart()
    assert query.payloads(query.plan(0)) == [b"new"]
    assert query.rest() == [b"newer"]


def test_a_query_that_begins_in_the_middle_knows_what_tasks_said_before(orders):
    orders.mark("map-0", 2, 5)
    orders.publish(b"old")
    query = stream(orders, startingOffsets="latest")
    query.reader.initialOffset()
    orders.mark("map-1", 2, 7)
    query.batch()
    assert query.last.watermark_ms == 5


def test_rows_carry_the_watermark_and_a_heartbeat_tells_of_one_that_came_alone(orders):
    query = stream(orders, control="heartbeat")
    orders.publish(b"one")
    assert [part.watermark_ms for part in query.batch()] == [None]
    orders.mark("map-0", 1, 5)
    (beat,) = query.batch()
    assert isinstance(beat, ControlPartition)
    assert beat.watermark_ms == 5
    orders.publish(b"two")
    (part,) = query.batch()
    assert part.watermark_ms == 5
    assert query.payloads([part]) == [b"two"]


def test_the_stream_is_done_when_all_topics_have_ended_and_all_is_read_also_after_a_restart():
    orders, bills = TopicInMemory("default:orders"), TopicInMemory("default:bills")
    orders.publish(*several(3))
    orders.mark("map-0", 1, None)
    bills.publish(*several(3))
    query = stream(orders, bills, maxRowsPerTrigger="4")
    query.rest()
    assert not query.last.done
    bills.mark("map-0", 1, 9)
    bills.mark("map-0", 1, None)
    query.rest()
    assert query.last.done
    assert query.last.watermark_ms == 9
    query.restart()
    assert query.batch() is None
    assert query.last.done


def test_a_stream_is_not_done_while_messages_behind_its_end_are_unread(orders):
    orders.publish(b"one")
    orders.mark("map-0", 1, None)
    orders.publish(b"behind the end")
    query = stream(orders, maxRowsPerTrigger="1")
    query.batch()
    assert not query.last.done
    query.rest()
    assert query.last.done


def test_a_reader_that_lags_behind_takes_no_task_for_silent_that_it_has_not_come_to(orders):
    orders.mark("map-0", 2, 5, at_ms=1_009_000)
    orders.mark("map-1", 2, 6, at_ms=1_009_000)
    orders.publish(b"one", b"two")
    orders.mark("map-1", 2, 50, at_ms=1_014_500)
    orders.publish(b"three", at_ms=1_014_600)
    orders.mark("map-0", 2, 60, at_ms=1_014_700)
    query = stream(orders, maxRowsPerTrigger="1", watermarkIdleTimeout="10 seconds")
    query.clock.advance(24_000)
    marks = []
    while query.batch() is not None:
        marks.append(query.last.watermark_ms)
    assert marks == [5, 5, 50]


def test_a_topic_whose_property_expects_more_tasks_has_not_ended(orders):
    orders.tasks_property = 2
    orders.mark("map-0", 2, None)
    query = stream(orders)
    query.rest()
    assert not query.last.done


def test_end_on_eos_ends_event_time_and_the_reading(orders):
    query = stream(orders, control="heartbeat", endOnEos="true")
    orders.publish(b"one")
    orders.mark("map-0", 1, 5)
    orders.mark("map-0", 1, None)
    data, beat = query.batch()
    assert query.payloads([data]) == [b"one"]
    assert beat.watermark_ms == END_OF_TIME_MS
    assert not query.last.done
    orders.publish(b"behind the end")
    (last,) = query.batch()
    assert last.watermark_ms == END_OF_TIME_MS
    assert query.last.done
    assert query.batch() is None


def test_a_silent_task_is_left_out_and_the_batch_is_the_same_when_planned_again(orders):
    orders.mark("map-0", 2, 5, at_ms=1_000_000)
    orders.mark("map-1", 2, 6, at_ms=1_000_000)
    query = stream(orders, control="heartbeat", watermarkIdleTimeout="10 seconds")
    query.batch()
    assert query.last.watermark_ms == 5
    query.clock.advance(9_000)
    orders.mark("map-1", 2, 50, at_ms=1_009_000)
    query.batch()
    assert query.last.watermark_ms == 5
    query.clock.advance(2_000)
    parts = query.batch()
    assert [part.watermark_ms for part in parts] == [50]
    query.restart()
    query.clock.advance(1_000_000)
    assert query.plan(len(query.offsets) - 1) == parts


def test_partitions_follow_each_other_as_messages_do(orders):
    orders.publish(*several(10))
    query = stream(orders, minPartitions="4")
    parts = query.batch()
    assert len(parts) == 4
    assert query.payloads(parts) == several(10)


def test_a_small_batch_is_one_task_and_costs_one_call(orders):
    orders.publish(*several(10))
    query = stream(orders)
    query.reader.initialOffset()
    orders.calls.clear()
    assert len(query.batch()) == 1
    query.reader.reportLatestOffset()
    assert orders.calls == ["advance"]


def test_what_is_told_of_the_topics_is_how_far_they_go(orders):
    orders.publish(*several(3))
    query = stream(orders, maxRowsPerTrigger="2")
    assert query.reader.reportLatestOffset() is None
    query.batch()
    told = query.reader.reportLatestOffset()
    assert told == {"topics": {"default:orders": {"gen": 1, "id": orders.entries[-1].id.hex()}}}


def test_another_generation_is_an_error_unless_loss_is_allowed(orders, caplog):
    orders.publish(b"one")
    query, lenient = stream(orders), stream(orders, failOnDataLoss="false")
    assert query.rest() == lenient.rest() == [b"one"]
    orders.generation, orders.entries = 2, []
    orders.publish(b"of the second")
    with pytest.raises(GenerationError, match="is of generation 2 now, and the checkpoint is of generation 1"):
        query.batch()
    query.restart()
    with pytest.raises(GenerationError, match="deleted and created again"):
        query.plan(0)
    lenient.restart()
    assert lenient.rest() == [b"of the second"]
    assert "going on from its start" in caplog.text


def test_a_new_generation_without_any_message_is_an_error_too(orders):
    orders.publish(b"one")
    query = stream(orders)
    query.rest()
    orders.generation, orders.entries = 2, []
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(GenerationError, match="deleted and created again"):
        query.batch()


def test_expired_messages_are_an_error_unless_loss_is_allowed(orders, caplog):
    orders.publish(*several(3), at_ms=1_000)
    query, lenient = (
        stream(orders, maxRowsPerTrigger="1"),
        stream(orders, maxRowsPerTrigger="1", failOnDataLoss="false"),
    )
    query.batch()
    lenient.batch()
    del orders.entries[:2]
    orders.expired_before = orders.entries[0].id
    with pytest.raises(InputError, match="have expired before they were read"):
        query.batch()
    assert lenient.rest() == several(3)[2:]
    assert "going on with the oldest that are left" in caplog.text


def test_a_new_query_takes_what_is_left_and_calls_nothing_lost(orders):
    orders.publish(b"left", at_ms=2_000)
    orders.expired_before = orders.entries[0].id
    assert stream(orders, startingTimestamp="500").rest() == [b"left"]


def test_a_checkpoint_of_other_topics_or_of_another_server_is_refused(orders):
    query = stream(orders)
    start = query.reader.initialOffset()
    other = stream(TopicInMemory("default:bills"))
    with pytest.raises(
        InputError, match="the checkpoint is of topics default:orders, and the query reads default:bills"
    ):
        other.reader.latestOffset(start, ALL)
    query.server = ServerInMemory(orders, instance="f" * 16)
    query.restart()
    with pytest.raises(InputError, match="is of installation 0123456789abcdef, and the server is of installation fff"):
        query.reader.partitions(start, start)


def test_a_topic_that_is_not_there_is_an_error(orders):
    orders.missing = True
    with pytest.raises(TopicNotFoundError):
        stream(orders).batch()


def test_a_given_offset_is_gone_on_from_with_what_its_tasks_said(orders):
    orders.publish(b"one")
    orders.mark("map-0", 2, 5)
    first = stream(orders)
    first.rest()
    orders.publish(b"two")
    orders.mark("map-1", 2, 8)
    second = stream(orders, startingOffsets=first.offsets[-1])
    assert second.rest() == [b"two"]
    assert second.last.watermark_ms == 5


def test_a_time_that_is_to_come_is_waited_for(orders):
    orders.publish(b"early", at_ms=1_000)
    query = stream(orders, startingTimestamp="2000")
    assert query.rest() == []
    orders.publish(b"still early", at_ms=1_999)
    orders.publish(b"in time", at_ms=2_000)
    assert query.rest() == [b"in time"]


def test_readers_and_partitions_are_pickled_to_tasks(orders):
    orders.publish(b"one")
    query = stream(orders)
    fresh = pickle.loads(pickle.dumps(BasaltStreamReader(query.options)))
    assert fresh._options == query.options
    parts = query.batch()
    assert pickle.loads(pickle.dumps(parts)) == parts
    assert parts[0].through == orders.entries[-1].id > id_at(1_000)


def test_available_now_ends_where_a_topic_is_created_anew_after_it_began(orders, caplog):
    orders.publish(*several(4))
    query = stream(orders, maxRowsPerTrigger="2", failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    assert query.payloads(query.batch()) == several(2)
    orders.generation, orders.entries = 2, []
    orders.publish(b"of the second", at_ms=900)
    found = [query.payloads(query.batch() or []) for _ in range(4)]
    assert query.batch() is None
    assert [payload for payloads in found for payload in payloads] == []
    assert query.last.topics[query.options.topics[0]].generation == 2
    query.restart()
    assert query.rest() == [b"of the second"]


def test_a_start_by_an_offset_begins_there_also_where_the_first_batch_is_planned_again_without_it(orders):
    orders.publish(*several(4))
    first = stream(orders, maxRowsPerTrigger="2")
    first.batch()
    second = stream(orders, startingOffsets=first.offsets[0])
    assert second.payloads(second.batch()) == several(4)[2:]
    second.options = stream(orders).options
    second.restart()
    assert second.payloads(second.plan(0)) == several(4)[2:]


def test_what_tasks_say_before_a_start_that_is_to_come_counts(orders):
    orders.publish(b"early", at_ms=1_000)
    query = stream(orders, startingTimestamp="2000")
    query.batch()
    orders.mark("map-0", 2, 5, at_ms=1_500)
    query.batch()
    orders.mark("map-1", 2, 7, at_ms=2_500)
    query.batch()
    assert query.last.watermark_ms == 5


def test_a_batch_that_is_done_is_reported_to_the_group_which_is_made_if_need_be():
    topic = TopicInMemory()
    stream = Stream(ServerInMemory(topic), group="etl", maxRowsPerTrigger="2")
    topic.publish(b"a", b"b", b"c")
    for _ in range(2):
        stream.batch()
        stream.commit()
        stream.commit()  # Spark may say it again
    group = topic.group("etl")
    assert (group.mode, group.positions) == ("tracked", [topic.entries[1].id, topic.entries[2].id])


def test_without_the_option_nothing_is_reported():
    topic = TopicInMemory()
    stream = Stream(ServerInMemory(topic))
    topic.publish(b"a")
    stream.batch()
    stream.commit()
    assert topic.groups == {}


@pytest.mark.parametrize("error", [ConflictError("of another mode"), UnavailableError("gone"), RuntimeError("a bug")])
def test_what_goes_wrong_in_a_report_does_not_fail_the_query_and_is_tried_with_the_next_batch(error, caplog):
    topic = TopicInMemory()
    stream = Stream(ServerInMemory(topic), group="etl")
    group = topic.group("etl")
    group.mode, group.broken = "tracked", error
    topic.publish(b"a")
    stream.batch()
    stream.commit()
    assert "the position was not reported to group etl" in caplog.text
    group.broken = None
    stream.commit()
    assert group.positions == [topic.entries[-1].id]
