"""What operators are told of transactions: the answers of `http.transaction_admin`, made of what the services know."""

from __future__ import annotations

from typing import Any

import msgspec

from basalt.catalog.topics import title_of
from basalt.messaging.read.blocked_readers import Blocked
from basalt.operations import diagnosis as prospects
from basalt.operations.diagnosis import HeldBack
from basalt.transactions.log.timeline import Step, key_text
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.pointers import POINTERS_PER_MS, TransactionIds
from basalt.transactions.rules.states import State, TableJoin, Transaction


class TakesPart(msgspec.Struct, rename="camel", omit_defaults=True):
    """A topic that takes part. `stored…` is what waits for the commit, as far as it is in memory."""

    namespace: str
    topic: str
    generation: int
    stored_messages: int | None = None
    stored_bytes: int | None = None


class TableTakesPart(msgspec.Struct):
    """A transactional table that takes part."""

    namespace: str
    table: str
    generation: int


class LossShown(msgspec.Struct, rename="camel"):
    """The conflict that a transaction lost: another one had changed `key` and committed first."""

    winner: str
    winner_owner: str
    key: str


class SessionShown(msgspec.Struct):
    """The session that a transaction began in."""

    name: str
    epoch: int
    version: int | None


class BlockedShown(msgspec.Struct, rename="camel"):
    """A topic whose readers of committed messages stop at message `at` (null: not found, the search was given up).

    `messages` come after it (`exact` is false where there may be more); `waiting` long polls wait in the topic.
    """

    namespace: str
    topic: str
    at: str | None
    messages: int
    exact: bool
    waiting: int


class HeldBackShown(msgspec.Struct, rename="camel"):
    """What else cannot go on. Compactions do not pass `visibilityBound`, pruning does not look past `decided`.

    `changeSets` of committed transactions, with `changes` keys, are kept because this one may still clash with them.
    """

    visibility_bound: int
    visibility: bool
    decided: int
    pruning: bool
    change_sets: int
    changes: int


class Seen(msgspec.Struct, rename="camel", kw_only=True):
    """A transaction that has not ended, in a list. `holdsReaders`: it has published since the server started."""

    id: str
    write_pointer: int
    read_pointer: int
    state: str
    kind: str
    owner: str
    began_ms: int
    age_ms: int
    expires_ms: int
    remaining_ms: int
    topics: list[TakesPart]
    tables: list[TableTakesPart]
    outside_writes: bool
    doomed: bool
    holds_readers: bool
    session: SessionShown | None


class SeenList(msgspec.Struct):
    """Transactions, oldest first; `open` counts all that have not ended, also those that the filters left out."""

    open: int
    transactions: list[Seen]


class Hanging(Seen, rename="camel", kw_only=True):
    """A transaction that somebody should look at, and why."""

    reasons: list[str]
    blocks: list[BlockedShown]
    next_step: str


class HangingList(msgspec.Struct, rename="camel"):
    """Worst first: those that hold most messages back, then the oldest. `leftOut` pass the filters and were not looked at."""

    open: int
    left_out: int
    hanging: list[Hanging]


class Described(Seen, rename="camel", kw_only=True):
    """All there is to know of a transaction that has not ended."""

    write_pointers: list[int]
    write_pointers_left_out: int
    change_set: int | None
    change_set_bytes: int
    lost_to: LossShown | None
    timed_out: bool
    blocks: list[BlockedShown]
    held_back: HeldBackShown
    waits_for: str
    at_deadline: str
    next_step: str


class DescribedEnd(msgspec.Struct, rename="camel", kw_only=True):
    """How a transaction ended. `beganMs` is read off its id; `invalidPointers` are those still on the invalid list."""

    id: str
    write_pointer: int
    state: str
    kind: str
    owner: str
    began_ms: int
    ended_ms: int
    timed_out: bool
    topics: list[TakesPart]
    tables: list[TableTakesPart]
    outside_writes: bool
    invalid_pointers: int
    meaning: str
    next_step: str


class Forced(msgspec.Struct, rename="camel"):
    """A transaction that an operator ended. `changed` is false when it had ended like that before."""

    id: str
    was: str
    state: str
    changed: bool
    dry_run: bool


class StepShown(msgspec.Struct, rename="camel"):
    """One step. `exact` is false where only a time is known after which it happened."""

    at_ms: int
    exact: bool
    event: str
    detail: dict[str, str | int | bool]


class TimelineShown(msgspec.Struct, rename="camel"):
    """The steps of a transaction. Every step since `sinceMs` is there; `whole`: every step there was."""

    id: str
    since_ms: int
    whole: bool
    steps: list[StepShown]


WRITE_POINTERS_SHOWN_MAX = 100
_MEANINGS = {
    State.COMMITTED: "it is committed: every later reader sees all of it",
    State.ABORTED: "it was aborted: readers of committed messages never see any of it",
    State.INVALID: "it failed and may have left writes behind: they are hidden, and retention removes them",
}


def seen(transaction: Transaction, text: str, now_ms: int, holds_readers: bool) -> dict[str, Any]:
    """What lists and descriptions share."""
    return {
        "id": text,
        "write_pointer": transaction.write_pointer,
        "read_pointer": transaction.read_pointer,
        "state": transaction.state.name,
        "kind": transaction.kind.name.lower(),
        "owner": transaction.owner,
        "began_ms": transaction.began_ms,
        "age_ms": max(now_ms - transaction.began_ms, 0),
        "expires_ms": transaction.deadline_ms,
        "remaining_ms": max(transaction.deadline_ms - now_ms, 0),
        "topics": [_topic(join.topic, join.generation) for join in transaction.topics],
        "tables": [_table(join) for join in transaction.tables],
        "outside_writes": transaction.outside,
        "doomed": transaction.doomed is not None,
        "holds_readers": holds_readers,
        "session": None if transaction.session is None else SessionShown(*transaction.session),
    }


def described(
    transaction: Transaction, text: str, now_ms: int, *, blocks: list[Blocked], held: HeldBack,
    stored: dict[bytes, tuple[int, int]], winner: str,
) -> Described:  # fmt: skip
    """All of a live transaction. `winner` is how the id of the one that it lost to is written."""
    loss = transaction.doomed
    values = seen(transaction, text, now_ms, bool(blocks))
    values["topics"] = [
        _topic(join.topic, join.generation, *stored.get(join.topic, (None, None))) for join in transaction.topics
    ]
    return Described(
        **values,
        write_pointers=list(transaction.pointers[:WRITE_POINTERS_SHOWN_MAX]),
        write_pointers_left_out=max(len(transaction.pointers) - WRITE_POINTERS_SHOWN_MAX, 0),
        change_set=None if transaction.changes is None else len(transaction.changes),
        change_set_bytes=sum(map(len, transaction.changes or ())),
        lost_to=None if loss is None else LossShown(winner, loss.winner_owner, key_text(loss.key)),
        timed_out=transaction.timed_out,
        blocks=[blocked_shown(each) for each in blocks],
        held_back=HeldBackShown(*held),
        waits_for=prospects.waits_for(transaction, now_ms),
        at_deadline=prospects.at_deadline(transaction),
        next_step=prospects.next_step(transaction, text, now_ms),
    )


def described_end(outcome: Outcome, text: str, invalid_pointers: int, outside: bool) -> DescribedEnd:
    """All that is remembered of an ended one."""
    return DescribedEnd(
        id=text,
        write_pointer=outcome.write_pointer,
        state=outcome.state.name,
        kind=outcome.kind.name.lower(),
        owner=outcome.owner,
        began_ms=outcome.id // POINTERS_PER_MS,
        ended_ms=outcome.at_ms,
        timed_out=outcome.timed_out,
        topics=[_topic(join.topic, join.generation) for join in outcome.topics],
        tables=[_table(join) for join in outcome.tables],
        outside_writes=outside,
        invalid_pointers=invalid_pointers,
        meaning=_MEANINGS[outcome.state],
        next_step=_after(outcome, invalid_pointers),
    )


def blocked_shown(blocked: Blocked) -> BlockedShown:
    """A topic in which readers wait."""
    at = None if blocked.at is None else blocked.at.hex()
    namespace, topic = blocked.topic
    return BlockedShown(namespace, topic, at, blocked.messages, blocked.exact, blocked.waiting)


def step_shown(step: Step, ids: TransactionIds) -> StepShown:
    """One step of a timeline."""
    winner = step.detail.get("winner")
    detail = step.detail if winner is None else {**step.detail, "winner": ids.text(winner)}
    return StepShown(step.at_ms, step.exact, step.event, detail)


def _after(outcome: Outcome, invalid_pointers: int) -> str:
    if outcome.state is not State.INVALID:
        return "nothing"
    if not invalid_pointers:
        return "nothing: it is pruned"
    return f"nothing, pruning forgets it: `basalt prune explain {outcome.write_pointer}` tells what is in the way"


def _topic(prefix: bytes, generation: int, messages: int | None = None, size_bytes: int | None = None) -> TakesPart:
    title = title_of(prefix)
    return TakesPart(title.namespace, title.name, generation, messages, size_bytes)


def _table(join: TableJoin) -> TableTakesPart:
    namespace, name, _ = join.table.decode("ascii").split(":")
    return TableTakesPart(namespace, name.removeprefix("~"), join.generation)
