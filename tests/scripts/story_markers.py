"""Markers as stories write them: `a/2 700` is a watermark of task a, one of two, and `a/2 end` is its end."""

from __future__ import annotations

from basalt.api.bodies.messages import WorkMarker
from basalt.api.markers import Marker
from basalt.messaging.markers import MarkerFacts


def marker(task: str, said: str) -> Marker:
    """The marker."""
    name, _, count = task.partition("/")
    return Marker(name, int(count or "1"), None if said == "end" else int(said))


def work_marker(topic: str, task: str, said: str) -> WorkMarker:
    """The same as part of a commit's work."""
    made = marker(task, said)
    return WorkMarker("shop", topic, made.task, made.task_count, made.kind, made.event_time_ms)


def markers_shown(facts: MarkerFacts) -> list[str]:
    """What a topic's markers say."""
    known = "unknown" if facts.watermark_ms is None else str(facts.watermark_ms)
    tasks = ", ".join(
        f"{name} {'ended' if task.ended else task.watermark_ms}" for name, task in sorted(facts.state.tasks.items())
    )
    return [f"watermark {known}{', ended' if facts.ended else ''} ({tasks or 'no task has spoken'})"]
