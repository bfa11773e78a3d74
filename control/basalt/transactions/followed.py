"""Followed transactions: a member's copy of the coordinator's state, which it makes from the log and never decides about.

The log in the store is the truth. A member reads it as recovery does, without leading; then the coordinator pushes each entry that has become durable,
and those are applied, by their numbers. Where numbers are missing, and over each new link, it reads on in the store. So what is known here is
always what some first part of the log makes, and never more than is durable: what an owner hears in its order is never taken back.
docs/decisions/0069-members-follow-the-log.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from basalt.cluster.links.frames import CallKind
from basalt.cluster.links.link import Link
from basalt.cluster.links.links import Links
from basalt.errors import (
    CoordinatorUnavailableError,
    CorruptionError,
    ProtocolError,
    RetryError,
    TransactionEndedError,
    UnavailableError,
)
from basalt.runtime.group_commit import Group, tell
from basalt.runtime.write_lanes import WriteLanes
from basalt.transactions.follow_calls import ASK, ENTRIES, FOLLOW, JOIN, MOMENT, Ask, Entries, Follow, Standing, Taken
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.log_state import EndedTransaction, LogState, ManagerSnapshot
from basalt.transactions.proposal_calls import PLACED, PROPOSE, Placed, Propose, Proposed
from basalt.transactions.proposing import Proposing
from basalt.transactions.protocol import Admitted, Joining, Told
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import State
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt.transactions.tellings import EndedInGroups, ended_in_groups, told_at_first, told_between, told_by
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Store

KNOWN_MS_MAX = 4_000  # how long a call waits for the log to be read: clients hear of it within five seconds
ASK_MS_MAX = 2_000  # for all that an ask takes: a link that is silent for so long is none
JOIN_MS_MAX = 4_000  # as long as the coordinator waits for its log
FOLLOW_MS_MAX = 2_000
PROPOSE_MS_MAX = 4_500  # the coordinator's log is late after 4 s, and then it says so
READ_BYTES_MAX = 256 << 10  # of entries, in one read of the store
APPLIED_TOGETHER_MAX = 256  # entries that were waiting, before the event loop has a turn
AHEAD_BYTES_MAX = 16 << 20  # pushed entries that wait for those before them; more are read from the store
READ_AGAIN_MS_MIN = 100  # the pause after a read that failed; it doubles up to
READ_AGAIN_MS_MAX = 1_000  # a server that begins to lead answers from then on

log = logging.getLogger("basalt.transactions")

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class _Pushed(NamedTuple):
    place: int
    entry: bytes


class _Asker(NamedTuple):
    """A call that has asked, and until when it waits by the event loop's clock."""

    until_s: float
    told: asyncio.Future[None]


class FollowedTransactions(LogState):
    """The transactions of a store, as a member that does not lead knows them. Everything runs on the event loop; only the store is read on threads."""

    def __init__(
        self, store: Store, clock: Clock, lanes: WriteLanes, transaction_log: TransactionLog, links: Links
    ) -> None:
        super().__init__(store, lanes, transaction_log)
        self._clock = clock
        self._links = links
        self._applied = 0  # entries that are in the state
        self._bound, self._bound_of = (
            0,
            -1,
        )  # the oldest snapshot of a reader to come, and after how many entries that was so
        self._durable = 0  # entries that are known to be durable
        self._ahead: deque[_Pushed] = deque()
        self._ahead_bytes = 0
        self._followed: Link | None = None  # over which entries come
        self._reading: asyncio.Task[None] | None = None
        self._is_reading_all = False
        self._read_again = asyncio.Event()  # there is a new link: no pause is needed
        self._lost: TransactionProposals | None = None  # a state that turned out not to be what the log makes
        self._tell: Callable[[Sequence[Told]], None] = _nobody_hears
        self.proposing = Proposing(clock, lambda: self.state, self._ask_to_log)
        self.groups_hear: Callable[[EndedInGroups], None] | None = None  # of transactions that acknowledge no more
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for so many entries to be applied
        self._is_asking = False
        self._asked: Sequence[_Asker] = ()  # who waits for the call that is under way
        self._askers: list[_Asker] = []  # and for the next one
        self._asking_late: asyncio.TimerHandle | None = None  # until the first of them has waited for too long
        self._catching_up: asyncio.Task[None] | None = None  # after an answer that came before what it tells of
        self.reads = self.whole_reads = 0  # of the log, further on and from its snapshot
        self.current_as_of_ms = 0.0  # of the monotonic clock: then it was known that nothing newer was durable

    def tells(self, tell: Callable[[Sequence[Told]], None]) -> None:
        """Name what hears of transactions, in the log's order: an owner. Before `start`."""
        self._tell = tell

    def start(self) -> None:
        """Follow from now on, until `close`."""
        self._links.handlers.add(ENTRIES, self._pushed)
        self._links.handlers.add(PLACED, self._placed)
        self._links.when_linked(self._linked)
        self._links.oldest_view = self.oldest_view
        self._read_on()

    async def close(self) -> None:
        """Follow no more. What waits is refused."""
        self._links.handlers.remove(ENTRIES)
        self._links.handlers.remove(PLACED)
        await self.proposing.close()
        self._links.forget(self._linked)
        self._links.oldest_view = _no_view
        tasks = [task for task in (self._reading, self._catching_up) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._asking_late is not None:
            self._asking_late.cancel()
            self._asking_late = None
        over = _unanswered("this server follows the log of transactions no more, for its services have ended")
        asking = [each.told for each in (*self._asked, *self._askers)]
        self._is_asking, self._asked, self._askers = False, (), []
        # One that is cancelled takes the call that waits for it along, which then has no answer.
        for waiter in (*asking, *(each for _, each in self._waiting)):
            tell(waiter, over)

    # What readers and owners ask.

    @property
    def applied(self) -> int:
        """So many entries of the log are in the state."""
        return self._applied

    def current(self) -> TransactionSnapshot:
        if self._state is not None:
            self._current = self._state.view()  # it holds nothing that is not durable
        return self._current

    follows = True

    def snapshots(self) -> tuple[TransactionSnapshot | None, TransactionSnapshot | None]:
        view = self.state.view()
        return view, view

    def oldest_view(self) -> int:
        """The oldest view that a reader here uses, or may begin to use; 0 before the log was read.

        A transaction that is open here may have ended at the coordinator, and is read under all the same.
        """
        if self._state is not None and self._bound_of != self._applied:
            self._bound, self._bound_of = self._state.visibility_upper_bound(), self._applied
        return max(1, self._readers.bound(self._bound)) if self._has_view else 0

    @property
    def view_age_ms(self) -> float:
        link, beat_ms = self._links.answered
        heard = link is not None and link is self._followed and self._applied >= self._durable
        return self._clock.monotonic_ms() - max(self.current_as_of_ms, beat_ms if heard else 0.0)

    async def ensure_known(self) -> None:
        if self._state is None:
            with suppress(TimeoutError):
                await self._has_applied(0, KNOWN_MS_MAX)
            _ = self.state

    async def flush(self) -> None:
        await self.ensure_known()  # what is applied is durable

    async def snapshot(self) -> ManagerSnapshot:
        moment = await self._call_coordinator(MOMENT, Ask(self._applied), ASK_MS_MAX)
        await self._applied_in_time(moment.entries, ASK_MS_MAX)
        state = self.state  # of now: a writer that ends behind this moment may still write what it was let to
        found = ManagerSnapshot(state.leader_epoch, state.last_pointer, moment.visibility_upper_bound, state.view())
        await self.lanes.topics.passed()
        return found

    async def ask(self) -> None:
        """Return once all is applied that the coordinator had made durable when this was asked. `CoordinatorUnavailableError` after two seconds.

        Whoever asks while a call is under way waits for the next one, all together. They are as many as calls that are open: no task or timer is made for each.
        """
        loop = asyncio.get_running_loop()
        asker = _Asker(loop.time() + ASK_MS_MAX / 1_000, loop.create_future())
        self._askers.append(asker)
        if self._asking_late is None:
            self._asking_late = loop.call_at(asker.until_s, self._be_late)
        if not self._is_asking:
            self._is_asking = True
            loop.call_soon(self._ask_for_all)  # who comes in the same turn is among them
        await asker.told

    def _ask_for_all(self) -> None:
        asked, self._askers = self._askers, []
        self._asked = asked
        link = self._links.to_leader
        if link is None:
            self._asking_over(asked, _no_link())
            return
        try:
            link.send(ASK, Ask(self._applied), ASK_MS_MAX, partial(self._standing_told, asked))
        except BasaltError as error:
            self._asking_over(asked, _refused(error))

    def _standing_told(self, asked: Sequence[_Asker], answer: asyncio.Future[Standing]) -> None:
        error = answer.exception()
        if error is not None:
            self._asking_over(asked, _refused(error) if isinstance(error, BasaltError) else error)
        elif self._state is not None and answer.result().entries <= self._applied:
            self._asking_over(asked, None)  # as nearly always: a link keeps the order
        else:
            self._catching_up = asyncio.get_running_loop().create_task(
                self._when_applied(asked, answer.result().entries)
            )

    async def _when_applied(self, asked: Sequence[_Asker], entries: int) -> None:
        try:
            await self._applied_in_time(entries, ASK_MS_MAX)
        except Exception as error:  # noqa: BLE001  # it is raised where somebody asked
            self._asking_over(asked, error)
        else:
            self._asking_over(asked, None)

    def _asking_over(self, asked: Sequence[_Asker], error: BaseException | None) -> None:
        if error is None:
            self.current_as_of_ms = self._clock.monotonic_ms()
        for each in asked:
            tell(each.told, error)
        self._asked = ()
        self._is_asking = bool(self._askers)
        if self._askers:
            self._ask_for_all()

    def _be_late(self) -> None:
        """Answer those who have waited for as long as may be; the others are looked at when the first of them has."""
        loop = asyncio.get_running_loop()
        late = _unanswered(f"the coordinator has not told within {ASK_MS_MAX} ms what is decided")
        left = [each for each in (*self._asked, *self._askers) if not each.told.done()]
        for each in left:
            if each.until_s <= loop.time():
                tell(each.told, late)
        first = next((each for each in left if not each.told.done()), None)
        self._asking_late = None if first is None else loop.call_at(first.until_s, self._be_late)

    async def up_to(self, entries: int, wait_ms: float) -> None:
        await self._applied_in_time(entries, wait_ms)

    async def join(self, joining: Joining, admitted: Callable[[Joining, Admitted], None] | None = None) -> Admitted:
        began_ms = self._clock.monotonic_ms()
        joined = await self._call_coordinator(JOIN, joining, JOIN_MS_MAX)
        await self._applied_in_time(joined.entries, max(1.0, JOIN_MS_MAX - (self._clock.monotonic_ms() - began_ms)))
        # Entries behind the join may have been applied by now. What they said is in the state; what comes later will be told.
        transaction = self.state.find(joined.transaction_id)
        if transaction is None or transaction.state is not State.OPEN or transaction.doomed is not None:
            raise TransactionEndedError(
                f"transaction {joined.transaction_id} ended while its write to a topic or table began; nothing was written",
                field="transactionWritePointer",
                hint="ask for its outcome",
            )
        found = Admitted(joined.transaction_id, joined.deadline_ms)
        if admitted is not None:
            admitted(joining, found)
        return found

    # What consumer groups want to be logged.

    async def run_for_groups(self, stage: Callable[[Group], T]) -> T:
        await self.ensure_known()
        return await self.proposing.run(stage)

    def apply(self, group: Group, made: Sequence[Edit]) -> list[EndedTransaction]:
        if not self.proposing.runs(group):
            raise self._decides_nothing()
        self.proposing.apply(group, made)
        return []

    async def _ask_to_log(self, proposed: Propose) -> Proposed:
        link, began_ms = self._links.to_leader, self._clock.monotonic_ms()
        if link is None:
            raise _no_link()
        answer = await link.call(PROPOSE, proposed, PROPOSE_MS_MAX)
        left_ms = PROPOSE_MS_MAX - (self._clock.monotonic_ms() - began_ms)
        await self._applied_in_time(answer.entries, max(1.0, left_ms))
        return answer

    def _placed(self, instance: str, told: Placed) -> None:
        self.proposing.placed(told.number, told.place)

    async def _call_coordinator(self, kind: CallKind[Q, A], question: Q, timeout_ms: int) -> A:
        link = self._links.to_leader
        if link is None:
            raise _no_link()
        try:
            return await link.call(kind, question, timeout_ms)
        except BasaltError as error:
            raise _refused(error) from error

    # Pushed entries.

    def _pushed(self, instance: str, pushed: Entries) -> Taken:
        self._durable = max(self._durable, pushed.first + len(pushed.entries))
        if self._state is None or self._is_reading_all or self._ahead or pushed.first > self._applied:
            self._keep([_Pushed(place, entry) for place, entry in enumerate(pushed.entries, pushed.first)])
        else:
            try:
                self._apply(enumerate(pushed.entries, pushed.first), self._clock.now_ms())
            except CorruptionError as error:
                log.warning("an entry of the log that came over a link is read again from the store: %s", error)
        if self._applied < self._durable:
            self._read_on()
        return Taken(self._applied)

    def _keep(self, entries: Sequence[_Pushed]) -> None:
        """They wait for those before them, which are read from the store."""
        self._ahead.extend(entries)
        self._ahead_bytes += sum([len(each.entry) for each in entries])
        if self._ahead_bytes > AHEAD_BYTES_MAX:
            self._ahead.clear()
            self._ahead_bytes = 0

    def _apply(self, entries: Iterable[tuple[int, bytes]], now_ms: int | None) -> bool:
        """Apply of these entries, which come with their places, those that come next, and tell of them; True when all are applied. `now_ms`: they are new, and are not read from the store. `CorruptionError` for one that does not fit what came before."""
        told: list[Told] = []
        try:
            for place, entry in entries:
                if place > self._applied:
                    return False
                if place == self._applied:
                    told += self._applied_one(entry, now_ms)
        finally:
            self._wake()
            self._told(told)
        return True

    def _told(self, told: Sequence[Told]) -> None:
        try:
            self._tell(told)
            self.view_moved()
        except Exception:  # a bug, of which what follows the log must not suffer
            log.exception("an owner could not be told what became of transactions")

    def _applied_one(self, entry: bytes, now_ms: int | None) -> list[Told]:
        state = self.state
        first_edit, made = self._log.decoded(self._applied, entry)
        if first_edit != state.edits_applied:
            raise CorruptionError(
                f"entry {self._applied} of the log goes on after edit {first_edit}, and {state.edits_applied} are known"
            )
        ended: list[EndedInGroups] = []
        apply = _applying(state, ended) if len(state.groups) else state.apply
        is_concerned = self.proposing.is_concerned(self._applied, made)
        try:
            if is_concerned:
                self.proposing.put_aside(state)
            told = told_by(state, made, apply)
            if is_concerned:
                self.proposing.go_on(state, self._applied)
        except (
            Exception
        ) as error:  # whatever it is, a part of the entry is in the state: only a whole read makes that known again
            self._lost, self._state = state, None
            self.proposing.forget()
            raise CorruptionError(f"entry {self._applied} of the log does not fit what came before: {error}") from error
        self._applied += 1
        if now_ms is None:
            self.journal.replayed(first_edit, made)
        else:
            self.journal.pushed(first_edit, made, now_ms)
        if ended:
            self._tell_groups(ended)
        return told

    def _tell_groups(self, ended: Sequence[EndedInGroups]) -> None:
        if self.groups_hear is None:
            return
        for each in ended:
            try:
                self.groups_hear(each)
            except Exception:  # a bug, of which what follows the log must not suffer
                log.exception("groups could not be told that a transaction acknowledges no more")

    # Reading the store.

    def _linked(self) -> None:
        self._read_again.set()
        self._read_on()

    def _read_on(self) -> None:
        """Read the log until all is known that is known to be durable, unless that is being done."""
        if self._reading is None or self._reading.done():  # one that is done has looked for the last time
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(self._was_read)

    def _was_read(self, reading: asyncio.Task[None]) -> None:
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("the log of transactions is not followed any more", exc_info=error)

    async def _read(self) -> None:
        again_ms = READ_AGAIN_MS_MIN
        while not self._is_up_to_date():
            self._read_again.clear()
            try:
                await self._read_once()
                again_ms = READ_AGAIN_MS_MIN
                self.unread_because = ""
            except BasaltError as error:
                if self.unread_because != str(error):
                    log.warning("the log of transactions could not be followed, which will be tried again: %s", error)
                self.unread_because = str(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._read_again.wait(), again_ms / 1_000)
                again_ms = min(2 * again_ms, READ_AGAIN_MS_MAX)

    def _is_up_to_date(self) -> bool:
        link = self._links.to_leader
        follows = link is None or not link.is_open or link is self._followed
        return follows and self._state is not None and self._applied >= self._durable and not self._ahead

    async def _read_once(self) -> None:
        refused = await self._follow()
        if self._state is None:
            await self._read_all()
        elif self._applied < self._durable and not await self._read_further():
            await self._read_all()  # a snapshot stands for what comes next
        await self._catch_up()
        if refused is not None:
            raise refused

    async def _follow(self) -> BasaltError | None:
        """Have entries pushed. They come before the log is read, so that none is missed in between."""
        link = self._links.to_leader
        if link is None or not link.is_open or link is self._followed:
            return None
        try:
            standing = await link.call(FOLLOW, Follow(self.oldest_view()), FOLLOW_MS_MAX)
        except BasaltError as error:
            return error
        self._followed, self._durable = link, max(self._durable, standing.entries)
        return None

    async def _read_further(self) -> bool:
        """Apply what the store has behind what is applied; False when the next entry is not there."""
        while self._applied < self._durable:
            first = self._applied
            found = await self._call(self._log.read_entries, first, READ_BYTES_MAX)
            self.reads += 1
            if not found:
                return self._applied > first
            for start in range(0, len(found), APPLIED_TOGETHER_MAX):
                part = found[start : start + APPLIED_TOGETHER_MAX]
                self._apply(enumerate(part, first + start), None)
                await asyncio.sleep(0)
        return True

    async def _read_all(self) -> None:
        self._is_reading_all, began_ms = True, self._clock.monotonic_ms()
        try:
            state = await self._call(self._log.recover, self.journal)
        finally:
            self._is_reading_all = False
        self.whole_reads += 1
        if self._log.position < max(self._applied, self._durable):
            raise UnavailableError(
                f"the store shows {self._log.position} entries of the log of transactions, and {max(self._applied, self._durable)} are durable"
            )
        self._adopt(state)
        self.current_as_of_ms = max(self.current_as_of_ms, began_ms)

    def _adopt(self, state: TransactionProposals) -> None:
        before = self._state
        self.proposing.forget()
        if before is None:
            told = told_at_first(state, () if self._lost is None else self._lost.by_id)
            self.known_since = state.last_pointer
        else:
            told = told_between(before, state)
        if (former := before or self._lost) is not None:
            state.in_flight = former.in_flight  # of this process, whatever the log says
        self._state, self._lost, self._has_view = state, None, True
        self._applied = self._log.position
        self._told(told)
        self._wake()

    async def _catch_up(self) -> None:
        """Apply what was pushed meanwhile, as far as nothing is missing before it."""
        while self._ahead:
            part = [self._ahead.popleft() for _ in range(min(len(self._ahead), APPLIED_TOGETHER_MAX))]
            self._ahead_bytes -= sum([len(each.entry) for each in part])
            if not self._apply(part, self._clock.now_ms()):
                left = [each for each in part if each.place > self._applied]
                self._ahead.extendleft(reversed(left))
                self._ahead_bytes += sum([len(each.entry) for each in left])
                return
            await asyncio.sleep(0)

    # Who waits.

    async def _applied_in_time(self, entries: int, wait_ms: float) -> None:
        try:
            await self._has_applied(entries, wait_ms)
        except TimeoutError:
            raise _unanswered(
                f"what is decided was not known here within {wait_ms:.0f} ms {self.unread_because}".rstrip()
            ) from None

    async def _has_applied(self, entries: int, wait_ms: float) -> None:
        """Return once so many entries are applied, to a state that is known. `TimeoutError`"""
        self._durable = max(self._durable, entries)
        if self._state is not None and self._applied >= entries:
            return
        self._read_on()
        waiting = (entries, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await waiting[1]
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _wake(self) -> None:
        if not self._waiting or self._state is None:
            return
        waiting, self._waiting = self._waiting, []
        for entries, waiter in waiting:
            if waiter.done():
                continue
            if entries <= self._applied:
                waiter.set_result(None)
            else:
                self._waiting.append((entries, waiter))


def _unanswered(why: str) -> CoordinatorUnavailableError:
    return CoordinatorUnavailableError(
        why, hint="send the same call again after Retry-After; publishing without a transaction goes on"
    )


def _no_link() -> CoordinatorUnavailableError:
    return _unanswered("there is no link to the coordinator of transactions")


def _refused(error: BasaltError) -> BasaltError:
    """The error of a call that the coordinator did not answer: to ask, or to join, twice is as good as once; who begins to lead knows no such call yet."""
    if isinstance(error, RetryError | ProtocolError):
        return _unanswered(f"the coordinator of transactions did not answer: {error.message}")
    return error


def _applying(state: TransactionProposals, ended: list[EndedInGroups]) -> Callable[[Edit], None]:
    """A function that applies an edit, and notes before which transactions acknowledge no more by it."""

    def apply(edit: Edit) -> None:
        ended.extend(ended_in_groups(state, edit))
        state.apply(edit)

    return apply


def _nobody_hears(_: Sequence[Told]) -> None:
    """No owner is here yet."""


def _no_view() -> int:
    """Nobody reads here."""
    return 0
