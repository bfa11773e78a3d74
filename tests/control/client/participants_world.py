"""A world in which anything can fail: participants and a server that keep a common journal, and steps that break on order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from basalt.api.bodies.transactions import BeginRequest, TransactionInfo, TransactionOutcome
from basalt.client.plans import Await, Call, ClientScope, Steps
from basalt.client.transaction.commit_protocol import enter, leave
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.errors import (
    BasaltError,
    InternalError,
    TransactionConflictError,
    TransactionEndedError,
    UnavailableError,
    UnknownOutcomeError,
)


class Broken(Exception):
    """What a participant's step fails with."""


class Interrupt(BaseException):
    """What stands for Ctrl-C and for a cancelled task."""


# How a step may fail, by its name in the journal. A participant's: "raise", "interrupt", and of its roll back "false".
# The server's: "refuse" (nothing happened), "lost" (it happened, the answer did not come), "late" (the same, but it happens
# only when all else is over), "gone" (nothing happened, no answer came), "fault" (nothing happened, and a 500 came),
# "interrupt".
Failures = Mapping[str, str]

WORDS = {"POST commit": "commit", "POST abort": "abort", "POST changes": "canCommit", "POST invalidate": "invalidate"}


class FakeServer:
    """One transaction, by the rules of the real server as far as they matter to a client's order of calls."""

    def __init__(self, journal: list[str], failures: Failures) -> None:
        self.journal = journal
        self.failures = failures
        self.state = "OPEN"
        self.external_writes = False
        self.pointer = 42
        self.changes: list[bytes] = []
        self.late: list[tuple[str, Call[Any]]] = []

    def answer(self, call: Call[Any]) -> Any:
        """What the call answers, or raises."""
        verb = call.path.rpartition("/")[2]
        word = {"transactions": "begin", "42": "get", "changes": "canCommit"}.get(verb, verb)
        self.journal.append(word)
        how = self.failures.get(word)
        if how == "refuse":
            if word == "canCommit":
                raise TransactionConflictError("it lost")
            raise UnavailableError(f"no {word}")
        if how == "interrupt":
            raise Interrupt(word)
        if how == "fault":
            raise InternalError(f"{word} broke")
        if how == "late":
            self.late.append((word, call))
        if how in ("late", "gone"):
            raise UnknownOutcomeError(f"{word} is lost")
        result = self.do(word, call)
        if how == "lost":
            raise UnknownOutcomeError(f"the answer to {word} is lost")
        return result

    def do(self, word: str, call: Call[Any] | None = None) -> Any:
        """Do it."""
        if word in ("canCommit", "participants", "checkpoint", "store") and self.state != "OPEN":
            raise TransactionEndedError(self.state)
        if word == "begin":
            self.external_writes = b'"externalWrites":true' in call.body
        elif word == "participants":
            self.external_writes = True
        elif word == "canCommit":
            self.changes = list(call.body)
        elif word == "checkpoint":
            self.pointer += 1
        elif word == "commit":
            if self.state not in ("OPEN", "COMMITTED"):
                raise TransactionEndedError(self.state)
            self.state = "COMMITTED"
        elif word in ("abort", "invalidate"):
            if self.state == "COMMITTED":
                raise TransactionEndedError(self.state)
            if word == "invalidate" and self.state != "OPEN":
                return False
            self.state = "ABORTED" if word == "abort" else "INVALID"
            if word == "invalidate":
                return True
        if word in ("begin", "checkpoint", "get"):
            return TransactionInfo("42", self.pointer, self.state)
        return TransactionOutcome("42", 42, self.state)

    def settle(self) -> None:
        """What was on its way arrives, and then time passes."""
        for word, call in self.late:
            try:
                self.do(word, call)
            except TransactionEndedError:
                pass
        if self.state == "OPEN":
            self.state = "INVALID" if self.external_writes else "ABORTED"


class Recording:
    """A participant that writes down what it is asked, in a journal that it shares with the server."""

    def __init__(self, name: str, journal: list[str], failures: Failures, *, hosted: bool = False) -> None:
        self.name = name
        self.hosted = hosted
        self.journal = journal
        self.failures = failures
        self.kept = "nothing"  # of what it wrote: "nothing", "all", or "some" that it could not undo
        self.heard_commit = False
        self.pointers: list[int] = []

    def _step(self, step: str) -> None:
        self.journal.append(f"{self.name}.{step}")
        how = self.failures.get(f"{self.name}.{step}")
        if how == "raise":
            raise Broken(f"{self.name}.{step}")
        if how == "interrupt":
            raise Interrupt(f"{self.name}.{step}")

    def start_tx(self, tx: TransactionInfo) -> None:
        self.pointers.append(tx.write_pointer)
        self._step("start")

    def update_tx(self, tx: TransactionInfo) -> None:
        self.pointers.append(tx.write_pointer)
        self._step("update")

    def tx_changes(self) -> list[bytes]:
        self._step("changes")
        return [self.name.encode()]

    def commit_tx(self) -> None:
        self.kept = "some"  # until the step is over
        self._step("commit")
        self.kept = "all"

    def post_commit_tx(self) -> None:
        self.heard_commit = True
        self._step("post")

    def rollback_tx(self) -> bool:
        self._step("rollback")
        if self.failures.get(f"{self.name}.rollback") == "false":
            return False
        self.kept = "nothing"
        return True


class Awaited(Recording):
    """The same for the async client: some of its methods are coroutines."""

    async def start_tx(self, tx: TransactionInfo) -> None:  # type: ignore[override]
        super().start_tx(tx)

    async def tx_changes(self) -> list[bytes]:  # type: ignore[override]
        return super().tx_changes()

    async def commit_tx(self) -> None:  # type: ignore[override]
        super().commit_tx()

    async def rollback_tx(self) -> bool:  # type: ignore[override]
        return super().rollback_tx()


@dataclass
class World:
    """A server, participants, one transaction, and what came out."""

    failures: Failures = field(default_factory=dict)
    names: str = "ab"
    hosted: str = ""
    journal: list[str] = field(default_factory=list)
    raised: BaseException | None = None

    def __post_init__(self) -> None:
        self.server = FakeServer(self.journal, self.failures)
        self.participants = {
            name: Recording(name, self.journal, self.failures, hosted=name in self.hosted) for name in self.names
        }
        self.tx = OpenTransaction(ClientScope("shop", lambda: 0), BeginRequest(), self.participants.values())

    def block(self, *work: Callable[[OpenTransaction], Steps[Any]], raising: BaseException | None = None) -> World:
        """`with client.transaction(participants=[...]) as tx:`, with this work in it."""
        try:
            self._run(enter(self.tx))
            raised = raising
            try:
                for each in work:
                    self._run(each(self.tx))
            except BaseException as error:
                raised = error
            self._run(leave(self.tx, raised))
            if raised is not None:
                raise raised
        except BaseException as error:
            self.raised = error
        return self

    @property
    def story(self) -> str:
        """The journal in a line, without the begin."""
        return " ".join(step for step in self.journal if step != "begin")

    def _run(self, steps: Steps[Any]) -> Any:
        try:
            step = next(steps)
            while True:
                assert not isinstance(step, Await)
                try:
                    result = self.server.answer(step)
                except (BasaltError, Interrupt) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            return stop.value
