"""The live groups of this process: made when somebody asks for one, dropped when nobody would notice, or when its topic is served elsewhere.

What is durable of a group is in the transaction manager's state; where the log was read again, live groups of which that knows nothing are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from basalt.catalog.topics import TopicName, title_of
from basalt.cluster.shard_gate import SEND_AGAIN
from basalt.errors import ShardMovingError
from basalt.groups.claims import Claim
from basalt.groups.live_group import Desk, LiveGroup
from basalt.transactions.rules.acknowledgements import GroupRules
from basalt.transactions.rules.groups import GroupState
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of


class LiveGroups:
    """The groups of one store of which this process knows more than the log. Everything runs on the event loop."""

    def __init__(self, desk: Desk) -> None:
        self.stopping = False
        self._desk = desk
        self._by_number: dict[int, LiveGroup] = {}
        self._table: GroupRules | None = None  # in which they were found
        self._dealt_to: dict[int, set[int]] = {}  # the numbers of groups, by open transactions that fetches named
        self._closed = False

    def all(self) -> list[LiveGroup]:
        """All of them now."""
        return list(self._by_number.values())

    def get(self, number: int) -> LiveGroup | None:
        """The live group of this number, if there is one."""
        return self._by_number.get(number)

    def of(self, state: GroupState, title: TopicName) -> LiveGroup:
        """The live group; it is made where there is none."""
        live = self._by_number.get(state.number)
        if live is None:
            live = self._by_number[state.number] = LiveGroup(self._desk, title, state)
            live.stopping = self.stopping
            if self._closed:
                live.close()  # nobody would come to end what it begins
        return live

    def present(self, state: GroupState) -> LiveGroup:
        """The live group in a stage: one that was idle may have been dropped, and made anew, since it was found."""
        if not self.is_here(state.prefix):  # no wait: rows of a one-shot may be placed, and it is given up then
            raise ShardMovingError(f"the topic of group {state.name} moves; nothing was done", hint=SEND_AGAIN)
        return self._by_number.get(state.number) or self.of(state, title_of(state.prefix))

    def is_here(self, prefix: bytes) -> bool:
        """True for a topic whose shard is served here: then this server deals its groups."""
        return self._desk.logs.gate.is_held(shard_of(prefix))

    def look_again(self) -> None:
        """Drop those that the log does not know, where it was read again."""
        table = self._desk.manager.state.groups
        if table is self._table:
            return
        self._table = table
        for live in self.all():
            state = table.by_number.get(live.number)
            if state is None or not live.is_of(state):
                self.drop(live)

    def drop(self, live: LiveGroup) -> None:
        """The group is gone: tell who waits."""
        self._by_number.pop(live.number, None)
        live.end()

    def drop_idle(self, now_ms: int) -> None:
        """Forget those of which memory alone knows nothing that anybody would miss. A fetch leaves no trace in the log, so a use of late is kept."""
        for live in self.all():
            if live.is_idle and now_ms - live.last_used_ms >= live.options.expire_ms:
                live.close()
                del self._by_number[live.number]

    # What was dealt to transactions.

    def deals_to(self, transaction_id: int, live: LiveGroup) -> None:
        """A fetch of the group names this transaction."""
        self._dealt_to.setdefault(transaction_id, set()).add(live.number)

    def dealt_to(self, transaction_id: int) -> list[tuple[LiveGroup, list[Claim]]]:
        """The claims that were dealt to a transaction which acknowledges no more, by group; it is forgotten here."""
        lives = [self.get(number) for number in self._dealt_to.pop(transaction_id, ())]
        found = [(live, live.dispatcher.claims.of_transaction(transaction_id)) for live in lives if live is not None]
        return [(live, claims) for live, claims in found if claims]

    def free_dealt(self) -> None:
        """Free what was dealt to transactions that are gone without a word, by a reset say."""
        find = self._desk.manager.state.find
        for transaction_id in [each for each in self._dealt_to if find(each) is None]:
            for live, claims in self.dealt_to(transaction_id):
                for claim in claims:
                    live.give_back(claim)

    # The end.

    def leave(self, shards: Collection[int]) -> None:
        """These shards are another reign's from now on: answer who waits in their groups, and forget what memory alone knows of them.

        What is claimed is dealt again, as after a restart; what is acknowledged is in the log.
        """
        for live in self.all():
            if shard_of(topic_prefix(*live.title)) in shards:
                del self._by_number[live.number]
                live.leave()

    def stop_waiting(self) -> None:
        """Answer the fetches that wait, now and from now on, with what there is."""
        self.stopping = True
        for live in self._by_number.values():
            live.stop_waiting()

    async def close(self) -> None:
        """Answer who waits, and let timers and tasks end."""
        self.stopping = self._closed = True
        for live in self._by_number.values():
            live.close()
        while ending := list(self._desk.tasks):
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
