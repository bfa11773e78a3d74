"""A group as this process knows it: its members, its claims, and the fetches that wait for messages.

Nothing of it outlives the process. One fetch is dealt at a time; those that wait are served in the order in which they came,
when messages arrive, a transaction ends, claims come back, delays are over, or the group goes on after a pause.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from basalt.api.bodies.groups import GroupOptions
from basalt.catalog.topics import TopicName
from basalt.errors import BusyError, ConflictError, GroupNotFoundError, TopicNotFoundError
from basalt.groups.claims import Claim, ClaimPart
from basalt.groups.dealing.dispatcher import Dispatcher
from basalt.groups.fetches import NO_MESSAGES, NOTHING, SPANS, STANDBY, STOPPING, Dealt, FetchAsk
from basalt.groups.figures import GroupTotals
from basalt.groups.members import FormerMembers, Member, Members
from basalt.groups.places import oldest_of
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.messages import Messages
from basalt.messaging.read.log_reader import NO_LIMIT, Fetch, SliceLimits
from basalt.runtime.group_commit import Group
from basalt.transactions.log_state import LogState
from basalt.transactions.rules.acknowledgements import GroupRules, retry_at_ms
from basalt.transactions.rules.edits import Edit, ReturnReason
from basalt.transactions.rules.groups import NEVER_MS, GroupState
from basalt.transactions.rules.transaction import State, TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError, InputError, RetryError
from basalt_engine.spans.spans import ZERO_ID, Spans

WAITING_MAX = 10_000  # fetches that wait in one group
TIMER_MS_MIN = 10  # between two looks at what has run out
OPTIONS_AT_HAND = 1_024  # options of groups that are not decoded again for each acknowledgement
SPANS_LOOK_MS = 1_000  # between two looks whether there are fewer spans, while a fetch waits for that
TOGETHER_MAX = 200  # claims that end without a pause, or by one entry of the log: a few milliseconds
TOGETHER_SPANS_MAX = 1_000  # of theirs, of which those of a keyed group have many each
RETRY_MS = 1_000  # after such a look failed, for the store did


class Desk(NamedTuple):
    """The services that all groups of one store use, and the numbers of their claims."""

    clock: Clock
    manager: LogState
    logs: TopicLogs
    messages: Messages
    ids: TransactionIds
    next_claim: Callable[[], int]
    members_max: int
    window_bytes_max: int
    former: FormerMembers
    tasks: set[asyncio.Task[None]]  # of all groups, also of those that are gone: they end with the server


class GroupFetch(NamedTuple):
    """The answer to a fetch: a claim with its messages, or what it waited for. Times are wall times."""

    claim: int | None
    after: bytes | None
    through: bytes | None
    round: int
    attempt: int
    claim_until_ms: int | None
    member_epoch: int
    waiting_for: str
    fetch: Fetch


class _Waiter:
    """A fetch that waits for its turn, or for messages."""

    __slots__ = ("answer", "ask", "epoch", "reason")

    def __init__(self, ask: FetchAsk, epoch: int, reason: str) -> None:
        self.ask = ask
        self.epoch = epoch
        self.reason = reason
        self.answer: asyncio.Future[Dealt] = asyncio.get_running_loop().create_future()


class LiveGroup:
    """One group of one generation of a topic. Everything runs on the event loop."""

    __slots__ = (
        "_again", "_arrival", "_closed", "_dealing", "_desk", "_leaving", "_looked_ms", "_name", "_queue", "_replaced", "_table", "_timer", "_timer_ms",
        "dispatcher", "last_used_ms",
        "members", "number", "stopping", "title",
    )  # fmt: skip

    def __init__(self, desk: Desk, title: TopicName, state: GroupState) -> None:
        options = options_of(state)
        self.number = state.number
        self._name = *state.topic, state.name
        self.title = title
        self.dispatcher = Dispatcher(desk.clock, desk.messages, options, desk.next_claim, desk.window_bytes_max)
        self.members = Members(options.member_ms, desk.members_max, desk.former, state.number)
        self.last_used_ms = desk.clock.now_ms()
        self.stopping = False
        self._desk = desk
        self._table: GroupRules | None = None
        self._queue: deque[_Waiter] = deque()
        self._leaving: set[tuple[str, int]] = (
            set()
        )  # members whose claims are being given back, which counts no attempt
        self._replaced = False  # a newer process took a member's name: the claims of the older are to be returned
        self._dealing = False
        self._again = False  # something happened while a fetch was dealt
        self._closed = False
        self._looked_ms = 0  # when something was dealt last, or would have been, by the wall clock
        self._arrival: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0

    @property
    def state(self) -> GroupState:
        """The group as the transaction log has it; `GroupNotFoundError` once it is deleted."""
        table = self._desk.manager.state.groups
        state = table.by_number.get(self.number)
        if state is None:
            raise GroupNotFoundError(f"the group of topic {self.title} was deleted", field="group")
        if table is not self._table:  # the log was read again
            if not self.is_of(state):
                raise GroupNotFoundError(f"the group of topic {self.title} could not be made", field="group")
            self._table = table
            self._use(options_of(state))  # a change of them that could not be written is none
            self.dispatcher.rebuild(state, table.pending_in(self.number).values())
            self.wake()  # what was not acknowledged after all is free
        return state

    def look_anew(self, *, is_lost: bool) -> None:
        """Find it anew at the next look, as after the log was read again: what memory knows of it may not be what the log says.

        `is_lost`: the log may say something later that nobody here expects, so no claim of now counts any more.
        """
        self._table = None
        if is_lost:
            self.dispatcher.restart()
        self.wake()

    def is_of(self, state: GroupState) -> bool:
        """False for another group that got the number: the making of this one could not be written."""
        return self._name == (*state.topic, state.name)

    def is_named(self, namespace: str, topic: str, name: str) -> bool:
        """True for the names of this group."""
        return (namespace, topic) == self.title and name == self._name[-1]

    @property
    def options(self) -> GroupOptions:
        return self.dispatcher.options

    @property
    def totals(self) -> GroupTotals:
        return self.dispatcher.totals

    @property
    def waiting(self) -> int:
        """The number of fetches that wait."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """True when nobody would notice that what memory knows of it is gone."""
        return not (
            self._queue or self._dealing or len(self.dispatcher.claims) or len(self.members) or self.dispatcher.unacked
        )

    def change(self, options: GroupOptions) -> None:
        """The group has these options from now on."""
        self._use(options)
        self.wake()

    def _use(self, options: GroupOptions) -> None:
        if options != self.options:
            self.dispatcher.change(options)
            self.members.lease_ms = options.member_ms

    async def read_through(self, last: bytes) -> None:
        """Have the lanes of a keyed group known up to this message, as far as readers of committed messages come."""
        log, state = await self.open()
        if self.dispatcher.lanes is not None:
            await self.dispatcher.lanes.read_through(log, state, last)

    async def has_messages(self, log: TopicLog, after: bytes, through: bytes) -> bool:
        """True when readers of committed messages find one in (after, through]."""
        found = await self._desk.messages.read_committed(log, after, SliceLimits(1, 1, 1, through))
        return bool(found.messages)

    async def count(self, log: TopicLog, after: bytes, through: bytes) -> int:
        """The messages that readers of committed messages find in (after, through]."""
        limits = SliceLimits(NO_LIMIT, NO_LIMIT, 1, through)
        return (await self._desk.messages.read_committed(log, after, limits, whole=True)).messages

    def oldest(self) -> bytes:
        """The place before which none of the topic's messages lives any more."""
        log = self._desk.logs.find(self.title)
        return ZERO_ID if log is None else oldest_of(log, self._desk.clock.now_ms())

    # Fetching.

    def join(self, name: str, epoch: int) -> Member | None:
        """The member that calls, its lease renewed; None for who gives no name. `MemberFencedError`."""
        clock = self._desk.clock
        self.last_used_ms = clock.now_ms()
        if not name:
            return None
        before = self.members.get(name)
        member = self.members.join(name, epoch, clock.monotonic_ms(), clock.now_ms())
        self._replaced = self._replaced or (before is not None and before is not member)
        self._look_at(member.seen_ms + self.members.lease_ms)
        return member

    def touch(self, name: str, epoch: int) -> None:
        """A member calls: its lease is renewed. One without an epoch replaces nobody. `MemberFencedError`."""
        member = self.members.get(name)
        if epoch or member is None:
            self.join(name, epoch) if epoch else self.members.check(name, epoch)
        else:
            self.join(name, member.epoch)

    async def fetch(self, ask: FetchAsk) -> GroupFetch:
        """The next messages, as a claim; waits for some as long as is asked. One that nobody waits for any more is given back."""
        member = self.join(ask.member, ask.epoch or self._epoch_of(ask))
        epoch = 0 if member is None else member.epoch
        dealt: Dealt | None = None
        if not (self._dealing or self._queue):
            self._dealing = True
            try:
                dealt = await self._deal(ask, epoch)
            finally:
                self._dealing = False
                if self._queue or self._again:
                    self.wake()
        if not self.stopping and (dealt is None or (dealt.claim is None and ask.wait_ms)):
            dealt = await self._wait(ask, epoch, NO_MESSAGES if dealt is None else dealt.waiting_for)
        if self._closed and dealt is not None:
            dealt = Dealt(
                None, NOTHING, dealt.waiting_for or NO_MESSAGES
            )  # whoever deals now knows nothing of the claim
        if dealt is not None and dealt.claim is not None:
            self._look_at(dealt.claim.until_ms)
        try:
            return self._answer(dealt or Dealt(None, NOTHING, STOPPING), epoch)
        except BasaltError:  # the group was deleted, or a write failed and the log is to be read, while it was dealt
            self.give_back(None if dealt is None else dealt.claim)
            raise

    def _epoch_of(self, ask: FetchAsk) -> int:
        """The epoch that a repeated fetch got when it joined: it is no other process of its name. Else 0."""
        claim = self.dispatcher.claims.of_request(ask.request_id)
        return claim.epoch if claim is not None and claim.member == ask.member else 0

    async def _wait(self, ask: FetchAsk, epoch: int, reason: str) -> Dealt:
        if len(self._queue) >= WAITING_MAX:
            raise BusyError(
                f"{WAITING_MAX} fetches wait in one group, which is the limit",
                hint="send the same call again after Retry-After",
            )
        waiter = _Waiter(ask, epoch, reason)
        self._queue.append(waiter)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ask.wait_ms / 1_000, self._give_up, waiter) if ask.wait_ms else None
        if timer is None:
            self.wake()  # it waits for its turn alone
        elif not self._dealing and (self._again or self._arrival is None or self._arrival.done()):
            self.wake()  # it may have missed something
        self._watch()
        try:
            dealt = await waiter.answer
            self._renew(waiter)
            return dealt
        except asyncio.CancelledError:
            if waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None:
                self.give_back(waiter.answer.result().claim)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._queue:
                self._queue.remove(waiter)
            self._watch()

    def _renew(self, waiter: _Waiter) -> None:
        """Who waits is alive, however long its lease."""
        member = self.members.get(waiter.ask.member)
        if member is not None and member.epoch == waiter.epoch:
            member.seen_ms = self._desk.clock.monotonic_ms()

    def _give_up(self, waiter: _Waiter) -> None:
        """Its time is up. A fetch that was not looked at yet gets its turn all the same, if it can be at once."""
        if not waiter.answer.done():
            waiter.answer.set_result(Dealt(None, NOTHING, STOPPING if self.stopping else waiter.reason))

    def give_back(self, claim: Claim | None) -> None:
        """Nobody was told of this claim: its messages are free, as if they had never been dealt."""
        if claim is not None and claim.end is None:
            self.dispatcher.give_back([ClaimPart.whole(claim)], returned=False)
            self.wake()

    async def give_all_back(self, member: Member) -> None:
        """Give back the claims of a member that has left: a part at a time, and also when nobody waits for that any more."""
        self._leaving.add((member.name, member.epoch))
        for waiter in self._queue:
            if (waiter.ask.member, waiter.epoch) == (member.name, member.epoch):
                self._give_up(waiter)
        await asyncio.shield(self._start(self._give_all_back(member)))

    async def _give_all_back(self, member: Member) -> None:
        try:
            claims = self.dispatcher.claims.of_member(member.name, member.epoch)
            while some := _together(claim for claim in claims if claim.end is None):
                self.dispatcher.give_back(list(map(ClaimPart.whole, some)), returned=False)
                self.wake()
                await asyncio.sleep(0)
        finally:
            self._leaving.discard((member.name, member.epoch))

    def restart(self) -> None:
        """The group was sought: nothing is claimed any more. Ten thousand claims take too long to be freed at once."""
        self._start(self._let_go(self.dispatcher.restart()))

    @staticmethod
    async def _let_go(claims: list[Claim]) -> None:
        while claims:
            del claims[-TOGETHER_MAX:]
            await asyncio.sleep(0)

    def wake(self) -> None:
        """Deal to who waits: something has changed."""
        if self._dealing:
            self._again = True
        elif self._queue and not self._closed:
            self._dealing = True
            self._start(self._deal_to_waiting())

    def stop_waiting(self) -> None:
        """Answer the fetches that wait, now and from now on, with what there is."""
        self.stopping = True
        for waiter in self._queue:
            self._give_up(waiter)

    async def _deal_to_waiting(self) -> None:
        try:
            self._again = True
            while self._again and self._queue:
                self._again = False
                await self._deal_in_order()
        except Exception as error:  # noqa: BLE001  # it is raised where the fetches came from
            for waiter in self._queue:
                if not waiter.answer.done():
                    waiter.answer.set_exception(error)
        finally:
            self._dealing = False
            self._watch()

    async def _deal_in_order(self) -> None:
        """Deal to each that waits, the one that does so longest first, until there is nothing for the others either."""
        for waiter in list(self._queue):
            if waiter.answer.done():
                continue
            try:
                dealt = await self._deal(waiter.ask, waiter.epoch)
            except InputError as error:  # its own: its transaction ends, or a newer process has its name
                if not waiter.answer.done():
                    waiter.answer.set_exception(error)
                continue
            if waiter.answer.done():  # it has gone, or its time was up
                self._again = self._again or dealt.claim is not None
                self.give_back(dealt.claim)
            elif dealt.claim is not None or self.stopping or not waiter.ask.wait_ms:
                waiter.answer.set_result(dealt)
            else:
                waiter.reason = dealt.waiting_for
            if dealt.claim is None and self.options.mode == "shared":  # there is as little for the others
                for other in self._queue:
                    other.reason = dealt.waiting_for
                    if not other.ask.wait_ms and not other.answer.done():
                        other.answer.set_result(dealt)
                return

    async def _deal(self, ask: FetchAsk, epoch: int) -> Dealt:
        log, state = await self.open()
        self._looked_ms = self._desk.clock.now_ms()
        if ask.wait_ms:
            self._arm(log)  # before looking, so that nothing is missed
        if self._has_run_out():
            try:
                await self.return_run_out()
            except RetryError:  # dealing needs no write: what ran out is free, and counts no attempt, as after a crash
                pass
            log, state = await self.open()
        if self.stopping:
            return Dealt(None, NOTHING, STOPPING)
        if ask.member:
            self.members.check(ask.member, epoch)
        if not state.paused and self._stands_by(ask.member):
            return Dealt(None, NOTHING, STANDBY)
        if self.dispatcher.lanes is not None:
            self.dispatcher.lanes.assign(self.members)
        dealt = await self._found(log, state, ask, epoch)
        if dealt.waiting_for == SPANS and ask.wait_ms:  # until other groups have fewer: nobody wakes it for that
            self._look_at(self._desk.clock.monotonic_ms() + SPANS_LOOK_MS)
        if dealt.claim is not None and self._has_no_member(dealt.claim):  # it left while messages were read
            self.give_back(dealt.claim)
            return Dealt(None, NOTHING, NO_MESSAGES)
        if dealt.claim is not None and ask.transaction_id is not None:
            try:
                self.check_open(ask.transaction_id)
            except BasaltError:
                self.give_back(dealt.claim)
                raise
        return dealt

    async def _found(self, log: TopicLog, state: GroupState, ask: FetchAsk, epoch: int) -> Dealt:
        """Find messages for a fetch; look again where the log was read again meanwhile."""
        while True:
            in_gaps = self._desk.manager.state.groups.is_scattered(self.number)
            dealt = await self.dispatcher.deal(log, state, ask, epoch, in_gaps=in_gaps)
            if dealt.claim is not None or self.dispatcher.is_of(state):
                return dealt
            log, state = await self.open()

    def check_open(self, transaction_id: int) -> None:
        """Refuse a transaction to which nothing can be dealt any more: nobody would hear of its end."""
        transaction = self._desk.manager.state.get(transaction_id)
        if transaction.state is not State.OPEN:
            raise ConflictError(
                f"transaction {self._desk.ids.text(transaction_id)} is ending",
                field="transaction",
                hint="begin another one",
            )

    def _stands_by(self, name: str) -> bool:
        """True for a member of a stream whose turn it is not: that of who has messages, else of who joined first."""
        if self.options.mode != "stream":
            return False
        holder = next((claim.member for claim in self.dispatcher.claims), None)
        if holder is None:
            holder = next((member.name for member in self.members), name)
        return holder != name

    async def open(self) -> tuple[TopicLog, GroupState]:
        """The log that it reads, and its durable state. `GroupNotFoundError` once one of them is gone."""
        logs = self._desk.logs
        try:
            log = logs.find_in_doubt(self.title) or await logs.open(self.title)
        except TopicNotFoundError:
            log = None
        await self._desk.manager.ensure_known()
        state = self.state
        if log is None or log.topic.generation != state.generation:
            raise GroupNotFoundError(
                f"topic {self.title} was deleted, and group {state.name} with it", field="group", hint="make it again"
            )
        return log, state

    def _answer(self, dealt: Dealt, epoch: int) -> GroupFetch:
        state, claim, clock = self.state, dealt.claim, self._desk.clock
        if claim is None:
            waiting_for, held_by = dealt.waiting_for, dealt.fetch.held_by
            if held_by is not None:
                waiting_for = f"held {self._desk.ids.text(self._desk.manager.id_of(held_by))}"
            return GroupFetch(None, None, None, state.round, 0, None, epoch, waiting_for, dealt.fetch)
        until_ms = round(clock.now_ms() + claim.until_ms - clock.monotonic_ms())
        return GroupFetch(
            claim.number, claim.after, claim.through, claim.round, claim.attempt, until_ms, epoch, "", dealt.fetch
        )

    # What runs out.

    def _has_run_out(self) -> bool:
        now_ms = self._desk.clock.monotonic_ms()
        if self._replaced:
            return True
        if self._timer is not None and now_ms < self._timer_ms:
            return False
        due_ms, expiry_ms = self.dispatcher.claims.due_ms(), self.members.next_expiry_ms()
        return (due_ms is not None and due_ms <= now_ms) or (expiry_ms is not None and expiry_ms <= now_ms)

    async def return_run_out(self) -> int:
        """Log that claims ran out, and those of members that are gone; how many there were."""
        manager = self._desk.manager
        for waiter in self._queue:
            self._renew(waiter)
        self.members.expire(self._desk.clock.monotonic_ms())

        def stage(group: Group) -> int:
            if self._closed:
                return 0  # it is dealt elsewhere, or dealt anew
            state, claims = self.state, self.dispatcher.claims
            reason, ended = ReturnReason.MEMBER_LOST, _together(claim for claim in claims if self._is_lost(claim))
            if not ended:
                over = claims.run_out(self._desk.clock.monotonic_ms())
                reason = ReturnReason.CLAIM_EXPIRED
                ended = _together(claim for claim in over if (claim.member, claim.epoch) not in self._leaving)
            manager.apply(group, self.failed(state, list(map(ClaimPart.whole, ended)), reason, group.now_ms))
            return len(ended)

        total, returned = 0, 1
        while returned:
            self._replaced = False
            try:
                returned = await manager.run_for_groups(stage)
            except BaseException:
                self._replaced = True  # some are left whose members are gone: the next look finds them
                raise
            total += returned
        self.wake()
        return total

    def _is_lost(self, claim: Claim) -> bool:
        """True for a claim of a member that is gone without having left."""
        return self._has_no_member(claim) and (claim.member, claim.epoch) not in self._leaving

    def _has_no_member(self, claim: Claim) -> bool:
        member = self.members.get(claim.member)
        return bool(claim.member) and (member is None or member.epoch != claim.epoch)

    def failed(
        self,
        state: GroupState,
        ended: Sequence[ClaimPart],
        reason: ReturnReason,
        now_ms: int,
        delay_ms: int | None = None,
    ) -> list[Edit]:
        """In a stage: these parts of claims come back, and count as failed. The edits that say so, to be applied.

        Those of which some could not have been acknowledged, for an earlier message of the key is held by a transaction, come back uncounted.
        """
        parts, held = list[ClaimPart](), list[ClaimPart]()
        for part in ended:
            (held if self.dispatcher.is_held(part.spans) else parts).append(part)
        if held:
            self.dispatcher.give_back(held, returned=False)
        by_attempt: dict[int, list[Spans]] = defaultdict(list)
        for claim, spans, _ in parts:
            by_attempt[claim.attempt].append(spans)
        made, table = list[Edit](), self._desk.manager.state.groups
        for attempt, sets in sorted(by_attempt.items()):
            again_ms = retry_at_ms(state.options, attempt, now_ms)
            if delay_ms is not None and again_ms != NEVER_MS:
                again_ms = now_ms + delay_ms
            made += table.propose_return(self.number, Spans.union(sets), reason, again_ms, now_ms).edits
        self.totals.was_returned(reason, sum([messages for _, _, messages in parts]))
        self.dispatcher.give_back(parts, returned=True)
        return made

    def _watch(self) -> None:
        """Be woken by the topic's log while fetches wait, and when a claim, a lease or a delay runs out."""
        if not self._queue and self._arrival is not None and not self._dealing:
            self._arrival.cancel()
            self._arrival = None
        clock = self._desk.clock
        times = [self.dispatcher.claims.due_ms(), self.members.next_expiry_ms()]
        due_ms = self.dispatcher.due_ms
        if self._queue and due_ms is not None and due_ms > self._looked_ms:  # else it waits for something else by now
            times.append(due_ms - clock.now_ms() + clock.monotonic_ms())
        known = [at_ms for at_ms in times if at_ms is not None]
        if known:
            self._look_at(min(known))

    def _look_at(self, at_ms: float) -> None:
        """Look at this time what has run out."""
        if self._closed:
            return
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return  # it is set anew, then
            self._timer.cancel()
        self._timer_ms = at_ms
        left_ms = max(at_ms - self._desk.clock.monotonic_ms(), TIMER_MS_MIN)
        self._timer = asyncio.get_running_loop().call_later(left_ms / 1_000, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._start(self._look_at_time())

    async def _look_at_time(self) -> None:
        try:
            if self._has_run_out():
                await self.return_run_out()
        except GroupNotFoundError:
            self.dispatcher.restart()  # nothing is left to be returned, now or later
            self.wake()
            return
        except BasaltError:  # the store fails: what ran out is returned by the next look
            await asyncio.sleep(RETRY_MS / 1_000)
        self.wake()
        self._watch()

    def _arm(self, log: TopicLog) -> None:
        if not self._closed and (self._arrival is None or self._arrival.done()):
            self._arrival = log.waiter()
            self._arrival.add_done_callback(self._arrived)

    def _arrived(self, arrival: asyncio.Future[None]) -> None:
        if not arrival.cancelled():
            self.wake()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._desk.tasks.add(task)
        task.add_done_callback(self._desk.tasks.discard)
        return task

    def end(self) -> None:
        """The group is gone: tell who waits, and look at no time any more."""
        try:
            _ = self.state
        except GroupNotFoundError as gone:
            for waiter in self._queue:
                if not waiter.answer.done():
                    waiter.answer.set_exception(gone)
        self.close()

    def leave(self) -> None:
        """The topic is another reign's from now on: answer who waits with what it waits for, and end."""
        for waiter in list(self._queue):
            self._give_up(waiter)
        self.close()

    def close(self) -> None:
        """Answer who waits, and look at no time any more: the group is not served here."""
        self._closed = True
        self.stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
        if self._arrival is not None:
            self._arrival.cancel()


def _together(claims: Iterable[Claim]) -> list[Claim]:
    """As many of these claims as end at once."""
    found, spans = list[Claim](), 0
    for claim in claims:
        found.append(claim)
        spans += len(claim.left)
        if len(found) == TOGETHER_MAX or spans >= TOGETHER_SPANS_MAX:
            break
    return found


def options_of(state: GroupState) -> GroupOptions:
    """The options of a group, as the log has them."""
    return _options(state.options)


@lru_cache(OPTIONS_AT_HAND)
def _options(encoded: bytes) -> GroupOptions:
    return msgspec.json.decode(encoded, type=GroupOptions)


def refuse_another_mode(state: GroupState, live: LiveGroup, options: GroupOptions) -> None:
    """Refuse another mode while something is dealt and not acknowledged: `ConflictError`."""
    dispatcher, known = live.dispatcher, live.options
    if (options.mode, options.key) != (known.mode, known.key) and (
        len(dispatcher.claims) or dispatcher.pending or len(state.returns) or len(state.acknowledged) > 1
    ):
        raise ConflictError(
            f"group {state.name} is {known.mode}, and some of its messages are dealt and not acknowledged",
            field="mode",
            hint="let its members finish, or seek it, then change its mode",
        )
