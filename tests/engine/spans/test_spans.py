"""Spans against a plain set: ids are small numbers there, and a span covers every number behind its begin."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.spans.spans import ZERO_ID, Spans

relaxed = settings(deadline=None)
NUMBERS = 24  # few, so that spans touch and overlap often
WIDE = 0x0102_0300 << 64  # spreads numbers over the bytes of an id


@pytest.fixture(scope="module", params=[2, 3, 5, 512], autouse=True)
def block_spans_max(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every story again with blocks so small that a few spans fill many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("basalt_engine.spans.spans.BLOCK_SPANS_MAX", request.param)
        yield request.param


def message_id(number: int) -> bytes:
    """An id for each number, in their order; 0 is the first there can be."""
    return (number * WIDE).to_bytes(20, "big")


def numbers_of(spans: Spans) -> set[int]:
    return {number for number in range(1, NUMBERS + 1) if spans.covers(message_id(number))}


ranges = st.tuples(*2 * [st.integers(0, NUMBERS - 1)]).map(lambda pair: (min(pair), max(pair) + 1))
changes = st.lists(st.tuples(st.booleans(), ranges), max_size=30)
ids = st.one_of(st.binary(min_size=20, max_size=20), st.binary(max_size=19).map(lambda data: data.ljust(20, b"\0")))


def built(steps: list[tuple[bool, tuple[int, int]]]) -> tuple[Spans, set[int]]:
    spans, model = Spans(), set[int]()
    for adds, (after, through) in steps:
        covered = set(range(after + 1, through + 1))
        if adds:
            spans.add(message_id(after), message_id(through))
            model |= covered
        else:
            spans.remove(message_id(after), message_id(through))
            model -= covered
    return spans, model


@relaxed
@given(changes)
def test_spans_cover_what_was_added_and_not_removed(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    spans, model = built(steps)
    assert numbers_of(spans) == model
    asked = [number for number in range(NUMBERS + 1) for _ in range(2)]
    assert spans.covered(map(message_id, asked)) == 2 * len(model)


@relaxed
@given(st.sets(st.integers(0, NUMBERS), min_size=2), st.data())
def test_begins_and_ends_in_order_are_the_spans_that_they_would_be_in_any(
    places: set[int], data: st.DataObject
) -> None:
    pairs = list(pairwise(map(message_id, sorted(places))))
    some = [pair for pair in pairs if data.draw(st.booleans())]
    made = Spans.ascending([after for after, _ in some], [through for _, through in some])
    assert list(made) == list(Spans(some))
    assert (made.begin, made.end) == ((some[0][0], some[-1][1]) if some else (ZERO_ID, ZERO_ID))


@relaxed
@given(changes)
def test_spans_are_as_few_as_can_be(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    """Between two of them there is always something uncovered; so the list is the same however it came about."""
    spans, model = built(steps)
    flat = [each for pair in spans for each in pair]
    assert flat == sorted(set(flat))
    again = Spans()
    for number in sorted(model, key=lambda number: (number % 5, number)):
        again.add(message_id(number - 1), message_id(number))
    assert again == spans
    assert len(again) == len(spans) == sum(number - 1 not in model for number in model)


@relaxed
@given(changes, ranges)
def test_questions_about_a_range_are_those_about_its_ids(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    spans, model = built(steps)
    after, through = asked
    inside = set(range(after + 1, through + 1))
    ends = message_id(after), message_id(through)
    assert spans.contains(*ends) == (inside <= model)
    assert spans.overlaps(*ends) == bool(inside & model)
    left = Spans(spans.gaps(*ends))
    assert numbers_of(left) == inside - model
    assert len(list(spans.gaps(*ends))) == len(left), "gaps are as long as they can be"


@relaxed
@given(changes, st.integers(0, NUMBERS))
def test_a_gap_begins_behind_the_place_or_behind_the_span_that_the_place_is_in(
    steps: list[tuple[bool, tuple[int, int]]], place: int
) -> None:
    spans, model = built(steps)
    begin = next(number for number in range(place, NUMBERS + 1) if number + 1 not in model)
    stop = next((number for number in range(begin + 1, NUMBERS + 1) if number in model), None)
    found, next_span = spans.gap_after(message_id(place))
    assert found == message_id(begin)
    assert next_span == (None if stop is None else message_id(stop - 1))


@relaxed
@given(changes, changes)
def test_an_update_is_every_span_of_the_other(
    steps: list[tuple[bool, tuple[int, int]]], other_steps: list[tuple[bool, tuple[int, int]]]
) -> None:
    spans, model = built(steps)
    other, other_model = built(other_steps)
    before = other.copy()
    spans.update(other)
    assert numbers_of(spans) == model | other_model
    assert other == before


@relaxed
@given(changes, changes)
def test_how_many_spans_others_join_tells_how_many_there_will_be(
    steps: list[tuple[bool, tuple[int, int]]], other_steps: list[tuple[bool, tuple[int, int]]]
) -> None:
    (spans, model), (other, _) = built(steps), built(other_steps)
    joined = sum(spans.joined_by(*each) for each in other)
    assert spans.end == (message_id(max(model)) if model else ZERO_ID)
    before = len(spans)
    spans.update(other)
    assert len(spans) == before + len(other) - joined


@pytest.mark.parametrize("few", [1, 16])
@relaxed
@given(changes, changes)
def test_sets_meet_where_an_id_is_in_both(
    few: int, steps: list[tuple[bool, tuple[int, int]]], other_steps: list[tuple[bool, tuple[int, int]]]
) -> None:
    (spans, model), (other, other_model) = built(steps), built(other_steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("basalt_engine.spans.spans.FEW", few)
        assert spans.meets(other) == other.meets(spans) == bool(model & other_model)


@relaxed
@given(st.lists(ranges, max_size=30))
def test_spans_made_at_once_are_those_added_one_by_one(pairs: list[tuple[int, int]]) -> None:
    known = [(message_id(after), message_id(through)) for after, through in pairs]
    one_by_one = Spans()
    for pair in known:
        one_by_one.add(*pair)
    assert Spans(known) == one_by_one
    updated = Spans(known[: len(known) // 2])
    updated.update(Spans(known[len(known) // 2 :]))
    assert updated == one_by_one


def test_a_few_spans_come_to_many_as_many_come_to_a_few() -> None:
    many = Spans((message_id(number), message_id(number + 1)) for number in range(0, 400, 2))
    few = Spans([(message_id(3), message_id(9)), (message_id(500), message_id(501))])
    one, other = many.copy(), few.copy()
    one.update(few)
    other.update(many)
    assert one == other
    assert len(one) == 200 - 3 + 1


def test_a_copy_goes_its_own_way() -> None:
    spans = Spans([(ZERO_ID, message_id(3))])
    copy = spans.copy()
    copy.add(message_id(3), message_id(4))
    assert numbers_of(spans) == {1, 2, 3}
    assert numbers_of(copy) == {1, 2, 3, 4}
    assert spans != copy


def test_the_floor_is_the_end_of_what_is_covered_from_the_beginning_on() -> None:
    spans = Spans()
    assert spans.floor == ZERO_ID
    spans.add(message_id(4), message_id(6))
    assert spans.floor == ZERO_ID, "something is uncovered before"
    spans.add(ZERO_ID, message_id(4))
    assert spans.floor == message_id(6)


def test_a_span_does_not_hold_the_id_that_it_begins_behind() -> None:
    spans = Spans([(message_id(4), message_id(6))])
    assert not spans.covers(message_id(4))
    assert spans.covers(message_id(6))
    assert not spans.overlaps(message_id(2), message_id(4))
    assert not spans.overlaps(message_id(6), message_id(7))


@pytest.mark.parametrize("pair", [(3, 3), (4, 3)])
def test_an_empty_range_is_refused(pair: tuple[int, int]) -> None:
    spans = Spans([(message_id(1), message_id(9))])
    for change in (spans.add, spans.remove):
        with pytest.raises(ValueError, match="no span"):
            change(message_id(pair[0]), message_id(pair[1]))
    assert spans == Spans([(message_id(1), message_id(9))])


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="no span"):
        Spans([(ZERO_ID, b"\x01")])
    with pytest.raises(ValueError, match="no span"):
        Spans([(b"", message_id(1))])


@relaxed
@given(st.lists(ids, max_size=30, unique=True))
def test_spans_come_back_from_their_bytes(found: list[bytes]) -> None:
    ordered = sorted(found)[: len(found) // 2 * 2]
    spans = Spans(zip(ordered[::2], ordered[1::2], strict=True))
    data = spans.encode()
    assert Spans.decode(data) == spans
    padded = b"??" + data + b"more"
    assert Spans.decode_from(padded, 2, len(padded)) == (spans, 2 + len(data))


def test_the_bytes_leave_out_what_the_id_before_says_and_zeros_at_the_end() -> None:
    first = bytes.fromhex("0000018bcfe568000001") + bytes(10)
    second = bytes.fromhex("0000018bcfe568000003") + bytes(10)
    third = bytes.fromhex("0000018bcfe568000103") + bytes(10)
    spans = Spans([(ZERO_ID, first), (second, third)])
    assert spans.encode().hex(" ") == "02 00 00 02 08 01 8b cf e5 68 00 00 01 09 01 03 08 02 01 03"


@relaxed
@given(st.binary(max_size=60) | st.lists(st.integers(0, 3), max_size=30).map(bytes))
def test_spans_have_one_encoding_and_no_other_bytes_are_read(data: bytes) -> None:
    try:
        spans = Spans.decode(data)
    except CorruptionError:
        return
    assert spans.encode() == data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "does not end"),
        ("8000", "longer than it need be"),
        ("01", "cannot be in"),
        ("ffffffff0f00000001", "cannot be in"),
        ("0100000000", "does not ascend"),
        ("0100010000", "longer than it need be"),
        ("010000000201", "further bytes"),
        ("010000" + "00020100", "longer than it need be"),
        ("010000" + "00020001", "longer than it need be"),
        ("010000" + "1301" + "01" + "00", "too many"),
        ("0201000000" + "00000000", "longer than it need be"),
        ("010001011502", "further bytes"),
        ("02000101" + "000102" + "000102" + "000103", "does not ascend"),
    ],
)
def test_bytes_that_are_no_spans_are_refused_and_the_place_is_named(data: str, problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        Spans.decode(bytes.fromhex(data))


def test_a_cut_at_any_byte_is_noticed() -> None:
    data = Spans([(ZERO_ID, message_id(3)), (message_id(5), message_id(9))]).encode()
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            Spans.decode(data[:length])


def test_spans_are_not_read_beyond_where_they_must_end() -> None:
    data = Spans([(ZERO_ID, message_id(3))]).encode()
    with pytest.raises(CorruptionError):
        Spans.decode_from(data + data, 0, len(data) - 1)


def test_a_hundred_thousand_scattered_spans_come_back_in_any_order(block_spans_max: int) -> None:
    total = 200 * block_spans_max  # a hundred thousand in blocks as they are
    order = list(range(total))
    random.Random(7).shuffle(order)
    spans = Spans()
    for number in order:
        spans.add(message_id(2 * number), message_id(2 * number + 1))
    assert len(spans) == total
    assert Spans.decode(spans.encode()) == spans
    for number in order:
        spans.add(message_id(2 * number + 1), message_id(2 * number + 2))
    assert list(spans) == [(ZERO_ID, message_id(2 * total))]


@relaxed
@given(changes, changes)
def test_what_one_set_covers_beyond_another_is_the_difference(
    steps: list[tuple[bool, tuple[int, int]]], others: list[tuple[bool, tuple[int, int]]]
) -> None:
    (spans, model), (other, known) = built(steps), built(others)
    parts = list(spans.beyond(other))
    assert parts == sorted(parts)
    assert numbers_of(Spans(parts)) == model - known


def test_of_many_spans_only_the_neighbours_of_those_that_changed_are_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched, contains = list[bytes](), Spans.contains
    spans = Spans([(message_id(number), message_id(number + 1)) for number in range(0, 100_000, 2)])
    before = spans.copy()
    spans.add(message_id(50_001), message_id(50_003))
    spans.add(message_id(150_000), message_id(150_001))

    def counted(self: Spans, after: bytes, through: bytes) -> bool:
        searched.append(after)
        return contains(self, after, through)

    monkeypatch.setattr(Spans, "contains", counted)
    found = list(spans.beyond(before))
    assert found == [
        (message_id(50_001), message_id(50_002)),
        (message_id(150_000), message_id(150_001)),
    ]
    assert len(searched) <= 1_000, "two parts of the list, of a hundred"


def test_a_span_amid_very_many_moves_no_more_than_a_block(block_spans_max: int) -> None:
    total = 200 * block_spans_max
    spans = Spans([(message_id(2 * number), message_id(2 * number + 1)) for number in range(0, total, 2)])
    for number in random.Random(7).sample(range(1, total, 2), total // 2):
        spans.add(message_id(2 * number), message_id(2 * number + 1))
        assert len(spans._ends) <= 1 + 4 * total // block_spans_max
    assert len(spans) == total
    assert max(map(len, spans._afters)) <= block_spans_max, "of a hundred thousand"
    for number in random.Random(8).sample(range(total), total - 1):
        spans.remove(message_id(2 * number), message_id(2 * number + 1))
    assert (len(spans), len(spans._ends)) == (1, 1), "what is empty is no block"


@relaxed
@given(changes, changes, st.sampled_from([1, 2, 16]))
def test_a_set_without_another_covers_what_that_one_does_not(
    steps: list[tuple[bool, tuple[int, int]]], others: list[tuple[bool, tuple[int, int]]], few: int
) -> None:
    (spans, model), (other, known) = built(steps), built(others)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("basalt_engine.spans.spans.FEW", few)
        left = spans.minus(other)
    assert numbers_of(left) == model - known
    assert left == Spans(list(left)), "as few as can be"
    assert numbers_of(spans) == model


def test_many_spans_are_taken_out_of_many_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("one by one")

    monkeypatch.setattr(Spans, "remove", searched)
    whole = Spans([(message_id(3 * number), message_id(3 * number + 2)) for number in range(10_000)])
    whole.subtract(Spans([(message_id(3 * number), message_id(3 * number + 1)) for number in range(5_000)]))
    assert list(whole)[4_999:5_001] == [
        (message_id(3 * 4_999 + 1), message_id(3 * 4_999 + 2)),
        (message_id(3 * 5_000), message_id(3 * 5_000 + 2)),
    ]
    assert len(whole) == 10_000
