"""The cluster: the server that leads with its lease, who stands by, whether its parts are well, the store with its tables, and the backups of it."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.cluster import ClusterInfo, ClusterMembers
from basalt.api.bodies.operations import Backup, BackupRequest, MadeBackup, ProcessInfo, Readiness, StoreInfo
from basalt.api.bodies.owners import ClusterShards
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PATH = f"{CONSOLE_PATH}/cluster"
BACKUPS = "/v1/admin/backups"
CERTIFICATE_WARN_MS = 14 * 86_400_000  # as the alert has it: time enough to have another one made

route = RouteTable("console")


@route("GET", PATH, PUBLIC, query=(*PAGE_QUERY, text_query("backup", "the name of the backup that is offered")))
async def cluster(request: Request) -> Response:
    """Show who leads, who stands by, the store and its backups."""
    visit = Visit(request)
    name = request.text("backup") or proposed_name(visit.now_ms)
    panels = (
        Panel(
            "cluster", "This server", Call("GET", "/v1/admin/cluster", ClusterInfo), extra={"warn_ms": CERTIFICATE_WARN_MS}
        ),
        Panel("cluster_members", "Servers", Call("GET", "/v1/cluster", ClusterMembers)),
        Panel("cluster_shards", "Shards", Call("GET", "/v1/admin/cluster/shards", ClusterShards)),
        Panel("readiness", "Health", Call("GET", "/readyz", Readiness)),
        Panel("store", "Store", Call("GET", "/v1/admin/store", StoreInfo)),
        Panel("process", "Process", Call("GET", "/v1/admin/process", ProcessInfo)),
        Panel(
            "backups", "Backups", Call("GET", BACKUPS, list[Backup]),
            extra={"offers": acts.offers(visit, (backup_of(name),))},
        ),
    )  # fmt: skip
    return await visit.page("Cluster", panels, "cluster.html", name=name)


@route("POST", PATH + "/backups/{backup}/create", PUBLIC, query=(STEP,), body=ACT_BODY)
async def create(request: Request) -> Response:
    """Make a backup."""
    return await acts.respond(Visit(request), backup_of(request.path["backup"]))


def backup_of(name: str) -> Act:
    """The act that makes a backup of this name."""
    return Act(
        "create", f"Back up as {name}", PATH, Call("POST", BACKUPS, MadeBackup, body=BackupRequest(name)), "operate", CLUSTER,
        "Copies the store as it is at one moment, while it serves. Files that store and copy have in common take no space of their own.",
        "made_backup", below=f"backups/{quote(name, safe='')}",
    )  # fmt: skip


def proposed_name(now_ms: int) -> str:
    """A name for a backup that is made now."""
    return datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%Y-%m-%d-%H%M")
