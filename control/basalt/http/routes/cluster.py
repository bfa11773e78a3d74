"""The calls about the servers that share the store: the one that leads, all of them, who owns which shards, and where one topic is."""

from __future__ import annotations

from basalt.access.needs import needs
from basalt.api.bodies.operations import ClusterInfo, ClusterMembers
from basalt.api.bodies.owners import ClusterShards, ShardOwner, TopicExplanation
from basalt.errors import InvalidNameError, UnavailableError
from basalt.http.collectors import TlsMetrics
from basalt.http.routes.route_table import ADMIN_PATH, CLUSTER, TOPIC, Request, RouteTable
from basalt.http.routes.tables import TABLE, named_table
from basalt_engine import __version__

_OWNERS = "/v1/cluster/owners/{namespace}"
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
