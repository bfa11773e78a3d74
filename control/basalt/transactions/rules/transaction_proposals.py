"""The transaction manager's rules: what may happen next, as proposals. Semantics are those of Apache Tephra.

A proposal looks at the state, changes nothing, and returns the edits that would make it true: write them to the log,
`apply` them, then answer. No clock, lock, socket or log here; the time comes with each call. Two proposals of one group
must not be made against the same state: apply the first one's edits before asking for the second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from basalt.errors import BasaltError, RequestReusedError
from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.acknowledgements import GroupRules
from basalt.transactions.rules.conflicts import memory_bytes
from basalt.transactions.rules.edits import Edit, Proposal, forced_ends
from basalt.transactions.rules.outcomes import Outcome, RequestCall, RequestUse
from basalt.transactions.rules.session_rules import SessionRules
from basalt.transactions.rules.transaction import (
    CHECKPOINTS_MAX,
    EXPIRED_MAX,
    TABLES_MAX,
    TOPICS_MAX,
    Event,
    Join,
    Kind,
    Loss,
    SessionBinding,
    State,
    TableJoin,
    Transaction,
    TransactionLimits,
    check_changes,
    check_owner,
    check_request_id,
    next_pointer,
    step,
)
from basalt.transactions.rules.transaction_table import StateImage, TransactionTable
from basalt_engine.snapshot import NO_RUNS, POINTERS_PER_MS, PointerRuns
from basalt_engine.spans.spans import Spans


class TransactionProposals(TransactionTable):
    """All transactions, and the proposals by which they move; `apply`, the only way to move them, is in `TransactionTable`."""

    groups: GroupRules

    def __init__(self, limits: TransactionLimits | None = None, image: StateImage | None = None) -> None:
        super().__init__(limits or TransactionLimits(), image)
        self.sessions = SessionRules(self)

    def _group_table(self, image: StateImage) -> GroupRules:
        return GroupRules(self, image)

    def next_deadline_ms(self) -> int | None:
        """The time at which `expire` will next have something to do."""
        return self.deadlines.next_ms()

    def get(self, transaction_id: int) -> Transaction:
        """A transaction that has not ended.

        Otherwise `SessionFencedError` (another run has replaced its own), `TransactionEndedError` or `TransactionNotFoundError`.
        """
        transaction = self._find(transaction_id)
        if not isinstance(transaction, Transaction):
            raise self._ended(transaction, "further work")
        return transaction

    def find(self, transaction_id: int) -> Transaction | None:
        return self.by_id.get(transaction_id)

    def outcome(self, transaction_id: int) -> Outcome:
        """The outcome of a transaction, or its state while in progress; `TransactionNotFoundError` when unknown."""
        found = self._find(transaction_id)
        if isinstance(found, Transaction):
            return Outcome.of(found, found.state, found.deadline_ms, found.timed_out)
        return found

    def ended_writer(self, write_pointer: int) -> Outcome | None:
        """The outcome of the transaction that had this write pointer; None where it is not remembered, or has not ended."""
        return self.outcomes.get(self._ended_checkpoints.get(write_pointer, write_pointer))

    def writer(self, write_pointer: int, now_ms: int) -> Transaction:
        """The open transaction that may write under this pointer, one of its own, now.

        `TransactionConflictError` when it is doomed, and what `get` raises.
        """
        transaction = self.by_id.get(self._checkpoints.get(write_pointer, write_pointer))
        if transaction is None:
            ended = self.ended_writer(write_pointer)
            raise refusals.not_writing(write_pointer) if ended is None else self._ended(ended, "write")
        self._usable(transaction.id, Event.JOIN, "write")
        if now_ms >= transaction.deadline_ms:
            raise refusals.timed_out(transaction, now_ms)
        return transaction

    # What may be.

    def begin(
        self,
        now_ms: int,
        kind: Kind = Kind.SHORT,
        timeout_ms: int | None = None,
        owner: str = "",
        external_writes: bool = False,
        request_id: str | None = None,
        principal: str = "",
        session: SessionBinding | None = None,
        *,
        changes_deferred: bool = False,
    ) -> Proposal:
        """A new transaction. `InputError` for a bad time-out or owner, `BusyError` when too many are in progress.

        Of a session: `SessionFencedError` for an epoch that is over. Ask `sessions.is_done` first. `changes_deferred`: its
        change set is logged with its commit, where that makes sense: others than short ones that write outside have none.
        """
        answered = self._answered(request_id, RequestCall.BEGIN, None, "a begin")
        if answered is not None:
            return Proposal((), answered)
        if session is not None:
            self.sessions.admit(session)
        self.check_room()
        proposal = self.propose_begin(now_ms, kind, timeout_ms, owner, external_writes, request_id, session, principal)
        if not changes_deferred or kind is Kind.LONG or not external_writes:
            return proposal
        marked = (*proposal.edits, edits.ChangesUnlogged(proposal.transaction_id))
        return Proposal(marked, proposal.transaction_id)

    def begin_committed(
        self, now_ms: int, owner: str = "", request_id: str | None = None, principal: str = ""
    ) -> Proposal:
        """A one-shot transaction: begun and committed in one edit, together with its rows, or of something that has none."""
        answered = self.first_one_shot(request_id, owner)
        if answered is not None:
            return Proposal((), answered)
        pointer = next_pointer(self.last_pointer, now_ms)
        return Proposal(self.committed_one_shot(pointer, now_ms, owner, request_id, principal), pointer)

    def first_one_shot(self, request_id: str | None, owner: str = "") -> int | None:
        """The one-shot transaction that was committed under this request id. `RequestReusedError` where it was used for something else."""
        if owner:
            check_owner(owner)
        if request_id is None:
            return None
        return self._answered(request_id, RequestCall.ONE_SHOT, None, "a one-shot transaction")

    @staticmethod
    def committed_one_shot(
        pointer: int, now_ms: int, owner: str, request_id: str | None, principal: str
    ) -> tuple[Edit, ...]:
        """The edits by which one is committed under this pointer."""
        done = edits.OneShot(pointer, now_ms, owner, request_id)
        return (done, edits.Owned(pointer, principal)) if principal else (done,)

    def checkpoint(self, transaction_id: int, now_ms: int) -> Proposal:
        transaction = self._usable(transaction_id, Event.CHECKPOINT, "checkpoint")
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        if len(transaction.checkpoints) >= CHECKPOINTS_MAX:
            raise refusals.too_much(transaction, CHECKPOINTS_MAX, "checkpoints")
        self.check_room()
        pointer = next_pointer(self.last_pointer, now_ms)
        return Proposal((edits.Checkpointed(transaction_id, pointer),), transaction_id)

    def join(self, transaction_id: int, join: Join, now_ms: int) -> Proposal:
        """A topic takes part in an open transaction. No edits when it already does, from this time or an earlier one."""
        transaction = self._usable(transaction_id, Event.JOIN, "write")
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        known = next((known for known in transaction.topics if known.key == join.key), None)
        if known is not None and known.from_ms <= join.from_ms:
            return Proposal((), transaction_id)
        if known is None and len(transaction.topics) >= TOPICS_MAX:
            raise refusals.too_much(transaction, TOPICS_MAX, "topics")
        return Proposal((edits.Joined(transaction_id, join),), transaction_id)

    def join_table(self, transaction_id: int, join: TableJoin, now_ms: int) -> Proposal:
        """A transactional table takes part in an open transaction, before any cell is written. No edits when it does.

        From then on the transaction ends committed or invalid, for cells are not rolled back.
        """
        transaction = self._usable(transaction_id, Event.JOIN, "write")
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        if join in transaction.tables:
            return Proposal((), transaction_id)
        if len(transaction.tables) >= TABLES_MAX:
            raise refusals.too_much(transaction, TABLES_MAX, "tables")
        return Proposal((edits.TableJoined(transaction_id, join),), transaction_id)

    def set_changes(
        self, transaction_id: int, changes: Collection[bytes], now_ms: int, *, external_writes: bool = True
    ) -> Proposal:
        """Tell an open transaction's change set, which replaces the one before, and check it against commits so far.

        One that is not empty means writes outside Basalt, unless `external_writes` says otherwise. A conflict dooms the transaction.
        `TooLargeError` when the set is over the limits, `BusyError` when all sets together take too much memory. Of a long
        transaction only the mark is kept: it takes no part in conflicts.
        """
        transaction = self._usable(transaction_id, Event.CHANGE, "change set")
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        kept = frozenset(changes)
        check_changes(self.limits, transaction, kept)
        self.check_change_memory(memory_bytes(kept) - memory_bytes(transaction.changes or ()))
        external_writes = transaction.external_writes or (external_writes and bool(kept))
        if transaction.kind is Kind.LONG:
            kept = frozenset()
        loss = self.conflicts.conflict(transaction_id, kept)
        if loss is not None:
            # Its external writes stay to be undone, so its time-out must not pass for a clean roll back.
            marked = edits.Changed(transaction_id, external_writes, transaction.changes or frozenset())
            return self._doom(transaction, loss, None, now_ms, marked)
        if external_writes == transaction.external_writes and kept == transaction.changes:
            return Proposal((), transaction_id)
        return Proposal((edits.Changed(transaction_id, external_writes, kept),), transaction_id)

    def may_defer_changes(
        self, transaction_id: int, changes: frozenset[bytes], now_ms: int, deferred_bytes: int
    ) -> bool:
        """True when a change set may be kept for the commit and need not be logged now. Nothing changes here.

        False where it must be told by `set_changes`, which finds out why: it clashes, or the transaction is not one whose
        change set is deferred. Refuses what `set_changes` refuses. `deferred_bytes` is what all deferred sets take with this one.
        """
        found = self.by_id.get(transaction_id)
        if found is None or not found.changes_unlogged or found.state is not State.OPEN:
            return False
        if found.doomed is not None or now_ms >= found.deadline_ms:
            return False
        check_changes(self.limits, found, changes)
        self.check_change_memory(deferred_bytes)
        return self.conflicts.conflict(transaction_id, changes) is None

    def log_no_changes(self, transaction_ids: Iterable[int]) -> Proposal:
        """Log for those of these open transactions whose change set is deferred that it is empty: nothing of it can be lost."""
        found = (self.by_id.get(key) for key in transaction_ids)
        deferred = [each for each in found if each is not None and each.changes_unlogged and each.state is State.OPEN]
        return Proposal(tuple(edits.Changed(each.id, each.external_writes, frozenset()) for each in deferred))

    def mark_external_writes(self, transaction_id: int, now_ms: int) -> Proposal:
        """An open transaction has, or may have, writes outside Basalt. No edits when that is known."""
        transaction = self._usable(transaction_id, Event.CHANGE, "participant")
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        if transaction.external_writes:
            return Proposal((), transaction_id)
        return Proposal((edits.Changed(transaction_id, True, transaction.changes or frozenset()),), transaction_id)

    def acknowledge_in(
        self, transaction_id: int, number: int, spans: Spans, now_ms: int, request_id: str | None = None
    ) -> Proposal:
        """Acknowledge messages of a group with the transaction's commit. No edits when it has them all; a loss dooms it.

        `request_id` is that of the commit that brings them.
        """
        transaction = self._usable(transaction_id, Event.CHANGE, "acknowledgement")
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        taken = self.groups.taken_by(transaction, number, spans, now_ms)
        if isinstance(taken, Loss):
            return self._doom(transaction, taken, request_id, now_ms)
        return Proposal(() if taken is None else (taken,), transaction_id)

    def commit(
        self,
        transaction_id: int,
        now_ms: int,
        *,
        inline: bool = False,
        request_id: str | None = None,
        deferred_changes: frozenset[bytes] | None = None,
    ) -> Proposal:
        """The decision to commit. `inline`: the caller writes all rows together with the edit, so that nothing is left.

        Otherwise the transaction is COMMITTING until `finish`. A repeated commit has no edits. A conflict, or a deadline
        that has passed, comes as a refusal with edits; `TransactionEndedError` when it has ended another way.
        `deferred_changes` is the change set that the log does not have; without it, `ChangesLostError` where there is one.
        """
        self._answered(request_id, RequestCall.COMMIT, transaction_id, f"a commit of transaction {transaction_id}")
        transaction = self._standing(transaction_id, Event.COMMIT, "commit")
        if not isinstance(transaction, Transaction) or transaction.state is not State.OPEN:
            return Proposal((), transaction_id)
        if transaction.doomed is not None:
            raise refusals.lost(transaction, transaction.doomed)
        if now_ms >= transaction.deadline_ms:
            return self._too_late(transaction, now_ms)
        changes = deferred_changes if transaction.changes_unlogged else transaction.changes or frozenset()
        if changes is None:
            raise refusals.changes_lost(transaction)
        loss = self.conflicts.conflict(transaction_id, changes) if changes else None
        if loss is None and transaction.session is not None:
            loss = self.sessions.loss(transaction.session)
        if loss is not None:
            return self._doom(transaction, loss, request_id, now_ms)
        decided: Edit = edits.Committing(transaction_id, request_id, now_ms)
        if inline:
            decided = edits.Committed(transaction_id, now_ms, request_id)
        if changes and transaction.changes_unlogged:
            return Proposal(
                (edits.Changed(transaction_id, transaction.external_writes, changes), decided), transaction_id
            )
        return Proposal((decided,), transaction_id)

    def abort(self, transaction_id: int, now_ms: int, *, inline: bool = False) -> Proposal:
        """The decision to abort. No edits when it was made before; `TransactionEndedError` when the commit is decided.

        A short transaction is ABORTING until `finish`, or ABORTED at once when it has no topics or `inline` says that the
        caller rolls them back together with the edit; it leaves the invalid list, if it is there. A long one goes to the
        invalid list, unless it is of a session and has no writes outside.
        """
        found = self._standing(transaction_id, Event.ABORT, "abort")
        if step(found.state, Event.ABORT) is found.state:
            return Proposal((), transaction_id)
        if not found.abort_rolls_back:
            return self.invalidate(transaction_id, now_ms)
        if inline or not found.topics:
            return Proposal((edits.Aborted(transaction_id, now_ms, False),), transaction_id)
        return Proposal((edits.Aborting(transaction_id, False),), transaction_id)

    def invalidate(self, transaction_id: int, now_ms: int) -> Proposal:
        """Hide all writes of a transaction for good, whether or not they can be undone.

        No edits when it was aborted or invalid before; `TransactionEndedError` when the commit is decided.
        """
        found = self._standing(transaction_id, Event.INVALIDATE, "invalidation")
        if step(found.state, Event.INVALIDATE) is found.state:
            return Proposal((), transaction_id)
        return Proposal((edits.Invalidated((transaction_id,), now_ms, False),), transaction_id)

    def give_up(self, transaction_id: int, now_ms: int) -> Proposal:
        """A commit was interrupted before its outcome was logged: nobody can tell which of its rows there are.

        Its rows in topics are rolled back; with cells, or writes outside Basalt, it becomes invalid as a whole.
        """
        found = self._standing(transaction_id, Event.GIVE_UP, "giving up")
        if not isinstance(found, Transaction) or found.state is not State.COMMITTING:
            return Proposal((), transaction_id)
        if found.cannot_roll_back:
            return Proposal((edits.Invalidated((transaction_id,), now_ms, False),), transaction_id)
        return Proposal((edits.Aborting(transaction_id, False),), transaction_id)

    def finish(self, transaction_id: int, now_ms: int, one_shot_request_id: str | None = None) -> Proposal:
        """The participants of a committing or aborting transaction are done. Repeated: no edits."""
        found = self._standing(transaction_id, Event.FINISH, "finish")
        if found.state is State.COMMITTING:
            return Proposal((edits.Committed(transaction_id, now_ms, one_shot_request_id),), transaction_id)
        if found.state is State.ABORTING:
            return Proposal((edits.Aborted(transaction_id, now_ms, False),), transaction_id)
        return Proposal((), transaction_id)

    def expire(self, now_ms: int) -> Proposal:
        """End open transactions whose deadline has come, earliest first; call again while there are edits.

        One with cells, or writes outside Basalt, becomes invalid, all its pointers together; any other is aborted.
        """
        due = self.deadlines.due(now_ms)[:EXPIRED_MAX]
        return Proposal(forced_ends([self.by_id[key] for key in due], now_ms, timed_out=True))

    def prune(self, pointers: Iterable[int], runs: PointerRuns = NO_RUNS) -> Proposal:
        """Take write pointers of which no row is left off the invalid list; no edits when it holds none of them."""
        held = tuple(sorted(pointer for pointer in set(pointers) if pointer in self.invalid))
        listed = self.invalid.runs
        held_runs = listed.without(listed.without(runs))
        return Proposal((edits.Pruned(held, held_runs),) if held or held_runs else ())

    def lead(self, epoch: int) -> Proposal:
        """A server leads from now on; no edits when it did so before. `FencedError` when a later one does."""
        if epoch < self.leader_epoch:
            raise refusals.led_by(self.leader_epoch, epoch)
        return Proposal((edits.Led(epoch),) if epoch > self.leader_epoch else ())

    def reset(self, now_ms: int) -> Proposal:
        """Forget everything but which write pointers were given out. `ConflictError` where that is not allowed."""
        if not self.limits.allow_reset:
            raise refusals.no_reset()
        return Proposal((edits.Reset(now_ms),))

    def truncate(self, before_ms: int) -> Proposal:
        """Take all write pointers older than a time off the invalid list.

        `ConflictError` while a transaction that is as old is in progress.
        """
        before = before_ms * POINTERS_PER_MS
        if self.oldest is not None and self.oldest.id < before:
            raise refusals.in_the_way(before_ms, self.oldest)
        first = self.invalid.first
        return Proposal((edits.Truncated(before),) if first is not None and first < before else ())

    def _find(self, transaction_id: int) -> Transaction | Outcome:
        found = self.by_id.get(transaction_id) or self.outcomes.get(transaction_id)
        if found is None:
            raise refusals.not_found(transaction_id)
        return found

    def _standing(self, transaction_id: int, event: Event, call: str) -> Transaction | Outcome:
        """The transaction, ended or not, if its state allows the event or makes it a repeated one."""
        found = self._find(transaction_id)
        if step(found.state, event) is None:
            raise self._ended(self.outcome(transaction_id), call)
        return found

    def _ended(self, outcome: Outcome, call: str) -> BasaltError:
        """The refusal of a call that comes too late. Who was replaced must stop: beginning again is what it may not do."""
        fenced = None if outcome.session is None else self.sessions.fenced(outcome.session)
        return refusals.ended(outcome, call) if fenced is None else refusals.ended_by_fence(outcome, fenced)

    def _usable(self, transaction_id: int, event: Event, call: str) -> Transaction:
        found = self._standing(transaction_id, event, call)
        assert isinstance(found, Transaction), "only an open transaction allows more work"
        if found.doomed is not None:
            raise refusals.lost(found, found.doomed)
        return found

    def _answered(
        self, request_id: str | None, call: RequestCall, transaction_id: int | None, words: str
    ) -> int | None:
        """The transaction that the first call of this request id was about, if there was one."""
        check_request_id(request_id)
        first = None if request_id is None else self.requests.get(request_id)
        if first is None:
            return None
        if first.call is not call or transaction_id not in (None, first.transaction_id):
            raise _reused(first, words)
        return first.transaction_id

    def _doom(
        self, transaction: Transaction, loss: Loss, request_id: str | None, now_ms: int, *before: Edit
    ) -> Proposal:
        doomed = edits.Doomed(transaction.id, loss, request_id, now_ms)
        return Proposal((*before, doomed), transaction.id, refusals.lost(transaction, loss))

    def _too_late(self, transaction: Transaction, now_ms: int) -> Proposal:
        ended = forced_ends([transaction], now_ms, timed_out=True)
        return Proposal(ended, transaction.id, refusals.timed_out(transaction, now_ms))


def _reused(request: RequestUse, call: str) -> RequestReusedError:
    first = request.call.name.lower().replace("_", "-")
    return RequestReusedError(
        f"request id {request.id!r} was used for the {first} of transaction {request.transaction_id}, and now comes with"
        f" {call}; use a new request id for each call, the same one only to repeat it",
        field="requestId",
    )
