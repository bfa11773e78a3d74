"""The participants of a transaction beside its topics: users' objects (`TransactionAware`), and Basalt's own tables (`Planned`).

The protocol is Apache Tephra's `TransactionAware`. When each method is called, and what happens when one fails:
docs/reference/client.md, "Participants"; the order itself is in `commit_protocol`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Any, Protocol, TypeAlias

from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.plans.calls import Await, Steps
from basalt.errors import BasaltError

METHODS = ("start_tx", "update_tx", "tx_changes", "commit_tx", "post_commit_tx", "rollback_tx")


class TransactionAware(Protocol):
    """A store, or a buffer, that takes part in a client's transaction: what it keeps under it becomes true with its commit.

    For the async client each method may be a coroutine. Two more that a participant may have: `hosted`, True when all it
    writes is in Basalt's own store, so that the server can undo it; and `flush_tx()`, called before a checkpoint in place of
    `commit_tx`, for a participant whose `commit_tx` cannot be called twice.
    """

    @property
    def name(self) -> str:
        """The name that messages and operators use."""
        ...

    def start_tx(self, tx: TransactionInfo) -> Any:
        """The transaction has begun: forget the one before, and write under `tx.write_pointer` from now on."""
        ...

    def update_tx(self, tx: TransactionInfo) -> Any:
        """After a checkpoint: the same transaction, with a further write pointer to write under from now on."""
        ...

    def tx_changes(self) -> Any:
        """Return what it changed since `start_tx`, as opaque keys (bytes), for conflict detection; none: an empty collection."""
        ...

    def commit_tx(self) -> Any:
        """Persist everything. The transaction is not committed yet, and may still be rolled back."""
        ...

    def post_commit_tx(self) -> Any:
        """The transaction is committed. Whatever happens here cannot undo it."""
        ...

    def rollback_tx(self) -> Any:
        """Undo what was persisted under the transaction, if anything was; True when nothing of it is left."""
        ...


class Planned(Protocol):
    """A participant of Basalt's own: each method is a plan, so that it does for both clients."""

    @property
    def name(self) -> str:
        """The name that messages and operators use."""
        ...

    @property
    def hosted(self) -> bool:
        """True if all it writes is in Basalt's own store."""
        ...

    def start(self, info: TransactionInfo) -> Steps[None]:
        """As `TransactionAware.start_tx`."""
        ...

    def update(self, info: TransactionInfo) -> Steps[None]:
        """As `TransactionAware.update_tx`."""
        ...

    def changes(self) -> Steps[Collection[bytes]]:
        """As `TransactionAware.tx_changes`."""
        ...

    def flush(self) -> Steps[None]:
        """Before a checkpoint: write what is buffered under the present pointer."""
        ...

    def persist(self) -> Steps[None]:
        """As `TransactionAware.commit_tx`."""
        ...

    def post_commit(self) -> Steps[None]:
        """As `TransactionAware.post_commit_tx`."""
        ...

    def roll_back(self) -> Steps[bool]:
        """As `TransactionAware.rollback_tx`."""
        ...


class PostCommitError(BasaltError):
    """The transaction is committed, and a participant failed after that (`__cause__`). Do not do its work again."""


class UsersParticipant:
    """A user's participant as plans; what it answers with a coroutine is awaited."""

    def __init__(self, of: TransactionAware) -> None:
        missing = [method for method in METHODS if not callable(getattr(of, method, None))]
        if missing:
            raise TypeError(f"{of!r} is no participant: it has no {missing[0]} (see basalt.client.TransactionAware)")
        self.of = of

    @property
    def name(self) -> str:
        """Its name."""
        return str(getattr(self.of, "name", type(self.of).__name__))

    @property
    def hosted(self) -> bool:
        """True if it says so of itself."""
        return getattr(self.of, "hosted", False) is True

    def start(self, info: TransactionInfo) -> Steps[None]:
        """`start_tx`."""
        yield from self._call("start_tx", info)

    def update(self, info: TransactionInfo) -> Steps[None]:
        """`update_tx`."""
        yield from self._call("update_tx", info)

    def changes(self) -> Steps[Collection[bytes]]:
        """`tx_changes`, checked: text would become other bytes on its way."""
        changed = list((yield from self._call("tx_changes")))
        for change in changed:
            if not isinstance(change, bytes):
                raise TypeError(f"{self.name}.tx_changes: {change!r} is not bytes")
        return changed

    def flush(self) -> Steps[None]:
        """`flush_tx`, or `commit_tx` as Tephra's contexts do it."""
        yield from self._call("flush_tx" if hasattr(self.of, "flush_tx") else "commit_tx")

    def persist(self) -> Steps[None]:
        """`commit_tx`."""
        yield from self._call("commit_tx")

    def post_commit(self) -> Steps[None]:
        """`post_commit_tx`."""
        yield from self._call("post_commit_tx")

    def roll_back(self) -> Steps[bool]:
        """`rollback_tx`; what is not True counts as not undone."""
        return (yield from self._call("rollback_tx")) is True

    def _call(self, method: str, *arguments: object) -> Steps[Any]:
        answer = getattr(self.of, method)(*arguments)
        if isinstance(answer, Awaitable):
            answer = yield Await(answer, f"{self.name}.{method}")
        return answer


Participant: TypeAlias = TransactionAware | Planned


def planned(participant: Participant) -> Planned:
    """The participant as plans. `TypeError` for what is no participant."""
    if all(hasattr(participant, method) for method in ("persist", "roll_back", "flush")):
        return participant  # type: ignore[return-value]  # told apart by its methods, so that no participant needs a base class
    return UsersParticipant(participant)  # type: ignore[arg-type]


def same(one: Planned, other: Planned) -> bool:
    """True if both are one participant."""
    return getattr(one, "of", one) is getattr(other, "of", other)
