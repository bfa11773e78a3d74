"""Named sessions through both clients."""

from __future__ import annotations

import pytest

from basalt.errors import (
    SessionFencedError,
    SessionNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
)
from tests.control.client.test_client_end_to_end import everything


def used(side, tx, work=None):
    """Run a `with` block of either client."""
    if side.name == "blocking":
        with tx:
            return None if work is None else work(tx)

    async def block():
        async with tx:
            return None if work is None else await work(tx)

    return side.do(block())


def test_work_with_a_version_is_done_once(side, connected):
    session = side.do(connected.session("billing", run="monday"))
    assert (session.name, session.run, session.epoch, session.version) == ("billing", "monday", 1, None)
    first = session.transaction(version=7)
    used(side, first, lambda tx: tx.publish("orders", ["of day 7"]))
    assert not first.committed_before
    again = session.transaction(version=7)
    used(side, again)
    assert again.committed_before
    assert everything(side, connected.topic("orders").read()) == [b"of day 7"]
    assert side.do(connected.session("billing", run="tuesday")).version == 7


def test_using_what_was_committed_before_is_an_error_that_says_so(side, connected):
    session = side.do(connected.session("billing"))
    used(side, session.transaction(version=1))
    with pytest.raises(TransactionEndedError, match="version 1 of session 'billing' was committed before"):
        used(side, session.transaction(version=1), lambda tx: tx.publish("orders", ["twice"]))
    assert everything(side, connected.topic("orders").read()) == []


def test_a_zombie_is_fenced_when_it_begins_and_when_it_commits(side, connected):
    old = side.do(connected.session("billing"))
    side.do(connected.session("billing", run=old.run))

    def taken_over(tx):
        return connected.session("billing", run="another")

    with pytest.raises(SessionFencedError):
        used(side, old.transaction(), taken_over)
    with pytest.raises(SessionFencedError, match="run 'another' holds it"):
        used(side, old.transaction())


def test_the_second_of_two_begins_again_and_learns_that_it_was_done(side, connected):
    session = side.do(connected.session("billing"))
    rival = session.transaction(version=1)

    with pytest.raises(TransactionConflictError, match="version 1 of session billing"):
        if side.name == "blocking":
            with session.transaction(version=1), rival:
                pass
        else:

            async def both():
                async with session.transaction(version=1), rival:
                    pass

            side.do(both())
    assert used(side, session.transaction(version=1)) is None


def test_a_lost_answer_to_opening_fences_nobody(side, connected):
    connected.losing.loses = "/sessions/billing"
    assert side.do(connected.session("billing")).epoch == 1
    assert sum(target.endswith("/sessions/billing") for target in connected.losing.sent) == 2


def test_operators_list_show_and_delete_them(side, connected):
    session = side.do(connected.session("billing", run="monday"))
    side.do(connected.session("a b/c".replace("/", "-"), run="r"))
    assert [each.name for each in side.do(connected.sessions.list())] == ["a b-c", "billing"]
    used(side, session.transaction(version=3))
    found = side.do(connected.sessions.get("billing"))
    assert (found.run, found.epoch, found.version, found.transactions) == ("monday", 1, 3, ())
    assert len(found.committed_by) == 32
    side.do(connected.sessions.delete("billing", reason="it moved", by="ada"))
    act = side.do(connected.admin.audit(limit=1))[0]
    assert (act.what, act.name, act.reason) == ("session billing", "ada", "it moved")
    with pytest.raises(SessionNotFoundError):
        side.do(connected.sessions.get("billing"))
    with pytest.raises(SessionNotFoundError):
        used(side, session.transaction())
