"""What the methods of tables hang on, for both clients: `client.tables`, `client.table(name)`, and `tx.table(name)`."""

from __future__ import annotations

from basalt.client.calls import tables
from basalt.client.handles import AsyncHandle, Handle, awaiting, blocking
from basalt.client.plans.scopes import ClientScope, TableScope
from basalt.client.row_readers import async_scanning, scanning
from basalt.client.transaction import transactional_table
from basalt.client.transaction.transactional_table import TableInUse


class _Facts:
    """What both kinds of table handle know."""

    _scope: TableScope

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class _FactsInUse:
    """What both kinds of table within a transaction know."""

    _scope: TableInUse

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.scope.namespace


class Tables(Handle[ClientScope]):
    """Tables by name: `client.tables`."""

    create = blocking(tables.create)
    get = blocking(tables.get_info)
    list = blocking(tables.names)
    delete = blocking(tables.delete)


class Table(_Facts, Handle[TableScope]):
    """What is committed of one table: `client.table("accounts")`. Making one asks nothing of the server."""

    get = blocking(tables.get)
    scan = scanning(transactional_table.scan_committed)
    write = blocking(tables.write)


class TransactionalTable(_FactsInUse, Handle[TableInUse]):
    """One table within a transaction: `tx.table("accounts")`. What is put and deleted is sent at the commit."""

    get = blocking(transactional_table.get)
    put = blocking(transactional_table.put)
    delete = blocking(transactional_table.delete)
    delete_row = blocking(transactional_table.delete_row)
    scan = scanning(transactional_table.scan)


class AsyncTables(AsyncHandle[ClientScope]):
    """Tables by name: `client.tables`."""

    create = awaiting(tables.create)
    get = awaiting(tables.get_info)
    list = awaiting(tables.names)
    delete = awaiting(tables.delete)


class AsyncTable(_Facts, AsyncHandle[TableScope]):
    """What is committed of one table: `client.table("accounts")`. Making one asks nothing of the server."""

    get = awaiting(tables.get)
    scan = async_scanning(transactional_table.scan_committed)
    write = awaiting(tables.write)


class AsyncTransactionalTable(_FactsInUse, AsyncHandle[TableInUse]):
    """One table within a transaction: `tx.table("accounts")`. What is put and deleted is sent at the commit."""

    get = awaiting(transactional_table.get)
    put = awaiting(transactional_table.put)
    delete = awaiting(transactional_table.delete)
    delete_row = awaiting(transactional_table.delete_row)
    scan = async_scanning(transactional_table.scan)
