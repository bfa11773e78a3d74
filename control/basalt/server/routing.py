"""The rule which server answers a call: the owner of the topic that its path names, the leader, or whoever was asked. Pure.

A topic's messages, properties, figures and consumer groups are known where its places are given out: at its owner, and so are a table's cells. Transactions, sessions, and
all that is about the installation are the leader's. Method and path decide, for no more than the head of a call is known when it comes, and a head is looked at
once for all calls that begin alike. Why so: docs/decisions/0073-a-call-is-answered-by-the-owner.md.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from basalt.cluster.owners import OwnersMap
from basalt.http.asgi.requests import Head
from basalt_engine.keys import NAME_EXPRESSION, table_prefix, topic_prefix
from basalt_engine.stores.shards import shard_of


class By(Enum):
    """The server that answers a call, by its part."""

    OWNER = "owner"  # of the topic or table that the path names
    LEADER = "leader"
    ANYBODY = "anybody"  # each server for itself
    BODY = "body"  # whoever takes it, where it can have the leader decide over its link: only with the body it can tell; else the leader


class Place(NamedTuple):
    """All that the path of a call says of where it is answered. `shard`: of the topic or table that it names; None: it names none."""

    by: By
    shard: int | None


# What follows a topic's name in a path, up to the next slash; empty: nothing does. Whatever is not here is the leader's, which says that there is no such call.
AT_TOPICS = {
    "": By.OWNER,  # also to create it: the rows of its metadata are in its shard
    "advance": By.OWNER,
    "groups": By.OWNER,
    "holder": By.OWNER,
    "markers": By.OWNER,
    "messages": By.OWNER,
    "poll": By.OWNER,
    "producers": By.OWNER,
    "properties": By.OWNER,
    "publish": By.OWNER,
    "range": By.OWNER,
    "records": By.OWNER,
    "rollback": By.OWNER,
    "splits": By.OWNER,
    "stable-end": By.OWNER,
    "stats": By.OWNER,
    "store": By.OWNER,
    "truncate": By.OWNER,
}
# The same in paths of tables.
AT_TABLES = {
    "": By.OWNER,
    "read": By.OWNER,
    "scan": By.OWNER,
    "write": By.OWNER,
}
# The same in paths of operators. What is in the way of calls to a topic its owner knows best, but who lives the leader.
AT_TOPICS_OF_OPERATORS = {"": By.OWNER, "explain": By.LEADER}
# And in those of the console's pages: each is a list of calls, made where the page is.
AT_TOPICS_OF_PAGES = {
    "": By.OWNER,
    "delete": By.OWNER,
    "edit": By.OWNER,
    "groups": By.OWNER,
    "messages": By.OWNER,
    "publish": By.OWNER,
    "truncate": By.OWNER,
}
# Of paths that name no topic, by their first part behind the slash, and in the API by the second one.
AT_OTHERS = {
    "livez": By.ANYBODY,
    "readyz": By.ANYBODY,
    "metrics": By.ANYBODY,
    "openapi.json": By.ANYBODY,
    "v1": By.ANYBODY,  # the version alone
    "v1/admin": By.LEADER,
    "v1/auth": By.LEADER,  # as those who may come in are listed there
    "v1/cluster": By.LEADER,
    "v1/namespaces": By.LEADER,  # lists
    "v1/transactions": By.LEADER,
    "console": By.LEADER,
}

# Calls about transactions that a member carries out by its link, by their method; all others are passed on to the leader.
_OVER_LINKS = {
    "POST": re.compile(r"/v1/transactions(?:/(?!sessions/)[^/]+/(?:abort|checkpoint|commit))?"),
    "GET": re.compile(r"/v1/transactions/(?!sessions$)[^/]+"),
}

_NAMED = f"({NAME_EXPRESSION})"
_ABOUT = re.compile(f"/v1/namespaces/{_NAMED}/(topics|tables)/{_NAMED}(?:/(.*))?", re.ASCII)
_OF_OPERATORS = re.compile(f"/v1/admin/namespaces/{_NAMED}/topics/{_NAMED}(?:/(.*))?", re.ASCII)
_PAGE = re.compile(f"/console/(?:live/)?ns/{_NAMED}/topics/{_NAMED}(?:/(.*))?", re.ASCII)
_FURTHER = ((_OF_OPERATORS, AT_TOPICS_OF_OPERATORS), (_PAGE, AT_TOPICS_OF_PAGES))


def place_of(head: Head) -> Place:
    """The place of a call with this head, which remembers it."""
    place: Place | None = head.place
    if place is None:
        place = head.place = place_of_call(head.method, head.path)
    return place


def place_of_call(method: str, path: str) -> Place:
    """The place of a call with this method and path."""
    found = _ABOUT.fullmatch(path)
    if found is not None:
        namespace, kind, name, rest = found.groups()
        if kind == "tables":
            return Place(_by(AT_TABLES, rest), shard_of(table_prefix(namespace, name)))
        return Place(_by(AT_TOPICS, rest), shard_of(topic_prefix(namespace, name)))
    for expression, table in _FURTHER:
        found = expression.fullmatch(path)
        if found is not None:
            namespace, name, rest = found.groups()
            return Place(_by(table, rest), shard_of(topic_prefix(namespace, name)))
    over_links = _OVER_LINKS.get(method)
    if over_links is not None and over_links.fullmatch(path) is not None:
        return Place(By.BODY, None)
    first, _, rest = path.removeprefix("/").partition("/")
    if rest and first == "v1":
        first = f"v1/{rest.partition('/')[0]}"
    return Place(AT_OTHERS.get(first, By.LEADER), None)


def _by(table: dict[str, By], rest: str | None) -> By:
    return table.get((rest or "").partition("/")[0], By.LEADER)


def is_here(place: Place, owners: OwnersMap | None, own: str, *, leads: bool) -> bool:
    """Tell whether a server that serves, and is `own` in the map, answers the call itself. `leads`: it serves as the leader."""
    if place.by is By.OWNER:
        if owners is None:  # nobody has dealt any shard yet
            return leads
        assert place.shard is not None
        return owners.owner_of(place.shard) == own
    return leads or place.by is By.ANYBODY


def other_owner(place: Place, owners: OwnersMap | None, own: str, leader: str | None) -> str | None:
    """The member that is to answer a call which this server does not answer itself; None: that is the leader's part, or nobody else's."""
    if place.by is not By.OWNER or owners is None:
        return None
    assert place.shard is not None
    owner = owners.owner_of(place.shard)
    return None if owner in (own, leader) else owner


def newest(one: OwnersMap | None, other: OwnersMap | None) -> OwnersMap | None:
    """Of two maps that a server has heard of, the one that was written last."""
    if one is None or other is None:
        return one or other
    return other if other.version > one.version else one
