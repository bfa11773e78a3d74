"""Every (state, event) pair of the table, spelled out a second time as a picture."""

from __future__ import annotations

import pytest

from basalt.transactions.rules.transaction import NO_SHORT, Event, Kind, State, Transaction, VisibilityLevel, step
from basalt_engine.snapshot import InvalidList, Visibility

PICTURE = """
             OPEN        COMMITTING  COMMITTED   ABORTING    ABORTED     INVALID
CHECKPOINT   OPEN        -           -           -           -           -
JOIN         OPEN        -           -           -           -           -
CHANGE       OPEN        -           -           -           -           -
LOSE         OPEN        -           -           -           -           -
COMMIT       COMMITTING  COMMITTING  COMMITTED   -           -           -
COMMIT_INLINE COMMITTED  COMMITTING  COMMITTED   -           -           -
ABORT        ABORTING    -           -           ABORTING    ABORTED     ABORTING
ABORT_INLINE ABORTED     -           -           ABORTING    ABORTED     ABORTED
INVALIDATE   INVALID     -           -           INVALID     ABORTED     INVALID
FINISH       -           COMMITTED   COMMITTED   ABORTED     ABORTED     INVALID
GIVE_UP      -           ABORTING    -           ABORTING    ABORTED     INVALID
GIVE_UP_HIDDEN -         INVALID     -           ABORTING    ABORTED     INVALID
"""
ROWS = [line.split() for line in PICTURE.strip().splitlines()]
PAIRS = [
    (State[state], Event[event], None if after == "-" else State[after])
    for event, *afters in ROWS[1:]
    for state, after in zip(ROWS[0], afters, strict=True)
]


def test_the_picture_shows_every_pair_once():
    assert {pair[:2] for pair in PAIRS} == {(state, event) for state in State for event in Event}
    assert len(PAIRS) == len(State) * len(Event)


@pytest.mark.parametrize(("state", "event", "after"), PAIRS)
def test_an_event_leads_where_the_picture_says(state: State, event: Event, after: State | None):
    assert step(state, event) is after


def test_the_numbers_of_states_kinds_and_levels_never_change():
    assert {state.name: state.value for state in State} == {
        "OPEN": 1,
        "COMMITTING": 2,
        "COMMITTED": 3,
        "ABORTING": 4,
        "ABORTED": 5,
        "INVALID": 6,
    }
    assert {kind.name: kind.value for kind in Kind} == {"SHORT": 1, "LONG": 2}
    assert {level.name: level.value for level in VisibilityLevel} == {
        "SNAPSHOT": 1,
        "SNAPSHOT_EXCLUDE_CURRENT": 2,
        "SNAPSHOT_ALL": 3,
    }


def test_no_end_can_become_its_opposite():
    after_commit = {step(State.COMMITTED, event) for event in Event}
    after_abort = {step(State.ABORTED, event) for event in Event}
    assert after_commit == {None, State.COMMITTED}
    assert after_abort == {None, State.ABORTED}


def transaction(level: VisibilityLevel) -> Transaction:
    return Transaction(
        id=50,
        kind=Kind.SHORT,
        read_pointer=40,
        began_ms=0,
        deadline_ms=1,
        checkpoints=(60, 70),
        invalid=InvalidList((30,)),
        level=level,
    )


def test_a_transaction_sees_what_all_its_pointers_wrote():
    snapshot = transaction(VisibilityLevel.SNAPSHOT).snapshot()
    assert [snapshot.judge(pointer) for pointer in (50, 60, 70)] == [Visibility.VISIBLE] * 3
    assert [snapshot.judge(pointer) for pointer in (20, 30, 55)] == [
        Visibility.VISIBLE,
        Visibility.SKIP,
        Visibility.HOLD,
    ]
    assert snapshot.write_pointer == 70


def test_a_transaction_that_excludes_its_current_pointer_sees_its_earlier_ones():
    snapshot = transaction(VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT).snapshot()
    assert [snapshot.is_visible(pointer) for pointer in (50, 60, 70)] == [True, True, False]


def test_without_a_short_transaction_every_pointer_counts_as_older_than_the_first():
    assert transaction(VisibilityLevel.SNAPSHOT).first_short == NO_SHORT == 2**63 - 1
