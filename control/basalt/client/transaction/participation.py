"""How a transaction begins, how participants come to it, and what a checkpoint asks of them. Its end is in `ending`.

A participant that fails at any of this ends the transaction: everybody is rolled back, those who come later know nothing
of it, and leaving its block says so, even if the caller has swallowed the failure.
"""

from __future__ import annotations

from collections.abc import Iterable

from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.plans.calls import Steps
from basalt.client.transaction import transactions
from basalt.client.transaction.commit_protocol import or_give_up, tell_changes
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.participants import Participant, Planned, planned, same
from basalt.errors import TransactionEndedError


def enter(tx: OpenTransaction) -> Steps[None]:
    """Begin it."""
    if tx.info is not None:
        raise TransactionEndedError(f"transaction {tx.info.id} was begun before", hint="Begin another.")
    snapshot = not all(participant.hosted for participant in tx.invited)
    if tx.session is None:
        tx.info = yield from transactions.begin(
            tx.scope,
            kind=tx.kind,
            timeout_ms=tx.timeout_ms,
            owner=tx.owner,
            outside_writes=tx.outside_writes,
            snapshot=snapshot,
        )
    else:
        tx.info = yield from transactions.begin_in(
            tx.scope,
            tx.session,
            kind=tx.kind,
            timeout_ms=tx.timeout_ms,
            owner=tx.owner,
            outside_writes=tx.outside_writes,
            snapshot=snapshot,
        )
    if tx.info is None:
        tx.committed_before = tx.ended = True
        return
    tx.stored_under = tx.info.write_pointer
    yield from or_give_up(tx, "its beginning", _start(tx, tx.invited))


def add(tx: OpenTransaction, participant: Participant) -> Steps[None]:
    """Let a participant take part from now on; its `start_tx` is called. A second time changes nothing."""
    info = tx.begun()
    joining = planned(participant)
    if any(same(joining, other) for other in tx.participants):
        return
    if not (joining.hosted or tx.outside_writes):
        yield from transactions.take_part(tx.scope, info, joining.name)
        tx.outside_writes = True
    yield from or_give_up(tx, f"adding participant {joining.name}", _start(tx, [joining]))


def checkpoint(tx: OpenTransaction) -> Steps[TransactionInfo]:
    """A further write pointer, under the same snapshot: what follows can be told from what was before.

    Participants persist before it, and are given the new pointer after it.
    """
    tx.begun()
    if not tx.participants:
        return (yield from _move_on(tx))
    return (yield from or_give_up(tx, "its checkpoint", _checkpoint_together(tx)))


def _start(tx: OpenTransaction, joining: Iterable[Planned]) -> Steps[None]:
    for participant in joining:
        if not any(same(participant, other) for other in tx.participants):
            tx.participants.append(participant)  # before its start, of which a half may be there to be rolled back
            yield from participant.start(tx.begun())


def _checkpoint_together(tx: OpenTransaction) -> Steps[TransactionInfo]:
    yield from tell_changes(tx)
    for participant in tx.participants:
        yield from participant.flush()
    info = yield from _move_on(tx)
    for participant in tx.participants:
        yield from participant.update(info)
    return info


def _move_on(tx: OpenTransaction) -> Steps[TransactionInfo]:
    tx.info = info = yield from transactions.checkpoint(tx.scope, tx.begun())
    return info
