"""Which topics the log must name before, or with, a one-shot transaction, and what recovery makes of writers it finds."""

from __future__ import annotations

import pytest

from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.rules import edits
from basalt.transactions.rules.one_shots import RENEWED_POINTERS, USE_POINTERS, UsedTopic
from basalt.transactions.rules.transaction import Join, State
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.snapshot import POINTERS_PER_MS
from tests.control.transactions.whole_bytes import encode_snapshot

W = 1_700_000_000_000 * POINTERS_PER_MS
ORDERS = Join(b"shop:orders:", 1, 1_700_000_000_000)
INVOICES = Join(b"shop:invoices:", 1, 0)


def in_use(state: TransactionProposals) -> tuple[Join, ...]:
    return tuple(used.join for used in state.one_shots.entries(state.last_pointer))


def used(scene, pointer, *joins):
    """What a one-shot transaction of this pointer logs of the topics: before its rows, and with its outcome."""
    use = scene.state.one_shots.use(pointer, joins)
    for edit in (*use.before, edits.OneShot(pointer, 0, "", None), *use.with_outcome):
        scene.state.apply(edit)
        scene.edits.append(edit)
    return [[topic.topic for edit in made for topic in edit.topics] for made in (use.before, use.with_outcome)]


def test_a_topics_first_use_is_logged_before_its_rows_and_the_next_ones_are_not(scene):
    assert used(scene, W, ORDERS) == [[ORDERS.topic], []]
    assert used(scene, W + 1, ORDERS) == [[], []]
    assert used(scene, W + 2, ORDERS, INVOICES) == [[INVOICES.topic], []]
    assert in_use(scene.state) == (ORDERS, INVOICES)


def test_steady_use_is_renewed_with_an_outcome_and_from_the_topics_end(scene):
    used(scene, W, ORDERS)
    assert used(scene, W + RENEWED_POINTERS, ORDERS) == [[], []]
    later = ORDERS._replace(from_ms=ORDERS.from_ms + 2_000)
    assert used(scene, W + RENEWED_POINTERS + 1, later) == [[], [ORDERS.topic]]
    assert in_use(scene.state) == (later,)


@pytest.mark.parametrize(("after", "logged_before"), [(USE_POINTERS, False), (USE_POINTERS + 1, True)])
def test_a_use_lasts_as_long_as_it_was_announced_for(scene, after, logged_before):
    used(scene, W, ORDERS)
    before, with_outcome = used(scene, W + after, ORDERS)
    assert (bool(before), bool(with_outcome)) == (logged_before, not logged_before)


def test_a_place_before_the_announced_ones_is_announced_first(scene):
    used(scene, W, ORDERS)
    behind = ORDERS._replace(from_ms=ORDERS.from_ms - 1)
    assert used(scene, W + 1, behind) == [[ORDERS.topic], []]
    assert in_use(scene.state) == (behind,)


def test_a_topic_that_was_created_again_is_another_one(scene):
    used(scene, W, ORDERS)
    assert used(scene, W + 1, ORDERS._replace(generation=2)) == [[ORDERS.topic], []]


def test_a_topic_is_in_use_until_pointers_have_passed_its_end(scene):
    used(scene, W, ORDERS)
    used(scene, W + USE_POINTERS - 1, INVOICES)
    assert in_use(scene.state) == (ORDERS, INVOICES)
    used(scene, W + USE_POINTERS)
    assert in_use(scene.state) == (INVOICES,)


def test_where_no_pointer_is_handed_out_the_end_of_a_use_is_logged(scene):
    used(scene, W, ORDERS)
    end_ms = (W + USE_POINTERS) // POINTERS_PER_MS
    assert not scene.state.one_shots.end_idle(scene.state.last_pointer, end_ms).edits
    scene.done(scene.state.one_shots.end_idle(scene.state.last_pointer, end_ms + 1))
    assert in_use(scene.state) == ()
    assert not scene.state.one_shots.end_idle(scene.state.last_pointer, end_ms + 1).edits


def test_what_is_in_use_is_the_same_after_replaying_the_log_and_in_a_snapshot_of_it(scene):
    used(scene, W, ORDERS)
    used(scene, W + RENEWED_POINTERS + 1, ORDERS, INVOICES)
    image = scene.state.image()
    assert scene.replayed().image() == image
    assert image.topics_used == (
        UsedTopic(W + RENEWED_POINTERS + 1 + USE_POINTERS, INVOICES),
        UsedTopic(W + RENEWED_POINTERS + 1 + USE_POINTERS, ORDERS),
    )
    assert in_use(TransactionProposals(image=decode_snapshot(encode_snapshot(image), "it"))) == (
        INVOICES,
        ORDERS,
    )


def test_a_reset_forgets_no_topic_in_use(scene_with):
    scene = scene_with()
    used(scene, W, ORDERS)
    scene.state.apply(edits.Reset(scene.now_ms))
    assert in_use(scene.state) == (ORDERS,)


def test_recovery_makes_aborting_transactions_of_writers_that_the_log_does_not_know(scene):
    used(scene, W, ORDERS, INVOICES)
    scene.done(
        scene.state.one_shots.roll_back_unknown(scene.state.last_pointer, {W + 9: [ORDERS], W + 7: [ORDERS, INVOICES]})
    )
    found = scene.state.transactions()
    assert [(each.id, each.state, each.topics) for each in found] == [
        (W + 7, State.ABORTING, (ORDERS, INVOICES)),
        (W + 9, State.ABORTING, (ORDERS,)),
    ]
    assert scene.state.last_pointer == W + 9
    assert scene.state.view().in_progress == (W + 7, W + 9)
    assert [scene.finish(each).state for each in found] == [State.ABORTED] * 2


@pytest.mark.parametrize("found", [{}, {W + 7: [ORDERS]}], ids=["nothing found", "something found"])
def test_recovery_leaves_no_topic_in_use_and_says_so_in_the_log(scene, found):
    used(scene, W, ORDERS)
    assert scene.state.one_shots.roll_back_unknown(scene.state.last_pointer, found).edits
    scene.done(scene.state.one_shots.roll_back_unknown(scene.state.last_pointer, found))
    assert in_use(scene.state) == ()


def test_recovery_has_nothing_to_say_where_no_topic_is_in_use(scene):
    assert not scene.state.one_shots.roll_back_unknown(scene.state.last_pointer, {}).edits
