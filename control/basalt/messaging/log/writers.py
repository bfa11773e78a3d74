"""Under whose write pointers messages are written: the transaction manager's, or those of one elsewhere."""

from __future__ import annotations

from basalt.errors import InputError
from basalt_engine.retention import POINTERS_PER_MS
from basalt_engine.snapshot import POINTER_MAX


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
