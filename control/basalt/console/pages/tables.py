"""The transactional tables: their list, and one with its cells, read row by row when somebody asks for them."""

from __future__ import annotations

from urllib.parse import urlencode

from basalt.access.needs import PUBLIC
from basalt.api.bodies.tables import CellPage, ScanRequest, TableInfo, TablePage
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag

PAGE_ROWS = 100
SCAN_CELLS = 200  # of one page
VALUE_CHARS = 300  # of a cell's value in the list: more is to be had with the command
LIST_PATH = f"{CONSOLE_PATH}/tables"
ONE_PATH = CONSOLE_PATH + "/ns/{namespace}/tables/{table}"
TABLE = "/v1/namespaces/{namespace}/tables/{table}"

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(*PAGE_QUERY, text_query("namespace", "only of this namespace"), text_query("after", "the page behind this table")),
)  # fmt: skip
async def tables(request: Request) -> Response:
    """List the tables."""
    given = {name: request.text(name) or "" for name in ("namespace", "after")}
    asked = {name: value for name, value in given.items() if value}
    call = Call("GET", "/v1/admin/tables", TablePage, query={**asked, "limit": str(PAGE_ROWS)})
    first = f"{LIST_PATH}?{urlencode({'namespace': given['namespace']})}" if given["namespace"] else LIST_PATH
    panel = Panel("tables", "Tables", call, extra={"first": first, "given": given})
    return await Visit(request).page("Tables", (panel,), "tables.html", given=given)


@route(
    "GET", ONE_PATH, PUBLIC,
    query=(*PAGE_QUERY, flag("scan", "read cells"), text_query("from", "the first row: text, or 0x and hex digits")),
)  # fmt: skip
async def table(request: Request) -> Response:
    """Show a table, and its cells where they are asked for."""
    names = {name: request.path[name] for name in ("namespace", "table")}
    start = request.text("from") or ""
    panels = [Panel("table", "What it is", Call("GET", TABLE, TableInfo, names), subject=True, extra=names)]
    if request.flag("scan"):
        # As they are committed now. Not renewed: who reads rows does not want them to move.
        asked = ScanRequest(row_of(start), limit_cells=SCAN_CELLS)
        extra = {"chars": VALUE_CHARS, "first": start and "?scan=true"}
        panels.append(
            Panel("cells", "Cells", Call("POST", TABLE + "/scan", CellPage, names, body=asked), live=False, extra=extra)
        )
    return await Visit(request).page(f"Table {names['namespace']}:{names['table']}", panels, "table.html", start=start)


def row_of(text: str) -> bytes:
    """The row that a text stands for: as UTF-8, or the bytes in hex behind 0x."""
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass
    return text.encode()
