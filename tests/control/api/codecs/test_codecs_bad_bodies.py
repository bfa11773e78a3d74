"""Concrete bad bodies, one line each: every one is refused with an error that says what, and none with any other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from basalt.api.bodies.messages import (
    ACKNOWLEDGED_CLAIMS_MAX,
    ACKNOWLEDGED_ITEMS_MAX,
    MEMBER_CHARS_MAX,
    REASON_CHARS_MAX,
    Rejection,
    Work,
    WorkAcknowledge,
    check_rollback,
    check_store,
)
from basalt.api.codecs import avro, json_bodies, json_records
from basalt.errors import MalformedBodyError, TooLargeError
from tests.control.api.codecs import client_codecs

ID = b"i" * 20
# (name, body in hex, words of the error)
BAD_PUBLISHES = [
    ("empty", "", "empty"),
    ("only the union index", "02", "count of a block"),
    ("no end of the array", "02 02 02 61", "count of a block"),
    ("a byte after the end", "02 02 02 61 00 00", "1 bytes more"),
    ("another body after the end", "02 02 02 61 00 02 02 02 61 00", "5 bytes more"),
    ("union index 2", "04 00", "0 to 1, found 2"),
    ("union index -1", "01 00", "found -1"),
    ("union index 2^62", "80 80 80 80 80 80 80 80 80 01 00", "0 to 1"),
    ("pointer of no bytes", "00", "the end of the body"),
    ("pointer 0", "00 00 02 02 61 00", "outside 1 to"),
    ("pointer -1", "00 01 02 02 61 00", "write pointer -1"),
    ("pointer -2^63", "00 ff ff ff ff ff ff ff ff ff 01 02 02 61 00", "outside 1 to"),
    ("pointer of 65 bits", "00 ff ff ff ff ff ff ff ff ff 02 02 02 61 00", "more than 64 bits"),
    ("pointer of 11 bytes", "00 80 80 80 80 80 80 80 80 80 80 01 02 02 61 00", "more than 10 bytes"),
    ("pointer padded with zeros", "00 8a 80 00 02 02 61 00", "padded"),
    ("union index padded", "82 00 02 02 61 00", "padded"),
    ("block count padded", "02 82 00 02 61 00", "padded"),
    ("length padded", "02 02 82 00 61 00", "padded"),
    ("length of one message negative", "02 02 01 61 00", "found -1"),
    ("length of two bytes negative", "02 02 81 01 61 00", "found -65"),
    ("length one too long", "02 02 04 61 00 ", "the count of a block"),
    ("length past the end", "02 02 08 61 00", "0 to 2"),
    ("length 2^40", "02 02 80 80 80 80 80 40 61 00", "found 1099511627776"),
    ("length 2^63 - 1", "02 02 fe ff ff ff ff ff ff ff ff 01 61 00", "a length of"),
    ("length cut", "02 02 80", "the end of the body"),
    ("count greater than the body", "02 08 00 00 00", "found 4"),
    ("count 2^62", "02 80 80 80 80 80 80 80 80 80 01 02 61 00", "block count"),
    ("count -2^63 with its size", "02 ff ff ff ff ff ff ff ff ff 01 04 02 61 00", "found 9223372036854775808"),
    ("count -1 without a size", "02 01", "the size of a block"),
    ("size of a block too small", "02 01 02 02 61 00", "the block to end at byte 4"),
    ("size of a block too great", "02 01 06 02 61 00 00", "the block to end at byte 6"),
    ("size of a block past the end", "02 01 10 02 61 00", "block size"),
    ("size of a block negative", "02 01 01 02 61 00", "block size"),
    ("size of a block 2^40", "02 01 80 80 80 80 80 40 02 61 00", "block size"),
    ("neither pointer nor messages", "02 00", "has neither"),
    ("an Avro container file", "4f 62 6a 01 04 14", "found -40"),
    ("a single-object header", "c3 01 01 02 03 04 05 06 07 08 02 02 02 61 00", "found -98"),
    ("gzip", "1f 8b 08 00 00 00 00 00 00 03", "found -16"),
    ("zstd", "28 b5 2f fd 04 00", "found 20"),
    ("JSON", "7b 22 6d 65 73 73 61 67 65 73 22 3a 5b 5d 7d", "found -62"),
    ("text", "68 65 6c 6c 6f", "found 52"),
    ("all ones", "ff ff ff ff ff ff ff ff ff ff ff ff", "more than 10 bytes"),
]
BAD_STORES = [
    ("store without a pointer", "02 02 02 61 00", "needs a transactionWritePointer"),
    ("store without messages", "00 02 00", "needs at least one message"),
    ("store with neither", "02 00", "needs a transactionWritePointer"),
]
BAD_ROLLBACKS = [
    ("roll back without a pointer", "02 02 00 02 00", "needs the transactionWritePointer"),
    ("sequence 65,536", "00 02 02 80 80 08 04 00", "0 to 65535"),
    ("sequence -1", "00 02 02 01 02 00", "0 to 65535"),
    ("sequence of 33 bits", "00 02 02 80 80 80 80 10 02 00", "more than 32 bits"),
    ("negative time", "00 02 01 00 02 00", "startTimestamp is -1"),
    ("start after the end", "00 02 04 00 02 00", "after its end"),
    ("start after the end by one sequence", "00 02 02 04 02 02", "after its end"),
    ("end missing", "00 02 02 00", "the end of the body"),
]
BAD_CONSUMES = [
    ("empty", "", "empty"),
    ("start union index 3", "06 01 02 02", "0 to 2, found 3"),
    ("start union index -1", "01 01 02 02", "0 to 2, found -1"),
    ("start id of 19 bytes", "00 26" + "69" * 19 + "01 02 02", "startFrom is 19 bytes"),
    ("start id of 21 bytes", "00 2a" + "69" * 21 + "01 02 02", "startFrom is 21 bytes"),
    ("start id of no bytes", "00 00 01 02 02", "startFrom is 0 bytes"),
    ("start time -1", "02 01 01 02 02", "startFrom is -1"),
    ("inclusive 7", "04 07 02 02", "the byte 7"),
    ("inclusive 255", "04 ff 02 02", "the byte 255"),
    ("inclusive missing", "04", "a boolean"),
    ("limit 0", "04 01 00 00 02", "limit is 0"),
    ("limit -1", "04 01 00 01 02", "limit is -1"),
    ("limit 2^31", "04 01 00 80 80 80 80 10 02", "more than 32 bits"),
    ("limit -2^31", "04 01 00 ff ff ff ff 0f 02", "limit is -2147483648"),
    ("limit union index 2", "04 01 04 02", "0 to 1, found 2"),
    ("transaction longer than the body", "04 01 02 00 08 61", "a length of 0 to 1"),
    ("a byte after the end", "04 01 02 02 00", "1 bytes more"),
]
BAD_MESSAGES = [
    ("empty", "", "empty"),
    ("id of 19 bytes", "02 26" + "69" * 19 + "02 61 00", "not 20 bytes"),
    ("payload missing", "02 28" + "69" * 20 + "00", "count of a block"),
    ("count greater than the body", "08 00 00", "found 4"),
]
ENTRY = "02 6e 02 74"  # namespace n, topic t
GROUP = f"{ENTRY} 02 67"  # and group g
BAD_WORKS = [
    ("empty", "", "empty"),
    ("a part missing", "00", "the end of the body"),
    ("publish without messages", f"02 {ENTRY} 00 00 00 00 00", "publish[0].messages is empty"),
    (
        "publish of both",
        f"02 {ENTRY} 02 02 61 00 02 02 61 02 00 02 02 00 00 00 00",
        "publish[0] has both messages and records",
    ),
    ("a record of no TTL", f"02 {ENTRY} 00 02 02 61 02 00 02 00 00 00 00 00 00", "publish[0].records[0].ttlMs is 0"),
    ("namespace not UTF-8", "02 02 ff 02 74 02 02 61 00 00 00 00", "not UTF-8"),
    ("namespace with half a surrogate", "02 06 ed a0 80 02 74 02 02 61 00 00 00 00", "not UTF-8"),
    ("marker of no task", f"00 02 {ENTRY} 00 02 12 77617465726d61726b 00 02 00 00", "markers[0].task is empty"),
    ("task count 0", f"00 02 {ENTRY} 02 61 00 12 77617465726d61726b 00 02 00 00", "markers[0].taskCount is 0"),
    ("unknown kind", f"00 02 {ENTRY} 02 61 02 02 77 00 02 00 00", "markers[0].kind is none of"),
    ("watermark without a time", f"00 02 {ENTRY} 02 61 02 12 77617465726d61726b 02 00 00", "a watermark has"),
    (
        "end with a time",
        f"00 02 {ENTRY} 02 61 02 1a 656e645f6f665f73747265616d 00 02 00 00",
        "an end of stream has none",
    ),
    ("entries that cannot fit", "80 01 02 6e", "block count"),
    ("a byte after the end", "00 00 00 00", "1 bytes more"),
    ("an acknowledgement cut", f"00 00 02 {GROUP}", "fits into the rest of the body"),
    ("an acknowledgement of nothing", f"00 00 02 {GROUP} 00 02 00 00 00 00 00 00 00", "acknowledge[0].ids is empty"),
    (
        "an id of 19 bytes",
        f"00 00 02 {GROUP} 02 26 {'69' * 19} 00 02 00 00 00 00 00 00 00",
        "acknowledge[0].ids[0] is 19 bytes",
    ),
    ("claim 0", f"00 00 02 {GROUP} 00 02 00 00 00 02 00 00 00 00 00", "acknowledge[0].claims has a number below 1"),
    (
        "an epoch of nobody",
        f"00 00 02 {GROUP} 00 02 00 02 00 02 02 00 00 00 00",
        "acknowledge[0].epoch names no member",
    ),
    ("epoch -1", f"00 00 02 {GROUP} 00 02 02 77 01 00 02 02 00 00 00 00", "acknowledge[0].epoch is -1"),
    ("upTo of no branch", f"00 00 02 {GROUP} 00 04 00 00 00 02 02 00 00 00 00", "0 to 1, found 2"),
    (
        "leaving out of ids",
        f"00 00 02 {GROUP} 02 28 {'69' * 20} 00 02 00 00 00 00 02 28 {'68' * 20} 00 00 00",
        "acknowledge[0].except leaves nothing out",
    ),
    (
        "an id that is also rejected",
        f"00 00 02 {GROUP} 02 28 {'69' * 20} 00 02 00 00 00 00 00 02 28 {'69' * 20} 00 00 00",
        "named to another end too",
    ),
    (
        "rejected twice",
        f"00 00 02 {GROUP} 00 02 00 00 00 00 00 04 28 {'69' * 20} 00 28 {'69' * 20} 00 00 00",
        "acknowledge[0].reject names a message twice",
    ),
]
BAD_RECORDS_REQUESTS = [
    ("empty", "", "empty"),
    ("no records", "02 00", "there are no records"),
    ("TTL 0", "02 02 02 61 02 00 02 00 00 00", "records[0].ttlMs is 0"),
    ("TTL -1", "02 02 02 61 02 00 02 00 01 00", "records[0].ttlMs is -1"),
    ("header of no name", "02 02 02 61 02 02 00 02 76 00 02 02 00", "needs a name"),
    ("header name not UTF-8", "02 02 02 61 02 02 02 ff 02 76 00 02 02 00", "records[0].headers.name"),
    ("key union index 2", "02 02 02 61 04 00 02 02 00", "records[0].key"),
    ("header count that cannot fit", "02 02 02 61 02 80 01 02 02 00", "block count"),
    ("pointer 0", "00 00 02 02 61 02 00 02 02 00", "outside 1 to"),
    ("a byte after the end", "02 02 02 61 02 00 02 02 00 00", "1 bytes more"),
]
AVRO = [
    (f"{what}: {name}", decode, bytes.fromhex(body), words)
    for what, decode, rows in (
        ("publish", avro.decode_publish_request, BAD_PUBLISHES),
        ("store", partial(avro.decode_publish_request, check=check_store), BAD_STORES),
        ("roll back", partial(avro.decode_publish_response, check=check_rollback), BAD_ROLLBACKS),
        ("poll", avro.decode_consume_request, BAD_CONSUMES),
        ("messages", client_codecs.decode_avro_messages, BAD_MESSAGES),
        ("work", avro.decode_work, BAD_WORKS),
        ("records", avro.decode_records_request, BAD_RECORDS_REQUESTS),
    )
    for name, body, words in rows
]

# Bodies that any JSON reader of ours refuses, and why.
BAD_JSON = [
    ("empty", b"", "empty"),
    ("only white space", b"  \n", "not JSON"),
    ("cut", b'{"limit": 1', "not JSON"),
    ("trailing text", b"{} x", "Extra data at line 1, column 4"),
    ("two bodies", b"{}{}", "Extra data"),
    ("trailing comma", b'{"limit": 1,}', "not JSON"),
    ("comment", b"{} // that is all", "Extra data"),
    ("single quotes", b"{'limit': 1}", "not JSON"),
    ("byte order mark", b"\xef\xbb\xbf{}", "byte order mark"),
    ("UTF-16", '{"limit": 1}'.encode("utf-16"), "not UTF-8 at byte 0"),
    ("UTF-8 cut", b'{"transaction": "\xc3"}', "not UTF-8 at byte 17"),
    ("a control character in a text", b'{"transaction": "\x01"}', "not JSON"),
    ("top is a list", b"[]", "the body is a list; expected an object"),
    ("top is a number", b"5", "the body is a whole number"),
    ("top is a text", b'"limit"', "the body is text"),
    ("top is null", b"null", "the body is null"),
    ("top is true", b"true", "true or false"),
    ("unknown field", b'{"foo": 1}', "unknown field 'foo'"),
    ("a field given twice", b'{"limit": 1, "limit": 1}', "'limit' is given twice"),
    ("a field given twice, once escaped", b'{"limit": 1, "l\\u0069mit": 2}', "'limit' is given twice"),
    ("nested too deeply", b"[" * 100_000, "nested too deeply"),
    ("objects nested too deeply", b'{"a":' * 100_000, "nested too deeply"),
    ("NaN", b'{"limit": NaN}', "NaN is not JSON"),
    ("Infinity", b'{"limit": Infinity}', "Infinity is not JSON"),
    ("minus Infinity", b'{"limit": -Infinity}', "-Infinity is not JSON"),
    ("leading zero", b'{"limit": 01}', "not JSON"),
    ("ten thousand digits", b'{"limit": ' + b"9" * 10_000 + b"}", "too many digits"),
]
BAD_JSON_CONSUMES = [
    ("limit as text", b'{"limit": "1"}', "limit is text"),
    ("limit as true", b'{"limit": true}', "limit is true or false"),
    ("limit 1.0", b'{"limit": 1.0}', "fraction"),
    ("limit 1e3", b'{"limit": 1e3}', "exponent"),
    ("limit 0", b'{"limit": 0}', "limit is 0"),
    ("limit -1", b'{"limit": {"int": -1}}', "limit is -1"),
    ("limit 2^31", b'{"limit": 2147483648}', "must be 1 to 2147483647"),
    ("limit 2^64", b'{"limit": 18446744073709551616}', "more than 64 bits"),
    ("limit with the tag of another branch", b'{"limit": {"long": 1}}', "unknown field 'long'"),
    ("limit with two tags", b'{"limit": {"int": 1, "long": 1}}', "an object with one field"),
    ("limit with no tag in the object", b'{"limit": {}}', "an object with one field"),
    ("limit with a tag and null", b'{"limit": {"int": null}}', "limit is null"),
    ("limit as a list", b'{"limit": [1]}', "limit is a list"),
    ("limit with the wrong case", b'{"Limit": 1}', "unknown field 'Limit'"),
    ("inclusive null", b'{"inclusive": null}', "inclusive is null"),
    ("inclusive 1", b'{"inclusive": 1}', "inclusive is a whole number"),
    ("inclusive as text", b'{"inclusive": "true"}', "inclusive is text"),
    ("start time negative", b'{"startFrom": -1}', "startFrom is -1"),
    ("start time with a fraction", b'{"startFrom": 1.5}', "fraction"),
    ("start time as true", b'{"startFrom": true}', "true or false"),
    ("start time tagged and text", b'{"startFrom": {"long": "1"}}', "startFrom is text"),
    ("start id of 19 bytes", b'{"startFrom": "' + b"i" * 19 + b'"}', "startFrom is 19 bytes"),
    ("start id in hex", b'{"startFrom": {"bytes": "' + b"00" * 20 + b'"}}', "startFrom is 40 bytes"),
    (
        "start id with a code point of 256",
        '{"startFrom": "%s\u0100"}'.replace("%s", "i" * 19).encode(),
        "code point 256",
    ),
    ("start id tagged and a number", b'{"startFrom": {"bytes": 1}}', "startFrom is a whole number"),
    ("transaction as a list of numbers", b'{"transaction": [1, 2]}', "transaction is a list"),
    ("transaction with half a surrogate", b'{"transaction": "\\ud800"}', "code point 55296"),
]
BAD_JSON_PUBLISHES = [
    ("nothing", b"{}", "has neither"),
    ("no messages, no pointer", b'{"messages": [], "transactionWritePointer": null}', "has neither"),
    ("messages null", b'{"messages": null}', "messages is null"),
    ("messages as one text", b'{"messages": "a"}', "messages is text"),
    ("messages as an object", b'{"messages": {"0": "a"}}', "messages is an object"),
    ("a message as a number", b'{"messages": ["a", 1]}', "messages[1] is a whole number"),
    ("a message null", b'{"messages": [null]}', "messages[0] is null"),
    ("a message as a list", b'{"messages": [[]]}', "messages[0] is a list"),
    ("a message tagged", b'{"messages": [{"bytes": "a"}]}', "messages[0] is an object"),
    ("code point 256", '{"messages": ["a", "\u0100"]}'.encode(), "messages[1] has code point 256"),
    (
        "a character beyond the first plane",
        '{"messages": ["\U0001f600"]}'.encode(),
        "messages[0] has code point 128512",
    ),
    ("pointer 0", b'{"transactionWritePointer": 0, "messages": ["a"]}', "outside 1 to"),
    ("pointer -1", b'{"transactionWritePointer": {"long": -1}, "messages": ["a"]}', "write pointer -1"),
    ("pointer 2^63", b'{"transactionWritePointer": 9223372036854775808, "messages": ["a"]}', "more than 64 bits"),
    ("pointer as text", b'{"transactionWritePointer": "5", "messages": ["a"]}', "transactionWritePointer is text"),
    ("pointer with a fraction", b'{"transactionWritePointer": 5.0, "messages": ["a"]}', "fraction"),
    ("wrong case", b'{"Messages": ["a"]}', "unknown field 'Messages'"),
]
BAD_JSON_STORES = [
    ("no pointer", b'{"messages": ["a"]}', "needs a transactionWritePointer"),
    ("no messages", b'{"transactionWritePointer": 5}', "needs at least one message"),
]
RESPONSE = (
    b'{"transactionWritePointer": 5, "startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 0}'
)
BAD_JSON_ROLLBACKS = [
    ("no pointer", RESPONSE.replace(b"5", b"null"), "needs the transactionWritePointer"),
    ("a field missing", RESPONSE.replace(b', "endSequenceId": 0', b""), "endSequenceId is missing"),
    ("a field null", RESPONSE.replace(b'"endSequenceId": 0', b'"endSequenceId": null'), "endSequenceId is null"),
    ("sequence 65,536", RESPONSE.replace(b'"endSequenceId": 0', b'"endSequenceId": 65536'), "0 to 65535"),
    ("start after the end", RESPONSE.replace(b'"startTimestamp": 1', b'"startTimestamp": 2'), "after its end"),
]


def acknowledged(fields: bytes) -> bytes:
    entry = b", ".join(filter(None, (b'"namespace": "n", "topic": "t", "group": "g"', fields)))
    return b'{"acknowledge": [{' + entry + b"}]}"


BAD_JSON_WORKS = [
    ("a part null", b'{"publish": null}', "publish is null"),
    ("a part as an object", b'{"publish": {}}', "publish is an object"),
    ("an entry as a text", b'{"publish": ["n:t"]}', "publish[0] is text"),
    ("topic missing", b'{"publish": [{"namespace": "n", "messages": ["a"]}]}', "publish[0].topic is missing"),
    ("topic null", b'{"publish": [{"namespace": "n", "topic": null, "messages": ["a"]}]}', "publish[0].topic is null"),
    ("no messages", b'{"publish": [{"namespace": "n", "topic": "t"}]}', "publish[0].messages is empty"),
    (
        "task count as text",
        b'{"markers": [{"namespace": "n", "topic": "t", "task": "a", "taskCount": "1", "kind": "watermark"}]}',
        "markers[0].taskCount is text",
    ),
    (
        "unknown kind",
        b'{"markers": [{"namespace": "n", "topic": "t", "task": "a", "taskCount": 1, "kind": "Watermark"}]}',
        "markers[0].kind is none of",
    ),
    (
        "a topic with half a surrogate",
        b'{"publish": [{"namespace": "n", "topic": "\\udc00", "messages": ["a"]}]}',
        "half of a surrogate pair",
    ),
    ("acknowledge null", b'{"acknowledge": null}', "acknowledge is null"),
    ("an acknowledgement as a text", b'{"acknowledge": ["g"]}', "acknowledge[0] is text"),
    (
        "no group",
        b'{"acknowledge": [{"namespace": "n", "topic": "t", "claims": [1]}]}',
        "acknowledge[0].group is missing",
    ),
    ("nothing acknowledged", acknowledged(b""), "acknowledge[0].ids is empty"),
    ("a claim as text", acknowledged(b'"claims": ["1"]'), "acknowledge[0].claims[0] is text"),
    ("claim 0", acknowledged(b'"claims": [3, 0]'), "a number below 1"),
    ("an id in hex", acknowledged(b'"ids": ["' + b"00" * 20 + b'"]'), "acknowledge[0].ids[0] is 40 bytes"),
    ("an id of zeros", acknowledged(b'"ids": ["' + b"\\u0000" * 20 + b'"]'), "is the place before all messages"),
    ("up to zeros", acknowledged(b'"upTo": "' + b"\\u0000" * 20 + b'"'), "is the place before all messages"),
    ("upTo of 3 bytes", acknowledged(b'"upTo": "abc"'), "acknowledge[0].upTo is 3 bytes"),
    ("a member with a slash", acknowledged(b'"claims": [1], "member": "a/b"'), "is no member's name"),
    ("a member of two lines", acknowledged(b'"claims": [1], "member": "a\\nb"'), "is no member's name"),
    ("an epoch of nobody", acknowledged(b'"claims": [1], "epoch": 5'), "acknowledge[0].epoch names no member"),
    ("round -1", acknowledged(b'"claims": [1], "round": -1'), "acknowledge[0].round is -1"),
    ("a rejection as an id", acknowledged(b'"reject": ["' + b"r" * 20 + b'"]'), "acknowledge[0].reject[0] is text"),
    ("a rejection of no id", acknowledged(b'"reject": [{"reason": "r"}]'), "acknowledge[0].reject[0].id is null"),
    ("an unknown field", acknowledged(b'"claims": [1], "excepted": []'), "unknown field 'excepted'"),
]
BAD_JSON_RECORDS = [
    ("no records", b"{}", "there are no records"),
    ("records null", b'{"records": null}', "records is null"),
    ("a record as a text", b'{"records": ["a"]}', "records[0] is text"),
    ("no payload", b'{"records": [{"key": "k"}]}', "records[0].payload is missing"),
    ("payload null", b'{"records": [{"payload": null}]}', "records[0].payload is missing"),
    ("payload twice", b'{"records": [{"payload": "a", "payloadBase64": "YQ=="}]}', "both payload and payloadBase64"),
    ("payload as an object", b'{"records": [{"payload": {"a": 1}}]}', "records[0].payload is an object"),
    ("payload with half a surrogate", b'{"records": [{"payload": "\\ud800"}]}', "half of a surrogate pair"),
    ("base64 without padding", b'{"records": [{"payloadBase64": "YQ"}]}', "not base64"),
    ("base64 with the URL alphabet", b'{"records": [{"payloadBase64": "-_-_"}]}', "not base64"),
    ("base64 with white space", b'{"records": [{"payloadBase64": "YQ ==\\n"}]}', "not base64"),
    ("base64 beyond ASCII", '{"records": [{"payloadBase64": "é==="}]}'.encode(), "not base64"),
    ("TTL 0", b'{"records": [{"payload": "a", "ttlMs": 0}]}', "records[0].ttlMs is 0"),
    ("TTL as text", b'{"records": [{"payload": "a", "ttlMs": "60000"}]}', "records[0].ttlMs is text"),
    ("TTL with a fraction", b'{"records": [{"payload": "a", "ttlMs": 1.5}]}', "fraction"),
    ("event time 2^63", b'{"records": [{"payload": "a", "eventTimeMs": 9223372036854775808}]}', "more than 64 bits"),
    ("headers as an object", b'{"records": [{"payload": "a", "headers": {"a": "b"}}]}', "headers is an object"),
    ("a header without a name", b'{"records": [{"payload": "a", "headers": [{"value": "b"}]}]}', "name is null"),
    (
        "a header with an empty name",
        b'{"records": [{"payload": "a", "headers": [{"name": "", "value": "b"}]}]}',
        "needs a name",
    ),
    ("a header without a value", b'{"records": [{"payload": "a", "headers": [{"name": "b"}]}]}', "value is missing"),
    ("unknown field", b'{"records": [{"payload": "a", "ttl": 5}]}', "unknown field 'ttl'"),
    ("pointer 0", b'{"records": [{"payload": "a"}], "transactionWritePointer": 0}', "outside 1 to"),
]
BAD_LINES = [
    ("empty", b"", "empty"),
    ("only empty lines", b"\n \n\r\n", "there are no records"),
    ("two records on one line", b'{"payload":"a"} {"payload":"b"}\n', "Extra data at line 1"),
    ("one record over two lines", b'{"payload":\n"a"}\n', "not JSON"),
    ("the third line cut", b'{"payload":"a"}\n\n{"payload":"b"', "line 3"),
    ("a list of records", b'[{"payload":"a"}]\n', "records[0] is a list"),
    ("an empty record", b'{"payload":"a"}\n{}\n', "records[1].payload is missing"),
    ("a line of a no-break space", b'{"payload":"a"}\n\xc2\xa0\n', "not JSON"),
]
JSON = [
    (f"{what}: {name}", decode, body, words)
    for what, decode, rows in (
        ("any", json_bodies.decode_consume_request, BAD_JSON),
        ("any work", json_bodies.decode_work, BAD_JSON),
        ("any records", json_records.decode_records_request, BAD_JSON),
        ("poll", json_bodies.decode_consume_request, BAD_JSON_CONSUMES),
        ("publish", json_bodies.decode_publish_request, BAD_JSON_PUBLISHES),
        ("store", partial(json_bodies.decode_publish_request, check=check_store), BAD_JSON_STORES),
        ("roll back", partial(json_bodies.decode_publish_response, check=check_rollback), BAD_JSON_ROLLBACKS),
        ("work", json_bodies.decode_work, BAD_JSON_WORKS),
        ("records", json_records.decode_records_request, BAD_JSON_RECORDS),
        ("lines", json_records.decode_records_lines, BAD_LINES),
    )
    for name, body, words in rows
    if not (decode is json_bodies.decode_work and b"limit" in body and words.startswith("unknown"))
]


@pytest.mark.parametrize(("decode", "body", "words"), [pytest.param(*row[1:], id=row[0]) for row in AVRO + JSON])
def test_a_bad_body_is_refused_with_the_reason(decode: Callable[[bytes], Any], body: bytes, words: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        decode(body)
    assert words in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"Obj\x01\x04\x14", "container"),
        (b"\xc3\x01" + b"12345678", "single-object"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b'{"messages":[]}', "JSON"),
    ],
)
def test_a_body_of_another_format_is_recognised(body: bytes, hint: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        avro.decode_publish_request(body)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("body", "field", "hint"),
    [
        (b'{"inclusiv": true}', "inclusiv", "Did you mean inclusive?"),
        (b'{"STARTFROM": 1}', "STARTFROM", "Did you mean startFrom?"),
        (b'{"x": 1}', "x", "Known fields: inclusive, limit, startFrom, transaction."),
    ],
)
def test_an_unknown_field_is_answered_with_the_nearest_known_one(body: bytes, field: str, hint: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        json_bodies.decode_consume_request(body)
    assert (caught.value.field, caught.value.hint) == (field, hint)


@pytest.mark.parametrize(
    ("decode", "body", "field"),
    [
        (avro.decode_consume_request, "04 01 00 00 02", "limit"),
        (avro.decode_consume_request, "04 07 02 02", "inclusive"),
        (avro.decode_publish_request, "02 04 02 61 01 00", "messages[1]"),
        (avro.decode_work, "00 02 02 6e 02 74 02 61 ff ff ff ff 1f", "markers[0].taskCount"),
        (avro.decode_records_request, "02 04 02 61 02 00 02 02 02 61 02 00 04", "records[1].eventTimeMs"),
        (avro.decode_records_request, "02 02 02 61 02 00 02 02 80", "records"),
    ],
)
def test_an_error_names_the_field(decode: Callable[[bytes], Any], body: str, field: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        decode(bytes.fromhex(body))
    assert caught.value.field == field


def test_an_error_names_the_byte() -> None:
    with pytest.raises(MalformedBodyError, match=r"byte 4, in messages\[1\]: expected a length of 0 to 1 .* found 4"):
        avro.decode_publish_request(bytes.fromhex("02 04 02 61 08 00"))


def test_no_error_shows_a_payload() -> None:
    secret = "s3cr3t" * 5
    for body in (f'{{"messages": [{{"{secret[:3]}": "{secret}"}}]}}', f'{{"messages": ["{secret}\u0100"]}}'):
        with pytest.raises(MalformedBodyError) as caught:
            json_bodies.decode_publish_request(body.encode())
        assert "s3cr3t" not in str(caught.value)


FLOOD = 200_000
FLOODS = [
    ("empty messages", avro.decode_publish_request, b"\x02" + b"\xc0\x9a\x18" + bytes(FLOOD) + b"\x00"),
    ("one block after the other", avro.decode_publish_request, b"\x02" + b"\x02\x00" * 70_000 + b"\x00"),
    ("empty JSON messages", json_bodies.decode_publish_request, b'{"messages":[' + b'"",' * 70_000 + b'""]}'),
    ("tiny JSON values", json_bodies.decode_publish_request, b'{"messages":[' + b"[]," * 300_000 + b"[]]}"),
    ("JSON objects", json_bodies.decode_work, b'{"publish":[' + b"{}," * 300_000 + b"{}]}"),
    ("work entries", avro.decode_work, b"\xa2\x9c\x01" + bytes(4 * 10_001 + 2)),
    ("JSON work entries", json_bodies.decode_work, b'{"markers":[' + b"{}," * 10_000 + b"{}]}"),
    ("records", avro.decode_records_request, b"\x02\xc0\x9a\x18" + bytes(5 * FLOOD) + b"\x00"),
    ("record headers", avro.decode_records_request, b"\x02\x02\x00\x02\x82\x10" + bytes(3_000)),
    (
        "record headers of a whole request",
        avro.decode_records_request,
        b"\x02\x82\x02" + (b"\x00\x02\x80\x10" + b"\x02a\x00" * 1_024 + b"\x00\x02\x02") * 129 + b"\x00",
    ),
    ("JSON fields", json_bodies.decode_work, b"{" + b",".join(b'"%d":1' % n for n in range(1_025)) + b"}"),
    ("ids of a work", avro.decode_work, b"\0\0\2\0\0\0" + b"\x82\x80\x08" + bytes(FLOOD)),
    ("rejections of a work", avro.decode_work, b"\0\0\2\0\0\0\0\2\0\0\0\0\0" + b"\x82\x80\x08" + bytes(FLOOD)),
    ("claims of a JSON work", json_bodies.decode_work, acknowledged(b'"claims": [' + b"1," * 65_536 + b"1]")),
    ("JSON records", json_records.decode_records_request, b'{"records":[' + b"{}," * 66_000 + b"{}]}"),
    ("lines", json_records.decode_records_lines, b"\n" * FLOOD),
]


@pytest.mark.parametrize(("decode", "body"), [pytest.param(*row[1:], id=row[0]) for row in FLOODS])
def test_a_flood_is_too_large(decode: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(TooLargeError, match=r"\d"):
        decode(body)


def test_commas_in_messages_are_no_values() -> None:
    body = b'{"messages":["' + b"a,[{" * 300_000 + b'"]}'
    assert len(json_bodies.decode_publish_request(body).messages) == 1


def test_the_limit_on_messages_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"\x02\x06\x00\x00\x00\x00"
    monkeypatch.setattr(avro, "PUBLISH_MESSAGES_MAX", 3)
    assert len(avro.decode_publish_request(body).messages) == 3
    monkeypatch.setattr(avro, "PUBLISH_MESSAGES_MAX", 2)
    with pytest.raises(TooLargeError, match="messages has 3 items; one call may carry 2"):
        avro.decode_publish_request(body)


def test_the_limit_on_a_work_counts_over_all_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes.fromhex("04 02 6e 02 74 02 00 00 00 02 6e 02 75 00 02 00 02 00 02 02 00 00 00 00")
    monkeypatch.setattr(avro, "PUBLISH_MESSAGES_MAX", 2)
    assert len(avro.decode_work(body).publish) == 2
    monkeypatch.setattr(avro, "PUBLISH_MESSAGES_MAX", 1)
    with pytest.raises(TooLargeError):
        avro.decode_work(body)
    json_body = b'{"publish":[{"namespace":"n","topic":"t","messages":[""]},{"namespace":"n","topic":"u","records":[{"payload":""}]}]}'
    monkeypatch.setattr(json_bodies, "PUBLISH_MESSAGES_MAX", 2)
    assert len(json_bodies.decode_work(json_body).publish) == 2
    monkeypatch.setattr(json_bodies, "PUBLISH_MESSAGES_MAX", 1)
    with pytest.raises(TooLargeError):
        json_bodies.decode_work(json_body)


@pytest.mark.parametrize("codec", [avro, json_bodies])
def test_a_member_and_a_reason_have_their_lengths_and_a_work_its_ids(codec: Any) -> None:
    ids = [number.to_bytes(20) for number in range(1, 1 + ACKNOWLEDGED_ITEMS_MAX // 2)]
    most = WorkAcknowledge("n", "t", "g", ids, None, "m" * MEMBER_CHARS_MAX)
    reasoned = WorkAcknowledge("n", "t", "g", reject=[Rejection(ID, "r" * REASON_CHARS_MAX)])
    for entries in ([most, most], [reasoned]):
        body = codec.encode_work(Work(acknowledge=entries))
        assert len(codec.decode_work(body).acknowledge) == len(entries)
    with pytest.raises(TooLargeError, match="acknowledge has 65537 items"):
        codec.encode_work(Work(acknowledge=[most, most, reasoned]))
    half = WorkAcknowledge("n", "t", "g", claims=range(1, 1 + ACKNOWLEDGED_CLAIMS_MAX // 2))
    assert len(codec.decode_work(codec.encode_work(Work(acknowledge=[half, half]))).acknowledge) == 2
    with pytest.raises(TooLargeError, match="claims has 1500 items; one call may carry 1000"):
        codec.encode_work(Work(acknowledge=[half, half, half]))
    with pytest.raises(MalformedBodyError, match="over 1000 characters"):
        codec.encode_work(Work(acknowledge=[replace(reasoned, reject=[Rejection(ID, "r" * (REASON_CHARS_MAX + 1))])]))
    with pytest.raises(MalformedBodyError, match="no member's name"):
        codec.encode_work(Work(acknowledge=[replace(most, member="m" * (MEMBER_CHARS_MAX + 1))]))
