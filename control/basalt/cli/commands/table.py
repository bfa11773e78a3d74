"""`basalt table`: tables and their cells, by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.failures import EXIT_CONFLICT, EXIT_NOT_FOUND, CommandFailure, Usage
from basalt.cli.options import (
    TABLE,
    Bytes,
    Invocation,
    TransactionId,
    confirm,
    dry_run_option,
    limit_option,
    payload_format_option,
    stacked,
    yes_option,
)
from basalt.cli.output import PAYLOAD_FORMATS, PayloadFormat, bytes_field, columns, counted, payload_line, row
from basalt.cli.root import group

if TYPE_CHECKING:
    from basalt.api.bodies.tables import ListedTable
    from basalt.client import Client, TableInfo, TableRow

table = group("table", "Create, list, show and delete tables; get, put and scan their cells.")

SCAN_ROWS_DEFAULT = 100
PAGE_TABLES = 1_000  # that are asked for at once
_FORMS = [form for form in PAYLOAD_FORMATS if form != "raw"]
_COLUMNS = columns("namespace name generation conflict created_ms")
_CELLS = columns("row column value")


_read_options = stacked(
    click.option("--column", "columns", multiple=True, type=Bytes(), metavar="NAME", help="Only this column."),
    click.option(
        "--tx", "transaction", type=TransactionId(), metavar="ID", help="Read what this open transaction sees."
    ),
    payload_format_option(_FORMS, "How to write bytes."),
)


@table.call("create")
@click.argument("name")
@click.option(
    "--conflict",
    type=click.Choice(["row", "cell", "none"]),
    default="row",
    show_default=True,
    help="What two transactions must both change for the second to fail.",
)
@dry_run_option
def create(invocation: Invocation, name: str, conflict: Any, dry_run: bool) -> None:
    """Create a table.

    A table that was deleted comes back empty, as its next generation.
    """
    namespace = invocation.target().namespace
    with invocation.client() as client:
        if dry_run:
            if name in client.tables.list():
                raise CommandFailure(f"table {namespace}:{name} exists already", exit_code=EXIT_CONFLICT)
            result = {"name": name, "namespace": namespace, "conflict": conflict, "dry_run": True}
            invocation.out.done(f"would create table {namespace}:{name}", result)
            return
        created = _table_row(client.tables.create(name, conflict=conflict), namespace)
    invocation.out.done(f"created table {namespace}:{name}, generation {created['generation']}", created)


@table.call("list")
@click.option("--all-namespaces", is_flag=True, help="Tables of every namespace.")
@click.option("--after", metavar="NAMESPACE:NAME", help="Only those behind this one.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
def list_tables(invocation: Invocation, all_namespaces: bool, after: str | None, limit: int | None) -> None:
    """List tables, in the order of the store."""
    with invocation.client() as client:
        found = _listed(client, None if all_namespaces else client.namespace, after, limit)
        invocation.out.rows(_COLUMNS[not all_namespaces :], map(row, found))


@table.call("show")
@click.argument("name", type=TABLE)
def show(invocation: Invocation, name: str) -> None:
    """Show a table's properties."""
    with invocation.client() as client:
        found = _table_row(client.tables.get(name), client.namespace)
    invocation.out.record(found, _COLUMNS)


@table.call("delete")
@click.argument("name", type=TABLE)
@yes_option
@dry_run_option
def delete(invocation: Invocation, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a table with all its cells."""
    namespace = invocation.target().namespace
    with invocation.client() as client:
        result = {**_table_row(client.tables.get(name), namespace), "dry_run": dry_run}
        if dry_run:
            invocation.out.done(f"would delete table {namespace}:{name}", result)
            return
        confirm(f"Delete table {namespace}:{name} with all its cells?", yes=yes)
        client.tables.delete(name)
    invocation.out.done(f"deleted table {namespace}:{name}", result)


@table.call("get")
@click.argument("name", type=TABLE)
@click.argument("row", type=Bytes())
@_read_options
def get(
    invocation: Invocation,
    name: str,
    row: bytes,
    columns: tuple[bytes, ...],
    transaction: str | None,
    form: PayloadFormat,
) -> None:
    """Show a row's cells: what is committed, or what a transaction sees."""
    with invocation.client() as client:
        cells = client.table(name).get(row, columns or None, transaction=transaction)
    if not cells:
        raise CommandFailure(f"table {invocation.target().namespace}:{name} has no such row", exit_code=EXIT_NOT_FOUND)
    invocation.out.rows(_CELLS, _cell_rows(invocation, row, cells, form))


@table.call("put")
@click.argument("name", type=TABLE)
@click.argument("row", type=Bytes())
@click.argument("cells", nargs=-1, type=Bytes(), metavar="[COLUMN=VALUE]...")
@click.option("--delete", "deleted", multiple=True, type=Bytes(), metavar="COLUMN", help="Delete this cell of the row.")
@click.option("--delete-row", is_flag=True, help="Delete all cells of the row before.")
@click.option("--tx", "transaction", type=TransactionId(), metavar="ID", help="Write under this open transaction.")
@dry_run_option
def put(
    invocation: Invocation,
    name: str,
    row: bytes,
    cells: tuple[bytes, ...],
    deleted: tuple[bytes, ...],
    delete_row: bool,
    transaction: str | None,
    dry_run: bool,
) -> None:
    """Set and delete cells of a row, in a transaction of its own, or in one that is open.

    Under --tx no conflicts are looked for: use the client if you need that.
    """
    changed = _given(cells, deleted)
    if not changed and not delete_row:
        raise Usage("there is nothing to write", hint="give COLUMN=VALUE, --delete COLUMN or --delete-row")
    namespace = invocation.target().namespace
    with invocation.client() as client:
        client.tables.get(name)
        if transaction is not None and not dry_run:
            client.table(name).write(transaction, {row: changed}, delete_rows=[row] if delete_row else [])
        elif not dry_run:
            with client.transaction(owner="basalt table put") as tx:
                in_use = tx.table(name)
                if delete_row:
                    in_use.delete_row(row)
                in_use.put(row, {column: value for column, value in changed.items() if value is not None})
                in_use.delete(row, [column for column, value in changed.items() if value is None])
    written = counted(len(changed), "cell") if changed else "its deletion"
    result = {
        "table": name,
        "namespace": namespace,
        **bytes_field("row", row),
        "cells": len(changed),
        "delete_row": delete_row,
        "transaction": transaction,
        "dry_run": dry_run,
    }
    when = f", to be seen when transaction {transaction} commits" if transaction else ""
    verb = "would write" if dry_run else "wrote"
    invocation.out.done(f"{verb} {written} of row {payload_line(row, 'text')} to {namespace}:{name}{when}", result)


@table.call("scan")
@click.argument("name", type=TABLE)
@click.option("--from", "start", type=Bytes(), default=b"", metavar="ROW", help="First row.")
@click.option("--to", "stop", type=Bytes(), metavar="ROW", help="Stop before this row.")
@limit_option(SCAN_ROWS_DEFAULT, None, " rows")
@_read_options
def scan(
    invocation: Invocation,
    name: str,
    start: bytes,
    stop: bytes | None,
    limit: int,
    columns: tuple[bytes, ...],
    transaction: str | None,
    form: PayloadFormat,
) -> None:
    """Show the cells of a range of rows, in order."""
    with invocation.client() as client:
        found = client.table(name).scan(start, stop, columns=columns or None, transaction=transaction)
        invocation.out.rows(_CELLS, _all_cells(invocation, islice(found, limit), form))


def _listed(client: Client, namespace: str | None, after: str | None, limit: int | None) -> Iterator[ListedTable]:
    """The tables, a page at a time."""
    while True:
        page = client.admin.tables(namespace=namespace, after=after, limit=min(limit or PAGE_TABLES, PAGE_TABLES))
        yield from page.tables
        limit = None if limit is None else limit - len(page.tables)
        if page.next is None or limit == 0:
            return
        after = page.next


def _all_cells(invocation: Invocation, rows: Iterable[TableRow], form: PayloadFormat) -> Iterator[dict[str, Any]]:
    for each in rows:
        yield from _cell_rows(invocation, each.row, each.cells, form)


def _cell_rows(
    invocation: Invocation, row: bytes, cells: Mapping[bytes, bytes], form: PayloadFormat
) -> Iterator[dict[str, Any]]:
    for column, value in cells.items():
        parts = {"row": row, "column": column, "value": value}
        if invocation.out.for_people:
            yield {name: payload_line(content, form) for name, content in parts.items()}
        else:
            yield {
                key: text for name, content in parts.items() for key, text in bytes_field(name, content, form).items()
            }


def _given(cells: tuple[bytes, ...], deleted: tuple[bytes, ...]) -> dict[bytes, bytes | None]:
    """`COLUMN=VALUE`, each, and the columns to delete; a usage error when it is not that, or a column comes twice."""
    values: dict[bytes, bytes | None] = {}
    for cell in cells:
        column, equals, value = cell.partition(b"=")
        if not equals or not column:
            raise Usage(f"{payload_line(cell, 'text')!r} is not COLUMN=VALUE")
        if column in values:
            raise Usage(f"column {payload_line(column, 'text')} is given twice", hint="leave one of them out")
        values[column] = value
    for column in deleted:
        if values.setdefault(column) is not None:
            raise Usage(f"column {payload_line(column, 'text')} is set and deleted", hint="leave one of them out")
    return values


def _table_row(info: TableInfo, namespace: str) -> dict[str, Any]:
    return {"name": info.name, "namespace": namespace, **row(info)}
