"""The table of sessions, edit by edit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.transactions.rules import edits
from basalt.transactions.rules.sessions import SessionTable


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40))
def test_no_run_is_replaced_by_itself_and_each_is_there_once(runs):
    sessions = SessionTable()
    epoch, held = 0, ""
    for at, run in enumerate(runs):
        epoch += run != held
        held = run
        sessions.opened(edits.SessionOpened("etl", run, epoch, at), is_open=False)
    found = sessions.get("etl")
    assert found is not None
    assert found.run == runs[-1] not in found.replaced
    assert {*found.replaced, found.run} == set(runs)
    assert len(set(found.replaced)) == len(found.replaced)
