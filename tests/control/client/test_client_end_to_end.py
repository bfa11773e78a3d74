"""Both clients against the whole server, embedded in this process: what was promised, seen from outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import basalt
from basalt.client import RecordIn
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.errors import (
    BasaltError,
    InputError,
    InvalidPropertyError,
    MalformedBodyError,
    TopicChangedError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    UnknownOutcomeError,
)

MEMORY = {"store.kind": "memory"}


@contextmanager
def transaction(side, client, **arguments) -> Iterator[Any]:
    """`with client.transaction()` or `async with`, whichever it is."""
    tx = client.transaction(**arguments)
    if side.name == "blocking":
        with tx:
            yield tx
        return
    side.do(tx.__aenter__())
    try:
        yield tx
    except BaseException as error:
        side.do(tx.__aexit__(type(error), error, None))
        raise
    side.do(tx.__aexit__(None, None, None))


def everything(side, reader) -> list[bytes]:
    """The payloads that a reader still has."""
    if side.name == "blocking":
        return [message.payload for message in reader]

    async def collect() -> list[bytes]:
        return [message.payload async for message in reader]

    return side.do(collect())


def test_what_is_published_is_polled_in_order(side, connected):
    orders = connected.topic("orders")
    assert side.do(orders.publish(["a", b"b"])) is None
    side.do(orders.publish("ü"))
    page = side.do(orders.poll())
    assert [message.payload for message in page] == [b"a", b"b", "ü".encode()]
    assert page.next_id is not None
    assert side.do(orders.poll(page.next_id, inclusive=False)).next_id is not None
    assert [message.payload for message in side.do(orders.poll(page[1]))] == [b"b", "ü".encode()]
    assert [message.payload for message in side.do(orders.poll(page[1].id, inclusive=False, limit=1))] == ["ü".encode()]


def test_a_topic_is_read_whole_across_pages(side, connected):
    orders = connected.topic("orders")
    payloads = [b"%d" % number for number in range(25_000)]
    side.do(orders.publish(payloads))
    assert everything(side, orders.read()) == payloads
    assert everything(side, orders.read(limit=12_345)) == payloads[:12_345]
    reader = orders.read(limit=10)
    assert everything(side, reader) == payloads[:10]
    assert everything(side, orders.read(limit=2, isolation="uncommitted")) == payloads[:2]


def test_topics_are_made_changed_shown_and_deleted(side, connected):
    topics = connected.topics
    made = side.do(topics.create("logs", ttl=60, on_invalid="retain", labels={"colour": "red"}))
    assert (made.name, made.ttl_seconds, made.generation) == ("logs", 60, 1)
    assert made.properties["label.colour"] == "red"
    updated = side.do(topics.update("logs", ttl=61, labels={"size": "5"}))
    assert updated.properties == {**made.properties, "ttl": "61", "label.size": "5"}
    assert side.do(topics.update("logs", unset=["label.size"])).properties.get("label.size") is None
    with pytest.raises(InvalidPropertyError):
        side.do(topics.update("logs", ttl=62, generation=7))
    assert side.do(topics.replace("logs", ttl=61)).properties.get("label.colour") is None
    assert side.do(topics.get("logs")).ttl_seconds == 61
    assert side.do(topics.list()) == ["invoices", "logs", "orders"]
    assert side.do(topics.list(namespace="elsewhere")) == []
    with pytest.raises(TopicExistsError):
        side.do(topics.create("logs"))
    side.do(topics.delete("logs"))
    with pytest.raises(TopicNotFoundError):
        side.do(topics.get("logs"))
    assert side.do(topics.create("logs")).generation == 2


def test_an_update_that_expects_a_version_is_refused_when_somebody_was_faster(side, connected):
    topics = connected.topics
    read = side.do(topics.get("orders"))
    changed = side.do(topics.update("orders", spread=2, version=read.version))
    assert changed.version != read.version
    for late in (topics.update, topics.replace):
        with pytest.raises(TopicChangedError, match="were changed"):
            side.do(late("orders", ttl="1d", version=read.version))
    assert side.do(topics.get("orders")) == changed
    assert side.do(topics.replace("orders", ttl="1d", version=changed.version)).ttl_seconds == 86_400


def test_a_single_name_is_no_list_of_properties_to_unset(side, connected):
    with pytest.raises(TypeError, match=r"unset=\['ttl'\]"):
        side.do(connected.topics.update("orders", unset="ttl"))


def test_a_transaction_shows_in_all_its_topics_at_once(side, connected):
    with transaction(side, connected, owner="test") as tx:
        side.do(tx.publish("orders", ["o1", "o2"]))
        side.do(tx.publish("invoices", ["i1"]))
        assert everything(side, connected.topic("orders").read()) == []
        assert side.do(connected.transactions.get(tx.id)).owner == "test"
    assert everything(side, connected.topic("orders").read()) == [b"o1", b"o2"]
    assert everything(side, connected.topic("invoices").read()) == [b"i1"]
    assert tx.outcome.state == "COMMITTED"


def test_an_open_transaction_holds_nobody_up(side, connected):
    with transaction(side, connected) as tx:
        side.do(tx.publish("orders", ["mine"]))
        side.do(tx.store("orders", ["stored"]))
        side.do(connected.topic("orders").publish("theirs"))
        assert everything(side, connected.topic("orders").read()) == [b"theirs"]
    assert everything(side, connected.topic("orders").read()) == [b"theirs", b"mine", b"stored"]


def test_an_exception_leaves_nothing_behind(side, connected):
    with pytest.raises(KeyError, match="mine"):
        with transaction(side, connected) as tx:
            side.do(tx.publish("orders", ["a"]))
            side.do(tx.store("invoices", ["b"]))
            raise KeyError("mine")
    for topic in ("orders", "invoices"):
        assert everything(side, connected.topic(topic).read()) == []
    assert side.do(connected.transactions.get(tx.id)).state == "ABORTED"


def test_a_large_transaction_is_whole_and_in_order(side, connected):
    payloads = [b"%6d" % number * 1_000 for number in range(2_500)]  # 15 MB: four stores
    with transaction(side, connected) as tx:
        side.do(tx.publish("orders", payloads[:2_000]))
        side.do(tx.publish("invoices", ["small"]))
        side.do(tx.publish("orders", payloads[2_000:]))
        assert everything(side, connected.topic("orders").read()) == []
    assert everything(side, connected.topic("orders").read()) == payloads
    assert everything(side, connected.topic("invoices").read()) == [b"small"]


def test_a_transaction_reads_its_snapshot(side, connected):
    side.do(connected.topic("orders").publish("before"))
    side.do(connected.publish_atomically({"orders": ["also before"]}))
    with transaction(side, connected) as tx:
        side.do(connected.publish_atomically({"orders": ["after"]}))
        assert everything(side, tx.read("orders")) == [b"before", b"also before"]
        assert [message.payload for message in side.do(tx.poll("orders", limit=1))] == [b"before"]
    assert len(everything(side, connected.topic("orders").read())) == 3


def test_of_two_that_change_the_same_the_second_fails_and_is_aborted(side, connected):
    with pytest.raises(TransactionConflictError):
        with transaction(side, connected) as second:
            side.do(second.publish("orders", ["second"]))
            with transaction(side, connected) as first:
                side.do(first.changes([b"row-1"]))
                side.do(first.publish("orders", ["first"]))
            side.do(second.changes([b"row-1"]))
    assert everything(side, connected.topic("orders").read()) == [b"first"]
    assert side.do(connected.transactions.get(second.id)).state == "ABORTED"


def test_a_publish_to_several_topics_is_one_transaction(side, connected):
    outcome = side.do(connected.publish_atomically({"orders": ["a", "b"], ("shop", "invoices"): "c"}))
    assert outcome.state == "COMMITTED"
    assert everything(side, connected.topic("orders").read()) == [b"a", b"b"]
    with pytest.raises(TopicNotFoundError):
        side.do(connected.publish_atomically({"orders": ["never"], "nowhere": ["x"]}))
    assert everything(side, connected.topic("orders").read()) == [b"a", b"b"]


@pytest.mark.parametrize("call", ["commit", "one-shot", "begin"])
def test_a_lost_answer_of_what_has_a_request_id_is_made_good(side, connected, call):
    if call == "one-shot":
        connected.losing.loses = "/v1/transactions"
        assert side.do(connected.publish_atomically({"orders": ["once"]})).state == "COMMITTED"
    else:
        if call == "begin":
            connected.losing.loses = "/v1/transactions"
        with transaction(side, connected) as tx:
            side.do(tx.publish("orders", ["once"]))
            if call == "commit":
                connected.losing.loses = "/commit"
        assert tx.outcome.state == "COMMITTED"
    assert connected.losing.loses is None
    assert everything(side, connected.topic("orders").read()) == [b"once"]
    assert side.do(connected.transactions.list()) == []  # and nothing was begun twice


@pytest.mark.parametrize("carried", [{}, {"key": "k"}], ids=["plain", "records"])
def test_a_publish_whose_answer_is_lost_is_sent_again_and_there_once(side, connected, carried):
    orders = connected.topic("orders")
    side.do(orders.publish("before", **carried))
    connected.losing.loses = "/records" if carried else "/publish"
    side.do(orders.publish(["once", "and this"], **carried))
    side.do(orders.publish("behind", **carried))
    assert connected.losing.loses is None
    assert everything(side, orders.read()) == [b"before", b"once", b"and this", b"behind"]


def test_without_dedup_a_lost_answer_of_a_publish_is_told_and_not_made_worse(side, connected):
    connected._scope = replace(connected._scope, producers=None)
    connected.losing.loses = "/publish"
    with pytest.raises(UnknownOutcomeError):
        side.do(connected.topic("orders").publish("once"))
    assert everything(side, connected.topic("orders").read()) == [b"once"]


def test_a_store_whose_answer_is_lost_is_sent_again_and_published_once(side, connected):
    with transaction(side, connected) as tx:
        side.do(tx.store("orders", ["1"]))
        connected.losing.loses = "/store"
        side.do(tx.store("orders", ["2", "3"]))
        side.do(tx.store("orders", ["4"]))
    assert connected.losing.loses is None
    assert everything(side, connected.topic("orders").read()) == [b"1", b"2", b"3", b"4"]


def test_a_block_that_swallows_a_failed_store_publishes_nothing(side, connected):
    connected._scope = replace(connected._scope, producers=None)
    with pytest.raises(TransactionEndedError, match="messages of topic shop:orders may be missing"):
        with transaction(side, connected) as tx:
            side.do(tx.publish("invoices", ["1"]))
            connected.losing.loses = "/store"
            with suppress(UnknownOutcomeError):
                side.do(tx.store("orders", ["2"]))
    assert side.do(connected.transactions.get(tx.id)).state == tx.outcome.state == "ABORTED"
    assert everything(side, connected.topic("invoices").read()) == []


def test_ending_a_transaction_again_is_answered_by_how_it_ended(side, connected):
    begun = side.do(connected.transactions.begin())
    assert side.do(connected.transactions.commit(begun)).state == "COMMITTED"
    assert side.do(connected.transactions.commit(begun.id)).state == "COMMITTED"
    with pytest.raises(TransactionEndedError):
        side.do(connected.transactions.abort(begun))
    given_up = side.do(connected.transactions.begin())
    assert side.do(connected.transactions.invalidate(given_up)) is True
    assert side.do(connected.transactions.get(given_up)).state == "INVALID"


def test_the_older_way_publishes_and_rolls_back(side, connected):
    orders = connected.topic("orders")
    begun = side.do(connected.transactions.begin())
    published = side.do(orders.publish(["a", "b"], write_pointer=begun.write_pointer))
    assert (published.write_pointer, published.end_sequence - published.start_sequence) == (begun.write_pointer, 1)
    reader = orders.read()
    assert everything(side, reader) == []
    assert reader.held_by == begun.id
    assert side.do(orders.holder()).held_by == begun.id
    assert [message.state for message in side.do(orders.peek())] == ["open", "open"]
    for _ in range(2):
        side.do(orders.roll_back(published))
    side.do(connected.transactions.abort(begun))
    assert {message.state for message in side.do(orders.peek())} <= {"rolled back"}


def test_the_end_of_a_topic_is_found(side, connected):
    orders = connected.topic("orders")
    assert len(side.do(orders.poll("end"))) == 0
    side.do(orders.publish(["old", "older"]))
    later = orders.read("end")
    assert everything(side, later) == []
    side.do(orders.publish("new"))
    assert everything(side, orders.read(later.next_id)) == [b"new"] or later.next_id is None
    assert everything(side, orders.read(stop="end")) == [b"old", b"older", b"new"]
    assert everything(side, orders.read("-1h")) == [b"old", b"older", b"new"]


def test_following_delivers_what_comes_later(side, connected):
    orders = connected.topic("orders")
    if side.name == "blocking":
        read = threading.Event()

        def publish() -> None:
            while not read.wait(0.05):  # again: what is published before the reader has looked for the end is not later
                orders.publish("late")

        publisher = threading.Thread(target=publish)
        publisher.start()
        assert next(orders.read("end", follow=True)).payload == b"late"
        read.set()
        publisher.join()
        return

    async def follow() -> bytes:
        reader = orders.read("start", follow=True)
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.05)
        await orders.publish("late")
        return (await waiting).payload

    assert side.do(follow()) == b"late"


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_cancelled_long_poll_ends_at_once(side, connected):
    async def cancel() -> None:
        waiting = asyncio.ensure_future(connected.topic("orders").poll(wait_ms=60_000))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    side.do(asyncio.wait_for(cancel(), 50))  # the poll itself would take longer


def test_records_keep_what_goes_with_them(side, connected):
    orders = connected.topic("orders")
    record = RecordIn(b"payload", key=b"key", headers=(("trace", b"\xff"),), event_time_ms=5, ttl_ms=60_000)
    side.do(orders.publish_records([record, RecordIn(b"plain")]))
    page = side.do(orders.poll())
    assert [message.payload for message in page] == [b"payload", b"plain"]
    shown = side.do(orders.message(page[0].id))
    assert (shown.content, shown.key, shown.event_time_ms, shown.state) == (b"payload", "key", 5, "plain")
    assert shown.headers[0].value_base64 == b"\xff"


def test_figures_count_what_is_there(side, connected):
    orders = connected.topic("orders")
    side.do(orders.publish([b"12345"] * 3))
    stats = side.do(orders.stats())
    assert (stats.messages, stats.bytes) == (3, 15)
    assert stats.oldest_ms is not None
    assert stats.newest_ms is not None


def test_bad_input_is_refused_by_name(side, connected):
    with pytest.raises(InputError) as raised:
        side.do(connected.topic("no such name!").poll())
    assert raised.value.code == "invalid_name"
    with pytest.raises(InputError) as raised:
        side.do(connected.topic("orders").poll(transaction=b"nonsense"))
    assert raised.value.request_id
    with pytest.raises(MalformedBodyError):
        side.do(connected.topic("orders").publish_records([]))


def test_operators_are_answered(side, connected):
    assert side.do(connected.ready())
    assert side.do(connected.live()) is True
    assert side.do(connected.version()).name == "basalt"
    assert side.do(connected.version()).version == basalt.__version__
    admin = connected.admin
    assert "shop" in side.do(admin.namespaces())
    for answer in (
        admin.topics(),
        admin.topics(namespace="shop"),
        admin.jobs(),
        admin.settings(),
        admin.store(),
        admin.alerts(),
        admin.process(),
    ):
        assert side.do(answer)
    assert side.do(admin.snapshot())


# --- the store in a directory ---


def connect(side, url: str, settings: Mapping[str, str] | None = None) -> Any:
    door = basalt.connect if side.name == "blocking" else basalt.aio.connect
    return side.keep(door(url, settings=settings))


def test_a_directory_keeps_what_was_published(side, tmp_path: Path):
    for run in range(3):
        client = connect(side, f"embedded:{tmp_path / 'data'}")
        if run == 0:
            side.do(client.topics.create("orders"))
        side.do(client.topic("orders").publish(f"run {run}"))
        assert len(side.do(client.topic("orders").poll())) == run + 1
        side.do(client.close())


def test_a_directory_that_is_open_elsewhere_is_refused_by_name(side, tmp_path: Path):
    first = connect(side, f"embedded:{tmp_path}")
    with pytest.raises(BasaltError) as raised:
        connect(side, f"embedded:{tmp_path}")
    assert str(tmp_path) in str(raised.value)
    side.do(first.topics.create("still-works"))


def test_a_client_that_was_not_closed_does_not_keep_the_process(tmp_path: Path):
    code = (
        "import sys, basalt\n"
        "client = basalt.connect('embedded:' + sys.argv[1])\n"
        "client.topics.create('orders')\n"
        "client.topic('orders').publish('kept')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with basalt.connect(f"embedded:{tmp_path}") as client:
        assert [message.payload for message in client.topic("orders").read()] == [b"kept"]


def test_settings_of_an_embedded_server_are_checked(tmp_path: Path):
    with pytest.raises(InputError, match=r"store\.kine"):
        basalt.connect(f"embedded:{tmp_path}", settings={"store.kine": "memory"})


def test_a_block_can_be_entered_once(side, connected):
    with transaction(side, connected) as tx:
        pass
    with pytest.raises(TransactionEndedError):
        if side.name == "blocking":
            tx.__enter__()
        else:
            side.do(tx.__aenter__())
    assert isinstance(tx._scope, OpenTransaction)
