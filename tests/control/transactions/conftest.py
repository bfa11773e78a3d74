"""A transaction manager on a manual clock, driven as the coordinator drives it: propose, apply, answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from basalt.transactions.rules.edits import Proposal
from basalt.transactions.rules.groups import GroupState
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.sessions import SessionState
from basalt.transactions.rules.transaction import (
    Join,
    Kind,
    PointerSet,
    SessionBinding,
    TableJoin,
    Transaction,
    TransactionLimits,
)
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import ManualClock
from basalt_engine.snapshot import InvalidList, PointerRuns
from basalt_engine.spans.spans import Spans

TABLE = TableJoin(b"shop:~accounts:", 1)
TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


class Scene:
    """Calls in words. `edits` is all that was ever applied, in order."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.clock = ManualClock()
        self.limits = limits or TransactionLimits()
        self.state = TransactionProposals(self.limits)
        self.edits: list[Any] = []

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def done(self, proposal: Proposal) -> int:
        for edit in proposal.edits:
            self.state.apply(edit)
            self.edits.append(edit)
        if proposal.refusal is not None:
            raise proposal.refusal
        return proposal.transaction_id

    def begin(self, kind: Kind = Kind.SHORT, **options: Any) -> Transaction:
        return self.state.get(self.done(self.state.begin(self.now_ms, kind, **options)))

    def one_shot(self, **options: Any) -> Outcome:
        return self.state.outcome(self.done(self.state.begin_committed(self.now_ms, **options)))

    def checkpoint(self, transaction: Transaction) -> Transaction:
        return self.state.get(self.done(self.state.checkpoint(transaction.id, self.now_ms)))

    def join(self, transaction: Transaction, join: Join = TOPIC) -> None:
        self.done(self.state.join(transaction.id, join, self.now_ms))

    def join_table(self, transaction: Transaction, join: TableJoin = TABLE) -> None:
        self.done(self.state.join_table(transaction.id, join, self.now_ms))

    def open(self, name: str = "billing", run: str = "monday") -> SessionState:
        self.done(self.state.sessions.open(name, run, self.now_ms))
        return self.state.sessions.get(name)

    def begin_in(self, session: SessionState, version: int | None = None, **options: Any) -> Transaction:
        return self.begin(session=SessionBinding(session.name, session.epoch, version), **options)

    def change(self, transaction: Transaction, *changes: bytes) -> None:
        self.done(self.state.set_changes(transaction.id, changes, self.now_ms))

    def commit(self, transaction: Transaction, inline: bool = True, **options: Any) -> Outcome:
        return self.state.outcome(self.done(self.state.commit(transaction.id, self.now_ms, inline=inline, **options)))

    def abort(self, transaction: Transaction, **options: Any) -> Outcome:
        return self.state.outcome(self.done(self.state.abort(transaction.id, self.now_ms, **options)))

    def invalidate(self, transaction: Transaction) -> bool:
        proposal = self.state.invalidate(transaction.id, self.now_ms)
        self.done(proposal)
        return bool(proposal.edits)

    def finish(self, transaction: Transaction) -> Outcome:
        return self.state.outcome(self.done(self.state.finish(transaction.id, self.now_ms)))

    def expire(self) -> int:
        proposal = self.state.expire(self.now_ms)
        self.done(proposal)
        return len(proposal.edits)

    def replayed(self) -> TransactionProposals:
        """A second state, made of the same edits."""
        state = TransactionProposals(self.limits)
        for edit in self.edits:
            state.apply(edit)
        return state


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def scene_with() -> type[Scene]:
    return Scene


def plain(value: Any) -> Any:
    """A value of the log as JSON: bytes as hex, sets sorted, pointer sets and invalid lists as lists."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Spans):
        return [[after.hex(), through.hex()] for after, through in value]
    if isinstance(value, GroupState):
        names = ("number", "prefix", "generation", "name", "options", "made_ms", "used_ms", "round", "paused")
        of_messages = {"acknowledged": plain(value.acknowledged), "returned": plain(tuple(value.returned))}
        return {name: plain(getattr(value, name)) for name in names} | of_messages
    if isinstance(value, InvalidList):
        return {"pointers": list(value.pointers), "runs": plain(value.runs)}
    if isinstance(value, PointerRuns):
        return [list(run) for run in value]
    if isinstance(value, frozenset):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, (tuple, PointerSet)):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.fixture
def as_json() -> Any:
    return plain
