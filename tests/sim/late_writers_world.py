"""One simulated run whose clients write under a transaction while it is being ended, and go on when they were told its end.

What is taken belongs to the transaction: it shows when that commits. What comes after the answer is refused (P12), though an owner of
topics goes by its own memory of which pointers are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.errors import TransactionEndedError
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import BasaltError
from tests.sim.history import Ending, Told
from tests.sim.one_shot_world import OneShotWorld
from tests.sim.world import TIMEOUT_MS


class LateWritersWorld(OneShotWorld):
    """The run of one seed."""

    async def _step(self) -> None:
        steps = {
            self._write_late: 14,
            self._publish: 2,
            self._one_shot: 2,
            self._follow: 6,
            self._expire: 2,
            self._snapshot: 1,
            self._outage: 1,
        }
        await self.chances.choices(list(steps), list(steps.values()))[0]()

    async def _write_late(self) -> None:
        try:
            tx = await self.wired.transactions.begin(timeout_ms=TIMEOUT_MS)
        except BasaltError:
            return
        self.history.pointers.append(tx.id)
        ending = self.history.transactions[tx.id] = Ending()
        await self._write_under(tx, ending)
        ending.asked = self.chances.choice(["commit", "commit", "abort"])
        end = asyncio.ensure_future(self._asked_to_end(tx, ending))
        await asyncio.gather(*(self._write_after(tx, self.chances.randint(0, 30)) for _ in range(3)))
        if await end:
            told = await self._write_after(tx, 0)
            assert told is not Told.DONE, f"transaction {tx.id} has taken a message after its end was answered"

    async def _write_after(self, tx: Transaction, turns: int) -> Told:
        """Store or publish a message under the transaction. Of one that fails its client knows that it may be missing, or there."""
        for _ in range(turns):
            await asyncio.sleep(0)
        title = self.chances.choice(self.topics)
        message = self.message(title, tx.id)
        calls: list[Callable[..., Awaitable[object]]] = [self.wired.messaging.store, self.wired.messaging.publish]
        call = self.chances.choice(calls)
        told = await self.tell([message], call(title, [message.text.encode()], tx.write_pointer))
        if told is Told.NOTHING:
            self.history.transactions[tx.id].may_lack = True
        return told

    async def _asked_to_end(self, tx: Transaction, ending: Ending) -> bool:
        """Commit or abort; True when the answer says that the transaction has ended."""
        if ending.asked == "abort":
            try:
                await self.wired.transactions.abort(tx.id)
            except BasaltError:
                return False
            return True
        title = self.chances.choice(self.topics)
        message = self.message(title, tx.id)
        work = Work(publish=[WorkPublish(*title, [message.text.encode()])])
        is_over = False

        async def commit() -> None:
            nonlocal is_over
            try:
                await self.wired.transactions.commit(tx.id, work)
                is_over = True
            except TransactionEndedError:
                is_over = True
                raise

        ending.told = await self.tell([message], commit())
        return is_over
