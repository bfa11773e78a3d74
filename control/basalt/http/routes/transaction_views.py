"""What operators are told of transactions: the answers of `http.transaction_admin`, made of what the services know."""

from __future__ import annotations

from typing import Any

from basalt.api.bodies.transactions import (
    BlockedTopic,
    EndDescription,
    HeldBack,
    TimelineStep,
    TransactionDescription,
    TransactionLoss,
)
from basalt.http.routes.transaction_answers import transaction_fields, transaction_table, transaction_topic
from basalt.messaging.read.blocked_readers import Blocked
from basalt.operations import diagnosis
from basalt.transactions.log.timeline import Step, key_text
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.pointers import POINTERS_PER_MS, TransactionIds
from basalt.transactions.rules.states import State, Transaction

WRITE_POINTERS_SHOWN_MAX = 100
_MEANINGS = {
    State.COMMITTED: "it is committed: every later reader sees all of it",
    State.ABORTED: "it was aborted: readers of committed messages never see any of it",
    State.INVALID: "it failed and may have left writes behind: they are hidden, and retention removes them",
}


def seen(ids: TransactionIds, transaction: Transaction, now_ms: int, holds_readers: bool) -> dict[str, Any]:
    """The fields that lists and descriptions share."""
    return {
        **transaction_fields(ids, transaction),
        "age_ms": max(now_ms - transaction.began_ms, 0),
        "remaining_ms": max(transaction.deadline_ms - now_ms, 0),
        "doomed": transaction.doomed is not None,
        "holds_readers": holds_readers,
    }


def described(
    ids: TransactionIds, transaction: Transaction, now_ms: int, *, blocks: list[Blocked], held: diagnosis.HeldBack,
    stored: dict[bytes, tuple[int, int]],
) -> TransactionDescription:  # fmt: skip
    """All of a live transaction."""
    loss = transaction.doomed
    values = seen(ids, transaction, now_ms, bool(blocks))
    values["topics"] = tuple(transaction_topic(join, stored.get(join.topic)) for join in transaction.topics)
    return TransactionDescription(
        **values,
        write_pointers=tuple(transaction.pointers[:WRITE_POINTERS_SHOWN_MAX]),
        write_pointers_left_out=max(len(transaction.pointers) - WRITE_POINTERS_SHOWN_MAX, 0),
        change_set=None if transaction.changes is None else len(transaction.changes),
        change_set_bytes=sum(map(len, transaction.changes or ())),
        lost_to=None if loss is None else TransactionLoss(ids.text(loss.winner), loss.winner_owner, key_text(loss.key)),
        timed_out=transaction.timed_out,
        blocks=tuple(map(blocked_shown, blocks)),
        held_back=HeldBack(*held),
        waits_for=diagnosis.waits_for(transaction, now_ms),
        at_deadline=diagnosis.at_deadline(transaction),
        next_step=diagnosis.next_step(transaction, values["id"], now_ms),
    )


def described_end(outcome: Outcome, text: str, invalid_pointers: int, outside: bool) -> EndDescription:
    """All that is remembered of an ended one."""
    return EndDescription(
        id=text,
        write_pointer=outcome.write_pointer,
        state=outcome.state.name,
        kind=outcome.kind.name.lower(),
        owner=outcome.owner,
        began_ms=outcome.id // POINTERS_PER_MS,
        ended_ms=outcome.at_ms,
        timed_out=outcome.timed_out,
        topics=tuple(map(transaction_topic, outcome.topics)),
        tables=tuple(map(transaction_table, outcome.tables)),
        outside_writes=outside,
        invalid_pointers=invalid_pointers,
        meaning=_MEANINGS[outcome.state],
        next_step=_after(outcome, invalid_pointers),
    )


def blocked_shown(blocked: Blocked) -> BlockedTopic:
    """A topic in which readers wait."""
    at = None if blocked.at is None else blocked.at.hex()
    namespace, topic = blocked.topic
    return BlockedTopic(namespace, topic, at, blocked.messages, blocked.exact, blocked.waiting)


def step_shown(step: Step, ids: TransactionIds) -> TimelineStep:
    """One step of a timeline."""
    winner = step.detail.get("winner")
    detail = step.detail if winner is None else {**step.detail, "winner": ids.text(winner)}
    return TimelineStep(step.at_ms, step.exact, step.event, detail)


def _after(outcome: Outcome, invalid_pointers: int) -> str:
    if outcome.state is not State.INVALID:
        return "nothing"
    if not invalid_pointers:
        return "nothing: it is pruned"
    return f"nothing, pruning forgets it: `basalt prune explain {outcome.write_pointer}` tells what is in the way"
