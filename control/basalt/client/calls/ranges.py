"""Plans for ranges of a topic: its stable end, how far a reader may go, and a range in parts.

A range is (after, through]: ids of 20 bytes, the first exclusive (None: from the oldest message), the second inclusive.
Up to the stable end, it reads the same for ever, but for the topic's TTL.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from basalt.api.bodies import json
from basalt.api.bodies.messages import Advance, Split, Splits, StableEnd
from basalt.client.plans.calls import Answer, Call, Effect, Steps, ask, json_of
from basalt.client.plans.scopes import TopicScope

RangeIsolation: TypeAlias = Literal["committed", "uncommitted"]


def stable_end(scope: TopicScope, isolation: RangeIsolation = "committed") -> Steps[StableEnd]:
    """Up to where the topic reads the same for ever. For `uncommitted` readers: behind the newest message."""
    what, query = f"ask for the stable end of {scope}", (("isolation", isolation),)
    return (yield from ask(Call(what, "GET", scope.path("stable-end"), json_of(StableEnd), Effect.NONE, query=query)))


def advance(
    scope: TopicScope,
    after: bytes | None,
    *,
    through: bytes | None = None,
    messages_max: int | None = None,
    bytes_max: int | None = None,
    isolation: RangeIsolation = "committed",
) -> Steps[Advance]:
    """The longest run behind `after` with so many messages, or bytes, at most; its first message is always a part of it.

    It goes no further than `through`. An answer may hold less than the limits allow and not be at the end, where much is
    read for the first time: go on from there.
    """
    query: list[tuple[str, str]] = [("isolation", isolation)]
    query += [(name, given.hex()) for name, given in (("after", after), ("through", through)) if given is not None]
    query += [
        (name, str(most)) for name, most in (("messagesMax", messages_max), ("bytesMax", bytes_max)) if most is not None
    ]
    what = f"ask how far a reader may go in {scope}"
    return (yield from ask(Call(what, "GET", scope.path("advance"), json_of(Advance), Effect.NONE, query=tuple(query))))


def splits(
    scope: TopicScope,
    after: bytes | None,
    through: bytes,
    count: int,
    *,
    isolation: RangeIsolation = "committed",
) -> Steps[list[Split]]:
    """The range in at most `count` parts of about the same size, in the order of the log; none when it is empty."""
    query = [("through", through.hex()), ("n", str(count)), ("isolation", isolation)]
    query += [] if after is None else [("after", after.hex())]
    what = f"split a range of {scope}"
    return (yield from ask(Call(what, "GET", scope.path("splits"), _splits, Effect.NONE, query=tuple(query))))


def _splits(answer: Answer) -> list[Split]:
    return json.decode(answer.body, Splits).splits
