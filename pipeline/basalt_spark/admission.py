"""How several topics share what one micro-batch may take in. Pure.

Each gets the same share; what one leaves, the others share again. Where there is less than one message for each, the
topics that are furthest behind in time come first. So none is starved, and the same state gives the same shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from basalt_spark.topic_name import TopicName

Waiting: TypeAlias = tuple[TopicName, bytes | None]  # a topic, and the id up to which it was read


class Share(NamedTuple):
    """How much one topic may take in; None: all there is."""

    rows: int | None
    bytes: int | None


@dataclass(slots=True)
class Budget:
    """What is left of a micro-batch; None: no limit."""

    rows: int | None
    bytes: int | None

    @property
    def spent(self) -> bool:
        """Nothing more may be taken in."""
        return (self.rows is not None and self.rows <= 0) or (self.bytes is not None and self.bytes <= 0)

    def take(self, rows: int, size_bytes: int) -> None:
        """So much was taken in."""
        if self.rows is not None:
            self.rows -= rows
        if self.bytes is not None:
            self.bytes -= size_bytes

    def shares(self, waiting: Iterable[Waiting]) -> list[tuple[TopicName, Share]]:
        """What each of these may take now. Some may get nothing."""
        order = [topic for topic, _ in sorted(waiting, key=lambda one: (one[1] or b"", one[0]))]
        rows, sizes = _parts(self.rows, len(order)), _parts(self.bytes, len(order))
        shares = zip(order, map(Share, rows, sizes), strict=True)
        return [(topic, share) for topic, share in shares if share.rows != 0 and share.bytes != 0]


def _parts(whole: int | None, count: int) -> list[int | None]:
    if whole is None:
        return [None] * count
    each, rest = divmod(max(whole, 0), max(count, 1))
    return [each + (place < rest) for place in range(count)]
