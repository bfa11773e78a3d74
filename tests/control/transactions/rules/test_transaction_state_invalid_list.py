"""How write pointers leave the invalid list, and how snapshots share it."""

from __future__ import annotations

import pytest

from basalt.errors import (
    ConflictError,
)
from basalt.transactions.rules.transaction import Join

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


def test_pruned_pointers_leave_the_invalid_list(scene):
    first, second = scene.begin(), scene.begin()
    scene.invalidate(first)
    scene.invalidate(second)
    scene.done(scene.state.prune([first.id, 17]))
    assert scene.state.invalid.pointers == (second.id,)
    assert scene.state.prune([17]).edits == ()


def test_the_invalid_list_is_truncated_before_a_time(scene):
    first = scene.begin()
    scene.clock.advance(5_000)
    second = scene.begin()
    scene.invalidate(first)
    scene.invalidate(second)
    scene.done(scene.state.truncate(scene.now_ms))
    assert scene.state.invalid.pointers == (second.id,)
    assert scene.state.truncate(scene.now_ms).edits == ()


def test_the_invalid_list_is_not_truncated_past_a_transaction_in_progress(scene):
    opened = scene.begin(owner="etl")
    scene.clock.advance(5_000)
    with pytest.raises(ConflictError, match=rf"{opened.id} \(owner etl\) is older and in progress"):
        scene.state.truncate(scene.now_ms)
    scene.state.truncate(opened.id // 1_000_000)


def test_a_snapshot_keeps_the_invalid_list_of_its_moment_without_a_copy(scene):
    scene.invalidate(scene.begin())
    before, also_before = scene.begin(), scene.begin()
    scene.invalidate(scene.begin())
    assert before.invalid is also_before.invalid
    assert len(before.invalid) == 1
    assert len(scene.state.invalid) == 2
