"""What takes part in transactions besides the log: the coordinator tells it to commit or to roll back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from basalt.api.bodies.work import Work
from basalt.catalog.topics import Topic
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.states import Join, Transaction


class Plan(Protocol):
    """Work that was checked before its stage."""

    @property
    def topics(self) -> Sequence[Topic]:
        """The topics in which the work adds rows."""
        ...

    @property
    def payload_bytes(self) -> int: ...


P = TypeVar("P", bound=Plan)


class Participant(Protocol[P]):
    """The topics, as the coordinator sees them."""

    @property
    def nothing(self) -> P:
        """The plan of a commit that brings no work."""
        ...

    def recovered(self, last_pointer: int) -> None:
        """Of transactions up to this pointer nothing is known but what the log says."""
        ...

    async def unknown_writers(self, topics: Sequence[Join], last_pointer: int) -> Mapping[int, Sequence[Join]]:
        """The writers after this pointer that have rows in these topics, from the given times on; where their rows lie."""
        ...

    async def plan(self, work: Work | None, transaction: Transaction | None) -> P:
        """Check the work of a commit, and read what its stage will need; refuse what cannot be done.

        `transaction` is None for a one-shot transaction, and for one that is over.
        """
        ...

    def check(self, plan: P, transaction: Transaction | None) -> None:
        """In a stage: refuse a plan that does not hold any more, before anything is added. None: a one-shot's plan."""
        ...

    def newest_ms(self, topic: Topic) -> int:
        """In a stage: no row that is appended to the topic from now on has an earlier publish time."""
        ...

    def commit(self, group: Group, plan: P, write_pointer: int, transaction: Transaction | None) -> None:
        """In a stage: add the work's rows, and references to all that the transaction stored. Cannot fail."""
        ...

    async def roll_back(self, transaction: Transaction) -> None:
        """Hide and remove what the transaction wrote; repeating it changes nothing."""
        ...

    async def hold(self, transactions: Sequence[Transaction]) -> object:
        """Have in memory what `invalidate` needs of these transactions, while what is returned is held."""
        ...

    def require(self, transactions: Sequence[Transaction]) -> None:
        """In a stage, before anything is changed: `NotLoadedError` unless what `invalidate` needs is in memory."""
        ...

    def invalidate(self, group: Group, transaction: Transaction) -> None:
        """In a stage: the transaction's writers go to the invalid list."""
        ...

    def ended(self, transaction: Transaction) -> None:
        """The outcome is durable."""
        ...
