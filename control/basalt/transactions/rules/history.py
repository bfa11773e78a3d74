"""A queue that is copied cheaply: copies share its pages. A log snapshot copies 100,000 request ids on the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

PAGE_ITEMS = 1_024  # a copy copies less than twice as many items, in some microseconds

T = TypeVar("T")


class History(Generic[T]):  # noqa: PLW1641  # it changes, so it has no hash
    """Items, oldest first: new ones come last, the first ones leave."""

    __slots__ = ("_head", "_pages", "_tail")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._head: deque[T] = deque()  # what is left of the oldest page
        self._pages: deque[tuple[T, ...]] = deque()  # full ones
        self._tail: list[T] = []
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return len(self._head) + len(self._pages) * PAGE_ITEMS + len(self._tail)

    def __iter__(self) -> Iterator[T]:
        return chain(self._head, chain.from_iterable(self._pages), self._tail)

    def __reversed__(self) -> Iterator[T]:
        return chain.from_iterable(map(reversed, chain([self._tail], reversed(self._pages), [self._head])))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History | tuple) and tuple(self) == tuple(other)

    @property
    def first(self) -> T | None:
        """The oldest item; None when there is none."""
        oldest = self._head or (self._pages[0] if self._pages else self._tail)
        return oldest[0] if oldest else None

    def append(self, item: T) -> None:
        tail = self._tail
        tail.append(item)
        if len(tail) == PAGE_ITEMS:
            self._pages.append(tuple(tail))
            tail.clear()

    def popleft(self) -> T:
        """Remove the first item, and return it."""
        if not self._head:
            if self._pages:
                self._head.extend(self._pages.popleft())
            else:
                self._head.extend(self._tail)
                self._tail.clear()
        return self._head.popleft()

    def replace(self, before: T, item: T) -> None:
        """Put an item in the place of another one; no copy notices. Costs the way to it from the newest."""
        place = next(index for index, each in enumerate(reversed(self)) if each is before)
        if place < len(self._tail):
            self._tail[-1 - place] = item
            return
        page, place = divmod(place - len(self._tail), PAGE_ITEMS)
        if page < len(self._pages):
            items = list(self._pages[-1 - page])
            items[-1 - place] = item
            self._pages[-1 - page] = tuple(items)
        else:
            self._head[-1 - place] = item

    def copy(self) -> History[T]:
        """A history of the same items; later changes of either do not show in the other."""
        copy = History[T]()
        copy._head, copy._pages, copy._tail = self._head.copy(), self._pages.copy(), self._tail.copy()
        return copy


Items: TypeAlias = History[T] | tuple[T, ...]
