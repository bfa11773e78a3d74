"""The error tree, split by what the caller does next: try again, fix the call, or give up and look at the store.

The control plane adds its own leaves in `basalt.errors`; every leaf has a stable `code` that clients may match on.
"""

from __future__ import annotations

from typing import ClassVar


class BasaltError(Exception):
    """Base of everything that Basalt raises on purpose.

    `code` is stable and documented in docs/reference/errors.md; `field` names the part of the input that is at fault;
    `hint` says what to do next, in one sentence. `request_id` is set where an error came out of a request, and finds it
    in the server's log.
    """

    code: ClassVar[str] = "internal"

    def __init_subclass__(cls, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint
        self.request_id: str | None = None
        # The transactions of others that the message names, and the message for who may not look at all of them.
        self.others: tuple[int, ...] = ()
        self.without_names = message


class RetryError(BasaltError):
    """The same call may succeed later; nothing about it was wrong."""

    code: ClassVar[str] = "retry"
    retry_after_ms: int = 1_000


class InputError(BasaltError):
    """The call itself is at fault: it had no effect, and repeating it unchanged will not help."""

    code: ClassVar[str] = "invalid_input"


class CorruptionError(BasaltError):
    """Stored bytes are not what was written: give up and let an operator look; never serve a shorter history."""

    code: ClassVar[str] = "corruption"


class StoreError(RetryError):
    """The store did not do what was asked, and says so: nothing was written."""

    code: ClassVar[str] = "store_unavailable"


class DiskFullError(StoreError):
    """The store's disk is full; reads go on, and writes succeed again once there is space."""

    code: ClassVar[str] = "disk_full"


class RowExistsError(StoreError):
    """A row was to be inserted that is there already; nothing was written over it."""

    code: ClassVar[str] = "row_exists"


class FencedError(StoreError):
    """Another process leads now: nothing was written, and nothing more will be by this one."""

    code: ClassVar[str] = "fenced"


class DataDirectoryError(InputError):
    """The data directory cannot be opened as it is: in use, not Basalt's, of a newer format, or another user's."""

    code: ClassVar[str] = "data_directory"


class UnknownOutcomeError(RetryError):
    """The store or the connection failed while writing: the call took effect as a whole or not at all."""

    code: ClassVar[str] = "outcome_unknown"
