"""What each method sends: one row per call, without a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from basalt.api.bodies.messages import PublishResponse, Record, check_rollback, check_store
from basalt.api.bodies.transactions import TransactionInfo
from basalt.api.codecs import avro, avro_values, batches
from basalt.client.calls import admin, messages, topics, transactions
from basalt.client.calls.messages import position
from basalt.client.calls.pages import Message
from basalt.client.calls.payloads import RecordIn
from basalt.client.consumer import processing
from basalt.client.plans import Answer, Effect
from basalt.errors import InputError, MalformedBodyError, TooLargeError, UnavailableError
from tests.control.api.codecs import client_codecs

NOW_MS = 1_700_000_000_000  # the time of the scopes in conftest
ID = bytes(range(20))
INFO = TransactionInfo("42", 42, "OPEN")
PUBLISHED = PublishResponse(42, 1, 2, 3, 4)
HERE = "/v1/namespaces/shop/topics"
NONE, REPEATABLE, ONCE = Effect.NONE, Effect.REPEATABLE, Effect.ONCE

# plan, arguments, method and path, query, JSON body (None: none), effect
CLIENT_CALLS: list[tuple[Any, ...]] = [
    (topics.create, ["a"], {"ttl": 60, "on_invalid": "retain", "colour": "red"}, f"PUT {HERE}/a", {}, {"ttl": 60, "onInvalid": "retain", "colour": "red"}, ONCE),
    (topics.create, ["a"], {"scope": "x", "namespace": "far"}, "PUT /v1/namespaces/far/topics/a", {}, {"scope": "x"}, ONCE),
    (topics.create, ["a/../b c?"], {}, f"PUT {HERE}/a%2F..%2Fb%20c%3F", {}, {}, ONCE),
    (topics.update, ["a"], {"spread": 4}, f"PATCH {HERE}/a/properties", {}, {"spread": 4}, REPEATABLE),
    (topics.update, ["a"], {"ttl": 60, "unset": ["colour", "spread"]}, f"PATCH {HERE}/a/properties", {}, {"ttl": 60, "colour": None, "spread": None}, REPEATABLE),
    (topics.replace, ["a"], {"spread": 4}, f"PUT {HERE}/a/properties", {}, {"spread": 4}, REPEATABLE),
    (topics.get, ["a"], {}, f"GET {HERE}/a", {}, None, NONE),
    (topics.names, [], {}, f"GET {HERE}", {}, None, NONE),
    (topics.delete, ["a"], {}, f"DELETE {HERE}/a", {}, None, ONCE),
    (topics.delete, ["a"], {"dry_run": True}, f"DELETE {HERE}/a", {"dryRun": "true"}, None, NONE),
    (topics.delete, ["a"], {"reason": "old", "by": "ada"}, f"DELETE {HERE}/a", {"reason": "old", "as": "ada"}, None, ONCE),
    (topics.would_create, ["a"], {"ttl": 5}, f"PUT {HERE}/a", {"dryRun": "true"}, {"ttl": 5}, NONE),
    (topics.would_update, ["a"], {"unset": ["ttl"]}, f"PATCH {HERE}/a/properties", {"dryRun": "true"}, {"ttl": None}, NONE),
    (topics.update, ["a"], {"ttl": 5, "reason": "why"}, f"PATCH {HERE}/a/properties", {"reason": "why"}, {"ttl": 5}, REPEATABLE),
    (transactions.begin, [], {}, "POST /v1/transactions", {}, {}, REPEATABLE),
    (transactions.begin, [], {"kind": "long", "timeout_ms": 5, "owner": "me", "external_writes": True, "snapshot": False}, "POST /v1/transactions", {}, {"kind": "long", "timeoutMs": 5, "owner": "me", "externalWrites": True, "snapshot": False}, REPEATABLE),
    (transactions.get, ["42"], {}, "GET /v1/transactions/42", {}, None, NONE),
    (transactions.open_ones, [], {}, "GET /v1/transactions", {}, None, NONE),
    (transactions.commit, [INFO], {}, "POST /v1/transactions/42/commit", {}, None, REPEATABLE),
    (transactions.abort, ["42"], {}, "POST /v1/transactions/42/abort", {}, None, REPEATABLE),
    (transactions.invalidate, ["42"], {}, "POST /v1/transactions/42/invalidate", {}, None, ONCE),
    (transactions.checkpoint, ["42"], {}, "POST /v1/transactions/42/checkpoint", {}, None, REPEATABLE),
    (transactions.changes, ["42", [b"k", b"\xff"]], {}, "POST /v1/transactions/42/changes", {}, {"changes": ["aw==", "/w=="]}, REPEATABLE),
    (admin.namespaces, [], {}, "GET /v1/admin/namespaces", {}, None, NONE),
    (admin.topics_page, [], {}, "GET /v1/admin/topics", {}, None, NONE),
    (admin.topics_page, [], {"namespace": "shop", "contains": "or", "deleted": True, "sort": "rate", "descending": True, "after": "shop:a", "limit": 5, "figures": True}, "GET /v1/admin/topics", {"namespace": "shop", "contains": "or", "deleted": "true", "sort": "rate", "descending": "true", "after": "shop:a", "limit": "5", "figures": "true"}, None, NONE),
    (admin.jobs, [], {}, "GET /v1/admin/jobs", {}, None, NONE),
    (admin.job, ["retention"], {}, "GET /v1/admin/jobs/retention", {}, None, NONE),
    (admin.cluster, [], {}, "GET /v1/admin/cluster", {}, None, NONE),
    (admin.cluster_members, [], {}, "GET /v1/cluster", {}, None, NONE),
    (
        admin.move_shards, ["m1"], {"topic": "orders", "dry_run": True}, "POST /v1/admin/cluster/moves", {"dryRun": "true"},
        {"to": "m1", "namespace": "shop", "topic": "orders", "shards": []}, REPEATABLE,
    ),
    (
        admin.move_shards, ["m1"], {"shards": [3, 5], "reason": "load"}, "POST /v1/admin/cluster/moves", {"reason": "load"},
        {"to": "m1", "namespace": None, "topic": None, "shards": [3, 5]}, REPEATABLE,
    ),
    (
        admin.drain_member, ["m 1"], {"dry_run": True}, "POST /v1/admin/cluster/members/m%201/drain", {"dryRun": "true"}, None, REPEATABLE,
    ),
    (
        admin.undrain_member, ["m1"], {"reason": "back"}, "POST /v1/admin/cluster/members/m1/undrain", {"reason": "back"}, None, REPEATABLE,
    ),
    (admin.balance_shards, [], {"dry_run": True}, "POST /v1/admin/cluster/balance", {"dryRun": "true"}, None, REPEATABLE),
    (admin.cluster_shards, [], {}, "GET /v1/admin/cluster/shards", {}, None, NONE),
    (admin.topic_owner, ["a b"], {}, "GET /v1/cluster/owners/shop/a%20b", {}, None, NONE),
    (admin.table_owner, ["orders"], {"namespace": "n"}, "GET /v1/cluster/owners/n/tables/orders", {}, None, NONE),
    (admin.explain_topic, ["orders"], {}, "GET /v1/admin/namespaces/shop/topics/orders/explain", {}, None, NONE),
    (admin.prune_invalid, [], {"after": 5, "limit": 2}, "GET /v1/admin/prune/invalid", {"after": "5", "limit": "2"}, None, NONE),
    (
        admin.prune_compact, ["m1", "m2"], {"dry_run": True}, "POST /v1/admin/prune/compact", {"dryRun": "true"},
        {"regions": ["m1", "m2"]}, REPEATABLE,
    ),
    (admin.run_job, ["retention"], {}, "POST /v1/admin/jobs/retention/run", {}, None, ONCE),
    (
        admin.pause_job, ["retention"], {"dry_run": True, "reason": "disk"}, "POST /v1/admin/jobs/retention/pause",
        {"dryRun": "true", "reason": "disk"}, None, REPEATABLE,
    ),
    (admin.resume_job, ["retention"], {}, "POST /v1/admin/jobs/retention/resume", {}, None, REPEATABLE),
    (admin.job_history, ["retention"], {"limit": 3}, "GET /v1/admin/jobs/retention/history", {"limit": "3"}, None, NONE),
    (admin.settings, [], {}, "GET /v1/admin/settings", {}, None, NONE),
    (admin.set_settings, [{"log.level": "debug"}], {"dry_run": True, "reason": "slow", "by": "me"}, "PATCH /v1/admin/settings", {"dryRun": "true", "reason": "slow", "as": "me"}, {"log.level": "debug"}, REPEATABLE),
    (admin.alerts, [], {}, "GET /v1/admin/alerts", {}, None, NONE),
    (admin.alerts, [], {"everything": True}, "GET /v1/admin/alerts", {"all": "true"}, None, NONE),
    (admin.process, [], {}, "GET /v1/admin/process", {}, None, NONE),
    (admin.store, [], {}, "GET /v1/admin/store", {}, None, NONE),
    (admin.snapshot, [], {}, "GET /v1/admin/snapshot", {}, None, NONE),
    (admin.backup, ["nightly"], {}, "POST /v1/admin/backups", {}, {"name": "nightly"}, ONCE),
    (admin.backups, [], {}, "GET /v1/admin/backups", {}, None, NONE),
    (admin.verify_backup, ["nightly"], {"start": "000012.sst"}, "POST /v1/admin/backups/nightly/verify", {"start": "000012.sst"}, None, REPEATABLE),
    (admin.delete_backup, ["nightly"], {"reason": "old", "by": "me"}, "DELETE /v1/admin/backups/nightly", {"reason": "old", "as": "me"}, None, ONCE),
    (admin.ready, [], {}, "GET /readyz", {}, None, NONE),
    (admin.live, [], {}, "GET /livez", {}, None, NONE),
    (admin.version, [], {}, "GET /v1", {}, None, NONE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "args", "kwargs", "line", "query", "body", "effect"),
    CLIENT_CALLS,
    ids=[f"{row[0].__name__}-{number}" for number, row in enumerate(CLIENT_CALLS)],
)
def test_calls_of_a_client(scope, play, plan, args, kwargs, line, query, body, effect):
    (call,) = play(plan(scope, *args, **kwargs)).calls
    assert f"{call.method} {call.path}" == line
    assert dict(call.query) == query
    assert (json.loads(call.body) if call.body else None) == body
    assert call.content_type == (None if body is None else "application/json")
    assert call.effect is effect


def test_calls_of_a_topic(topic_scope, play):
    here = f"{HERE}/orders"
    rows: list[tuple[Any, ...]] = [
        (messages.publish(topic_scope, b"a"), f"POST {here}/publish", avro.decode_publish_request, ONCE),
        (
            messages.publish(topic_scope, [], write_pointer=42),
            f"POST {here}/publish",
            avro.decode_publish_request,
            ONCE,
        ),
        (
            messages.store(topic_scope, "a", INFO),
            f"POST {here}/store",
            partial(avro.decode_publish_request, check=check_store),
            ONCE,
        ),
        (
            messages.roll_back(topic_scope, PUBLISHED),
            f"POST {here}/rollback",
            partial(avro.decode_publish_response, check=check_rollback),
            REPEATABLE,
        ),
        (messages.poll(topic_scope, ID), f"POST {here}/poll", avro.decode_consume_request, NONE),
        (
            messages.publish_records(topic_scope, [RecordIn(b"p", key=b"k")]),
            f"POST {here}/records",
            avro.decode_records_request,
            ONCE,
        ),
        (topics.stats(topic_scope), f"GET {here}/stats", None, NONE),
        (topics.peek(topic_scope, limit=3), f"GET {here}/messages", None, NONE),
        (topics.holder(topic_scope), f"GET {here}/holder", None, NONE),
        (topics.message(topic_scope, ID), f"GET {here}/messages/{ID.hex()}", None, NONE),
    ]
    for plan, line, decode, effect in rows:
        (call,) = play(plan).calls
        assert f"{call.method} {call.path}" == line
        assert call.effect is effect
        if decode is not None:
            decode(call.body)
            assert call.content_type == "avro/binary"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("start", None),
        (ID, ID),
        (ID.hex(), ID),
        (Message(ID, b""), ID),
        (1_234, 1_234),
        (datetime.fromtimestamp(5, UTC), 5_000),
        (datetime(1970, 1, 1, 2, 0, 0, 1_999, tzinfo=timezone(timedelta(hours=2))), 1),
        ("now", NOW_MS),
        ("-1h", NOW_MS - 3_600_000),
        ("@17", 17),
    ],
)
def test_positions_that_a_poll_takes(topic_scope, play, given, expected):
    (call,) = play(messages.poll(topic_scope, given)).calls
    assert avro.decode_consume_request(call.body).start_from == expected


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (b"short", InputError, "20 bytes"),
        ("zz", InputError, "not a position"),
        (-1, InputError, "not a time"),
        (datetime(2026, 1, 1), InputError, "time zone"),
        (True, TypeError, "bool"),
        (1.5, TypeError, "float"),
    ],
)
def test_positions_that_are_none(topic_scope, play, given, error, says):
    with pytest.raises(error, match=says):
        plan = messages.poll(topic_scope, given)
        raise play(plan).raised


def test_what_a_poll_may_see(topic_scope, play):
    def query_and_snapshot(**arguments):
        (call,) = play(messages.poll(topic_scope, **arguments)).calls
        return dict(call.query), avro.decode_consume_request(call.body).transaction, call.wait_ms

    assert query_and_snapshot() == ({"isolation": "committed"}, None, 0)
    assert query_and_snapshot(isolation="uncommitted", wait_ms=9) == ({"isolation": "uncommitted"}, None, 9)
    assert query_and_snapshot(transaction="42") == ({"transaction": "42"}, None, 0)
    assert query_and_snapshot(transaction=INFO) == ({"transaction": "42"}, None, 0)
    assert query_and_snapshot(transaction=b"codec") == ({}, b"codec", 0)
    refused = play(messages.poll(topic_scope, transaction="42", isolation="uncommitted"))
    assert isinstance(refused.raised, InputError)
    assert not refused.calls


def test_a_poll_from_the_end_asks_where_that_is(topic_scope, play):
    find = messages.poll(topic_scope, "end")
    at = position(ID, NOW_MS)
    played = play(find, at)
    assert played.calls[0].path == f"{HERE}/orders/records"
    assert dict(played.calls[0].query) == {
        "from": "end", "inclusive": "false", "limit": "1", "isolation": "uncommitted",
    }  # fmt: skip
    assert avro.decode_consume_request(played.calls[1].body).start_from == ID


def test_the_end_of_a_topic_is_read_from_the_answer(topic_scope, play):
    (call,) = play(messages.end(topic_scope)).calls
    nothing = avro_values.END_OF_ARRAY
    record = client_codecs.encode_avro_records([Record(ID, b"new")])
    assert call.parse(Answer(200, {}, nothing)).text == "start"  # an empty topic
    assert call.parse(Answer(200, {"basalt-next": ID.hex()}, nothing)).id == ID[:-1] + bytes([ID[-1] + 1])
    assert call.parse(Answer(200, {"basalt-next": "ff" * 20}, record)).id == ID  # it came while we asked


def test_a_pages_headers_are_read(topic_scope, play):
    (call,) = play(messages.poll(topic_scope)).calls
    headers = {"content-type": call.accept, "basalt-next": ID.hex(), "basalt-held-by": "42"}
    page = call.parse(Answer(200, headers, batches.START + batches.END))
    assert (page.next_id, page.held_by, page.view_age_ms, len(page)) == (ID, "42", None, 0)
    aged = call.parse(Answer(200, {**headers, "basalt-view-age": "1500"}, batches.START + batches.END))
    assert (aged.held_by, aged.view_age_ms) == ("42", 1_500)


def test_a_poll_asks_for_batches_and_takes_nothing_else(topic_scope, play):
    (call,) = play(messages.poll(topic_scope)).calls
    assert call.accept == "application/vnd.basalt.batches"
    in_batches = batches.START + batches.encode_list([ID], [b"a"]) + batches.END
    for media_type in (call.accept, "Application/VND.Basalt.Batches; x=y"):
        assert list(call.parse(Answer(200, {"content-type": media_type}, in_batches))) == [Message(ID, b"a")]
    with pytest.raises(ValueError, match="no message batches"):
        call.parse(Answer(200, {"content-type": "application/json"}, b"[]"))


def test_a_flat_topic_is_read_too(scope, play):
    (call,) = play(topics.get(scope, "a")).calls
    nested = call.parse(Answer(200, {}, b'{"name": "a", "properties": {"ttl": "60", "generation": "3"}}'))
    flat = call.parse(Answer(200, {}, b'{"ttl": "60", "generation": "3"}'))
    assert nested == flat
    assert (flat.name, flat.ttl_seconds, flat.generation) == ("a", 60, 3)


def test_a_transaction_is_read_whole(scope, play):
    (call,) = play(transactions.get(scope, "7")).calls
    body = {
        "id": "1700000000000000001",
        "writePointer": 1_700_000_000_000_000_001,
        "readPointer": 9_007_199_254_740_993,
        "state": "OPEN",
        "kind": "long",
        "owner": "me",
        "beganMs": 5,
        "expiresMs": 6,
        "topics": [{"namespace": "shop", "topic": "a", "generation": 3}],
        "externalWrites": True,
        "transaction": "AAE=",
        "somethingNew": 1,
    }
    info = call.parse(Answer(200, {}, json.dumps(body).encode()))
    assert info.write_pointer == 1_700_000_000_000_000_001
    assert info.read_pointer == 9_007_199_254_740_993
    assert (info.began_ms, info.expires_ms, info.transaction) == (5, 6, b"\x00\x01")
    assert info.topics[0].topic == "a"
    assert info.external_writes


def test_an_atomic_publish_is_one_body_with_all_topics(scope, play):
    plan = processing.publish_atomically(scope, {"a": ["1", b"2"], ("far", "b"): "3", "empty": []})
    (call,) = play(plan).calls
    work = avro.decode_work(call.body)
    assert [(entry.namespace, entry.topic, [bytes(m) for m in entry.messages]) for entry in work.publish] == [
        ("shop", "a", [b"1", b"2"]),
        ("far", "b", [b"3"]),
    ]
    assert (call.effect, call.content_type) == (REPEATABLE, "avro/binary")


@pytest.mark.parametrize("messages_given", [["x"] * 65_537, ["x" * 6_000_000] * 2])
def test_an_atomic_publish_that_does_not_fit_is_refused_before_it_is_sent(scope, play, messages_given):
    played = play(processing.publish_atomically(scope, {"a": messages_given}))
    assert isinstance(played.raised, TooLargeError)
    assert played.calls == []


def test_a_long_publish_is_cut_into_few_requests(topic_scope, play):
    plan = messages.publish(topic_scope, (b"x" for _ in range(140_000)))
    counts = [len(avro.decode_publish_request(call.body).messages) for call in play(plan).calls]
    assert counts == [65_536, 65_536, 140_000 - 2 * 65_536]


def test_requests_stay_below_the_body_limit(topic_scope, play):
    calls = play(messages.publish(topic_scope, [b"x" * 3_000_000] * 7)).calls
    assert [len(avro.decode_publish_request(call.body).messages) for call in calls] == [3, 3, 1]
    assert max(len(call.body) for call in calls) <= 10 * 1024 * 1024


def test_the_largest_message_still_goes_alone(topic_scope, play):
    calls = play(messages.publish(topic_scope, [b"s", b"x" * 10_485_000, b"s"])).calls
    assert [len(avro.decode_publish_request(call.body).messages) for call in calls] == [1, 1, 1]


def test_an_empty_publish_sends_nothing(topic_scope, play):
    assert play(messages.publish(topic_scope, [])).calls == []


def test_what_is_no_message_is_named(topic_scope, play):
    given: list[Any] = [[1], [None], 5, [{"a": 1}]]
    for bad in given:
        with pytest.raises(TypeError):
            play(messages.publish(topic_scope, bad))


def test_views_of_any_shape_are_bytes(topic_scope, play):
    numbers = memoryview(bytearray(range(8))).cast("I")
    (call,) = play(messages.publish(topic_scope, [numbers, bytearray(b"b")])).calls
    assert [bytes(m) for m in avro.decode_publish_request(call.body).messages] == [bytes(range(8)), b"b"]


def test_a_publish_in_parts_answers_its_whole_range(topic_scope, play):
    answers = [PublishResponse(42, 1, 0, 2, 65_535), PublishResponse(42, 3, 0, 3, 7)]
    played = play(messages.publish(topic_scope, [b"x"] * 65_537, write_pointer=42), *answers)
    assert played.result == PublishResponse(42, 1, 0, 3, 7)


def test_a_publish_that_fails_half_way_tells_how_far_it_came(topic_scope, play):
    played = play(messages.publish(topic_scope, [b"x"] * 65_537), None, UnavailableError("gone"))
    assert isinstance(played.raised, UnavailableError)
    assert "first 65536 messages" in played.raised.__notes__[0]


def test_a_limit_that_means_nothing_is_refused_before_it_is_sent(topic_scope, play):
    played = play(messages.poll(topic_scope, limit=0))
    assert isinstance(played.raised, MalformedBodyError)
    assert played.calls == []
