"""Asks HBase to write all files of a region anew. Only its first Thrift gateway, for which happybase is made, has that call."""

from __future__ import annotations

from typing import Any

import happybase
from Hbase_thrift import IOError as HBaseIOError  # the module that happybase makes of its IDL
from thriftpy2.thrift import TException

from basalt_engine.errors import StoreError

TIMEOUT_MS = 10_000  # the region server notes the wish, and answers


class Compactor:
    """Major compactions of single regions, through the first Thrift gateway at an address. Calls are few: none is kept open."""

    def __init__(self, address: tuple[str, int], timeout_ms: int = TIMEOUT_MS) -> None:
        self._address = address
        self._timeout_ms = timeout_ms

    def major_compact(self, region_name: bytes) -> None:
        """Have the region of this whole name compacted soon; returns at once. `StoreError` when it will not be."""
        host, port = self._address
        try:
            connection = happybase.Connection(host, port, timeout=self._timeout_ms)
            try:
                connection.compact_table(region_name, major=True)  # HBase takes the name of either
            finally:
                connection.close()
        except HBaseIOError as error:
            raise StoreError(f"HBase does not compact region {region_name!r}: {_reason(error)}") from error
        except (OSError, EOFError, TException) as error:
            raise StoreError(
                f"HBase's Thrift gateway at {host}:{port} does not answer: {_reason(error)}",
                hint="see that `hbase thrift start` runs there, and that store.hbase.thrift names it",
            ) from error


def _reason(error: Any) -> str:
    """The first line of what is a whole Java stack, or whatever else the error says."""
    text = getattr(error, "message", None) or repr(error)
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).partition("\n")[0]
