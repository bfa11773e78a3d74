"""The rules against a naive model that keeps every marker and works everything out from the list each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from basalt.api.markers import (
    NOTHING_KNOWN,
    MarkedPosition,
    Marker,
    MarkerState,
    advanced,
    apply,
    is_ended,
    parse_marked_position,
    refusal,
    watermark_ms,
)
from basalt.errors import InputError

TASKS = st.sampled_from(["a", "b", "c", "d"])
TIMES = st.integers(-5, 5)


class Naive:
    """All markers there were."""

    def __init__(self) -> None:
        self.accepted: list[Marker] = []

    def may_follow(self, marker: Marker) -> bool:
        tasks = {each.task for each in self.accepted}
        if self.accepted and self.accepted[0].task_count != marker.task_count:
            return False
        if marker.task not in tasks and len(tasks) == marker.task_count:
            return False
        ended = any(each.task == marker.task and each.event_time_ms is None for each in self.accepted)
        return not (ended and marker.event_time_ms is not None)

    def ended_tasks(self) -> set[str]:
        return {each.task for each in self.accepted if each.event_time_ms is None}

    def is_ended(self) -> bool:
        return bool(self.accepted) and len(self.ended_tasks()) == self.accepted[0].task_count

    def watermark_ms(self) -> int | None:
        tasks = {each.task for each in self.accepted}
        if not self.accepted or len(tasks) < self.accepted[0].task_count:
            return None
        highest = {
            task: max(
                (each.event_time_ms for each in self.accepted if each.task == task and each.event_time_ms is not None),
                default=None,
            )
            for task in tasks
        }
        if self.is_ended():
            return max((mark for mark in highest.values() if mark is not None), default=None)
        return min(highest[task] for task in tasks - self.ended_tasks())


class Reconciling(RuleBasedStateMachine):
    """Tasks say things in any order; a reader restarts at its position now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.naive = Naive()
        self.state: MarkerState = NOTHING_KNOWN
        self.held: int | None = None
        self.now_ms = 0

    @rule(task=TASKS, task_count=st.sampled_from([2, 2, 2, 3]), at=TIMES)
    def watermark(self, task: str, task_count: int, at: int) -> None:
        self._say(Marker(task, task_count, at))

    @rule(task=TASKS, task_count=st.sampled_from([2, 2, 2, 3]))
    def end(self, task: str, task_count: int) -> None:
        self._say(Marker(task, task_count))

    @precondition(lambda self: bool(self.naive.accepted))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        marker = data.draw(st.sampled_from(self.naive.accepted))
        known = (watermark_ms(self.state), is_ended(self.state))
        if refusal(self.state, marker) is None:
            self.state = apply(self.state, marker, self.now_ms)
            self.naive.accepted.append(marker)
        assert (watermark_ms(self.state), is_ended(self.state)) == known

    @rule()
    def restart(self) -> None:
        text = str(MarkedPosition(3, bytes(20), self.state, self.held))
        found = parse_marked_position(text)
        self.state, self.held = found.state, found.watermark_ms
        assert str(found) == text

    def _say(self, marker: Marker) -> None:
        self.now_ms += 1
        allowed = self.naive.may_follow(marker)
        assert (refusal(self.state, marker) is None) == allowed
        if allowed:
            self.naive.accepted.append(marker)
            self.state = apply(self.state, marker, self.now_ms)

    @invariant()
    def both_draw_the_same_conclusions(self) -> None:
        assert is_ended(self.state) == self.naive.is_ended()
        assert watermark_ms(self.state) == self.naive.watermark_ms()
        before, self.held = self.held, advanced(self.state, self.held)
        assert self.held == self.naive.watermark_ms() or (before is not None and self.held == before)
        assert before is None or (self.held is not None and self.held >= before)


TestReconciling = Reconciling.TestCase


@given(st.text(max_size=200))
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        parse_marked_position(text)
    except InputError as error:
        assert error.field == "position"
