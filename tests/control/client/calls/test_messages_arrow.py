"""Arrow through both clients: what each call sends, what it makes of the answer, and the way there and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import PublishResponse
from basalt.api.codecs import json_bodies
from basalt.client.calls import messages
from basalt.client.plans import Answer, Effect
from basalt.client.producers import AutomaticProducers
from basalt.errors import ConflictError, GenerationError, InputError, MalformedBodyError

pa = pytest.importorskip("pyarrow")

ID = bytes(range(20))
HERE = "/v1/namespaces/shop/topics/orders"
PLACED = PublishResponse(42, 1, 2, 3, 4)


def written(**columns: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def opened(page: messages.ArrowPage) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.ipc.open_stream(page.body).read_all().to_pylist()
    return rows


def test_a_range_is_asked_for_with_what_was_given_and_nothing_else(topic_scope, play):
    (call,) = play(messages.read_range(topic_scope, None, ID)).calls
    assert (call.method, call.path, call.body, call.effect) == ("GET", f"{HERE}/range", b"", Effect.NONE)
    assert dict(call.query) == {"through": ID.hex(), "isolation": "committed"}
    assert call.accept == messages.ARROW
    (call,) = play(
        messages.read_range(
            topic_scope, ID, ID, columns=["id", "value"], bytes_max=7, isolation="uncommitted", generation=3
        )
    ).calls
    assert dict(call.query) == {
        "after": ID.hex(), "through": ID.hex(), "columns": "id,value", "bytesMax": "7", "isolation": "uncommitted",
        "generation": "3",
    }  # fmt: skip


def test_an_answer_says_where_to_go_on_and_of_which_generation_it_is(topic_scope, play):
    (call,) = play(messages.read_range(topic_scope, None, ID)).calls
    headers = {"content-type": f"{messages.ARROW}; x=y", "basalt-generation": "3"}
    assert call.parse(Answer(200, headers, b"body")) == messages.ArrowPage(b"body", None, 3)
    assert call.parse(Answer(200, {**headers, "basalt-next": ID.hex()}, b"")).next_id == ID
    with pytest.raises(ValueError, match="no Arrow"):
        call.parse(Answer(200, {**headers, "content-type": "text/html"}, b""))


def batches(*sizes: int) -> bytes:
    sink = pa.BufferOutputStream()
    schema = pa.schema([("value", pa.binary()), ("key", pa.string())])
    with pa.ipc.new_stream(sink, schema) as writer:
        for size in sizes:
            values = [b"v" * each for each in range(size)]
            writer.write_batch(pa.record_batch([values, [None] * size], schema=schema))
    return bytes(sink.getvalue().to_pybytes())


@given(st.lists(st.integers(0, 20), max_size=6))
def test_rows_are_counted_as_the_library_counts_them(sizes):
    assert messages._arrow_rows(batches(*sizes)) == sum(sizes)


@given(st.data())
def test_what_is_no_whole_stream_is_not_counted(data):
    whole = batches(3, 5)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert messages._arrow_rows(whole[:cut]) is None
    assert messages._arrow_rows(whole + b"x") is None
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    messages._arrow_rows(bytes(changed))  # it comes to an end


def test_rows_are_numbered_like_other_messages(topic_scope, play):
    scope = replace(topic_scope, producers=AutomaticProducers(new_name=lambda: "p"))
    calls = [play(messages.publish_arrow(scope, batches(*sizes))).calls[0] for sizes in ((2, 3), (1,))]
    assert [call.headers["basalt-sequence"] for call in calls] == ["0", "5"]
    assert {call.effect for call in calls} == {Effect.NUMBERED}
    for body, pointer in ((batches(1), 42), (b"no stream", None), (batches(), None)):
        (call,) = play(messages.publish_arrow(scope, body, write_pointer=pointer)).calls
        assert (call.headers, call.effect) == ({}, Effect.ONCE)


def test_rows_are_sent_once_and_never_again(topic_scope, play):
    (publish,) = play(messages.publish_arrow(topic_scope, b"rows")).calls
    (under,) = play(messages.publish_arrow(topic_scope, memoryview(b"rows"), write_pointer=42)).calls
    (store,) = play(messages.store_arrow(topic_scope, b"rows", 42)).calls
    assert [call.path for call in (publish, under, store)] == [f"{HERE}/publish", f"{HERE}/publish", f"{HERE}/store"]
    assert [dict(call.query) for call in (publish, under, store)] == [
        {}, {"transactionWritePointer": "42"}, {"transactionWritePointer": "42"},
    ]  # fmt: skip
    for call in (publish, under, store):
        assert (call.method, call.body, call.content_type) == ("POST", b"rows", messages.ARROW)
        assert call.effect is Effect.ONCE
        assert call.lost_hint
    assert publish.parse(Answer(200, {}, b"")) is None
    assert under.parse(Answer(200, {}, json_bodies.encode_publish_response(PLACED))) == PLACED


def test_rows_go_in_and_come_out_the_same(side, connected):
    topic = connected.topic("orders")
    side.do(topic.publish_arrow(written(value=["a", "b"], key=["k", None])))
    transaction = side.do(connected.transactions.begin())
    side.do(topic.store_arrow(written(value=["c", "d"]), transaction.write_pointer))
    side.do(connected.transactions.commit(transaction))
    end = side.do(topic.stable_end())
    page = side.do(topic.range(None, end.id, generation=end.generation))
    assert page.next_id is None
    rows = opened(page)
    assert [(row["value"], row["key"]) for row in rows] == [(b"a", b"k"), (b"b", None), (b"c", None), (b"d", None)]
    assert rows[0]["tx_id"] is None
    assert rows[3]["tx_id"] == transaction.id
    first = side.do(topic.range(None, end.id, columns=["value"], bytes_max=3))
    assert opened(first) == [{"value": b"a"}, {"value": b"b"}, {"value": b"c"}]
    assert first.next_id is not None
    rest = side.do(topic.range(first.next_id, end.id, columns=["value"], bytes_max=3))
    assert (opened(rest), rest.next_id) == ([{"value": b"d"}], None)


def test_what_the_server_refuses_is_raised_as_what_it_is(side, connected):
    topic = connected.topic("orders")
    side.do(topic.publish("a"))
    end = side.do(topic.stable_end())
    with pytest.raises(ConflictError, match="stable end"):
        side.do(topic.range(None, b"\xff" * 20))
    with pytest.raises(GenerationError):
        side.do(topic.range(None, end.id, generation=9))
    with pytest.raises(InputError, match="'valu'"):
        side.do(topic.range(None, end.id, columns=["valu"]))
    with pytest.raises(MalformedBodyError):
        side.do(topic.publish_arrow(b"no stream"))
