"""What markers mean together: each rule as a table of markers and what is known after them."""

from __future__ import annotations

import pytest

from basalt.api.markers import (
    NOTHING_KNOWN,
    Idle,
    Marker,
    MarkerState,
    advanced,
    apply,
    is_ended,
    malformed,
    refusal,
    watermark_ms,
)


def after(*said: tuple[str, int | None], tasks: int = 2, published_ms: int = 0) -> MarkerState:
    """The state once tasks have said a watermark, or (None) that they ended."""
    state = NOTHING_KNOWN
    for task, event_time_ms in said:
        state = apply(state, Marker(task, tasks, event_time_ms), published_ms)
    return state


@pytest.mark.parametrize(
    ("said", "watermark", "ended"),
    [
        ([], None, False),
        ([("a", 5)], None, False),
        ([("a", 5), ("b", 3)], 3, False),
        ([("a", 5), ("b", 3), ("b", 9)], 5, False),
        ([("a", 5), ("b", 3), ("a", 1)], 3, False),
        ([("a", 5), ("b", 7), ("a", 1)], 5, False),
        ([("a", 5), ("a", 5), ("a", 5)], None, False),
        ([("a", 5), ("b", None)], 5, False),
        ([("a", None), ("a", None)], None, False),
        ([("a", 5), ("b", 7), ("a", None)], 7, False),
        ([("a", 5), ("b", 7), ("a", None), ("b", None)], 7, True),
        ([("a", None), ("b", None), ("b", None)], None, True),
        ([("a", 5), ("a", None), ("a", 9), ("b", None)], 5, True),
    ],
)
def test_a_topic_is_as_far_as_its_slowest_task(
    said: list[tuple[str, int | None]], watermark: int | None, ended: bool
) -> None:
    state = after(*said)
    assert (watermark_ms(state), is_ended(state)) == (watermark, ended)


def test_a_topic_that_says_how_many_tasks_there_are_waits_for_all_of_them() -> None:
    state = after(("a", 5), tasks=1)
    assert watermark_ms(state) == 5
    assert watermark_ms(state.expecting(2)) is None
    assert state.expecting(None) == state


@pytest.mark.parametrize(
    ("marker", "field", "says"),
    [
        (Marker("a", 2, 10), None, ""),
        (Marker("b", 2, 1), None, ""),
        (Marker("b", 2), None, ""),
        (Marker("b", 2, 10), "task", "'b' has ended"),
        (Marker("c", 2, 10), "task", "'c' is one more than the 2"),
        (Marker("c", 2), "task", "'c' is one more than the 2"),
        (Marker("a", 3, 10), "taskCount", "3 tasks, and the topic knows 2"),
    ],
)
def test_what_may_not_follow_is_refused_by_name(marker: Marker, field: str | None, says: str) -> None:
    state = after(("a", 5), ("b", 7), ("b", None))
    if marker == Marker("b", 2, 1):
        state = after(("a", 5), ("b", 7))  # a watermark that says less is no error, it only says nothing
    found = refusal(state, marker)
    assert (None if found is None else found.field) == field
    assert found is None or says in found.what


@pytest.mark.parametrize(
    ("marker", "field"),
    [
        (Marker("a", 0), "taskCount"),
        (Marker("a", 1_001), "taskCount"),
        (Marker("", 2), "task"),
        (Marker("x" * 256, 2), "task"),
        (Marker("line\nbreak", 2), "task"),
        (Marker("x" * 255, 1_000), None),
    ],
)
def test_what_can_be_no_marker_of_any_topic_is_refused(marker: Marker, field: str | None) -> None:
    found = malformed(marker)
    assert (None if found is None else found.field) == field


def test_the_first_marker_says_how_many_tasks_there_are() -> None:
    assert refusal(NOTHING_KNOWN, Marker("a", 3, 1)) is None
    assert refusal(NOTHING_KNOWN.expecting(2), Marker("a", 3, 1)) is not None


IDLE = Idle(timeout_ms=1_000, quorum=2)


def spoken(**tasks: tuple[int, int]) -> MarkerState:
    """Three tasks are expected; each of these gave a watermark at a time."""
    state = NOTHING_KNOWN
    for task, (event_time_ms, at_ms) in tasks.items():
        state = apply(state, Marker(task, 3, event_time_ms), at_ms)
    return state


@pytest.mark.parametrize(
    ("state", "held", "now_ms", "expected"),
    [
        pytest.param(spoken(a=(50, 900), b=(60, 900), c=(5, 0)), 5, 1_500, 50, id="the silent one is left out"),
        pytest.param(spoken(a=(50, 900), b=(60, 900)), None, 1_500, 50, id="also one that never spoke"),
        pytest.param(spoken(a=(50, 900), b=(60, 900), c=(5, 600)), 5, 1_500, 5, id="it is not silent yet: nothing new"),
        pytest.param(spoken(a=(50, 0), b=(60, 900), c=(5, 0)), 5, 1_500, 5, id="no quorum"),
        pytest.param(spoken(a=(50, 900), b=(60, 900), c=(7, 0)), 5, 1_500, 7, id="the plain minimum advances"),
        pytest.param(spoken(a=(50, 900), b=(60, 900), c=(70, 1_400)), 55, 1_500, 55, id="never back"),
    ],
)
def test_silent_tasks_are_left_out_only_when_enough_others_are_active(
    state: MarkerState, held: int | None, now_ms: int, expected: int | None
) -> None:
    assert advanced(state, held, IDLE, now_ms) == expected


def test_without_an_idle_time_out_a_silent_task_holds_everything_back() -> None:
    state = spoken(a=(50, 900), b=(60, 900))
    assert advanced(state, None) is None
    assert advanced(state, 4) == 4


def test_a_task_that_comes_back_does_not_take_the_watermark_back() -> None:
    state = spoken(a=(50, 900), b=(60, 900), c=(5, 0))
    held = advanced(state, 5, IDLE, 1_500)
    state = apply(state, Marker("c", 3, 6), 1_600)
    assert advanced(state, held, IDLE, 1_700) == 50
