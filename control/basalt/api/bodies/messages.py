"""Messages as operators look at them: whatever became of them, and who makes readers wait."""

from __future__ import annotations

from msgspec import Struct


class PeekedHeader(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A header of a record: its value as UTF-8 text, or in base64 where it is none."""

    name: str
    value: str | None = None
    value_base64: bytes | None = None


class PeekedMessage(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A message and what became of it: `state` is plain, committed, open, rolled back, invalid or expired.

    `payload` and `key` are there where they are UTF-8 text; else `payload_base64` and `key_base64` hold the bytes.
    """

    id: str
    state: str
    kind: str
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: tuple[PeekedHeader, ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    write_pointer: int | None = None

    @property
    def content(self) -> bytes:
        """The payload's bytes."""
        return self.payload.encode() if self.payload is not None else self.payload_base64 or b""


class Holder(Struct, frozen=True, rename="camel"):
    """The transaction at which readers of committed messages stop, and where (an id in hex). All null: at none.

    `searched_to`: nothing was found up to this id, and there is more; ask again from there.
    """

    held_by: str | None = None
    at: str | None = None
    owner: str | None = None
    expires_ms: int | None = None
    searched_to: str | None = None
