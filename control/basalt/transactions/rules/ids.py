"""Transaction ids as the API shows and takes them: 128 bits, of which the first half says whose transaction it is.

    id := coordinator (8 bytes: `instance` of the installation's facts), write pointer (8 bytes), as 32 hex digits

So an id is never mistaken for one of another installation that happens to have given out the same write pointer. A write
pointer alone, in decimal, is taken for one of this installation. Inside the server an id is the write pointer.
"""

from __future__ import annotations

import re

from basalt.errors import CorruptionError, InputError, TransactionNotFoundError
from basalt_engine.snapshot import POINTER_MAX

ID_PATTERN = "^([1-9][0-9]{0,18}|[0-9a-f]{32})$"

_COORDINATOR = re.compile(r"[0-9a-f]{16}")
_ID = re.compile(ID_PATTERN.strip("^$"))


class TransactionIds:
    """The ids of one installation's transactions. `coordinator` are its 16 hex digits."""

    def __init__(self, coordinator: str) -> None:
        if _COORDINATOR.fullmatch(coordinator) is None:
            raise CorruptionError(
                f"the installation's instance is {coordinator[:40]!r}, not 16 hex digits: it is part of every transaction id"
            )
        self.coordinator = coordinator

    def text(self, transaction_id: int) -> str:
        """The id as it is shown."""
        return f"{self.coordinator}{transaction_id:016x}"

    def parse(self, text: str, field: str) -> int:
        """The write pointer in an id; `TransactionNotFoundError` for one of another installation."""
        if _ID.fullmatch(text) is None:
            raise _no_id(text, field)
        if len(text) < 32:
            pointer = int(text)
        else:
            coordinator, pointer = text[:16], int(text[16:], 16)
            if coordinator != self.coordinator:
                raise TransactionNotFoundError(
                    f"transaction {text} belongs to another installation: its ids begin with {coordinator}, those of this"
                    f" one with {self.coordinator}",
                    field=field,
                    hint="Ask the server that it began at.",
                )
        if not 0 < pointer <= POINTER_MAX:
            raise _no_id(text, field)
        return pointer


def _no_id(text: str, field: str) -> InputError:
    return InputError(
        f"{text[:40]!r} is not a transaction id",
        field=field,
        hint="Use the id that begin answered: 32 hex digits; or a write pointer, in decimal.",
    )
