"""`basalt table` against a real server on a memory store."""

from __future__ import annotations

import json

from tests.control.cli.conftest import Ran


def rows(ran: Ran) -> list[dict]:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def cells(ran: Ran) -> dict[str, str]:
    return {f"{row['row']}/{row['column']}": row["value"] for row in rows(ran)}


def test_a_table_is_created_shown_listed_and_deleted(cli):
    assert cli("table", "create", "stock", "--conflict", "cell").out.startswith("created table test-")
    assert json.loads(cli("table", "show", "stock", "-o", "json").out)["conflict"] == "cell"
    assert [(row["name"], row["generation"]) for row in rows(cli("table", "list", "-o", "json"))] == [("stock", 1)]
    everywhere = rows(cli("table", "list", "--all-namespaces", "--limit", "1000", "-o", "json"))
    assert [row["conflict"] for row in everywhere if row["name"] == "stock" and row["namespace"].startswith("test-")]
    assert len(rows(cli("table", "list", "--all-namespaces", "--limit", "1", "-o", "json"))) == 1
    assert cli("topic", "list", "-o", "json").out.strip() == "[]"  # a table is no topic
    assert cli("table", "delete", "stock", "--yes").code == 0
    assert rows(cli("table", "list", "-o", "json")) == []
    assert json.loads(cli("table", "create", "stock", "-o", "json").out)["generation"] == 2


def test_cells_are_put_got_scanned_and_deleted(cli):
    cli("table", "create", "stock")
    assert "wrote 2 cells of row chair" in cli("table", "put", "stock", "chair", "count=5", "colour=red").out
    cli("table", "put", "stock", "desk", "count=2")
    cli("table", "put", "stock", "lamp", "count=1")
    assert cells(cli("table", "get", "stock", "chair", "-o", "json")) == {"chair/colour": "red", "chair/count": "5"}
    assert cells(cli("table", "get", "stock", "chair", "--column", "count", "-o", "json")) == {"chair/count": "5"}
    assert list(cells(cli("table", "scan", "stock", "--from", "d", "--to", "lamp", "-o", "json"))) == ["desk/count"]
    assert list(cells(cli("table", "scan", "stock", "--limit", "1", "-o", "json"))) == ["chair/colour", "chair/count"]
    cli("table", "put", "stock", "chair", "count=4", "--delete", "colour")
    cli("table", "put", "stock", "desk", "--delete-row")
    assert cells(cli("table", "scan", "stock", "-o", "json")) == {"chair/count": "4", "lamp/count": "1"}


def test_cells_under_a_transaction_are_seen_when_it_commits(cli):
    cli("table", "create", "stock")
    transaction = json.loads(cli("tx", "begin", "-o", "json").out)["id"]
    cli("table", "put", "stock", "chair", "count=5", "--tx", transaction)
    assert cli("table", "get", "stock", "chair").code == 3
    assert cells(cli("table", "get", "stock", "chair", "--tx", transaction, "-o", "json")) == {"chair/count": "5"}
    cli("tx", "commit", transaction)
    assert cells(cli("table", "get", "stock", "chair", "-o", "json")) == {"chair/count": "5"}
    assert cli("table", "put", "stock", "chair", "count=6", "--tx", transaction).code == 4


def test_a_dry_run_tells_and_changes_nothing(cli):
    assert "would create table" in cli("table", "create", "stock", "--dry-run").out
    assert rows(cli("table", "list", "-o", "json")) == []
    cli("table", "create", "stock")
    assert cli("table", "create", "stock", "--dry-run").code == 4
    assert "would write 1 cell" in cli("table", "put", "stock", "chair", "count=5", "--dry-run").out
    assert "would delete table" in cli("table", "delete", "stock", "--dry-run").out
    assert rows(cli("table", "scan", "stock", "-o", "json")) == []


def test_bytes_that_are_not_text_survive(cli):
    cli("table", "create", "stock")
    cli("table", "put", "stock", "chair", b"c=\xff\x00".decode("utf-8", "surrogateescape"))
    assert rows(cli("table", "get", "stock", "chair", "-o", "json"))[0]["value_base64"] == "/wA="
    assert rows(cli("table", "get", "stock", "chair", "--format", "hex", "-o", "json"))[0]["value_hex"] == "ff00"
    assert "\\xff\\x00" in cli("table", "get", "stock", "chair").out


def test_what_is_not_there_is_exit_code_3_and_a_mistake_2(cli):
    for arguments in (
        ("table", "show", "nothing"),
        ("table", "delete", "nothing", "--yes"),
        ("table", "get", "nothing", "row"),
        ("table", "put", "nothing", "row", "a=b"),
        ("table", "scan", "nothing"),
    ):
        assert cli(*arguments).code == 3, arguments
    cli("table", "create", "stock")
    for arguments in (
        ("table", "put", "stock", "row"),
        ("table", "put", "stock", "row", "novalue"),
        ("table", "put", "stock", "row", "a=1", "a=2"),
        ("table", "put", "stock", "row", "a=1", "--delete", "a"),
        ("table", "put", "stock", "row", "a=", "--delete", "a"),
        ("table", "create", "other", "--conflict", "topic"),
    ):
        assert cli(*arguments).code == 2, arguments
    assert cli("table", "create", "stock").code == 4
