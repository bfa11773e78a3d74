"""Plans that show a topic as operators see it: its figures, and messages whatever became of them."""

from __future__ import annotations

import msgspec

from basalt.api.bodies.messages import Holder, PeekedMessage
from basalt.api.bodies.topics import TopicStats
from basalt.client.calls.positions import PositionLike, position
from basalt.client.plans.calls import Answer, Call, Effect, Steps, ask
from basalt.client.plans.scopes import TopicScope


def stats(scope: TopicScope) -> Steps[TopicStats]:
    """The topic's figures."""
    return (yield from ask(Call(f"show {scope}", "GET", scope.path("stats"), _stats, Effect.NONE)))


def message(scope: TopicScope, message_id: bytes | str) -> Steps[PeekedMessage]:
    """One message by its id (20 bytes, or 40 hex digits), whatever became of it. `MessageNotFoundError`: there is none."""
    hex_id = message_id if isinstance(message_id, str) else message_id.hex()
    path = scope.path("messages", hex_id)
    return (yield from ask(Call(f"show message {hex_id} of {scope}", "GET", path, _peeked, Effect.NONE)))


def peek(
    scope: TopicScope, start: PositionLike = None, *, inclusive: bool = True, limit: int | None = None
) -> Steps[list[PeekedMessage]]:
    """Messages from a position on, also those that no reader of committed messages sees, each with its state."""
    query = [("from", position(start, scope.now_ms()).text), ("inclusive", "true" if inclusive else "false")]
    if limit is not None:
        query.append(("limit", str(limit)))
    path = scope.path("messages")
    return (yield from ask(Call(f"peek at {scope}", "GET", path, _peeked_list, Effect.NONE, query=tuple(query))))


def holder(scope: TopicScope, start: PositionLike = None) -> Steps[Holder]:
    """Which transaction makes readers of committed messages wait, from a position on."""
    query = (("from", position(start, scope.now_ms()).text),)
    what = f"show who holds readers of {scope}"
    return (yield from ask(Call(what, "GET", scope.path("holder"), _holder, Effect.NONE, query=query)))


def _holder(answer: Answer) -> Holder:
    return msgspec.json.decode(answer.body, type=Holder)


def _stats(answer: Answer) -> TopicStats:
    return msgspec.json.decode(answer.body, type=TopicStats)


def _peeked(answer: Answer) -> PeekedMessage:
    return msgspec.json.decode(answer.body, type=PeekedMessage)


def _peeked_list(answer: Answer) -> list[PeekedMessage]:
    return msgspec.json.decode(answer.body, type=list[PeekedMessage])
