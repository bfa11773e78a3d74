"""The calls of those who look after transactions: which there are, what they hold back, what happened, end them by hand.

An abort here refuses what would be a promise nobody keeps: that writes outside Basalt are undone. Every end by hand leaves
a line in the audit. Clients end their own transactions with the calls of `http.transactions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from basalt.api.bodies.transactions import (
    EndDescription,
    ForcedEnd,
    HangingList,
    HangingTransaction,
    InspectedList,
    InspectedTransaction,
    Timeline,
    TransactionDescription,
)
from basalt.commits.coordinator import Guard
from basalt.errors import (
    ConflictError,
    OutsideWritesError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http.asgi.json_input import read_no_members
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.admin import ADMIN_PATH
from basalt.http.routes.authors import AS, REASON, author_of, reason_of, text_query
from basalt.http.routes.operations import Operation, choice, flag, integer, words
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.http.routes.transaction_views import blocked_shown, described, described_end, seen, step_shown
from basalt.http.routes.transactions import TRANSACTION_PATH, id_of
from basalt.messaging.read.blocked_readers import Blocked, RowsLeft
from basalt.operations import diagnosis
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.log.timeline import Step, timeline_of
from basalt.transactions.manager import ExternalWriter
from basalt.transactions.rules.edits import Invalidated
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.states import Kind, State, Transaction

SEARCHED_MAX = 1_000  # transactions whose topics one call looks into for rows that hold readers back
CALL_ROWS_MAX = 100_000  # rows that one call reads to tell what is held back: some five seconds where they are large
STORED_LOOKUPS_MAX = 10_000  # topics times write pointers, of which it is asked what they have stored
AUDIT_LINES_MAX = 100  # of one transaction, in its timeline
MS_MAX = (1 << 53) - 1  # what JavaScript still counts exactly

_STATES = {"open": State.OPEN, "committing": State.COMMITTING, "aborting": State.ABORTING}


async def listed(request: Request) -> Answer:
    """The transactions that have not ended."""
    services = request.services
    everything = services.transactions.state.transactions()
    now_ms = services.clock.now_ms()
    wanted = [each for each in everything if _is_wanted(request, each, now_ms)]
    shown = [
        InspectedTransaction(**seen(services.ids, each, now_ms, services.blocking.surely(each))) for each in wanted
    ]
    return json_answer(InspectedList(len(everything), tuple(shown)))


async def hanging(request: Request) -> Answer:
    """The transactions that somebody should look at, worst first."""
    services = request.services
    everything = services.transactions.state.transactions()
    now_ms = services.clock.now_ms()
    older_than_ms = request.integer("olderThanMs")
    wanted = [each for each in everything if _is_wanted(request, each, now_ms, by_age=False)]
    rows, looked_at = RowsLeft(CALL_ROWS_MAX), 0
    found: list[HangingTransaction] = []
    for transaction in wanted[:SEARCHED_MAX]:
        if rows.count <= 0:
            break
        looked_at += 1
        blocks = await services.blocking.of(transaction, rows)
        reasons = diagnosis.why_hanging(transaction, now_ms, older_than_ms, bool(blocks))
        if reasons:
            text = request.services.ids.text(transaction.id)
            found.append(
                HangingTransaction(
                    **seen(services.ids, transaction, now_ms, bool(blocks)),
                    reasons=reasons,
                    blocks=tuple(map(blocked_shown, _worst_first(blocks))),
                    next_step=diagnosis.next_step(transaction, text, now_ms),
                )
            )
    found.sort(key=lambda each: (-sum(1 + block.messages for block in each.blocks), -each.age_ms))
    return json_answer(HangingList(len(everything), len(wanted) - looked_at, tuple(found)))


async def describe(request: Request) -> Answer:
    """All there is to know of one transaction."""
    services = request.services
    transaction_id = id_of(request)
    transaction = services.transactions.state.find(transaction_id)
    if transaction is None:
        return json_answer(await _described_end(request, services.transactions.state.outcome(transaction_id)))
    blocks = await services.blocking.of(transaction, RowsLeft(CALL_ROWS_MAX))
    return json_answer(
        described(
            services.ids,
            transaction,
            services.clock.now_ms(),
            blocks=_worst_first(blocks),
            held=diagnosis.held_back(services.transactions.state.image(), transaction),
            stored=_stored(request, transaction),
        )
    )


async def timeline(request: Request) -> Answer:
    """The steps of one transaction, those that operators forced among them."""
    services = request.services
    transaction_id = id_of(request)
    state = services.transactions.state
    try:
        known: Transaction | Outcome | None = state.find(transaction_id) or state.outcome(transaction_id)
    except TransactionNotFoundError:
        known = None
    pointers: Sequence[int] = known.pointers if known is not None else ()
    journal = services.transactions.journal
    since_ms = journal.since_ms(services.clock.now_ms())
    # On a thread, the copy of the journal as well: it may hold a hundred thousand edits.
    found = await asyncio.to_thread(
        lambda: timeline_of(pointers or (transaction_id,), journal.entries(), known, since_ms)
    )
    text = request.services.ids.text(transaction_id)
    forced = await services.audit.about(_named(text), AUDIT_LINES_MAX)
    if not found.steps and not forced:
        state.outcome(transaction_id)  # raises: nothing is known of it
    steps = [*found.steps]
    for line in reversed(forced):
        detail = {
            "by": line.name or line.agent,
            "address": line.address,
            "reason": line.reason,
            "outcome": line.outcome,
        }
        steps.append(Step(line.at_ms, True, line.act.replace(" ", "_"), detail))
    steps.sort(key=lambda step: step.at_ms)
    return json_answer(Timeline(text, since_ms, found.whole, tuple(step_shown(step, services.ids) for step in steps)))


async def abort(request: Request) -> Answer:
    """Abort a transaction that is another's: refused where that would promise too much."""
    await read_no_members(request)
    services = request.services
    transaction_id = id_of(request)
    text = request.services.ids.text(transaction_id)

    async def do() -> Outcome:
        return await services.transactions.abort(transaction_id, await _refuse_outside(request, text, was))

    # Out of the group commit: what it says is durable, and so is the note that a writer's end leaves with it.
    was = await services.transactions.outcome(transaction_id)
    if request.flag("dryRun", False):
        return json_answer(await _would_abort(request, text, was))
    return json_answer(await _forced(request, "abort", text, was, do))


async def invalidate(request: Request) -> Answer:
    """Give up a transaction that is another's."""
    await read_no_members(request)
    transactions = request.services.transactions
    transaction_id = id_of(request)
    text = request.services.ids.text(transaction_id)

    async def do() -> Outcome:
        await transactions.invalidate(transaction_id)
        return transactions.state.outcome(transaction_id)

    was = transactions.state.outcome(transaction_id)
    if request.flag("dryRun", False):
        moves = transactions.state.invalidate(transaction_id, request.services.clock.now_ms()).edits
        return json_answer(
            ForcedEnd(text, was.state.name, State.INVALID.name if moves else was.state.name, bool(moves), True)
        )
    return json_answer(await _forced(request, "invalidate", text, was, do))


async def _forced(
    request: Request, verb: str, text: str, was: Outcome, do: Callable[[], Awaitable[Outcome]]
) -> ForcedEnd:
    """Do it with a line in the audit, and count it."""
    services = request.services

    def told(outcome: Outcome) -> str:
        return f"{outcome.state.name} before" if outcome.state is was.state else outcome.state.name

    outcome = await services.audit.act(
        f"forced {verb}", _named(text), author_of(request), reason_of(request), request.id, do, told
    )
    changed = outcome.state is not was.state
    services.transactions.totals.events["forced"] += changed
    return ForcedEnd(text, was.state.name, outcome.state.name, changed, False)


async def _would_abort(request: Request, text: str, was: Outcome) -> ForcedEnd:
    """What an abort would do; refused as it would be."""
    transactions = request.services.transactions
    guard = await _refuse_outside(request, text, was)
    guard(transactions.state.find(was.id))
    moves = transactions.state.abort(was.id, request.services.clock.now_ms()).edits
    state = was.state
    if moves:
        state = State.INVALID if any(isinstance(edit, Invalidated) for edit in moves) else State.ABORTED
    return ForcedEnd(text, was.state.name, state.name, bool(moves), True)


async def _refuse_outside(request: Request, text: str, was: Outcome) -> Guard:
    """Refuse to abort one that wrote outside Basalt, unless it is forced: its writes there would be seen, and not undone.

    What can only be told in the stage that decides, the guard refuses: also one that became invalid after `was` was read,
    for then nobody has looked for a note about it. Long ones are hidden by an abort too.
    """
    if request.flag("force", False):
        return lambda transaction: None
    if _leaves_the_list(was) and await _wrote_outside(request, was):
        raise _outside_writes(text, was.owner, "had")
    transactions = request.services.transactions

    def guard(transaction: Transaction | None) -> None:
        if transaction is not None:
            if transaction.outside and transaction.kind is Kind.SHORT:
                raise _outside_writes(text, transaction.owner, "may have")
        elif was.state is not State.INVALID and _leaves_the_list(transactions.state.outcome(was.id)):
            raise ConflictError(
                f"transaction {text} became invalid meanwhile", hint=f"look again (`basalt tx describe {text}`)"
            )

    return guard


def _leaves_the_list(outcome: Outcome) -> bool:
    """Whether an abort takes the transaction off the invalid list."""
    return outcome.state is State.INVALID and outcome.kind is Kind.SHORT


async def _wrote_outside(request: Request, outcome: Outcome) -> bool:
    """Whether an invalid transaction's note says that it wrote outside Basalt."""
    services = request.services
    note = await StoreCalls(services.store)(services.system.get, ExternalWriter.KIND, ExternalWriter.name(outcome.id))
    return note is not None


async def _described_end(request: Request, outcome: Outcome) -> EndDescription:
    invalid = request.services.transactions.state.invalid
    left = sum(pointer in invalid for pointer in outcome.pointers)
    wrote = outcome.state is State.INVALID and await _wrote_outside(request, outcome)
    return described_end(outcome, request.services.ids.text(outcome.id), left, wrote)


def _is_wanted(request: Request, transaction: Transaction, now_ms: int, *, by_age: bool = True) -> bool:
    state, owner, topic = request.text("state"), request.text("owner"), request.text("topic")
    older_than_ms = request.integer("olderThanMs") if by_age else None
    return (
        (state is None or transaction.state is _STATES[state])
        and (owner is None or transaction.owner == owner)
        and (older_than_ms is None or now_ms - transaction.began_ms > older_than_ms)
        and (topic is None or any(join.topic == f"{topic}:".encode() for join in transaction.topics))
    )


def _worst_first(blocks: list[Blocked]) -> list[Blocked]:
    return sorted(blocks, key=lambda blocked: (-blocked.messages, -blocked.waiting))


def _stored(request: Request, transaction: Transaction) -> dict[bytes, tuple[int, int]]:
    """What it has stored in each topic and not published, as far as it is in memory."""
    pointers = transaction.pointers
    if len(transaction.topics) * len(pointers) > STORED_LOOKUPS_MAX:
        return {}
    topics = request.services.topics
    found = {}
    for join in transaction.topics:
        log = topics.find_joined(join)
        staged = [] if log is None else [topics.staged.in_memory(log, pointer) for pointer in pointers]
        known = [each for each in staged if each is not None]
        if known:
            found[join.topic] = (sum(each[0] for each in known), sum(each[1] for each in known))
    return found


def _named(text: str) -> str:
    return f"transaction {text}"


def _outside_writes(text: str, owner: str, has: str) -> OutsideWritesError:
    who = f" (owner {owner})" if owner else ""
    return OutsideWritesError(
        f"transaction {text}{who} {has} writes outside Basalt, which only its client can undo: an abort would show them",
        hint=f"invalidate it (`basalt tx invalidate {text}`), or say force once its client has undone them",
    )


_OPERATORS = ADMIN_PATH + "/transactions"
_ONE = _OPERATORS + "/{transaction}"
_TOPIC = words(
    "topic", "^[A-Za-z0-9_-]{1,255}:[A-Za-z0-9_-]{1,255}$", "only those that write to it, as namespace:topic"
)
_OWNER = text_query("owner", "only those of this owner")
_STATE = choice("state", tuple(_STATES), "only those in this state")
_OLDER = integer("olderThanMs", 0, MS_MAX, "only those that are open longer than this")
_HANGS = integer("olderThanMs", 0, MS_MAX, "what counts as long; half of its own time-out when it is left out")
_DRY_RUN = flag("dryRun", "tell what would be done, and do nothing")
_FORCE = flag("force", "abort it though it has writes outside Basalt: they have been undone")

OPERATIONS = (
    Operation(
        method="GET",
        path=TRANSACTION_PATH + "/timeline",
        handler=timeline,
        summary="What happened to a transaction, step by step",
        tag="transactions",
        answers={200: {JSON: Timeline}},
        errors=(TransactionNotFoundError,),
    ),
    Operation(
        method="GET",
        path=_OPERATORS,
        handler=listed,
        summary="Transactions that have not ended, as operators see them",
        tag="admin",
        query=(_STATE, _OWNER, _OLDER, _TOPIC),
        answers={200: {JSON: InspectedList}},
    ),
    Operation(
        method="GET",
        path=_OPERATORS + "/hanging",
        handler=hanging,
        summary="Transactions that hold readers back or take long, worst first",
        tag="admin",
        query=(_STATE, _OWNER, _HANGS, _TOPIC),
        answers={200: {JSON: HangingList}},
    ),
    Operation(
        method="GET",
        path=_ONE,
        handler=describe,
        summary="All there is to know of a transaction",
        tag="admin",
        answers={200: {JSON: (TransactionDescription, EndDescription)}},
        errors=(TransactionNotFoundError,),
    ),
    Operation(
        method="POST",
        path=_ONE + "/abort",
        handler=abort,
        summary="Abort a transaction by hand",
        tag="admin",
        query=(REASON, AS, _FORCE, _DRY_RUN),
        body=EMPTY_BODY,
        answers={200: {JSON: ForcedEnd}},
        errors=(TransactionNotFoundError, TransactionEndedError, OutsideWritesError, ConflictError),
    ),
    Operation(
        method="POST",
        path=_ONE + "/invalidate",
        handler=invalidate,
        summary="Invalidate a transaction by hand",
        tag="admin",
        query=(REASON, AS, _DRY_RUN),
        body=EMPTY_BODY,
        answers={200: {JSON: ForcedEnd}},
        errors=(TransactionNotFoundError, TransactionEndedError),
    ),
)
