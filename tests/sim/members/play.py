"""The time of a world of members: tasks that belong to processes, which are killed or stopped between any two awaits.

Its own small loop and not asyncio's, for a process that stands still (SIGSTOP) must stand still with all its tasks, while the others go on.
Time passes only when nobody has anything to do. Whatever happens at the same moment happens in an order that the seed draws.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CallError(Exception):
    """A call that did not do what was asked."""


class RefusedError(CallError):
    """Nothing was done, and nothing will be."""


class FencedError(RefusedError):
    """Refused, because somebody later has taken over."""


class UnansweredError(CallError):
    """Nobody knows what became of it, and it may still happen."""


class AbortedError(CallError):
    """The transaction is, or will be, rolled back; whoever wants its work runs it again."""


class Process:
    """One run of a member: it is alive until it is killed, and does nothing while it is stopped."""

    def __init__(self) -> None:
        self.alive = True
        self.stopped_until = 0.0
        self.steps_left = 0  # until it is killed; 0: nobody has said

    def kill(self) -> None:
        """End it; none of its tasks takes another step."""
        self.alive = False


class Answer(Generic[T]):
    """What one task gives, and any number wait for."""

    __slots__ = ("_error", "_play", "_value", "_waiting", "done")

    def __init__(self, play: Play) -> None:
        self._play = play
        self._waiting: list[Task] = []
        self._value: T | None = None
        self._error: BaseException | None = None
        self.done = False

    def give(self, value: T | None = None, error: BaseException | None = None) -> None:
        """The first one counts: an answer that comes after the time-out is heard by nobody."""
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        for task in self._waiting:
            self._play.at(self._play.now_ms, task)

    def __await__(self) -> Generator[Answer[T], None, T]:
        while not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class _Pause:
    """A wait for time to pass."""

    __slots__ = ("ms",)

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __await__(self) -> Generator[_Pause, None, None]:
        yield self


class Task:
    """A coroutine of a process; of none when it belongs to the world outside."""

    __slots__ = ("_coroutine", "_play", "process")

    def __init__(self, play: Play, coroutine: Coroutine[Any, Any, object], process: Process | None) -> None:
        self._play, self._coroutine, self.process = play, coroutine, process

    def __call__(self) -> None:
        """Take one step, up to the next await that has to wait."""
        process = self.process
        if process is not None:
            if process.steps_left:
                process.steps_left -= 1
                if not process.steps_left:
                    process.kill()
            if not process.alive:
                self._coroutine.close()
                return
            if process.stopped_until > self._play.now_ms:
                self._play.at(process.stopped_until, self, in_order=True)
                return
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration:
            return
        except CallError:  # who asked for it was told by an answer, if anybody waits for one
            return
        if isinstance(waits_for, _Pause):
            self._play.at(self._play.now_ms + waits_for.ms, self)
        else:
            waits_for._waiting.append(self)


class Play:
    """The run of one seed: what happens when."""

    def __init__(self, seed: int) -> None:
        self.chances = random.Random(seed)
        self.now_ms = 0.0
        self._events: list[tuple[float, float, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, at_ms: float, action: Callable[[], object], *, in_order: bool = False) -> None:
        """Have this happen then; in the order of these calls if asked for, else in any among what happens then."""
        self._count += 1
        tie = 0.0 if in_order else self.chances.random()
        heapq.heappush(self._events, (max(at_ms, self.now_ms), tie, self._count, action))

    def start(self, coroutine: Coroutine[Any, Any, object], process: Process | None = None) -> None:
        """Have this run beside all else."""
        self.at(self.now_ms, Task(self, coroutine, process))

    def run(self, until_ms: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let things happen until then, or until this is done."""
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= until_ms and not done():
            self.now_ms, _, _, action = pop(events)
            action()

    def close(self) -> None:
        """End what is left."""
        for _, _, _, action in self._events:
            if isinstance(action, Task):
                action._coroutine.close()
        self._events.clear()

    def answer(self) -> Answer[Any]:
        """A new answer that somebody is to give."""
        return Answer(self)

    @staticmethod
    async def sleep(ms: float) -> None:
        """Wait for this time to pass."""
        await _Pause(ms)

    async def within(self, ms: float, answer: Answer[T]) -> T:
        """The answer; UnansweredError when it takes longer."""
        self.at(self.now_ms + ms, lambda: answer.give(error=UnansweredError("no answer in time")))
        return await answer


class Lane:
    """What is done by one at a time, in the order of asking."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._next: list[Answer[None]] = []
        self.busy = False

    async def __aenter__(self) -> None:
        if self.busy:
            turn: Answer[None] = Answer(self._play)
            self._next.append(turn)
            await turn
        self.busy = True

    async def __aexit__(self, *_: object) -> None:
        if self._next:
            self._next.pop(0).give()
        else:
            self.busy = False
