"""Bodies about who owns what: the shards of all topics and tables, and one topic with all that is known of it.

The rules of the map are in `basalt.cluster.owners`. Reference: docs/reference/http-api.md, "The servers".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

OwnerState: TypeAlias = Literal["live", "silent", "dead"]
WhyOwner: TypeAlias = Literal["alone", "lead", "move", "grant"]


class ShardOwner(Struct, frozen=True, rename="camel"):
    """The owner of the shard that a topic or table falls into. A name has a shard whether there is such a topic or not.

    `instance`, `owner` (its name for people) and `url` are the owner's, and empty where that is not known any more; `state` is `dead` where it is no
    member any more, so that nobody serves the shard. `epoch` rises with each grant of the shard. `why`: `alone` where the store is embedded, `lead` when
    it began to lead, which gives a server all shards, `move` when a planned move has given it the shard since, `grant` when a leader before has. `since_ms`: when; null where
    the server does not know. `map_version`: of the map that says so; 0 without one.
    """

    kind: Literal["topic", "table"]
    namespace: str
    name: str
    shard: int
    instance: str
    owner: str
    url: str
    state: OwnerState
    epoch: int
    since_ms: int | None
    why: WhyOwner
    map_version: int


class ShardRange(Struct, frozen=True, rename="camel"):
    """Neighbouring shards, `first` to `last`, that one member owns, under epochs from `epoch_min` to `epoch_max`."""

    first: int
    last: int
    instance: str
    epoch_min: int
    epoch_max: int


class MemberShards(Struct, frozen=True, rename="camel"):
    """A member that owns shards, or did until it died: how many, and its state.

    `load`: calls a second to them, whose bytes count as calls, too; `of_share`: how much of its share that is (1: just as much); null where it is to have none, or is alone.
    """

    instance: str
    owner: str
    url: str
    state: OwnerState
    shards: int
    load: float = 0.0
    of_share: float | None = None


class BusyShard(Struct, frozen=True, rename="camel"):
    """One of the busiest shards, and its owner. `load`: calls a second to it."""

    shard: int
    instance: str
    load: float


class ClusterShards(Struct, frozen=True, rename="camel"):
    """The map of owners: which member has which shard.

    `shared`: false where the store is embedded; the server that answers owns all then. `leader_epoch`: of the leader that wrote this `version`.
    `states` counts shards by the state of their owner; `unowned` are those whose owner is dead. `busiest`: the shards with the highest loads, at most 20.
    """

    shared: bool
    version: int
    leader_epoch: int
    shards: int
    states: dict[OwnerState, int]
    unowned: int
    members: tuple[MemberShards, ...]
    ranges: tuple[ShardRange, ...]
    busiest: tuple[BusyShard, ...] = ()


class TopicRegion(Struct, frozen=True, rename="camel"):
    """A region that can hold rows of a topic, and the region server that has it; empty where none has."""

    table: str
    region: str
    server: str


class TopicExplanation(Struct, frozen=True, rename="camel"):
    """Everything about where one topic is, and what would be in the way of calls to it.

    `exists`: whether there is such a topic; its shard and owner are told in any case. `buckets`: the salts under which its rows lie, of
    `bucket_count`; of a topic that there is not, the first one. `answers`: true where the owner has given this answer, null where another
    server has, which cannot tell. `obstacles`: why calls would wait or be refused now, in words; empty where nothing is known that would. `regions`:
    where the store has some, as the last look at all regions found them.
    """

    owner: ShardOwner
    exists: bool
    buckets: tuple[int, ...]
    bucket_count: int
    answers: bool | None
    obstacles: tuple[str, ...]
    regions: tuple[TopicRegion, ...]
