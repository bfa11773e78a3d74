"""The calls on tables."""

from __future__ import annotations

import base64

import pytest

TABLES = "/v1/namespaces/shop/tables"
STOCK = f"{TABLES}/stock"


def b64(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def begin(client) -> str:
    return client.call("POST", "/v1/transactions", {}).json()["id"]


def write(client, transaction: str, cells: dict[str, str], **body):
    puts = [{"row": b64(at.split("/")[0]), "column": b64(at.split("/")[1]), "value": b64(v)} for at, v in cells.items()]
    return client.call("POST", f"{STOCK}/write", {"transaction": transaction, "puts": puts, **body})


def commit(client, transaction: str) -> None:
    assert client.call("POST", f"/v1/transactions/{transaction}/commit").status == 200


def committed(client, cells: dict[str, str]) -> None:
    transaction = begin(client)
    assert write(client, transaction, cells).status == 200
    commit(client, transaction)


def shown(reply) -> dict[str, str]:
    assert reply.status == 200, reply.body
    return {f"{text(cell['row'])}/{text(cell['column'])}": text(cell["value"]) for cell in reply.json()["cells"]}


def read(client, *rows: str, **body) -> dict[str, str]:
    return shown(client.call("POST", f"{STOCK}/read", {"rows": [b64(row) for row in rows], **body}))


def test_a_table_is_created_shown_listed_and_deleted(client):
    assert client.call("PUT", STOCK).json() | {"createdMs": 0} == {
        "name": "stock", "conflict": "row", "generation": 1, "createdMs": 0
    }  # fmt: skip
    assert client.call("GET", STOCK).json()["conflict"] == "row"
    assert client.call("PUT", f"{TABLES}/prices", {"conflict": "none"}).json()["conflict"] == "none"
    assert client.call("GET", TABLES).json() == ["prices", "stock"]
    assert client.call("GET", "/v1/namespaces/shop/topics").json() == []
    assert client.call("DELETE", STOCK).status == 200
    assert client.call("GET", STOCK).code == "table_not_found"
    assert client.call("PUT", STOCK).json()["generation"] == 2


def test_tables_of_all_namespaces_are_listed_a_page_at_a_time(client):
    for title in ("b/tables/x", "a/tables/y", "a/tables/x", "a/tables/gone", "a/topics/t"):
        assert client.call("PUT", f"/v1/namespaces/{title}").status == 200
    client.call("DELETE", "/v1/namespaces/a/tables/gone")
    path = "/v1/admin/tables"
    first = client.call("GET", f"{path}?limit=2").json()
    assert ([(each["namespace"], each["name"]) for each in first["tables"]], first["next"]) == (
        [("a", "x"), ("a", "y")], "a:y",
    )  # fmt: skip
    second = client.call("GET", f"{path}?limit=2&after={first['next']}").json()
    assert ([(each["namespace"], each["name"]) for each in second["tables"]], second["next"]) == ([("b", "x")], None)
    assert [each["name"] for each in client.call("GET", f"{path}?namespace=a").json()["tables"]] == ["x", "y"]
    assert [client.call("GET", f"{path}?{query}").status for query in ("after=x", "limit=0", "namespace=a:b")] == [
        400
    ] * 3


def test_an_existing_table_is_not_created_again(client):
    client.call("PUT", STOCK)
    reply = client.call("PUT", STOCK, {"conflict": "cell"})
    assert (reply.status, reply.code) == (409, "table_exists")


def test_cells_travel_in_base64_with_the_pointer_of_their_writer(client):
    client.call("PUT", STOCK)
    transaction = begin(client)
    pointer = client.call("GET", f"/v1/transactions/{transaction}").json()["writePointer"]
    write(client, transaction, {"chair/count": "5"})
    commit(client, transaction)
    reply = client.call("POST", f"{STOCK}/read", {"rows": [b64("chair")]})
    assert reply.json() == {
        "cells": [{"row": b64("chair"), "column": b64("count"), "value": b64("5"), "writePointer": pointer}]
    }


def test_rows_to_delete_come_first_then_puts_then_cells_to_delete(client):
    client.call("PUT", STOCK)
    committed(client, {"chair/count": "5", "chair/colour": "red", "desk/count": "1"})
    transaction = begin(client)
    gone = {"deleteRows": [b64("chair")], "deletes": [{"row": b64("desk"), "column": b64("count")}]}
    write(client, transaction, {"chair/count": "6", "desk/count": "7"}, **gone)
    commit(client, transaction)
    assert read(client, "chair", "desk") == {"chair/count": "6"}


def test_a_transaction_reads_its_snapshot_and_its_own(client):
    client.call("PUT", STOCK)
    transaction = begin(client)
    committed(client, {"chair/count": "5"})
    write(client, transaction, {"desk/count": "1"})
    client.call("POST", f"/v1/transactions/{transaction}/checkpoint")
    write(client, transaction, {"desk/count": "2"})
    assert read(client, "chair", "desk", transaction=transaction) == {"desk/count": "2"}
    assert read(client, "desk", transaction=transaction, visibility="exclude_current") == {"desk/count": "1"}
    every = client.call(
        "POST", f"{STOCK}/read", {"rows": [b64("desk")], "transaction": transaction, "visibility": "all"}
    )
    assert [text(cell["value"]) for cell in every.json()["cells"]] == ["2", "1"]
    assert read(client, "chair", "desk") == {"chair/count": "5"}


def test_all_versions_show_what_the_transaction_deleted_as_null(client):
    client.call("PUT", STOCK)
    transaction = begin(client)
    write(client, transaction, {}, deletes=[{"row": b64("desk"), "column": b64("count")}])
    reply = client.call(
        "POST", f"{STOCK}/read", {"rows": [b64("desk")], "transaction": transaction, "visibility": "all"}
    )
    assert [cell["value"] for cell in reply.json()["cells"]] == [None]


def test_a_scan_answers_whole_rows_and_where_to_go_on(client):
    client.call("PUT", STOCK)
    committed(client, {f"{row}/{column}": row for row in "abcd" for column in "12"})
    reply = client.call("POST", f"{STOCK}/scan", {"limitCells": 3})
    assert list(shown(reply)) == ["a/1", "a/2", "b/1", "b/2"]
    assert text(reply.json()["next"]) == "c"
    reply = client.call("POST", f"{STOCK}/scan", {"start": reply.json()["next"], "columns": [b64("2")]})
    assert (list(shown(reply)), reply.json()["next"]) == (["c/2", "d/2"], None)
    assert list(shown(client.call("POST", f"{STOCK}/scan", {"start": b64("b"), "stop": b64("c")}))) == ["b/1", "b/2"]


def test_a_write_of_an_ended_transaction_is_refused(client):
    client.call("PUT", STOCK)
    transaction = begin(client)
    write(client, transaction, {"chair/count": "5"})
    aborted = client.call("POST", f"/v1/transactions/{transaction}/abort").json()
    assert aborted["state"] == "INVALID"
    assert write(client, transaction, {"chair/count": "6"}).code == "transaction_ended"
    assert read(client, "chair") == {}


def test_a_write_that_means_another_generation_is_refused(client):
    client.call("PUT", STOCK)
    reply = write(client, begin(client), {"chair/count": "5"}, generation=2)
    assert (reply.status, reply.code, reply.json()["field"]) == (409, "conflict", "generation")


BAD: dict[str, tuple[str, dict, int, str, str | None]] = {
    "write: no transaction": ("write", {"puts": []}, 400, "malformed_body", None),
    "write: no id": ("write", {"transaction": "x", "puts": [{"row": "cg==", "column": "Yw==", "value": ""}]}, 400, "invalid_input", "transaction"),
    "write: nothing": ("write", {"transaction": "$"}, 400, "invalid_input", "puts"),
    "write: not base64": ("write", {"transaction": "$", "puts": [{"row": "!", "column": "Yw==", "value": ""}]}, 400, "malformed_body", "puts[0].row"),
    "write: an empty row": ("write", {"transaction": "$", "puts": [{"row": "", "column": "Yw==", "value": ""}]}, 400, "invalid_input", "puts[0].row"),
    "write: a large value": ("write", {"transaction": "$", "puts": [{"row": "cg==", "column": "Yw==", "value": "A" * 1_398_104}]}, 413, "too_large", "puts[0].value"),
    "read: no rows member": ("read", {}, 400, "malformed_body", None),
    "read: an empty row": ("read", {"rows": [""]}, 400, "invalid_input", "row"),
    "read: no columns": ("read", {"rows": ["cg=="], "columns": []}, 400, "invalid_input", "columns"),
    "read: a level without a transaction": ("read", {"rows": ["cg=="], "visibility": "all"}, 400, "invalid_input", "visibility"),
    "read: an unknown level": ("read", {"rows": ["cg=="], "visibility": "most"}, 400, "malformed_body", "visibility"),
    "scan: no cells": ("scan", {"limitCells": 0}, 400, "invalid_input", "limitCells"),
    "scan: an unknown transaction": ("scan", {"transaction": "1700000000000000001"}, 404, "transaction_not_found", None),
    "scan: an unknown member": ("scan", {"limit": 5}, 400, "malformed_body", "limit"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_body_is_told_by_its_place(client, name: str):
    call, body, status, code, field = BAD[name]
    client.call("PUT", STOCK)
    if body.get("transaction") == "$":
        body = {**body, "transaction": begin(client)}
    reply = client.call("POST", f"{STOCK}/{call}", body)
    assert (reply.status, reply.code) == (status, code)
    assert field is None or reply.json()["field"] == field


def test_calls_on_a_table_that_is_not_there_are_404(client):
    bodies = {"write": {"transaction": begin(client), "deletes": []}, "read": {"rows": []}, "scan": {}}
    for call, body in bodies.items():
        assert client.call("POST", f"{STOCK}/{call}", body).code == "table_not_found"
    assert client.call("DELETE", STOCK).code == "table_not_found"
