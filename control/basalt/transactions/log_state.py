"""The state that the log of transactions makes, as this process knows it: the coordinator's own, or a member's copy of it.

Whoever reads goes by it and need not know which of the two it is. Only the coordinator decides: see `manager`; a member follows: see `followed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from basalt.errors import CoordinatorUnavailableError
from basalt.runtime.group_commit import Group, Waiter
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import WriteLanes
from basalt.transactions.log.transaction_log import Journal, TransactionLog
from basalt.transactions.protocol import Admitted, Joining
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.loans import OneShotsInFlight
from basalt.transactions.rules.transaction import Join, State, TableJoin, Transaction, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import Durations
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import PointerRuns, TransactionSnapshot
from basalt_engine.table import Store

T = TypeVar("T")


class ManagerSnapshot(NamedTuple):
    """The durable state of all transactions at one moment, for those who draw conclusions from what is *not* in a list.

    `write_pointer` is the last one that was given out.
    """

    epoch: int
    write_pointer: int
    visibility_upper_bound: int
    view: TransactionSnapshot

    @property
    def decided(self) -> int:
        """Every writer up to it has committed, is undone, or is in the invalid list."""
        first = self.view.first_in_progress
        return self.write_pointer if first is None else first - 1


def bound_of(snapshot: TransactionSnapshot) -> int:
    """Every writer up to this pointer that has committed is seen under the snapshot."""
    first = snapshot.first_in_progress
    return snapshot.read_pointer if first is None else min(first - 1, snapshot.read_pointer)


class ActiveSnapshots:
    """Snapshots that are being read under in this process, outside of any transaction that is still open.

    What no reader can see any more may be dropped. An open transaction counts as a reader by itself; a read without one, or
    one whose transaction ends before its last row came, counts here for as long as it lasts.
    """

    def __init__(self) -> None:
        self._bounds: Counter[int] = Counter()

    @contextmanager
    def reading(self, snapshot: TransactionSnapshot) -> Iterator[None]:
        """Hold this from when the snapshot was taken until the last row was read."""
        bound = bound_of(snapshot)
        self._bounds[bound] += 1
        try:
            yield
        finally:
            self._bounds[bound] -= 1
            if not self._bounds[bound]:
                del self._bounds[bound]

    def bound(self, visibility_upper_bound: int) -> int:
        return min(visibility_upper_bound, *self._bounds) if self._bounds else visibility_upper_bound


class Totals:
    """The numbers of transactions by event since the server started, and how long their commits took."""

    _EVENTS = {
        edits.Began: "begun",
        edits.OneShot: "committed",
        edits.Committed: "committed",
        edits.Aborted: "aborted",
        edits.Invalidated: "invalidated",
        edits.Doomed: "conflicts",
        edits.GivenUp: "invalidated",
    }
    _MAY_TIME_OUT = frozenset((edits.Aborting, edits.Aborted, edits.Invalidated))

    def __init__(self) -> None:
        names = ("begun", "committed", "aborted", "invalidated", "conflicts", "timed_out", "forced")
        self.events = dict.fromkeys(names, 0)
        self.commits = Durations()
        self.one_shots = 0  # of those that were committed

    def count(self, made: Sequence[Edit]) -> None:
        for edit in made:
            kind = type(edit)
            count = 1
            if isinstance(edit, edits.Invalidated):
                count = len(edit.ids)
            elif isinstance(edit, edits.GivenUp):
                count = edit.last - edit.first + 1
            if kind in self._EVENTS:
                self.events[self._EVENTS[kind]] += count
                self.one_shots += kind is edits.OneShot
            if kind in self._MAY_TIME_OUT and edit.timed_out:  # type: ignore[attr-defined]
                self.events["timed_out"] += count  # of ABORTING and ABORTED the first says so


class EndedTransaction(NamedTuple):
    """A transaction that edits have ended. `state` is None where a reset forgot it."""

    transaction: Transaction
    state: State | None


class LogState:
    """The face of both. What decides is refused here: the coordinator answers it."""

    def __init__(self, store: Store, lanes: WriteLanes, transaction_log: TransactionLog) -> None:
        self.atomic = store.atomic
        self.lanes = lanes
        self._call = StoreCalls(store)
        self._log = transaction_log
        self._state: TransactionProposals | None = None
        self._current = TransactionSnapshot(0)
        self._has_view = False  # the log was read once
        self.unread_because = ""  # why the last attempt to read the log failed
        self.known_since = 0  # transactions with later pointers began while this working state was known
        self._told_of_views: list[Callable[[], None]] = []
        self._readers = ActiveSnapshots()
        self.reading = self._readers.reading
        self.totals = Totals()
        self.journal = Journal()

    async def ensure_known(self) -> None:
        """Return once `state` answers."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Return once all that was decided before is durable."""
        raise NotImplementedError

    async def ask(self) -> None:
        """Return once all is known here that the coordinator had made durable when this was asked."""
        raise NotImplementedError

    async def up_to(self, entries: int, wait_ms: float) -> None:
        """Return once so many entries of the log are in the state. The coordinator has all that it has answered."""

    async def snapshot(self) -> ManagerSnapshot:
        """Pointers and lists that belong together and are durable."""
        raise NotImplementedError

    async def join(self, joining: Joining, admitted: Callable[[Joining, Admitted], None] | None = None) -> Admitted:
        """Something of an owner here takes part in the transaction of this pointer; return once the log has it.

        `admitted` is called at the very moment at which this is so and the transaction is open: what is told of it later comes later.
        `TransactionEndedError` when the pointer is not in progress.
        """
        raise NotImplementedError

    @property
    def state(self) -> TransactionProposals:
        """The working state, which may be a group ahead of what is durable; `CoordinatorUnavailableError` until the log is read."""
        if self._state is None:
            why = f"; the last attempt: {self.unread_because}" if self.unread_because else ""
            raise CoordinatorUnavailableError(
                f"the transaction manager is reading its log{why}", hint="send the same call again after Retry-After"
            )
        return self._state

    @property
    def in_flight(self) -> OneShotsInFlight:
        """The one-shot transactions of this server whose rows are written, or being written, and which are not decided."""
        return self.state.in_flight

    @property
    def limits(self) -> TransactionLimits:
        return self._log.limits

    @property
    def is_known(self) -> bool:
        """True while there is a working state; otherwise read the log first."""
        return self._state is not None

    def current(self) -> TransactionSnapshot:
        """The newest durable snapshot. Before the log was ever read it shows no row of a transaction."""
        return self._current

    def check_view(self) -> None:
        """Refuse a reader whom `current` stops at the first row of a transaction, because the log was not read yet."""
        if not self._has_view:
            _ = self.state

    def snapshots(self) -> tuple[TransactionSnapshot | None, TransactionSnapshot | None]:
        """The durable snapshot, and that of the working state: the same object where they do not differ."""
        return self._current, self.state.view()

    # The age of the view. At the coordinator it is never old: there nobody need ask.

    follows = False  # another server is the coordinator

    @property
    def view_age_ms(self) -> float:
        """The time since when something may have become durable that the view does not have."""
        return 0.0

    def when_view_moves(self, told: Callable[[], None]) -> None:
        """Tell whenever a newer view is there; what is called looks only, and is quick."""
        self._told_of_views.append(told)

    def view_moved(self) -> None:
        """A newer view is there."""
        for told in self._told_of_views:
            told()

    def lent_elsewhere(self) -> PointerRuns:
        """The undecided pointers of other members' loans: no owner here is told whose rows lie where."""
        return self.current().in_progress_runs

    @property
    def log_length(self) -> tuple[int, int]:
        """The number of log entries, and their bytes, after the newest log snapshot: a restart replays them."""
        return self._log.entries_since_snapshot, self._log.bytes_since_snapshot

    def id_of(self, write_pointer: int) -> int:
        """The id of the transaction in progress that has this write pointer; else the pointer itself."""
        try:
            return self.state.writer(write_pointer, 0).id
        except BasaltError:
            return write_pointer

    # What the coordinator alone does.

    def recovered_by(self, recover: Callable[[], Awaitable[None]]) -> None:
        """Name what makes the state known; a member reads the log itself."""

    async def run(self, stage: Callable[[Group], T], size_bytes: int = 0) -> T:
        """Run a stage of the log."""
        raise self._decides_nothing()

    async def run_for_groups(self, stage: Callable[[Group], T]) -> T:
        """Run a stage about consumer groups whose topics are here: of the log, or of a proposal to the coordinator."""
        return await self.run(stage)

    def submit(self, stage: Callable[[Group], T], waiter: Waiter[T], size_bytes: int = 0) -> bool:
        """Run a stage of the log, and tell the waiter."""
        raise self._decides_nothing()

    def apply(self, group: Group, made: Sequence[Edit]) -> list[EndedTransaction]:
        """In a stage: make the edits true, and log them."""
        raise self._decides_nothing()

    def join_in_log(self, group: Group, write_pointer: int, joined: Join | TableJoin) -> None:
        """In a stage that adds rows and log: the topic or table takes part."""
        raise self._decides_nothing()

    def admit(self, group: Group, joining: Joining) -> Admitted:
        """In a stage of the log: something of an owner takes part."""
        raise self._decides_nothing()

    @staticmethod
    def _decides_nothing() -> CoordinatorUnavailableError:
        return CoordinatorUnavailableError(
            "this server does not coordinate transactions; nothing was done",
            hint="send the same call again: another server leads",
        )
