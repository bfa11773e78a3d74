"""The coordinator: it decides all transactions, in one log, and no bytes of messages pass it.

Its work needs the log, so it opens later than the leader's other work. What it answers is in the log before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.members.hbase import LOG, TABLES, TOPICS
from tests.sim.members.ledger import (
    LOAN_POINTERS,
    Aborted,
    Aborting,
    Began,
    Committed,
    Committing,
    Edit,
    EndsNoted,
    GivenUp,
    Invalidated,
    Joined,
    Led,
    Ledger,
    Lent,
    MemberEnded,
    OneShot,
    Open,
    Returned,
    Run,
    View,
)
from tests.sim.members.play import AbortedError, CallError, FencedError, Lane, RefusedError, UnansweredError

if TYPE_CHECKING:
    from tests.sim.members.leader import Leader

PLACE_MS = 700  # a commit that is not decided by then is given up: 2 s in the product
CARRIER_SILENT_MS = 500
TRANSACTION_MS = 3_000  # an open transaction is aborted then
ROUND_MS = 40
RUN_RESTS_MS = 5_200  # before region servers hear of a run: an hour in the product, longer than clocks are apart


class Intended(NamedTuple):
    """What a carrier is told: whose shards to place, or how it has ended already."""

    writer: int
    joins: tuple[str, ...] = ()
    outcome: str | None = None


class Coordinator:
    """The transactions of one term."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.member = leader, leader.member
        self.play, self.hbase = self.member.play, self.member.hbase
        self.ledger = Ledger()
        self.is_open = False
        self.dead: set[str] = set()
        self.carried: dict[int, tuple[str, float]] = {}  # commits under way: by whom, and since when
        self._first_seen_ms: dict[object, float] = {}
        self._driven: set[int] = set()
        self._lane = Lane(self.play)

    # The log.

    async def work(self) -> None:
        """Read the log, give up what was being committed, then serve."""
        while self.leader.is_on() and not self.is_open:
            try:
                entries = await self.member.ask_hbase(LOG, lambda: list(self.hbase.log))
            except CallError:
                await self.play.sleep(ROUND_MS)
                continue
            await self._open_with(entries)
        while self.leader.is_on():
            await self._work_once()
            await self.play.sleep(ROUND_MS)

    async def _open_with(self, entries: list[Any]) -> None:
        """Take the next place in the log; an entry of the coordinator before may still come first."""
        self.ledger = Ledger()
        for entry in entries:
            self.ledger.apply(entry)
        if self.ledger.epoch >= self.leader.epoch:
            self.leader.end()
            return
        given_up = [Aborting(writer) for writer, each in self.ledger.open.items() if each.state == "committing"]
        try:
            await self._insert((Led(self.leader.epoch), *given_up))
        except FencedError:
            return
        self.is_open = True

    async def _insert(self, entry: tuple[Edit, ...]) -> None:
        """One entry, sent until it is known to have its place: nothing else may take it meanwhile."""
        index = self.ledger.version
        while True:
            if not self.leader.is_on():
                self.leader.end()
                raise UnansweredError("the lead is over")
            try:
                await self.member.ask_hbase(LOG, lambda: self.hbase.insert(index, entry))
                break
            except FencedError as error:
                if not self.is_open:
                    raise
                self.leader.end()
                raise UnansweredError("another coordinator writes the log") from error
            except CallError:
                continue
        self.ledger.apply(entry)

    async def log(self, *propose: Callable[[], tuple[Edit, ...]]) -> None:
        """Have what these propose take its place in the log; each looks at the state when its turn has come."""
        async with self._lane:
            entry = tuple(edit for each in propose for edit in each())
            if entry:
                await self._insert(entry)

    def serve(self) -> Ledger:
        """The state, while it may be answered from."""
        if not self.is_open or not self.leader.is_on():
            raise RefusedError(f"{self.member.instance} does not coordinate")
        return self.ledger

    # Calls of members.

    async def view(self) -> View:
        """The newest view."""
        return self.serve().view()

    async def begin(self, session: str | None = None, version: int = 0) -> tuple[int, View]:
        """A new transaction, and the snapshot that it reads by. A session's former attempt is over."""
        named = None if session is None else (session, version)
        begun: list[int] = []

        def propose() -> tuple[Edit, ...]:
            ledger = self.serve()
            before = [
                writer for writer, each in ledger.open.items() if named and each.session and each.session[0] == session
            ]
            if any(ledger.open[writer].state == "committing" for writer in before):
                raise RefusedError(f"session {session} is being committed")
            if session is not None and ledger.sessions[session] >= version:
                raise AbortedError(f"version {version} of session {session} is committed")
            begun.append(ledger.last_pointer + 1)
            begun_edit = Began(begun[0], named)
            return (*(Aborting(writer) for writer in before if ledger.open[writer].state == "open"), begun_edit)

        await self.log(propose)
        return begun[0], self.serve().view()

    async def join(self, writer: int, shard: str) -> None:
        """Rows of the writer may lie in this shard: durable before they do."""

        def propose() -> tuple[Edit, ...]:
            if shard in self._open(writer, "open").joins:
                return ()
            return self.joined(writer, (shard,))

        await self.log(propose)

    @staticmethod
    def joined(writer: int, shards: tuple[str, ...]) -> tuple[Edit, ...]:
        """The edits that say where a writer's rows may lie."""
        return tuple(Joined(writer, shard) for shard in shards)

    def _open(self, writer: int, state: str) -> Open:
        found = self.serve().open.get(writer)
        if found is None or found.state != state:
            raise AbortedError(f"transaction {writer} is not {state}")
        return found

    async def intend(self, carrier: str, writer: int | None, topics: tuple[str, ...], request: str | None) -> Intended:
        """Log that a commit's rows are being placed, and tell the owners to expect it."""
        answers: list[Intended] = []

        def propose() -> tuple[Edit, ...]:
            answer, edits = self._intend(writer, topics, request)
            answers.append(answer)
            return edits

        await self.log(propose)
        self.serve()
        answer = answers[0]
        if answer.outcome is None:
            self.carried[answer.writer] = (carrier, self.play.now_ms)
            for shard in answer.joins:
                self.tell_owner(shard, "expect", answer.writer)
        elif answer.outcome == "aborted":
            await self.rolled_back(answer.writer)
        return answer

    def _intend(
        self, writer: int | None, topics: tuple[str, ...], request: str | None
    ) -> tuple[Intended, tuple[Edit, ...]]:
        ledger = self.serve()
        if writer in ledger.outcomes:
            return Intended(writer, outcome=ledger.outcomes[writer]), ()
        if request in ledger.requests:
            return Intended(ledger.requests[request], outcome="committed"), ()
        if writer is None and ledger.request_under_way(request):
            raise RefusedError(f"request {request} is being committed")
        begins: tuple[Edit, ...] = ()
        joins: tuple[str, ...] = ()
        if writer is None:
            writer = ledger.last_pointer + 1
            begins = (Began(writer, None, request),)
        else:
            found = ledger.open.get(writer)
            if found is None or found.state != "open":
                raise RefusedError(f"transaction {writer} is being ended")
            joins = tuple(found.joins)
            if found.session is not None and ledger.sessions[found.session[0]] >= found.session[1]:
                return Intended(writer, outcome="aborted"), (Aborting(writer),)
        new = tuple(topic for topic in topics if topic not in joins)
        if not new and not joins:
            return Intended(writer, outcome="committed"), (*begins, Committed(writer))
        return Intended(writer, joins + new), (*begins, *self.intent(writer, new))

    def intent(self, writer: int, new: tuple[str, ...]) -> tuple[Edit, ...]:
        """The edits of an intent: who gives up a commit finds all its rows by them."""
        return (*self.joined(writer, new), Committing(writer))

    async def decide(self, writer: int, placed: bool) -> tuple[str, int]:
        """The outcome of a commit; the first one's when another attempt with its request id was faster."""
        answers: list[tuple[str, int]] = []

        def propose() -> tuple[Edit, ...]:
            ledger = self.serve()
            found = ledger.open.get(writer)
            if found is None or not self.may_be_decided(found):
                answers.append((ledger.outcomes.get(writer, "aborted"), writer))
                return ()
            if found.request in ledger.requests:
                answers.append(("committed", ledger.requests[found.request]))
                return (Aborting(writer),)
            answers.append(("committed" if placed else "aborted", writer))
            return (Committed(writer) if placed else Aborting(writer),)

        joins = tuple(self.ledger.open[writer].joins) if writer in self.ledger.open else ()
        await self.log(propose)
        self.carried.pop(writer, None)
        if answers[0][0] == "committed":
            self.tell_view(joins)
        else:
            await self.rolled_back(writer)
        return answers[0]

    async def rolled_back(self, writer: int) -> None:
        """Wait until no joined owner takes anything under the pointer any more: only then is a roll back answered."""
        while writer in self.serve().open:
            await self.play.sleep(ROUND_MS)

    @staticmethod
    def may_be_decided(found: Open) -> bool:
        """True while a commit's intent stands."""
        return found.state == "committing"

    async def abort(self, writer: int) -> str:
        """Roll back; answered when no joined owner takes anything under the pointer any more."""

        def propose() -> tuple[Edit, ...]:
            found = self.serve().open.get(writer)
            return (Aborting(writer),) if found is not None and found.state == "open" else ()

        await self.log(propose)
        await self.rolled_back(writer)
        return self.serve().outcomes[writer]

    async def lend(self, member: str, left: Run | None) -> Run:
        """Pointers for a member's one-shots: the loan is the intent of all of them. What it has not used of the last one it gives back."""
        lent: list[Run] = []

        def propose() -> tuple[Edit, ...]:
            ledger = self.serve()
            if member in ledger.ended_members:
                raise RefusedError(f"{member} is over")
            lent.append(Run(ledger.last_pointer + 1, ledger.last_pointer + LOAN_POINTERS))
            return (*((Returned(left),) if left is not None else ()), Lent(member, lent[0]))

        await self.log(propose)
        return lent[0]

    async def decide_one_shot(self, member: str, writer: int, placed: bool, request: str) -> int | None:
        """The pointer of the one-shot that is committed under this request id; None when this one is given up."""
        answers: list[int | None] = []

        def propose() -> tuple[Edit, ...]:
            ledger = self.serve()
            loan = ledger.loan_of(writer)
            first = ledger.requests.get(request)
            if first is not None or loan is None or loan.member != member or not placed:
                answers.append(first)
                return () if loan is None or loan.member != member else (GivenUp(Run(writer, writer)),)
            answers.append(writer)
            return (OneShot(writer, request),)

        await self.log(propose)
        return answers[0]

    # What goes on by itself.

    async def _work_once(self) -> None:
        await self.log(self._end_members, self._give_up, self._expire)
        for writer, each in list(self.ledger.open.items()):
            if each.state == "aborting" and writer not in self._driven:
                self._driven.add(writer)
                self.play.start(self._roll_back(writer, tuple(each.joins)), self.member.process)
        for writer in [writer for writer in self.ledger.invalid if writer not in self.ledger.noted]:
            if writer not in self._driven:
                self._driven.add(writer)
                self.play.start(self._note_ends(writer, tuple(self.ledger.invalid[writer])), self.member.process)
        self.publish_failed_writers()

    def _end_members(self) -> tuple[Edit, ...]:
        return tuple(MemberEnded(name) for name in sorted(self.dead - self.ledger.ended_members))

    def _give_up(self) -> tuple[Edit, ...]:
        """Commits whose carrier is silent, or that take too long."""
        edits = []
        for writer, each in self.ledger.open.items():
            carrier, since_ms = (
                self.carried.setdefault(writer, ("", self.play.now_ms)) if each.state == "committing" else ("", 0)
            )
            is_late = self.play.now_ms - since_ms > PLACE_MS
            if each.state == "committing" and (is_late or self.leader.is_silent(carrier, CARRIER_SILENT_MS)):
                edits.append(Aborting(writer))
        return tuple(edits)

    def _expire(self) -> tuple[Edit, ...]:
        return tuple(
            Aborting(writer)
            for writer, each in self.ledger.open.items()
            if each.state == "open" and self._since_ms(writer) > TRANSACTION_MS
        )

    def _since_ms(self, what: object) -> float:
        return self.play.now_ms - self._first_seen_ms.setdefault(what, self.play.now_ms)

    async def _roll_back(self, writer: int, joins: tuple[str, ...]) -> None:
        """At all joined owners, whoever they are by then; a writer of cells becomes invalid."""
        keeps_rows = any(shard in TABLES for shard in joins)
        for shard in joins:
            await self._have_owner(shard, "roll_back", writer, keeps_rows)
        ending = Invalidated(writer) if keeps_rows else Aborted(writer)
        await self.log(lambda: (ending,))
        self._driven.discard(writer)
        self.tell_view(joins)

    async def _note_ends(self, writer: int, joins: tuple[str, ...]) -> None:
        for shard in joins:
            if shard in TOPICS:
                await self._have_owner(shard, "note_end")
        await self.log(lambda: (EndsNoted(writer),))

    def publish_failed_writers(self) -> None:
        """Tell region servers of the failed writers whose rows they may drop."""
        runs = tuple(run for run in self.ledger.invalid_runs if self._since_ms(run) > RUN_RESTS_MS)
        self.member.world.publish(frozenset(self.ledger.noted), runs)

    # Telling owners.

    async def _have_owner(self, shard: str, call: str, *arguments: object) -> None:
        while True:
            if not self.leader.is_on():
                raise RefusedError("the lead is over")
            owner, _ = self.member.map.owners.get(shard, (None, 0))
            try:
                await self.member.links.call(
                    self.member, owner, "hear_leader", self.leader.epoch, shard, call, *arguments
                )
                return
            except CallError:
                await self.play.sleep(ROUND_MS)

    def tell_owner(self, shard: str, call: str, *arguments: object) -> None:
        """A frame to an owner."""
        owner, _ = self.member.map.owners.get(shard, (None, 0))
        self.member.links.tell(self.member, owner, "hear_leader", self.leader.epoch, shard, call, *arguments)

    def tell_view(self, shards: tuple[str, ...]) -> None:
        """Owners who have waited for an outcome get the view that has it."""
        view: Any = self.ledger.view()
        owners = [self.member.map.owners.get(shard, ("", 0))[0] for shard in shards]
        for owner in dict.fromkeys(owners):  # a set has another order in each process
            self.member.links.tell(self.member, owner, "hear_view", view)
