"""Bad input against a running server: each is a clear 4xx, changes nothing, and leaves the server as it was."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import zstandard

from basalt.api.bodies.messages import ConsumeRequest, PublishRequest, Work, WorkMarker, WorkPublish
from basalt.api.codecs import avro
from basalt.api.codecs.avro_values import encode_long
from tests.control.api.codecs import client_codecs
from tests.system.server_process import ANSWER_SECONDS_MAX, ORDERS, ServerProcess

pytestmark = pytest.mark.system

JSON, AVRO, LINES = "application/json", "avro/binary", "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
VECTORS = Path(__file__).parents[1] / "vectors" / "arrow-streams.tsv"
PUBLISH, STORE, POLL, ROLLBACK, RECORDS = (
    f"{ORDERS}/{call}" for call in ("publish", "store", "poll", "rollback", "records")
)
TRANSACTIONS = "/v1/transactions"
TABLES = "/v1/namespaces/shop/tables"
STOCK = f"{TABLES}/stock"
MARKERS = "/v1/namespaces/shop/topics/orders/markers"
BODY_BYTES_MAX = 10 * 1024 * 1024

GOOD_PUBLISH = avro.encode_publish_request(PublishRequest(None, [b"abc", b"de"]))
GOOD_POLL = avro.encode_consume_request(ConsumeRequest(bytes(20), True, 5, b"t"))
GOOD_WORK = avro.encode_work(Work(publish=[WorkPublish("shop", "orders", [b"a"])]))


class Bad(NamedTuple):
    """One bad request. `code` is what its problem document must say; None where any of 4xx will do.

    A body of megabytes is a function that makes it, for every process of a run collects these tests.
    """

    name: str
    method: str
    target: str
    content_type: str | None
    body: bytes | Callable[[], bytes]
    code: str | None
    headers: tuple[tuple[str, str], ...] = ()

    def content(self) -> bytes:
        """Its body, made now where it is large."""
        return self.body if isinstance(self.body, bytes) else self.body()


def publish_json(name: str, body: str | bytes, code: str = "malformed_body") -> Bad:
    return Bad(f"publish JSON: {name}", "POST", PUBLISH, JSON, body if isinstance(body, bytes) else body.encode(), code)


def publish_avro(name: str, body: bytes, code: str = "malformed_body") -> Bad:
    return Bad(f"publish Avro: {name}", "POST", PUBLISH, AVRO, body, code)


def poll_json(name: str, value: object, code: str = "malformed_body") -> Bad:
    return Bad(f"poll JSON: {name}", "POST", POLL, JSON, json.dumps(value).encode(), code)


def get(name: str, target: str, code: str) -> Bad:
    return Bad(f"path: {name}", "GET", target, None, b"", code)


def properties(name: str, body: str | bytes, code: str = "invalid_property") -> Bad:
    body = body if isinstance(body, bytes) else body.encode()
    return Bad(f"properties: {name}", "PUT", f"{ORDERS}/properties", JSON, body, code)


def json_requests() -> Iterator[Bad]:
    yield publish_json("empty", "")
    yield publish_json("not JSON", "nonsense")
    yield publish_json("single quotes", "{'messages': ['a']}")
    yield publish_json("wrong top type: list", "[]")
    yield publish_json("wrong top type: null", "null")
    yield publish_json("wrong top type: text", '"a"')
    yield publish_json("trailing text", '{"messages": ["a"]} {}')
    yield publish_json("trailing comma", '{"messages": ["a"],}')
    yield publish_json("a NUL behind it", b'{"messages": ["a"]}\0')
    yield publish_json("byte order mark", b'\xef\xbb\xbf{"messages": ["a"]}')
    yield publish_json("UTF-16", '{"messages": ["a"]}'.encode("utf-16"))
    yield publish_json("bad UTF-8", b'{"messages": ["\xff"]}')
    yield publish_json("nested a million deep", "[" * 1_000_000, "too_large")
    yield publish_json("nested ten thousand deep", '{"messages": ' + "[" * 10_000)
    yield publish_json("doubled field", '{"messages": ["a"], "messages": ["b"]}')
    yield publish_json("unknown field", '{"messages": ["a"], "colour": "red"}')
    yield publish_json("wrong case", '{"Messages": ["a"]}')
    yield publish_json("neither messages nor pointer", "{}")
    yield publish_json("no messages and null pointer", '{"messages": [], "transactionWritePointer": null}')
    yield publish_json("messages null", '{"messages": null}')
    yield publish_json("messages a text", '{"messages": "a"}')
    yield publish_json("message a number", '{"messages": [1]}')
    yield publish_json("message null", '{"messages": ["a", null]}')
    yield publish_json("code point above 255", '{"messages": ["\u0100"]}')
    yield publish_json("half a surrogate pair", '{"messages": ["\\ud800"]}')
    yield publish_json("pointer as text", '{"messages": ["a"], "transactionWritePointer": "5"}')
    yield publish_json("pointer a bool", '{"messages": ["a"], "transactionWritePointer": true}')
    yield publish_json("pointer a fraction", '{"messages": ["a"], "transactionWritePointer": 5.5}')
    yield publish_json("pointer NaN", '{"messages": ["a"], "transactionWritePointer": NaN}')
    yield publish_json("pointer beyond 64 bits", '{"messages": ["a"], "transactionWritePointer": 9223372036854775808}')
    yield publish_json("pointer of a million digits", '{"transactionWritePointer": ' + "9" * 1_000_000 + "}")
    yield publish_json("pointer negative", '{"messages": ["a"], "transactionWritePointer": -5}')
    yield publish_json("pointer over age", '{"messages": ["a"], "transactionWritePointer": 5}', "invalid_input")
    yield publish_json(
        "pointer nobody has", '{"messages": ["a"], "transactionWritePointer": 4999999999999000000}', "transaction_ended"
    )
    yield publish_json("pointer tagged wrong", '{"messages": ["a"], "transactionWritePointer": {"int": 5}}')
    yield publish_json("65,537 messages", json.dumps({"messages": [""] * 65_537}), "too_large")
    yield publish_json("a million values", '{"messages": [' + "1," * 1_000_000 + "1]}", "too_large")
    yield Bad("store without pointer", "POST", STORE, JSON, b'{"messages": ["a"]}', "malformed_body")
    yield Bad("store without messages", "POST", STORE, JSON, b'{"transactionWritePointer": 5}', "malformed_body")
    yield Bad("roll back of nothing", "POST", ROLLBACK, JSON, b"{}", "malformed_body")
    sequences = '"startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 65536'
    body = f'{{"transactionWritePointer": 5, {sequences}}}'.encode()
    yield Bad("roll back past the last sequence", "POST", ROLLBACK, JSON, body, "malformed_body")
    for limit in (0, -1, 2**31, 1.5, "5", True):
        yield poll_json(f"limit {limit!r}", {"limit": limit})
    for start in (
        -1,
        2**63,
        "short",
        "x" * 21,
        {"bytes": "x"},
        {"long": "1"},
        {"int": 1},
        [1],
        {"bytes": "x" * 20, "long": 1},
    ):
        yield poll_json(f"start {start!r}", {"startFrom": start})
    yield poll_json("inclusive null", {"inclusive": None})
    yield poll_json("inclusive a number", {"inclusive": 1})


def avro_requests() -> Iterator[Bad]:
    yield publish_avro("empty", b"")
    for cut in range(1, len(GOOD_PUBLISH)):
        yield publish_avro(f"cut at byte {cut}", GOOD_PUBLISH[:cut])
    yield publish_avro("trailing byte", GOOD_PUBLISH + b"\0")
    for index, branch in ((-1, b"\x01"), (2, b"\x04"), (7, b"\x0e"), (2**62, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")):
        yield publish_avro(f"union branch {index}", branch + GOOD_PUBLISH[1:])
    for name, varint in (("-1", b"\x01"), ("2^62", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")):
        yield publish_avro(f"count {name}", b"\x02" + varint + b"\x06abc\x00")
    for name, varint in (("-3", b"\x05"), ("2^40", b"\x80\x80\x80\x80\x80\x80\x01")):
        yield publish_avro(f"length {name}", b"\x02\x02" + varint + b"abc\x00")
    yield publish_avro("varint of eleven bytes", b"\x82" + b"\x80" * 9 + b"\x00" + GOOD_PUBLISH[1:])
    yield publish_avro("ten million empty messages", b"\x02\x80\xda\xc4\x09" + bytes(10_000_000) + b"\0", "too_large")
    yield publish_avro("container header", b"Obj\x01\x04\x16avro.schema" + bytes(16))
    yield publish_avro("single-object header", b"\xc3\x01" + bytes(8) + GOOD_PUBLISH)
    yield publish_avro("gzip without a word", gzip.compress(GOOD_PUBLISH))
    yield Bad("poll Avro: boolean 7", "POST", POLL, AVRO, b"\x04\x07\x02\x02", "malformed_body")
    yield Bad(
        "poll Avro: limit over 32 bits", "POST", POLL, AVRO, b"\x04\x01\x00\x80\x80\x80\x80\x20\x02", "malformed_body"
    )
    for cut in range(len(GOOD_POLL)):
        yield Bad(f"poll Avro: cut at byte {cut}", "POST", POLL, AVRO, GOOD_POLL[:cut], "malformed_body")
    for length in (0, 1, 8, 19, 21, 255):
        body = b"\x00" + encode_long(length) + bytes(length) + b"\x01\x02\x02"
        yield Bad(f"message id of {length} bytes", "POST", POLL, AVRO, body, "malformed_body")
    for cut in range(1, len(GOOD_WORK)):
        yield Bad(f"work Avro: cut at byte {cut}", "POST", TRANSACTIONS, AVRO, GOOD_WORK[:cut], "malformed_body")
    marker = avro.encode_work(Work(markers=[WorkMarker("shop", "orders", "t", 1_001, "end_of_stream")]))
    yield Bad("work Avro: more tasks than a topic has", "POST", TRANSACTIONS, AVRO, marker, "invalid_input")
    yield Bad(
        "work for a topic that is not there",
        "POST",
        TRANSACTIONS,
        AVRO,
        GOOD_WORK.replace(b"orders", b"absent"),
        "topic_not_found",
    )


def zstd_bomb() -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(bytes(1_000_000_000)) + stream.flush()


def coded_requests() -> Iterator[Bad]:
    def coded(name: str, coding: str, body: bytes | Callable[[], bytes], code: str) -> Bad:
        return Bad(f"coding: {name}", "POST", PUBLISH, AVRO, body, code, (("Content-Encoding", coding),))

    yield coded("gzip bomb", "gzip", lambda: gzip.compress(bytes(200_000_000), 9), "too_large")
    yield coded("zstd bomb", "zstd", zstd_bomb, "too_large")
    yield coded("zstd that lies about its size", "zstd", lambda: zstandard.compress(bytes(100_000_000)), "too_large")
    yield coded("half a million empty gzip members", "gzip", lambda: gzip.compress(b"") * 500_000, "malformed_body")
    yield coded("cut gzip", "gzip", gzip.compress(GOOD_PUBLISH)[:-1], "malformed_body")
    yield coded("cut zstd", "zstd", zstandard.compress(GOOD_PUBLISH)[:-1], "malformed_body")
    yield coded("not gzip", "gzip", GOOD_PUBLISH, "malformed_body")
    yield coded("brotli", "br", GOOD_PUBLISH, "unsupported_media_type")
    yield coded("twice gzip", "gzip, gzip", gzip.compress(gzip.compress(GOOD_PUBLISH)), "unsupported_media_type")
    yield Bad("a byte too many", "POST", PUBLISH, AVRO, lambda: bytes(BODY_BYTES_MAX + 1), "too_large")
    yield Bad("a length that lies", "POST", PUBLISH, AVRO, b"", "too_large", (("Content-Length", "99999999999"),))
    for media_type in ("text/plain", "multipart/form-data; boundary=x", "avro/json", ""):
        yield Bad(f"content type {media_type!r}", "POST", PUBLISH, media_type, GOOD_PUBLISH, "unsupported_media_type")


def names_and_queries() -> Iterator[Bad]:
    topics = "/v1/namespaces/shop/topics"
    yield get("encoded slash", f"{topics}/a%2Fb", "invalid_input")
    yield get("dot-dot", f"{topics}/..", "invalid_name")
    yield get("encoded dot-dot", f"{topics}/%2e%2e", "invalid_name")
    yield get("NUL", f"{topics}/a%00", "invalid_name")
    yield get("control character", f"{topics}/a%1b%5b31m", "invalid_name")
    yield get("right-to-left override", f"{topics}/%E2%80%AEa", "invalid_name")
    yield get("not UTF-8", f"{topics}/%FF", "invalid_input")
    yield get("half an escape", f"{topics}/%4", "invalid_input")
    yield get("5,000 characters", f"{topics}/{'n' * 5_000}", "invalid_name")
    yield get("9,000 characters", f"{topics}/{'n' * 9_000}", "uri_too_long")
    yield get("empty namespace", "/v1/namespaces//topics", "route_not_found")
    yield get("trailing slash", f"{ORDERS}/", "route_not_found")
    yield get("unknown call", f"{ORDERS}/destroy", "route_not_found")
    yield get("message id of 39 digits", f"{ORDERS}/messages/{'0' * 39}", "invalid_input")
    yield get("message id that is not hexadecimal", f"{ORDERS}/messages/{'g' * 40}", "invalid_input")
    yield get("transaction id 0", f"{TRANSACTIONS}/0", "invalid_input")
    yield get("transaction id of 30 digits", f"{TRANSACTIONS}/{'9' * 30}", "invalid_input")
    yield get("unknown transaction", f"{TRANSACTIONS}/77", "transaction_not_found")
    yield get("unknown parameter", f"{ORDERS}?x=1", "invalid_input")
    yield get("doubled parameter", f"{RECORDS}?limit=1&limit=2", "invalid_input")
    for text in ("yesterday", "@", "@-1", "-1", "+", "@2026-13-01T00:00:00Z", "@2026-01-01", "%00", "9" * 200):
        yield get(f"position {text[:20]!r}", f"{RECORDS}?from={text}", "invalid_input")
    for text in ("-1", "60001", "1e3", "0x1", "%D9%A1", "9" * 100):
        yield Bad(f"waitMs {text[:10]}", "POST", f"{POLL}?waitMs={text}", JSON, b"{}", "invalid_input")
    yield Bad("unknown isolation", "POST", f"{POLL}?isolation=none", JSON, b"{}", "invalid_input")
    yield Bad("wrong method", "PATCH", ORDERS, None, b"", "method_not_allowed")
    yield Bad("made up method", "DESTROY", ORDERS, None, b"", None)
    yield Bad("request id with a space", "GET", ORDERS, None, b"", "invalid_input", (("Basalt-Request-Id", "a b"),))
    yield Bad("create what exists", "PUT", ORDERS, JSON, b"{}", "topic_exists")


def property_requests() -> Iterator[Bad]:
    for ttl in ("0", "-1", '"soon"', "1.5", "true", "null", "[]", "99999999999999999999", '"1e3"', '"٣"', '" 5"'):
        yield properties(f"ttl {ttl}", f'{{"ttl": {ttl}}}')
    yield properties("spread 0", '{"spread": 0}')
    yield properties("onInvalid unknown", '{"onInvalid": "keep"}')
    yield properties("another generation", '{"generation": 9}')
    yield properties("an object", '{"a": {}}')
    yield properties("a name with a line break", '{"a\\nb": "c"}')
    yield properties("a value with a NUL", '{"a": "\\u0000"}')
    yield properties("a value without end", json.dumps({"a": "x" * 5_000}))
    yield properties("a hundred of them", json.dumps({f"p{number}": "x" for number in range(100)}))
    yield properties("not an object", "[]", "malformed_body")
    yield properties("doubled", '{"ttl": 1, "ttl": 2}', "malformed_body")


def transaction_requests() -> Iterator[Bad]:
    def begin(name: str, body: str, code: str) -> Bad:
        return Bad(f"begin: {name}", "POST", TRANSACTIONS, JSON, body.encode(), code)

    yield begin("unknown kind", '{"kind": "eternal"}', "malformed_body")
    yield begin("time-out 0", '{"timeoutMs": 0}', "invalid_input")
    yield begin("time-out of a century", '{"timeoutMs": 3155760000000}', "invalid_input")
    yield begin("time-out of forty digits", '{"timeoutMs": ' + "9" * 40 + "}", "invalid_input")
    yield begin("owner without end", json.dumps({"owner": "x" * 10_000}), "invalid_name")
    yield begin("owner with a line break", '{"owner": "a\\nb"}', "invalid_name")
    yield begin("unknown field", '{"priority": 1}', "malformed_body")
    yield begin("empty work entry", '{"work": {"publish": [{}]}}', "malformed_body")
    yield begin(
        "work with a bad name",
        '{"work": {"publish": [{"namespace": "..", "topic": "a", "messages": ["x"]}]}}',
        "invalid_name",
    )
    for call in ("commit", "abort", "checkpoint"):
        yield Bad(f"{call} of nothing", "POST", f"{TRANSACTIONS}/77/{call}", None, b"", "transaction_not_found")
    yield Bad(
        "changes that are no base64",
        "POST",
        f"{TRANSACTIONS}/77/changes",
        JSON,
        b'{"changes": ["%"]}',
        "malformed_body",
    )
    yield Bad("records without a payload", "POST", RECORDS, JSON, b'{"records": [{}]}', "malformed_body")
    yield Bad("one bad line of two", "POST", RECORDS, LINES, b'{"payload": "a"}\nnonsense\n', "malformed_body")
    yield Bad("backup outside its folder", "POST", "/v1/admin/backups", JSON, b'{"name": "../../x"}', "invalid_name")
    yield Bad("unknown job", "POST", "/v1/admin/jobs/format-disk/run", None, b"", "job_not_found")


def arrow_requests() -> Iterator[Bad]:
    """Rows of Arrow as they should not be; a good stream is the second of the format's page."""
    line = next(line for line in VECTORS.read_text().splitlines() if line.startswith("values alone"))
    good = bytes.fromhex(line.split("\t")[2])
    for call in (PUBLISH, f"{STORE}?transactionWritePointer=1"):
        for name, body in (
            ("empty", b""), ("nonsense", b"nonsense"), ("cut", good[:-8]), ("cut within a message", good[:100]),
            ("something follows", good + good), ("no rows", good[:120] + good[-8:]), ("another column", good.replace(b"value", b"valve")),
            ("a huge count", good.replace((3).to_bytes(8, "little"), (2**62).to_bytes(8, "little"))),
            ("huge metadata", b"\xff\xff\xff\xff\xff\xff\xff\x7f" + good[8:]),
        ):  # fmt: skip
            yield Bad(f"Arrow: {name} to {call[-30:]}", "POST", call, ARROW, body, None)
    yield Bad("Arrow: no pointer", "POST", STORE, ARROW, good, "invalid_input")
    yield Bad(
        "Arrow: a pointer twice", "POST", f"{PUBLISH}?transactionWritePointer=1", AVRO, GOOD_PUBLISH, "invalid_input"
    )
    yield get("a range without an end", f"{ORDERS}/range", "invalid_input")
    yield get("a range with a strange column", f"{ORDERS}/range?through={'0' * 40}&columns=id,payload", "invalid_input")
    yield get("a range beyond all", f"{ORDERS}/range?through={'f' * 40}", "conflict")


def operators_requests() -> Iterator[Bad]:
    admin = "/v1/admin/transactions"
    for query in ("state=gone", "owner=a%0Ab", "olderThanMs=-1", "topic=orders", "topic=%2F%3A%2F", "owner=%FF", "x=1"):
        yield get(f"list with {query}", f"{admin}?{query}", "invalid_input")
        yield get(f"find hanging with {query}", f"{admin}/hanging?{query}", "invalid_input")
    yield get("describe nothing", f"{admin}/77", "transaction_not_found")
    yield get("describe what is no id", f"{admin}/%00", "invalid_input")
    yield get("describe another installation's", f"{admin}/{'f' * 31}1", "transaction_not_found")
    yield get("timeline of nothing", f"{TRANSACTIONS}/77/timeline", "transaction_not_found")
    yield get("audit without an end", "/v1/admin/audit?limit=10001", "invalid_input")
    for verb in ("abort", "invalidate"):
        path = f"{admin}/77/{verb}"
        yield Bad(f"{verb} nothing by hand", "POST", path, None, b"", "transaction_not_found")
        yield Bad(f"{verb} with a body", "POST", path, JSON, b'{"reason": "x"}', "malformed_body")
        yield Bad(f"{verb} with a long reason", "POST", f"{path}?reason={'x' * 501}", None, b"", "invalid_input")
        yield Bad(f"{verb} by two lines", "POST", f"{path}?as=a%0Ab", None, b"", "invalid_input")
        yield Bad(f"{verb} with PUT", "PUT", path, None, b"", "method_not_allowed")
    yield Bad("force that is no flag", "POST", f"{admin}/77/abort?force=1", None, b"", "invalid_input")
    yield Bad("prune with a long reason", "POST", f"/v1/admin/prune/run?reason={'x' * 501}", None, b"", "invalid_input")


def marker_requests() -> Iterator[Bad]:
    def emit(name: str, body: str, code: str = "malformed_body") -> Bad:
        return Bad(name, "POST", MARKERS, JSON, body.encode(), code)

    yield emit("marker of nobody", '{"kind": "end_of_stream"}')
    yield emit("marker of no kind", '{"task": "t"}')
    yield emit("marker of another kind", '{"task": "t", "kind": "user"}')
    yield emit("watermark without a time", '{"task": "t", "kind": "watermark"}')
    yield emit("end with a time", '{"task": "t", "kind": "end_of_stream", "eventTimeMs": 1}')
    yield emit("watermark beyond 64 bits", '{"task": "t", "kind": "watermark", "eventTimeMs": 9223372036854775808}')
    yield emit("marker of no tasks", '{"task": "t", "kind": "end_of_stream", "taskCount": 0}', "invalid_input")
    yield emit("marker of a task without a name", '{"task": "", "kind": "end_of_stream"}', "invalid_input")
    yield emit("marker of a task of two lines", '{"task": "a\\nb", "kind": "end_of_stream"}', "invalid_input")
    yield get("markers of no topic", "/v1/namespaces/shop/topics/nothing/markers", "topic_not_found")
    yield get("markers that wait for ever", f"{MARKERS}?waitMs=60001", "invalid_input")
    yield get("markers until something else", f"{MARKERS}?until=noon", "invalid_input")


def table_requests() -> Iterator[Bad]:
    def call(name: str, verb: str, body: object, code: str = "malformed_body") -> Bad:
        encoded = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        return Bad(f"table {verb}: {name}", "POST", f"{STOCK}/{verb}", JSON, encoded, code)

    def put(name: str, code: str = "malformed_body", **cell: object) -> Bad:
        whole = {"row": "cg==", "column": "Yw==", "value": "dg==", **cell}
        return call(name, "write", {"transaction": "77", "puts": [whole]}, code)

    def long(size: int) -> str:
        return base64.b64encode(bytes(size)).decode()

    yield get("table that is not there", f"{TABLES}/nothing", "table_not_found")
    yield get("table with a tilde", f"{TABLES}/~stock", "invalid_name")
    yield get("topic with a tilde", "/v1/namespaces/shop/topics/~stock", "invalid_name")
    yield get("tables with a parameter", f"{TABLES}?limit=1", "invalid_input")
    yield Bad("create a table that exists", "PUT", STOCK, JSON, b"{}", "table_exists")
    yield Bad("table of an unknown level", "PUT", f"{TABLES}/other", JSON, b'{"conflict": "topic"}', "malformed_body")
    yield Bad("table with a TTL", "PUT", f"{TABLES}/other", JSON, b'{"ttl": 5}', "malformed_body")
    yield Bad("delete no table", "DELETE", f"{TABLES}/nothing", None, b"", "table_not_found")
    yield Bad("delete a table with a body", "DELETE", STOCK, JSON, b"{}", "malformed_body")
    yield Bad("read a table with GET", "GET", f"{STOCK}/read", None, b"", "method_not_allowed")
    yield Bad("write in Avro", "POST", f"{STOCK}/write", AVRO, b"\0", "unsupported_media_type")
    for verb in ("write", "read", "scan"):
        yield call("not JSON", verb, "nonsense")
        yield call("a list", verb, [])
        yield call("an unknown member", verb, {"transaction": "77", "rows": [], "colour": "red"})
        yield call("a transaction that is a number", verb, {"transaction": 77, "rows": []})
        needed = {"write": {"deleteRows": ["cg=="]}, "read": {"rows": ["cg=="]}, "scan": {}}[verb]
        yield call("a transaction that is none", verb, {"transaction": "x", **needed}, "invalid_input")
    for name, cell in {"a number": 5, "null": None, "no base64": "!", "base64 without its end": "cg"}.items():
        for part in ("row", "column", "value"):
            yield put(f"a {part} that is {name}", **{part: cell})
    yield put("an empty row", "invalid_input", row="")
    yield put("an empty column", "invalid_input", column="")
    yield put("a long row", "invalid_input", row=long(4_097))
    yield put("a long column", "invalid_input", column=long(1_025))
    yield put("a long value", "too_large", value=long((1 << 20) + 1))
    yield put("an unknown transaction", "transaction_not_found")
    yield call("nothing to write", "write", {"transaction": "77"}, "invalid_input")
    cell = {"row": "cg==", "column": "Yw=="}
    yield call("10,001 cells", "write", {"transaction": "77", "deletes": [cell] * 10_001}, "too_large")
    yield call("1,001 rows to delete", "write", {"transaction": "77", "deleteRows": ["cg=="] * 1_001}, "too_large")
    yield call("another generation", "write", {"transaction": "77", "deletes": [cell], "generation": 9}, "conflict")
    yield call("a generation as text", "write", {"transaction": "77", "deletes": [cell], "generation": "1"})
    yield call("1,001 rows", "read", {"rows": ["cg=="] * 1_001}, "too_large")
    yield call("no rows at all", "read", {})
    yield call("an empty row", "read", {"rows": [""]}, "invalid_input")
    yield call("a level for nobody", "read", {"rows": [], "visibility": "all"}, "invalid_input")
    yield call("an unknown level", "scan", {"visibility": "most"})
    for limit in (0, -1, 10_001, 2**70):
        yield call(f"limit {limit}", "scan", {"limitCells": limit}, "invalid_input")
    yield call("a limit as text", "scan", {"limitCells": "5"})
    yield call("no columns", "scan", {"columns": []}, "invalid_input")
    yield call("an unknown transaction", "scan", {"transaction": "77"}, "transaction_not_found")


BAD = [
    *json_requests(),
    *avro_requests(),
    *coded_requests(),
    *names_and_queries(),
    *property_requests(),
    *transaction_requests(),
    *operators_requests(),
    *arrow_requests(),
    *marker_requests(),
    *table_requests(),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("bad-input"))
    server.start()
    server.ask_json("PUT", ORDERS, {"ttl": 3_600})
    server.ask_json("POST", PUBLISH, {"messages": ["first", "second"]})
    server.ask_json("PUT", STOCK)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text(errors="replace")


def state(server: ServerProcess) -> str:
    """Everything that a bad request could have changed."""
    shown = [
        server.ask_json("GET", "/v1/admin/topics?deleted=true"),
        server.ask_json("GET", TABLES),
        server.ask_json("GET", STOCK),
        server.ask_json("POST", f"{STOCK}/scan", {}),
        server.ask_json("POST", POLL, {}),
        server.ask_json("GET", TRANSACTIONS),
        server.ask_json("GET", "/v1/admin/backups"),
        server.ask_json("GET", "/v1/admin/snapshot"),
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def test_there_are_plenty_of_them_and_none_twice():
    names = [bad.name for bad in BAD]
    assert len(names) == len(set(names))
    assert len(names) > 200


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name[:60])
def test_bad_input_is_refused_clearly_and_changes_nothing(server: ServerProcess, bad: Bad):
    before = state(server)
    headers = dict(bad.headers) | ({} if bad.content_type is None else {"Content-Type": bad.content_type})
    reply = server.ask(bad.method, bad.target, bad.content(), headers)
    assert 400 <= reply.status < 500, reply
    document = reply.json()
    assert document["code"] == bad.code or bad.code is None, document
    assert document["detail"]
    assert "Traceback" not in reply.body.decode()
    assert len(reply.body) < 4_000
    assert state(server) == before
    assert server.alive()


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


def transaction_bytes(lists: bytes = b"", read_pointer: int = 5, tail: bytes = b"\0") -> bytes:
    """A TTransaction: id 7, the read pointer, more fields, the stop."""
    return b"\x0a\0\x01" + i64(7) + b"\x0a\0\x02" + i64(read_pointer) + lists + tail


BAD_SNAPSHOTS = {
    "empty": b"",
    "random": random.Random(7).randbytes(200),
    "only a stop": b"\0",
    "no stop": transaction_bytes(tail=b""),
    "trailing byte": transaction_bytes(tail=b"\0\0"),
    "list of -1": transaction_bytes(b"\x0f\0\x03\x0a" + struct.pack(">i", -1)),
    "list of 2^31 - 1": transaction_bytes(b"\x0f\0\x03\x0a" + struct.pack(">i", 2**31 - 1)),
    "list that descends": transaction_bytes(b"\x0f\0\x03\x0a" + struct.pack(">i", 2) + i64(9) + i64(8)),
    "list of another type": transaction_bytes(b"\x0f\0\x03\x08" + struct.pack(">i", 1) + b"\0\0\0\x01"),
    "unknown field": transaction_bytes(b"\x0a\0\x63" + i64(1)),
    "doubled field": transaction_bytes(b"\x0a\0\x02" + i64(1)),
    "field of another type": transaction_bytes(b"\x0b\0\x07" + struct.pack(">i", 0)),
    "negative read pointer": transaction_bytes(read_pointer=-1),
    "unknown type": transaction_bytes(b"\x08\0\x06" + struct.pack(">i", 9)),
    "unknown visibility": transaction_bytes(b"\x08\0\x09" + struct.pack(">i", 9)),
    "a field 0": transaction_bytes(b"\x0a\0\0" + i64(1)),
}


@pytest.mark.parametrize("name", BAD_SNAPSHOTS)
def test_bytes_that_are_no_transaction_are_refused(server: ServerProcess, name: str):
    before = state(server)
    body = avro.encode_consume_request(ConsumeRequest(transaction=BAD_SNAPSHOTS[name]))
    reply = server.ask("POST", POLL, body, {"Content-Type": AVRO})
    assert (reply.status, reply.json()["code"]) == (400, "malformed_body")
    assert state(server) == before


def test_a_transaction_cut_at_any_byte_is_refused(server: ServerProcess):
    begun = server.ask_json("POST", TRANSACTIONS, {})
    whole = base64.b64decode(begun["transaction"])
    for cut in range(len(whole)):
        body = avro.encode_consume_request(ConsumeRequest(transaction=whole[:cut]))
        assert server.ask("POST", POLL, body, {"Content-Type": AVRO}).status == 400, cut
    server.ask_json("POST", f"{TRANSACTIONS}/{begun['id']}/abort")


def test_foreign_finished_and_future_transactions_read_what_they_say(server: ServerProcess):
    begun = server.ask_json("POST", TRANSACTIONS, {})
    server.ask_json("POST", f"{TRANSACTIONS}/{begun['id']}/commit")
    many = struct.pack(">i", 100_000) + b"".join(map(i64, range(100_000)))
    for snapshot in (
        base64.b64decode(begun["transaction"]),
        transaction_bytes(),
        transaction_bytes(read_pointer=2**63 - 1),
        transaction_bytes(b"\x0f\0\x03\x0a" + many),
        transaction_bytes(b"\x0f\0\x08\x0a" + many),
    ):
        body = avro.encode_consume_request(ConsumeRequest(transaction=snapshot))
        reply = server.ask("POST", POLL, body, {"Content-Type": AVRO})
        assert [message.payload for message in client_codecs.decode_avro_messages(reply.body)] == [b"first", b"second"]


@pytest.mark.parametrize(
    "start", [bytes(20), b"\xff" * 20, b"\x80" + bytes(19), b"\x7f" + b"\xff" * 19, bytes(8) + b"\xff" * 12]
)
def test_any_twenty_bytes_are_a_position(server: ServerProcess, start: bytes):
    body = avro.encode_consume_request(ConsumeRequest(start_from=start))
    reply = server.ask("POST", POLL, body, {"Content-Type": AVRO})
    assert reply.status == 200
    assert len(client_codecs.decode_avro_messages(reply.body)) == (2 if start[0] == 0 else 0)


RAW = {
    "nonsense": b"\x00\x01\x02\x03\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "a head of 200 kB": b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000,
    "a target of 200 kB": b"GET /" + b"x" * 200_000,
    "20,000 headers": b"GET /v1 HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)),
    "two lengths": b"POST /v1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST /v1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk of nonsense": f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: {JSON}\r\n\r\nxyz\r\n".encode(),
    "chunk of 2^63": f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: {JSON}\r\n\r\n8000000000000000\r\n".encode(),
    "HTTP/9.9": b"GET /v1 HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "upgrade to a WebSocket": b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==\r\n\r\n",
    "half a body": f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nContent-Type: {JSON}\r\n\r\n{{".encode(),
    "half a head": b"GET /v1 HT",
    "nothing": b"",
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_whole_request_change_nothing(server: ServerProcess, name: str):
    before = state(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS_MAX) as connection:
        try:
            connection.sendall(RAW[name])
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65_536)
        except OSError:  # it hung up while we were still sending
            answer = b""
    assert b" 500 " not in answer[:20]
    assert b"Traceback" not in answer
    assert state(server) == before
    assert server.alive()


def test_a_flood_takes_four_times_the_limit_of_a_body_at_most(server: ServerProcess):
    floods = [
        bad
        for bad in BAD
        if not isinstance(bad.body, bytes) or len(bad.body) > 100_000 or bad.name.startswith("coding")
    ]
    assert len(floods) > 8
    fresh = ServerProcess(server.data.parent / "fresh")
    fresh.data.parent.mkdir()
    fresh.start()
    try:
        fresh.ask_json("PUT", ORDERS)
        at_start = fresh.peak_memory_bytes()
        for bad in floods:
            fresh.forget_peak()
            before = fresh.peak_memory_bytes()
            headers = dict(bad.headers) | {"Content-Type": bad.content_type or JSON}
            assert 400 <= fresh.ask(bad.method, bad.target, bad.content(), headers).status < 500
            assert fresh.peak_memory_bytes() - before < 4 * BODY_BYTES_MAX, bad.name
        fresh.forget_peak()
        assert fresh.peak_memory_bytes() - at_start < 5 * BODY_BYTES_MAX, "what the allocator keeps of all of them"
    finally:
        fresh.stop()


def test_connections_of_broken_clients_are_closed(server: ServerProcess):
    for _ in range(3):
        server.ask_json("GET", "/v1")
    assert server.open_files() < 200
