"""Plans for topics: their properties, figures and hidden messages; their markers; and the ranges in which they are read.

Routes: docs/reference/http-api.md; markers: docs/formats/markers.md. A range is (after, through]: ids of 20 bytes, the first
exclusive (None: from the oldest message), the second inclusive. Up to the stable end, it reads the same for ever, but for the
topic's TTL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

from msgspec import Struct, ValidationError
from msgspec.structs import replace as replaced

from basalt.api.bodies import json
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.ranges import (
    Advance,
    Holder,
    MarkerRequest,
    MarkersInfo,
    PeekedMessage,
    Split,
    Splits,
    StableEnd,
)
from basalt.api.bodies.topics import TopicDeletion, TopicInfo, TopicPlan, TopicStats, TopicTruncation, TruncateRequest
from basalt.api.markers import Marker, malformed
from basalt.api.topic_properties import TopicProperties, properties_sent
from basalt.client.calls.messages import Isolation, PositionLike, position
from basalt.client.plans import (
    Answer,
    Call,
    ClientScope,
    Effect,
    Query,
    Steps,
    TopicScope,
    act_of,
    ask,
    get_json,
    json_of,
    nothing,
    query_of,
    send_json,
)
from basalt.errors import InputError


class _Named(Struct):
    id: HexMessageId


class _Begins(Struct):
    """The part of a page of records that says where it begins."""

    records: list[_Named]


WAIT_MS = 20_000  # a call that waits; well below the time-outs of proxies, and cheap to repeat


def create(
    scope: ClientScope,
    /,
    name: str,
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    reason: str = "",
    by: str = "",
    **properties: Unpack[TopicProperties],
) -> Steps[TopicInfo]:
    """Create a topic. `ttl` is in seconds, a duration ("1d", a timedelta) or "forever"; the default is seven days.

    The properties: `TopicProperties`. `labels` are a user's own, kept as given: "team" is the property `label.team`.

    `TopicExistsError` when there is one of this name. Not repeated when its answer is lost: `UnknownOutcomeError` then. With a
    `reason`, the audit has a line about it.
    """
    topic, body = scope.topic(name, namespace=namespace), properties_sent(properties, labels)
    what, query = f"create topic {topic}", act_of(reason, by)
    return send_json("PUT", what, topic.path(), _topic_of(name), Effect.ONCE, body, query=query)


def would_create(
    scope: ClientScope,
    /,
    name: str,
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    **properties: Unpack[TopicProperties],
) -> Steps[TopicPlan]:
    """The topic that `create` would make; nothing is made. Refuses as that does."""
    topic, body = scope.topic(name, namespace=namespace), properties_sent(properties, labels)
    what, query = f"try to create topic {topic}", act_of("", "", dry_run=True)
    return send_json("PUT", what, topic.path(), json_of(TopicPlan), Effect.NONE, body, query=query)


def update(
    scope: ClientScope,
    /,
    name: str,
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    unset: Sequence[str] = (),
    version: str | None = None,
    reason: str = "",
    by: str = "",
    **properties: Unpack[TopicProperties],
) -> Steps[TopicInfo]:
    """Change properties of a topic; those left out stay as they are, those in `unset` go back to their defaults.

    A new TTL holds for old messages too. With the `version` that was read, nothing is changed where the topic has another
    one by then: `TopicChangedError`. The audit keeps who and why.
    """
    topic, body = scope.topic(name, namespace=namespace), _changes(unset, properties, labels)
    what, path, query = f"update topic {topic}", topic.path("properties"), act_of(reason, by)
    return send_json("PATCH", what, path, _topic_of(name), _effect(version), body, query=query, if_match=_etag(version))


def would_update(
    scope: ClientScope,
    /,
    name: str,
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    unset: Sequence[str] = (),
    **properties: Unpack[TopicProperties],
) -> Steps[TopicPlan]:
    """The properties as they are, and as `update` would make them; nothing is changed. Refuses as that does."""
    topic, body = scope.topic(name, namespace=namespace), _changes(unset, properties, labels)
    what, path, query = f"try to update topic {topic}", topic.path("properties"), act_of("", "", dry_run=True)
    return send_json("PATCH", what, path, json_of(TopicPlan), Effect.NONE, body, query=query)


def _changes(
    unset: Sequence[str], properties: Mapping[str, Any], labels: Mapping[str, str] | None
) -> dict[str, str | int | None]:
    if isinstance(unset, str):
        raise TypeError(f"unset is a list of names, unset=[{unset!r}]")
    return {**dict.fromkeys(unset), **properties_sent(properties, labels)}


def replace(
    scope: ClientScope,
    /,
    name: str,
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    version: str | None = None,
    **properties: Unpack[TopicProperties],
) -> Steps[TopicInfo]:
    """Replace all properties of a topic; those left out go back to their defaults. A new TTL holds for old messages too.

    With the `version` that was read, nothing is changed where the topic has another one by then: `TopicChangedError`.
    """
    topic, body = scope.topic(name, namespace=namespace), properties_sent(properties, labels)
    what, path = f"replace the properties of topic {topic}", topic.path("properties")
    return send_json("PUT", what, path, _topic_of(name), _effect(version), body, if_match=_etag(version))


def get(scope: ClientScope, name: str, *, namespace: str | None = None) -> Steps[TopicInfo]:
    """A topic's properties. `TopicNotFoundError` when there is none of this name."""
    topic = scope.topic(name, namespace=namespace)
    return ask(Call(f"get topic {topic}", "GET", topic.path(), _topic_of(name), Effect.NONE))


def names(scope: ClientScope, *, namespace: str | None = None) -> Steps[list[str]]:
    """The names of all topics of a namespace, sorted."""
    return get_json(list[str], f"list topics of {namespace or scope.namespace}", scope.path("topics", namespace))


def delete(
    scope: ClientScope,
    name: str,
    *,
    namespace: str | None = None,
    dry_run: bool = False,
    reason: str = "",
    by: str = "",
) -> Steps[TopicDeletion]:
    """Delete a topic with all its messages; a dry run counts them. The audit keeps who and why.

    Not repeated when its answer is lost, for the topic may have been created again by then.
    """
    topic, query = scope.topic(name, namespace=namespace), act_of(reason, by, dry_run=dry_run)
    effect = Effect.NONE if dry_run else Effect.ONCE
    return ask(Call(f"delete topic {topic}", "DELETE", topic.path(), json_of(TopicDeletion), effect, query))


def truncate(
    scope: ClientScope,
    name: str,
    before_ms: int,
    *,
    namespace: str | None = None,
    generation: int | None = None,
    dry_run: bool = False,
    reason: str = "",
    by: str = "",
) -> Steps[TopicTruncation]:
    """Put what was published before this time (ms since 1970) out of every reader's reach, for ever. The audit keeps who and why.

    An earlier time than the last one changes nothing. `ConflictError` when an open transaction has published before it,
    `GenerationError` when the topic is of another generation than the one given.
    """
    topic, body = scope.topic(name, namespace=namespace), TruncateRequest(before_ms, generation)
    effect = Effect.NONE if dry_run else Effect.REPEATABLE  # the time only rises
    query = act_of(reason, by, dry_run=dry_run)
    what, path = f"truncate topic {topic}", topic.path("truncate")
    return send_json("POST", what, path, json_of(TopicTruncation), effect, body, query=query)


def stats(scope: TopicScope) -> Steps[TopicStats]:
    """The topic's figures."""
    return get_json(TopicStats, f"show {scope}", scope.path("stats"))


def message(scope: TopicScope, message_id: bytes | str) -> Steps[PeekedMessage]:
    """One message by its id (20 bytes, or 40 hex digits), whatever became of it. `MessageNotFoundError`: there is none."""
    hex_id = message_id if isinstance(message_id, str) else message_id.hex()
    return get_json(PeekedMessage, f"show message {hex_id} of {scope}", scope.path("messages", hex_id))


def peek(
    scope: TopicScope,
    start: PositionLike = None,
    *,
    inclusive: bool = True,
    back: int | None = None,
    limit: int | None = None,
) -> Steps[list[PeekedMessage]]:
    """Messages from a position on, or from `back` messages before it, also those that no reader of committed messages sees.

    Each has its state. `peek("end", back=20)`: the newest 20.
    """
    query = (*_from(scope, start), *query_of(inclusive=inclusive, back=back, limit=limit))
    return get_json(list[PeekedMessage], f"peek at {scope}", scope.path("messages"), query)


def back(scope: TopicScope, start: PositionLike = None, count: int = 1) -> Steps[bytes | None]:
    """The id of the message from which on `count` messages lie before a position, whatever became of them: `back("end", 20)`.

    Of the first one there is, where they are fewer; None where there is none at all.
    """
    query = (*_from(scope, start), *query_of(back=count, limit=1, isolation="uncommitted"))
    page = yield from get_json(_Begins, f"go back in {scope}", scope.path("records"), query)
    return bytes(page.records[0].id) if page.records else None


def holder(scope: TopicScope, start: PositionLike = None) -> Steps[Holder]:
    """The transaction for which readers of committed messages wait, from a position on."""
    return get_json(Holder, f"show who holds readers of {scope}", scope.path("holder"), _from(scope, start))


def watermark(scope: TopicScope, task: str, event_time_ms: int, task_count: int = 1) -> Steps[None]:
    """Say that a task's event time has come so far. `task_count` tasks write this topic, and it is as far as the slowest.

    Saying less than before changes nothing. `MarkerRefusedError`: the task has ended, or is none of those expected.
    """
    return _emit(scope, marked(task, task_count, event_time_ms))


def end(scope: TopicScope, task: str, task_count: int = 1) -> Steps[None]:
    """Say that nothing more comes from a task. The topic has ended once all of its `task_count` tasks have."""
    return _emit(scope, marked(task, task_count))


def markers(scope: TopicScope) -> Steps[MarkersInfo]:
    """The topic's watermark, whether it has ended, and what each task has said."""
    return markers_now(scope)


def markers_now(scope: TopicScope, wait_ms: int = 0, *, patient: bool = False) -> Steps[MarkersInfo]:
    """As `markers`; with `wait_ms` once the topic has ended, or then."""
    query = query_of(until="ended" if wait_ms else None)
    what, path, parse = f"ask for the markers of {scope}", scope.path("markers"), json_of(MarkersInfo)
    return ask(Call(what, "GET", path, parse, Effect.NONE, query, wait_ms=wait_ms, patient=patient))


def wait_until_ended(scope: TopicScope, timeout_ms: int | None = None) -> Steps[bool]:
    """Return once the topic has ended; False when it has not within `timeout_ms`.

    None: wait as long as it takes, also for a server that cannot be reached.
    """
    deadline_ms = None if timeout_ms is None else scope.now_ms() + timeout_ms
    while True:
        left_ms = WAIT_MS if deadline_ms is None else max(0, min(WAIT_MS, deadline_ms - scope.now_ms()))
        if (yield from markers_now(scope, left_ms, patient=deadline_ms is None)).ended:
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


def stable_end(scope: TopicScope, isolation: Isolation = "committed") -> Steps[StableEnd]:
    """Up to where the topic reads the same for ever. For `uncommitted` readers: behind the newest message."""
    what, path = f"ask for the stable end of {scope}", scope.path("stable-end")
    return get_json(StableEnd, what, path, query_of(isolation=isolation))


def advance(
    scope: TopicScope,
    after: bytes | None,
    *,
    through: bytes | None = None,
    messages_max: int | None = None,
    bytes_max: int | None = None,
    isolation: Isolation = "committed",
) -> Steps[Advance]:
    """The longest run behind `after` with so many messages, or bytes, at most; its first message is always a part of it.

    It goes no further than `through`. An answer may hold less than the limits allow and not be at the end, where much is
    read for the first time: go on from there.
    """
    query = query_of(isolation=isolation, after=after, through=through, messagesMax=messages_max, bytesMax=bytes_max)
    return get_json(Advance, f"ask how far a reader may go in {scope}", scope.path("advance"), query)


def splits(
    scope: TopicScope, after: bytes | None, through: bytes, count: int, *, isolation: Isolation = "committed"
) -> Steps[list[Split]]:
    """The range in at most `count` parts of about the same size, in the order of the log; none when it is empty."""
    query = query_of(through=through, n=count, isolation=isolation, after=after)
    return (yield from get_json(Splits, f"split a range of {scope}", scope.path("splits"), query)).splits


def _etag(version: str | None) -> str | None:
    return None if version is None else f'"{version}"'


def _effect(version: str | None) -> Effect:
    """The change may be sent again only without a version: one with it has changed that when it took effect."""
    return Effect.REPEATABLE if version is None else Effect.ONCE


def _topic_of(name: str) -> Callable[[Answer], TopicInfo]:
    def parse(answer: Answer) -> TopicInfo:
        version = answer.headers.get("etag", "").strip('"')
        try:
            return replaced(json.decode(answer.body, TopicInfo), version=version)
        except ValidationError:  # a server with http.flat_topics answers the properties alone
            return TopicInfo(name, json.decode(answer.body, dict[str, str]), version)

    return parse


def _from(scope: TopicScope, start: PositionLike) -> Query:
    return (("from", position(start, scope.now_ms()).text),)


def _emit(scope: TopicScope, marker: Marker) -> Steps[None]:
    kind: Literal["watermark", "end_of_stream"] = "end_of_stream" if marker.ends else "watermark"
    body = MarkerRequest(marker.task, kind, marker.task_count, marker.event_time_ms)
    what = f"emit a marker of task {marker.task!r} to {scope}"
    # A marker that comes twice counts once, so a lost answer is no reason to ask its caller.
    return send_json("POST", what, scope.path("markers"), nothing, Effect.REPEATABLE, body)
