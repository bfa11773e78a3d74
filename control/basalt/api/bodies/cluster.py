"""Bodies about the servers that share a store: who they are, and which shards move between them (docs/operations/several-servers.md)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ClusterInfo(Struct, frozen=True, rename="camel"):
    """The server that answers, and its part among those that share the store.

    `shared`: others may take over from it. `holder`, `url`, `epoch` and `lease_ms` are of its lease, which it renewed `lease_age_ms` ago
    and has taken `terms` times since its start. `certificate_ends_ms`: when its certificate ends; null where it speaks no TLS.
    """

    version: str
    started_ms: int
    shared: bool
    leads: bool
    holder: str
    url: str
    epoch: int
    lease_ms: int
    lease_age_ms: int
    terms: int
    certificate_ends_ms: int | None


class ClusterMember(Struct, frozen=True, rename="camel"):
    """One run of a server on a shared store, as the leader knows it.

    `state`: `live`, `silent` once it has not renewed its membership for half a lease, `dead` once the leader has ended it. `role`: null of
    the dead. `since_ms`: when its membership began, by its own clock. `renewed_ago_ms`: for how long the leader has seen its row unchanged.
    `linked`: whether the leader hears its beats over a link; null of the leader itself. `rtt_us`: how long its last beat was under way, there and
    back, in microseconds; null where none was answered. `load`: calls a second to its `shards`, whose bytes count as calls, too; `of_share`: how much of its share
    that is (1: just as much); null of who is to have no shards. All three are null where servers do not share topics.
    """

    instance: str
    name: str
    url: str
    role: Literal["leader", "standby"] | None
    state: Literal["live", "silent", "dead"]
    version: str
    since_ms: int
    renewed_ago_ms: int
    lease_ms: int
    linked: bool | None
    rtt_us: int | None
    shards: int | None = None
    load: float | None = None
    of_share: float | None = None


class ClusterMembers(Struct, frozen=True, rename="camel"):
    """The servers that share a store, those that died of late too, in the order in which they became members.

    `shared`: false where the store is embedded; the server that answers is then the only one. `looked_ago_ms`: when the leader, which leads
    under `epoch`, last read who there is; null before it has.
    """

    shared: bool
    epoch: int
    looked_ago_ms: int | None
    members: tuple[ClusterMember, ...]


class ShardMoveRequest(Struct, frozen=True, rename="camel"):
    """Shards to move to the member `to`: those numbered, or the one of a topic."""

    to: str
    namespace: str | None = None
    topic: str | None = None
    shards: tuple[int, ...] = ()


class MovedShard(Struct, frozen=True, rename="camel"):
    """One shard of a move, and its epochs before and after it."""

    shard: int
    epoch_before: int
    epoch: int


class ShardMove(Struct, frozen=True, rename="camel"):
    """A move of shards, or of a dry run what it would be. `took_ms`: for how long calls to them waited; of a dry run 0."""

    to: str
    shards: tuple[MovedShard, ...]
    took_ms: float
    dry_run: bool


class MemberDrain(Struct, frozen=True, rename="camel"):
    """A member that is to have no shards (`drained`), or may have some: how many it has that are still to move (`left`). Of a dry
    run as it is now."""

    member: str
    drained: bool
    left: int
    dry_run: bool


class DealtShard(Struct, frozen=True, rename="camel"):
    """A shard, and between whom it moved. `load`: calls a second to it."""

    shard: int
    origin: str
    to: str
    load: float


class MemberLoad(Struct, frozen=True, rename="camel"):
    """A member that is to have shards, or has some: the load of these (calls a second), and how much of its share that is; null: it is to have none."""

    member: str
    load: float
    of_share: float | None


class ShardBalance(Struct, frozen=True, rename="camel"):
    """One wave of moves by which members come nearer to their shares; of a dry run, the one that would be made.

    `why`: the reason of these moves, or of there being none. `members`: how all stood before.
    """

    moves: tuple[DealtShard, ...]
    dry_run: bool
    why: str
    members: tuple[MemberLoad, ...]
