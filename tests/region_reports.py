"""Region reports as bytes: region servers write them (`RegionReport` in Java), and the product only reads them."""

from __future__ import annotations

import struct

from basalt_engine.stores.hbase.regions import REPORT_FORMAT, RegionReport

_NUMBER = struct.Struct(">q")


def encode_report(report: RegionReport) -> bytes:
    """The body of the row."""
    parts = [bytes([REPORT_FORMAT]), *map(_sized, (report.table.encode(), report.region_name, report.server.encode()))]
    parts += map(_NUMBER.pack, report[3:8])
    parts += map(_sized, (report.start_key, report.stop_key))
    parts.append(len(report.files).to_bytes(4, "big"))
    for file in report.files:
        parts += (_sized(file.name.encode()), *map(_NUMBER.pack, file[1:]))
    parts.append(len(report.counters).to_bytes(2, "big"))
    for name, value in report.counters.items():
        parts += (_sized(name.encode("ascii")), _NUMBER.pack(value))
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data
