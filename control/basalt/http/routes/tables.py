"""The calls on transactional tables: create, show, list, delete; write, read and scan their cells."""

from __future__ import annotations

from basalt import errors
from basalt.access import resources
from basalt.access.needs import needs
from basalt.access.quotas import FETCH_BYTES, PUBLISH_BYTES
from basalt.api.bodies import tables as bodies
from basalt.catalog.tables import HostedTable, TableName, table_name
from basalt.http.asgi.requests import JSON
from basalt.http.asgi.responses import Response, json_response
from basalt.http.routes.route_table import ADMIN_PATH, AFTER, Request, RouteTable, integer, words
from basalt.http.routes.schemas import NAMES
from basalt.tables.tables import READ_CELLS_MAX, CellWrites
from basalt.transactions.rules.transaction import VisibilityLevel
from basalt_engine.cells.table import CellVersion
from basalt_engine.keys import NAME_EXPRESSION

TABLES_PATH = "/v1/namespaces/{namespace}/tables"
TABLE_PATH = TABLES_PATH + "/{table}"
TABLE = "table:{namespace}:{table}"
LEVELS: dict[bodies.Visibility, VisibilityLevel] = {
    "snapshot": VisibilityLevel.SNAPSHOT,
    "exclude_current": VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT,
    "all": VisibilityLevel.SNAPSHOT_ALL,
}
PAGE_MAX = 10_000  # tables of one page; some 1 MB of JSON
_LIMIT = integer("limit", 1, PAGE_MAX, f"most to answer; {PAGE_MAX:,} when it is left out")
_CONFLICT_BY_ROW = bodies.CreateTable()
_EXISTING = (errors.InvalidNameError, errors.TableNotFoundError)
_READING = (
    *_EXISTING,
    errors.TransactionNotFoundError,
    errors.TransactionEndedError,
    errors.SessionFencedError,
)

route = RouteTable("tables")
operators = RouteTable("admin")


def named_table(request: Request) -> TableName:
    """The table that the path names; `InvalidNameError` when a name is none."""
    return table_name(request.path["namespace"], request.path["table"])


@route(
    "POST",
    TABLE_PATH + "/read",
    needs("read", TABLE, in_body=("transact transactions",)),
    errors=_READING,
    meters=(FETCH_BYTES,),
)
async def read(request: Request, asked: bodies.ReadRequest) -> bodies.Cells:
    """The cells of some rows."""
    transaction_id = await _transaction(request, asked)
    cells = await request.services.tables.read(
        named_table(request), asked.rows, asked.columns, transaction_id, LEVELS[asked.visibility]
    )
    return bodies.Cells(_cells(cells))


@route(
    "POST",
    TABLE_PATH + "/write",
    needs("write", TABLE, in_body=("transact transactions",)),
    errors=(*_READING, errors.TransactionConflictError, errors.ConflictError, errors.BusyError),
    meters=(PUBLISH_BYTES,),
)
async def write(request: Request, asked: bodies.WriteRequest) -> None:
    """Change cells under an open transaction."""
    title = named_table(request)
    writes = CellWrites(
        asked.puts,
        [(cell.row, cell.column) for cell in asked.deletes],
        asked.delete_rows,
    )
    transaction_id = await request.transaction_of(asked.transaction, "transaction")
    await request.services.tables.write(title, transaction_id, writes, asked.generation, asked.write_pointer)


@route(
    "POST",
    TABLE_PATH + "/scan",
    needs("read", TABLE, in_body=("transact transactions",)),
    errors=_READING,
    meters=(FETCH_BYTES,),
)
async def scan(request: Request, asked: bodies.ScanRequest) -> bodies.CellPage:
    """The cells of a range of rows."""
    title = named_table(request)
    if not 0 < asked.limit_cells <= READ_CELLS_MAX:
        raise errors.InputError(
            f"limitCells is {asked.limit_cells}, it must be 1 to {READ_CELLS_MAX}",
            field="limitCells",
            hint="leave it out for the default",
        )
    transaction_id = await _transaction(request, asked)
    page = await request.services.tables.scan(
        title, asked.start, asked.stop, asked.columns, asked.limit_cells, transaction_id, LEVELS[asked.visibility]
    )
    return bodies.CellPage(_cells(page.cells), page.next)


@route("GET", TABLE_PATH, needs("observe", TABLE), errors=_EXISTING)
async def get(request: Request) -> bodies.TableInfo:
    """A table's properties."""
    return _shown(await request.services.table_catalog.get(named_table(request)))


@route(
    "PUT",
    TABLE_PATH,
    needs("manage", TABLE),
    errors=(errors.InvalidNameError, errors.TableExistsError, errors.ConflictError),
)
async def create(request: Request, asked: bodies.CreateTable = _CONFLICT_BY_ROW) -> bodies.TableInfo:
    """Create a table, or a new generation of a deleted one."""
    return _shown(await request.services.table_catalog.create(named_table(request), asked.conflict))


@route("DELETE", TABLE_PATH, needs("manage", TABLE), errors=(*_EXISTING, errors.ConflictError))
async def delete(request: Request) -> None:
    """Delete a table with all its cells."""
    await request.services.table_catalog.delete(named_table(request))


@route("GET", TABLES_PATH, needs(filters="observe table"), answer={JSON: NAMES}, errors=(errors.InvalidNameError,))
async def names(request: Request) -> Response:
    """The names of a namespace's tables, sorted."""
    namespace, may = request.path["namespace"], request.caller.may
    listed = await request.services.table_catalog.list(namespace)
    return json_response([name for name in listed if may("observe", resources.table(namespace, name))])


@operators(
    "GET",
    ADMIN_PATH + "/tables",
    needs(filters="observe table"),
    query=(words("namespace", f"^{NAME_EXPRESSION}$", "only of this namespace"), AFTER, _LIMIT),
    errors=(errors.InvalidNameError,),
)
async def all_tables(request: Request) -> bodies.TablePage:
    """The tables of all namespaces."""
    namespace, limit, may = request.text("namespace"), request.integer("limit") or PAGE_MAX, request.caller.may
    after = request.text("after")
    behind = None if after is None else table_name(*after.split(":"))
    catalog = request.services.table_catalog
    found: list[bodies.ListedTable] = []
    async for page in catalog.pages(namespace, behind):
        for title, stored in page:
            if stored.generation < 0 or not may("observe", resources.table(*title)):
                continue
            if len(found) == limit:
                return bodies.TablePage(found, f"{found[-1].namespace}:{found[-1].name}")
            table = catalog.at(title, stored)
            found.append(bodies.ListedTable(*title, table.conflict, stored.generation, stored.created_ms))
    return bodies.TablePage(found, None)


async def _transaction(request: Request, asked: bodies.ReadRequest | bodies.ScanRequest) -> int | None:
    return None if asked.transaction is None else await request.transaction_of(asked.transaction, "transaction")


def _shown(table: HostedTable) -> bodies.TableInfo:
    return bodies.TableInfo(table.title.name, table.conflict, table.generation, table.metadata.created_ms)


def _cells(cells: list[CellVersion]) -> list[bodies.Cell]:
    return [bodies.Cell(cell.row, cell.column, cell.value, cell.write_pointer) for cell in cells]
