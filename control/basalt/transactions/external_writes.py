"""Failed writers that also wrote outside Basalt: noted, because pruning cannot look there. docs/formats/system-table.md.

The note is written with the entry of the invalid list, or before it. A writer on that list that has none wrote to Basalt's
own tables alone.
"""

from __future__ import annotations

import msgspec

from basalt.runtime.group_commit import Group
from basalt.transactions.rules.states import Transaction
from basalt_engine.system import SystemTable
from basalt_engine.system_records import number_name

KIND = "outside"


class Outside(msgspec.Struct, frozen=True):
    """Whose writes they were, for people."""

    owner: str


def note(group: Group, transaction: Transaction) -> None:
    """In a stage that puts the transaction on the invalid list."""
    if transaction.outside:
        body = msgspec.json.encode(Outside(transaction.owner))
        group.add(SystemTable.name, *(SystemTable.put(KIND, name(pointer), body) for pointer in transaction.pointers))


def writers(system: SystemTable) -> frozenset[int]:
    """All writers that there is a note about; to be read after the invalid list that is asked about."""
    return frozenset(int(found) for found, _ in system.scan(KIND))


def name(pointer: int) -> str:
    """Under which name a writer's note lies."""
    return number_name(pointer)
