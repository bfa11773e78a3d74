"""Options of `format("basalt")`: what is wrong with them is told before any job, and names what was meant."""

from __future__ import annotations

import re

import pytest

from basalt.errors import InputError
from basalt_engine.clock import ManualClock
from basalt_spark.connection import QualifiedTopic
from basalt_spark.offset import before_id, before_time
from basalt_spark.option_table import FrameUse
from basalt_spark.options import EARLIEST, LATEST, Edge, read_options

ID = "0000018bcfe568000001" + "00" * 10
NOW_MS = 1_700_000_000_000
SERVER = {"server": "http://127.0.0.1:4780"}
ORDERS = QualifiedTopic("default", "orders")


def parse(use: FrameUse = FrameUse.STREAM, **given: str):
    return read_options({**SERVER, "topic": "orders", **given}, use, ManualClock(NOW_MS))


def test_what_is_not_given_has_its_default():
    options = parse()
    assert options.topics == (ORDERS,)
    assert options.isolation == "committed"
    assert (options.start.of(ORDERS), options.end.of(ORDERS)) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.control == "hide"
    assert options.idle is None


def test_a_dot_stands_within_names_and_a_colon_between_them():
    options = parse(topic="shop.eu:orders.v1")
    assert options.topics == (QualifiedTopic("shop.eu", "orders.v1"),)
    assert str(options.topics[0]) == "shop.eu:orders.v1"
    assert parse(topic="shop.orders").topics == (QualifiedTopic("default", "shop.orders"),)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxRowPerTrigger": "5"}, "no option 'maxRowPerTrigger': did you mean maxRowsPerTrigger"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"zzz": "1"}, "no option 'zzz': docs/spark has the list"),
        ({"isolation": "dirty"}, "option isolation: 'dirty' is none of committed, uncommitted"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: 'yes' is neither true nor false"),
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger: '0' is not a whole number of at least 1"),
        ({"maxBytesPerTrigger": "10 apples"}, "option maxBytesPerTrigger: '10 apples' is not a whole number with a unit"),
        ({"watermarkIdleTimeout": "10"}, "option watermarkIdleTimeout: '10' has no unit"),
        ({"maxTriggerDelay": "5 seconds"}, "option maxTriggerDelay has no meaning without minRowsPerTrigger"),
        ({"minRowsPerTrigger": "9", "maxRowsPerTrigger": "8"}, "option minRowsPerTrigger is 9, more than maxRowsPerTrigger"),
        ({"watermarkQuorum": "2"}, "option watermarkQuorum has no meaning without watermarkIdleTimeout"),
        ({"startingInclusive": "false"}, "option startingInclusive has no meaning without startingId"),
        ({"startingId": "abc"}, "option startingId: 'abc' is not a message id, which is 40 hex digits"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp 'yesterday' is not a position"),
        ({"startingTimestamp": ID}, "is not a time"),
        ({"startingOffsets": "newest"}, "option startingOffsets: 'newest' is neither earliest, latest nor a JSON object"),
        ({"startingOffsets": '{"bills": "latest"}'}, "names default:bills, and what is read is default:orders"),
        ({"startingOffsets": '{"orders": 5}'}, "the value of orders is neither earliest, latest nor an id"),
        ({"startingOffsets": '{"v": 2, "topics": {}}'}, "the offset is of version 2, and this is version 1"),
        ({"startingOffsets": '{"v": 1, "more": {}}'}, "holds no offset of format basalt"),
        ({"startingOffsets": "latest", "startingId": ID}, "options startingOffsets and startingId exclude each other"),
        ({"topics": "bills"}, "options topic and topics exclude each other"),
        ({"columns": "id,valeu"}, "option columns: a row has no 'valeu': did you mean value"),
        ({"columns": "id,id"}, "option columns: 'id,id' names id twice"),
        ({"columns": "id,value", "control": "heartbeat"}, "control=heartbeat needs the column control"),
        ({"fetchBytes": "1 GiB"}, "option fetchBytes is 1073741824; it must be 33554432 or less"),
        ({"topic": "a:b:c"}, "option topic: 'a:b:c' is not the name of a topic"),
        ({"topic": ".."}, "option topic: '..' is not the name of a topic"),
        ({"server": "embedded:data"}, "option server: 'embedded:data' is not that of an HTTP server"),
        ({"server": "http://a:1, b:1"}, "it takes http://HOST:PORT, several with commas between them"),
        ({"txnAppId": "job"}, "option txnAppId is for writing, not for streams"),
        ({"endingOffsets": "latest"}, "option endingOffsets is for batch reads, not for streams"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_name(given, said):
    with pytest.raises(InputError, match=re.escape(said)):
        parse(**given)


def test_a_server_and_a_topic_must_be_given():
    with pytest.raises(InputError, match="option server is missing"):
        read_options({"topic": "orders"}, FrameUse.BATCH)
    with pytest.raises(InputError, match="option topic is missing"):
        read_options(SERVER, FrameUse.BATCH)
    with pytest.raises(InputError, match="names a topic twice"):
        read_options({**SERVER, "topics": "orders, default:orders"}, FrameUse.BATCH)


def test_topics_come_sorted_and_each_in_its_namespace():
    options = read_options({**SERVER, "namespace": "shop", "topics": "orders, billing:bills"}, FrameUse.STREAM)
    assert list(map(str, options.topics)) == ["billing:bills", "shop:orders"]


def test_a_start_lies_before_the_message_that_is_read_first():
    one = bytes.fromhex(ID)
    assert parse(startingId=ID).start.of(ORDERS) == Edge("id", before_id(one))
    assert parse(startingId=ID, startingInclusive="false").start.of(ORDERS) == Edge("id", one)
    assert parse(startingOffsets=f'{{"default:orders": "{ID}"}}').start.of(ORDERS) == Edge("id", one)
    assert parse(startingOffsets=' {"orders": "latest"}').start.of(ORDERS) == LATEST
    assert parse(startingId="00" * 20).start.of(ORDERS) == Edge("id", None)


@pytest.mark.parametrize(
    "text", ["1700000000000", "@1700000000000", "2023-11-14T22:13:20Z", "2023-11-14 23:13:20+01:00", "-0s"]
)
def test_a_time_is_before_all_messages_of_its_millisecond(text):
    edge = parse(startingTimestamp=text).start.of(ORDERS)
    assert edge.behind == before_time(NOW_MS)
    assert before_time(NOW_MS) < NOW_MS.to_bytes(8) + bytes(12)
    assert before_time(NOW_MS) > (NOW_MS - 1).to_bytes(8) + b"\xff" * 11
    assert before_time(0) is None


def test_a_whole_offset_is_a_start():
    text = f'{{"v": 1, "topics": {{"default:orders": {{"gen": 3, "id": "{ID}"}}}}}}'
    start = parse(startingOffsets=text).start
    assert start.offset.topics[ORDERS].generation == 3
    assert start.of(ORDERS) == Edge("id", bytes.fromhex(ID))


def test_a_topic_may_be_called_as_a_member_of_an_offset_is():
    start = parse(topic="v", startingOffsets='{"v": "latest"}').start
    assert start.of(QualifiedTopic("default", "v")) == LATEST


@pytest.mark.parametrize(
    "url", ["http://etl:hunter2@mq:4780", "http://a:1,http://etl:hunter2@b:2", "http://mq?token=x"]
)
def test_a_server_with_a_password_in_its_url_is_refused_and_not_quoted(url):
    with pytest.raises(InputError, match="is not that of an HTTP server") as refused:
        parse(server=url)
    assert "hunter2" not in str(refused.value)


def test_options_hold_no_secret(monkeypatch):
    monkeypatch.setenv("BASALT_TOKEN", "s3cret")
    assert "s3cret" not in repr(parse(tokenEnv="BASALT_TOKEN"))
    files = {"tokenFile": "/run/token", "caFile": "/run/ca.pem", "certFile": "/run/etl.pem", "keyFile": "/run/etl.key"}
    server = parse(server="https://mq:4780", **files).server
    assert (server.token_variable, server.token_file) == (None, "/run/token")
    assert (server.ca_file, server.cert_file, server.key_file) == ("/run/ca.pem", "/run/etl.pem", "/run/etl.key")
