"""Page views and unique clients, counted from lines; and how what was read differs from what was to be published."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from demo.access_log import NotAnAccessLineError, parse


@dataclass(slots=True)
class Group:
    """The page views of one hour, or of one path."""

    views: int = 0
    clients: set[str] = field(default_factory=set)

    def add(self, client: str) -> None:
        self.views += 1
        self.clients.add(client)


@dataclass(slots=True)
class Views:
    """All page views of a log. Two logs with the same page views are equal."""

    total: int = 0
    skipped: int = 0
    clients: set[str] = field(default_factory=set)
    days: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(Group))
    hours: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(Group))
    paths: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(Group))

    @classmethod
    def of(cls, lines: Iterable[bytes]) -> Views:
        """The page views of all these lines."""
        views = cls()
        for line in lines:
            views.add(line)
        return views

    def add(self, line: bytes) -> None:
        """Count one line; a line that is no page view is only counted as skipped."""
        try:
            view = parse(line)
        except NotAnAccessLineError:
            self.skipped += 1
            return
        self.total += 1
        self.clients.add(view.client)
        self.days[view.hour[:10]].add(view.client)
        self.hours[view.hour].add(view.client)
        self.paths[view.path].add(view.client)

    def by_day(self) -> list[tuple[str, Group, list[int]]]:
        """Every day with page views, in order of time, with the page views of each of its 24 hours."""
        return [(day, group, self._hours_of(day)) for day, group in sorted(self.days.items())]

    def _hours_of(self, day: str) -> list[int]:
        hours = (self.hours.get(f"{day} {hour:02}h") for hour in range(24))
        return [group.views if group else 0 for group in hours]

    def top_paths(self, count: int) -> list[tuple[str, Group]]:
        """The paths with the most page views, the most viewed first."""
        return sorted(self.paths.items(), key=lambda item: (-item[1].views, item[0]))[:count]


def differences(published: Sequence[bytes], read: Sequence[bytes], aborted_marks: Iterable[bytes]) -> list[str]:
    """The faults of `read`, one sentence each; none when it is `published`, in order, and no aborted message.

    `aborted_marks` are messages that only aborted transactions wrote.
    """
    found = []
    marks = set(aborted_marks)
    aborted = sum(message in marks for message in read)
    if aborted:
        found.append(f"{_count(aborted, 'message')} of an aborted transaction {_was(aborted)} seen")
    lines = [message for message in read if message not in marks]
    if lines == list(published):
        return found
    lost = Counter(published) - Counter(lines)
    twice = (Counter(lines) - Counter(published)).total()
    if lost:
        first = next(number for number, line in enumerate(published, 1) if line in lost)
        found.append(f"{lost.total()} of {_count(len(published), 'line')} lost, the first is line {first}")
    if twice:
        found.append(f"{_count(twice, 'line')} more than the log has: {'it' if twice == 1 else 'they'} came twice")
    if not lost and not twice:
        first = next(number for number, pair in enumerate(zip(published, lines, strict=True), 1) if pair[0] != pair[1])
        found.append(f"the order changed from line {first} on")
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"
