"""A program, `make screenshots`: pictures of pages for docs/operations/console.md, of an installation as tests have it.

They are small on purpose: of each page the part from its heading on, in few colors.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.browser.chromium import running_chromium
from tests.browser.pictures import PICTURE_BYTES_MAX, with_few_colors
from tests.browser.visitor import Visitor
from tests.operator_data import fill
from tests.system.server_process import ServerProcess

FOLDER = Path(__file__).parents[2] / "docs/operations/console"
SIZE = {"width": 900, "height": 430}
MARGIN = 12  # above the heading


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running_chromium() as chromium:
        server = ServerProcess(Path(folder))
        server.start("--set", "console.refresh_ms=0", "--set", "log.level=warning", "--set", "log.access=off")
        try:
            pages = _pages(server)
            for scheme in ("light", "dark"):
                with Visitor.at(chromium, server.url, viewport=SIZE, color_scheme=scheme, timezone_id="UTC") as visitor:
                    for name, target in pages.items():
                        if name.endswith("-dark") == (scheme == "dark"):
                            _take(visitor, target, FOLDER / f"{name}.png")
        finally:
            server.kill()


def _pages(server: ServerProcess) -> dict[str, str]:
    """By the name of the picture: what is on it."""

    def ask(method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"Content-Type": "application/json"}
        reply = server.ask(method, path, b"" if body is None else json.dumps(body).encode(), headers)
        assert reply.status == status, (method, path, reply)
        return reply.json() if reply.body else None

    installation = fill(ask)
    return {
        "overview": "/console",
        "overview-dark": "/console",
        "topics": "/console/topics",
        "hanging": f"/console/transactions/{installation.hanging}",
        "group": "/console/ns/shop/topics/orders/groups/billing",
        "messages": "/console/ns/area-0/topics/events-000/messages?from=start",
        "pruning": "/console/pruning",
    }


def _take(visitor: Visitor, target: str, path: Path) -> None:
    visitor.go(target)
    top = visitor.page.evaluate("document.querySelector('h1').getBoundingClientRect().top") - MARGIN
    path.write_bytes(with_few_colors(visitor.page.screenshot(full_page=True, clip={"x": 0, "y": top, **SIZE})))
    size = path.stat().st_size
    print(
        f"{path.relative_to(FOLDER.parents[2])}: {size:,} bytes{'' if size <= PICTURE_BYTES_MAX else ', which is too much'}"
    )


if __name__ == "__main__":
    main()
