"""A batch is published once: by its winning segments, in the order of its partitions, whatever Spark calls twice."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

import basalt
from basalt.errors import (
    GroupNotFoundError,
    InputError,
    SessionFencedError,
    SessionForeignError,
    TopicNotFoundError,
    TransactionEndedError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt_spark.options import SinkColumns
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink import writers
from basalt_spark.sink.commit import Segment, SegmentStored, batch_work, stream_work
from basalt_spark.sink.segment_writer import SegmentWriter
from basalt_spark.sink.writers import make_group
from tests.pipeline.sink_server import TOPIC, batch, options, payloads, task, work


@pytest.fixture
def client():
    with basalt.connect("embedded:", settings={"store.kind": "memory"}) as connected:
        connected.topics.create(TOPIC)
        yield connected


def transactions_open(client) -> int:
    return len(client.transactions.list())


def test_the_partitions_of_a_batch_are_published_in_their_order_whichever_task_was_first(client):
    doing = work(0)
    late = task(client, doing, [b"c", b"d"], partition=1)
    early = task(client, doing, [b"a", b"b"], partition=0)
    assert payloads(client) == []
    sink_commit.commit(client, [late, early], options())
    assert payloads(client) == [b"a", b"b", b"c", b"d"]


def test_what_lost_attempts_stored_is_never_published(client):
    doing = work(0)
    task(client, doing, [b"of an attempt that failed"], partition=0)
    won = task(client, doing, [b"a"], partition=0)
    task(client, doing, [b"of a slow twin"], partition=0)
    sink_commit.commit(client, [won], options())
    assert payloads(client) == [b"a"]


def test_rows_for_several_topics_are_published_together(client):
    client.topics.create("refunds")
    rows = pa.record_batch(
        [pa.array([TOPIC, "refunds", TOPIC]), pa.array([b"1", b"2", b"3"])], names=["topic", "value"]
    )
    stored = task(client, work(0), rows, columns=SinkColumns(("value",), has_topic=True))
    assert stored.rows == 3
    sink_commit.commit(client, [stored], options())
    assert (payloads(client), payloads(client, "refunds")) == ([b"1", b"3"], [b"2"])


def test_a_batch_that_was_committed_is_read_to_its_end_and_not_written_again(client):
    batch(client, work(0), [[b"a"], [b"b"]])
    seen = []

    def rows():
        for value in (b"a", b"b", b"c"):
            seen.append(value)
            yield pa.record_batch([pa.array([value])], names=["value"])

    replayed = work(0, run="run-2")

    def join():
        joined = sink_commit.named(client, replayed, options().timeout_ms)
        return None if joined.committed_before else Segment(joined.id, joined.segment())

    def store(topic, body, write_pointer):
        raise AssertionError("nothing is stored")

    message = SegmentWriter(SinkColumns(("value",)), join, store, request_bytes_max=1).write(rows(), 0, replayed)
    assert message.committed_before
    assert seen == [b"a", b"b", b"c"]  # a stateful operator before the sink needs that
    sink_commit.commit(client, [message], options())
    assert payloads(client) == [b"a", b"b"]
    assert transactions_open(client) == 0


def test_versions_below_the_newest_are_done_too(client):
    batch(client, work(3), [[b"a"]])
    assert task(client, work(2, run="run-2"), [b"of before"]).committed_before
    batch(client, work(4, run="run-2"), [[b"b"]])
    assert payloads(client) == [b"a", b"b"]


def test_a_batch_without_rows_commits_nothing(client):
    message = task(client, work(0), [])
    assert message.segment is None
    sink_commit.commit(client, [message], options())
    assert client.sessions.list() == []
    assert payloads(client) == []


def test_a_watermark_is_told_behind_the_rows_and_also_without_any(client):
    columns = SinkColumns(("value",), has_watermark=True, has_control=True)
    given = options(emitWatermark="true", taskCount="1")

    def rows(value, watermark_ms, control):
        time = pa.array([watermark_ms * 1_000], pa.timestamp("us", tz="UTC"))
        return pa.record_batch(
            [pa.array([value], pa.binary()), time, pa.array([control], pa.utf8())],
            names=["value", "watermark", "control"],
        )

    messages = [
        task(client, work(0), rows(b"a", 5_000, None), 0, columns),
        task(client, work(0), rows(None, 7_000, "heartbeat"), 1, columns),
    ]
    sink_commit.commit(client, messages, given)
    assert payloads(client) == [b"a"]
    assert client.topic(TOPIC).markers().watermark_ms == 7_000
    alone = task(client, work(1), rows(None, 9_000, "heartbeat"), 0, columns)
    assert alone.segment is None
    sink_commit.commit(client, [alone], given)
    sink_commit.commit(client, [alone], given)
    state = client.topic(TOPIC).markers()
    assert (state.watermark_ms, [told.task for told in state.tasks]) == (9_000, ["etl"])
    assert transactions_open(client) == 0


READ = SinkColumns(("value",), has_control=True, has_id=True)


def read_rows(*rows: tuple[bytes | None, bytes | None, str | None]) -> pa.RecordBatch:
    """Rows of values, ids and what they are, as a source gives them."""
    values, ids, controls = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(values, pa.binary()), pa.array(ids, pa.binary()), pa.array(controls, pa.utf8())],
        names=["value", "id", "control"],
    )


@pytest.fixture
def clicks(client):
    """A topic that a query reads, and the ids of its messages."""
    client.topics.create("clicks")
    client.topic("clicks").publish([b"a", b"b", b"c", b"d"])
    return [message.id for message in client.topic("clicks").read()]


def lag(client) -> int:
    return client.topic("clicks").group("billing").get().figures.lag_messages


def test_a_commit_tells_a_group_of_the_querys_own_how_far_it_has_read(client, clicks):
    given = options(group="billing", groupTopic="clicks")
    make_group({"server": "http://127.0.0.1:1", "topic": TOPIC})  # without the option: nothing
    client.topic("clicks").group("billing").create(mode="tracked")
    messages = [  # tasks of which the later partition has the earlier messages
        task(client, work(0), read_rows((b"A", clicks[2], None), (None, None, "heartbeat")), 0, READ),
        task(client, work(0), read_rows((b"B", clicks[0], None)), 1, READ),
    ]
    assert lag(client) == 4
    sink_commit.commit(client, messages, given)
    assert (payloads(client), lag(client)) == ([b"A", b"B"], 1)
    sink_commit.commit(client, [task(client, work(0, run="run-2"), read_rows((b"A", clicks[2], None)), 0, READ)], given)
    assert (payloads(client), lag(client)) == ([b"A", b"B"], 1)
    late = task(client, work(1), read_rows((b"D", clicks[3], None)), 0, READ)
    sink_commit.abort(client, [late])
    assert lag(client) == 1


def test_what_was_read_is_acknowledged_also_where_nothing_of_it_is_published(client, clicks):
    client.topic("clicks").group("billing").create(mode="tracked")
    message = task(client, work(0), read_rows((None, clicks[1], "heartbeat")), 0, READ)
    assert message.segment is None
    for _ in range(2):
        sink_commit.commit(client, [message], options(group="billing", groupTopic="clicks"))
    assert (lag(client), transactions_open(client)) == (2, 0)
    nothing = task(client, work(1), read_rows((None, None, "heartbeat")), 0, READ)
    sink_commit.commit(client, [nothing], options(group="billing", groupTopic="clicks"))
    assert lag(client) == 2


def test_a_group_that_is_gone_keeps_its_batch_from_being_published(client, clicks):
    given = options(group="billing", groupTopic="clicks")
    message = task(client, work(0), read_rows((b"A", clicks[0], None)), 0, READ)
    with pytest.raises(GroupNotFoundError):
        sink_commit.commit(client, [message], given)
    sink_commit.abort(client, [message])
    assert payloads(client) == []


def test_ids_that_are_none_are_refused_by_their_column(client):
    with pytest.raises(InputError, match="column id has values that are no ids"):
        task(client, work(0), read_rows((b"A", b"17", None)), 0, READ)


def test_a_group_is_made_tracked_and_one_that_has_members_is_refused(client, clicks, monkeypatch):
    monkeypatch.setattr(writers, "client_of", lambda _server: client)
    given = {"server": "http://127.0.0.1:1", "topic": TOPIC, "group": "billing", "groupTopic": "clicks"}
    for _ in range(2):
        make_group(given)
    assert client.topic("clicks").group("billing").get().options.mode == "tracked"
    client.topic("clicks").group("workers").create(mode="keyed")
    with pytest.raises(InputError, match="is of mode keyed"):
        make_group({**given, "group": "workers"})
    with pytest.raises(TopicNotFoundError):
        make_group({**given, "groupTopic": "nowhere"})


def test_a_zombie_stores_and_commits_nothing_once_a_newer_run_has_begun(client):
    batch(client, work(0), [[b"a"]])
    zombie = task(client, work(1, run="run-1"), [b"of the zombie"])
    newer = task(client, work(1, run="run-2"), [b"b"])
    with pytest.raises(SessionFencedError, match="run-2"):
        task(client, work(1, run="run-1"), [b"of the zombie"])
    with pytest.raises(SessionFencedError, match="run-2"):
        sink_commit.commit(client, [zombie], options())
    sink_commit.abort(client, [zombie])
    sink_commit.commit(client, [newer], options())
    assert payloads(client) == [b"a", b"b"]


def test_the_batch_numbers_of_a_query_with_another_checkpoint_are_refused(client):
    batch(client, work(0), [[b"a"]])
    with pytest.raises(SessionForeignError, match="query q") as refused:
        task(client, work(0, run="run-2", counter_owner="query of a new checkpoint"), [b"a"])
    assert refused.value.hint
    with pytest.raises(SessionForeignError):
        task(client, work(1, run="run-2", counter_owner="batch"), [b"a"])


class LostAnswer:
    """A client whose commit happens, and whose answer is lost; later calls work, or do not."""

    def __init__(self, client, then_reachable: bool) -> None:
        self._client = client
        self._reachable = then_reachable
        self.transactions = self

    def commit_segments(self, *given):
        self._client.transactions.commit_segments(*given)
        raise UnknownOutcomeError("the answer was lost")

    def get(self, transaction):
        if not self._reachable:
            raise UnavailableError("nobody is there")
        return self._client.transactions.get(transaction)

    def abort(self, transaction):
        return self._client.transactions.abort(transaction)


def test_a_commit_whose_answer_is_lost_is_asked_for(client):
    message = task(client, work(0), [b"a"])
    sink_commit.commit(LostAnswer(client, then_reachable=True), [message], options())
    assert payloads(client) == [b"a"]


def test_an_abort_after_a_commit_that_nobody_heard_of_undoes_nothing(client, caplog):
    lost = LostAnswer(client, then_reachable=False)
    message = task(client, work(0), [b"a"])
    with pytest.raises(UnavailableError):
        sink_commit.commit(lost, [message], options())
    sink_commit.abort(lost, [message])
    assert caplog.text == ""  # as it should be: nothing to warn of
    batch(client, work(0, run="run-2"), [[b"a"]])
    assert payloads(client) == [b"a"]


def test_a_lost_commit_that_did_not_happen_stays_an_error():
    unheard = SimpleNamespace(
        commit_segments=lambda *given: (_ for _ in ()).throw(UnknownOutcomeError("lost")),
        get=lambda transaction: SimpleNamespace(state="OPEN"),
    )
    with pytest.raises(UnknownOutcomeError):
        sink_commit.commit_segments(SimpleNamespace(transactions=unheard), "17", [1], [])


def test_an_abort_ends_what_was_begun_and_never_fails(client):
    message = task(client, work(0), [b"a"])
    assert transactions_open(client) == 1
    sink_commit.abort(client, [message])
    sink_commit.abort(client, [message])
    assert transactions_open(client) == 0
    assert payloads(client) == []
    sink_commit.abort(client, [SegmentStored(0, work(0), Segment("0" * 32, 1))])  # which nobody knows
    gone = SimpleNamespace(abort=lambda transaction: (_ for _ in ()).throw(UnavailableError("nobody is there")))
    sink_commit.abort(SimpleNamespace(transactions=gone), [message])


def test_after_all_tasks_failed_the_next_run_writes_the_batch(client):
    task(client, work(0), [b"half of the ba"])  # a task that stored, and died
    sink_commit.abort(client, sink_commit.stored([None, None]))
    batch(client, work(0, run="run-2"), [[b"a"]])
    assert payloads(client) == [b"a"]
    assert transactions_open(client) == 0


def test_rows_under_two_transactions_are_no_whole(client):
    first = task(client, work(0), [b"a"], partition=0)
    client.transactions.abort(first.segment.transaction)  # as its time-out does
    second = task(client, work(0), [b"b"], partition=1)
    with pytest.raises(TransactionEndedError, match="under 2 transactions") as refused:
        sink_commit.commit(client, [first, second], options())
    assert "txnTimeout" in refused.value.hint
    assert payloads(client) == []


def test_a_task_tells_whose_work_it_does_by_the_properties_of_its_job():
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7", "spark.jobGroup.id": "r"}
    assert stream_work("etl", properties.get) == work(7, run="q/r", counter_owner="query q")
    assert batch_work("etl", 9, "mine", properties.get) == work(
        9, run="q/r", counter_owner="query q"
    )  # in foreachBatch
    assert batch_work("etl", 9, "mine", {}.get) == work(9, run="mine", counter_owner="batch")
    assert batch_work("etl", 9, "mine", {"spark.jobGroup.id": "a user's"}.get) == work(
        9, run="mine", counter_owner="batch"
    )
    with pytest.raises(basalt.errors.InputError, match=r"streaming\.sql\.batchId is not set"):
        stream_work("etl", {**properties, "streaming.sql.batchId": None}.get)
