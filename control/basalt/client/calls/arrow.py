"""Plans for messages as Apache Arrow: ranges read, and streams published or stored. Bodies are bytes, for any Arrow library.

Format: docs/formats/arrow.md. This module needs no Arrow library itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from basalt.api.bodies.work import Buffer, PublishResponse
from basalt.api.codecs import json_bodies
from basalt.client.calls.messages import PUBLISHED_UNHEARD, STORED_UNHEARD
from basalt.client.plans.calls import JSON, Answer, Call, Effect, Steps, ask, nothing
from basalt.client.plans.scopes import TopicScope

ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class ArrowPage:
    """A range's messages, or its first ones: an Arrow IPC stream, `pyarrow.ipc.open_stream(page.body)`.

    `next_id` is where to go on, as `after`; None: this is all of the range.
    """

    body: bytes = field(repr=False)
    next_id: bytes | None
    generation: int


def read_range(
    scope: TopicScope,
    after: bytes | None,
    through: bytes,
    *,
    columns: Sequence[str] | None = None,
    bytes_max: int | None = None,
    isolation: Literal["committed", "uncommitted"] = "committed",
    generation: int | None = None,
) -> Steps[ArrowPage]:
    """The messages after one id (None: from the oldest on) and through another, which `stable_end` or `advance` answered.

    The same range is the same rows at every reading, but for messages that expire. `columns`: these alone (None: all).
    An answer ends at about `bytes_max` bytes of payloads. `GenerationError` when the topic is of another generation.
    """
    query = [("through", through.hex()), ("isolation", isolation)]
    if after is not None:
        query.append(("after", after.hex()))
    if columns is not None:
        query.append(("columns", ",".join(columns)))
    if bytes_max is not None:
        query.append(("bytesMax", str(bytes_max)))
    if generation is not None:
        query.append(("generation", str(generation)))
    what = f"read a range of {scope}"
    call = Call(what, "GET", scope.path("range"), _page, Effect.NONE, query=tuple(query), accept=ARROW)
    return (yield from ask(call))


def publish_arrow(
    scope: TopicScope, body: Buffer, *, write_pointer: int | None = None
) -> Steps[PublishResponse | None]:
    """Publish the rows of an Arrow IPC stream: column `value`, and of `key`, `headers`, `event_time`, `ttl_ms` any.

    One request, all or nothing: at most 65,536 rows and what the server takes as a body (10 MiB).
    """
    query = () if write_pointer is None else (("transactionWritePointer", str(write_pointer)),)
    return (
        yield from ask(
            Call(
                f"publish Arrow rows to {scope}",
                "POST",
                scope.path("publish"),
                _response,
                Effect.ONCE,
                query=query,
                body=bytes(body),
                content_type=ARROW,
                accept=JSON,
                lost_hint=PUBLISHED_UNHEARD,
            )
        )
    )


def store_arrow(scope: TopicScope, body: Buffer, write_pointer: int) -> Steps[None]:
    """Store the rows of an Arrow IPC stream aside under a write pointer, as `store` does: its commit publishes them."""
    yield from ask(
        Call(
            f"store Arrow rows for {scope}",
            "POST",
            scope.path("store"),
            nothing,
            Effect.ONCE,
            query=(("transactionWritePointer", str(write_pointer)),),
            body=bytes(body),
            content_type=ARROW,
            lost_hint=STORED_UNHEARD,
        )
    )


def _page(answer: Answer) -> ArrowPage:
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != ARROW:
        raise ValueError("it is no Arrow stream")
    next_id = answer.headers.get("basalt-next")
    return ArrowPage(
        answer.body,
        None if next_id is None else bytes.fromhex(next_id),
        int(answer.headers["basalt-generation"]),
    )


def _response(answer: Answer) -> PublishResponse | None:
    return json_bodies.decode_publish_response(answer.body) if answer.body else None
