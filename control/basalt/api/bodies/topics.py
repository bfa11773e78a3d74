"""Topics: their properties, statistics and truncation. Routes: docs/reference/http-api.md."""

from __future__ import annotations

from msgspec import Struct

TOPIC_ORDERS = ("name", "created", "updated", "ttl", "generation", "messages", "bytes", "rate", "oldest", "newest")


class TopicInfo(Struct, frozen=True):
    """A topic and its properties, whose values are text. `version` changes with them: an update may be made to expect it."""

    name: str
    properties: dict[str, str]
    version: str = ""  # the ETag of the answer, which no body has

    @property
    def ttl_seconds(self) -> int:
        """Time for which its messages are kept."""
        return int(self.properties["ttl"])

    @property
    def generation(self) -> int:
        """Its incarnation: higher each time that it is deleted and created again."""
        return int(self.properties["generation"])


class TopicFigures(Struct, frozen=True, rename="camel"):
    """The figures of a topic in a list: those that need no reading. Times are milliseconds since 1970; null where there is no message.

    `exact` is false where the oldest part was estimated. Readers of committed messages stop at a message of the transaction `held_by`,
    which was published at `held_since_ms`; null: at none.
    """

    messages: int
    bytes: int
    exact: bool
    oldest_ms: int | None
    newest_ms: int | None
    published_per_second: float
    held_by: str | None = None
    held_since_ms: int | None = None


class TopicDescription(Struct, frozen=True, rename="camel"):
    """Everything that is stored of a topic. Of a deleted one, `generation` is the last that it had.

    `figures` are there where they are asked for; null: there are none, or they are not counted now.
    """

    namespace: str
    name: str
    generation: int
    deleted: bool
    properties: dict[str, str]
    created_ms: int
    updated_ms: int
    figures: TopicFigures | None = None


class TopicPage(Struct, frozen=True):
    """Topics, in the order that was asked for. `next` is the `after` of the page behind it, and null in the last one.

    In an order by figures those come last whose figures are not in memory: `uncounted` of them. `unanswered`: the servers, by their names in the map of owners, that own
    topics of the page and did not tell their figures in time.
    """

    topics: list[TopicDescription]
    next: str | None = None
    uncounted: int = 0
    unanswered: tuple[str, ...] = ()


class TopicPlan(Struct, frozen=True, rename="camel"):
    """A dry run of a topic's creation or change: its properties as they are (`before`; null: it is not there), and as they would be."""

    namespace: str
    name: str
    generation: int
    before: dict[str, str] | None
    properties: dict[str, str]
    dry_run: bool = True


class TopicDeletion(Struct, frozen=True, rename="camel"):
    """A topic that was deleted. A dry run tells what readers would lose: messages, bytes, and the groups that read it."""

    namespace: str
    name: str
    generation: int
    dry_run: bool = False
    messages: int | None = None
    bytes: int | None = None
    exact: bool | None = None
    groups: int | None = None


class TopicStats(Struct, frozen=True, rename="camel"):
    """A topic's statistics. Times are milliseconds since 1970, ids hex digits; null where there is no message.

    `exact` is false where the oldest part was estimated. Messages published before `truncated_before_ms` were truncated;
    null: none were. Readers of committed messages stop at the transaction `oldest_open_write_pointer`.
    """

    messages: int
    bytes: int
    exact: bool
    oldest_id: str | None
    oldest_ms: int | None
    newest_id: str | None
    newest_ms: int | None
    published_per_second: float
    stored_bytes: int
    oldest_open_write_pointer: int | None
    truncated_before_ms: int | None


class OpenProducer(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Be the one that sends as a named producer. `run` names the process, or whatever must not run twice."""

    run: str


class OpenedProducer(Struct, frozen=True, rename="camel"):
    """The epoch to send with, and the number of the producer's last message in the topic; -1: it sent none."""

    epoch: int
    last_sequence: int


class ProducerInfo(Struct, frozen=True, rename="camel"):
    """A producer of a topic. `epoch` is 0 and `run` null where it is not a named one."""

    name: str
    last_sequence: int
    epoch: int
    run: str | None
    used_ms: int


class ProducerList(Struct, frozen=True, rename="camel"):
    """The producers that a topic knows, by name."""

    producers: tuple[ProducerInfo, ...]


class TruncateRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Truncate messages published before this time. With a `generation`, refuse a topic of another one."""

    before_ms: int
    generation: int | None = None


class TopicTruncation(Struct, frozen=True, rename="camel"):
    """The time before which a topic is truncated, and whether this call changed it.

    A dry run tells what would be, and the messages and bytes that readers would lose: at least these unless `exact`.
    """

    truncated_before_ms: int
    changed: bool
    dry_run: bool = False
    messages: int | None = None
    bytes: int | None = None
    exact: bool | None = None
