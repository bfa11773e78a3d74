"""Whose a transaction is, and who may act on it or look at it. docs/operations/security.md, "Whose a transaction is".

It belongs to the principal that began it, and is for that one, for who is granted `transact` on that one's transactions, and for who is
granted it on its session. Of an id of which nothing is known everybody is told the same as of another's, but who may act on all.
"""

from __future__ import annotations

import hashlib

from basalt.access import resources
from basalt.access.policy import Caller
from basalt.access.principal import ANONYMOUS
from basalt.access.resources import Resource
from basalt.catalog.tables import table_title_of
from basalt.catalog.topics import title_of
from basalt.commits.commit_stage import Guard
from basalt.commits.coordinator import Coordinator
from basalt.errors import BasaltError, ForbiddenError
from basalt.transactions.log_state import LogState
from basalt.transactions.rules.transaction import Belonging, State, Transaction, check_request_id
from basalt.transactions.rules.transaction_proposals import TransactionProposals

OF_EVERYBODY = resources.transactions("*")  # those too of which nothing is known
_OF_NOBODY = resources.transactions(ANONYMOUS)


def principal_of(caller: Caller) -> str:
    """The principal to which what the caller begins belongs; empty where nobody has to prove who they are."""
    if caller.policy is None or caller.principal == ANONYMOUS:
        return ""
    return str(caller.principal)


def own_request_id(caller: Caller, request_id: str | None) -> str | None:
    """The request id as the log has it: each principal has ids of its own, so that nobody is answered what another one did.

    `InputError` for one that a client may not give.
    """
    if request_id is None or caller.policy is None:
        return request_id
    principal = principal_of(caller)
    if not principal:
        return request_id
    check_request_id(request_id)
    # No principal has a zero byte, so no two of them and their ids are the same bytes.
    return hashlib.sha256(f"{principal}\0{request_id}".encode()).hexdigest()


def may_act(caller: Caller, verb: str, whose: Belonging | None) -> bool:
    """Tell whether the caller may `transact` on a transaction, or `observe` it. None: nothing is known of it."""
    if caller.policy is None or caller.has(verb, _resource(whose)):
        return True
    if whose is not None and whose.session is not None and caller.has("transact", resources.session(whose.session)):
        return True
    return caller.may(verb, _resource(whose))  # where rights are not enforced, everybody may


def must_act(caller: Caller, verb: str, whose: Belonging | None, shown: str) -> None:
    """Refuse with `ForbiddenError` who may not. Nobody learns from it whether there is such a transaction; `shown` is what the caller calls it."""
    if not may_act(caller, verb, whose):
        if caller.refusals is not None:
            caller.refusals.note(str(caller.principal), verb, str(_resource(whose)))
        raise ForbiddenError(
            f"{caller.principal} may not {verb} transaction {shown}",
            hint="Use one that you began: it is another's, or never began, or is forgotten. Or have"
            f" {verb} on the transactions of who began it granted to {caller.principal}.",
        )


def message_for(caller: Caller, manager: LogState, error: BasaltError) -> str:
    """The error's message without the names of transactions at which the caller may not look."""
    if caller.policy is None or not error.others:
        return error.message
    if not manager.is_known:  # so nobody knows whose they are
        return error.without_names
    seen = all(may_act(caller, "observe", manager.state.belonging(other)) for other in error.others)
    return error.message if seen else error.without_names


def _resource(whose: Belonging | None) -> Resource:
    if whose is None:
        return OF_EVERYBODY
    return Resource("transactions", (whose.principal,)) if whose.principal else _OF_NOBODY


def commit_guard(caller: Caller, transactions: Coordinator) -> Guard | None:
    """The refusal of a commit, in the stage that decides, by who may not do what the transaction has done: that becomes true only there."""
    if caller.policy is None:
        return None

    def guard(transaction: Transaction | None) -> None:
        if (
            transaction is not None and transaction.state is State.OPEN
        ):  # otherwise it is decided, and the answer says how
            _must_commit(caller, transactions.state, transaction)

    return guard


def _must_commit(caller: Caller, state: TransactionProposals, transaction: Transaction) -> None:
    """Refuse with `ForbiddenError` to make true what a transaction has done: the rights may have been taken back since."""
    for join in transaction.topics:
        caller.must("write", resources.topic(*title_of(join.topic)))
    for table in transaction.tables:
        caller.must("write", resources.table(*table_title_of(table.table)))
    for number in state.groups.pending_of(transaction.id):
        group = state.groups.by_number[number]
        title = title_of(group.prefix)
        caller.must("read", resources.group(*title, group.name))
        caller.must("read", resources.topic(*title))
