"""The consumer groups of one store: made, changed, listed, sought and deleted; fetched from, acknowledged, released.

What a group has acknowledged is state of the transaction manager, and each change of it an edit of its log. What this process
knows beside it (claims, members, who waits) is a `LiveGroup`, kept by `LiveGroups`. docs/decisions/0036-claims-in-memory.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from basalt.api.bodies.groups import (
    Acknowledged,
    AcknowledgeRequest,
    DeletedGroup,
    GroupInfo,
    GroupOptions,
    PositionRequest,
    Released,
    ReleaseRequest,
    SeekRequest,
    Sought,
    acknowledge_of,
    check_options,
)
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import WorkAcknowledge
from basalt.api.positions import PositionKind, parse_position
from basalt.catalog.topics import Topic, TopicName
from basalt.errors import (
    BusyError,
    ConflictError,
    GroupNotFoundError,
    InputError,
)
from basalt.groups.acknowledgements import Acknowledging, PlannedAcknowledgement
from basalt.groups.claims import ClaimPart
from basalt.groups.fetches import KEYED, FetchAsk
from basalt.groups.keyed.window import WINDOW_BYTES_MAX
from basalt.groups.live_group import Desk, GroupFetch, LiveGroup, options_of, refuse_another_mode
from basalt.groups.live_groups import LiveGroups
from basalt.groups.members import FormerMembers
from basalt.groups.places import MessagePlaces
from basalt.groups.upkeep import Upkeep
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.messages import Messages
from basalt.messaging.ranges import Ranges
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import before, end_of
from basalt.runtime.group_commit import Group
from basalt.transactions.log_state import LogState
from basalt.transactions.manager import ExternalTransactions, Transactions
from basalt.transactions.rules.edits import Edit, Proposal, ReturnReason
from basalt.transactions.rules.groups import GroupState
from basalt.transactions.rules.transaction import Transaction, TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.keys import position, topic_prefix
from basalt_engine.spans.spans import ZERO_ID, Spans

# Claim numbers begin anywhere, so that a number of before a restart means no other claim, whatever the clock did; below 2^53,
# which JSON's readers hold.
CLAIM_NUMBER_BITS = 52
# A round is drawn, too: what was dealt in one that could not be written, or by a group of this name that was deleted, is not
# taken for this one's. Counting them would need a number that survives failed writes, restarts and clocks that step back.
ROUND_BITS = 31
OPTIONS = msgspec.json.Encoder(order="sorted")


class GroupLimits(NamedTuple):
    """The most that groups may have: settings subscriptions.*."""

    groups_max: int = 10_000
    members_max: int = 1_000
    unacked_max: int = 100_000
    claim_ms_max: int = 12 * 3_600_000
    window_bytes_max: int = WINDOW_BYTES_MAX


class Groups:
    """All groups of one store. Everything runs on the event loop of its group commit."""

    def __init__(
        self, clock: Clock, manager: LogState, managed: Transactions, logs: TopicLogs, messages: Messages, places: MessagePlaces,
        ends: StableEnds, ranges: Ranges, ids: TransactionIds, limits: GroupLimits,
    ) -> None:  # fmt: skip
        self.limits = limits
        self._clock = clock
        self._manager = manager
        self._external = isinstance(managed, ExternalTransactions)
        self._logs = logs
        self._ends = ends
        self._ranges = ranges
        self._ids = ids
        self._places = places
        self._claim_number = secrets.randbits(CLAIM_NUMBER_BITS)
        self.desk = Desk(
            clock, manager, logs, messages, ids, self._next_claim, limits.members_max, limits.window_bytes_max,
            FormerMembers(), set(),
        )  # fmt: skip
        self.live = LiveGroups(self.desk)
        self._acknowledging = Acknowledging(manager, places, ranges, self.live)
        self.upkeep = Upkeep(self.desk, self.live, self._acknowledging)
        self.make_topic: Callable[[TopicName], Awaitable[None]]  # set by who knows all owners

    # Finding.

    async def find(self, title: TopicName, name: str) -> LiveGroup:
        """The group of the topic's present generation; `TopicNotFoundError`, `GroupNotFoundError`."""
        state = await self._found(title, name)
        if self._manager.follows and (state is None or self.live.get(state.number) is None):
            await self._manager.ask()  # what others had logged of it before its topic came here counts
            state = await self._found(title, name)
        if state is None:
            hint = "create it, or check the name"
            raise GroupNotFoundError(f"topic {title} has no group {name[:80]!r}", field="group", hint=hint)
        return self.live.of(state, title)

    async def _found(self, title: TopicName, name: str) -> GroupState | None:
        log = await self._open(title)
        return self._manager.state.groups.find(log.topic.keys.prefix, log.topic.generation, name)

    def info(self, title: TopicName, state: GroupState) -> GroupInfo:
        """A group as people see it, without its figures."""
        live = self.live.get(state.number)
        return GroupInfo(
            title.namespace, title.name, state.generation, state.name, state.number, options_of(state), state.paused,
            state.round, HexMessageId(state.acknowledged.floor), state.made_ms, state.used_ms,
            0 if live is None else len(live.members), 0 if live is None else len(live.dispatcher.claims),
        )  # fmt: skip

    async def _open(self, title: TopicName) -> TopicLog:
        if self._external:
            raise InputError(
                "consumer groups need the builtin transaction manager, and transactions.manager is external",
                field="transactions.manager",
            )
        log = self._logs.find_in_doubt(title) or await self._logs.open(title)
        if not self._manager.is_known:
            await self._manager.ensure_known()
        self.live.look_again()
        return log

    def _next_claim(self) -> int:
        self._claim_number += 1
        return self._claim_number

    # Making and changing.

    async def make(self, title: TopicName, name: str, options: GroupOptions) -> LiveGroup:
        """A new group, or the one that is there with these options; `GroupExistsError` with others. Its dead letters have a topic then."""
        self._check(title, options)
        log = await self._open(title)
        floor = await self._floor_of(log, options.start, "start")
        encoded = OPTIONS.encode(options)

        def proposed(topic: Topic, now_ms: int) -> Proposal:
            table, prefix = self._manager.state.groups, topic.keys.prefix
            if table.find(prefix, topic.generation, name) is None and len(table) >= self.limits.groups_max:
                raise BusyError(
                    f"there are {len(table)} consumer groups, the limit is {self.limits.groups_max}",
                    hint="delete some, or raise subscriptions.groups_max",
                )
            return table.propose_make(prefix, topic.generation, name, encoded, floor, now_ms, _new_round())

        if options.dead_letter_topic is not None:
            proposed(log.topic, self._clock.now_ms())  # what is refused makes no topic
            await self.make_topic(dead_letter_title(self._logs, title, options))

        def stage(group: Group) -> None:
            self._apply(group, proposed(self._logs.present(log).topic, group.now_ms))

        await self._manager.run_for_groups(stage)
        state = await self._found(title, name)
        if state is None:
            raise GroupNotFoundError(
                f"group {name[:80]!r} of {title} was deleted as soon as it was made", field="group"
            )
        return self.live.of(state, title)

    async def change(self, title: TopicName, name: str, options: GroupOptions, *, dry_run: bool = False) -> LiveGroup:
        """Give the group other options. `ConflictError`: another mode while something is dealt and not acknowledged."""
        self._check(title, options)
        found = await self.find(title, name)
        refuse_another_mode(found.state, found, options)
        if dry_run:
            return found
        if options.dead_letter_topic is not None:
            await self.make_topic(dead_letter_title(self._logs, title, options))

        def stage(group: Group) -> None:
            state = found.state
            live = self.live.present(state)
            refuse_another_mode(state, live, options)
            proposal = self._manager.state.groups.propose_change(
                live.number, OPTIONS.encode(options), state.paused, group.now_ms
            )
            self._apply(group, proposal)
            live.change(options)

        await self._manager.run_for_groups(stage)
        return self.live.present(found.state)

    async def pause(self, title: TopicName, name: str) -> LiveGroup:
        """Deal nothing until `resume`; what is claimed may be acknowledged."""
        return await self._set_paused(title, name, True)

    async def resume(self, title: TopicName, name: str) -> LiveGroup:
        """Deal again."""
        return await self._set_paused(title, name, False)

    async def _set_paused(self, title: TopicName, name: str, paused: bool) -> LiveGroup:
        live = await self.find(title, name)

        def stage(group: Group) -> None:
            table = self._manager.state.groups
            self._apply(group, table.propose_change(live.number, live.state.options, paused, group.now_ms))
            group.when_durable(live.wake)

        await self._manager.run_for_groups(stage)
        return live

    async def delete(self, title: TopicName, name: str, force: bool = False, *, dry_run: bool = False) -> DeletedGroup:
        """Forget the group. `ConflictError` names a transaction that has acknowledged and not ended; with `force` that commits without it."""
        live = await self.find(title, name)

        def stage(group: Group) -> DeletedGroup:
            state, table = live.state, self._manager.state.groups
            proposal = table.propose_forget((live.number,), force)
            pending = tuple(self._ids.text(each) for each in table.pending_in(live.number))
            gone = DeletedGroup(
                title.namespace, title.name, name, HexMessageId(state.acknowledged.floor), len(state.acknowledged), len(live.members),
                len(live.dispatcher.claims), pending, dry_run,
            )  # fmt: skip
            if not dry_run:
                self._apply(group, proposal)
                group.when_durable(lambda: self.live.drop(live))
            return gone

        return await self._manager.run_for_groups(stage)

    async def seek(
        self, title: TopicName, name: str, asked: SeekRequest, *, dry_run: bool = False, force: bool = False
    ) -> Sought:
        """Go on behind another place: claims are revoked, attempts forgotten. `ConflictError` where a transaction is in the way."""
        found = await self.find(title, name)
        log, state = await found.open()
        floor = await self._floor_of(log, asked.to, "to")
        old = state.acknowledged.floor
        low, high = sorted((old, floor))
        between, exact = await self._count(title, low, high)
        exact = exact and len(state.acknowledged) <= 1
        skipped, repeated = (between, 0) if floor >= old else (0, between)

        def stage(group: Group) -> Sought:
            table, present = self._manager.state.groups, found.state
            live = self.live.present(present)
            proposal = table.propose_seek(live.number, floor, group.now_ms, _new_round(present.round), force)
            doomed = tuple(self._ids.text(each) for each in table.pending_in(live.number))
            claims = len(live.dispatcher.claims)
            if not dry_run:
                self._apply(group, proposal)
                live.restart()
                group.when_durable(live.wake)
            return Sought(HexMessageId(floor), present.round, skipped, repeated, exact, claims, doomed, dry_run)

        return await self._manager.run_for_groups(stage)

    async def position(self, title: TopicName, name: str, asked: PositionRequest) -> Acknowledged:
        """Note how far somebody has come who keeps the position of a `tracked` group; `ConflictError` for others."""
        live = await self.find(title, name)
        if live.options.mode != "tracked":
            raise ConflictError(
                f"group {name} is {live.options.mode}: its members fetch and acknowledge",
                field="group",
                hint="make a tracked one",
            )
        entry = WorkAcknowledge(title.namespace, title.name, name, up_to=asked.up_to)
        return await self.acknowledge_entry(live, entry)

    # Members' calls.

    async def fetch(self, title: TopicName, name: str, ask: FetchAsk) -> GroupFetch:
        """The next messages for a member, as a claim; or what it waits for."""
        live = await self.find(title, name)
        self._check_fetch(live, ask)
        if ask.transaction_id is not None:
            live.check_open(ask.transaction_id)
            self.live.deals_to(ask.transaction_id, live)
        return await live.fetch(ask)

    def _check_fetch(self, live: LiveGroup, ask: FetchAsk) -> None:
        if live.options.mode == "tracked":
            raise ConflictError(f"group {live.state.name} is tracked: nothing is dealt to its members", field="group")
        if live.options.mode == KEYED and not ask.member:
            raise InputError(
                f"group {live.state.name} is keyed: its keys are dealt to members",
                field="member",
                hint="give this process a name that no other in the group has",
            )
        if ask.claim_ms is not None and not 0 < ask.claim_ms <= self.limits.claim_ms_max:
            raise InputError(f"claimMs {ask.claim_ms} is not 1 to {self.limits.claim_ms_max}", field="claimMs")

    async def acknowledge(
        self, title: TopicName, name: str, asked: AcknowledgeRequest, transaction_id: int | None = None
    ) -> Acknowledged:
        """Acknowledge at once, or with a transaction's commit."""
        live = await self.find(title, name)
        entry = acknowledge_of(title.namespace, title.name, name, asked)
        return await self.acknowledge_entry(live, entry, transaction_id, counting=True)

    async def acknowledge_entry(
        self,
        live: LiveGroup,
        entry: WorkAcknowledge,
        transaction_id: int | None = None,
        staged: Callable[[Group], None] | None = None,
        *,
        counting: bool = False,
    ) -> Acknowledged:
        """As `acknowledge`, of an entry of a Work. `staged` is called while it is to be written; `counting`: see `Acknowledging.planned`."""
        planned = [await self._acknowledging.planned(live, entry, transaction_id, counting=counting)]

        def stage(group: Group) -> BasaltError | None:
            lost = self._acknowledging.check(planned, transaction_id, group.now_ms, committing=transaction_id is None)
            if lost is not None:
                self._manager.apply(group, lost.edits)
                return lost.refusal
            self._manager.apply(group, self._acknowledging.stage(planned, transaction_id, group.now_ms))
            if staged is not None:
                staged(group)
            return None

        refusal = await self._manager.run_for_groups(stage)
        if refusal is not None:
            raise refusal
        return Acknowledged(planned[0].acknowledged, planned[0].already, planned[0].exact)

    async def release(self, title: TopicName, name: str, asked: ReleaseRequest) -> Released:
        """Give messages back before they are acknowledged: they are dealt again, to anybody."""
        live = await self.find(title, name)
        entry = WorkAcknowledge(
            title.namespace,
            title.name,
            name,
            asked.ids,
            asked.up_to,
            asked.member,
            asked.epoch,
            asked.round,
            asked.claims,
            asked.except_ids,
        )
        planned = await self._acknowledging.planned(live, entry)

        def stage(group: Group) -> int:
            made, released = self._acknowledging.release(planned, asked, group.now_ms)
            self._manager.apply(group, made)
            group.when_durable(live.wake)
            return released

        return Released(await self._manager.run_for_groups(stage))

    async def unpark(self, title: TopicName, name: str, ids: Sequence[bytes] | None) -> int:
        """Deal parked messages again, as if they had never failed: these, or all (None), a part at a time; how many."""
        live = await self.find(title, name)
        return await self._acknowledging.unpark(live, ids)

    # For commits, which acknowledge in the same decision.

    async def plan(
        self, entries: Sequence[WorkAcknowledge], transaction: Transaction | None
    ) -> list[PlannedAcknowledgement]:
        """Find the groups and messages of a Work's entries, before its stage."""
        planned = []
        for entry in entries:
            live = await self.find(self._logs.title(entry.namespace, entry.topic), entry.group)
            planned.append(await self._acknowledging.planned(live, entry))
        return planned

    def check(
        self, planned: Sequence[PlannedAcknowledgement], transaction: Transaction | None, now_ms: int, writer: int = 0
    ) -> Proposal | None:
        """In a stage, before anything is changed: raises why a commit must not be; a proposal where its transaction is doomed by it.

        Also of a commit that plans nothing: what it acknowledged before may be out of order. `writer`: of a one-shot transaction.
        """
        transaction_id = None if transaction is None else transaction.id
        return self._acknowledging.check(planned, transaction_id, now_ms, committing=True, writer=writer)

    def stage(
        self,
        group: Group,
        planned: Sequence[PlannedAcknowledgement],
        transaction_id: int | None,
        now_ms: int,
        writer: int = 0,
    ) -> list[Edit]:
        """In a stage, after `check`: the edits that acknowledge. Apply them in this stage."""
        for each in planned:
            if each.asked.reject:
                group.when_durable(partial(each.live.totals.were_dead_lettered, len(each.asked.reject)))
        return self._acknowledging.stage(planned, transaction_id, now_ms, writer)

    def transaction_ended(
        self, group: Group, transaction_id: int, reason: ReturnReason | None, pending: Mapping[int, Spans], *, counts: bool = True,
    ) -> list[Edit]:  # fmt: skip
        """In a stage, once its end is applied: a transaction acknowledges no more, and what was dealt to it is free or has failed.

        `reason` is why it did not commit; None: it did. `pending` is what it had acknowledged, by group. Unless `counts` is false, that has
        failed, and so have claims that were dealt to it. Returns the edits that say so, to be applied.
        """
        table, failed = self._manager.state.groups, dict(pending) if counts and reason is not None else {}
        for number, spans in pending.items():
            live = self.live.get(number)
            if live is not None and number in table.by_number:
                if number in failed:
                    live.dispatcher.let_go(spans)
                    if live.dispatcher.is_held(spans):  # by another transaction: this one could not have committed
                        del failed[number]
                messages = live.dispatcher.decide(
                    transaction_id, spans, committed=reason is None, returned=number in failed
                )
                if reason is not None and number in failed:
                    live.totals.was_returned(reason, messages)
                group.when_durable(live.wake)
        made = [] if reason is None else list(table.returns_of(failed, reason, group.now_ms))
        for live, claims in self.live.dealt_to(transaction_id):
            if live.number not in table.by_number:
                continue
            parts = list(map(ClaimPart.whole, claims))
            if reason is not None and counts:
                made += live.failed(live.state, parts, reason, group.now_ms)
            else:
                live.dispatcher.give_back(parts, returned=False)
            group.when_durable(live.wake)
        return made

    # How.

    def _apply(self, group: Group, proposal: Proposal) -> None:
        if proposal.refusal is not None:
            raise proposal.refusal
        self._manager.apply(group, proposal.edits)

    def _check(self, title: TopicName, options: GroupOptions) -> None:
        check_options(options, self.limits.unacked_max, self.limits.claim_ms_max)
        if options.dead_letter_topic is not None and dead_letter_title(self._logs, title, options) == title:
            raise InputError(
                f"topic {title} cannot have the dead letters of its own group: they would come back for ever",
                field="deadLetterTopic",
                hint="name another topic",
            )

    async def _floor_of(self, log: TopicLog, spec: str, field: str) -> bytes:
        """The place that a position means for a group: nothing at or before it is dealt. Nothing undecided lies before it."""
        place = parse_position(spec, self._clock.now_ms(), field=field)
        if place.kind is PositionKind.START:
            return ZERO_ID
        settled = await self._ends.settled(log)
        if place.kind is PositionKind.END:
            return settled.id or ZERO_ID
        if place.id is not None:
            floor = before(place.id) or ZERO_ID
        else:
            last = before(position(place.time_ms or 0, 0))
            floor = end_of(last) if last else ZERO_ID
        if floor > settled.id:  # what comes, comes behind the end
            await self._places.refuse_undecided(log, floor, field)
        return min(floor, settled.id or ZERO_ID)

    async def _count(self, title: TopicName, low: bytes, high: bytes) -> tuple[int, bool]:
        if low == high:
            return 0, True
        found = await self._ranges.advance(title, None if low == ZERO_ID else low, through=high)
        return found.messages, found.at_end

    async def list(self, title: TopicName, start: str = "") -> list[GroupState]:
        """The groups of a topic by name, from this name on."""
        if self._logs.gate.is_absent(prefix := topic_prefix(*title)) and self._manager.is_known:
            generation = (await self._logs.catalog.describe(title)).generation
            if generation < 0:
                raise self._logs.catalog.absent(title)
        else:
            generation = (await self._open(title)).topic.generation
        found = self._manager.state.groups.of_topic(prefix, generation)
        return sorted((state for state in found if state.name >= start), key=lambda state: state.name)


def _new_round(before: int = 0) -> int:
    """A number that no round had of which anybody may still know: but once in two thousand million times."""
    while (drawn := 1 + secrets.randbits(ROUND_BITS)) == before:
        pass
    return drawn


def dead_letter_title(logs: TopicLogs, title: TopicName, options: GroupOptions) -> TopicName:
    """The topic of a group's dead letters: of the same namespace, unless it is named as `namespace/topic`."""
    assert options.dead_letter_topic is not None
    namespace, _, name = options.dead_letter_topic.rpartition("/")
    return logs.title(namespace or title.namespace, name)
