"""Row keys and message ids: they sort as their fields do, topics never mix, and every row is found again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError, InputError
from basalt_engine.keys import (
    GENERATION_MAX,
    MESSAGE_ID_BYTES,
    MessageId,
    MessageKey,
    PayloadKey,
    TopicKeys,
    base_bucket,
    position,
    position_fields,
    topic_prefix,
)
from basalt_engine.table import KEY_BYTES_MAX, prefix_stop
from tests.vector_lines import cases

relaxed = settings(deadline=None)

NAMES = st.text("abzAZ09_-.", min_size=1, max_size=4).filter(lambda name: name[0] != ".")
LONGS = st.integers(0, 2**63 - 1)
UNSIGNED = st.integers(0, 2**64 - 1)
SEQUENCES = st.integers(0, 65_535) | st.sampled_from([0, 1, 254, 255, 256, 257, 32_767, 32_768, 65_534, 65_535])
GENERATIONS = st.integers(0, GENERATION_MAX)
BUCKETS = st.integers(1, 256)
PREFIXES = st.builds(topic_prefix, NAMES, NAMES)


@st.composite
def topics(draw: st.DrawFn) -> TopicKeys:
    buckets = draw(BUCKETS)
    return TopicKeys(draw(PREFIXES), draw(GENERATIONS), buckets, draw(st.integers(1, buckets)))


def unsigned(value: int | str) -> int:
    """Numbers that a signed long does not hold are written as text in the vectors."""
    return int(value)


# Message ids.


@relaxed
@given(UNSIGNED, SEQUENCES, UNSIGNED, SEQUENCES)
def test_an_id_is_20_bytes_and_comes_back_as_it_was(ms: int, sequence: int, write_ms: int, stored: int) -> None:
    message_id = MessageId(ms, sequence, write_ms, stored)
    assert len(message_id.encode()) == MESSAGE_ID_BYTES
    assert MessageId.decode(message_id.encode()) == message_id


@relaxed
@given(st.lists(st.tuples(UNSIGNED, SEQUENCES, UNSIGNED, SEQUENCES), min_size=2, max_size=10))
def test_ids_sort_as_bytes_as_their_fields_do(fields: list[tuple[int, int, int, int]]) -> None:
    ids = [MessageId(*each) for each in fields]
    assert sorted(ids) == [MessageId.decode(data) for data in sorted(each.encode() for each in ids)]


@relaxed
@given(st.binary(min_size=MESSAGE_ID_BYTES, max_size=MESSAGE_ID_BYTES))
def test_any_20_bytes_are_a_position(data: bytes) -> None:
    assert MessageId.decode(data).encode() == data


@pytest.mark.parametrize("length", [0, 1, 8, 10, 19, 21, 40])
def test_an_id_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"these are {length}"):
        MessageId.decode(bytes(length))


@pytest.mark.parametrize(("data", "meaning"), cases("message-ids"))
def test_an_id_vector_has_its_meaning_and_its_bytes(data: bytes, meaning: dict[str, Any]) -> None:
    message_id = MessageId(
        unsigned(meaning["publishMs"]),
        meaning["sequence"],
        unsigned(meaning["writeMs"]),
        meaning["payloadSequence"],
    )
    assert MessageId.decode(data) == message_id
    assert message_id.encode() == data


# Row keys.


@relaxed
@given(topics(), UNSIGNED, SEQUENCES)
def test_a_message_key_comes_back_as_it_was(keys: TopicKeys, ms: int, sequence: int) -> None:
    key = keys.message_key(ms, sequence)
    decoded = MessageKey.decode(key)
    assert decoded == (key[0], keys.prefix, keys.generation, ms, sequence)
    assert decoded.encode() == key
    assert key[-10:] == position(ms, sequence)
    assert position_fields(key[-10:]) == (ms, sequence)


@relaxed
@given(topics(), LONGS, UNSIGNED, SEQUENCES)
def test_a_payload_key_comes_back_as_it_was(keys: TopicKeys, pointer: int, ms: int, sequence: int) -> None:
    key = keys.payload_key(pointer, ms, sequence)
    decoded = PayloadKey.decode(key)
    assert decoded == (key[0], keys.prefix, keys.generation, pointer, ms, sequence)
    assert decoded.encode() == key
    assert key.startswith(keys.payload_start(pointer))


@relaxed
@given(topics(), st.lists(st.tuples(UNSIGNED, SEQUENCES), min_size=2, max_size=10))
def test_message_keys_of_a_bucket_sort_as_time_and_sequence_do(keys: TopicKeys, places: list[tuple[int, int]]) -> None:
    keys = keys._replace(spread=1)
    assert sorted(keys.message_key(*place) for place in places) == [
        keys.message_key(*place) for place in sorted(places)
    ]


@relaxed
@given(topics(), LONGS, st.lists(st.tuples(UNSIGNED, SEQUENCES), min_size=2, max_size=10))
def test_payload_keys_of_a_writer_sort_as_time_and_sequence_do(
    keys: TopicKeys, pointer: int, places: list[tuple[int, int]]
) -> None:
    rows = [keys.payload_key(pointer, *place) for place in places]
    assert sorted(rows) == [keys.payload_key(pointer, *place) for place in sorted(places)]


@relaxed
@given(topics(), UNSIGNED, SEQUENCES)
def test_every_row_lies_in_a_bucket_that_is_scanned(keys: TopicKeys, ms: int, sequence: int) -> None:
    key = keys.message_key(ms, sequence)
    assert key[0] in keys.scanned()
    assert key.startswith(keys.message_start(key[0]))
    assert keys.message_start(key[0]) <= key < keys.message_stop(key[0])


@relaxed
@given(topics(), st.data())
def test_rows_of_a_narrower_spread_lie_in_the_buckets_of_a_wider_one(keys: TopicKeys, data: st.DataObject) -> None:
    narrower = keys._replace(spread=data.draw(st.integers(1, keys.spread)))
    key = narrower.message_key(data.draw(UNSIGNED), data.draw(SEQUENCES))
    assert key[0] in keys.scanned()


@relaxed
@given(topics())
def test_the_scanned_buckets_are_neighbours_from_the_base_bucket_on(keys: TopicKeys) -> None:
    first = base_bucket(keys.prefix, keys.buckets)
    assert keys.scanned() == tuple((first + turn) % keys.buckets for turn in range(keys.spread))
    assert len(set(keys.scanned())) == keys.spread


@pytest.mark.parametrize(("buckets", "spread"), [(16, 1), (16, 3), (16, 16), (256, 7)])
def test_neighbouring_places_take_all_buckets_in_turn(buckets: int, spread: int) -> None:
    keys = TopicKeys(b"a:b:", 1, buckets, spread)
    for first in (0, 65_536 - spread):
        salts = {keys.message_key(1_700_000_000_000, first + turn)[0] for turn in range(spread)}
        assert salts == set(keys.scanned())


def test_a_spread_beyond_the_buckets_uses_each_bucket_once() -> None:
    keys = TopicKeys(b"a:b:", 1, 4, 9)
    assert sorted(keys.scanned()) == [0, 1, 2, 3]
    assert {keys.message_key(ms, 0)[0] for ms in range(9)} == {0, 1, 2, 3}


@relaxed
@given(topics(), topics(), st.tuples(UNSIGNED, SEQUENCES), LONGS)
def test_no_range_of_a_topic_or_generation_holds_a_row_of_another(
    mine: TopicKeys, other: TopicKeys, place: tuple[int, int], pointer: int
) -> None:
    if mine[:2] == other[:2]:
        return
    rows = [other.message_key(*place), other.payload_key(pointer, *place)]
    for salt in range(mine.buckets):
        start, stop = mine.message_start(salt), mine.message_stop(salt)
        assert not any(start <= row < stop for row in rows)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (("shop", "orders"), ("shop", "orders-2")),
        (("shop", "orders"), ("shop", "order")),
        (("shop", "a"), ("shop", "a_")),
        (("a", "b"), ("a-", "b")),
        (("ab", "c"), ("a", "bc")),
        (("a", "b"), ("a", "b0")),
        (("a", "b"), ("a", "b.c")),
        (("a.b", "c"), ("a", "b.c")),
    ],
)
def test_a_name_that_starts_another_shares_no_prefix(mine: tuple[str, str], other: tuple[str, str]) -> None:
    assert not topic_prefix(*other).startswith(topic_prefix(*mine))
    assert not topic_prefix(*mine).startswith(topic_prefix(*other))


@relaxed
@given(topics(), LONGS, LONGS, st.tuples(UNSIGNED, SEQUENCES))
def test_no_range_of_a_writer_holds_a_payload_of_another(
    keys: TopicKeys, mine: int, other: int, place: tuple[int, int]
) -> None:
    start = keys.payload_start(mine)
    stop = prefix_stop(start)
    assert stop is not None
    assert (start <= keys.payload_key(other, *place) < stop) == (mine == other)


@relaxed
@given(topics(), LONGS, st.data())
def test_a_writers_payloads_stay_in_one_bucket_whatever_the_spread(
    keys: TopicKeys, pointer: int, data: st.DataObject
) -> None:
    wider = keys._replace(spread=data.draw(st.integers(1, keys.buckets)))
    assert wider.payload_start(pointer) == keys.payload_start(pointer)
    assert keys.payload_start(pointer)[0] < keys.buckets


def test_the_writers_of_one_topic_are_spread_over_all_buckets() -> None:
    keys = TopicKeys(b"shop:orders:", 1, 16)
    assert {keys.payload_start(pointer)[0] for pointer in range(1, 200)} == set(range(16))


def test_the_longest_key_is_far_from_the_limit_of_a_store() -> None:
    keys = TopicKeys(topic_prefix("n" * 255, "t" * 255), GENERATION_MAX, 256)
    assert len(keys.payload_key(1, 1, 1)) < KEY_BYTES_MAX // 10


@relaxed
@given(topics(), UNSIGNED, SEQUENCES, LONGS, st.data())
def test_a_cut_or_longer_key_is_corrupt(
    keys: TopicKeys, ms: int, sequence: int, pointer: int, data: st.DataObject
) -> None:
    message, payload = keys.message_key(ms, sequence), keys.payload_key(pointer, ms, sequence)
    for decode, key in ((MessageKey.decode, message), (PayloadKey.decode, payload)):
        cut = data.draw(st.integers(0, len(key) - 1))
        for bad in (key[:cut], key + b"\0", key + key):
            with pytest.raises(CorruptionError):
                decode(bad)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"shop",
        b"shop:",
        b"shop:orders",
        b":orders:",
        b"shop::",
        b"::",
        b"sh op:orders:",
        b"sh\xffp:orders:",
        b".:orders:",
        b"shop:..:",
        b"shop:.a:",
    ],
)
@pytest.mark.parametrize("decode", [MessageKey.decode, PayloadKey.decode])
def test_a_key_without_two_names_is_corrupt(start: bytes, decode: Any) -> None:
    for suffix in (bytes(14), bytes(22), b""):
        with pytest.raises(CorruptionError, match="has no topic prefix"):
            decode(b"\x03" + start + suffix)


@relaxed
@given(st.binary(max_size=60))
def test_any_bytes_are_a_key_or_corrupt(data: bytes) -> None:
    for kind in (MessageKey, PayloadKey):
        try:
            key = kind.decode(data)
        except CorruptionError:
            continue
        assert key.encode() == data


@pytest.mark.parametrize(("data", "meaning"), cases("row-keys"))
def test_a_key_vector_has_its_meaning_and_its_bytes(data: bytes, meaning: dict[str, Any]) -> None:
    prefix = topic_prefix(meaning["namespace"], meaning["topic"])
    keys = TopicKeys(prefix, meaning["generation"], meaning["buckets"], meaning.get("spread", 1))
    if meaning["table"] == "message":
        place = (unsigned(meaning["publishMs"]), meaning["sequence"])
        assert keys.message_key(*place) == data
        assert MessageKey.decode(data) == (meaning["salt"], prefix, meaning["generation"], *place)
        assert meaning["salt"] in keys.scanned()
    else:
        pointer, place = meaning["writePointer"], (unsigned(meaning["writeMs"]), meaning["payloadSequence"])
        assert keys.payload_key(pointer, *place) == data
        assert PayloadKey.decode(data) == (meaning["salt"], prefix, meaning["generation"], pointer, *place)
