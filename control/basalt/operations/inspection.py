"""Answers to operators about transactions: which are open, what each holds back, what happened to it; and forced ends.

The diagnosis of one transaction, in words, are rules without I/O: what it holds back, its fate at the deadline, what an
operator should do. `basalt tx describe`, `explain tx` and `tx find-hanging` only show what these say.

Operators end other people's transactions with a line in the audit. An abort is refused where the transaction wrote outside
Basalt: those writes would be seen, and nobody would undo them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import structs

from basalt.api.bodies import transactions as bodies
from basalt.api.bodies.ranges import Holder
from basalt.catalog.topics import TopicName, title_of
from basalt.commits.commit_stage import Guard
from basalt.commits.coordinator import Coordinator
from basalt.errors import (
    ConflictError,
    ExternalWritesError,
    SessionFencedError,
    TopicNotFoundError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.ranges import BlockedReaders, Ranges
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.log_reader import ReadBudget, end_of
from basalt.operations.audit import Audit, By
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.log.timeline import key_text, timeline_of
from basalt.transactions.manager import EXTERNAL_WRITERS
from basalt.transactions.rules.edits import Invalidated
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.refusals import naming
from basalt.transactions.rules.transaction import (
    Join,
    Kind,
    Sees,
    State,
    TableJoin,
    Transaction,
    TransactionIds,
    sees_all,
)
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.clock import Clock
from basalt_engine.keys import position
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.system import SystemTable, number_name
from basalt_engine.table import Store

SEARCHED_MAX = 1_000  # transactions whose topics one call looks into for rows that hold readers back
CALL_ROWS_MAX = 100_000  # rows that one call reads to tell what is held back: some five seconds where they are large
SHARES = 10  # of the rows that a caller names, the part that one transaction may use up: others are to be found as well
STORED_LOOKUPS_MAX = 10_000  # topics times write pointers, of which it is asked what they have stored
AUDIT_LINES_MAX = 100  # of one transaction, in its timeline
WRITE_POINTERS_SHOWN_MAX = 100
HALF_TIME_OUT = 2  # a transaction that has used more than a half of its time-out is looked at
SLICE_OUTCOMES = 50  # looked up without a pause: those that are packed take a fifth of a millisecond each
SLICE_TRANSACTIONS = 500  # looked at without a pause: a few milliseconds

STATES: Mapping[str, State] = {"open": State.OPEN, "committing": State.COMMITTING, "aborting": State.ABORTING}
_MEANINGS = {
    State.COMMITTED: "it is committed: every later reader sees all of it",
    State.ABORTED: "it was aborted: readers of committed messages never see any of it",
    State.INVALID: "it failed and may have left writes behind: they are hidden, and retention removes them",
}


class Filter(NamedTuple):
    """The transactions that a list is to have: in this state, of this owner, open for longer, writing to this topic, of this principal."""

    state: str | None = None
    owner: str | None = None
    older_than_ms: int | None = None
    topic: str | None = None  # namespace:topic
    principal: str | None = None  # as it is shown

    def lets_through(self, transaction: Transaction, now_ms: int, sees: Sees = sees_all) -> bool:
        """Tell whether everything that is given is true of the transaction. By what one may not see nothing is found."""
        by_names = self.owner is not None or self.topic is not None or self.principal is not None
        return (not by_names or sees(transaction.belonging)) and (
            (self.state is None or transaction.state is STATES[self.state])
            and (self.owner is None or transaction.owner == self.owner)
            and (self.principal is None or transaction.belonging.shown == self.principal)
            and (self.older_than_ms is None or now_ms - transaction.began_ms > self.older_than_ms)
            and (self.topic is None or any(join.topic == f"{self.topic}:".encode() for join in transaction.topics))
        )


class Inspection:
    """Answers operators' questions about the transactions of one store."""

    def __init__(
        self, store: Store, clock: Clock, transactions: Coordinator, ids: TransactionIds,
        first_unstable: FirstUnstable, ranges: Ranges, topics: TopicLogs, audit: Audit,
    ) -> None:  # fmt: skip
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._transactions = transactions
        self._ids = ids
        self._first_unstable = first_unstable
        self._ranges = ranges
        self._topics = topics
        self._audit = audit

    async def list(
        self, wanted: Filter, sees: Sees = sees_all, *, after: int = 0, limit: int | None = None
    ) -> bodies.InspectedList:
        """The transactions that have not ended, oldest first; those that began after one, as many as are wanted."""
        everything = self._transactions.state.transactions()
        now_ms = self._clock.now_ms()
        shown: list[bodies.InspectedTransaction] = []
        following = None
        first = bisect_right(everything, after, key=_id_of)
        for number, each in enumerate(islice(everything, first, None), 1):
            if number % SLICE_TRANSACTIONS == 0:
                await asyncio.sleep(0)  # others go in between
            if not wanted.lets_through(each, now_ms, sees):
                continue
            if len(shown) == limit:
                following = shown[-1].id
                break
            holds_readers = self._first_unstable.surely(each)
            shown.append(bodies.InspectedTransaction(**self._fields(each, now_ms, holds_readers, sees)))
        return bodies.InspectedList(len(everything), tuple(shown), following)

    async def hanging(
        self, wanted: Filter, sees: Sees = sees_all, *, limit: int | None = None, rows: int | None = None
    ) -> bodies.HangingList:
        """The transactions that somebody should look at, worst first. `older_than_ms` says what counts as long.

        With `rows` no more than these are read to tell what they hold back, and for one transaction no more than a tenth of them: for who
        asks again and again.
        """
        everything = self._transactions.state.transactions()
        now_ms = self._clock.now_ms()
        passing = wanted._replace(older_than_ms=None)
        candidates = [each for each in everything if passing.lets_through(each, now_ms, sees)]
        budget, looked_at = ReadBudget(rows or CALL_ROWS_MAX), 0
        share_rows = CALL_ROWS_MAX if rows is None else rows // SHARES
        listed: list[bodies.HangingTransaction] = []
        for transaction in candidates[:SEARCHED_MAX]:
            if budget.is_spent:
                break
            looked_at += 1
            given = min(budget.rows, share_rows)
            share = ReadBudget(given)
            blocks = await self._ranges.blocked_by(transaction, share)
            budget.rows -= given - share.rows
            reasons = why_hanging(transaction, now_ms, wanted.older_than_ms, bool(blocks))
            if reasons:
                fields = self._fields(transaction, now_ms, bool(blocks), sees)
                step = next_step(_as_seen(transaction, sees), fields["id"], now_ms)
                worst = _worst_first(blocks) if sees(transaction.belonging) else ()
                listed.append(bodies.HangingTransaction(**fields, reasons=reasons, blocks=worst, next_step=step))
        listed.sort(key=lambda each: (-sum(1 + block.messages for block in each.blocks), -each.age_ms))
        return bodies.HangingList(len(everything), len(candidates) - looked_at, tuple(listed[:limit]), len(listed))

    async def invalid(self, sees: Sees, after: int, limit: int) -> bodies.FailedWriters:
        """The writers on the invalid list, those that began first at the beginning; behind one of them."""
        state = self._transactions.state
        pointers = state.invalid.pointers
        first = bisect_right(pointers, after)
        shown, checkpoints = list[bodies.FailedWriter](), dict[int, Outcome]()
        for number, pointer in enumerate(pointers[first : first + limit], 1):
            outcome = checkpoints.get(pointer) or state.ended_writer(pointer)
            if outcome is not None:
                checkpoints |= dict.fromkeys(outcome.pointers, outcome)  # which come behind its first one
            shown.append(self._invalid_writer(pointer, outcome, sees))
            if number % SLICE_OUTCOMES == 0:
                await asyncio.sleep(0)  # others go in between
        following = shown[-1].write_pointer if first + limit < len(pointers) else None
        return bodies.FailedWriters(len(pointers), tuple(shown), following)

    def _invalid_writer(self, pointer: int, outcome: Outcome | None, sees: Sees) -> bodies.FailedWriter:
        """A writer on the invalid list, with what is remembered of its transaction."""
        if outcome is None:
            return bodies.FailedWriter(pointer)
        is_seen = sees(outcome.belonging)
        topics, tables = map(transaction_topic, outcome.topics), map(transaction_table, outcome.tables)
        return bodies.FailedWriter(
            pointer, self._ids.text(outcome.id), outcome.kind.name.lower(), outcome.at_ms, outcome.timed_out,
            outcome.owner if is_seen else "", outcome.belonging.shown if is_seen else None,
            tuple(topics) if is_seen else (), tuple(tables) if is_seen else (),
        )  # fmt: skip

    async def describe(
        self, transaction_id: int, sees: Sees = sees_all
    ) -> bodies.TransactionDescription | bodies.EndDescription:
        """Everything that is known of one transaction. `TransactionNotFoundError`: nothing is."""
        state = self._transactions.state
        transaction = state.find(transaction_id)
        if transaction is None:
            return await self._describe_end(state.outcome(transaction_id), sees)
        blocks = await self._ranges.blocked_by(transaction, ReadBudget(CALL_ROWS_MAX))
        now_ms, is_seen = self._clock.now_ms(), sees(transaction.belonging)
        fields = self._fields(transaction, now_ms, bool(blocks), sees)
        if is_seen:
            stored = self._stored_by_topic(transaction)
            fields["topics"] = tuple(transaction_topic(join, stored.get(join.topic)) for join in transaction.topics)
        return bodies.TransactionDescription(
            **fields,
            write_pointers=tuple(transaction.pointers[:WRITE_POINTERS_SHOWN_MAX]),
            write_pointers_left_out=max(len(transaction.pointers) - WRITE_POINTERS_SHOWN_MAX, 0),
            change_set=None if transaction.changes is None else len(transaction.changes),
            change_set_bytes=sum(map(len, transaction.changes or ())),
            lost_to=self._lost_to(transaction, sees),
            timed_out=transaction.timed_out,
            blocks=_worst_first(blocks) if is_seen else (),
            acknowledges=await self._acknowledges(transaction) if is_seen else (),
            held_back=held_back(state.image(), transaction),
            waits_for=waits_for(transaction, now_ms),
            at_deadline=at_deadline(transaction),
            next_step=next_step(_as_seen(transaction, sees), fields["id"], now_ms),
        )

    def _lost_to(self, transaction: Transaction, sees: Sees) -> bodies.TransactionLoss | None:
        """The winner of the conflict that it lost; of one that may not be seen the id alone."""
        loss = transaction.doomed
        if loss is None:
            return None
        text = self._ids.text(loss.winner)
        if sees(transaction.belonging) and sees(self._transactions.state.belonging(loss.winner)):
            return bodies.TransactionLoss(text, loss.winner_owner, key_text(loss.key))
        return bodies.TransactionLoss(text, "", "")

    async def timeline(self, transaction_id: int, sees: Sees = sees_all) -> bodies.Timeline:
        """The steps of one transaction, those that operators forced among them."""
        state = self._transactions.state
        try:
            last_state: Transaction | Outcome | None = state.find(transaction_id) or state.outcome(transaction_id)
        except TransactionNotFoundError:
            last_state = None
        pointers: Sequence[int] = last_state.pointers if last_state is not None else ()
        journal = self._transactions.journal
        since_ms = journal.since_ms(self._clock.now_ms())
        # On a thread, the copy of the journal as well: it may hold a hundred thousand edits.
        logged = await asyncio.to_thread(
            lambda: timeline_of(pointers or (transaction_id,), journal.entries(), last_state, since_ms)
        )
        text = self._ids.text(transaction_id)
        forced = await self._audit.about(f"transaction {text}", AUDIT_LINES_MAX)
        if not logged.steps and not forced:
            state.outcome(transaction_id)  # raises: nothing is known of it
        steps = [*logged.steps]
        for line in reversed(forced):
            detail = {
                "by": (line.principal if line.credential else "") or line.name or line.agent,
                "address": line.address,
                "reason": line.reason,
                "outcome": line.outcome,
            }
            steps.append(bodies.TimelineStep(line.at_ms, True, line.act.replace(" ", "_"), detail))
        steps.sort(key=lambda step: step.at_ms)
        return bodies.Timeline(text, since_ms, logged.whole, tuple(self._step(step, sees) for step in steps))

    async def holder(self, title: TopicName, start: bytes | int | None, sees: Sees = sees_all) -> Holder:
        """The transaction at which readers of committed messages stop, from an id or a time on."""
        first = position(start, 0) if isinstance(start, int) else (start or b"")[:POSITION_BYTES]
        found = await self._first_unstable.of_topic_now(await self._topics.open(title), first)
        searched_to = None if found.searched_to is None else end_of(found.searched_to[:POSITION_BYTES]).hex()
        if found.held_by is None:
            return Holder(searched_to=searched_to)
        transaction_id = self._transactions.manager.id_of(found.held_by)
        text, at = self._ids.text(transaction_id), None if found.held_at is None else found.held_at.hex()
        try:
            transaction = await self._transactions.get(transaction_id)
        except (TransactionEndedError, SessionFencedError, TransactionNotFoundError):  # between the two looks
            return Holder(text, at)
        if not sees(transaction.belonging):
            return Holder(text, at)
        return Holder(text, at, transaction.owner, transaction.deadline_ms)

    async def wrote_externally(self, outcome: Outcome) -> bool:
        """Read an invalid transaction's note: did it write outside Basalt?"""
        return await self._call(EXTERNAL_WRITERS.get, self._system, number_name(outcome.id)) is not None

    async def _describe_end(self, outcome: Outcome, sees: Sees) -> bodies.EndDescription:
        invalid, is_seen = self._transactions.state.invalid, sees(outcome.belonging)
        left = sum(pointer in invalid for pointer in outcome.pointers)
        wrote = outcome.state is State.INVALID and await self.wrote_externally(outcome)
        return bodies.EndDescription(
            id=self._ids.text(outcome.id),
            write_pointer=outcome.write_pointer,
            state=outcome.state.name,
            kind=outcome.kind.name.lower(),
            owner=outcome.owner if is_seen else "",
            principal=outcome.belonging.shown if is_seen else None,
            began_ms=outcome.id // POINTERS_PER_MS,
            ended_ms=outcome.at_ms,
            timed_out=outcome.timed_out,
            topics=tuple(map(transaction_topic, outcome.topics)) if is_seen else (),
            tables=tuple(map(transaction_table, outcome.tables)) if is_seen else (),
            external_writes=wrote,
            invalid_pointers=left,
            meaning=_MEANINGS[outcome.state],
            next_step=_after(outcome, left),
        )

    async def _acknowledges(self, transaction: Transaction) -> tuple[bodies.PendingAcknowledgement, ...]:
        """The messages that it acknowledges, by group."""
        groups = self._transactions.state.groups
        found = []
        for number, spans in list(groups.pending_of(transaction.id).items()):
            group = groups.by_number.get(number)
            if group is None:
                continue
            title, stretches = title_of(group.prefix), list(spans)
            try:
                log = await self._topics.open(title)
            except TopicNotFoundError:  # the group goes with it
                continue
            counted = await self._ranges.count(
                log, await self._ranges.settled(log), stretches, ReadBudget(CALL_ROWS_MAX)
            )
            found.append(
                bodies.PendingAcknowledgement(title.namespace, title.name, group.name, counted.messages, counted.exact)
            )
        return tuple(found)

    def _fields(self, transaction: Transaction, now_ms: int, holds_readers: bool, sees: Sees) -> dict[str, Any]:
        """The fields that lists and descriptions share; of a transaction that may not be seen without whose it is and where it writes."""
        hidden = {} if sees(transaction.belonging) else {"principal": None}
        return {
            **transaction_fields(self._ids, _as_seen(transaction, sees)),
            **hidden,
            "age_ms": max(now_ms - transaction.began_ms, 0),
            "remaining_ms": max(transaction.deadline_ms - now_ms, 0),
            "doomed": transaction.doomed is not None,
            "holds_readers": holds_readers,
        }

    def _stored_by_topic(self, transaction: Transaction) -> dict[bytes, tuple[int, int]]:
        """Messages and bytes that it has stored in each topic and not published, as far as they are in memory."""
        pointers = transaction.pointers
        if len(transaction.topics) * len(pointers) > STORED_LOOKUPS_MAX:
            return {}
        found = {}
        for join in transaction.topics:
            log = self._topics.find_joined(join)
            staged = [] if log is None else [self._topics.staged.in_memory(log, pointer) for pointer in pointers]
            known = [each for each in staged if each is not None]
            if known:
                found[join.topic] = (sum(each[0] for each in known), sum(each[1] for each in known))
        return found

    def _step(self, step: bodies.TimelineStep, sees: Sees) -> bodies.TimelineStep:
        """The step, with names in place of what only the log knows by numbers."""
        detail, names = step.detail, {}
        if (winner := detail.get("winner")) is not None:
            if not sees(self._transactions.state.belonging(int(winner))):
                detail = {name: value for name, value in detail.items() if name not in ("winnerOwner", "key")}
            names["winner"] = self._ids.text(int(winner))
        if (number := detail.get("group")) is not None:
            group = self._transactions.state.groups.by_number.get(int(number))
            names["group"] = f"number {number}, deleted" if group is None else f"{title_of(group.prefix)}/{group.name}"
        return structs.replace(step, detail={**detail, **names}) if names else step


class ForcedEnds:
    """Aborts and invalidates transactions by hand."""

    def __init__(
        self, clock: Clock, transactions: Coordinator, ids: TransactionIds, inspection: Inspection, audit: Audit
    ) -> None:
        self._clock = clock
        self._transactions = transactions
        self._ids = ids
        self._inspection = inspection
        self._audit = audit

    async def abort(
        self, transaction_id: int, by: By, sees: Sees = sees_all, *, force: bool, dry_run: bool
    ) -> bodies.ForcedEnd:
        """Abort; `force` says that the writes outside Basalt have been undone. `ExternalWritesError` where they may be left."""
        transactions = self._transactions

        async def do() -> Outcome:
            return await transactions.abort(transaction_id, await self._guard(was, force))

        # Out of the group commit: what it says is durable, and so is the note that a writer's end leaves with it.
        was = await transactions.outcome(transaction_id)
        if dry_run:
            return await self._would_abort(was, force, sees)
        return await self._done("abort", was, by, sees, do)

    async def invalidate(
        self, transaction_id: int, by: By, sees: Sees = sees_all, *, dry_run: bool
    ) -> bodies.ForcedEnd:
        """Hide for good what the transaction wrote."""
        transactions = self._transactions

        async def do() -> Outcome:
            await transactions.invalidate(transaction_id)
            return transactions.state.outcome(transaction_id)

        was = transactions.state.outcome(transaction_id)
        if dry_run:
            moves = transactions.state.invalidate(transaction_id, self._clock.now_ms()).edits
            state = State.INVALID if moves else was.state
            return self._ended(was, state, sees, changed=bool(moves), dry_run=True)
        return await self._done("invalidate", was, by, sees, do)

    async def _done(
        self, verb: str, was: Outcome, by: By, sees: Sees, do: Callable[[], Awaitable[Outcome]]
    ) -> bodies.ForcedEnd:
        """Do it with a line in the audit, and count it."""

        def outcome_text(outcome: Outcome) -> str:
            return f"{outcome.state.name} before" if outcome.state is was.state else outcome.state.name

        text = self._ids.text(was.id)
        before = self._ended(was, was.state, sees, changed=False, dry_run=False)  # less is known when it has ended
        outcome = await self._audit.act(f"forced {verb}", f"transaction {text}", *by, do, outcome_text)
        changed = outcome.state is not was.state
        self._transactions.totals.events["forced"] += changed
        return structs.replace(before, state=outcome.state.name, changed=changed)

    def _ended(self, was: Outcome, after: State, sees: Sees, *, changed: bool, dry_run: bool) -> bodies.ForcedEnd:
        """The answer about one that was so, and is in this state, or would be; whose it was only for who may look at it."""
        state = self._transactions.state
        end = bodies.ForcedEnd(self._ids.text(was.id), was.state.name, after.name, changed, dry_run, "", (), ())
        if not sees(state.belonging(was.id)):
            return end
        known = state.find(was.id) or was
        topics, tables = map(transaction_topic, known.topics), map(transaction_table, known.tables)
        return structs.replace(end, owner=was.owner, topics=tuple(topics), tables=tuple(tables))

    async def _would_abort(self, was: Outcome, force: bool, sees: Sees) -> bodies.ForcedEnd:
        """Tell what an abort would do; refuse what it would refuse."""
        state = self._transactions.state
        guard = await self._guard(was, force)
        guard(state.find(was.id))
        moves = state.abort(was.id, self._clock.now_ms()).edits
        after = was.state
        if moves:
            after = State.INVALID if any(isinstance(edit, Invalidated) for edit in moves) else State.ABORTED
        return self._ended(was, after, sees, changed=bool(moves), dry_run=True)

    async def _guard(self, was: Outcome, force: bool) -> Guard:
        """Refuse to abort one that wrote outside Basalt, unless it is forced.

        The guard refuses what only the stage that decides can tell: also one that became invalid after `was` was read, for
        then nobody has looked for a note about it. Long transactions are hidden by an abort too, so they need no refusal.
        """
        if force:
            return lambda transaction: None
        text = self._ids.text(was.id)
        if _leaves_the_list(was) and await self._inspection.wrote_externally(was):
            raise _external_writes(was.id, text, was.owner, "had")

        def guard(transaction: Transaction | None) -> None:
            if transaction is not None:
                if transaction.external_writes and transaction.kind is Kind.SHORT:
                    raise _external_writes(was.id, text, transaction.owner, "may have")
            elif was.state is not State.INVALID and _leaves_the_list(self._transactions.state.outcome(was.id)):
                raise ConflictError(
                    f"transaction {text} became invalid meanwhile", hint=f"look again (`basalt tx describe {text}`)"
                )

        return guard


def _id_of(transaction: Transaction) -> int:
    return transaction.id


def _as_seen(transaction: Transaction, sees: Sees) -> Transaction:
    """The transaction without what only those are told who may look at it: label, topics, tables and session."""
    if sees(transaction.belonging):
        return transaction
    return structs.replace(transaction, owner="", topics=(), tables=(), session=None)


def _leaves_the_list(outcome: Outcome) -> bool:
    """Tell whether an abort takes the transaction off the invalid list."""
    return outcome.state is State.INVALID and outcome.kind is Kind.SHORT


def _external_writes(transaction_id: int, text: str, owner: str, has: str) -> ExternalWritesError:
    who = f" (owner {owner})" if owner else ""
    told = "writes outside Basalt, which only its client can undo: an abort would show them"
    error = ExternalWritesError(
        f"transaction {text}{who} {has} {told}",
        hint=f"invalidate it (`basalt tx invalidate {text}`), or say force once its client has undone them",
    )
    return naming(error, (transaction_id,), f"transaction {text} {has} {told}")


def _worst_first(blocks: Sequence[BlockedReaders]) -> tuple[bodies.BlockedTopic, ...]:
    ordered = sorted(blocks, key=lambda blocked: (-blocked.messages, -blocked.waiting))
    return tuple(
        bodies.BlockedTopic(
            *each.topic, None if each.at is None else each.at.hex(), each.messages, each.exact, each.waiting
        )
        for each in ordered
    )


def _after(outcome: Outcome, invalid_pointers: int) -> str:
    if outcome.state is not State.INVALID:
        return "nothing"
    if not invalid_pointers:
        return "nothing: it is pruned"
    return f"nothing, pruning forgets it: `basalt prune explain {outcome.write_pointer}` tells what is in the way"


def transaction_fields(ids: TransactionIds, transaction: Transaction) -> dict[str, Any]:
    """The fields that every answer about an open transaction has."""
    return {
        "id": ids.text(transaction.id),
        "write_pointer": transaction.write_pointer,
        "read_pointer": transaction.read_pointer,
        "state": transaction.state.name,
        "kind": transaction.kind.name.lower(),
        "owner": transaction.owner,
        "principal": transaction.belonging.shown,
        "began_ms": transaction.began_ms,
        "expires_ms": transaction.deadline_ms,
        "topics": tuple(map(transaction_topic, transaction.topics)),
        "tables": tuple(map(transaction_table, transaction.tables)),
        "external_writes": transaction.external_writes,
        "session": None if transaction.session is None else bodies.TransactionSession(*transaction.session),
    }


def transaction_topic(join: Join, stored: tuple[int, int] | None = None) -> bodies.TransactionTopic:
    """A topic that takes part; `stored` are the messages and bytes that wait for the commit."""
    title = title_of(join.topic)
    messages, payload_bytes = stored or (None, None)
    return bodies.TransactionTopic(title.namespace, title.name, join.generation, messages, payload_bytes)


def transaction_table(join: TableJoin) -> bodies.WrittenTable:
    """A table that takes part."""
    namespace, name, _ = join.table.decode("ascii").split(":")
    return bodies.WrittenTable(namespace, name.removeprefix("~"), join.generation)


def held_back(image: StateImage, transaction: Transaction) -> bodies.HeldBack:
    """The work that the transaction, one of the image's, holds back beside readers: compactions, pruning, memory."""
    live = [other for other in image.transactions if not other.was_invalid]
    first = min((other.id for other in live), default=None)
    bounds = [_bound(other.read_pointer, other.concurrent.first) for other in live]
    bound = min([_bound(image.read_pointer, first), *bounds])
    own = min(_bound(transaction.read_pointer, transaction.concurrent.first), transaction.id - 1)
    decided = image.last_pointer if first is None else first - 1
    shorts = sorted(other.id for other in live if other.kind is Kind.SHORT)
    kept = []
    if shorts and shorts[0] == transaction.id:
        kept = [each for each in image.committed if len(shorts) == 1 or each.seen_from <= shorts[1]]
    return bodies.HeldBack(
        visibility_bound=bound,
        visibility=not transaction.was_invalid and own <= bound,
        decided=decided,
        pruning=transaction.id == first,
        change_sets=len(kept),
        changes=sum(len(each.changes) for each in kept),
    )


def waits_for(transaction: Transaction, now_ms: int) -> str:
    """The next step, and the person or part that has to do it."""
    topics = f"{len(transaction.topics)} topic" + ("" if len(transaction.topics) == 1 else "s")
    if transaction.state is State.COMMITTING:
        return f"the rows of its commit, which are being written to {topics}"
    if transaction.state is State.ABORTING:
        return f"the roll back of its rows in {topics}; what fails is tried again by the job expiry"
    if now_ms >= transaction.deadline_ms:
        return "the job expiry, which ends it: its time is up"
    if transaction.doomed is not None:
        return "its client, which can only abort or invalidate it: it lost a write conflict"
    return "its client, which has to commit or abort it"


def at_deadline(transaction: Transaction) -> str:
    """The fate of the transaction at its deadline, in a sentence."""
    if transaction.state is State.COMMITTING:
        return "it is committed once its rows are written, and undone if the server dies before: its time-out counts no more"
    if transaction.state is State.ABORTING:
        return "it will be aborted: its time-out counts no more"
    if transaction.external_writes:
        return "it becomes invalid: it has, or may have, writes outside Basalt that only its client can undo"
    if transaction.tables:
        return "it becomes invalid: cells of tables are hidden, never undone"
    if transaction.topics:
        return "it is aborted, and its rows in topics are rolled back; nothing stays on the invalid list"
    return "it is aborted; there is nothing to undo"


def next_step(transaction: Transaction, name: str, now_ms: int) -> str:
    """The advice to an operator about the transaction, in a sentence; `name` is its id in the commands."""
    if transaction.state is State.COMMITTING:
        return "wait, and do not restart the server: its rows are being written, and a commit that this interrupts is undone"
    if transaction.state is State.ABORTING:
        return (
            f"wait; if the roll back keeps failing (see the log), `basalt tx invalidate {name}` hides its rows for good"
        )
    if now_ms >= transaction.deadline_ms:
        return "wait: the job expiry ends it in a moment"
    whom = f"ask its owner {transaction.owner}" if transaction.owner else "find its client"
    if transaction.external_writes:
        return (
            f"{whom} to undo its writes outside Basalt and to abort it; if nobody can, `basalt tx invalidate {name}`"
            " hides what it wrote under its pointers"
        )
    end = "invalidate" if transaction.cannot_roll_back or transaction.kind is Kind.LONG else "abort"
    return f"{whom} to end it, or end it yourself: `basalt tx {end} {name}`"


def why_hanging(
    transaction: Transaction, now_ms: int, older_than_ms: int | None, holds_readers: bool
) -> tuple[str, ...]:
    """The reasons to look at it: readers that wait for it, its age, half of its time-out; empty when there is none."""
    if transaction.was_invalid:
        return ()
    reasons = []
    age_ms = now_ms - transaction.began_ms
    if holds_readers:
        reasons.append("holds readers back")
    if older_than_ms is not None and age_ms > older_than_ms:
        reasons.append("old")
    if older_than_ms is None and HALF_TIME_OUT * age_ms > transaction.deadline_ms - transaction.began_ms:
        reasons.append("past half of its time-out")
    if transaction.state is not State.OPEN and now_ms >= transaction.deadline_ms:
        reasons.append("its end is not finished")
    return tuple(reasons)


def _bound(read_pointer: int, first: int | None) -> int:
    return read_pointer if first is None else min(read_pointer, first - 1)
