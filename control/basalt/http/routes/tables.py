"""The calls on transactional tables: create, show, list, delete; write, read and scan their cells."""

from __future__ import annotations

from basalt.api.bodies.tables import CellPage, Cells, CreateTable, ReadRequest, ScanRequest, TableInfo, WriteRequest
from basalt.catalog.tables import TableName, table_name
from basalt.errors import (
    BusyError,
    ConflictError,
    InputError,
    InvalidNameError,
    TableExistsError,
    TableNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http.asgi.json_input import decode_json
from basalt.http.asgi.request_bodies import content_type, read_body, read_nothing
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation
from basalt.http.routes.schemas import TOPIC_NAMES
from basalt.http.routes.table_shapes import (
    LEVELS,
    cells_shown,
    table_shown,
)
from basalt.tables.tables import READ_CELLS_MAX, CellPut, CellWrites

TABLES_PATH = "/v1/namespaces/{namespace}/tables"
TABLE_PATH = TABLES_PATH + "/{table}"


def named_table(request: Request) -> TableName:
    """The table that the path names; `InvalidNameError` when a name is none."""
    return table_name(request.path["namespace"], request.path["table"])


async def create(request: Request) -> Answer:
    """Create a table, or a new generation of a deleted one."""
    title = named_table(request)
    content_type(request, (JSON,))
    body = await read_body(request)
    asked = decode_json(body, CreateTable) if body else CreateTable()
    return json_answer(table_shown(await request.services.tables.catalog.create(title, asked.conflict)))


async def get(request: Request) -> Answer:
    """Show a table."""
    return json_answer(table_shown(await request.services.tables.catalog.get(named_table(request))))


async def names(request: Request) -> Answer:
    """List a namespace's tables."""
    return json_answer(await request.services.tables.catalog.list(request.path["namespace"]))


async def delete(request: Request) -> Answer:
    """Delete a table."""
    await read_nothing(request)
    await request.services.tables.catalog.delete(named_table(request))
    return Answer()


async def write(request: Request) -> Answer:
    """Change cells under a transaction."""
    title = named_table(request)
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), WriteRequest)
    writes = CellWrites(
        [CellPut(put.row, put.column, put.value) for put in asked.puts],
        [(cell.row, cell.column) for cell in asked.deletes],
        asked.delete_rows,
    )
    transaction_id = request.services.ids.parse(asked.transaction, "transaction")
    await request.services.tables.write(title, transaction_id, writes, asked.generation)
    return Answer()


async def read(request: Request) -> Answer:
    """The cells of some rows."""
    title = named_table(request)
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), ReadRequest)
    cells = await request.services.tables.read(
        title, asked.rows, asked.columns, _transaction(request, asked), LEVELS[asked.visibility]
    )
    return json_answer(Cells(cells_shown(cells)))


async def scan(request: Request) -> Answer:
    """The cells of a range of rows."""
    title = named_table(request)
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), ScanRequest)
    if not 0 < asked.limit_cells <= READ_CELLS_MAX:
        raise InputError(
            f"limitCells is {asked.limit_cells}, it must be 1 to {READ_CELLS_MAX}",
            field="limitCells",
            hint="leave it out for the default",
        )
    page = await request.services.tables.scan(
        title,
        asked.start,
        asked.stop,
        asked.columns,
        asked.limit_cells,
        _transaction(request, asked),
        LEVELS[asked.visibility],
    )
    return json_answer(CellPage(cells_shown(page.cells), page.next))


def _transaction(request: Request, asked: ReadRequest | ScanRequest) -> int | None:
    return None if asked.transaction is None else request.services.ids.parse(asked.transaction, "transaction")


_EXISTING = (InvalidNameError, TableNotFoundError)
_UNDER_TRANSACTION = (TransactionNotFoundError, TransactionEndedError)

OPERATIONS = (
    Operation(
        method="POST",
        path=TABLE_PATH + "/read",
        handler=read,
        summary="The cells of some rows",
        tag="tables",
        body={JSON: ReadRequest},
        body_required=True,
        answers={200: {JSON: Cells}},
        errors=(*_EXISTING, *_UNDER_TRANSACTION),
    ),
    Operation(
        method="POST",
        path=TABLE_PATH + "/write",
        handler=write,
        summary="Change cells under an open transaction",
        tag="tables",
        body={JSON: WriteRequest},
        body_required=True,
        errors=(*_EXISTING, *_UNDER_TRANSACTION, TransactionConflictError, ConflictError, BusyError),
    ),
    Operation(
        method="POST",
        path=TABLE_PATH + "/scan",
        handler=scan,
        summary="The cells of a range of rows",
        tag="tables",
        body={JSON: ScanRequest},
        body_required=True,
        answers={200: {JSON: CellPage}},
        errors=(*_EXISTING, *_UNDER_TRANSACTION),
    ),
    Operation(
        method="GET",
        path=TABLE_PATH,
        handler=get,
        summary="A table's properties",
        tag="tables",
        answers={200: {JSON: TableInfo}},
        errors=_EXISTING,
    ),
    Operation(
        method="PUT",
        path=TABLE_PATH,
        handler=create,
        summary="Create a table",
        tag="tables",
        body={JSON: CreateTable},
        answers={200: {JSON: TableInfo}},
        errors=(InvalidNameError, TableExistsError, ConflictError),
    ),
    Operation(
        method="DELETE",
        path=TABLE_PATH,
        handler=delete,
        summary="Delete a table with all its cells",
        tag="tables",
        errors=(*_EXISTING, ConflictError),
    ),
    Operation(
        method="GET",
        path=TABLES_PATH,
        handler=names,
        summary="The names of a namespace's tables, sorted",
        tag="tables",
        answers={200: {JSON: TOPIC_NAMES}},
        errors=(InvalidNameError,),
    ),
)
