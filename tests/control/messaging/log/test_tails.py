"""The tail cache against a model of the store: what it answers is exactly what the store holds, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basalt.messaging.log import tails
from basalt.messaging.log.tails import SLOT_BYTES, Tail, TailOwner, Tails
from basalt_engine.keys import position
from basalt_engine.messages import MessageRow

TopicKey = tuple[bytes, int]
A, B, C = (b"shop:a:", 1), (b"shop:a:", 2), (b"shop:b:", 1)
TOPICS = st.sampled_from([A, A, A, B, C])
STEPS = st.integers(1, 3)
FIRST = position(0, 0)


def row_at(place: int, size: int = 0, written_by: int | None = None) -> MessageRow:
    return MessageRow(position(place, 0), written_by, bytes(size))


class Log(TailOwner):
    """Whose tail it is."""

    tail: Tail | None = None


class TailCache(Tails):
    """The tails of three topics, by their names."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.logs = {A: Log(), B: Log(), C: Log()}

    def append(self, topic: TopicKey, row: MessageRow, after: bytes) -> None:  # type: ignore[override]
        super().append(self.logs[topic], row, after)

    def rows(self, topic: TopicKey, start: bytes, rows_max: int | None = None) -> list[MessageRow] | None:  # type: ignore[override]
        return super().rows(self.logs[topic].tail, start, rows_max)

    def roll_back(self, topic: TopicKey, where: bytes) -> None:  # type: ignore[override]
        super().roll_back(self.logs[topic], where)

    def remove(self, topic: TopicKey, where: bytes) -> None:  # type: ignore[override]
        super().remove(self.logs[topic], where)

    def drop_before(self, topic: TopicKey, where: bytes) -> None:
        super().remove_before(self.logs[topic], where)

    def forget(self, topic: TopicKey) -> None:
        super().drop(self.logs[topic])


class TailMachine(RuleBasedStateMachine):
    """A store of three topics; places rise, some stay empty, writes fail and may have been made all the same."""

    @initialize(bytes_max=st.sampled_from([0, 600, 1_500, 1_500, 2_000, 5_000, 10**9]))
    def start(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.tail = TailCache(bytes_max)
        self.stored: dict[TopicKey, dict[bytes, MessageRow]] = {A: {}, B: {}, C: {}}
        self.newest = {A: 0, B: 0, C: 0}  # the newest place given out

    def known(self, topic: TopicKey, pick: int) -> bytes:
        """A position at or around a row."""
        places = sorted(self.stored[topic]) or [FIRST]
        return places[pick % len(places)]

    @rule(topic=TOPICS, step=STEPS, size=st.integers(0, 400), written_by=st.sampled_from([None, 7]))
    def append(self, topic: TopicKey, step: int, size: int, written_by: int | None) -> None:
        after = position(self.newest[topic], 0) if self.newest[topic] else b""
        self.newest[topic] += step
        row = row_at(self.newest[topic], size, written_by)
        self.stored[topic][row.position] = row
        self.tail.append(topic, row, after)

    @rule(topic=TOPICS, count=st.integers(2, 6))
    def append_several(self, topic: TopicKey, count: int) -> None:
        for _ in range(count):
            self.append(topic, 1, 50, None)

    @rule(topic=TOPICS)
    def skip_a_place(self, topic: TopicKey) -> None:
        self.newest[topic] += 1

    @rule(topic=TOPICS, written=st.booleans())
    def fail_to_write(self, topic: TopicKey, written: bool) -> None:
        self.newest[topic] += 1
        row = row_at(self.newest[topic])
        if written:
            self.stored[topic][row.position] = row
        self.tail.forget(topic)

    @rule(topic=TOPICS, pick=st.integers(0, 50))
    def roll_back(self, topic: TopicKey, pick: int) -> None:
        where = self.known(topic, pick)
        row = self.stored[topic].get(where)
        if row is not None and row.written_by is not None:
            self.stored[topic][where] = row._replace(written_by=-abs(row.written_by))
            self.tail.roll_back(topic, where)

    @rule(topic=TOPICS, pick=st.integers(0, 50))
    def remove(self, topic: TopicKey, pick: int) -> None:
        where = self.known(topic, pick)
        self.stored[topic].pop(where, None)
        self.tail.remove(topic, where)

    @rule(topic=TOPICS, pick=st.integers(0, 50), beyond=st.integers(0, 1))
    def drop_before(self, topic: TopicKey, pick: int, beyond: int) -> None:
        stop = self.known(topic, pick) + b"\0" * beyond
        self.stored[topic] = {where: row for where, row in self.stored[topic].items() if where >= stop}
        self.tail.drop_before(topic, stop)

    @rule(topic=TOPICS, pick=st.integers(0, 50), count=st.integers(2, 5))
    def merge(self, topic: TopicKey, pick: int, count: int) -> None:
        tail = self.tail.logs[topic].tail
        places = [where for where in sorted(self.stored[topic]) if where >= self.known(topic, pick)][:count]
        rows = tail.between(places[0], places[-1]) if tail is not None and places else []
        if tail is None or len(rows) < 2 or any(row.written_by is not None for row in rows):
            return
        merged = rows[-1]._replace(batch=b"".join(row.batch or b"" for row in rows))
        for row in rows:
            del self.stored[topic][row.position]
        self.stored[topic][merged.position] = merged
        self.tail.replace(tail, rows, merged)
        assert tail.between(places[0], places[-1]) == [merged]

    @precondition(lambda self: self.tail.bytes)
    @rule(topic=TOPICS)
    def forget(self, topic: TopicKey) -> None:
        self.tail.forget(topic)

    @invariant()
    def every_answer_is_what_the_store_holds(self) -> None:
        for topic, rows in self.stored.items():
            for start in {FIRST, position(self.newest[topic], 0), position(self.newest[topic] + 1, 0), *rows}:
                for begin in (start, start + b"\0"):
                    found = self.tail.rows(topic, begin)
                    expected = [rows[where] for where in sorted(rows) if where >= begin]
                    assert found is None or found == expected
                    for rows_max in (1, 2, 5):
                        first = self.tail.rows(topic, begin, rows_max)
                        assert (first is None) == (found is None)
                        assert first is None or first == expected[: len(first)]
                        assert first is None or len(first) >= min(rows_max, len(expected))

    @invariant()
    def the_bytes_are_counted_and_bounded(self) -> None:
        assert 0 <= self.tail.bytes <= self.bytes_max
        held = 0
        for topic in self.stored:
            answers = [self.tail.rows(topic, where) for where in sorted(self.stored[topic])]
            longest = max((answer for answer in answers if answer is not None), key=len, default=[])
            held += sum(row.size_bytes for row in longest)
        assert held <= self.tail.bytes

    def teardown(self) -> None:
        for topic in getattr(self, "stored", {}):
            self.tail.forget(topic)
        assert not hasattr(self, "tail") or self.tail.bytes == 0


TestTailMachine = TailMachine.TestCase
TestTailMachine.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)


def test_what_was_just_appended_is_answered_without_the_store() -> None:
    cache = TailCache(10_000)
    rows = [row_at(place) for place in (5, 6, 7)]
    for row, after in zip(rows, [b"", rows[0].position, rows[1].position], strict=True):
        cache.append(A, row, after)
    assert cache.rows(A, FIRST) == rows  # the topic was empty before: these are all
    assert cache.rows(A, rows[1].position) == rows[1:]
    assert cache.rows(A, rows[2].position + b"\0") == []
    assert (cache.hits, cache.misses) == (3, 0)


def test_what_lies_before_the_tail_is_asked_of_the_store() -> None:
    cache = TailCache(10_000)
    cache.append(A, row_at(5), position(4, 9))
    assert cache.rows(A, position(4, 9)) is None
    assert cache.rows(A, FIRST) is None
    assert cache.rows(B, FIRST) is None
    assert cache.rows(A, position(4, 10)) == [row_at(5)]
    assert (cache.hits, cache.misses) == (1, 3)


def test_the_oldest_row_of_all_topics_goes_first() -> None:
    size = row_at(1).size_bytes
    cache = TailCache(3 * size)
    order = [(A, 1), (C, 1), (A, 2), (C, 2), (A, 3)]
    newest: dict[TopicKey, bytes] = {}
    for topic, place in order:
        cache.append(topic, row_at(place), newest.get(topic, b""))
        newest[topic] = position(place, 0)
    assert cache.bytes == 3 * size
    assert cache.rows(A, position(1, 1)) == [row_at(2), row_at(3)]
    assert cache.rows(A, position(1, 0)) is None
    assert cache.rows(C, position(1, 1)) == [row_at(2)]


def test_a_row_larger_than_the_cache_is_not_kept_and_pushes_out_the_rest() -> None:
    cache = TailCache(1_000)
    cache.append(A, row_at(1), b"")
    cache.append(C, row_at(1, 5_000), b"")
    assert (cache.bytes, cache.rows(A, FIRST), cache.rows(C, FIRST)) == (0, None, None)


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = TailCache(0)
    cache.append(A, row_at(1), b"")
    assert (cache.bytes, cache.rows(A, FIRST)) == (0, None)


def test_a_page_looks_at_no_more_of_a_long_tail_than_it_needs() -> None:
    cache = TailCache(10**9)
    for place in range(1, 1_001):
        cache.append(A, row_at(place), position(place - 1, 0))
    for place in range(10, 900):
        cache.remove(A, position(place, 0))
    found = cache.rows(A, position(1, 0), 5)
    assert found == [row_at(place) for place in range(1, 6)]
    found = cache.rows(A, position(8, 0), 5)
    assert found is not None
    assert found[:3] == [row_at(8), row_at(9), row_at(900)]
    assert len(found) < 15


def test_a_removed_row_frees_its_bytes_but_for_its_place() -> None:
    cache = TailCache(10**6)
    cache.append(A, row_at(1, 5_000), b"")
    cache.append(A, row_at(2), position(1, 0))
    for _ in range(2):
        cache.remove(A, position(1, 0))
        assert cache.bytes == SLOT_BYTES + row_at(2).size_bytes
    assert cache.rows(A, FIRST) == [row_at(2)]


@pytest.mark.parametrize("first", range(2, 12))
@pytest.mark.parametrize("second", range(13, 24))
def test_rows_can_be_dropped_again_after_the_tail_has_moved_on(first: int, second: int) -> None:
    cache = TailCache(8 * row_at(1).size_bytes)
    for place in range(1, 25):
        if place == 12:
            cache.drop_before(A, position(first, 0))
        cache.append(A, row_at(place), position(place - 1, 0))
    cache.drop_before(A, position(second, 0))
    kept = [row_at(place) for place in range(second, 25)]
    answers = [cache.rows(A, position(place, 0)) for place in range(1, 25)]
    assert all(answer is None or answer == kept[-len(answer) :] for answer in answers)
    assert kept[-1:] in answers


@pytest.mark.parametrize("where", [position(1, 1), position(9, 0), FIRST])
def test_changes_of_rows_that_are_not_there_change_nothing(where: bytes) -> None:
    cache = TailCache(10**6)
    row = row_at(1, written_by=5)
    cache.append(A, row, b"")
    cache.roll_back(A, where)
    cache.remove(A, where)
    for other in (B, C):
        cache.roll_back(other, row.position)
        cache.remove(other, row.position)
        cache.drop_before(other, position(9, 0))
        cache.forget(other)
    assert cache.rows(A, FIRST) == [row]


def test_rows_of_dropped_tails_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose writes fail again and again drops its tail each time, while no row is pushed out by newer ones."""
    monkeypatch.setattr(tails, "DEAD_ROWS_MAX", 2)
    cache = TailCache(10**9)
    cache.append(B, row_at(1), b"")
    for place in range(1, 100):
        cache.append(A, row_at(place), position(place - 1, 0))
        cache.forget(A)
        assert len(cache._order) <= 4
    cache.append(A, row_at(100), position(99, 0))
    assert cache.rows(B, FIRST) == [row_at(1)]
    assert cache.rows(A, position(99, 1)) == [row_at(100)]
    assert cache.bytes == row_at(1).size_bytes + row_at(100).size_bytes


def test_a_merged_row_is_dropped_when_the_last_of_its_rows_would_have_been() -> None:
    cache = TailCache(2_000)
    rows = [row_at(place, 100) for place in (1, 2, 3)]
    for row, after in zip(rows, [b"", rows[0].position, rows[1].position], strict=True):
        cache.append(A, row, after)
    cache.append(B, row_at(9, 100), b"")
    tail = cache.logs[A].tail
    assert tail is not None
    merged = rows[-1]._replace(batch=bytes(300))
    cache.replace(tail, rows, merged)
    assert cache.bytes == 500 + 300
    cache.append(B, row_at(10, 1_200), position(9, 0))
    assert cache.rows(A, FIRST) is None
    assert cache.rows(B, FIRST) is not None
    assert cache.bytes == 300 + 1_400


def test_rows_that_were_dropped_meanwhile_are_not_replaced_by_one() -> None:
    cache = TailCache(1_000)
    rows = [row_at(place, 100) for place in (1, 2, 3)]
    for row, after in zip(rows, [b"", rows[0].position, rows[1].position], strict=True):
        cache.append(A, row, after)
    tail = cache.logs[A].tail
    assert tail is not None
    cache.append(A, row_at(4, 100), rows[2].position)
    cache.replace(tail, rows, rows[-1])
    assert cache.rows(A, rows[1].position) == [*rows[1:], row_at(4, 100)]
    cache.forget(A)
    cache.replace(tail, rows[1:], rows[-1])
    assert cache.bytes == 0
