"""HBase as a store, through its Thrift gateways. What all its modules speak: the types of HBase's second Thrift service."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from basalt_engine.errors import InputError


@functools.cache
def definitions() -> Any:
    """The types and the service of hbase2.thrift."""
    try:
        import thriftpy2
    except ImportError:
        raise InputError(
            "talking to HBase needs the library thriftpy2",
            field="store.kind",
            hint="install basalt-mq with its extra: basalt-mq[hbase]",
        ) from None
    return thriftpy2.load(str(Path(__file__).with_name("hbase2.thrift")), module_name="hbase2_thrift")


def without_package(line: str) -> str:
    """The line of a Java exception without the package of its class: `IOException: why`. Any other line as it is."""
    head, colon, rest = line.partition(": ")
    return f"{head.rpartition('.')[2]}: {rest}" if colon and " " not in head else line
