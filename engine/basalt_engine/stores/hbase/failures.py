"""What HBase's refusals mean. The gateway passes on the text of a Java exception, and that is all there is to go by."""

from __future__ import annotations

import re

from basalt_engine.errors import BasaltError, FencedError, StoreError, UnknownOutcomeError
from basalt_engine.table import ADDED_LATER

FENCED = "basalt fenced"  # the coprocessor's words when a newer leader writes
REFUSED = "basalt refused"  # and when a writer has outlived its transaction
_FAILED_ACTIONS = re.compile(r"Failed (\d+) actions?:")
_TEXT_CHARS_MAX = 500
INSTALL = "make the tables with `basalt hbase install`, or set store.hbase.prefix to what they start with"
UPGRADE = "`basalt hbase upgrade --jar PATH` adds it to the tables of an earlier version; without a coprocessor `basalt hbase install` does"


class NoTableError(StoreError):
    """A table is not there."""


def no_table(table: str) -> NoTableError:
    """The error for a table of this name in HBase that is not there."""
    hint = UPGRADE if table.rpartition(".")[2] in ADDED_LATER else INSTALL
    return NoTableError(f"HBase has no table {table}", hint=hint)


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


def without_package(line: str) -> str:
    """`java.io.IOException: why` without what comes before the class's own name; any other line as it is."""
    head, colon, rest = line.partition(": ")
    return f"{head.rpartition('.')[2]}: {rest}" if colon and " " not in head else line
