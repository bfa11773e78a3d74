"""Plans for topics: create, update, replace, get, list, delete, truncate; a topic's figures and hidden messages. Routes: docs/reference/http-api.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from basalt.api.bodies.messages import Holder, PeekedMessage
from basalt.api.bodies.topics import TopicInfo, TopicStats, TopicTruncation, TruncateRequest
from basalt.client.calls.admin import act
from basalt.client.calls.positions import PositionLike, position
from basalt.client.plans.calls import JSON, Answer, Call, Effect, Steps, ask, json_of, nothing
from basalt.client.plans.scopes import ClientScope, TopicScope

PropertyValue: TypeAlias = str | int


def create(
    scope: ClientScope,
    /,
    name: str,
    *,
    ttl: int | None = None,
    spread: int | None = None,
    on_invalid: str | None = None,
    namespace: str | None = None,
    **others: PropertyValue,
) -> Steps[TopicInfo]:
    """Create a topic. `ttl` is in seconds (default: seven days); other properties are kept as given.

    `TopicExistsError` when there is one of this name. Not repeated when its answer is lost: `UnknownOutcomeError` then.
    """
    body = _properties(ttl, spread, on_invalid, others)
    what = f"create topic {namespace or scope.namespace}:{name}"
    path = scope.topics_path(namespace, name)
    return (yield from ask(_call("PUT", what, path, body, Effect.ONCE, name)))


def update(
    scope: ClientScope,
    /,
    name: str,
    *,
    ttl: int | None = None,
    spread: int | None = None,
    on_invalid: str | None = None,
    namespace: str | None = None,
    unset: Sequence[str] = (),
    **others: PropertyValue,
) -> Steps[TopicInfo]:
    """Change properties of a topic; those left out stay as they are, those in `unset` go back to their defaults.

    A new TTL holds for old messages too. With the `generation` that was read, another one is refused:
    `InvalidPropertyError`.
    """
    body = _properties(ttl, spread, on_invalid, {**dict.fromkeys(unset), **others})
    what = f"update topic {namespace or scope.namespace}:{name}"
    path = scope.topics_path(namespace, name, "properties")
    return (yield from ask(_call("PATCH", what, path, body, Effect.REPEATABLE, name)))


def replace(
    scope: ClientScope,
    /,
    name: str,
    *,
    ttl: int | None = None,
    spread: int | None = None,
    on_invalid: str | None = None,
    namespace: str | None = None,
    **others: PropertyValue,
) -> Steps[TopicInfo]:
    """Replace all properties of a topic; those left out go back to their defaults. A new TTL holds for old messages too."""
    body = _properties(ttl, spread, on_invalid, others)
    what = f"replace the properties of topic {namespace or scope.namespace}:{name}"
    path = scope.topics_path(namespace, name, "properties")
    return (yield from ask(_call("PUT", what, path, body, Effect.REPEATABLE, name)))


def get(scope: ClientScope, name: str, *, namespace: str | None = None) -> Steps[TopicInfo]:
    """A topic's properties. `TopicNotFoundError` when there is none of this name."""
    what = f"get topic {namespace or scope.namespace}:{name}"
    path = scope.topics_path(namespace, name)
    return (yield from ask(Call(what, "GET", path, lambda answer: _topic(answer, name), Effect.NONE)))


def names(scope: ClientScope, *, namespace: str | None = None) -> Steps[list[str]]:
    """The names of all topics of a namespace, sorted."""
    what = f"list topics of {namespace or scope.namespace}"
    return (yield from ask(Call(what, "GET", scope.topics_path(namespace), json_of(list[str]), Effect.NONE)))


def delete(scope: ClientScope, name: str, *, namespace: str | None = None) -> Steps[None]:
    """Delete a topic with all its messages.

    Not repeated when its answer is lost, for the topic may have been created again by then.
    """
    what = f"delete topic {namespace or scope.namespace}:{name}"
    path = scope.topics_path(namespace, name)
    return (yield from ask(Call(what, "DELETE", path, nothing, Effect.ONCE)))


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
    call = Call(
        f"truncate topic {namespace or scope.namespace}:{name}",
        "POST",
        scope.topics_path(namespace, name, "truncate"),
        lambda answer: msgspec.json.decode(answer.body, type=TopicTruncation),
        Effect.NONE if dry_run else Effect.REPEATABLE,  # the time only rises
        query=act(reason, by, dry_run),
        body=msgspec.json.encode(TruncateRequest(before_ms, generation)),
        content_type=JSON,
    )
    return (yield from ask(call))


def _call(method: str, what: str, path: str, body: bytes, effect: Effect, name: str) -> Call[TopicInfo]:
    return Call(what, method, path, lambda answer: _topic(answer, name), effect, body=body, content_type=JSON)


def _properties(
    ttl: int | None, spread: int | None, on_invalid: str | None, others: Mapping[str, PropertyValue | None]
) -> bytes:
    named = {"ttl": ttl, "spread": spread, "onInvalid": on_invalid}
    return msgspec.json.encode({**others, **{name: value for name, value in named.items() if value is not None}})


def _topic(answer: Answer, name: str) -> TopicInfo:
    # A server with http.flat_topics answers the properties alone.
    try:
        return msgspec.json.decode(answer.body, type=TopicInfo)
    except msgspec.ValidationError:
        return TopicInfo(name, msgspec.json.decode(answer.body, type=dict[str, str]))


def stats(scope: TopicScope) -> Steps[TopicStats]:
    """The topic's figures."""
    return (yield from ask(Call(f"show {scope}", "GET", scope.path("stats"), json_of(TopicStats), Effect.NONE)))


def message(scope: TopicScope, message_id: bytes | str) -> Steps[PeekedMessage]:
    """One message by its id (20 bytes, or 40 hex digits), whatever became of it. `MessageNotFoundError`: there is none."""
    hex_id = message_id if isinstance(message_id, str) else message_id.hex()
    path = scope.path("messages", hex_id)
    return (yield from ask(Call(f"show message {hex_id} of {scope}", "GET", path, json_of(PeekedMessage), Effect.NONE)))


def peek(
    scope: TopicScope, start: PositionLike = None, *, inclusive: bool = True, limit: int | None = None
) -> Steps[list[PeekedMessage]]:
    """Messages from a position on, also those that no reader of committed messages sees, each with its state."""
    query = [("from", position(start, scope.now_ms()).text), ("inclusive", "true" if inclusive else "false")]
    if limit is not None:
        query.append(("limit", str(limit)))
    path = scope.path("messages")
    return (
        yield from ask(
            Call(f"peek at {scope}", "GET", path, json_of(list[PeekedMessage]), Effect.NONE, query=tuple(query))
        )
    )


def holder(scope: TopicScope, start: PositionLike = None) -> Steps[Holder]:
    """Which transaction makes readers of committed messages wait, from a position on."""
    query = (("from", position(start, scope.now_ms()).text),)
    what = f"show who holds readers of {scope}"
    return (yield from ask(Call(what, "GET", scope.path("holder"), json_of(Holder), Effect.NONE, query=query)))
