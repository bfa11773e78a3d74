"""Newer views of the transactions, for readers at a server that follows the coordinator.

The view of such a server is a prefix of the coordinator's: it leaves more open, and never less. So what stops a reader there may be a writer that
has ended since. The reader asks for a newer view, once, and reads on under that. Where the coordinator does not answer it gets what comes before the row.

The coordinator's own view is always the newest: there nothing is asked, and nothing waited for.
"""

from __future__ import annotations

import asyncio

from basalt.errors import CoordinatorUnavailableError
from basalt.messaging.log.topic_log import TopicLog
from basalt.transactions.manager import Transactions
from basalt_engine.errors import RetryError
from basalt_engine.snapshot import POINTER_MAX, Visibility

# A link answers within a millisecond, a busy coordinator within some ten. Who waits longer gets more from what comes before the row.
VIEW_ASK_MS_MAX = 500


class Views:
    """Asks for newer views for the readers of one store, and wakes those that an older one holds."""

    def __init__(self, manager: Transactions) -> None:
        self._manager = manager
        # By write pointer: where long polls wait for its end. An entry goes with the next view that has the end.
        self._holding: dict[int, set[TopicLog]] = {}
        self.asked_total = 0
        self.unanswered_total = 0
        manager.when_view_moves(self._wake)

    @property
    def may_be_old(self) -> bool:
        """True where another server is the coordinator."""
        return self._manager.follows

    @property
    def age_ms(self) -> float:
        """The time since when the coordinator may have decided what the view does not have."""
        return self._manager.view_age_ms

    async def newer(self) -> bool:
        """Return once the view has all that the coordinator had made durable before this call; False: no answer in time."""
        try:
            await self._ask()
        except CoordinatorUnavailableError:
            return False
        return True

    async def catch_up(self, log: TopicLog) -> None:
        """See to it that the view is as new as any by which the topic was judged before this server's reign.

        Whoever had the topic before may have gone by a newer one, have told of it, and have written rows of transactions that
        this one does not know. `CoordinatorUnavailableError` while that cannot be found out.
        """
        while self.may_be_old and not log.is_caught_up:
            reign = log.reigns
            await self._ask()
            if log.reigns == reign:  # else a reign has begun behind the question
                newest = self._manager.state.last_pointer
                log.unknown_up_to = newest if log.unknown_up_to == POINTER_MAX else max(log.unknown_up_to, newest)
                log.is_caught_up = True

    def note_held(self, log: TopicLog, write_pointer: int) -> None:
        """A long poll is about to wait for the end of this writer, of which perhaps nobody here will be told but the view."""
        if not self.may_be_old and write_pointer not in self._manager.lent_elsewhere():
            return
        if self._manager.current().judge(write_pointer) is Visibility.HOLD:
            self._holding.setdefault(write_pointer, set()).add(log)
        else:  # it has ended since its row was judged
            log.notify()

    async def _ask(self) -> None:
        self.asked_total += 1
        try:
            async with asyncio.timeout(VIEW_ASK_MS_MAX / 1_000):
                await self._manager.ask()
        except (RetryError, TimeoutError) as error:
            self.unanswered_total += 1
            raise CoordinatorUnavailableError(
                f"the coordinator of transactions does not answer: {str(error) or 'it takes too long'}",
                hint="send the same call again after Retry-After",
            ) from error

    def _wake(self) -> None:
        """The view has moved: those whose writer has ended go on."""
        if not self._holding:
            return
        view = self._manager.current()
        for write_pointer in [each for each in self._holding if view.judge(each) is not Visibility.HOLD]:
            for log in self._holding.pop(write_pointer):
                log.notify()
