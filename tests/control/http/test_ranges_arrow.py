"""Ranges as Arrow, and Arrow bodies of publish and store, through the whole application."""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from basalt.api.codecs.arrow import library
from basalt.http.routes import ranges as routes
from basalt.messaging.log.topic_log import TopicLog
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.http.conftest import Client, Reply

pa = pytest.importorskip("pyarrow")

ARROW = "application/vnd.apache.arrow.stream"
HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def rows(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    assert reply.header("content-type") == ARROW
    with pa.ipc.open_stream(reply.body) as batches:
        table = batches.read_all()
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def values(reply: Reply) -> list[str]:
    return [row["value"].decode() for row in rows(reply)]


def written(**columns: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def end(client: Client, path: str, isolation: str = "committed") -> str:
    reply = client.call("GET", f"{path}/stable-end?isolation={isolation}")
    assert reply.status == 200, reply.body
    found: str = reply.json()["id"]
    return found


def later(client: Client, ms: int) -> None:
    assert isinstance(client.clock, ManualClock)
    client.clock.advance(ms)


def read(client: Client, path: str, query: str = "", *, through: str | None = None) -> Reply:
    through = end(client, path) if through is None else through
    return client.call("GET", f"{path}/range?through={through}{query}")


def pages(client: Client, path: str, query: str, through: str) -> Iterator[Reply]:
    """The answers that together are a range."""
    after = ""
    while True:
        reply = read(client, path, query + after, through=through)
        yield reply
        following = reply.header("basalt-next")
        if following is None:
            return
        after = f"&after={following}"


def test_a_range_is_what_was_published_in_order_with_what_is_known_of_each_row(client: Client) -> None:
    path = client.topic()
    client.publish(path, "a", "b")
    client.call(
        "POST",
        f"{path}/records",
        {"records": [{"payload": "c", "key": "k", "headers": [{"name": "h", "value": "v"}], "eventTimeMs": 5}]},
    )
    transaction = client.begin()
    client.publish(path, "d", pointer=transaction["writePointer"])
    client.call("POST", f"/v1/transactions/{transaction['id']}/commit")
    reply = read(client, path)
    found = rows(reply)
    assert [row["value"] for row in found] == [b"a", b"b", b"c", b"d"]
    assert [row["id"].hex() for row in found] == sorted(row["id"].hex() for row in found)
    polled = client.poll(path, "?isolation=committed").json()
    assert [row["id"] for row in found] == [message["id"].encode("latin-1") for message in polled]
    assert {row["topic"] for row in found} == {"orders"}
    assert {row["generation"] for row in found} == {1}
    assert [row["key"] for row in found] == [None, None, b"k", None]
    assert [row["headers"] for row in found] == [[], [], [{"name": "h", "value": b"v"}], []]
    assert [row["tx_id"] for row in found] == [None, None, None, transaction["id"]]
    assert [row["event_time"] and row["event_time"].timestamp() for row in found] == [None, None, 0.005, None]
    assert [row["sequence"] for row in found[:2]] == [0, 1]
    assert [int(row["publish_time"].timestamp() * 1_000) for row in found] == [
        int.from_bytes(row["id"][:8]) for row in found
    ]
    assert reply.header("basalt-generation") == "1"
    assert reply.header("basalt-next") is None


def test_a_range_begins_after_one_id_and_ends_with_another(client: Client) -> None:
    path = client.topic()
    client.publish(path, "a", "b", "c", "d")
    ids = [row["id"].hex() for row in rows(read(client, path))]
    for first in range(4):
        for last in range(first, 4):
            reply = read(client, path, f"&after={ids[first]}", through=ids[last])
            assert values(reply) == ["a", "b", "c", "d"][first + 1 : last + 1]
            assert reply.header("basalt-next") is None


def test_an_answer_is_cut_at_its_bytes_and_goes_on_where_it_ended(client: Client) -> None:
    path = client.topic()
    for length in (3, 1, 5, 30, 2, 0, 4):
        client.publish(path, "x" * length, "y")
    through = end(client, path)
    whole = rows(read(client, path))
    for bytes_max in (1, 2, 5, 31, 1_000):
        answers = list(pages(client, path, f"&bytesMax={bytes_max}", through))
        found = [rows(answer) for answer in answers]
        assert [row for some in found for row in some] == whole
        assert all(some for some in found)
        assert all(len(some) == 1 or sum(len(row["value"]) for row in some) <= bytes_max for some in found)
    assert len(list(pages(client, path, "", through))) == 1


def test_messages_without_bytes_are_cut_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("basalt.messaging.ranges.MESSAGES_MAX", 3)
    path = client.topic()
    client.publish(path, *[""] * 8)
    answers = list(pages(client, path, "", end(client, path)))
    assert [len(rows(answer)) for answer in answers] == [3, 3, 2]


def test_markers_are_no_rows_and_a_range_of_nothing_else_is_empty(client: Client) -> None:
    path = client.topic()
    marker = {"task": "map-0", "taskCount": 1, "kind": "watermark", "eventTimeMs": 5}
    assert client.call("POST", f"{path}/markers", marker).status == 200
    assert rows(read(client, path)) == []
    client.publish(path, "a")
    client.call("POST", f"{path}/markers", marker)
    assert values(read(client, path)) == ["a"]


def test_messages_that_expired_are_left_out(client: Client) -> None:
    path = client.topic(ttl=10)
    client.call("POST", f"{path}/records", {"records": [{"payload": "short", "ttlMs": 1_000}, {"payload": "long"}]})
    through = end(client, path)
    assert values(read(client, path, through=through)) == ["short", "long"]
    later(client, 1_000)
    assert values(read(client, path, through=through)) == ["long"]
    later(client, 9_000)
    assert values(read(client, path, through=through)) == []


def test_a_range_beyond_what_is_decided_is_refused_and_says_so(client: Client) -> None:
    path = client.topic()
    assert read(client, path, through="00" * 20).code == "conflict"
    client.publish(path, "a")
    stable = end(client, path)
    transaction = client.begin()
    client.publish(path, "open", pointer=transaction["writePointer"])
    client.publish(path, "behind")
    assert end(client, path) == stable
    for through in (end(client, path, "uncommitted"), "ff" * 20):
        reply = read(client, path, through=through)
        assert reply.code == "conflict"
        assert reply.json()["field"] == "through"
        assert "stable end" in reply.json()["detail"]
    assert values(read(client, path, through=stable)) == ["a"]
    everything = end(client, path, "uncommitted")
    assert values(read(client, path, "&isolation=uncommitted", through=everything)) == ["a", "open", "behind"]
    client.call("POST", f"/v1/transactions/{transaction['id']}/abort")
    assert values(read(client, path, through=everything)) == ["a", "behind"]


def test_only_the_columns_that_were_asked_for_come(client: Client) -> None:
    path = client.topic()
    client.publish(path, "a", "b")
    found = rows(read(client, path, "&columns=sequence,id"))
    assert [list(row) for row in found] == [["sequence", "id"]] * 2
    reply = read(client, path, "&columns=id,val")
    assert reply.code == "invalid_input"
    assert reply.json()["field"] == "columns"
    assert "value" in reply.json()["hint"]


def test_a_range_of_another_generation_is_refused(client: Client) -> None:
    path = client.topic()
    client.publish(path, "old")
    client.call("DELETE", path)
    client.topic()
    client.publish(path, "new")
    through = end(client, path)
    refused = read(client, path, "&generation=1", through=through)
    assert (refused.status, refused.code) == (409, "topic_generation")
    reply = read(client, path, "&generation=2", through=through)
    assert values(reply) == ["new"]
    assert reply.header("basalt-generation") == "2"


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_a_range_of_it_is_read_is_not_taken_for_a_short_one(
    client: Client, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    path = client.topic()
    client.publish(path, "old")
    through, ranges = end(client, path), client.services.ranges
    reading = ranges.read

    async def deleted_first(log: TopicLog, *asked: Any, **wishes: Any) -> Any:
        title = log.topic.title
        await client.services.topics.delete(title)
        if again:
            await client.services.topics.create(title, {})
        return await reading(log, *asked, **wishes)

    monkeypatch.setattr(ranges, "read", deleted_first)
    reply = read(client, path, through=through)
    assert (reply.status, reply.code) == ((409, "topic_generation") if again else (404, "topic_not_found"))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "through"),
        ("?through=12", "through"),
        ("?through=" + "0" * 40 + "&after=x", "after"),
        ("?through=" + "0" * 40 + "&after=" + "0" * 39 + "1", "through"),
        ("?through=" + "0" * 40 + "&bytesMax=0", "bytesMax"),
        ("?through=" + "0" * 40 + f"&bytesMax={(32 << 20) + 1}", "bytesMax"),
        ("?through=" + "0" * 40 + "&isolation=dirty", "isolation"),
        ("?through=" + "0" * 40 + "&colums=id", "colums"),
    ],
)
def test_a_range_that_cannot_be_meant_is_refused_by_its_parameter(client: Client, query: str, field: str) -> None:
    reply = client.call("GET", f"{client.topic()}/range{query}")
    assert (reply.status, reply.json()["field"]) == (400, field)


def test_a_range_may_ask_for_as_many_bytes_as_the_limit(client: Client) -> None:
    path = client.topic()
    client.publish(path, "a")
    through = end(client, path)
    assert values(client.call("GET", f"{path}/range?through={through}&bytesMax={routes.RANGE_BYTES_LIMIT}")) == ["a"]
    over = client.call("GET", f"{path}/range?through={through}&bytesMax={routes.RANGE_BYTES_LIMIT + 1}")
    assert (over.status, over.json()["field"]) == (400, "bytesMax")


def test_a_range_that_says_no_size_is_cut_at_the_usual_one(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "RANGE_BYTES_MAX", 2)
    path = client.topic()
    client.publish(path, "a", "b")
    through = end(client, path)
    whole = client.call("GET", f"{path}/range?through={through}")
    assert (values(whole), whole.header("basalt-next")) == (["a", "b"], None)
    client.publish(path, "c")
    through = end(client, path)
    cut = client.call("GET", f"{path}/range?through={through}")
    assert values(cut) == ["a", "b"]
    rest = client.call("GET", f"{path}/range?through={through}&after={cut.header('basalt-next')}")
    assert (values(rest), rest.header("basalt-next")) == (["c"], None)


def test_a_range_of_no_topic_is_not_found(client: Client) -> None:
    assert client.call("GET", f"/v1/namespaces/shop/topics/none/range?through={'0' * 40}").code == "topic_not_found"


def test_a_long_answer_comes_in_record_batches_and_while_it_is_made(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "BATCH_ROWS_MAX", 7)
    monkeypatch.setattr(routes, "BATCH_BYTES_MAX", 20)
    path = client.topic()
    for number in range(30):
        client.publish(path, *[str(number)] * (number % 4 + 1))
    client.publish(path, "x" * 50, "y" * 50)
    whole = read(client, path)
    assert whole.header("content-length") == str(len(whole.body))
    sizes = [
        (batch.num_rows, sum(map(len, batch.column("value").to_pylist()))) for batch in pa.ipc.open_stream(whole.body)
    ]
    assert all(count <= 7 and (size <= 20 or count == 1) for count, size in sizes)
    assert len(sizes) < 20
    monkeypatch.setattr(routes, "AT_ONCE_ROWS_MAX", 10)
    made_later = read(client, path)
    assert made_later.header("content-length") is None
    assert made_later.body == whole.body


def test_the_same_range_is_the_same_bytes_from_memory_from_the_store_and_after_a_restart(
    runner: asyncio.Runner, settings: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "BATCH_ROWS_MAX", 5)
    store = MemoryStore()
    uncached = replace(settings, messaging=replace(settings.messaging, cache_bytes_max=0, fetch_messages_max=3))
    bodies = []
    through = ""
    for given in (settings, uncached, settings):
        services = runner.run(open_services(given, None, store=store, clock=client.clock))
        server = Client(services, runner)
        path = "/v1/namespaces/shop/topics/orders"
        if not through:
            server.topic()
            for number in range(12):
                server.publish(path, *[f"{number}"] * (number % 5 + 1))
            transaction = server.begin()
            server.call(
                "POST",
                f"{path}/store?transactionWritePointer={transaction['writePointer']}",
                written(value=["s"] * 9, key=["k"] * 9),
                ARROW,
            )
            assert server.call("POST", f"/v1/transactions/{transaction['id']}/commit").status == 200
            through = end(server, path)
        bodies.append([answer.body for answer in pages(server, path, "&bytesMax=20", through)])
        runner.run(services.writer.stop())
    assert bodies[0] == bodies[1] == bodies[2]
    assert len(bodies[0]) > 1


def test_rows_stored_as_arrow_keep_what_they_carry_when_the_transaction_commits(client: Client) -> None:
    path = client.topic()
    body = written(
        value=pa.array([b"a", b"b"], pa.binary()),
        key=["k", None],
        headers=pa.array([[{"name": "h", "value": b"\xff"}], None], HEADERS),
        event_time=pa.array([7_000, None], pa.timestamp("us")),
        ttl_ms=pa.array([None, 60_000], pa.int64()),
    )
    transaction = client.begin()
    stored = client.call("POST", f"{path}/store?transactionWritePointer={transaction['writePointer']}", body, ARROW)
    assert (stored.status, stored.body) == (200, b"")
    assert client.payloads(path) == []
    assert client.call("POST", f"/v1/transactions/{transaction['id']}/commit").status == 200
    found = rows(read(client, path))
    assert [(row["value"], row["key"], row["headers"]) for row in found] == [
        (b"a", b"k", [{"name": "h", "value": b"\xff"}]), (b"b", None, []),
    ]  # fmt: skip
    records = client.call("GET", f"{path}/records").json()["records"]
    assert [(record["payload"], record.get("key"), record.get("eventTimeMs"), record.get("ttlMs")) for record in records] == [
        ("a", "k", 7, None), ("b", None, None, 60_000),
    ]  # fmt: skip
    later(client, 60_000)
    assert values(read(client, path)) == ["a"]


def test_rows_published_as_arrow_answer_as_a_publish_does(client: Client) -> None:
    path = client.topic()
    plain = client.call("POST", f"{path}/publish", written(value=["a", "b"]), ARROW)
    assert (plain.status, plain.body) == (200, b"")
    pointer = client.begin()["writePointer"]
    under = client.call("POST", f"{path}/publish?transactionWritePointer={pointer}", written(value=["c"]), ARROW)
    assert under.header("content-type") == "application/json"
    assert under.json()["startSequenceId"] == under.json()["endSequenceId"]
    assert client.payloads(path, "?isolation=uncommitted") == ["a", "b", "c"]
    assert client.call("POST", f"{path}/rollback", under.json()).status == 200


def test_a_body_of_arrow_may_be_coded_as_any_other(client: Client) -> None:
    path = client.topic()
    reply = client.call("POST", f"{path}/publish", gzip.compress(written(value=["a"])), ARROW, content_encoding="gzip")
    assert reply.status == 200
    assert client.payloads(path) == ["a"]


@pytest.mark.parametrize("call", ["publish", "store"])
def test_bad_arrow_changes_nothing(client: Client, call: str) -> None:
    path = client.topic()
    pointer = client.begin()["writePointer"]
    good = written(value=["a"])
    for body, field in (
        (b"", None), (good[:-8], None), (b"no arrow", None), (written(topic=["t"]), "topic"),
        (written(value=pa.array([], pa.string())), "value"),
    ):  # fmt: skip
        reply = client.call("POST", f"{path}/{call}?transactionWritePointer={pointer}", body, ARROW)
        assert (reply.status, reply.code) == (400, "malformed_body")
        assert reply.json().get("field") == field
    assert client.payloads(path) == []


def test_a_store_of_arrow_needs_a_pointer_and_other_bodies_have_room_for_theirs(client: Client) -> None:
    path = client.topic()
    reply = client.call("POST", f"{path}/store", written(value=["a"]), ARROW)
    assert (reply.status, reply.json()["field"]) == (400, "transactionWritePointer")
    pointer = client.begin()["writePointer"]
    body = {"transactionWritePointer": pointer, "messages": ["a"]}
    for call in ("publish", "store"):
        reply = client.call("POST", f"{path}/{call}?transactionWritePointer={pointer}", body)
        assert (reply.status, reply.json()["field"]) == (400, "transactionWritePointer")
    ended = client.call("POST", f"{path}/store?transactionWritePointer=5", written(value=["a"]), ARROW)
    assert ended.status in (400, 409)


def test_a_server_without_the_library_refuses_arrow_and_nothing_else(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = client.topic()
    client.publish(path, "a")
    through, body = end(client, path), written(value=["b"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    library.cache_clear()
    try:
        for reply in (read(client, path, through=through), client.call("POST", f"{path}/publish", body, ARROW)):
            assert (reply.status, reply.code) == (415, "unsupported_media_type")
            assert "basalt-mq[arrow]" in reply.json()["hint"]
        assert client.payloads(path) == ["a"]
    finally:
        monkeypatch.undo()
        library.cache_clear()
    assert values(read(client, path, through=through)) == ["a"]
