"""The audit: what was done by hand, by whom and why; by time, act, principal and target; and the same lines as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from msgspec.structs import astuple

from basalt.access.needs import PUBLIC
from basalt.api.bodies.operations import AuditLine
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, login_path, redirect, text_query
from basalt.errors import InputError
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PAGE_ROWS = 100
CSV_LINES_MAX = 10_000  # all that a server keeps
CSV_PAGE_LINES = 1_000  # that are asked for at once: of the longest some 2 MB
LIST_PATH = f"{CONSOLE_PATH}/audit"
CSV_PATH = f"{LIST_PATH}.csv"
AUDIT = "/v1/admin/audit"
CSV = b"text/csv; charset=utf-8; header=present"
# A cell that begins so is a formula to a spreadsheet, which may run a program or send the sheet away: an apostrophe makes it text.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

_FILTERS = {
    "from": "only at this time or later, in UTC: 2026-01-31T10:00",
    "to": "only before this time",
    "act": "only this act",
    "principal": "only what this principal did",
    "target": "only about something with this text in its name",
}
_QUERY = tuple(text_query(*each) for each in _FILTERS.items())

route = RouteTable("console")


@route("GET", LIST_PATH, PUBLIC, query=(*PAGE_QUERY, *_QUERY, text_query("after", "the page behind this line")))
async def audit(request: Request) -> Response:
    """List what was done by hand."""
    given, after = _given(request), request.text("after") or ""
    filters = {name: value for name, value in given.items() if value}
    query = {**_asked(given), **({"after": after} if after else {}), "limit": str(PAGE_ROWS)}
    extra = {"first": f"{LIST_PATH}?{urlencode(filters)}", "after": after, "rows": PAGE_ROWS}
    call = Call("GET", AUDIT, list[AuditLine], query=query)
    panel = Panel("audit_lines", "Acts, newest first", call, extra=extra)
    return await Visit(request).page(
        "Audit", (panel,), "audit.html", given=given, csv=f"{CSV_PATH}?{urlencode(filters)}", lines_max=CSV_LINES_MAX
    )


@route("GET", CSV_PATH, PUBLIC, query=_QUERY)
async def as_csv(request: Request) -> Response:
    """The same lines, for a spreadsheet."""
    visit = Visit(request)
    if visit.must_sign_in:
        return redirect(login_path(request))
    asked, lines, after = _asked(_given(request)), list[AuditLine](), ""
    while len(lines) < CSV_LINES_MAX:
        query = {**asked, **({"after": after} if after else {}), "limit": str(CSV_PAGE_LINES)}
        answer = await visit.ask(Call("GET", AUDIT, list[AuditLine], query=query))
        if not answer.ok:
            return visit.html("absent.html", answer.status, title="Audit", answer=answer)
        lines += answer.value
        if len(answer.value) < CSV_PAGE_LINES:
            break
        after = lines[-1].id
    headers = [(b"content-disposition", b'attachment; filename="audit.csv"')]
    return Response(200, table_of(lines).encode("utf-8", "backslashreplace"), CSV, headers)


def table_of(lines: Iterable[AuditLine]) -> str:
    """The lines as CSV, with their times in UTC too. No cell is a formula."""
    written = io.StringIO()
    table = csv.writer(written, quoting=csv.QUOTE_ALL)
    table.writerow(("time", *AuditLine.__struct_encode_fields__))
    for line in lines:
        at = datetime.fromtimestamp(line.at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        table.writerow(map(cell, (at, *astuple(line))))
    return written.getvalue()


def cell(value: object) -> str:
    """The text of a cell, with an apostrophe before what a spreadsheet would take for a formula."""
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def time_ms(text: str, name: str) -> int:
    """The time that a filter names, in UTC where it names no other zone."""
    try:
        found = datetime.fromisoformat(text)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise InputError(
            f"{name} is {text[:40]!r}, which is no time", field=name, hint="Write it as 2026-01-31T10:00, in UTC."
        ) from None


def _given(request: Request) -> dict[str, str]:
    return {name: (request.text(name) or "").strip() for name in _FILTERS}


def _asked(given: Mapping[str, str]) -> dict[str, str]:
    """The filters as the API takes them."""
    return {
        name: str(max(0, time_ms(value, name))) if name in ("from", "to") else value
        for name, value in given.items()
        if value
    }
