"""What a transaction may ask for and hold, and how the answer names the limit."""

from __future__ import annotations

import pytest

from basalt.errors import (
    BusyError,
    InputError,
    InvalidNameError,
    TooLargeError,
)
from basalt.transactions.rules.conflicts import CHANGE_BYTES
from basalt.transactions.rules.transaction import (
    CHECKPOINTS_MAX,
    OWNER_CHARS_MAX,
    TOPICS_MAX,
    Join,
    Kind,
    State,
    TransactionLimits,
)
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from tests.control.transactions.conftest import Scene

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("kind", "timeout_ms", "limit"),
    [
        (Kind.SHORT, 0, 600_000),
        (Kind.SHORT, -1, 600_000),
        (Kind.SHORT, 600_001, 600_000),
        (Kind.LONG, 90_000_001, 90_000_000),
    ],
)
def test_a_time_out_out_of_range_is_refused_with_the_range(scene, kind, timeout_ms, limit):
    with pytest.raises(InputError, match=f"1 to {limit} ms, not {timeout_ms}") as caught:
        scene.begin(kind, timeout_ms=timeout_ms)
    assert caught.value.field == "timeoutMs"


def test_time_outs_have_defaults_by_kind_and_inclusive_maxima(scene):
    assert scene.begin().deadline_ms == scene.now_ms + 30_000
    assert scene.begin(Kind.LONG).deadline_ms == scene.now_ms + 86_400_000
    assert scene.begin(timeout_ms=600_000).deadline_ms == scene.now_ms + 600_000
    assert scene.begin(Kind.LONG, timeout_ms=90_000_000).deadline_ms == scene.now_ms + 90_000_000


@pytest.mark.parametrize("owner", ["x" * (OWNER_CHARS_MAX + 1), "two\nlines", "\x1b[31m", "\u202eevil", "\ud800"])
def test_an_owner_that_cannot_be_shown_in_a_message_is_refused(scene, owner):
    with pytest.raises(InvalidNameError):
        scene.begin(owner=owner)
    with pytest.raises(InvalidNameError):
        scene.one_shot(owner=owner)


@pytest.mark.parametrize("request_id", ["", "x" * 256, "a\0b"])
def test_a_request_id_that_is_no_id_is_refused(scene, request_id):
    with pytest.raises(InputError, match="request id"):
        scene.begin(request_id=request_id)


def test_too_many_in_progress_is_busy_and_names_the_oldest(scene_with):
    scene = scene_with(TransactionLimits(in_progress_max=2))
    oldest = scene.begin(owner="etl")
    scene.checkpoint(oldest)
    for call in (scene.begin, lambda: scene.checkpoint(oldest)):
        with pytest.raises(
            BusyError, match=rf"the oldest is transaction {oldest.id} \(owner etl\), deadline 2023.* limit is 2"
        ):
            call()
    assert scene.one_shot().state is State.COMMITTED, "a one-shot transaction is never in progress"
    scene.commit(oldest)
    scene.begin()


def test_a_topic_joins_once_from_its_earliest_time(scene):
    opened = scene.begin()
    scene.join(opened, TOPIC)
    assert scene.state.join(opened.id, TOPIC._replace(from_ms=TOPIC.from_ms + 5), scene.now_ms).edits == ()
    earlier = TOPIC._replace(from_ms=TOPIC.from_ms - 5)
    scene.join(opened, earlier)
    again = TOPIC._replace(generation=2)
    scene.join(opened, again)
    assert scene.state.get(opened.id).topics == (earlier, again)


def test_a_transaction_has_a_bounded_number_of_topics_and_checkpoints(scene):
    opened = scene.begin()
    for number in range(TOPICS_MAX):
        scene.join(opened, TOPIC._replace(generation=number + 1))
    with pytest.raises(TooLargeError, match=f"{TOPICS_MAX:,} topics"):
        scene.join(opened, TOPIC._replace(generation=TOPICS_MAX + 1))
    for _ in range(CHECKPOINTS_MAX):
        scene.checkpoint(opened)
    with pytest.raises(TooLargeError, match=f"{CHECKPOINTS_MAX:,} checkpoints"):
        scene.checkpoint(opened)


def memory_of(*changes: bytes) -> int:
    return sum(map(len, changes)) + CHANGE_BYTES * len(changes)


def test_change_sets_that_one_open_transaction_keeps_are_bounded_and_the_refusal_names_it():
    scene = Scene(TransactionLimits(change_memory_bytes_max=memory_of(b"a", b"b")))
    oldest = scene.begin(owner="forgotten")
    for key in (b"a", b"b"):
        one = scene.begin()
        scene.change(one, key)
        scene.commit(one)
    last = scene.begin()
    with pytest.raises(BusyError, match=rf"kept for transaction {oldest.id} \(owner forgotten\)"):
        scene.change(last, b"c")
    assert scene.state.get(last.id).doomed is None
    scene.abort(oldest)
    scene.change(last, b"c")
    assert scene.commit(last).state is State.COMMITTED


def test_a_change_set_that_replaces_another_counts_only_what_it_adds():
    scene = Scene(TransactionLimits(change_memory_bytes_max=memory_of(b"a", b"b")))
    one = scene.begin()
    for changes in ([b"a", b"b"], [b"b", b"c"], [b"d"]):
        scene.change(one, *changes)
    with pytest.raises(BusyError):
        scene.change(one, b"a", b"b", b"c")
    assert scene.state.get(one.id).changes == {b"d"}


def test_change_sets_that_nobody_needs_any_more_take_no_room():
    scene = Scene()
    for end in (scene.commit, scene.abort, scene.invalidate):
        one = scene.begin()
        scene.change(one, b"row")
        assert scene.state.change_memory_bytes == memory_of(b"row")
        end(one)
        assert scene.state.change_memory_bytes == 0


def test_what_change_sets_take_is_known_again_after_a_snapshot():
    scene = Scene()
    oldest, committed, opened = scene.begin(), scene.begin(), scene.begin()
    for one, key in ((committed, b"a"), (opened, b"b")):
        scene.change(one, key)
    scene.commit(committed)
    again = TransactionProposals(scene.limits, scene.state.image())
    assert again.change_memory_bytes == scene.state.change_memory_bytes == memory_of(b"a", b"b")
    assert oldest.id < opened.id
