"""`basalt group`, `consume --group` and `explain group` against a real server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import basalt
from basalt.cli.commands.diagnosis import group_story
from basalt.cli.commands.group import is_behind
from basalt.client import Client


@contextmanager
def connected(url: str) -> Iterator[Client]:
    with basalt.connect(url, namespace=os.environ["BASALT_NAMESPACE"]) as client:
        yield client


@pytest.fixture
def orders(cli, server_url):
    """A topic of ten messages, and a group that reads it."""
    assert cli("topic", "create", "orders").code == 0
    assert cli("publish", "orders", *map(str, range(10))).code == 0
    assert cli("group", "create", "orders", "billing", "--attempts-max", "3").code == 0
    return cli


def rows(cli, *words: str) -> list[dict[str, Any]]:
    ran = cli(*words, "-o", "json")
    assert ran.code in (0, 7), ran.err
    return json.loads(ran.out)


def record(cli, *words: str) -> dict[str, Any]:
    ran = cli(*words, "-o", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_what_the_server_refuses_of_options_is_told_by_the_names_of_the_commands(orders, words):
    refused = orders("group", "create", "orders", "slow", "--retry-delay", "1h", *words)
    assert (refused.code, refused.err) == (1, "basalt: --retry-delay-max is 5m; it must be 1h to 30d\n")
    refused = orders("group", "change", "orders", "billing", "--lease", "10ms", *words)
    assert refused.err.startswith("basalt: --lease is 10ms; it must be ")
    refused = orders("group", "create", "orders", "slow", "--key", "page", *words)
    assert refused.err.startswith("basalt: --key is neither key nor header:NAME")
    there = orders("group", "create", "orders", "billing", "--claim-time", "10m", "--mode", "keyed", *words)
    assert there.code == 4
    for told in ("--mode is shared, not keyed", "--claim-time is 5m, not 10m", "--attempts-max is 3, not 8"):
        assert told in there.err.replace('"', "")
    if not words:
        refused = orders("group", "change", "orders", "billing", "--unacked-max", "9000000")
        assert refused.err.startswith("basalt: --unacked-max is 9000000; it must be 1 to 100000")
        refused = orders("group", "release", "orders", "billing", "7", "--delay", "1s", "--uncounted")
        assert (refused.code, "--delay and --uncounted" in refused.err) == (2, True)
        refused = orders("group", "release", "orders", "billing", "7", "--delay", "3d")
        assert "delayMs" not in refused.err


def test_a_group_is_made_once_listed_shown_changed_and_deleted(orders):
    assert orders("group", "create", "orders", "billing", "--attempts-max", "3").code == 0, (
        "it is there with these options"
    )
    assert orders("group", "create", "orders", "billing", "--mode", "stream").code == 4
    [row] = rows(orders, "group", "list", "orders")
    assert (row["name"], row["mode"], row["lag_messages"]) == ("billing", "shared", 10)
    shown = record(orders, "group", "show", "orders", "billing")
    assert (shown["lag_messages"], shown["exact"], shown["unread"], shown["floor"]) == (10, True, 10, "00" * 20)
    assert "attempts_max" in orders("group", "show", "orders", "billing").out
    assert record(orders, "group", "change", "orders", "billing", "--unacked-max", "5")["options"]["unacked_max"] == 5
    assert record(orders, "group", "show", "orders", "billing")["options"]["attempts_max"] == 3, (
        "what is not named stays"
    )
    assert "would delete group billing" in orders("group", "delete", "orders", "billing", "--dry-run").out
    assert orders("group", "delete", "orders", "billing").code == 2, "nobody is there to ask"
    assert orders("group", "delete", "orders", "billing", "--yes", "--reason", "done", "--as", "ada").code == 0
    assert orders("group", "show", "orders", "billing").code == 3
    act = rows(orders, "audit", "list", "--limit", "1")[0]
    assert (act["act"], act["name"], act["reason"]) == ("delete group", "ada", "done")


def test_a_dry_run_makes_nothing(orders):
    assert record(orders, "group", "create", "orders", "audit", "--mode", "keyed", "--dry-run")["options"] == {
        "mode": "keyed"
    }
    assert (
        record(orders, "group", "change", "orders", "billing", "--mode", "stream", "--dry-run")["options"]["mode"]
        == "stream"
    )
    assert [row["mode"] for row in rows(orders, "group", "list", "orders")] == ["shared"]
    assert orders("group", "create", "nowhere", "audit", "--dry-run").code == 3


def test_a_dry_run_says_what_would_be_and_refuses_what_would_be_refused(orders):
    same = orders("group", "create", "orders", "billing", "--attempts-max", "3", "--dry-run")
    assert "is there with these options" in same.out
    other = orders("group", "create", "orders", "billing", "--mode", "stream", "--dry-run")
    assert (other.code, "--attempts-max is 3, not 8" in other.err, "--mode is shared, not stream" in other.err) == (
        4, True, True,
    )  # fmt: skip
    real = orders("group", "create", "orders", "billing", "--mode", "stream")
    assert 'other options: --attempts-max is 3, not 8, --mode is "shared", not "stream"' in real.err.replace("\n", " ")
    told = orders("group", "change", "orders", "billing", "--attempts-max", "5", "--dry-run").out
    assert "would change group billing of" in told
    assert told.endswith(": attempts_max 3 -> 5\n")
    assert ": nothing" in orders("group", "change", "orders", "billing", "--attempts-max", "3", "--dry-run").out
    [oldest] = rows(orders, "message", "peek", "orders", "--limit", "1")
    for more in ((), ("--dry-run",)):
        assert record(orders, "group", "unpark", "orders", "billing", oldest["id"], *more)["unparked"] == 0


def test_a_list_has_no_columns_that_are_never_filled(orders):
    head = orders("group", "list", "orders").out.splitlines()[0]
    assert head.split() == ["NAME", "MODE", "PAUSED", "MEMBERS", "CLAIMS", "LAG", "OLDEST", "EXACT", "COUNTED", "USED"]


def test_groups_of_all_topics_are_listed_by_how_far_each_is_behind(orders):
    assert orders("topic", "create", "invoices").code == 0
    assert orders("group", "create", "invoices", "mail", "--mode", "keyed").code == 0
    named = [(row["topic"], row["name"]) for row in rows(orders, "group", "list")]
    assert named == [("invoices", "mail"), ("orders", "billing")]
    assert [row["name"] for row in rows(orders, "group", "list", "--sort", "lag")] == ["billing", "mail"]
    assert [row["name"] for row in rows(orders, "group", "list", "--mode", "keyed")] == ["mail"]
    assert [row["name"] for row in rows(orders, "group", "list", "--contains", "ORDERS:", "--not-paused")] == []
    assert [row["name"] for row in rows(orders, "group", "list", "--contains", ":ORDERS/")] == ["billing"]
    assert "billing" in [row["name"] for row in rows(orders, "group", "list", "--all-namespaces")]
    assert orders("group", "list", "orders", "--all-namespaces").code == 2
    assert orders("group", "list", "nowhere").code == 3
    assert rows(orders, "group", "slots", "invoices", "mail") == []


def test_who_works_on_what_is_shown_and_can_be_taken_away(orders, server_url):
    with connected(server_url) as client, client.consumer("orders", group="billing", member="ann") as consumer:
        batch = next(iter(consumer.batches(limit=4)))
        [member] = rows(orders, "group", "members", "orders", "billing")
        assert (member["name"], member["claims"]) == ("ann", 1)
        [claim] = rows(orders, "group", "claims", "orders", "billing")
        assert (claim["member"], claim["messages"], claim["attempt"]) == ("ann", 4, 1)
        assert claim["through"] == batch[3].id.hex()
        states = [(row["state"], row["member"]) for row in rows(orders, "group", "messages", "orders", "billing")]
        assert states == [("claimed", "ann"), ("available", None)]
        assert rows(orders, "group", "messages", "orders", "billing", "--state", "parked") == []
        told = orders("explain", "group", "orders", "billing").out
        assert told.startswith(f"Message {batch[0].id.hex()} in group billing: member ann works on it, since ")
        assert "or the end of the claim, in " in told
        words = ("group", "release", "orders", "billing", str(claim["claim"]))
        assert record(orders, *words, "--dry-run")["released"] == 4
        assert orders(*words, str(claim["claim"] + 1)).code == 4, "all of them, or none"
        assert record(orders, *words, str(claim["claim"]), "--uncounted")["released"] == 4
        for more in ((), ("--dry-run",)):
            again = orders(*words, *more)
            assert (again.code, f"has no claim {claim['claim']}" in again.err) == (4, True)
        assert rows(orders, "group", "claims", "orders", "billing") == []


def test_what_is_consumed_for_a_group_is_acknowledged_and_comes_once(orders):
    first = orders("consume", "orders", "--group", "billing", "--limit", "3", "--format", "raw").out
    rest = orders("consume", "orders", "--group", "billing", "--format", "raw").out
    assert (first.split(), rest.split()) == (["0", "1", "2"], ["3", "4", "5", "6", "7", "8", "9"])
    assert orders("consume", "orders", "--group", "billing").out == ""
    assert record(orders, "group", "show", "orders", "billing")["lag_messages"] == 0
    assert orders("explain", "group", "orders", "billing").out == "Group billing has acknowledged all that there is.\n"
    assert record(orders, "explain", "group", "orders", "billing")["id"] is None
    [oldest] = rows(orders, "message", "peek", "orders", "--limit", "1")
    told = orders("explain", "group", "orders", "billing", oldest["id"]).out
    assert "it is acknowledged" in told
    assert "a seek to a place before it" in told


@pytest.mark.parametrize(
    "words", [["--from", "start"], ["--after", "00" * 20], ["--to", "end"], ["--isolation", "committed"]]
)
def test_a_group_reads_from_where_it_stands(orders, words: list[str]):
    ran = orders("consume", "orders", "--group", "billing", *words)
    assert (ran.code, words[0] in ran.err) == (2, True)


def test_a_member_is_of_a_group(orders):
    assert orders("consume", "orders", "--member", "ann").code == 2
    ran = orders("consume", "orders", "--group", "nobodys", "--limit", "2")
    assert (ran.code, ran.err) == (0, "basalt: group nobodys was not there; it is made, and begins at the start\n")
    assert orders("consume", "orders", "--group", "nobodys", "--limit", "2").err == ""


def test_a_script_learns_by_the_exit_code_that_a_group_is_behind(orders):
    assert orders("group", "lag", "orders").code == 0
    assert orders("group", "lag", "orders", "billing", "--over", "10").code == 0
    behind = orders("group", "lag", "orders", "--over", "9", "-o", "json")
    assert (behind.code, [row["name"] for row in json.loads(behind.out)]) == (7, ["billing"])
    assert orders("group", "lag", "orders", "--older", "1h").code == 0
    assert orders("group", "lag", "orders", "--older", "1ms").code == 7
    assert orders("group", "lag", "orders", "unknown").code == 3


def test_a_group_is_behind_by_its_messages_or_by_its_age_or_when_nobody_knows():
    near = {"lag_messages": 5, "lag_seconds": 2.0}
    assert not is_behind(near, 5, 2_000)
    assert is_behind(near, 4, None)
    assert is_behind(near, None, 1_999)
    assert is_behind({"lag_messages": None}, 100, None)


def test_a_group_is_sought_after_it_was_told_what_that_does(orders):
    orders("consume", "orders", "--group", "billing", "--limit", "4")
    told = orders("group", "seek", "orders", "billing", "--to", "start", "--dry-run").out
    assert "0 messages skipped, 4 messages dealt once more" in told
    assert orders("group", "seek", "orders", "billing", "--to", "start").code == 2, "nobody is there to ask"
    assert (
        record(orders, "group", "seek", "orders", "billing", "--to", "start", "--yes", "--reason", "again")["repeated"]
        == 4
    )
    assert record(orders, "group", "show", "orders", "billing")["lag_messages"] == 10
    assert record(orders, "group", "seek", "orders", "billing", "--to", "end", "--yes")["skipped"] == 10


def test_a_paused_group_says_so(orders):
    assert "would pause" in orders("group", "pause", "orders", "billing", "--dry-run").out
    assert "paused group billing" in orders("group", "pause", "orders", "billing").out
    assert "the group is paused" in orders("explain", "group", "orders", "billing").out
    ran = orders("consume", "orders", "--group", "billing")
    assert (ran.out, "stopped at paused" in ran.err) == ("", True)
    assert "resumed group billing" in orders("group", "resume", "orders", "billing").out
    assert orders("consume", "orders", "--group", "billing", "--limit", "1").out


@pytest.mark.parametrize(
    "words",
    [
        ["change", "orders", "billing"],
        ["unpark", "orders", "billing"],
        ["unpark", "orders", "billing", "--all", "00" * 20],
        ["release", "orders", "billing"],
        ["create", "orders", "x", "--mode", "queue"],
        ["lag", "orders", "--over", "-1"],
        ["seek", "orders", "billing"],
        ["messages", "orders", "billing", "--state", "lost"],
        ["messages", "orders", "billing", "--limit", "0"],
        ["create", "orders"],
        ["create", "orders", "x", "--lease", "5"],
        ["create", "orders", "x", "--lease", "0s"],
        ["create", "orders", "x", "--attempts-max", "-1"],
        ["create", "orders", "x", "--unacked-max", "0"],
        ["create", "orders", "x", "--retry-delay", "-1s"],
        ["lag", "orders", "--over", "ten"],
        ["lag", "orders", "--older", "5"],
        ["seek", "orders", "billing", "--to", "yesterday"],
        ["release", "orders", "billing", "0"],
        ["release", "orders", "billing", "x"],
        ["release", "orders", "billing", "1", "--delay", "5"],
        ["unpark", "orders", "billing", "zz"],
    ],
)
def test_words_that_make_no_sense_are_refused_before_anything_is_asked(run, words: list[str]):
    ran = run("group", *words, "--url", "http://127.0.0.1:1")
    assert (ran.code, ran.err.startswith("basalt: ")) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["create", "orders", "a b"], 1, "group 'a b' is not a name; use 1 to 255"),
        (["create", "orders", "x", "--start", "yesterday"], 1, "start 'yesterday' is not a position; write start, end"),
        (["create", "orders", "x", "--key", "value"], 1, "key is neither key nor header:NAME; say what lanes"),
        (["create", "orders", "x", "--claim-time", "13h"], 1, "--claim-time is 13h; it must be 1s to 12h"),
        (["create", "orders", "x", "--dead-letter-topic", "a b"], 1, "topic 'a b' is not a name"),
        (["create", "orders", "x", "--dead-letter-topic", "orders"], 1, "they would come back for ever; name another topic"),
        (["create", "orders", "billing", "--mode", "stream"], 4, "change them, or name another group"),
        (["create", "none", "x"], 3, "none does not exist; create it, or check the name"),
        (["change", "orders", "none", "--expire", "1d"], 3, "has no group 'none'; create it, or check the name"),
        (["lag", "orders", "none"], 3, "has no group 'none'"),
        (["lag", "none"], 3, "none does not exist"),
        (["messages", "orders", "billing", "--limit", "1001"], 1, "limit is '1001'; it must be a whole number from 1 to 1000"),
        (["release", "orders", "billing", "5"], 4, "has no claim 5 (any more); `basalt group claims` lists"),
        (["seek", "orders", "none", "--to", "end", "--yes"], 3, "has no group 'none'"),
        (["pause", "orders", "none"], 3, "has no group 'none'"),
        (["delete", "orders", "none", "--yes"], 3, "has no group 'none'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)  # fmt: skip
def test_what_the_server_refuses_is_told_with_what_to_do_and_changes_nothing(orders, words, code, told):
    def known():
        shown = [
            rows(orders, *list_of) for list_of in (("group", "list", "orders"), ("topic", "list"), ("audit", "list"))
        ]
        return [[{**row, "used_ms": 0, "lag_seconds": 0, "counted_ms": 0} for row in each] for each in shown]

    before = known()
    ran = orders("group", *words)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err.replace("\n", " ")
    assert known() == before


def test_a_message_that_failed_too_often_is_parked_until_it_is_unparked(orders, server_url):
    assert record(orders, "group", "change", "orders", "billing", "--attempts-max", "1")
    assert record(orders, "group", "unpark", "orders", "billing", "--all")["unparked"] == 0
    with connected(server_url) as client, client.consumer("orders", group="billing", member="ann") as consumer:
        consumer.release(next(iter(consumer.batches(limit=2))), reason="no customer")
    [row] = rows(orders, "group", "messages", "orders", "billing", "--state", "parked")
    assert (row["attempts"], row["reason"]) == (1, "released")
    assert "it is parked: it came back once" in orders("explain", "group", "orders", "billing").out
    assert record(orders, "group", "show", "orders", "billing")["parked"] == 2
    assert record(orders, "group", "unpark", "orders", "billing", "--all", "--dry-run")["unparked"] == 2
    assert record(orders, "group", "unpark", "orders", "billing", row["id"])["unparked"] == 1
    assert record(orders, "group", "unpark", "orders", "billing", "--all", "--reason", "mended")["unparked"] == 1
    assert record(orders, "group", "show", "orders", "billing")["unread"] == 10


def test_the_story_of_a_message_says_since_when_and_by_when():
    message = {
        "id": "aa",
        "explanation": "it is delayed",
        "next_step": "time alone",
        "since_ms": None,
        "until_ms": 9_000,
    }
    assert list(group_story("g", message, 5_000)) == [
        "Message aa in group g: it is delayed.",
        "What frees it: time alone, in 4s at the latest: 1970-01-01T00:00:09.000Z.",
    ]
    late = {**message, "since_ms": 1_000, "until_ms": 2_000}
    assert list(group_story("g", late, 5_000)) == [
        "Message aa in group g: it is delayed, since 4s.",
        "What frees it: time alone, now at the latest: 1970-01-01T00:00:02.000Z.",
    ]


def test_a_shell_completes_the_groups_of_the_topic_before(orders, server_url):
    from click import Argument, Command, Context

    from basalt.cli.options import GROUP, Invocation

    namespace = os.environ["BASALT_NAMESPACE"]
    context = Context(Command("show"), obj=Invocation(server_url, namespace))
    context.params["topic"] = "orders"
    assert [item.value for item in GROUP.shell_complete(context, Argument(["name"]), "bil")] == ["billing"]
    context.params.clear()
    assert GROUP.shell_complete(context, Argument(["name"]), "") == []
