"""tests/vectors holds each format's bytes with their meaning; our codecs agree, and the pages of docs/formats quote them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from basalt.api.bodies.messages import (
    Carried,
    ConsumeRequest,
    Message,
    PublishRequest,
    PublishResponse,
    Record,
    RecordIn,
    RecordsRequest,
    Rejection,
    Work,
    WorkAcknowledge,
    WorkMarker,
    WorkPublish,
)
from basalt.api.codecs import avro, batches, json_bodies
from basalt.transactions import codec
from basalt.transactions.rules.transaction import Kind
from basalt_engine.records import Extras, decode, encode
from tests.control.api.codecs import avro_schemas, client_codecs
from tests.control.transactions.whole_bytes import encode_transaction

ROOT = Path(__file__).resolve().parents[4]
VECTORS = ROOT / "tests" / "vectors"


def lines(name: str) -> list[tuple[str, bytes, Any]]:
    rows = [line.split("\t") for line in (VECTORS / f"{name}.tsv").read_text().splitlines()]
    return [(title, bytes.fromhex(body), json.loads(meaning)) for title, body, meaning in rows]


def unhex(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def all_unhex(values: list[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


def publish_request(meaning: dict[str, Any]) -> PublishRequest:
    return PublishRequest(meaning["transactionWritePointer"], all_unhex(meaning["messages"]))


def publish_response(meaning: dict[str, Any]) -> PublishResponse:
    return PublishResponse(*meaning.values())


def consume_request(meaning: dict[str, Any]) -> ConsumeRequest:
    start = meaning["startFrom"]
    if start is not None:
        start = start["long"] if "long" in start else bytes.fromhex(start["bytes"])
    return ConsumeRequest(start, meaning["inclusive"], meaning["limit"], unhex(meaning["transaction"]))


def messages(meaning: list[dict[str, str]]) -> list[Message]:
    return [Message(bytes.fromhex(each["id"]), bytes.fromhex(each["payload"])) for each in meaning]


def work(meaning: dict[str, Any]) -> Work:
    return Work(
        [
            WorkPublish(
                p["namespace"],
                p["topic"],
                all_unhex(p["messages"]),
                [RecordIn(**content(record)) for record in p.get("records", ())],
            )
            for p in meaning["publish"]
        ],
        [WorkMarker(*marker.values()) for marker in meaning["markers"]],
        acknowledge=[acknowledged(entry) for entry in meaning.get("acknowledge", ())],
    )


def acknowledged(meaning: dict[str, Any]) -> WorkAcknowledge:
    return WorkAcknowledge(
        meaning["namespace"],
        meaning["topic"],
        meaning["group"],
        all_unhex(meaning["ids"]),
        unhex(meaning["upTo"]),
        meaning["member"],
        meaning["epoch"],
        meaning["round"],
        meaning["claims"],
        all_unhex(meaning["except"]),
        [Rejection(bytes.fromhex(each["id"]), each["reason"]) for each in meaning["reject"]],
    )


def content(meaning: dict[str, Any]) -> dict[str, Any]:
    return {
        "payload": bytes.fromhex(meaning["payload"]),
        "key": unhex(meaning["key"]),
        "headers": tuple((header["name"], bytes.fromhex(header["value"])) for header in meaning["headers"]),
        "event_time_ms": meaning["eventTimeMs"],
        "ttl_ms": meaning["ttlMs"],
    }


def records_request(meaning: dict[str, Any]) -> RecordsRequest:
    return RecordsRequest(
        meaning["transactionWritePointer"], [RecordIn(**content(record)) for record in meaning["records"]]
    )


def records(meaning: list[dict[str, Any]]) -> list[Record]:
    return [
        Record(
            id=bytes.fromhex(record["id"]),
            **content(record),
            kind=record["kind"],
            write_pointer=record["transactionWritePointer"],
        )
        for record in meaning
    ]


def transaction(meaning: dict[str, Any]) -> codec.TransactionFields:
    return codec.TransactionFields(*{**meaning, "type": Kind(meaning["type"])}.values())


def decode_transaction(body: bytes) -> codec.TransactionFields:
    read = codec.decode_transaction(body)
    return read._replace(
        invalid=list(read.invalid), in_progress=list(read.in_progress), checkpoints=list(read.checkpoints),
        invalid_runs=list(read.invalid_runs), in_progress_runs=list(read.in_progress_runs),
    )  # fmt: skip


def carried(meaning: list[dict[str, Any]] | None) -> list[Carried] | None:
    if meaning is None:
        return None
    parts = [content({"payload": "", **each}) for each in meaning]
    return [Carried(each["key"], each["headers"], each["event_time_ms"], each["ttl_ms"]) for each in parts]


def batched(meaning: list[dict[str, Any]]) -> list[Any]:
    return [
        batches.MarkerFrame(frame["marker"], bytes.fromhex(frame["id"]), bytes.fromhex(frame["payload"]))
        if "marker" in frame
        else (frame["countedAt"], messages(frame["messages"]), carried(frame.get("carried")))
        for frame in meaning
    ]


def decode_batches(body: bytes) -> list[Any]:
    return [
        frame
        if isinstance(frame, batches.MarkerFrame)
        else (
            frame.counted_at,
            [Message(*each) for each in zip(frame.ids(body), payloads_of(frame, body), strict=True)],
            frame.carried(body),
        )
        for frame in batches.decode_marked(body)
    ]


def payloads_of(frame: batches.BatchFrame, body: bytes) -> list[bytes]:
    ends = frame.ends()
    return [body[start:stop] for start, stop in pairwise(ends)]


def carried_frame(beside: list[Carried]) -> bytes:
    """As a server makes it of a stored row."""
    row = decode(encode([b""] * len(beside), [Extras(*each) for each in beside]))
    return batches.encode_carried(row.flags, [row.sections(0, row.count)])


def encode_batches(frames: list[Any]) -> bytes:
    body = batches.START
    for frame in frames:
        if isinstance(frame, batches.MarkerFrame):
            body += batches.encode_marker(frame.kind, frame.id, frame.payload)
            continue
        counted_at, held, beside = frame
        payloads = [message.payload for message in held]
        if counted_at is None:
            body += batches.encode_list([message.id for message in held], payloads)
        else:
            size = sum(map(len, payloads))
            body += batches.encode_run_head(held[0].id, counted_at, len(held), size)
            body += b"".join([len(payload).to_bytes(4) for payload in payloads] + payloads)
        if beside is not None:
            body += carried_frame(beside)
    return body + batches.END


# file, its page, meaning -> value, decode, encode
FORMATS: dict[str, tuple[str, Callable[[Any], Any], Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "publish-request": ("avro-bodies", publish_request, avro.decode_publish_request, avro.encode_publish_request),
    "publish-response": ("avro-bodies", publish_response, avro.decode_publish_response, avro.encode_publish_response),
    "consume-request": ("avro-bodies", consume_request, avro.decode_consume_request, avro.encode_consume_request),
    "messages": ("avro-bodies", messages, client_codecs.decode_avro_messages, client_codecs.encode_avro_messages),
    "message-batches": ("message-batches", batched, decode_batches, encode_batches),
    "work": ("avro-bodies", work, avro.decode_work, avro.encode_work),
    "json-publish-request": (
        "json-bodies",
        publish_request,
        json_bodies.decode_publish_request,
        client_codecs.encode_json_publish_request,
    ),
    "json-consume-request": (
        "json-bodies",
        consume_request,
        json_bodies.decode_consume_request,
        client_codecs.encode_json_consume_request,
    ),
    "records-request": (
        "records-api",
        records_request,
        avro.decode_records_request,
        avro.encode_records_request,
    ),
    "records": ("records-api", records, avro.decode_records, client_codecs.encode_avro_records),
    "transaction": ("transaction-codec", transaction, decode_transaction, encode_transaction),
}
# Bodies that mean the same as others and that we would write otherwise: other blocks, fields left out.
READ_ONLY = {
    "two_blocks",
    "block_with_size",
    "least_fields",
    "untagged",
    "nothing at all",
    "by_hand",
}
CASES = [pytest.param(name, *line, id=f"{name}: {line[0]}") for name in FORMATS for line in lines(name)]


@pytest.mark.parametrize(("name", "title", "body", "meaning"), CASES)
def test_a_vector_has_its_meaning_and_its_bytes(name: str, title: str, body: bytes, meaning: Any) -> None:
    _, as_value, decode, encode = FORMATS[name]
    value = as_value(meaning)
    assert decode(body) == value
    if title not in READ_ONLY:
        assert encode(value).hex() == body.hex()


@pytest.mark.parametrize("name", FORMATS)
def test_the_page_of_a_format_quotes_a_vector(name: str) -> None:
    page = (ROOT / "docs" / "formats" / f"{FORMATS[name][0]}.md").read_text()
    quoted = set(re.findall(r"^    ([0-9a-f]{2}(?:[0-9a-f]{2}| )*)$", page, re.MULTILINE))
    assert {body.hex() for _, body, _ in lines(name)} & {line.replace(" ", "") for line in quoted}


@pytest.mark.parametrize("page", sorted({page for page, *_ in FORMATS.values()}))
def test_every_example_of_a_page_is_a_vector(page: str) -> None:
    text = (ROOT / "docs" / "formats" / f"{page}.md").read_text()
    quoted = re.findall(r"^    ([0-9a-f]{2}(?:[0-9a-f]{2}| )*)$", text, re.MULTILINE)
    known = {body.hex() for name in FORMATS for _, body, _ in lines(name)}
    assert quoted
    assert [line for line in quoted if line.replace(" ", "") not in known] == []


def test_the_pages_show_every_schema_as_it_is() -> None:
    pages = [(ROOT / "docs" / "formats" / f"{page}.md").read_text() for page in ("avro-bodies", "records-api")]
    shown = [json.loads(block) for page in pages for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    schemas = [json.loads(text) for name, text in vars(avro_schemas).items() if name.isupper()]
    assert [schema for schema in schemas if schema not in shown] == []
