"""One topic while the end of a micro-batch is sought: how far it is, and what the markers on the way said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from basalt.api.markers.reconcile import NOTHING_KNOWN, MarkerState, merged
from basalt_spark.admission import Share
from basalt_spark.offset import TopicOffset

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.api.bodies.ranges import Advance
    from basalt.client import Topic
    from basalt.client.calls.ranges import RangeIsolation


@dataclass(slots=True)
class Taken:
    """What was taken in, and whether that is all there is."""

    rows: int = 0
    bytes: int = 0
    at_end: bool = False

    def add(self, more: Taken) -> None:
        """So much more was taken in after it."""
        self.rows += more.rows
        self.bytes += more.bytes
        self.at_end = more.at_end


def advance_topic(
    topic: Topic,
    reached: TopicOffset,
    share: Share,
    *,
    through: bytes | None,
    isolation: RangeIsolation,
    check: Callable[[Advance], None],
) -> tuple[TopicOffset, Taken]:
    """As far as the share goes, but not past `through` (None: the stable end).

    The server bounds what it does in one call, so several may be needed. A message that does not fit any more is left for
    the next batch, unless it would be the only one.
    """
    taken = Taken()
    while True:
        rows_left = None if share.rows is None else share.rows - taken.rows
        bytes_left = None if share.bytes is None else share.bytes - taken.bytes
        step = topic.advance(
            reached.id, messages_max=rows_left, bytes_max=bytes_left, through=through, isolation=isolation
        )
        check(step)
        if bytes_left is not None and step.bytes > bytes_left and taken.rows:
            return reached, taken
        stood = step.through is None or step.through == reached.id
        reached = _moved(reached, step)
        taken.add(Taken(step.messages, step.bytes, step.at_end))
        full = (share.rows is not None and taken.rows >= share.rows) or (
            share.bytes is not None and taken.bytes >= share.bytes
        )
        if stood or full or step.at_end:
            return reached, taken


def markers_before(topic: Topic, where: bytes, isolation: RangeIsolation) -> MarkerState:
    """What the markers up to here said, for a query that begins in the middle."""
    reached = TopicOffset(0, None, None, NOTHING_KNOWN)
    reached, _ = advance_topic(
        topic, reached, Share(None, None), through=where, isolation=isolation, check=lambda _: None
    )
    return reached.markers


def _moved(reached: TopicOffset, step: Advance) -> TopicOffset:
    markers = merged(reached.markers, step.said).expecting(step.tasks_property)
    return replace(reached, id=reached.id if step.through is None else step.through, markers=markers)
