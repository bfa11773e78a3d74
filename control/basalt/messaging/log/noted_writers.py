"""The failed writers that retention's notes are about, in memory: operators ask how many there are again and again, and there may be 100,000.

They are read from the store when they are first asked for. From then on each note that becomes durable, and each that is removed, is told here.
Only answers to operators go by it. A prune run, which forgets writers for good, reads the notes themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from basalt.runtime.group_commit import Group

NOTED_WRITERS_MAX = 1_000_000  # some 300 MiB; of more they are read anew for each answer

Names = Mapping[int, Sequence[str]]  # of retention's notes, by the writers that they are about


class NotedWriters:
    """The names of the notes by writer, kept where one process alone writes notes. Used from the event loop."""

    def __init__(self) -> None:
        self.is_shared = False  # other servers write notes, too: they are read for each answer
        self._names: dict[int, Sequence[str]] | None = None  # None: not read yet, or in doubt
        self._meanwhile: list[Callable[[], None]] | None = None  # what was told while they are read
        self._doubts = 0  # writes that failed, or may have
        self._reading = asyncio.Lock()
        self.reads = 0  # of all notes

    def added(self, group: Group, name: str, write_pointers: Sequence[int]) -> None:
        """In the stage that writes a note."""
        group.when_durable(lambda: self._change(lambda: self._add(name, write_pointers)))
        group.when_failed(self._doubt)

    def removed(self, group: Group, name: str, write_pointers: Sequence[int]) -> None:
        """In the stage that removes a note."""
        group.when_durable(lambda: self._change(lambda: self._remove(name, write_pointers)))
        group.when_failed(self._doubt)

    async def notes(self, read: Callable[[], Awaitable[Names]]) -> Names:
        """The notes as they are now; what is answered does not change any more. `read` reads all of them."""
        async with self._reading:
            if self.is_shared:
                self.reads += 1
                return dict(await read())
            if self._names is None:
                return await self._read(read)
            return dict(self._names)

    async def _read(self, read: Callable[[], Awaitable[Names]]) -> Names:
        self._meanwhile, doubts = [], self._doubts
        try:
            self.reads += 1
            found = dict(await read())
            if self._doubts != doubts or len(found) > NOTED_WRITERS_MAX:
                return found
            self._names = found
            for change in self._meanwhile:  # the read may have seen it, or not: each leaves the same behind either way
                change()
            return dict(found)
        finally:
            self._meanwhile = None

    def _change(self, change: Callable[[], None]) -> None:
        if self._meanwhile is not None:
            self._meanwhile.append(change)
        elif self._names is not None:
            change()
            if len(self._names) > NOTED_WRITERS_MAX:
                self._names = None

    def _doubt(self) -> None:
        self._doubts += 1
        self._names = None

    def _add(self, name: str, write_pointers: Sequence[int]) -> None:
        assert self._names is not None
        for pointer in write_pointers:
            before = self._names.get(pointer, ())
            if name not in before:
                self._names[pointer] = (*before, name)

    def _remove(self, name: str, write_pointers: Sequence[int]) -> None:
        assert self._names is not None
        for pointer in write_pointers:
            left = tuple(each for each in self._names.get(pointer, ()) if each != name)
            if left:
                self._names[pointer] = left
            else:
                self._names.pop(pointer, None)
