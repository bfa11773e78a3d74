"""Plans for ranges of a topic: its stable end, how far a reader may go, and a range in parts.

A range is (after, through]: ids of 20 bytes, the first exclusive (None: from the oldest message), the second inclusive.
Up to the stable end, it reads the same for ever, but for the topic's TTL.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from basalt.api.markers.reconcile import MarkerState, TaskState
from basalt.client.plans.calls import Answer, Call, Effect, Steps, ask
from basalt.client.plans.scopes import TopicScope

RangeIsolation: TypeAlias = Literal["committed", "uncommitted"]


class StableEnd(NamedTuple):
    """The last id at or below which nothing can still appear or change who sees it; None: nothing is there yet."""

    id: bytes | None
    generation: int


class Advance(NamedTuple):
    """A run of a topic behind an id, up to `through`: how many messages, and bytes of their payloads.

    `at_end`: there is nothing more up to the stable end, or the bound that was given. `expired`: messages behind `after`
    were lost to the topic's TTL. `tasks` and `task_count` are what the markers in this run say by themselves (`said`, to be
    merged with what was known before); `tasks_property` is the topic's own count of tasks.
    """

    through: bytes | None
    rows: int
    bytes: int
    at_end: bool
    generation: int
    expired: bool
    task_count: int | None
    tasks_property: int | None
    tasks: dict[str, TaskState]

    @property
    def said(self) -> MarkerState:
        """The markers of this run, for `basalt.api.markers.reconcile.merged`."""
        return MarkerState(self.task_count, self.tasks)


class Split(NamedTuple):
    """A part of a range, and how many messages and bytes of payloads are in it."""

    after: bytes | None
    through: bytes
    rows: int
    bytes: int


class _StableEnd(msgspec.Struct):
    id: str | None
    generation: int


class _Advance(msgspec.Struct, rename="camel"):
    through: str | None
    rows: int
    bytes: int
    at_end: bool
    generation: int
    expired: bool
    task_count: int | None
    tasks_property: int | None
    tasks: dict[str, tuple[int | None, bool, int]]


class _Split(msgspec.Struct):
    after: str | None
    through: str
    rows: int
    bytes: int


class _Splits(msgspec.Struct):
    splits: list[_Split]
    generation: int


def stable_end(scope: TopicScope, isolation: RangeIsolation = "committed") -> Steps[StableEnd]:
    """Up to where the topic reads the same for ever. For `uncommitted` readers: behind the newest message."""
    what, query = f"ask for the stable end of {scope}", (("isolation", isolation),)
    return (yield from ask(Call(what, "GET", scope.path("stable-end"), _stable_end, Effect.NONE, query=query)))


def advance(
    scope: TopicScope,
    after: bytes | None,
    *,
    through: bytes | None = None,
    rows_max: int | None = None,
    bytes_max: int | None = None,
    isolation: RangeIsolation = "committed",
) -> Steps[Advance]:
    """The longest run behind `after` with so many messages, or bytes, at most; its first message is always a part of it.

    It goes no further than `through`. An answer may hold less than the limits allow and not be at the end, where much is
    read for the first time: go on from there.
    """
    query: list[tuple[str, str]] = [("isolation", isolation)]
    query += [(name, given.hex()) for name, given in (("after", after), ("through", through)) if given is not None]
    query += [(name, str(most)) for name, most in (("maxRows", rows_max), ("maxBytes", bytes_max)) if most is not None]
    what = f"ask how far a reader may go in {scope}"
    return (yield from ask(Call(what, "GET", scope.path("advance"), _advance, Effect.NONE, query=tuple(query))))


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


def _stable_end(answer: Answer) -> StableEnd:
    found = msgspec.json.decode(answer.body, type=_StableEnd)
    return StableEnd(_id(found.id), found.generation)


def _advance(answer: Answer) -> Advance:
    found = msgspec.json.decode(answer.body, type=_Advance)
    tasks = {name: TaskState(*said) for name, said in found.tasks.items()}
    return Advance(
        _id(found.through), found.rows, found.bytes, found.at_end, found.generation, found.expired,
        found.task_count, found.tasks_property, tasks,
    )  # fmt: skip


def _splits(answer: Answer) -> list[Split]:
    found = msgspec.json.decode(answer.body, type=_Splits)
    return [Split(_id(part.after), bytes.fromhex(part.through), part.rows, part.bytes) for part in found.splits]


def _id(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
