"""Plans for a topic's markers: emit them, ask what they say, wait for the end. Rules: docs/formats/markers.md."""

from __future__ import annotations

from typing import Literal

import msgspec

from basalt.api.bodies.messages import MarkerRequest, MarkersInfo
from basalt.api.markers import Marker, malformed
from basalt.client.plans.calls import JSON, Call, Effect, Steps, ask, json_of, nothing
from basalt.client.plans.scopes import TopicScope
from basalt.errors import InputError

WAIT_MS = 20_000  # a call that waits; well below the time-outs of proxies, and cheap to repeat


def watermark(scope: TopicScope, task: str, event_time_ms: int, task_count: int = 1) -> Steps[None]:
    """Say that a task's event time has come so far. `task_count` tasks write this topic, and it is as far as the slowest.

    Saying less than before changes nothing. `MarkerRefusedError`: the task has ended, or is none of those expected.
    """
    yield from ask(_emit(scope, marked(task, task_count, event_time_ms)))


def end(scope: TopicScope, task: str, task_count: int = 1) -> Steps[None]:
    """Say that nothing more comes from a task. The topic has ended once all of its `task_count` tasks have."""
    yield from ask(_emit(scope, marked(task, task_count)))


def facts(scope: TopicScope) -> Steps[MarkersInfo]:
    """The topic's watermark, whether it has ended, and what each task has said."""
    return (yield from ask(_facts(scope, 0)))


def wait_until_ended(scope: TopicScope, timeout_ms: int | None = None) -> Steps[bool]:
    """Return once the topic has ended; False when it has not within `timeout_ms` (None: wait as long as it takes)."""
    deadline_ms = None if timeout_ms is None else scope.now_ms() + timeout_ms
    while True:
        left_ms = WAIT_MS if deadline_ms is None else max(0, min(WAIT_MS, deadline_ms - scope.now_ms()))
        if (yield from ask(_facts(scope, left_ms))).ended:
            return True
        if deadline_ms is not None and scope.now_ms() >= deadline_ms:
            return False


def marked(task: str, task_count: int, event_time_ms: int | None = None) -> Marker:
    """The marker; `InputError` when no topic could have it."""
    marker = Marker(task, task_count, event_time_ms)
    refused = malformed(marker)
    if refused is not None:
        raise InputError(refused.what, field=refused.field, hint=refused.hint)
    return marker


def _emit(scope: TopicScope, marker: Marker) -> Call[None]:
    kind: Literal["watermark", "end_of_stream"] = "end_of_stream" if marker.ends else "watermark"
    body = msgspec.json.encode(MarkerRequest(marker.task, kind, marker.task_count, marker.event_time_ms))
    what = f"emit a marker of task {marker.task!r} to {scope}"
    # A marker that comes twice counts once, so a lost answer is no reason to ask its caller.
    return Call(what, "POST", scope.path("markers"), nothing, Effect.REPEATABLE, body=body, content_type=JSON)


def _facts(scope: TopicScope, wait_ms: int) -> Call[MarkersInfo]:
    query = (("until", "ended"),) if wait_ms else ()
    what = f"ask for the markers of {scope}"
    return Call(what, "GET", scope.path("markers"), json_of(MarkersInfo), Effect.NONE, query=query, wait_ms=wait_ms)
