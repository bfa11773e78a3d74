"""The way to HBase without a Basalt server: the second Thrift gateway, and through it the system table and the regions' reports.

What HBase refuses becomes an `HBaseRefusedError`, which says what to do next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from basalt.errors import CorruptionError, InputError, InvalidSettingError, StoreError
from basalt.settings import HBaseSettings
from basalt_engine.stores.hbase.kerberos import KerberosLogin
from basalt_engine.stores.hbase.regions import REPORT_KIND, RegionReport
from basalt_engine.stores.hbase.tables import FAMILY, table_name
from basalt_engine.stores.hbase.thrift2 import CALL_TIMEOUT_MS, SERVER_TYPE, Thrift2, refusal
from basalt_engine.system import VALUE, SystemRecord, SystemTable, entry_key, seal, unseal

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
_COLUMN = FAMILY.encode() + b":" + VALUE

T = TypeVar("T")


class HBaseRefusedError(Exception):
    """HBase answered no. `denied` when it was for want of a right."""

    def __init__(self, message: str, hint: str | None, *, denied: bool) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.denied = denied


def kerberos_login(settings: HBaseSettings) -> KerberosLogin | None:
    """Basalt's identity for the gateways; None where they ask nobody. `InvalidSettingError` without the library for it."""
    if settings.kerberos is None:
        return None
    try:
        return KerberosLogin(settings.kerberos)
    except InputError as error:
        raise InvalidSettingError(error.message, field="store.hbase.sasl", hint=error.hint) from None


@contextlib.contextmanager
def admin_gateway(
    address: str | None, timeout_ms: int = CALL_TIMEOUT_MS, login: KerberosLogin | None = None
) -> Iterator[Thrift2]:
    """The Thrift 2 gateway at `address`; what HBase refuses inside is an `HBaseRefusedError`."""
    if address is None:
        raise InvalidSettingError(
            "store.hbase.thrift2 is not set: tables are made through HBase's second Thrift gateway",
            field="store.hbase.thrift2",
            hint="start one with `hbase thrift2 start` and name it with --set store.hbase.thrift2=HOST:9090",
        )
    with Thrift2(address, timeout_ms=timeout_ms, login=login) as gateway:
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


class SystemRows:
    """The system table of one prefix, read while no Basalt server need be up."""

    def __init__(self, gateway: Thrift2, prefix: str) -> None:
        self._gateway = gateway
        self.table = table_name(prefix, SystemTable.name)

    def get(self, kind: str, name: str) -> bytes | None:
        """The body of an entry; `CorruptionError` when it is damaged."""
        key = entry_key(kind, name)
        columns = self._gateway.get(self.table, key)
        return None if columns is None else unseal(key, columns.get(_COLUMN))

    def record(self, record: SystemRecord[T]) -> T | None:
        """The value of the only entry of its kind; `CorruptionError` when it is damaged."""
        body = self.get(record.kind, record.name)
        return None if body is None else record.decode(body)

    def scan(self, kind: str) -> Iterator[tuple[str, bytes | CorruptionError]]:
        """Name and body of each entry of a kind, or what is wrong with it: one damaged row does not hide the others."""
        prefix = entry_key(kind, "")
        for key, columns in self._gateway.scan_prefix(self.table, prefix):
            name = key[len(prefix) :].decode(errors="replace")
            try:
                yield name, unseal(key, columns.get(_COLUMN))
            except CorruptionError as error:
                yield name, error

    def insert(self, record: SystemRecord[T], value: T) -> bool:
        """Store the only entry of its kind; False when it is there already."""
        key = entry_key(record.kind, record.name)
        return self._gateway.check_and_put(self.table, key, _COLUMN, None, seal(record.encode(value)))


class Reports(NamedTuple):
    """All reports by encoded region name, and the names of those that cannot be read."""

    by_region: dict[str, RegionReport]
    damaged: tuple[str, ...]


def read_reports(rows: SystemRows) -> Reports:
    """Every report in the system table, also of regions that are gone."""
    reports, damaged = {}, []
    for name, body in rows.scan(REPORT_KIND):
        try:
            if isinstance(body, CorruptionError):
                raise body
            reports[name] = RegionReport.decode(body)
        except CorruptionError:
            damaged.append(name)
    return Reports(reports, tuple(damaged))
