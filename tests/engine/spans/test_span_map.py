"""Spans with values against a plain dictionary: ids are small numbers there, and a span covers every number behind its begin."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.spans.span_map import SpanMap
from basalt_engine.spans.spans import Spans

relaxed = settings(deadline=None)
NUMBERS = 24
ranges = st.tuples(*2 * [st.integers(0, NUMBERS - 1)]).map(lambda pair: (min(pair), max(pair) + 1))
steps = st.lists(st.tuples(st.sampled_from(["a", "b", None]), ranges), max_size=40)


@pytest.fixture(scope="module", params=[2, 3, 512], autouse=True)
def block_spans_max(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every story again with blocks so small that a few spans fill many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("basalt_engine.spans.spans.BLOCK_SPANS_MAX", request.param)
        yield request.param


def message_id(number: int) -> bytes:
    return number.to_bytes(20, "big")


def built(changes: list[tuple[str | None, tuple[int, int]]]) -> tuple[SpanMap[str], dict[int, str]]:
    spans, model = SpanMap[str](), dict[int, str]()
    for value, (after, through) in changes:
        if value is None:
            spans.remove(message_id(after), message_id(through))
        else:
            spans.put(message_id(after), message_id(through), value)
        for number in range(after + 1, through + 1):
            model.pop(number, None)
            if value is not None:
                model[number] = value
    return spans, model


def told(parts: Iterator[tuple[bytes, bytes, str]]) -> dict[int, str]:
    return {
        number: value
        for after, through, value in parts
        for number in range(int.from_bytes(after, "big") + 1, int.from_bytes(through, "big") + 1)
    }


@relaxed
@given(steps, ranges)
def test_each_id_has_the_value_that_it_was_given_last(
    changes: list[tuple[str | None, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    spans, model = built(changes)
    assert told(iter(spans)) == model
    for number in range(1, NUMBERS + 1):
        found = spans.span_of(message_id(number))
        assert (None if found is None else found[2]) == model.get(number)
        assert found is None or found[0] < message_id(number) <= found[1]
    inside = {number: value for number, value in model.items() if asked[0] < number <= asked[1]}
    assert told(spans.within(message_id(asked[0]), message_id(asked[1]))) == inside


@relaxed
@given(steps)
def test_neighbours_of_one_value_are_one_and_a_copy_goes_its_own_way(
    changes: list[tuple[str | None, tuple[int, int]]],
) -> None:
    spans, model = built(changes)
    assert len(spans) == len(list(spans)) == sum(model.get(number - 1) != value for number, value in model.items())
    copy = SpanMap[str]()
    copy.copied_from(spans)
    assert copy == spans
    copy.put(message_id(0), message_id(NUMBERS), "c")
    assert told(iter(spans)) == model


@relaxed
@given(steps, steps)
def test_many_put_at_once_are_as_those_put_one_after_the_other(
    changes: list[tuple[str | None, tuple[int, int]]], others: list[tuple[str | None, tuple[int, int]]]
) -> None:
    spans, _ = built(changes)
    parts = [(Spans([each[:2] for each in spans if each[2] == value]), value) for value in "ab"]
    filled, put = SpanMap[str](), SpanMap[str]()
    filled.fill(parts)
    assert filled == spans
    overlapping = [*parts, (Spans([each[:2] for each in built(others)[0]]), "c")]
    put.fill(overlapping)
    for span in overlapping[2][0]:
        spans.put(*span, "c")
    assert put == spans


def test_a_value_amid_very_many_moves_no_more_than_a_block(block_spans_max: int) -> None:
    total = 200 * block_spans_max
    spans = SpanMap[int]()
    for number in random.Random(7).sample(range(total), total):
        spans.put(message_id(2 * number), message_id(2 * number + 1), number)
    assert len(spans) == total
    assert max(map(len, spans._afters)) <= block_spans_max, "of a hundred thousand"
    assert [value for _, _, value in spans] == list(range(total))
    for number in random.Random(8).sample(range(total), total):
        spans.remove(message_id(2 * number), message_id(2 * number + 1))
    assert (len(spans), spans._ends) == (0, [])


def test_many_new_ones_beside_neighbours_of_their_value_become_one_with_them() -> None:
    spans = SpanMap[str]()
    spans.fill([(Spans([(message_id(4 * number), message_id(4 * number + 2)) for number in range(40)]), "a")])
    spans.fill([(Spans([(message_id(4 * number + 2), message_id(4 * number + 4)) for number in range(40)]), "a")])
    assert list(spans) == [(message_id(0), message_id(160), "a")]


@relaxed
@given(steps, st.lists(ranges, max_size=20), st.sampled_from([1, 16, 100]))
def test_what_is_common_with_a_set_is_told_and_can_be_taken_out(
    changes: list[tuple[str | None, tuple[int, int]]], asked: list[tuple[int, int]], few: int
) -> None:
    (spans, model), others = (
        built(changes),
        Spans([(message_id(after), message_id(through)) for after, through in asked]),
    )
    numbers = {number for after, through in asked for number in range(after + 1, through + 1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("basalt_engine.spans.span_map.FEW", few)
        common = spans.common(others)
        assert common == sorted(common)
        assert told(iter(common)) == {number: value for number, value in model.items() if number in numbers}
        spans.subtract(others)
    assert told(iter(spans)) == {number: value for number, value in model.items() if number not in numbers}


def test_many_are_filled_taken_out_and_told_without_a_search_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("one by one")

    for name in ("put", "remove", "within"):
        monkeypatch.setattr(SpanMap, name, searched)
    spans = SpanMap[str]()
    odd = Spans([(message_id(2 * number), message_id(2 * number + 1)) for number in range(10_000)])
    even = Spans([(message_id(2 * number + 1), message_id(2 * number + 2)) for number in range(10_000)])
    spans.fill([(odd, "a")])
    spans.fill([(even, "b")])
    assert len(spans) == 20_000
    assert [value for _, _, value in spans.common(even)] == ["b"] * 10_000
    spans.subtract(odd)
    assert len(spans) == 10_000
