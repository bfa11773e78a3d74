"""Publishes the rows of an outbox to Basalt's topics: exactly once and in order. docs/reference/outbox.md, "The relay".

A batch of rows is taken under the next number, published in a transaction whose version in the relay's session is that
number, and removed. A relay that finds a batch that was taken publishes it under its number again, and Basalt says whether
that was done before. So it does not matter where a relay dies, nor how long it stays dead.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from uuid import uuid4

from basalt.client import Client, Session, Transaction
from basalt.errors import (
    ConflictError,
    InputError,
    RetryError,
    SessionFencedError,
    SessionNotFoundError,
    TopicEndedError,
    TransactionNotFoundError,
)
from basalt.outbox.outbox import Outbox
from basalt.outbox.tables import DatabaseConnection, OutboxRow, OutboxRows, Standing
from basalt.redaction import without_passwords

ROWS_MAX = 500  # of a batch: far more than a request needs to cost little, and few enough to name each in a statement
BATCH_BYTES_MAX = 4 * 1024 * 1024  # what a client's transaction holds before it sends it ahead of its commit
UNDECIDED_MAX = 100  # transactions asked about at a time
PAUSE_MS = 200  # how long a new row may wait; a look at an empty table costs the database next to nothing
RETRY_PAUSE_MS = 1_000

log = logging.getLogger("basalt.outbox")


class OutboxBehindError(ConflictError):
    """More was published from this outbox than its tables know of: an older database was put in place."""


class OutboxUncertainError(ConflictError):
    """A batch may have been published, and Basalt has forgotten whether it was: an operator has to look."""


@dataclass
class _Held:
    """The connection, rows and session that a relay holds while it is the newest of its outbox."""

    connection: DatabaseConnection
    rows: OutboxRows
    session: Session
    batch: int  # the newest that was taken
    thread: int  # whose connection it is: SQLite's can be used in no other one


class Relay:
    """Publishes what waits in an outbox. Of two relays of one outbox the newer one goes on, and the older one stops.

    It may be made, run and closed in any threads, one after the other: each has a connection of its own. Not async: beside an
    event loop run it in a thread. Others may use its client, too.
    """

    def __init__(
        self, outbox: Outbox, client: Client, *, rows_max: int = ROWS_MAX, batch_bytes_max: int = BATCH_BYTES_MAX
    ) -> None:
        for name, limit in (("rows_max", rows_max), ("batch_bytes_max", batch_bytes_max)):
            if limit < 1:
                raise InputError(f"{name} is {limit}; it must be 1 or more", field=name)
        self._outbox = outbox
        self._client = client
        self._rows_max = rows_max
        self._batch_bytes_max = batch_bytes_max
        connection = outbox.connect()  # to see that there is a database; the thread that runs has its own
        driver = outbox.driver(connection)
        self._passing = (driver.OperationalError, driver.InterfaceError)
        self._misused = driver.ProgrammingError
        outbox.give_back(connection)
        self._holds: _Held | None = None
        self._runs = uuid4().hex  # how the names of its runs begin: each opening of its session is a run of its own
        self._epoch: int | None = None  # of its newest opening
        self._asked_through = 0  # the row through which it has asked about undecided ones
        self.uncertain: set[str] = set()  # transactions whose outcome Basalt has forgotten, and whose rows stay

    def run(
        self,
        *,
        until: Callable[[], bool] = lambda: False,
        drain: bool = False,
        pause_ms: int = PAUSE_MS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> int:
        """Publish whatever comes, until `until` says that it is enough; with `drain` until nothing waits. How many messages.

        It looks again `pause_ms` after it found nothing. What may pass (a server or a database that cannot be reached) is
        waited for. At its end, whatever that is, it gives its connection back. `SessionFencedError`: another relay of this
        outbox has begun, so stop.
        """
        published = 0
        try:
            while not until():
                wait_ms = pause_ms
                try:
                    count = self.run_once()
                except (SessionFencedError, TopicEndedError, OutboxBehindError, OutboxUncertainError):
                    raise
                except (RetryError, ConflictError, SessionNotFoundError, *self._passing) as error:
                    asked_ms = error.retry_after_ms if isinstance(error, RetryError) else 0
                    wait_ms = max(RETRY_PAUSE_MS, asked_ms)
                    reason = without_passwords(str(error))  # drivers may quote the address that they were given
                    log.warning("outbox %s: trying again in %s ms: %s", self._outbox.name, wait_ms, reason)
                else:
                    published += count
                    if count:
                        continue
                    if drain:
                        break
                sleep(wait_ms / 1_000)
        finally:
            self.close()
        return published

    def run_once(self) -> int:
        """Publish the next batch; how many messages it had, 0 when none waits. It keeps its connection: see `close`."""
        try:
            held = self._holds = self._of_this_thread(self._holds) if self._holds else self._open()
            self._decide(held.rows)
            return self._publish_next(held)
        except BaseException:
            self.close()  # the next attempt, if it may, gets a higher epoch: nothing of this one can commit then
            raise

    def close(self) -> None:
        """Close the connection to the database. A relay that was closed may run again, if no newer one has begun."""
        held, self._holds = self._holds, None
        if held is not None:
            self._give_back(held)

    def _give_back(self, held: _Held) -> None:
        try:
            self._outbox.give_back(held.connection)
        except self._misused:
            if held.thread == get_ident():
                raise
            # SQLite lets no other thread close it. It is closed when nobody refers to it, which is now.

    def _of_this_thread(self, held: _Held) -> _Held:
        if held.thread == get_ident():
            return held
        connection = self._outbox.connect()
        self._give_back(held)
        rows = OutboxRows(connection, self._outbox.statements(connection))
        return _Held(connection, rows, held.session, held.batch, get_ident())

    def _publish_next(self, held: _Held) -> int:
        while (oldest_taken := held.rows.oldest_taken()) is not None:
            if published := self._publish(held, oldest_taken):
                return published  # otherwise it was committed before, and is removed now
        waiting = held.rows.waiting(self._rows_max, self._batch_bytes_max)
        if not waiting:
            if self._standing(held.rows).epoch != held.session.epoch:
                raise self._replaced()
            return 0
        return self._publish(held, held.batch + 1, waiting)

    def _publish(self, held: _Held, batch: int, numbers: list[int] | None = None) -> int:
        """Publish a batch that was taken, or take these rows for it first: after the begin, so that it is known by then
        that Basalt still knows the session.
        """
        published = 0
        with held.session.transaction(version=batch, owner=held.session.name) as tx:
            if tx.committed_before and numbers is not None:
                raise self._behind(batch)
            if not tx.committed_before:
                if numbers is not None:
                    self._take(held, batch, numbers)
                published = _send(tx, held.rows.rows(batch))
        held.rows.remove(batch)
        return published

    def _take(self, held: _Held, batch: int, numbers: list[int]) -> None:
        if not held.rows.take(held.session.epoch, batch, numbers):
            raise self._replaced()
        held.batch = batch

    def _decide(self, rows: OutboxRows) -> None:
        """Find out about rows that a transaction may have published itself: the next ones, for the oldest may stay open."""
        found = rows.undecided(self._asked_through, UNDECIDED_MAX)
        self._asked_through = max(found.values()) if len(found) == UNDECIDED_MAX else 0
        for transaction_id in found:
            if transaction_id in self.uncertain:
                continue
            try:
                state = self._client.transactions.get(transaction_id).state
            except TransactionNotFoundError as error:
                self.uncertain.add(transaction_id)
                log.error("outbox %s: rows of a transaction stay, undecided: %s", self._outbox.name, error)
                continue
            if state == "COMMITTED":
                rows.drop(transaction_id)
            elif state in ("ABORTED", "INVALID"):
                rows.release(transaction_id)

    def resolve(self, transaction_id: str, *, published: bool) -> None:
        """An operator's word on the rows of a transaction that Basalt has forgotten: remove them, or publish them."""
        connection = self._outbox.connect()
        try:
            rows = OutboxRows(connection, self._outbox.statements(connection))
            (rows.drop if published else rows.release)(transaction_id)
        finally:
            self._outbox.give_back(connection)
        self.uncertain.discard(transaction_id)

    def _open(self) -> _Held:
        """Become the one relay of the outbox: at Basalt first, then in the database."""
        connection = self._outbox.connect()
        try:
            rows = OutboxRows(connection, self._outbox.statements(connection))
            name = f"outbox {self._outbox.name}"
            self._refuse_if_replaced(name, self._standing(rows))
            session = self._client.session(name, run=f"{self._runs}-{uuid4().hex}")
            self._epoch = session.epoch
            standing = self._standing(rows)  # again: until now an older relay may have gone on
            if session.version is not None and session.version > standing.batch:
                raise self._behind(session.version)
            if session.version is None:
                self._begin_versions(session, rows, standing)
            self._register(session, rows)
            return _Held(connection, rows, session, self._standing(rows).batch, get_ident())
        except BaseException:
            self._outbox.give_back(connection)
            raise

    def _refuse_if_replaced(self, name: str, standing: Standing) -> None:
        """An older relay that comes back after an error must not fence the newer one. When it begins it is the newest."""
        if self._epoch is None:
            return
        try:
            found = self._client.sessions.get(name)
        except SessionNotFoundError:
            newest = standing.epoch
        else:
            # An opening whose answer was lost is its own, though of a higher epoch than it knows of.
            newest = self._epoch if found.run.startswith(self._runs) else found.epoch
        if newest > self._epoch:
            raise self._replaced()

    def _register(self, session: Session, rows: OutboxRows) -> None:
        registered = False
        while not registered:
            before = self._standing(rows).epoch
            # One that is higher belongs to a newer relay; or Basalt was put back to an older state, and knows no newer one.
            if before >= session.epoch and self._client.sessions.get(session.name).epoch != session.epoch:
                raise self._replaced()
            registered = rows.register(before, session.epoch)

    def _begin_versions(self, session: Session, rows: OutboxRows, standing: Standing) -> None:
        """Make the newest batch the session's version: from then on a session without one is one that was forgotten."""
        oldest_taken = rows.oldest_taken()
        if oldest_taken is not None and standing.epoch > 0:
            raise OutboxUncertainError(
                f"outbox {self._outbox.name}: batch {oldest_taken} may have been published, and Basalt has forgotten the session"
                f" {session.name!r} that would tell",
                hint="Look whether its messages are in their topics: docs/reference/outbox.md, What can go wrong.",
            )
        with session.transaction(version=standing.batch):
            pass

    def _standing(self, rows: OutboxRows) -> Standing:
        try:
            standing = rows.standing()
        except Exception as error:
            if rows.listed():
                raise
            raise InputError(  # each driver has an error of its own for it, and sqlite3 the one for a locked database
                f"outbox {self._outbox.name}: its tables are not in the database",
                field="table",
                hint="Call outbox.create_table().",
            ) from error
        if standing is None or standing.name != self._outbox.name:
            found = "of no outbox" if standing is None else f"of outbox {standing.name}"
            raise InputError(f"the table is {found}, not of {self._outbox.name}", field="name")
        return standing

    def _replaced(self) -> SessionFencedError:
        return SessionFencedError(
            f"outbox {self._outbox.name}: a newer relay than this one, of epoch {self._epoch}, has begun and takes its rows"
        )

    def _behind(self, version: int) -> OutboxBehindError:
        return OutboxBehindError(
            f"outbox {self._outbox.name}: Basalt has published batch {version}, of which the database knows nothing",
            hint="Was it restored from a backup? docs/reference/outbox.md, What can go wrong.",
        )


def _send(tx: Transaction, rows: list[OutboxRow]) -> int:
    for (namespace, topic), run in itertools.groupby(rows, key=lambda row: (row.namespace, row.topic)):
        tx.publish(topic, [row.payload for row in run], namespace=namespace)
    return len(rows)
