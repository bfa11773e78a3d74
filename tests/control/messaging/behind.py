"""Readers whose view of the transactions is a prefix of the coordinator's, as at an owner that follows it over a link."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from basalt.errors import CoordinatorUnavailableError
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.messages import Messages
from basalt.messaging.peek import Peek
from basalt.messaging.ranges import Ranges
from basalt.messaging.read.first_unstable import FirstUnstable, KnownTransactions
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import LogReader
from basalt.messaging.read.views import Views
from basalt.transactions.log_state import LogState
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.errors import BasaltError
from basalt_engine.keys import topic_prefix
from basalt_engine.snapshot import PointerRuns, TransactionSnapshot
from basalt_engine.stores.shards import shard_of
from tests.wiring import A, Wired


class Lagging:
    """What a manager has logged since, up to where it was told so far: it knows nothing else of the manager. `answers`: the link is there."""

    follows = True

    def __init__(self, manager: TransactionManager) -> None:
        self.state = TransactionProposals(manager.limits, manager.state.image())
        self.in_flight = self.state.in_flight
        self.behind: list[list[Edit]] = []
        self.answers = True
        self.asked = 0
        self.view_age_ms = 0.0
        self.is_known = True
        self._told: list[Callable[[], None]] = []
        written: Any = manager.written

        def and_noted(entry: list[Edit], *given: Any) -> None:
            written(entry, *given)
            if entry:
                self.behind.append(list(entry))

        manager.written = and_noted  # type: ignore[method-assign]

    def hear(self, entries: int | None = None) -> None:
        """Apply so many of the entries that are not known yet; all by default."""
        heard = self.behind[:entries]
        del self.behind[: len(heard)]
        for entry in heard:
            for edit in entry:
                self.state.apply(edit)
        if heard:
            for told in self._told:
                told()

    async def ask(self) -> None:
        self.asked += 1
        if not self.answers:
            raise CoordinatorUnavailableError("there is no link")
        self.hear()

    def when_view_moves(self, told: Callable[[], None]) -> None:
        self._told.append(told)

    def current(self) -> TransactionSnapshot:
        return self.state.view()

    def snapshots(self) -> tuple[TransactionSnapshot, TransactionSnapshot]:
        return self.current(), self.current()

    def lent_elsewhere(self) -> PointerRuns:
        return self.current().in_progress_runs

    def check_view(self) -> None:
        return

    async def ensure_known(self) -> None:
        return

    async def flush(self) -> None:
        return

    def id_of(self, write_pointer: int) -> int:
        try:
            return self.state.writer(write_pointer, 0).id
        except BasaltError:
            return write_pointer


class Behind:
    """The readers of a shop's topics over a lagging view. They share the logs, as those of the owner that writes the rows."""

    def __init__(self, shop: Wired, manager: LogState | None = None) -> None:
        self.shop = shop
        self.manager: Any = manager or Lagging(shop.transactions.manager)
        self.views = Views(self.manager)
        known = KnownTransactions(self.manager)
        reader = LogReader(shop.store, shop.clock, shop.topics)
        first_unstable = FirstUnstable(shop.store, shop.clock, shop.topics, reader, known, self.views)
        self.ends = StableEnds(shop.store, reader, first_unstable, self.manager, self.views)
        self.ranges = Ranges(shop.store, shop.clock, shop.topics, reader, self.manager, self.ends, first_unstable)
        self.peek = Peek(shop.topics, reader, known, self.views)
        self.messaging: Messages = copy.copy(shop.messaging)
        self.messaging._writers, self.messaging._views = self.manager, self.views
        self.markers: TopicMarkers = copy.copy(shop.services.markers)
        self.markers._ends = self.ends

    def begin_reign(self) -> None:
        """Nothing is known of the topic any more, but what the store says of it, as when another server becomes its owner."""
        log = self.shop.topics.in_memory(A)
        if log is not None:  # else nobody knew of it
            log.forget()
        shards = {shard_of(topic_prefix(*A))}
        self.shop.topics.gate.forgot(shards, self.shop.transactions.state.last_pointer)
