"""What edits make of groups, what came back to them, and what is pending; and edits that cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import ATTEMPTS_MAX, Attempt, GroupTable, PendingSpans, Returns
from basalt.transactions.rules.transaction import Kind, State, Transaction
from basalt_engine.errors import CorruptionError
from basalt_engine.spans.spans import ZERO_ID, Spans

TOPIC = b"shop:orders:"
PLACES = 12


def place(number: int) -> bytes:
    return number.to_bytes(20, "big")


def span(after: int, through: int) -> Spans:
    return Spans([(place(after), place(through))])


def attempt(attempts: int = 1) -> Attempt:
    return Attempt(attempts, 5, ReturnReason.RELEASED)


def opened(transaction_id: int = 17, state: State = State.OPEN) -> Transaction:
    return Transaction(id=transaction_id, kind=Kind.SHORT, read_pointer=0, began_ms=5, deadline_ms=9, state=state)


@pytest.fixture
def table() -> GroupTable:
    table = GroupTable()
    table.made(edits.GroupMade(1, 5, 2, TOPIC, "billing", b"{}", ZERO_ID, 1))
    return table


def hold(table: GroupTable, transaction_id: int, spans: Spans, number: int = 1) -> None:
    table.acknowledged_in(edits.AcknowledgedIn(transaction_id, number, 6, spans), opened(transaction_id))


ranges = st.tuples(*2 * [st.integers(0, PLACES - 1)]).map(lambda pair: (min(pair), max(pair) + 1))


@settings(deadline=None)
@given(st.lists(st.tuples(ranges, st.none() | st.integers(1, 3)), max_size=20), ranges)
def test_what_came_back_is_known_of_each_message(steps, asked):
    returns, model = Returns(), {}
    for (after, through), attempts in steps:
        for number in range(after + 1, through + 1):
            model.pop(number, None)
            if attempts is not None:
                model[number] = attempt(attempts)
        if attempts is None:
            returns.remove(place(after), place(through))
        else:
            returns.put(place(after), place(through), attempt(attempts))
    assert {number: returns.at(place(number)) for number in range(1, PLACES + 1)} == {
        number: model.get(number) for number in range(1, PLACES + 1)
    }
    assert Returns(returns.alike()) == returns
    held = list(returns)
    assert all(left[1] < right[0] or (left[1] == right[0] and left[2] != right[2]) for left, right in pairwise(held))
    after, through = asked
    found = {number for begin, end, _ in returns.within(place(after), place(through)) for number in range(1, 13)
             if begin < place(number) <= end}  # fmt: skip
    assert found == {number for number in model if after < number <= through}


def test_a_group_begins_behind_its_floor(table: GroupTable):
    table.made(edits.GroupMade(2, 5, 2, TOPIC, "late", b"{}", place(7), 1))
    assert table.by_number[1].acknowledged.floor == ZERO_ID
    assert table.by_number[2].acknowledged == span(0, 7)
    assert [group.name for group in table.of_topic(TOPIC, 2)] == ["billing", "late"]
    assert table.of_topic(TOPIC, 1) == []


def test_a_number_is_never_used_again(table: GroupTable):
    table.forgotten(edits.GroupsForgotten((1,)))
    assert table.find(TOPIC, 2, "billing") is None
    with pytest.raises(CorruptionError, match="gets number 1"):
        table.made(edits.GroupMade(1, 5, 2, TOPIC, "billing", b"{}", ZERO_ID, 1))
    table.made(edits.GroupMade(2, 5, 2, TOPIC, "billing", b"{}", ZERO_ID, 1))
    assert table.find(TOPIC, 2, "billing").number == 2


def test_two_groups_of_one_name_cannot_be(table: GroupTable):
    with pytest.raises(CorruptionError, match="billing"):
        table.made(edits.GroupMade(2, 5, 2, TOPIC, "billing", b"{}", ZERO_ID, 1))
    table.made(edits.GroupMade(2, 5, 3, TOPIC, "billing", b"{}", ZERO_ID, 1))  # the topic was created again


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("options_changed", edits.GroupChanged(9, 5, b"{}", False)),
        ("sought", edits.GroupSought(9, 5, 1, ZERO_ID)),
        ("forgotten", edits.GroupsForgotten((1, 9))),
        ("returned", edits.Returned(9, 5, ReturnReason.RELEASED, 5, span(1, 2))),
    ],
)
def test_an_edit_about_a_group_that_is_not_there_is_refused(table: GroupTable, name: str, edit):
    with pytest.raises(CorruptionError, match="group 9"):
        getattr(table, name)(edit)
    assert len(table) == 1


def test_an_acknowledgement_that_no_writer_made_is_refused(table: GroupTable):
    for writer, last in ((17, 16), (17, 18)):
        with pytest.raises(CorruptionError, match="one-shot transaction 17"):
            table.acknowledged(edits.Acknowledged(writer, 1, 6, span(1, 2)), last)
    with pytest.raises(CorruptionError, match="not in progress"):
        table.acknowledged_in(edits.AcknowledgedIn(17, 1, 6, span(1, 2)), None)
    assert not table.by_number[1].acknowledged
    table.acknowledged(edits.Acknowledged(17, 1, 6, span(1, 2)), 17)
    assert table.by_number[1].acknowledged == span(1, 2)


def test_what_is_pending_is_the_groups_once_its_transaction_commits(table: GroupTable):
    hold(table, 17, span(1, 3))
    hold(table, 17, span(5, 6))
    assert not table.by_number[1].acknowledged, "pending is not acknowledged"
    assert table.pending_holder(1, place(2), place(4)) == 17
    assert table.pending_holder(1, place(3), place(5)) is None
    table.committed(17, 8)
    assert list(table.by_number[1].acknowledged) == [*span(1, 3), *span(5, 6)]
    assert table.pending_of(17) == {}
    assert table.pending_holder(1, place(2), place(4)) is None
    assert table.by_number[1].used_ms == 8


def test_what_is_pending_is_nothing_once_its_transaction_ends_otherwise(table: GroupTable):
    hold(table, 17, span(1, 3))
    hold(table, 19, span(3, 6))
    table.dropped(17)
    assert not table.by_number[1].acknowledged
    assert table.pending_in(1) == {19: span(3, 6)}
    assert table.pending_holder(1, place(1), place(3)) is None
    assert table.pending_holder(1, place(1), place(4)) == 19
    table.dropped(17)
    table.dropped(19)
    assert table.pending_in(1) == {}
    assert table.span_count == 0


def test_an_acknowledgement_of_an_aborting_transaction_says_nothing(table: GroupTable):
    """Where rows and log are not one batch, an abort that was decided later in the group is replayed first."""
    table.acknowledged_in(edits.AcknowledgedIn(17, 1, 6, span(1, 3)), opened(state=State.ABORTING))
    assert table.pending_of(17) == {}
    table.acknowledged_in(edits.AcknowledgedIn(17, 1, 6, span(1, 3)), opened(state=State.COMMITTING))
    assert table.pending_of(17) == {1: span(1, 3)}


def test_a_seek_forgets_attempts_and_what_was_pending(table: GroupTable):
    hold(table, 17, span(3, 4))
    table.acknowledged(edits.Acknowledged(0, 1, 6, span(6, 9)), 5)
    table.returned(edits.Returned(1, 6, ReturnReason.RELEASED, 5, span(1, 2)))
    table.sought(edits.GroupSought(1, 7, 2, place(2)))
    group = table.by_number[1]
    assert (group.acknowledged, len(group.returns), group.round) == (span(0, 2), 0, 2)
    assert table.pending_of(17) == {}
    assert table.span_count == 1
    with pytest.raises(CorruptionError, match="round 2"):
        table.sought(edits.GroupSought(1, 7, 2, place(2)))


def test_a_forgotten_group_takes_what_was_pending_in_it_along_and_nothing_else(table: GroupTable):
    table.made(edits.GroupMade(2, 5, 2, TOPIC, "audit", b"{}", ZERO_ID, 1))
    hold(table, 17, span(3, 4))
    hold(table, 17, span(3, 4), number=2)
    table.forgotten(edits.GroupsForgotten((1,)))
    assert table.pending_of(17) == {2: span(3, 4)}
    table.committed(17, 8)
    assert table.by_number[2].acknowledged == span(3, 4)


def test_each_return_counts_an_attempt_of_what_is_not_acknowledged(table: GroupTable):
    group = table.by_number[1]
    table.acknowledged(edits.Acknowledged(0, 1, 6, span(2, 3)), 5)
    table.returned(edits.Returned(1, 6, ReturnReason.RELEASED, 50, span(1, 4)))
    table.returned(edits.Returned(1, 7, ReturnReason.TIMED_OUT, 90, span(3, 6)))
    assert [(one.attempts, one.not_before_ms, one.reason, list(one.spans)) for one in group.returned] == [
        (1, 50, ReturnReason.RELEASED, [(place(1), place(2))]),
        (1, 90, ReturnReason.TIMED_OUT, [(place(4), place(6))]),
        (2, 90, ReturnReason.TIMED_OUT, [(place(3), place(4))]),
    ]
    table.acknowledged(edits.Acknowledged(0, 1, 8, span(1, 5)), 5)
    assert [(one.attempts, list(one.spans)) for one in group.returned] == [(1, [(place(5), place(6))])]


def test_attempts_are_counted_up_to_what_the_snapshot_holds(table: GroupTable):
    group = table.by_number[1]
    group.returns.put(place(1), place(2), attempt(ATTEMPTS_MAX))
    table.returned(edits.Returned(1, 7, ReturnReason.TIMED_OUT, 90, span(1, 2)))
    assert group.returns.at(place(2)).attempts == ATTEMPTS_MAX


def test_what_is_unparked_never_came_back(table: GroupTable):
    table.returned(edits.Returned(1, 6, ReturnReason.RELEASED, 50, span(1, 4)))
    table.returned(edits.Returned(1, 7, ReturnReason.UNPARKED, 0, span(2, 3)))
    assert [(after, through) for after, through, _ in table.by_number[1].returns] == [*span(1, 2), *span(3, 4)]


def test_the_number_of_spans_is_kept_through_everything(table: GroupTable):
    table.made(edits.GroupMade(2, 5, 2, TOPIC, "audit", b"{}", place(1), 1))
    table.acknowledged(edits.Acknowledged(0, 1, 6, Spans([*span(1, 2), *span(3, 4)])), 5)
    hold(table, 17, span(2, 3))
    hold(table, 17, span(6, 7))
    hold(table, 19, span(2, 3), number=2)
    assert table.span_count == 1 + 2 + 2 + 1
    table.committed(17, 8)
    assert table.span_count == 1 + 2 + 1, "three spans of the first group have become one, and one came to it"
    table.forgotten(edits.GroupsForgotten((2,)))
    assert table.span_count == 2
    again = GroupTable(2, table.images(), table.pending_images())
    assert again.span_count == 2


def test_an_image_is_the_same_until_its_group_changes(table: GroupTable):
    table.made(edits.GroupMade(2, 5, 2, TOPIC, "audit", b"{}", ZERO_ID, 1))
    first = table.images()
    table.acknowledged(edits.Acknowledged(0, 1, 6, span(1, 2)), 5)
    second = table.images()
    assert second[1] is first[1]
    assert second[0] != first[0]
    assert not first[0].acknowledged
    assert [group.image() for group in GroupTable(2, second).by_number.values()] == list(second)


def test_a_table_made_of_images_leaves_them_as_they_are(table: GroupTable):
    hold(table, 17, span(1, 2))
    images, pending = table.images(), table.pending_images()
    again = GroupTable(1, images, pending)
    hold(again, 17, span(2, 3))
    again.committed(17, 7)
    assert not images[0].acknowledged
    assert pending == (PendingSpans(17, ((1, span(1, 2)),)),)


pairs_of_spans = st.lists(ranges, min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*ReturnReason, None]), pairs_of_spans), max_size=12))
def test_many_spans_that_come_back_are_as_their_messages_one_by_one(steps):
    """`None` acknowledges. What nobody had returned is put in at once, the rest part by part: each message counts for itself."""
    table = GroupTable()
    table.made(edits.GroupMade(1, 5, 2, TOPIC, "billing", b"{}", ZERO_ID, 1))
    counts, done = dict[int, int](), set[int]()
    for reason, pairs in steps:
        spans = Spans([(place(after), place(through)) for after, through in pairs])
        numbers = {number for after, through in pairs for number in range(after + 1, through + 1)}
        if reason is None:
            table.acknowledged(edits.Acknowledged(0, 1, 6, spans), 0)
            done |= numbers
            counts = {number: count for number, count in counts.items() if number not in done}
            continue
        table.returned(edits.Returned(1, 6, reason, 5, spans))
        for number in numbers - done:
            counts[number] = counts.get(number, 0) + 1
            if reason is ReturnReason.UNPARKED:
                del counts[number]
    found = {number: table.by_number[1].returns.at(place(number)) for number in range(1, PLACES + 1)}
    assert {number: each.attempts for number, each in found.items() if each is not None} == counts
    assert not table.by_number[1].acknowledged.meets(table.by_number[1].returns)


def scattered(numbers: Iterable[int]) -> Spans:
    return Spans([(place(2 * number), place(2 * number + 1)) for number in numbers])


def test_an_abort_looks_for_what_came_back_where_there_is_something(table: GroupTable, monkeypatch: pytest.MonkeyPatch):
    """Of sixty-five thousand spans in one transaction, none is searched for where nothing can be found."""
    searched = list[object]()
    for kind, name in ((Returns, "put"), (Returns, "remove"), (Spans, "gaps")):
        call = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, *given, call=call: searched.append(given) or call(self, *given))
    table.returned(edits.Returned(1, 6, ReturnReason.ABORTED, 9, scattered(range(10_000))))
    table.returned(edits.Returned(1, 6, ReturnReason.ABORTED, 9, scattered(range(10_000, 75_536))))
    assert len(table.by_number[1].returns) == 75_536
    table.acknowledged(edits.Acknowledged(0, 1, 6, scattered(range(80_000, 140_000))), 0)
    assert len(searched) == 0


def test_very_many_that_come_back_twice_have_two_attempts_and_their_neighbours_one(table: GroupTable):
    table.returned(edits.Returned(1, 6, ReturnReason.ABORTED, 9, scattered(range(50))))
    table.returned(edits.Returned(1, 7, ReturnReason.ABORTED, 9, span(0, 100)))
    found = [each.attempts for _, _, each in table.by_number[1].returns]
    assert found == [2, 1] * 50
    table.returned(edits.Returned(1, 8, ReturnReason.ABORTED, 9, scattered(range(50))))
    assert [each.attempts for _, _, each in table.by_number[1].returns] == [3, 1] * 50
    assert [len(each.spans) for each in table.by_number[1].returned] == [50, 50]
