"""The consumer groups of an owner that another server coordinates: what it hears from the log, and what it does where its proposals fail.

docs/decisions/0077-groups-are-dealt-by-owners.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence

from basalt.groups.claims import Claim, ClaimPart
from basalt.groups.groups import Groups
from basalt.groups.live_group import LiveGroup
from basalt.runtime.group_commit import Group
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.tellings import EndedInGroups
from basalt_engine.errors import BasaltError


class OwnedGroups(Groups):
    """The groups of this server's topics; the coordinator logs what is acknowledged in them."""

    def follow(self, followed: FollowedTransactions) -> None:
        """Hear from these what becomes of transactions, and of proposals."""
        followed.groups_hear, followed.proposing.lost = self.hear, self._unsettle
        followed.proposing.member = lambda: self._logs.gate.member

    async def check_pending(self, transaction_id: int) -> None:
        """Refuse what the transaction acknowledges out of order in groups here: it is about to commit."""

        def stage(group: Group) -> None:
            self._acknowledging.check((), transaction_id, group.now_ms, committing=True)

        await self._manager.run_for_groups(stage)

    def hear(self, ended: EndedInGroups) -> None:
        """As `transaction_ended`, by an entry of the log that is applied. What was pending the coordinator has returned in it."""
        table, returned = self._manager.state.groups, ended.reason is not None and ended.counts
        for number, spans in ended.pending.items():
            live = self.live.get(number)
            if live is not None and number in table.by_number:
                messages = live.dispatcher.decide(
                    ended.transaction_id, spans, committed=ended.reason is None, returned=ended.counts
                )
                if returned and ended.reason is not None:
                    live.totals.was_returned(ended.reason, messages)
                live.wake()
        for live, claims in self.live.dealt_to(ended.transaction_id):
            if live.number not in table.by_number:
                continue
            if returned and ended.reason is not None:
                self._start(self._failed(live, claims, ended.reason))
            else:
                live.dispatcher.give_back(list(map(ClaimPart.whole, claims)), returned=False)
                live.wake()

    async def _failed(self, live: LiveGroup, claims: Sequence[Claim], reason: ReturnReason) -> None:
        """Have it logged that claims failed with their transaction. Where that cannot be, they are free, and no attempt is counted."""

        def stage(group: Group) -> None:
            parts = [ClaimPart.whole(claim) for claim in claims if claim.end is None]
            self._manager.apply(group, live.failed(live.state, parts, reason, group.now_ms))
            group.when_durable(live.wake)

        try:
            await self._manager.run_for_groups(stage)
        except BasaltError:
            for claim in claims:
                live.give_back(claim)

    def _unsettle(self, numbers: Collection[int], is_refused: bool) -> None:
        """Look at these groups anew: what they were to be was refused; or nobody knows, it may come true later, and they are dealt as after a restart."""
        for number in numbers:
            live = self.live.get(number)
            if live is not None:
                live.look_anew(is_lost=not is_refused)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.desk.tasks.add(task)
        task.add_done_callback(self.desk.tasks.discard)
