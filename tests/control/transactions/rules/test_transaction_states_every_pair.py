"""Every call in every state, through the whole manager: which edits it proposes, or with which error it refuses."""

from __future__ import annotations

import pytest

from basalt.errors import TransactionEndedError
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import Join, State, TableJoin

TOPIC = Join(b"shop:orders:", 1, 0)
TABLE = TableJoin(b"shop:~accounts:", 1)
ENDED = TransactionEndedError

CALLS = {
    "checkpoint": lambda state, key, now_ms: state.checkpoint(key, now_ms),
    "join": lambda state, key, now_ms: state.join(key, TOPIC._replace(generation=2), now_ms),
    "join_table": lambda state, key, now_ms: state.join_table(key, TABLE, now_ms),
    "set_changes": lambda state, key, now_ms: state.set_changes(key, [b"other"], now_ms),
    "mark_external_writes": lambda state, key, now_ms: state.mark_external_writes(key, now_ms),
    "commit": lambda state, key, now_ms: state.commit(key, now_ms),
    "commit inline": lambda state, key, now_ms: state.commit(key, now_ms, inline=True),
    "abort": lambda state, key, now_ms: state.abort(key, now_ms),
    "abort inline": lambda state, key, now_ms: state.abort(key, now_ms, inline=True),
    "invalidate": lambda state, key, now_ms: state.invalidate(key, now_ms),
    "finish": lambda state, key, now_ms: state.finish(key, now_ms),
    "give_up": lambda state, key, now_ms: state.give_up(key, now_ms),
}
NOTHING = ()
# For each call: what it proposes when the transaction is OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED, INVALID.
EXPECTED = {
    "checkpoint": (edits.Checkpointed, ENDED, ENDED, ENDED, ENDED, ENDED),
    "join": (edits.Joined, ENDED, ENDED, ENDED, ENDED, ENDED),
    "join_table": (edits.TableJoined, ENDED, ENDED, ENDED, ENDED, ENDED),
    "set_changes": (edits.Changed, ENDED, ENDED, ENDED, ENDED, ENDED),
    "mark_external_writes": (edits.Changed, ENDED, ENDED, ENDED, ENDED, ENDED),
    "commit": (edits.Committing, NOTHING, NOTHING, ENDED, ENDED, ENDED),
    "commit inline": (edits.Committed, NOTHING, NOTHING, ENDED, ENDED, ENDED),
    "abort": (edits.Aborting, ENDED, ENDED, NOTHING, NOTHING, edits.Aborting),
    "abort inline": (edits.Aborted, ENDED, ENDED, NOTHING, NOTHING, edits.Aborted),
    "invalidate": (edits.Invalidated, ENDED, ENDED, edits.Invalidated, NOTHING, NOTHING),
    "give_up": (ENDED, edits.Aborting, ENDED, NOTHING, NOTHING, NOTHING),
    "finish": (ENDED, edits.Committed, NOTHING, edits.Aborted, NOTHING, NOTHING),
}
# The same of a transaction that has cells, or writes outside: what is not named here is as above.
WITH_CELLS = {
    "join_table": (NOTHING, ENDED, ENDED, None, None, ENDED),
    "abort": (edits.Invalidated, ENDED, ENDED, None, None, NOTHING),
    "abort inline": (edits.Invalidated, ENDED, ENDED, None, None, NOTHING),
    "give_up": (ENDED, edits.Invalidated, ENDED, None, None, NOTHING),
}
AFTER: dict[object, State] = {
    edits.Checkpointed: State.OPEN,
    edits.Joined: State.OPEN,
    edits.TableJoined: State.OPEN,
    edits.Changed: State.OPEN,
    edits.Committing: State.COMMITTING,
    edits.Committed: State.COMMITTED,
    edits.Aborting: State.ABORTING,
    edits.Aborted: State.ABORTED,
    edits.Invalidated: State.INVALID,
}


def brought_to(scene, state: State, cells: bool = False) -> int:
    opened = scene.begin(owner="etl")
    scene.join(opened, TOPIC)
    if cells:
        scene.join_table(opened, TABLE)
    scene.change(opened)
    if state in (State.COMMITTING, State.COMMITTED):
        scene.commit(opened, inline=False)
    if state in (State.ABORTING, State.ABORTED):
        scene.abort(opened)
    if state in (State.COMMITTED, State.ABORTED):
        scene.finish(opened)
    if state is State.INVALID:
        scene.invalidate(opened)
    assert scene.state.outcome(opened.id).state is state
    return opened.id


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("call", list(CALLS))
def test_a_call_in_a_state(scene, call: str, state: State):
    proposes(scene, call, brought_to(scene, state), EXPECTED[call][state - 1])


@pytest.mark.parametrize("state", [State.OPEN, State.COMMITTING, State.COMMITTED, State.INVALID])
@pytest.mark.parametrize("call", list(CALLS))
def test_a_call_in_a_state_of_a_transaction_that_has_cells(scene, call: str, state: State):
    proposes(scene, call, brought_to(scene, state, cells=True), WITH_CELLS.get(call, EXPECTED[call])[state - 1])


def proposes(scene, call: str, key: int, expected: object):
    before = scene.state.image()
    if expected is ENDED:
        with pytest.raises(ENDED, match=rf"transaction {key} \(owner etl\) "):
            CALLS[call](scene.state, key, scene.now_ms)
        assert scene.state.image() == before
        return
    proposal = CALLS[call](scene.state, key, scene.now_ms)
    assert (proposal.transaction_id, proposal.refusal) == (key, None)
    assert scene.state.image() == before
    if expected == NOTHING:
        assert proposal.edits == ()
        return
    (edit,) = proposal.edits
    assert isinstance(edit, expected)
    scene.done(proposal)
    assert scene.state.outcome(key).state is AFTER[expected]
    assert scene.replayed().image() == scene.state.image()
