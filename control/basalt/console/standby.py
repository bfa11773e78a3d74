"""The pages of a server that does not lead, or not yet: its own health, and the same page at the server that leads.

It reads nothing of the store but the lease, and so does not know who may see what: it tells no more than it tells everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from basalt.access.principal import ANONYMOUS
from basalt.api.bodies.operations import Readiness
from basalt.console.assets import ASSETS_PATH, file_at
from basalt.console.page import rendered
from basalt.http.asgi.requests import Headers, RequestHead
from basalt.http.asgi.responses import Response
from basalt.settings import Settings

WEB = ("http://", "https://")
RETRY_AFTER_S = b"1"


@dataclass(frozen=True, slots=True)
class StandbyHealth:
    """All that a server knows while it does not lead. `begins`: it has the lease, and reads what the last leader left."""

    readiness: Readiness
    begins: bool
    leader_url: str | None
    epoch: int
    unchanged_ms: float
    lease_ms: int
    terms: int


def standby_answer(
    request: RequestHead, health: StandbyHealth, why: str, settings: Settings, *, is_asked: bool, now_ms: int
) -> Response:
    """The answer to a browser that asks a standby for a page of the console, or sends it a form, or loads a file, where that is not passed on.

    All of them are 503, and name the leader in `Basalt-Leader`, so that an open page of its last term says so and goes on later.
    """
    head = request.head
    if head.path.startswith(f"{ASSETS_PATH}/"):
        return file_at(head.path)
    headers: Headers = [(b"retry-after", RETRY_AFTER_S)]
    if health.leader_url is not None:
        headers.append((b"basalt-leader", health.leader_url.encode("ascii", "replace")))
    return rendered(
        "standby.html", 503, headers, settings, head.path, title="Standby", health=health, why=why, now_ms=now_ms,
        leader_page=_page_there(health.leader_url, request), is_form=head.method == "POST", is_asked=is_asked, principal=str(ANONYMOUS),
    )  # fmt: skip


def _page_there(leader_url: str | None, request: RequestHead) -> str | None:
    """The same page at the leader; of a form, which is not sent there, the overview."""
    if leader_url is None or not leader_url.startswith(WEB):
        return None
    head = request.head
    target = "/console" if head.method == "POST" else head.raw_path.decode("ascii", "replace")
    query = head.query_string.decode("ascii", "replace")
    is_whole = bool(query) and head.method != "POST" and "panel=" not in query
    return leader_url.rstrip("/") + target + (f"?{query}" if is_whole else "")
