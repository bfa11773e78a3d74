"""Calls to the gateway, tried again where that is safe: the one place that turns failures into the SPI's errors.

Reads are tried again on any lost connection. So are puts and deletes: each carries its own timestamp, so it has the same
effect whether it is carried out once or twice, and whenever the first one arrives. A conditional put is sent again only
when the gateway cannot have read it to its end; else its caller looks whether it took effect.

The gateway passes on the text of a Java exception, so HBase's refusals are told apart by their words alone.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any

from basalt_engine.clock import Clock, SystemClock
from basalt_engine.errors import BasaltError, FencedError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.connections import ConnectionPool, LostError, RefusedError
from basalt_engine.stores.hbase.thrift2 import without_package

TRIES_MAX = 4
PAUSE_MS = 50  # before the second try, doubled before each further one; a random part of up to as much is added
CALL_TIMEOUT_MS = 10_000  # one try; a region that moves is away for a few seconds
TOTAL_MS_MAX = 15_000  # all tries together, after which the caller knows that the store is away

FENCED = "basalt fenced"  # says the coprocessor when a newer leader writes
REFUSED = "basalt refused"  # says the coprocessor when a writer has outlived its transaction
_FAILED_ACTIONS = re.compile(r"Failed (\d+) actions?:")
_TEXT_CHARS_MAX = 500
INSTALL = "make the tables with `basalt hbase install`, or set store.hbase.prefix to what they start with"


class NoTableError(StoreError):
    """HBase has no table of this name."""


class Gateway:
    """Makes calls over pooled connections. Any thread may use it."""

    def __init__(
        self,
        pool: ConnectionPool,
        address: str,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        tries_max: int = TRIES_MAX,
    ) -> None:
        self._pool = pool
        self.address = address
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._tries_max = tries_max

    def read(self, method: str, table: bytes, *arguments: object) -> Any:
        """The answer to a read; `StoreError` when no try got one."""
        try:
            return self._try(method, (table, *arguments), again_when_asked=True)
        except RefusedError as error:
            raise refused_read(str(error), table.decode()) from error
        except LostError as error:
            raise self._away(error) from error

    def write(self, method: str, table: bytes, *arguments: object, rows: int) -> None:
        """Make a write of so many rows that may be made twice; `StoreError` or `UnknownOutcomeError`."""
        try:
            self._try(method, (table, *arguments), again_when_asked=True)
        except RefusedError as error:
            raise refused_write(str(error), table.decode(), rows) from error
        except LostError as error:
            raise (self._unknown(error) if error.asked else self._away(error)) from error

    def write_once(self, method: str, table: bytes, *arguments: object) -> Any:
        """Make a write that must not be made twice; `StoreError` or `UnknownOutcomeError`."""
        try:
            return self._try(method, (table, *arguments), again_when_asked=False)
        except RefusedError as error:
            raise refused_write(str(error), table.decode(), 1) from error
        except LostError as error:
            raise (self._unknown(error) if error.asked else self._away(error)) from error

    def _try(self, method: str, arguments: tuple[object, ...], *, again_when_asked: bool) -> Any:
        deadline_ms = self._clock.monotonic_ms() + TOTAL_MS_MAX
        asked = False
        for number in range(self._tries_max):
            try:
                with self._pool.lent() as connection:
                    left_ms = deadline_ms - self._clock.monotonic_ms()
                    return connection.call(method, arguments, min(CALL_TIMEOUT_MS, left_ms))
            except LostError as error:
                asked = asked or error.asked
                pause_ms = PAUSE_MS * 2**number
                last = number + 1 == self._tries_max or self._clock.monotonic_ms() + pause_ms >= deadline_ms
                if last or (error.asked and not again_when_asked):
                    raise LostError(f"{method}: {error}", asked=asked) from error
                self._sleep(pause_ms * (1 + random.random()) / 1_000)  # noqa: S311 - spreads callers, guards nothing
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """Hang up; closing twice is fine."""
        self._pool.close()

    def _away(self, error: LostError) -> StoreError:
        return StoreError(
            f"HBase's Thrift 2 gateway at {self.address} does not answer: {error}",
            hint="see that `hbase thrift2 start` runs there, and that store.hbase.thrift2 names it",
        )

    def _unknown(self, error: LostError) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"HBase's Thrift 2 gateway at {self.address} did not answer a write: {error}",
            hint="the write may have taken effect, and may still do so",
        )


def no_table(table: str) -> NoTableError:
    """The error for a table of this name in HBase that is not there."""
    return NoTableError(f"HBase has no table {table}", hint=INSTALL)


def refused_read(text: str, table: str) -> StoreError:
    """The error for a read that HBase refused."""
    if _is_missing(text, table):
        return no_table(table)
    return StoreError(f"HBase cannot read this now: {_short(text)}")


def refused_write(text: str, table: str, rows: int) -> BasaltError:
    """The error for a write of so many rows that HBase refused, as a whole or in part."""
    if _is_missing(text, table):
        return no_table(table)
    failed = _FAILED_ACTIONS.search(text)
    none_written = rows == 1 or (failed is not None and int(failed.group(1)) >= rows)
    if none_written and FENCED in text:
        return FencedError(f"another server leads: {_short(text)}")
    if none_written and REFUSED in text:
        return StoreError(_short(text))
    # HBase tells a write that failed before it was made from one whose answer got lost by nothing that reaches us.
    return UnknownOutcomeError(f"HBase did not say that it has written this: {_short(text)}")


def _is_missing(text: str, table: str) -> bool:
    # Of a TableNotFoundException the gateway passes on the message alone, which is the table's name and nothing else.
    return text.strip() == table or "TableNotFoundException" in text


def _short(text: str) -> str:
    """The exception's message without its stack and its package."""
    line = " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at "))
    line = without_package(line)
    return line if len(line) <= _TEXT_CHARS_MAX else line[:_TEXT_CHARS_MAX] + "…"
