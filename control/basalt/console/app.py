"""The console's routes, which the server answers beside the API."""

from __future__ import annotations

from basalt.console import assets, sign_in
from basalt.console.pages import overview, topics
from basalt.http.routes.route_table import Operation

PAGES: tuple[Operation, ...] = tuple(
    operation for table in (overview.route, topics.route, sign_in.route, assets.route) for operation in table.operations
)
