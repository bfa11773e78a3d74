"""The way to HBase: a gateway that is the right one, and its refusals in words that say what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from basalt.errors import InvalidSettingError, StoreError
from basalt_engine.stores.hbase.thrift2 import CALL_TIMEOUT_MS, SERVER_TYPE, Thrift2, refusal

_DENIED = frozenset({"AccessDeniedException", "AccessControlException"})
_HINTS = {
    "AccessDeniedException": "grant the right to the user that the gateway acts as, or let an administrator of HBase "
    "run the commands of --print-shell",
    "TableExistsException": "somebody else is installing; run the command again",
    "NamespaceNotFoundException": "HBase has no namespace `default`; its master may still be starting",
    "PleaseHoldException": "HBase's master is starting; run the command again in a minute",
    "MasterNotRunningException": "start HBase's master",
}
_SANITY_CHECK = "hbase.table.sanity.checks"


class HBaseRefusedError(Exception):
    """HBase answered no. `denied` when it was for want of a right."""

    def __init__(self, message: str, hint: str | None, *, denied: bool) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.denied = denied


@contextlib.contextmanager
def admin_gateway(address: str | None, timeout_ms: int = CALL_TIMEOUT_MS) -> Iterator[Thrift2]:
    """The Thrift 2 gateway at `address`; what HBase refuses inside is an `HBaseRefusedError`."""
    if address is None:
        raise InvalidSettingError(
            "store.hbase.thrift2 is not set: tables are made through HBase's second Thrift gateway",
            field="store.hbase.thrift2",
            hint="start one with `hbase thrift2 start` and name it with --set store.hbase.thrift2=HOST:9090",
        )
    with Thrift2(address, timeout_ms=timeout_ms) as gateway:
        if gateway.server_type() != SERVER_TYPE:
            raise InvalidSettingError(
                f"store.hbase.thrift2 names {address}, which is a first Thrift gateway",
                field="store.hbase.thrift2",
                hint="the second is another process, started with `hbase thrift2 start`",
            )
        try:
            yield gateway
        except StoreError as error:
            name = refusal(error)
            if not name:
                raise
            raise HBaseRefusedError(error.message, _hint(name, error.message), denied=name in _DENIED) from error


def _hint(name: str, message: str) -> str | None:
    if _SANITY_CHECK in message and ".jar" in message:
        return "HBase's master, too, must be able to read the jar and find the class in it: see where --jar points"
    return _HINTS.get(name)
