"""What messaging asks the transaction manager, and the answers where transactions are managed elsewhere."""

from __future__ import annotations

from typing import Protocol

from basalt.catalog.topics import Topic
from basalt.errors import InputError
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.pointers import POINTER_MAX, POINTERS_PER_MS
from basalt_engine.snapshot import TransactionSnapshot


class Writers(Protocol):
    """The transactions under which clients write."""

    def current(self) -> TransactionSnapshot:
        """The newest durable snapshot: what `isolation=committed` reads under."""
        ...

    def join(self, group: Group, write_pointer: int, topic: Topic, from_ms: int) -> None:
        """Called in a stage before the writer's rows are added: the topic takes part in the writer's transaction.

        `TransactionEndedError` when the pointer is not in progress.
        """
        ...

    def check_open(self, write_pointer: int) -> None:
        """`TransactionEndedError` when the pointer is not in progress."""
        ...


class ExternalWriters:
    """For `transactions.manager = external`: clients bring their own manager, and pointers are taken as given."""

    def current(self) -> TransactionSnapshot:
        raise InputError(
            "isolation=committed needs a transaction manager here, and transactions.manager is external",
            field="isolation",
            hint="send your transaction's bytes with the poll",
        )

    def join(self, group: Group, write_pointer: int, topic: Topic, from_ms: int) -> None:
        return

    def check_open(self, write_pointer: int) -> None:
        return


def check_age(write_pointer: int, now_ms: int, lifetime_ms_max: int) -> None:
    """Refuse a write pointer that no transaction alive today can have: retention may forget what it writes."""
    if not 0 < write_pointer <= POINTER_MAX:
        raise InputError(
            f"write pointer {write_pointer} is not a positive 64-bit number",
            field="transactionWritePointer",
            hint="use the writePointer of a transaction",
        )
    if write_pointer // POINTERS_PER_MS < now_ms - lifetime_ms_max:
        raise InputError(
            f"write pointer {write_pointer} is older than a transaction may become ({lifetime_ms_max} ms)",
            field="transactionWritePointer",
            hint="begin a new transaction",
        )
