"""Who reads and writes what, told from entries of the log."""

from __future__ import annotations

from basalt.operations.pipelines import flows
from basalt.operations.pipelines.flows import FLOWS_MAX, OPEN_MAX, PARTS_MAX, FlowKey, Flows, levels
from basalt.transactions.log.transaction_log import LogEntry
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import Join, Kind, SessionBinding, TableJoin
from basalt_engine.spans.spans import Spans

ORDERS, INVOICES = b"shop:orders:", b"shop:invoices:"
SPANS = Spans([(bytes(20), b"\1" * 20)])


def entry(*group: Edit) -> LogEntry:
    return LogEntry(5, group, len(group), True)


def began(number: int, owner: str = "") -> Edit:
    return edits.Began(number, Kind.SHORT, False, 1, 9, owner, None)


def joined(number: int, topic: bytes) -> Edit:
    return edits.Joined(number, Join(topic, 1, 0))


def committed(number: int, at_ms: int = 7) -> Edit:
    return edits.Committed(number, at_ms, None)


def told(*entries: LogEntry) -> dict[FlowKey, tuple[list[int], list[bytes], int]]:
    found = Flows()
    found.take(entries)
    return {key: (list(flow.reads), list(flow.writes), flow.transactions) for key, flow in found.items()}


def test_what_a_transaction_acknowledges_and_writes_is_a_flow_of_its_session_once_it_commits():
    first = (
        entry(began(1, "etl"), edits.Owned(1, "ada"), edits.SessionBegan(1, SessionBinding("import", 1, 4))),
        entry(joined(1, INVOICES), edits.AcknowledgedIn(1, 3, 5, SPANS)),
    )
    assert told(*first) == {}
    done = told(*first, entry(committed(1)))
    assert done == {FlowKey("session", "import", "ada"): ([3], [INVOICES], 1)}


def test_without_a_session_it_is_the_owners_and_without_an_owner_the_groups():
    found = told(
        entry(
            began(1, "etl"),
            joined(1, ORDERS),
            committed(1),
            began(2),
            joined(2, ORDERS),
            edits.AcknowledgedIn(2, 7, 5, SPANS),
        ),
        entry(committed(2), began(3), edits.TableJoined(3, TableJoin(b"shop:~stock:", 1)), committed(3)),
    )
    assert {(key.kind, key.name) for key in found} == {("owner", "etl"), ("group", "7"), ("unnamed", "")}


def test_what_did_not_commit_or_did_nothing_is_no_flow():
    assert (
        told(
            entry(began(1, "a"), joined(1, ORDERS), edits.Aborted(1, 6, False)),
            entry(began(2, "b"), joined(2, ORDERS), edits.Invalidated((2,), 6, False), committed(2)),
            entry(began(3, "c"), committed(3), edits.Acknowledged(0, 3, 5, SPANS)),
        )
        == {}
    )


def test_a_one_shot_is_told_with_what_its_entry_says_behind_it():
    one_shot = edits.OneShot(1, 6, "bill", None)
    found = told(entry(one_shot, edits.Owned(1, "ada"), edits.Acknowledged(1, 3, 5, SPANS)))
    assert found == {FlowKey("owner", "bill", "ada"): ([3], [], 1)}


def test_those_who_committed_last_are_kept_and_what_each_has_is_bounded(monkeypatch):
    assert FLOWS_MAX < OPEN_MAX
    monkeypatch.setattr(flows, "FLOWS_MAX", 2)
    monkeypatch.setattr(flows, "PARTS_MAX", 3)
    assert PARTS_MAX > 3
    found = told(*(
        entry(began(number, owner), joined(number, b"n:t%d:" % number), committed(number))
        for number, owner in enumerate(("a", "b", "a", "c", "a", "a"), 1)
    ))  # fmt: skip
    assert [key.name for key in found] == ["c", "a"]
    assert found[FlowKey("owner", "a", "")] == ([], [b"n:t1:", b"n:t3:", b"n:t5:"], 4)


def test_too_many_open_ones_are_passed_over(monkeypatch):
    monkeypatch.setattr(flows, "OPEN_MAX", 1)
    found = told(
        entry(began(1, "a"), joined(1, ORDERS), began(2, "b"), joined(2, ORDERS)), entry(committed(1), committed(2))
    )
    assert [key.name for key in found] == ["b"]


def test_steps_come_behind_those_whose_topics_they_read_and_a_circle_ends():
    sets = [frozenset(each.split()) for each in ("a", "", "b", "c a")]
    writes = [frozenset(each.split()) for each in ("b", "a", "c", "")]
    assert levels(sets, writes) == [1, 0, 2, 3]
    assert max(levels([frozenset("a"), frozenset("b")], [frozenset("b"), frozenset("a")])) <= 2
    assert levels([frozenset("a")], [frozenset("a")]) == [0]
