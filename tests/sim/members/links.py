"""Links between members: one connection a pair, whose frames arrive in the order of sending, or not at all once it breaks.

Owners remember no transaction that has ended: an `expect` cannot come after the roll back, for the coordinator has sent it before on the same
connection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tests.sim.members.play import Answer, CallError, Play, RefusedError

if TYPE_CHECKING:
    from tests.sim.members.member import Member

CALL_PATIENCE_MS = 900  # a call may stand for several of HBase's, and their second tries


class Links:
    """All links of a world, and the ways in of clients."""

    def __init__(self, play: Play, members: dict[str, Member]) -> None:
        self.play = play
        self.members = members
        self.slow_rate = self.lost_rate = 0.0
        self.slow_ms = (20.0, 500.0)
        self.cut_until_ms: defaultdict[frozenset[str], float] = defaultdict(float)
        self._connections: defaultdict[frozenset[str], int] = defaultdict(int)
        self._last_ms: defaultdict[tuple[str, str], float] = defaultdict(float)

    async def call(
        self, sender: Member, to: str | None, method: str, *arguments: object, patience_ms: float = CALL_PATIENCE_MS
    ) -> Any:
        """A call from member to member; RefusedError when there is no link to it."""
        if to == sender.instance:
            return await getattr(sender, method)(*arguments)
        receiver = self.members.get(to or "")
        pair = frozenset((sender.instance, to or ""))
        if receiver is None or not receiver.process.alive or self.cut_until_ms[pair] > self.play.now_ms:
            raise RefusedError(f"{sender.instance} has no link to {to}")
        answer = self.play.answer()

        async def handle() -> None:
            value, error = await outcome_of(getattr(receiver, method)(*arguments))
            self._send(receiver.instance, sender.instance, lambda: answer.give(value, error))

        self._send(sender.instance, receiver.instance, lambda: self.play.start(handle(), receiver.process))
        return await self.play.within(patience_ms, answer)

    def tell(self, sender: Member, to: str | None, method: str, *arguments: object) -> None:
        """A frame that asks for no answer."""

        async def call() -> None:
            await self.call(sender, to, method, *arguments)

        self.play.start(call(), sender.process)

    async def ask_as_client(
        self, to: Member, method: str, *arguments: object, patience_ms: float = CALL_PATIENCE_MS * 3
    ) -> Any:
        """A client's call over HTTP: a connection of its own, in no order with others."""
        answer: Answer[Any] = self.play.answer()
        chances = self.play.chances

        async def handle() -> None:
            value, error = await outcome_of(getattr(to, method)(*arguments))
            if chances.random() >= self.lost_rate:
                self.play.at(self.play.now_ms + self._delay_ms(), lambda: answer.give(value, error))

        self.play.at(self.play.now_ms + self._delay_ms(), lambda: self.play.start(handle(), to.process))
        return await self.play.within(patience_ms, answer)

    def cut(self, one: str, other: str, ms: float) -> None:
        """Break a link, with all that is under way on it; it comes back after this time."""
        pair = frozenset((one, other))
        self._connections[pair] += 1
        self.cut_until_ms[pair] = self.play.now_ms + ms

    def _send(self, sender: str, to: str, arrive: Callable[[], object]) -> None:
        pair = frozenset((sender, to))
        connection = self._connections[pair]
        arrives_ms = max(self._last_ms[sender, to] + 0.001, self.play.now_ms + self._delay_ms())
        self._last_ms[sender, to] = arrives_ms
        self.play.at(arrives_ms, lambda: arrive() if self._connections[pair] == connection else None)

    def _delay_ms(self) -> float:
        chances = self.play.chances
        return chances.uniform(*self.slow_ms) if chances.random() < self.slow_rate else chances.uniform(0.1, 2)


async def outcome_of(call: Coroutine[Any, Any, Any]) -> tuple[Any, CallError | None]:
    """The value of a call, or its error."""
    try:
        return await call, None
    except CallError as error:
        return None, error
