"""A server's topics as the reading half of the data source sees them: a log in memory behind the client's own calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

from basalt.api.bodies.ranges import Advance, Split, StableEnd, TaskInfo
from basalt.api.markers import NOTHING_KNOWN, Marker, apply
from basalt.errors import GenerationError, GroupNotFoundError, TopicNotFoundError

INSTANCE = "0123456789abcdef"


class Entry(NamedTuple):
    id: bytes
    payload: bytes = b""
    marker: Marker | None = None


def id_at(time_ms: int, sequence: int = 0) -> bytes:
    return time_ms.to_bytes(8) + sequence.to_bytes(2) + bytes(10)


@dataclass
class GroupInMemory:
    """A group that somebody reports a position to. `broken`: what each report raises."""

    mode: str | None = None
    positions: list[bytes] = field(default_factory=list)
    broken: Exception | None = None

    def create(self, *, mode: str) -> None:
        self.mode = mode

    def report_position(self, up_to: bytes, *, by: str) -> None:
        assert by == "spark"
        if self.broken is not None:
            raise self.broken
        if self.mode is None:
            raise GroupNotFoundError("no group")
        self.positions.append(up_to)


@dataclass
class TopicInMemory:
    """`held` entries at the end of the log are not decided yet. `steps_max` bounds what one call of advance looks at."""

    name: str = "default:orders"
    generation: int = 1
    tasks_property: int | None = None
    entries: list[Entry] = field(default_factory=list)
    held: int = 0
    expired_before: bytes | None = None
    steps_max: int = 1_000_000
    missing: bool = False
    calls: list[str] = field(default_factory=list)
    groups: dict[str, GroupInMemory] = field(default_factory=dict)

    def publish(self, *payloads: bytes, at_ms: int | None = None) -> None:
        for payload in payloads:
            self.entries.append(Entry(self._next(at_ms), payload))

    def mark(self, task: str, task_count: int, event_time_ms: int | None, at_ms: int | None = None) -> None:
        """A watermark, or an end of stream where there is no event time."""
        self.entries.append(Entry(self._next(at_ms), marker=Marker(task, task_count, event_time_ms)))

    def stable_end(self, isolation: str = "committed") -> StableEnd:
        self._called("stable_end")
        decided = self._decided(isolation)
        return StableEnd(decided[-1].id if decided else None, self.generation)

    def advance(self, after, *, messages_max=None, bytes_max=None, through=None, isolation="committed"):
        self._called("advance")
        rows = size = 0
        state = NOTHING_KNOWN
        reached, at_end = after, True
        for looked, entry in enumerate(self._between(after, through, isolation)):
            if looked >= self.steps_max:
                at_end = False
                break
            if entry.marker is not None:
                state = apply(state, entry.marker, int.from_bytes(entry.id[:8]))
            elif (messages_max is not None and rows >= messages_max) or (
                bytes_max is not None and rows and size + len(entry.payload) > bytes_max
            ):
                at_end = False
                break
            else:
                rows, size = rows + 1, size + len(entry.payload)
            reached = entry.id
        expired = self.expired_before is not None and after is not None and after < self.expired_before
        return Advance(
            through=reached,
            messages=rows,
            bytes=size,
            at_end=at_end,
            generation=self.generation,
            expired=expired,
            task_count=state.task_count,
            tasks_property=self.tasks_property,
            tasks=tuple(TaskInfo(name, *task) for name, task in state.tasks.items()),
        )

    def splits(self, after, through, count, isolation="committed"):
        self._called("splits")
        rows = [entry for entry in self._between(after, through) if entry.marker is None]
        each = max(1, -(-len(rows) // count))
        found, start = [], after
        for place in range(0, len(rows), each):
            part = rows[place : place + each]
            stop = through if place + each >= len(rows) else part[-1].id
            found.append(Split(start, stop, len(part), sum(len(entry.payload) for entry in part)))
            start = stop
        return found or [Split(after, through, 0, 0)]

    def read(self, after, through, generation) -> list[bytes]:
        """The payloads of a range."""
        if generation != self.generation:
            raise GenerationError(f"topic {self.name} is of generation {self.generation}, not {generation}")
        return [entry.payload for entry in self._between(after, through) if entry.marker is None]

    def group(self, name: str) -> GroupInMemory:
        return self.groups.setdefault(name, GroupInMemory())

    def _between(self, after, through, isolation="committed") -> list[Entry]:
        return [
            entry
            for entry in self._decided(isolation)
            if (after is None or entry.id > after) and (through is None or entry.id <= through)
        ]

    def _decided(self, isolation: str) -> list[Entry]:
        return self.entries[: len(self.entries) - (self.held if isolation == "committed" else 0)]

    def _next(self, at_ms: int | None) -> bytes:
        last = self.entries[-1].id if self.entries else id_at(1_000)
        time_ms = int.from_bytes(last[:8]) if at_ms is None else at_ms
        same = time_ms == int.from_bytes(last[:8])
        return id_at(time_ms, int.from_bytes(last[8:10]) + 1 if same else 0)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.missing:
            raise TopicNotFoundError(f"topic {self.name} not found")


class ServerInMemory:
    """A client, as far as readers use one."""

    def __init__(self, *topics: TopicInMemory, instance: str = INSTANCE) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.admin = SimpleNamespace(store=lambda: SimpleNamespace(instance=instance))

    def topic(self, name: str, *, namespace: str) -> TopicInMemory:
        return self.topics[f"{namespace}:{name}"]
