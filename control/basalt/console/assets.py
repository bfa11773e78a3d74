"""The files that pages load: read once, served from memory under a name that changes with their content, so a browser keeps them for good."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from basalt.access.needs import PUBLIC
from basalt.errors import RouteNotFoundError
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

ASSETS_PATH = "/console/assets"

_FILES = {
    "console.css": b"text/css; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
    "follow.js": b"text/javascript; charset=utf-8",
    "basalt.svg": b"image/svg+xml",
}
_FOR_A_YEAR = [(b"cache-control", b"public, max-age=31536000, immutable")]

route = RouteTable("console")


class Asset(NamedTuple):
    """A file in memory."""

    content: bytes
    content_type: bytes
    path: str


def _read() -> Mapping[str, Asset]:
    folder = resources.files("basalt.console") / "assets"
    found = {}
    for name, content_type in _FILES.items():
        content = folder.joinpath(name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:8]
        found[name] = Asset(content, content_type, f"{ASSETS_PATH}/{digest}/{name.rpartition('/')[2]}")
    return found


ASSETS = _read()
_BY_PATH = {asset.path: asset for asset in ASSETS.values()}


@route("GET", ASSETS_PATH + "/{digest}/{name}", PUBLIC)
async def asset(request: Request) -> Response:
    """A file that pages load."""
    return file_at(f"{ASSETS_PATH}/{request.path['digest']}/{request.path['name']}")


def file_at(path: str) -> Response:
    """The file of this path; `RouteNotFoundError` where there is none."""
    found = _BY_PATH.get(path)
    if found is None:
        raise RouteNotFoundError("the console has no such file", field="path", hint="Load the page again.")
    return Response(200, found.content, found.content_type, list(_FOR_A_YEAR))
