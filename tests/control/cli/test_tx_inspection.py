"""`basalt tx list | describe | find-hanging | timeline`, `explain`, and ends by hand, against a server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import basalt
from basalt.cli.commands.tx import _winner_text

pytestmark = pytest.mark.usefixtures("cli")


def document(cli, *arguments: str) -> Any:
    ran = cli(*arguments, "-o", "json")
    assert ran.code in (0, 7), ran.err
    return json.loads(ran.out)


@pytest.fixture
def begin(cli) -> Iterator[Callable[..., str]]:
    """Begins a transaction, which ends with the test: the server is shared."""
    begun: list[str] = []

    def one(*options: str) -> str:
        begun.append(json.loads(cli("tx", "begin", "-o", "json", *options).out)["id"])
        return begun[-1]

    yield one
    for tx in begun:
        cli("tx", "invalidate", tx, "--yes")


@pytest.fixture
def owner(cli) -> str:
    """An owner of this test's own: the server is shared."""
    return os.environ["BASALT_NAMESPACE"]


@pytest.fixture
def held(cli, begin, owner: str) -> str:
    """A transaction that holds back two messages of the topic `orders`."""
    cli("topic", "create", "orders")
    tx = begin("--owner", owner, "--expires", "5m")
    pointer = document(cli, "tx", "show", tx)["write_pointer"]
    with basalt.connect(os.environ["BASALT_URL"], namespace=owner) as client:
        client.topic("orders").publish(["early"], write_pointer=pointer)
        client.topic("orders").publish(["b", "c"])
    return tx


def test_of_a_lost_conflict_no_more_is_told_than_the_server_tells():
    seen = {"winner": "17", "winner_owner": "payroll", "key": "salary"}
    assert _winner_text(seen) == "transaction 17 of payroll, which changed salary first"
    assert _winner_text({**seen, "winner_owner": "", "key": ""}) == "transaction 17"


def test_a_list_says_how_many_there_are(cli, begin, owner):
    tx = begin("--owner", owner)
    cli("topic", "create", "orders")
    shown = cli("tx", "list", "--owner", owner)
    assert tx in shown.out
    assert shown.out.rstrip().splitlines()[-1].startswith("1 transaction")
    (row,) = document(cli, "tx", "list", "--owner", owner)
    assert (row["id"], row["state"], row["owner"], row["holds_readers"]) == (tx, "OPEN", owner, False)
    assert document(cli, "tx", "list", "--owner", owner, "--older-than", "1h") == []
    assert document(cli, "tx", "list", "--owner", owner, "--state", "aborting") == []
    assert document(cli, "tx", "list", "--topic", "orders") == []
    assert cli("tx", "list", "--state", "gone").code == 2


def test_a_description_is_a_listing_for_people_and_whole_for_programs(cli, held, owner):
    shown = cli("tx", "describe", held)
    assert shown.code == 0, shown.err
    for text in (held, owner, f"{owner}:orders at ", "2 messages behind it", "rolled back", f"basalt tx abort {held}"):
        assert text in shown.out
    found = document(cli, "tx", "describe", held)
    assert found["blocks"][0]["messages"] == 2
    assert found["held_back"]["pruning"] in (True, False)
    assert cli("tx", "describe", "17").code == 3
    cli("tx", "abort", held, "--yes")
    assert "it was aborted" in cli("tx", "describe", held).out


def test_what_hangs_is_told_by_topic_and_by_exit_code(cli, held, owner):
    shown = cli("tx", "find-hanging", "--owner", owner)
    assert shown.code == 7
    assert f"{owner}:orders" in shown.out
    assert "holds readers back" in shown.out
    (found,) = document(cli, "tx", "find-hanging", "--topic", "orders")
    assert (found["id"], found["blocks"][0]["messages"]) == (held, 2)
    cli("tx", "abort", held, "--yes")
    none = cli("tx", "find-hanging", "--owner", owner)
    assert (none.code, none.out.split()[0]) == (0, "none")
    assert document(cli, "tx", "find-hanging", "--owner", owner) == []


def test_explain_poll_names_who_is_waited_for_and_what_waits(cli, held, owner):
    shown = cli("explain", "poll", "orders")
    assert shown.code == 0, shown.err
    for text in (held, owner, "2 messages behind it", "rolled back", "ask its owner"):
        assert text in shown.out
    found = document(cli, "explain", "poll", "orders")
    assert (found["held_by"], found["messages_behind"], found["polls_waiting"]) == (held, 2, 0)
    assert 0 < found["expires_in_ms"] <= 300_000
    cli("tx", "abort", held, "--yes")
    assert "Nothing holds readers" in cli("explain", "poll", "orders").out
    assert document(cli, "explain", "poll", "orders")["held_by"] is None


def test_explain_tx_tells_a_story(cli, begin, held, owner):
    told = cli("explain", "tx", held).out
    for text in (f"Transaction {held} of {owner} is OPEN", "waits for its client", f"wait in {owner}:orders", "Next: "):
        assert text in told
    assert document(cli, "explain", "tx", held)["at_deadline"].startswith("it is aborted")
    quiet = begin()
    assert "No reader waits for it." in cli("explain", "tx", quiet).out
    cli("tx", "invalidate", held, "--yes")
    told = cli("explain", "tx", held).out
    assert "it failed and may have left writes behind" in told
    assert "1 write pointer of it is on the invalid list" in told


def test_a_timeline_has_who_forced_the_end_and_why(cli, held, monkeypatch):
    monkeypatch.setenv("USER", "alice")
    assert cli("tx", "abort", held, "--yes", "--reason", "its client is gone").out == f"transaction {held} is ABORTED\n"
    shown = cli("tx", "timeline", held).out
    words = [line.split()[1] for line in shown.splitlines()[1:]]
    assert words[0] == "begun"
    assert "forced_abort" in words
    assert "reason its client is gone" in shown
    assert "by alice" in shown
    assert [step["event"] for step in document(cli, "tx", "timeline", held)["steps"]] == words
    listed = cli("audit", "list", "--limit", "10000").out
    (line,) = [line for line in listed.splitlines() if held in line]
    assert "forced abort" in line
    assert "alice" in line
    found = [act for act in document(cli, "audit", "list") if act["what"] == f"transaction {held}"]
    assert [(act["outcome"], act["reason"]) for act in found] == [("ABORTED", "its client is gone")]


def test_an_abort_that_promises_too_much_says_to_invalidate(cli, owner):
    with basalt.connect(os.environ["BASALT_URL"], namespace=owner) as client:
        tx = client.transactions.begin(owner=owner, external_writes=True).id
    for extra in ((), ("--dry-run",)):
        refused = cli("tx", "abort", tx, "--yes", *extra)
        assert refused.code == 4
        assert f"invalidate it (`basalt tx invalidate {tx}`)" in refused.err
    assert "would be INVALID" in cli("tx", "invalidate", tx, "--dry-run").out
    assert cli("tx", "invalidate", tx).code == 2
    assert cli("tx", "invalidate", tx, "--yes", "--as", "bob").out == f"transaction {tx} is INVALID\n"
    assert cli("tx", "invalidate", tx, "--yes").out == f"transaction {tx} was INVALID before\n"
    assert cli("tx", "abort", tx, "--yes", "--force").out == f"transaction {tx} is ABORTED\n"
