"""The retention rule: each row of its table, an independent model, and that only positive knowledge drops anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine import retention
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MessageKey, PayloadKey
from basalt_engine.messages import decode_row
from basalt_engine.retention import (
    ALL_ONES_MS,
    CLOCK_SET_BACK_MS,
    Fate,
    OnInvalid,
    TopicRule,
    Verdict,
    is_old_generation,
    judge_message,
    judge_payload,
)
from basalt_engine.snapshot import POINTERS_PER_MS, InvalidList, TransactionSnapshot
from basalt_engine.table import Row
from tests.vector_lines import cases, unhex

relaxed = settings(deadline=None)

PREFIX = b"shop:orders:"
# Verdicts over versions of cells, which have a table and vectors of their own.
OF_CELLS = {retention.UNREADABLE, retention.UNKNOWN_TABLE, retention.SUPERSEDED, retention.DELETED}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "retention.md"
TTL_MS, LIFETIME_MS = 100, 1_000

DROPPING = TopicRule(2, TTL_MS, OnInvalid.DROP)
RETAINING = TopicRule(2, TTL_MS, OnInvalid.RETAIN)
DELETED = TopicRule(-2, TTL_MS, OnInvalid.DROP)
SNAPSHOT = TransactionSnapshot(50, in_progress=(30,), invalid=InvalidList((10, 20)))


def message(generation: int = 2, publish_ms: int = 1_000) -> MessageKey:
    return MessageKey(0, PREFIX, generation, publish_ms, 5)


def payload(
    generation: int = 2, write_pointer: int = 40, write_ms: int = 1_000, payload_sequence: int = 0
) -> PayloadKey:
    return PayloadKey(0, PREFIX, generation, write_pointer, write_ms, payload_sequence)


# The rows of the table in docs/formats/retention.md, each a hair on either side.

NOW = 1_050  # the message of 1,000 lives until 1,100


@pytest.mark.parametrize(
    ("verdict", "key", "written_by", "expire_ms", "topic", "snapshot", "now_ms"),
    [
        (retention.UNKNOWN_TOPIC, message(), None, None, None, SNAPSHOT, NOW),
        (retention.UNKNOWN_TOPIC, message(1), -10, 0, None, SNAPSHOT, 10**9),
        (retention.OLD_GENERATION, message(1), None, None, DROPPING, SNAPSHOT, NOW),
        (retention.OLD_GENERATION, message(1), -10, None, RETAINING, None, NOW),
        (retention.OLD_GENERATION, message(2), None, None, DELETED, SNAPSHOT, NOW),
        (retention.NO_TRANSACTION, message(2), None, None, DROPPING, SNAPSHOT, NOW),
        (retention.NO_TRANSACTION, message(3), None, None, DROPPING, SNAPSHOT, NOW),
        (retention.NO_TRANSACTION, message(3), None, None, DELETED, SNAPSHOT, NOW),
        (retention.NO_TRANSACTION, message(), None, None, DROPPING, SNAPSHOT, 1_099),
        (retention.EXPIRED, message(), None, None, DROPPING, SNAPSHOT, 1_100),
        (retention.EXPIRED, message(), -10, None, RETAINING, None, 1_100),
        (retention.NO_TRANSACTION, message(), None, 1_010, DROPPING, SNAPSHOT, 1_009),
        (retention.EXPIRED, message(), None, 1_010, DROPPING, SNAPSHOT, 1_010),
        (retention.EXPIRED, message(), 40, 1_010, RETAINING, None, 1_010),
        (retention.EXPIRED, message(), None, 2_000, DROPPING, SNAPSHOT, 1_100),
        (retention.NO_TRANSACTION, message(), None, None, DROPPING, None, NOW),
        (retention.ROLLED_BACK, message(), -40, None, DROPPING, SNAPSHOT, NOW),
        (retention.ROLLED_BACK, message(), -40, None, DROPPING, None, NOW),
        (retention.ROLLED_BACK_RETAINED, message(), -40, None, RETAINING, SNAPSHOT, NOW),
        (retention.ROLLED_BACK_RETAINED, message(), -10, None, RETAINING, SNAPSHOT, NOW),
        (retention.NO_SNAPSHOT, message(), 10, None, DROPPING, None, NOW),
        (retention.NO_SNAPSHOT, message(), 10, None, RETAINING, None, NOW),
        (retention.INVALID, message(), 10, None, DROPPING, SNAPSHOT, NOW),
        (retention.INVALID, message(), 20, None, DROPPING, SNAPSHOT, NOW),
        (retention.INVALID_RETAINED, message(), 10, None, RETAINING, SNAPSHOT, NOW),
        (retention.LIVE, message(), 9, None, DROPPING, SNAPSHOT, NOW),
        (retention.LIVE, message(), 30, None, DROPPING, SNAPSHOT, NOW),
        (retention.LIVE, message(), 60, None, DROPPING, SNAPSHOT, NOW),
    ],
)
def test_a_message_row_gets_the_verdict_of_the_table(
    verdict: Verdict,
    key: MessageKey,
    written_by: int | None,
    expire_ms: int | None,
    topic: TopicRule | None,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
) -> None:
    assert judge_message(key, written_by, expire_ms, topic, snapshot, now_ms) == verdict


BOUND = payload(write_pointer=1_000 * POINTERS_PER_MS + 7, write_ms=ALL_ONES_MS, payload_sequence=0xFFFF)
FAILED_BOUND = TransactionSnapshot(0, invalid=InvalidList((BOUND.write_pointer,)))


@pytest.mark.parametrize(
    ("verdict", "key", "topic", "snapshot", "now_ms"),
    [
        (retention.UNKNOWN_TOPIC, payload(1, 10), None, SNAPSHOT, 10**9),
        (retention.OLD_GENERATION, payload(1), DROPPING, None, NOW),
        (retention.OLD_GENERATION, payload(2), DELETED, SNAPSHOT, NOW),
        (retention.LIVE, payload(3), DELETED, SNAPSHOT, NOW),
        (retention.LIVE, payload(), DROPPING, SNAPSHOT, 1_100),  # a reference may be published yet
        (retention.LIVE, payload(), DROPPING, SNAPSHOT, 2_099),
        (retention.EXPIRED, payload(), DROPPING, SNAPSHOT, 2_100),
        (retention.EXPIRED, payload(), RETAINING, None, 2_100),
        (retention.NO_SNAPSHOT, payload(write_pointer=10), DROPPING, None, NOW),
        (retention.INVALID, payload(write_pointer=10), DROPPING, SNAPSHOT, NOW),
        (retention.INVALID_PAYLOAD_RETAINED, payload(write_pointer=10), RETAINING, SNAPSHOT, NOW),
        (retention.LIVE, payload(write_pointer=30), DROPPING, SNAPSHOT, NOW),
        (retention.LIVE, BOUND, DROPPING, SNAPSHOT, 2_099),
        (retention.EXPIRED, BOUND, DROPPING, SNAPSHOT, 2_100),
        (retention.INVALID, BOUND, DROPPING, FAILED_BOUND, NOW),
    ],
)
def test_a_payload_row_gets_the_verdict_of_the_table(
    verdict: Verdict, key: PayloadKey, topic: TopicRule | None, snapshot: TransactionSnapshot | None, now_ms: int
) -> None:
    assert judge_payload(key, topic, snapshot, LIFETIME_MS, now_ms) == verdict


def test_the_page_lists_every_verdict_and_no_other() -> None:
    verdicts = {value for value in vars(retention).values() if isinstance(value, Verdict)} - OF_CELLS
    listed = re.findall(r"^\| \d[ab]? \|.*\| (keep|drop|roll back) \| `([a-z, ]+)` \|$", PAGE.read_text(), re.MULTILINE)
    unreadable = ("keep", "unreadable")  # whoever decodes the row says so; the rule never sees it
    assert {*listed} - {unreadable} == {(verdict.fate.value, verdict.reason) for verdict in verdicts}
    assert unreadable in listed


@pytest.mark.parametrize(
    ("generation", "current", "old"),
    [(1, 2, True), (2, 2, False), (3, 2, False), (1, -2, True), (2, -2, True), (3, -2, False), (1, 1, False)],
)
def test_a_generation_is_old_below_the_present_one_and_up_to_a_deleted_one(
    generation: int, current: int, old: bool
) -> None:
    assert is_old_generation(generation, current) == old


# Against a model that was written down the other way round: first what is known against a row, then what follows.

POINTERS = st.integers(1, 12)
GENERATIONS = st.integers(1, 4)
TIMES = st.integers(0, 30)
RULES = st.builds(
    TopicRule,
    st.builds(lambda generation, sign: generation * sign, GENERATIONS, st.sampled_from([1, -1])),
    st.integers(1, 20),
    st.sampled_from(OnInvalid),
    st.integers(0, 40) | st.integers(CLOCK_SET_BACK_MS, CLOCK_SET_BACK_MS + 60),
)
SNAPSHOTS = st.builds(
    lambda read, busy, failed: TransactionSnapshot(read, 0, tuple(sorted(busy)), InvalidList(tuple(sorted(failed)))),
    st.integers(0, 12),
    st.sets(POINTERS, max_size=3),
    st.sets(POINTERS, max_size=5),
)
MESSAGES = st.builds(message, GENERATIONS, TIMES)
WRITERS = st.none() | st.integers(-12, 12).filter(bool)
EXPIRIES = st.none() | st.integers(0, 60)
NOWS = st.integers(0, 60)


def generations_alive(topic: TopicRule) -> range:
    """The generations that a topic's rows may have: the present one, and those that it may get later."""
    return range(topic.generation if topic.generation > 0 else 1 - topic.generation, 10**6)


def naive_message(
    key: MessageKey,
    written_by: int | None,
    expire_ms: int | None,
    topic: TopicRule | None,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
    set_back_ms: int = 0,
) -> Verdict:
    if topic is None:
        return Verdict(Fate.KEEP, "unknown topic")
    against = []
    if key.generation not in generations_alive(topic):
        against.append("old generation")
    ends_ms = key.publish_ms + topic.ttl_ms
    if now_ms >= min(ends_ms, ends_ms if expire_ms is None else expire_ms):
        against.append("expired")
    if key.generation == topic.generation and key.publish_ms + set_back_ms < topic.truncated_before_ms:
        against.append("truncated")
    hidden = None
    if written_by is not None and written_by < 0:
        hidden = "rolled back"
    elif written_by is not None and snapshot is not None and written_by in set(snapshot.invalid.pointers):
        hidden = "invalid"
    if hidden and topic.on_invalid is OnInvalid.DROP:
        against.append(hidden)
    if against:
        return Verdict(Fate.DROP, against[0])
    if hidden:
        return Verdict(Fate.ROLL_BACK if hidden == "invalid" else Fate.KEEP, f"{hidden}, retained")
    if written_by is None:
        return Verdict(Fate.KEEP, "no transaction")
    return Verdict(Fate.KEEP, "no snapshot" if snapshot is None else "live")


def naive_payload(
    key: PayloadKey, topic: TopicRule | None, snapshot: TransactionSnapshot | None, lifetime_ms: int, now_ms: int
) -> Verdict:
    # A message that refers to it is published, at the latest, when its writer's time is up.
    written_ms = key.write_pointer // 1_000_000 if key.write_ms == 2**64 - 1 else key.write_ms
    stands_for = message(key.generation, written_ms + lifetime_ms)
    verdict = naive_message(stands_for, key.write_pointer, None, topic, snapshot, now_ms, CLOCK_SET_BACK_MS)
    if verdict.fate is Fate.ROLL_BACK:
        return Verdict(Fate.KEEP, "invalid payload, retained")
    return verdict


@settings(deadline=None, max_examples=200)
@given(MESSAGES, WRITERS, EXPIRIES, st.none() | RULES, st.none() | SNAPSHOTS, NOWS)
def test_the_rule_for_message_rows_agrees_with_the_model(
    key: MessageKey,
    written_by: int | None,
    expire_ms: int | None,
    topic: TopicRule | None,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
) -> None:
    expected = naive_message(key, written_by, expire_ms, topic, snapshot, now_ms)
    assert judge_message(key, written_by, expire_ms, topic, snapshot, now_ms) == expected


PAYLOADS = st.builds(payload, GENERATIONS, POINTERS, TIMES, st.just(0)) | st.builds(
    lambda generation, ms, count: payload(generation, ms * POINTERS_PER_MS + count, ALL_ONES_MS, 0xFFFF),
    GENERATIONS,
    TIMES,
    st.integers(1, 12),
)


@settings(deadline=None, max_examples=200)
@given(PAYLOADS, st.none() | RULES, st.none() | SNAPSHOTS, st.integers(0, 20), NOWS)
def test_the_rule_for_payload_rows_agrees_with_the_model(
    key: PayloadKey, topic: TopicRule | None, snapshot: TransactionSnapshot | None, lifetime_ms: int, now_ms: int
) -> None:
    expected = naive_payload(key, topic, snapshot, lifetime_ms, now_ms)
    assert judge_payload(key, topic, snapshot, lifetime_ms, now_ms) == expected


# Only positive knowledge drops.


@relaxed
@given(MESSAGES, PAYLOADS, WRITERS, EXPIRIES, st.none() | SNAPSHOTS, NOWS)
def test_a_row_of_an_unknown_topic_is_kept(
    key: MessageKey,
    stored: PayloadKey,
    written_by: int | None,
    expire_ms: int | None,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
) -> None:
    assert judge_message(key, written_by, expire_ms, None, snapshot, now_ms).fate is Fate.KEEP
    assert judge_payload(stored, None, snapshot, 0, now_ms).fate is Fate.KEEP


@relaxed
@given(MESSAGES, PAYLOADS, WRITERS, RULES, NOWS)
def test_without_a_snapshot_nobody_is_taken_to_have_failed(
    key: MessageKey, stored: PayloadKey, written_by: int | None, topic: TopicRule, now_ms: int
) -> None:
    known = {retention.OLD_GENERATION, retention.EXPIRED, retention.TRUNCATED, retention.ROLLED_BACK}
    for verdict in (
        judge_message(key, written_by, None, topic, None, now_ms),
        judge_payload(stored, topic, None, 0, now_ms),
    ):
        assert verdict.fate is Fate.KEEP or verdict in known


@settings(deadline=None, max_examples=200)
@given(MESSAGES, PAYLOADS, WRITERS, EXPIRIES, RULES, SNAPSHOTS, NOWS, st.data())
def test_who_knows_less_drops_less(
    key: MessageKey,
    stored: PayloadKey,
    written_by: int | None,
    expire_ms: int | None,
    topic: TopicRule,
    snapshot: TransactionSnapshot,
    now_ms: int,
    data: st.DataObject,
) -> None:
    """An older copy of the metadata, the snapshot or the clock leads to no drop that the newest one would not make."""
    older = topic._replace(generation=data.draw(st.integers(1, abs(topic.generation))))
    if older.generation == abs(topic.generation):
        older = data.draw(st.sampled_from([older, topic]))
    invalid = data.draw(st.sets(st.sampled_from(snapshot.invalid.pointers or (1,)))) & set(snapshot.invalid.pointers)
    staler = data.draw(st.sampled_from([None, snapshot._replace(invalid=InvalidList(tuple(sorted(invalid))))]))
    earlier_ms = data.draw(st.integers(0, now_ms))
    then = judge_message(key, written_by, expire_ms, older, staler, earlier_ms).fate
    if then is Fate.DROP:
        assert judge_message(key, written_by, expire_ms, topic, snapshot, now_ms).fate is Fate.DROP
    if judge_payload(stored, older, staler, 3, earlier_ms).fate is Fate.DROP:
        assert judge_payload(stored, topic, snapshot, 3, now_ms).fate is Fate.DROP


@relaxed
@given(MESSAGES, TIMES, TIMES, RULES, NOWS, SNAPSHOTS)
def test_a_payload_outlives_every_message_that_may_refer_to_it(
    key: MessageKey, write_ms: int, waits_ms: int, topic: TopicRule, now_ms: int, snapshot: TransactionSnapshot
) -> None:
    """Written at `write_ms`, referred to when its writer has lived for `waits_ms`, which is all that it may."""
    reference = key._replace(publish_ms=write_ms + waits_ms)
    stored = payload(key.generation, 40, write_ms)
    if judge_message(reference, 40, None, topic, snapshot, now_ms).fate is Fate.KEEP:
        assert judge_payload(stored, topic, snapshot, waits_ms, now_ms).fate is Fate.KEEP


@relaxed
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_no_sum_of_times_wraps(publish_ms: int, ttl_ms: int, now_ms: int) -> None:
    topic = TopicRule(1, ttl_ms)
    kept = judge_message(message(1, publish_ms), None, None, topic, None, now_ms).fate is Fate.KEEP
    assert kept == (now_ms - publish_ms < ttl_ms)


# Vectors.


def verdict_of(data: bytes, meaning: dict[str, Any]) -> Verdict:
    """As whoever scans the tables does it: decode the row, then judge it."""
    known = meaning["topic"]
    topic = (
        None
        if known is None
        else TopicRule(
            known["generation"], known["ttlMs"], OnInvalid(known["onInvalid"]), known.get("truncatedBeforeMs", 0)
        )
    )
    seen = meaning["snapshot"]
    snapshot = None
    if seen is not None:
        invalid = InvalidList(tuple(seen["invalid"]))
        snapshot = TransactionSnapshot(seen["readPointer"], in_progress=tuple(seen["inProgress"]), invalid=invalid)
    try:
        if meaning["table"] == "payload":
            return judge_payload(PayloadKey.decode(data), topic, snapshot, meaning["lifetimeMsMax"], meaning["nowMs"])
        key, row = MessageKey.decode(data), decode_row(Row(data, unhex(meaning["columns"])))
        return judge_message(key, row.written_by, row.expire_ms, topic, snapshot, meaning["nowMs"])
    except CorruptionError:
        return Verdict(Fate.KEEP, "unreadable")


@pytest.mark.parametrize(("data", "meaning"), cases("retention"))
def test_a_retention_vector_gets_its_verdict(data: bytes, meaning: dict[str, Any]) -> None:
    assert verdict_of(data, meaning) == Verdict(Fate(meaning["fate"]), meaning["reason"])


def test_the_vectors_hold_every_verdict() -> None:
    found = {(meaning["fate"], meaning["reason"]) for _, meaning in (case.values for case in cases("retention"))}
    verdicts = {value for value in vars(retention).values() if isinstance(value, Verdict)} - OF_CELLS
    assert found >= {(verdict.fate.value, verdict.reason) for verdict in verdicts}
