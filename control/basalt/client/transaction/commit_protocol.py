"""Begins, checkpoints and ends a transaction, with its participants in Apache Tephra's order.

At the commit the changes are told, participants persist, messages travel with the commit, participants hear of it. Any
failure, at the beginning and at a checkpoint too, rolls every participant back; then the transaction is aborted when
all of that worked, else invalidated. The `with` block raises it at its end, even if the caller has swallowed the
failure. The first exception wins. The table of it all: docs/reference/client.md, "Participants".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, NoReturn, TypeVar

from msgspec import structs

from basalt.api.bodies.messages import Work
from basalt.api.bodies.transactions import CommittedBefore, TransactionInfo, TransactionOutcome
from basalt.client.calls import transactions
from basalt.client.consumer.open_consumer import give_back, is_failure, reason_of
from basalt.client.plans import Steps
from basalt.client.transaction.open_transaction import (
    OpenTransaction,
    Participant,
    ParticipantMethod,
    PostCommitError,
    TransactionAware,
    UsersParticipant,
    store_rest,
)
from basalt.errors import (
    BasaltError,
    ClaimLostError,
    InputError,
    RetryError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)

T = TypeVar("T")


class LaterFailure(NamedTuple):
    """Something that went wrong after the first thing did."""

    what: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.what} ({type(self.error).__name__}: {self.error})"


def enter(tx: OpenTransaction) -> Steps[None]:
    """Begin it, and start its participants."""
    if tx.info is not None:
        raise TransactionEndedError(f"transaction {tx.info.id} was begun before", hint="Begin another.")
    snapshot = not all(participant.hosted for participant in tx.invited)
    begun = yield from transactions.begin_as(
        structs.replace(tx.request, external_writes=tx.external_writes, snapshot=snapshot)
    )
    if isinstance(begun, CommittedBefore):
        tx.committed_before = tx.ended = True
        return
    tx.info = begun
    tx.stored_under = tx.info.write_pointer
    yield from or_give_up(tx, "its beginning", _start(tx, tx.invited))


def add(tx: OpenTransaction, participant: TransactionAware) -> Steps[None]:
    """Let a participant take part from now on; its `start_tx` is called. A second time changes nothing."""
    info = tx.begun()
    joining = UsersParticipant(participant)
    if any(getattr(other, "of", None) is participant for other in tx.participants):
        return
    if not (joining.hosted or tx.external_writes):
        yield from transactions.take_part(tx.scope, info, joining.name)
        tx.external_writes = True
    yield from or_give_up(tx, f"adding participant {joining.name}", _start(tx, [joining]))


def checkpoint(tx: OpenTransaction) -> Steps[TransactionInfo]:
    """A further write pointer, under the same snapshot: what follows can be told from what was before.

    Participants persist before it, and are given the new pointer after it.
    """
    tx.begun()
    if not tx.participants:
        return (yield from _move_on(tx))
    return (yield from or_give_up(tx, "its checkpoint", _checkpoint_together(tx)))


def commit(tx: OpenTransaction) -> Steps[TransactionOutcome]:
    """Publish everything and commit; the end of the block does it too, and aborts what was refused.

    When the outcome could not be learnt (`UnknownOutcomeError`), ask for it: `client.transactions.get(tx.id)`. With
    participants a commit that fails ends the transaction: they are rolled back.
    """
    tx.begun()
    if tx.participants or tx.broken:
        return (yield from or_give_up(tx, "its commit", _commit_together(tx)))
    return (yield from _commit_alone(tx))


def abort(tx: OpenTransaction) -> Steps[TransactionOutcome]:
    """Abort it now, and leave the block in peace. It becomes invalid when a participant could not undo its part.

    One that was rolled back because something failed may be aborted, too: nothing more is asked of anybody.
    """
    broken, tx.broken = tx.broken, None  # after an abort the caller knows that nothing of it will be there
    if broken is not None and tx.outcome is not None:
        return tx.outcome
    tx.begun()
    failures = yield from _end(tx, counts=True, reason="its transaction was aborted")
    if failures:
        first, *others = failures
        for other in others:
            first.error.add_note(str(other))
        raise first.error
    assert tx.outcome is not None
    return tx.outcome


def leave(tx: OpenTransaction, raised: BaseException | None) -> Steps[None]:
    """Commit it, or abort it when its block has raised; the first exception is the one that its caller sees."""
    if tx.ended:
        if raised is None:
            tx.check_whole()
        return
    if raised is not None:
        yield from _give_up(tx, raised)
        return
    yield from or_give_up(tx, "its commit", commit(tx))


def or_give_up(tx: OpenTransaction, what: str, steps: Steps[T]) -> Steps[T]:
    """The result of these steps; when they fail, so does the transaction, which remembers that it was at `what`."""
    try:
        return (yield from steps)
    except GeneratorExit:
        raise  # nobody runs this any more
    except BaseException as failure:
        if not tx.ended:
            tx.breaks(f"was rolled back when {what} failed", failure)
            yield from _give_up(tx, failure)
        raise


def tell_changes(tx: OpenTransaction) -> Steps[None]:
    """Tell the server what its user and every participant changed so far (Tephra's canCommit).

    `TransactionConflictError` when another transaction has changed the same and committed first.
    """
    changed = set(tx.own_changes)
    for participant in tx.participants:
        for change in (yield from participant.ask("tx_changes")):
            if not isinstance(change, bytes):  # text would become other bytes on its way
                raise TypeError(f"{participant.name}.tx_changes: {change!r} is not bytes")
            changed.add(change)
    hosted = all(participant.hosted for participant in tx.participants)
    if hosted and changed == tx.told_changes:
        return  # one that is not must also learn that the transaction still lasts, before it persists
    external_writes = not hosted or tx.wrote_elsewhere
    yield from transactions.changes(tx.scope, tx.begun(), sorted(changed), external_writes=external_writes)
    tx.told_changes = frozenset(changed)


def _start(tx: OpenTransaction, joining: Iterable[Participant]) -> Steps[None]:
    for participant in joining:
        if tx.joins(participant):  # before its start, of which a half may be there to be rolled back
            yield from participant.ask("start_tx", tx.begun())


def _checkpoint_together(tx: OpenTransaction) -> Steps[TransactionInfo]:
    yield from tell_changes(tx)
    for participant in tx.participants:
        yield from participant.ask("flush_tx")
    info = yield from _move_on(tx)
    for participant in tx.participants:
        yield from participant.ask("update_tx", info)
    return info


def _move_on(tx: OpenTransaction) -> Steps[TransactionInfo]:
    tx.info = info = yield from transactions.checkpoint(tx.scope, tx.begun())
    return info


def _commit_alone(tx: OpenTransaction) -> Steps[TransactionOutcome]:
    yield from store_rest(tx)
    try:
        return (yield from _ask_to_commit(tx))
    except (TransactionEndedError, TransactionNotFoundError):
        # There is nothing left to abort, unless it is invalid for the changes it told: an abort takes it off the invalid list.
        tx.ended = not tx.wrote_elsewhere
        if tx.ended:
            tx.let_go()
        raise
    except BasaltError as error:
        if _is_refusal(error):
            raise
        tx.ended = True  # it may have been committed
        _raise_unknown(tx, error)


def _commit_together(tx: OpenTransaction) -> Steps[TransactionOutcome]:
    tx.check_whole()
    yield from tell_changes(tx)
    for participant in tx.participants:
        yield from participant.ask("commit_tx")
    yield from store_rest(tx)
    try:
        outcome = yield from _ask_to_commit(tx)
    except BasaltError as error:
        if _is_refusal(error):
            raise
        tx.ended = True  # until it is known that it is not committed, nothing may be rolled back
        outcome = yield from _learnt(tx, error)
    yield from _post_commit(tx)
    return outcome


def _ask_to_commit(tx: OpenTransaction) -> Steps[TransactionOutcome]:
    info = tx.begun()
    try:
        try:
            outcome = yield from transactions.commit(tx.scope, info, _work(tx))
        except ClaimLostError:  # after a restart of the server, or a seek: the ids tell which
            outcome = yield from transactions.commit(tx.scope, info, _work(tx, by_ids=True))
    except TransactionConflictError:
        for batch in tx.acknowledged.batches:
            batch.blameless = True
        raise
    except (BasaltError, GeneratorExit):
        raise
    except BaseException as interrupt:
        tx.ended = True
        tx.let_go(blameless=True)
        interrupt.add_note(f"whether transaction {info.id} was committed is unknown; ask client.transactions.get")
        raise
    tx.ended = True
    tx.outcome = outcome
    tx.acknowledged.decide()
    tx.forget_work()
    return outcome


def _work(tx: OpenTransaction, *, by_ids: bool = False) -> Work | None:
    return tx.unsent.work(tx.acknowledged.entries(by_ids=by_ids))


def _is_refusal(error: BasaltError) -> bool:
    """True if a commit that fails so has certainly not happened. A lost answer does not say, nor does a fault of the server's."""
    return isinstance(error, InputError | RetryError) and not isinstance(error, UnknownOutcomeError)


def _raise_unknown(tx: OpenTransaction, lost: BasaltError, *notes: str) -> NoReturn:
    """`UnknownOutcomeError`, whatever the answer was that does not say whether it is committed."""
    info = tx.described()
    tx.let_go(blameless=True)
    says = f"whether transaction {info.id} was committed is unknown: {lost}"
    told = isinstance(lost, UnknownOutcomeError)
    unknown = lost if told else UnknownOutcomeError(says, hint=transactions.ask_its_state(info))
    unknown.request_id = lost.request_id
    for note in notes:
        unknown.add_note(note)
    if told:
        raise lost
    raise unknown from lost


def _learnt(tx: OpenTransaction, lost: BasaltError) -> Steps[TransactionOutcome]:
    """Learn how a commit ended whose answer did not say it. Raise when nothing is committed, and when that cannot be learnt."""
    info = tx.described()
    try:
        state = yield from _state_for_good(tx)
    except BasaltError as error:
        note = f"its outcome could not be asked for either ({error}); participants were told nothing"
        _raise_unknown(tx, lost, note)
    if state == "COMMITTED":
        tx.acknowledged.decide()
        tx.forget_work()
        tx.outcome = TransactionOutcome(info.id, info.write_pointer, state)
        return tx.outcome
    if state not in ("ABORTING", "ABORTED", "INVALID"):
        _raise_unknown(tx, lost, f"it is {state}; participants were told nothing")
    tx.ended = False  # what comes next rolls back
    raise TransactionEndedError(
        f"transaction {info.id} is not committed: it is {state}, and the answer to its commit said nothing: {lost}",
        hint="Begin again.",
    ) from lost


def _state_for_good(tx: OpenTransaction) -> Steps[str]:
    """Ask for its state. Invalidate it if it is open, so that a commit that is still on its way comes too late."""
    info = tx.described()
    found = yield from transactions.get(tx.scope, info)
    if found.state != "OPEN":
        return found.state
    try:
        yield from transactions.hide(info)
    except TransactionEndedError:
        pass  # it came in time
    return (yield from transactions.get(tx.scope, info)).state


def _post_commit(tx: OpenTransaction) -> Steps[None]:
    _, failures = yield from _ask_all(tx, "post_commit_tx", "failed")
    if not failures:
        return
    first, *others = failures
    failed = PostCommitError(
        f"transaction {tx.described().id} is committed; after that {first}", hint="Do not do its work again."
    )
    for other in others:
        failed.add_note(f"and {other}")
    _raise_interrupts(failures, failed)
    raise failed from first.error


def _give_up(tx: OpenTransaction, because: BaseException) -> Steps[None]:
    """Roll everything back and end it; what goes wrong in that is noted on the reason, but no interrupt is kept back."""
    failures = yield from _end(tx, counts=is_failure(because), reason=reason_of(because))
    for failure in failures:
        because.add_note(str(failure))
    if isinstance(because, Exception):
        _raise_interrupts(failures, because)


def _end(tx: OpenTransaction, *, counts: bool, reason: str) -> Steps[list[LaterFailure]]:
    """Roll every participant back, then abort, or invalidate if one could not. What failed, in order."""
    info = tx.begun()
    tx.ended = True
    batches = tx.acknowledged.batches
    tx.forget_work()
    undone, failures = yield from _ask_all(tx, "rollback_tx", "did not roll back")
    try:
        tx.outcome = yield from transactions.abort(tx.scope, info) if undone else _invalidate(tx)
    except BasaltError as error:
        verb = "aborted" if undone else "invalidated"
        over = isinstance(error, TransactionEndedError | TransactionNotFoundError)
        then = "" if over else ", its time-out ends it"
        failures.append(LaterFailure(f"transaction {info.id} could not be {verb}{then}", error))
    for batch in batches:
        if not batch.blameless:  # whoever lost a conflict may try again with the batch in hand
            yield from give_back(batch, counts=counts, reason=reason)
    return failures


def _ask_all(tx: OpenTransaction, method: ParticipantMethod, failed: str) -> Steps[tuple[bool, list[LaterFailure]]]:
    """Ask every participant, also after one has failed. True if all answered True; and what failed, in order."""
    whole, failures = True, list[LaterFailure]()
    for participant in tx.participants:
        try:
            whole = (yield from participant.ask(method)) is True and whole
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  # the others are to be asked all the same
            failures.append(LaterFailure(f"participant {participant.name} {failed}", error))
            whole = False
    return whole, failures


def _invalidate(tx: OpenTransaction) -> Steps[TransactionOutcome]:
    info = tx.described()
    yield from transactions.hide(info)
    state = (yield from transactions.get(tx.scope, info)).state
    return TransactionOutcome(info.id, info.write_pointer, state)


def _raise_interrupts(failures: list[LaterFailure], because: BaseException) -> None:
    for failure in failures:
        if not isinstance(failure.error, Exception):
            raise failure.error from because
