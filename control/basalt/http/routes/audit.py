"""The audit: what operators did by hand. Written by the calls themselves; here it is only read."""

from __future__ import annotations

from basalt.api.bodies.jobs import AuditLine
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.admin import ADMIN_PATH
from basalt.http.routes.operations import Operation, integer
from basalt.operations.audit import Line

LIMIT_DEFAULT, LIMIT_MAX = 50, 10_000


async def lines(request: Request) -> Answer:
    """The newest acts, newest first."""
    found = await request.services.audit.newest(request.integer("limit") or LIMIT_DEFAULT)
    return json_answer([_shown(line) for line in found])


def _shown(line: Line) -> AuditLine:
    return AuditLine(
        at_ms=line.at_ms,
        act=line.act,
        what=line.what,
        outcome=line.outcome,
        reason=line.reason,
        name=line.name,
        address=line.address,
        agent=line.agent,
        request_id=line.request_id,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=ADMIN_PATH + "/audit",
        handler=lines,
        summary="What operators did by hand, newest first",
        tag="admin",
        query=(integer("limit", 1, LIMIT_MAX, f"most acts to answer; {LIMIT_DEFAULT} by default"),),
        answers={200: {JSON: list[AuditLine]}},
    ),
)
