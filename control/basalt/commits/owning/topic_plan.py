"""The plan of a commit: the messages and markers that it brings, by topic, checked before its stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, Work, WorkPublish
from basalt.api.markers import Marker
from basalt.catalog.topics import Topic
from basalt.errors import InputError, TooLargeError
from basalt.groups.acknowledgements import PlannedAcknowledgement
from basalt.messaging.log.append import RecordColumns
from basalt.messaging.log.topic_log import TopicLog, prefix_of
from basalt.runtime.group_commit import GroupCommit
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.records import Buffer, Extras

MARKER_BYTES = 512  # what a marker counts in the queue


class Publication(NamedTuple):
    """Messages that a commit publishes to one topic."""

    log: TopicLog
    messages: Sequence[Buffer]
    extras: Sequence[Extras] | None


class TopicPlan(NamedTuple):
    """The messages and markers that a commit will publish, checked before its stage. Markers come after their messages.
    What it acknowledges in groups is decided with it.

    It holds the logs, so that its stage finds them in memory.
    """

    publications: list[Publication]
    markers: Sequence[tuple[TopicLog, Marker]] = ()
    segments: Sequence[int] | None = None  # the write pointers whose stored payloads it publishes; None: all
    acknowledgements: Sequence[PlannedAcknowledgement] = ()

    @property
    def topics(self) -> list[Topic]:
        return [log.topic for log in self.logs]

    @property
    def logs(self) -> list[TopicLog]:
        logs = [publication.log for publication in self.publications]
        if self.markers:
            logs += [log for log, _ in self.markers]
        return logs

    @property
    def is_empty(self) -> bool:
        """True when it says no more than that all that was stored is published."""
        return not self.publications and not self.markers and self.segments is None

    def by_lane(self, lanes: TopicLanes) -> dict[GroupCommit, TopicPlan]:
        """The parts of the plan of a one-shot transaction, by write lane."""
        if len(lanes.each) == 1:
            return {lanes.each[0]: self}
        used = dict.fromkeys(lanes.lane_of(prefix_of(log)) for log in self.logs)
        return {lane: self.of_lane(lanes, lane) for lane in used} if len(used) > 1 else dict.fromkeys(used, self)

    def of_lane(self, lanes: TopicLanes, lane: GroupCommit) -> TopicPlan:
        """The part about topics of one write lane. What is acknowledged is no part of it."""
        if len(lanes.each) == 1:
            return self
        publications = [each for each in self.publications if lanes.lane_of(prefix_of(each.log)) is lane]
        markers = [each for each in self.markers if lanes.lane_of(prefix_of(each[0])) is lane]
        return TopicPlan(publications, markers, self.segments)

    @property
    def payload_bytes(self) -> int:
        total = len(self.markers) * MARKER_BYTES
        for publication in self.publications:
            total += sum(map(len, publication.messages))
        return total


NOTHING = TopicPlan([])  # of a commit that brings no work


def add_publication(publications: list[Publication], number: int, part: WorkPublish, log: TopicLog) -> None:
    """The messages of this part of a work, if it has some, go with these publications. `TooLargeError`"""
    messages, extras = RecordColumns.of(part.records) if part.records else (part.messages, None)
    if len(messages) > PUBLISH_MESSAGES_MAX:
        raise TooLargeError(
            f"publish[{number}] has {len(messages)} messages, the limit is {PUBLISH_MESSAGES_MAX}",
            field=f"publish[{number}].messages",
            hint="give the same topic several times",
        )
    if messages:
        publications.append(Publication(log, messages, extras))


def check_one_shot(work: Work) -> None:
    """Refuse work that no one-shot transaction can have."""
    if work.segments is not None:
        raise no_segments()


def no_segments() -> InputError:
    """The refusal of segments that a one-shot transaction names."""
    return InputError(
        "a one-shot transaction has stored nothing, and no segments", field="segments", hint="Leave them out."
    )
