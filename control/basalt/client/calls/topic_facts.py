"""Plans that show a topic as operators see it: its figures, and messages whatever became of them."""

from __future__ import annotations

import msgspec

from basalt.client.calls.positions import PositionLike, position
from basalt.client.plans.calls import Answer, Call, Effect, Steps, ask
from basalt.client.plans.scopes import TopicScope


class TopicStats(msgspec.Struct, frozen=True, rename="camel"):
    """A topic's figures. Times are milliseconds since 1970, ids hex; None: there is nothing to have one.

    `publish_rate` is messages per second of late; `exact` is False where the oldest part was estimated;
    `oldest_open_write_pointer` is the transaction at which readers of committed messages wait; messages published before
    `truncated_before_ms` were truncated.
    """

    messages: int
    bytes: int
    exact: bool = True
    oldest_id: str | None = None
    oldest_ms: int | None = None
    newest_id: str | None = None
    newest_ms: int | None = None
    publish_rate: float = 0.0
    stored_bytes: int = 0
    oldest_open_write_pointer: int | None = None
    truncated_before_ms: int | None = msgspec.field(default=None, name="truncatedBefore")


class PeekedHeader(msgspec.Struct, frozen=True, rename="camel"):
    """A header of a record: its value as text, or as bytes where it is none."""

    name: str
    value: str | None = None
    value_base64: bytes | None = None


class PeekedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message and what became of it: `state` is plain, committed, open, rolled back, invalid or expired.

    `payload` and `key` are there where they are UTF-8 text, else `payload_base64` and `key_base64` hold the bytes.
    """

    id: str
    state: str
    kind: str = "user"
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: tuple[PeekedHeader, ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    write_pointer: int | None = None

    @property
    def content(self) -> bytes:
        """The payload's bytes."""
        return self.payload.encode() if self.payload is not None else self.payload_base64 or b""


class Holder(msgspec.Struct, frozen=True, rename="camel"):
    """The transaction that readers of committed messages wait for: its id, where it stops them (an id in hex), its deadline.

    All None: nobody does. `searched_to`: nothing was found up to this id, and there is more; ask again from there.
    """

    held_by: str | None = None
    at: str | None = None
    owner: str | None = None
    expires_at_ms: int | None = msgspec.field(default=None, name="expiresAt")
    searched_to: str | None = None


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
