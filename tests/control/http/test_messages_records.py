"""Richer records over HTTP: in JSON, JSON lines and Avro, and as plain messages."""

from __future__ import annotations

import json

import pytest

from basalt.api.bodies.messages import ConsumeRequest, RecordIn, RecordsRequest
from basalt.api.codecs import avro, batches
from basalt.client.calls.pages import Page
from basalt.http.routes import polls as routes

AVRO = "avro/binary"
LINES = "application/x-ndjson"
BATCHES = "application/vnd.basalt.batches"
CARRIED = [  # key, headers, event time, TTL
    (b"k", (("trace", b"\xff"), ("trace", b"")), 5, 600_000),
    (None, (), None, None),
    (b"", (), -1, None),
    (None, (("\u00e9", b"v"),), None, None),
]
RICH = {
    "payload": "paid",
    "key": "7",
    "headers": [{"name": "trace", "value": "t1"}],
    "eventTimeMs": 1_699_999_999_000,
    "ttlMs": 60_000,
}


def test_records_keep_all_that_was_said_of_them(client):
    path = client.topic()
    assert client.call("POST", f"{path}/records", {"records": [RICH, {"payloadBase64": "AP8="}]}).body == b""
    page = client.call("GET", f"{path}/records").json()
    first, second = page["records"]
    assert {name: first[name] for name in RICH} == RICH
    assert second["payloadBase64"] == "AP8="
    assert (first["kind"], page["heldBy"]) == ("user", None)
    assert page["next"] >= second["id"] > first["id"]


def test_records_are_plain_messages_to_the_plain_calls_and_the_other_way_round(client):
    path = client.topic()
    client.call("POST", f"{path}/records", {"records": [RICH]})
    client.publish(path, "plain")
    assert client.payloads(path) == ["paid", "plain"]
    assert [record["payload"] for record in client.call("GET", f"{path}/records").json()["records"]] == [
        "paid",
        "plain",
    ]


@pytest.mark.parametrize("content_type", [LINES, "application/jsonl", "Application/X-NDJSON; charset=utf-8"])
def test_records_may_come_as_json_lines(client, content_type):
    path = client.topic()
    body = json.dumps(RICH).encode() + b'\n{"payload": "second"}\n'
    assert client.call("POST", f"{path}/records", body, content_type).status == 200
    assert client.payloads(path) == ["paid", "second"]


def test_records_may_be_read_as_json_lines(client):
    path = client.topic()
    client.publish(path, "a", "b")
    reply = client.call("GET", f"{path}/records", accept=LINES)
    assert reply.header("content-type") == LINES
    assert [json.loads(line)["payload"] for line in reply.body.splitlines()] == ["a", "b"]
    assert reply.header("basalt-next")


def test_records_travel_in_avro_both_ways(client):
    path = client.topic()
    body = avro.encode_records_request(RecordsRequest(None, [RecordIn(b"\x00\xff", b"key", (("h", b"v"),), 5, 60_000)]))
    assert client.call("POST", f"{path}/records", body, AVRO).status == 200
    reply = client.call("GET", f"{path}/records", accept=f"text/html, {AVRO};q=0.9, application/json;q=0.5")
    assert reply.header("content-type") == AVRO
    (record,) = avro.decode_records(reply.body)
    assert (record.payload, record.key, record.headers, record.event_time_ms, record.ttl_ms) == (
        b"\x00\xff",
        b"key",
        (("h", b"v"),),
        5,
        60_000,
    )


@pytest.mark.parametrize("accept", ["*/*", "text/html", "", ";;,", "application/*", "application/json;q=1"])
def test_records_are_json_where_accept_names_nothing_better(client, accept):
    reply = client.call("GET", f"{client.topic()}/records", accept=accept)
    assert reply.json() == {"records": [], "next": None, "heldBy": None}


def test_a_record_ends_with_its_own_ttl(client):
    path = client.topic()
    client.call("POST", f"{path}/records", {"records": [RICH, {"payload": "stays"}]})
    client.clock.advance(60_000)
    assert client.payloads(path) == ["stays"]


def test_records_under_a_writer_answer_their_range_and_name_it(client):
    path = client.topic()
    begun = client.begin()
    reply = client.call(
        "POST", f"{path}/records", {"records": [RICH], "transactionWritePointer": begun["writePointer"]}
    )
    assert reply.json()["transactionWritePointer"] == {"long": begun["writePointer"]}
    lines = client.call(
        "POST", f"{path}/records?transactionWritePointer={begun['writePointer']}", b'{"payload": "two"}', LINES
    )
    assert lines.json()["transactionWritePointer"] == {"long": begun["writePointer"]}
    page = client.call("GET", f"{path}/records?isolation=uncommitted").json()["records"]
    assert [record["transactionWritePointer"] for record in page] == [begun["writePointer"]] * 2
    for query in ("", "?isolation=committed"):
        page = client.call("GET", f"{path}/records{query}").json()
        assert (page["records"], page["heldBy"]) == ([], begun["id"])


def test_a_writer_is_named_in_one_place_only(client):
    path = client.topic()
    reply = client.call("POST", f"{path}/records?transactionWritePointer=5", {"records": [{"payload": "a"}]})
    assert (reply.status, reply.json()["field"]) == (400, "transactionWritePointer")
    assert client.payloads(path) == []


def test_records_are_read_from_a_position_in_pages(client):
    path = client.topic()
    client.publish(path, "a", "b")
    time_ms = client.clock.now_ms()
    client.clock.advance(10)
    client.publish(path, "c", "d")

    def read(query):
        reply = client.call("GET", f"{path}/records?{query}")
        assert reply.status == 200, reply.body
        return [record["payload"] for record in reply.json()["records"]], reply

    assert read("from=start&limit=3")[0] == ["a", "b", "c"]
    first = read("limit=1")[1].json()
    assert read(f"from={first['next']}&inclusive=false&limit=2")[0] == ["b", "c"]
    assert read(f"from={first['records'][0]['id']}")[0] == ["a", "b", "c", "d"]
    assert read(f"from=@{time_ms}&inclusive=false")[0] == ["c", "d"]
    assert read("from=-5ms")[0] == ["c", "d"]
    assert read("from=now")[0] == ["c", "d"]
    assert read("from=end")[0] == []
    assert read("from=%2B1h")[0] == []


def test_from_the_end_only_what_comes_later_is_read(client):
    path = client.topic()
    client.publish(path, "before")
    at = client.call("GET", f"{path}/records?from=end").json()["next"]
    client.publish(path, "after")
    page = client.call("GET", f"{path}/records?from={at}&inclusive=false").json()
    assert [record["payload"] for record in page["records"]] == ["after"]


@pytest.mark.parametrize(
    "query",
    [
        "from=",
        "from=yesterday",
        "from=1700000000000",
        "from=@-5",
        "from=-1",
        "from=00",
        "limit=0",
        "limit=x",
        "inclusive=yes",
    ],
)
def test_a_position_that_is_none_is_refused(client, query):
    reply = client.call("GET", f"{client.topic()}/records?{query}")
    assert (reply.status, reply.json()["field"]) == (400, query.split("=")[0])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"records": []}',
        b'{"records": [{}]}',
        b'{"records": [{"payload": 5}]}',
        b'{"records": [{"payload": "a", "payloadBase64": "YQ=="}]}',
        b'{"records": [{"payloadBase64": "%%"}]}',
        b'{"records": [{"payload": "a", "ttlMs": 0}]}',
        b'{"records": [{"payload": "a", "ttlMs": -1}]}',
        b'{"records": [{"payload": "a", "headers": {"a": "b"}}]}',
        b'{"records": [{"payload": "a", "headers": [{"value": "b"}]}]}',
        b'{"records": [{"payload": "a", "id": "x"}]}',
        b'{"records": [{"payload": "\\ud800"}]}',
        b'{"payload": "a"}',
    ],
)
def test_malformed_records_are_refused(client, body):
    path = client.topic()
    reply = client.call("POST", f"{path}/records", body, "application/json")
    assert (reply.status, reply.code) == (400, "malformed_body"), reply.body
    assert client.payloads(path) == []


def test_one_bad_line_refuses_all_lines(client):
    path = client.topic()
    reply = client.call("POST", f"{path}/records", b'{"payload": "a"}\n{"payload"\n', LINES)
    assert (reply.status, reply.code) == (400, "malformed_body")
    assert client.payloads(path) == []


def test_a_long_page_of_records_comes_in_parts(client):
    path = client.topic()
    client.publish(path, *[f"record {number}" for number in range(2_500)])
    for accept in ("application/json", LINES, AVRO):
        reply = client.call("GET", f"{path}/records", accept=accept)
        assert len(reply.parts) > 2
        if accept == AVRO:
            assert len(avro.decode_records(reply.body)) == 2_500
        elif accept == LINES:
            assert len(reply.body.splitlines()) == 2_500
        else:
            assert [record["payload"] for record in reply.json()["records"]][-1] == "record 2499"


def test_records_come_in_parts_and_say_the_same(client, monkeypatch):
    path = client.topic()
    client.publish(path, "a", "b", "c", "d", "e")
    whole = client.call("GET", f"{path}/records")
    monkeypatch.setattr(routes, "PART_RECORDS", 2)
    parted = client.call("GET", f"{path}/records")
    assert (len(parted.parts), parted.body) == (len(whole.parts) + 2, whole.body)


def test_a_poll_in_json_has_what_a_message_carries(client):
    path = client.topic()
    client.call(
        "POST", f"{path}/records", {"records": [RICH, {"payload": "bare"}, {"payload": "", "keyBase64": "/w=="}]}
    )
    client.publish(path, "plain")
    rich, bare, binary, plain = client.poll(path).json()
    assert {name: rich[name] for name in RICH} == RICH
    assert set(bare) == set(plain) == {"id", "payload"}
    assert {name: binary[name] for name in binary if name != "id"} == {"payload": "", "key": "\u00ff"}


@pytest.mark.parametrize("media_type", [AVRO, "application/json"])
def test_a_poll_answers_whole_records_where_it_is_asked_to(client, media_type):
    path = client.topic()
    client.call("POST", f"{path}/records", {"records": [RICH]})
    ask = avro.encode_consume_request(ConsumeRequest()) if media_type == AVRO else b"{}"
    reply = client.call("POST", f"{path}/poll?records=true", ask, media_type)
    assert reply.header("content-type") == media_type
    assert reply.body == client.call("GET", f"{path}/records", accept=media_type).body
    assert reply.header("basalt-next") is not None


@pytest.mark.parametrize("rows", [[1], [20], [1, 1, 1], [3, 20, 1, 20, 2]])
def test_a_poll_in_batches_has_what_each_message_carries(client, rows):
    path = client.topic()
    expected, number = [], 0
    for count in rows:
        sent = []
        for _ in range(count):
            number += 1
            sent.append(RecordIn(b"%d" % number, *CARRIED[number % len(CARRIED)]))
        client.call("POST", f"{path}/records", avro.encode_records_request(RecordsRequest(None, sent)), AVRO)
        client.clock.advance(1)
        client.publish(path, "plain")
        client.clock.advance(1)
        expected += [(record.payload, *CARRIED[int(record.payload) % len(CARRIED)]) for record in sent]
        expected.append((b"plain", None, (), None, None))

    def read(**wanted):
        reply = client.call(
            "POST", f"{path}/poll", avro.encode_consume_request(ConsumeRequest(**wanted)), AVRO, accept=BATCHES
        )
        return list(Page(reply.body))

    def seen(messages):
        return [(each.payload, each.key, each.headers, each.event_time_ms, each.ttl_ms) for each in messages]

    whole = read()
    assert seen(whole) == expected
    for at, message in enumerate(whole):  # from the midst of a row, too
        assert seen(read(start_from=message.id, limit=5)) == expected[at : at + 5]


def test_a_poll_of_plain_messages_costs_no_byte_more(client):
    path = client.topic()
    client.publish(path, "a", "b")
    ask = avro.encode_consume_request(ConsumeRequest())
    body = client.call("POST", f"{path}/poll", ask, AVRO, accept=BATCHES).body
    assert len(body) == len(batches.START) + 9 + 2 * (20 + 4 + 1) + len(
        batches.END
    )  # a list: head, ids, lengths, payloads


@pytest.mark.parametrize("media_type", [AVRO, "application/json", LINES])
def test_records_are_stored_aside_for_a_commit(client, media_type):
    path = client.topic()
    begun = client.begin()
    pointer = begun["writePointer"]
    sent = RecordIn(b"paid", b"7", (("trace", b"t1"),), 1_699_999_999_000, 60_000)
    query, body = "", avro.encode_records_request(RecordsRequest(pointer, [sent]))
    if media_type != AVRO:
        body = json.dumps({"records": [RICH], "transactionWritePointer": pointer}).encode()
    if media_type == LINES:
        query, body = f"?transactionWritePointer={pointer}", json.dumps(RICH).encode()
    assert client.call("POST", f"{path}/records/store{query}", body, media_type).status == 200
    assert client.payloads(path) == []
    assert client.call("POST", f"/v1/transactions/{begun['id']}/commit").status == 200
    (record,) = client.call("GET", f"{path}/records").json()["records"]
    assert {name: record[name] for name in RICH} == RICH


def test_records_are_stored_under_a_write_pointer_only(client):
    reply = client.call("POST", f"{client.topic()}/records/store", {"records": [RICH]})
    assert (reply.status, reply.json()["field"]) == (400, "transactionWritePointer")


def test_a_work_may_publish_records(client):
    path = client.topic()
    namespace, topic = path.split("/")[3], path.split("/")[5]
    entry = {"namespace": namespace, "topic": topic}
    work = {"publish": [{**entry, "messages": ["a"]}, {**entry, "records": [RICH, {"payload": "caf\u00e9"}]}]}
    assert client.call("POST", "/v1/transactions", {"work": work}).status == 200
    begun = client.begin()
    assert client.call("POST", f"/v1/transactions/{begun['id']}/commit", work).status == 200
    records = client.call("GET", f"{path}/records").json()["records"]
    assert [record["payload"] for record in records] == ["a", "paid", "caf\u00e9"] * 2
    assert [record.get("key") for record in records] == [None, "7", None] * 2
    both = {"work": {"publish": [{**entry, "messages": ["a"], "records": [RICH]}]}}
    reply = client.call("POST", "/v1/transactions", both)
    assert (reply.status, reply.json()["field"]) == (400, "publish[0].messages")
