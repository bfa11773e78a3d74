"""The calls about the servers that share the store: the one that leads, all of them, who owns which shards, and where one topic is."""

from __future__ import annotations

import functools

from basalt.access.needs import needs
from basalt.api.bodies.cluster import (
    ClusterInfo,
    ClusterMembers,
    MemberDrain,
    MovedShard,
    ShardBalance,
    ShardMove,
    ShardMoveRequest,
)
from basalt.api.bodies.owners import ClusterShards, ShardOwner, TopicExplanation
from basalt.errors import ConflictError, InvalidNameError, TopicNotFoundError, UnavailableError
from basalt.http.collectors import TlsMetrics
from basalt.http.routes.route_table import ADMIN_PATH, AS, CLUSTER, DRY_RUN, REASON, TOPIC, Request, RouteTable
from basalt.http.routes.tables import TABLE, named_table
from basalt_engine import __version__

_OWNERS = "/v1/cluster/owners/{namespace}"
_SERVER = ADMIN_PATH + "/cluster/members/{server}"
_ERRORS = (InvalidNameError, UnavailableError)

route = RouteTable("server")
admin = "admin"


@route("GET", ADMIN_PATH + "/cluster", needs("observe", CLUSTER), tag=admin)
async def cluster(request: Request) -> ClusterInfo:
    """The server that leads: its lease, its epoch and its certificate."""
    services = request.services
    leadership = services.leadership
    ends_ms = next((each.certificate_ends_ms for each in services.collectors if isinstance(each, TlsMetrics)), None)
    if leadership is None:  # nobody else has the store open
        return ClusterInfo(__version__, services.started_ms, False, True, "", "", 0, 0, 0, 0, ends_ms)
    candidate = leadership.candidate
    return ClusterInfo(
        __version__, services.started_ms, True, leadership.is_leader, candidate.holder, candidate.url, leadership.epoch,
        candidate.lease_ms, round(leadership.unchanged_ms), leadership.terms, ends_ms,
    )  # fmt: skip


@route("GET", "/v1/cluster", needs("observe", CLUSTER), tag=admin)
async def members(request: Request) -> ClusterMembers:
    """The servers that share the store: the leader, its standbys, and those that died of late."""
    return request.services.cluster.members()


@route("GET", _OWNERS + "/{topic}", needs("observe", TOPIC), errors=_ERRORS, tag=admin)
async def owner(request: Request) -> ShardOwner:
    """The server that owns the shard of a topic; also of one that there is not."""
    return await request.services.cluster.owner(request.topic)


@route("GET", _OWNERS + "/tables/{table}", needs("observe", TABLE), errors=_ERRORS, tag=admin)
async def table_owner(request: Request) -> ShardOwner:
    """The server that owns the shard of a transactional table; also of one that there is not."""
    return await request.services.cluster.owner(named_table(request))


@route("GET", ADMIN_PATH + "/cluster/shards", needs("observe", CLUSTER), errors=(UnavailableError,), tag=admin)
async def shards(request: Request) -> ClusterShards:
    """The map of owners: all shards in ranges, and how many each server has."""
    return await request.services.cluster.shards()


@route(
    "GET", ADMIN_PATH + "/namespaces/{namespace}/topics/{topic}/explain", needs("observe", CLUSTER) & needs("observe", TOPIC),
    errors=_ERRORS, tag=admin,
)  # fmt: skip
async def explain(request: Request) -> TopicExplanation:
    """The place of a topic, and why calls to it would wait or be refused now; also of one that there is not."""
    return await request.services.explain_topic(request.topic)


@route(
    "POST", ADMIN_PATH + "/cluster/moves", needs("operate", CLUSTER), query=(DRY_RUN, REASON, AS),
    errors=(ConflictError, InvalidNameError, TopicNotFoundError), tag=admin,
)  # fmt: skip
async def move_shards(request: Request, asked: ShardMoveRequest) -> ShardMove:
    """Move shards to a member: calls to their topics wait for the moment that it takes.

    It answers when they are served again. A move that cannot be made at once, such as while rows are in doubt, is called off.
    """
    services = request.services
    shards = await services.shards_asked_for(asked)
    to = services.in_map(asked.to)
    before = services.shard_moves.plan(shards, to)
    if request.flag("dryRun"):
        epochs = tuple(MovedShard(shard, epoch, epoch + 1) for shard, epoch in before.items())
        return ShardMove(to, epochs, 0, True)
    what = f"shard{'s' if len(shards) > 1 else ''} {', '.join(map(str, sorted(shards)))}"
    do = functools.partial(services.shard_moves.move, shards, to)
    moved = await services.audit.act("move shards", f"{what} to {to}", *request.act, do)
    epochs = tuple(MovedShard(shard, moved.before[shard], epoch) for shard, epoch in moved.after.items())
    return ShardMove(to, epochs, round(moved.took_ms, 3), False)


@route(
    "POST", _SERVER + "/drain", needs("operate", CLUSTER), query=(DRY_RUN, REASON, AS), errors=(ConflictError,), tag=admin
)  # fmt: skip
async def drain(request: Request) -> MemberDrain:
    """Give a server no shards any more, until it ends or this is taken back. Those that it has move away in the background."""
    return await _drain(request, True)


@route(
    "POST", _SERVER + "/undrain", needs("operate", CLUSTER), query=(DRY_RUN, REASON, AS), errors=(ConflictError,), tag=admin
)  # fmt: skip
async def undrain(request: Request) -> MemberDrain:
    """Let a server that was drained have shards again."""
    return await _drain(request, False)


async def _drain(request: Request, is_drained: bool) -> MemberDrain:
    services = request.services
    member = services.in_map(request.path["server"])
    told = services.shard_moves.planned_drain(member) if is_drained else services.shard_moves.draining(member)
    dry_run = request.flag("dryRun")
    if not dry_run:
        do = functools.partial(services.shard_moves.drain, member, is_drained)
        what = "drain a server" if is_drained else "take a server back"
        told = await services.audit.act(what, f"member {member}", *request.act, do)
    return MemberDrain(member, told.drained, told.left, dry_run)


@route(
    "POST", ADMIN_PATH + "/cluster/balance", needs("operate", CLUSTER), query=(DRY_RUN, REASON, AS), errors=(ConflictError,),
    tag=admin,
)  # fmt: skip
async def balance(request: Request) -> ShardBalance:
    """Move some shards at once from servers that have more than their share; none where all are near it."""
    moves = request.services.shard_moves
    dry_run = request.flag("dryRun")
    made = moves.planned_balance()
    told = request.services.cluster.balance(made, dry_run=dry_run)
    if made and not dry_run:
        do = functools.partial(moves.balance, made)
        await request.services.audit.act("even out shards", f"{len(made)} shards", *request.act, do)
    return told
