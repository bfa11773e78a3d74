"""Commits that come to a member, whose topics the messages are for: the bytes stay there, and one call has the coordinator commit.

The member checks what the commit brings and keeps it, as an owner does that is asked to. So the coordinator, who carries the commit, finds that
part prepared, asks the other owners that were joined to look at theirs, and goes on as ever. What the member has judged, and prepared, it did by
the log as it knows it: where the coordinator knows the transaction otherwise it does nothing, and says so.
Format of the call: docs/formats/links.md. docs/decisions/0081-commits-prepared-where-they-come.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from basalt.api.bodies.messages import Work
from basalt.cluster.links.frames import CallKind, ErrorBody, Kind
from basalt.cluster.links.link import Link
from basalt.commits.commit_stage import Beginning, Guard
from basalt.commits.owning.owner import Owner
from basalt.errors import (
    BusyError,
    InputError,
    NotHereError,
    ShardMovingError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.runtime.write_lanes import LOG_LATE_MS_MAX
from basalt.transactions.log_state import LogState
from basalt.transactions.protocol import JoinedTransaction, Prepare, Prepared
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Kind as TransactionKind
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.errors import BasaltError

# For the coordinator to commit: owners that look at what was stored with them, the log twice, and rows in between. Clients wait no longer.
COMMIT_MS_MAX = 15_000
ACT_MS_MAX = LOG_LATE_MS_MAX + 500  # for the coordinator to log something: when its log is late, it says so before
UP_TO_MS_MAX = 2_000  # for the log as it is known here to have what was answered: it comes over the same link
TRIES_MAX = (
    2  # of one commit, where the log has told something of its transaction meanwhile; then the leader has all of it
)

Q = TypeVar("Q")
A = TypeVar("A")


class CommitCall(msgspec.Struct, frozen=True, array_like=True):
    """A commit whose work a member keeps. `transaction`, and `pending`, the groups in which it acknowledges, are as the member knows them."""

    member: str
    transaction: JoinedTransaction
    prepared: Prepared
    segments: tuple[int, ...] | None
    pending: tuple[int, ...]
    request_id: str | None


class CommitAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The outcome, or why it is refused; neither: the coordinator knows the transaction otherwise, and nothing was done.

    `others` are the transactions that the refusal names, `without_names` is what it says to who may not look at them.
    """

    outcome: Outcome | None = None
    refusal: ErrorBody | None = None
    others: tuple[int, ...] = ()
    without_names: str = ""

    @classmethod
    def of(cls, answer: Outcome | BasaltError | None) -> CommitAnswer:
        """The answer that carries this."""
        if isinstance(answer, BasaltError):
            return cls(None, ErrorBody.of(answer), answer.others, answer.without_names)
        return cls(answer)

    def told(self) -> Outcome | None:
        """The outcome that was carried; raises the refusal."""
        if self.refusal is None:
            return self.outcome
        error = self.refusal.error()
        error.others, error.without_names = self.others, self.without_names
        raise error


class BeginCall(msgspec.Struct, frozen=True, array_like=True):
    """A begin, but for its session."""

    kind: TransactionKind
    timeout_ms: int | None
    owner: str
    external_writes: bool
    request_id: str | None
    principal: str


class ActCall(msgspec.Struct, frozen=True, array_like=True):
    """An abort or a checkpoint."""

    what: Literal["abort", "checkpoint"]
    transaction_id: int


class Acted(msgspec.Struct, frozen=True, array_like=True):
    """The transaction that was begun, or acted on: it is in the log after so many entries. `answer` has its outcome, or a refusal."""

    transaction_id: int
    entries: int
    answer: CommitAnswer = CommitAnswer()


BEGIN: CallKind[BeginCall, Acted] = CallKind(Kind.BEGIN, "begin", BeginCall, Acted)
ACT: CallKind[ActCall, Acted] = CallKind(Kind.ACT, "act", ActCall, Acted)
COMMIT: CallKind[CommitCall, CommitAnswer] = CallKind(Kind.COMMIT, "commit", CommitCall, CommitAnswer)


def seen_of(state: LogState, found: Transaction) -> tuple[JoinedTransaction, tuple[int, ...]]:
    """A transaction as owners know it, and the groups in which it acknowledges."""
    return JoinedTransaction.of(found), tuple(sorted(state.state.groups.pending_of(found.id)))


class CommitsOverLink:
    """The commits that come to this member. `link_of` is the link to the coordinator; None: there is none now."""

    def __init__(self, manager: LogState, owner: Owner, member: str, link_of: Callable[[], Link | None]) -> None:
        """`member` is the name by which the map knows this server."""
        self._manager = manager
        self._owner = owner
        self._member = member
        self._link_of = link_of

    def check_here(self, work: Work | None) -> None:
        """Raise `NotHereError` for a commit that the leader is to carry out as a whole: this server does not have all that it names."""
        if work is None:
            return
        brings_some = work.publish or work.markers
        if work.acknowledge or (brings_some and not self._owner.has_all_topics(work)):
            raise NotHereError

    # What brings nothing.

    async def begin(self, asked: Beginning) -> Transaction:
        """Begin a transaction of no session. `NotHereError` without a link, here and below: the leader is to be asked in another way."""
        acted = await self._ask(BEGIN, BeginCall(*asked), ACT_MS_MAX)
        return await self._after(acted)

    async def checkpoint(self, transaction_id: int) -> Transaction:
        """A further write pointer."""
        return await self._after(await self._ask(ACT, ActCall("checkpoint", transaction_id), ACT_MS_MAX))

    async def abort(self, transaction_id: int) -> Outcome:
        """Decide against the transaction, and have it undone."""
        acted = await self._ask(ACT, ActCall("abort", transaction_id), COMMIT_MS_MAX)
        outcome = acted.answer.told()
        assert outcome is not None, "an abort has one, or is refused"
        return outcome

    async def find(self, transaction_id: int) -> Transaction | Outcome:
        """A transaction, or how it ended, as the coordinator durably has it."""
        self._link()
        await self._hear()
        return self._manager.state.find(transaction_id) or self._manager.state.outcome(transaction_id)

    def _link(self) -> Link:
        link = self._link_of()
        if link is None or not link.is_open or not self._manager.is_known:
            raise NotHereError
        return link

    async def _ask(self, kind: CallKind[Q, A], question: Q, timeout_ms: int) -> A:
        """The leader's answer, in which its refusals are. `NotHereError` where the link itself refuses, so that nothing was done."""
        try:
            return await self._link().call(kind, question, timeout_ms)
        except (BusyError, UnavailableError) as error:
            raise NotHereError from error

    async def _hear(self) -> None:
        """Return once all is known here that was durable when this was called."""
        try:
            await self._manager.ask()
        except UnavailableError as error:
            raise NotHereError from error

    async def _after(self, acted: Acted) -> Transaction:
        """The transaction, once the log as this server knows it has what was done."""
        acted.answer.told()
        await self._manager.up_to(acted.entries, UP_TO_MS_MAX)
        return self._manager.state.get(acted.transaction_id)

    async def commit(
        self, transaction_id: int, work: Work | None, request_id: str | None = None, guard: Guard | None = None
    ) -> Outcome:
        """Prepare the work here, and have it committed. `NotHereError`, with nothing done, where the leader is to see all of it.

        An answer that was lost leaves what was prepared here for a minute: the commit may be under way.
        """
        self.check_here(work)
        for _ in range(TRIES_MAX):
            self._link()
            found = self._manager.state.find(transaction_id)
            if found is not None and found.state is State.OPEN:
                if guard is not None:
                    guard(found)
                outcome = await self._commit(work, *seen_of(self._manager, found), request_id)
                if outcome is not None:
                    return outcome
            await self._hear()
        raise NotHereError

    async def _commit(
        self,
        work: Work | None,
        transaction: JoinedTransaction,
        pending: tuple[int, ...],
        request_id: str | None,
    ) -> Outcome | None:
        try:
            prepared = await self._owner.prepare(Prepare(work, self._owner.part_here(transaction)))
        except (InputError, ShardMovingError) as error:
            raise NotHereError from error  # it may have committed before, whatever became of the topics since
        segments = None if work is None or work.segments is None else tuple(work.segments)
        call = CommitCall(self._member, transaction, prepared, segments, pending, request_id)
        try:
            answer = await self._ask(COMMIT, call, COMMIT_MS_MAX)
        except (UnknownOutcomeError, asyncio.CancelledError):
            raise
        except BaseException:
            self._owner.drop(prepared)
            raise
        self._owner.drop(prepared)
        return answer.told()
