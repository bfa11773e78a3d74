"""The regions' own reports, as an operator needs them: who has spoken when, and which jar it runs."""

from __future__ import annotations

from typing import NamedTuple

from basalt.errors import CorruptionError
from basalt.hbase_admin.system_rows import SystemRows
from basalt_engine.regions.report import KIND, RegionReport

# Counters of a report that say what runs there; -1 where the region server cannot tell. docs/formats/region-report.md
JAR_CRC32C = "jar.crc32c"
JAR_VERSION = "jar.version"
HBASE_VERSION = "hbase.version"
METADATA_TIME_MS = "metadata.time_ms"
UNKNOWN = -1


class Reports(NamedTuple):
    """All reports by encoded region name, and the names of those that cannot be read."""

    by_region: dict[str, RegionReport]
    damaged: tuple[str, ...]


def read_reports(rows: SystemRows) -> Reports:
    """Every report in the system table, also of regions that are gone."""
    found, damaged = {}, []
    for name, body in rows.scan(KIND):
        try:
            if isinstance(body, CorruptionError):
                raise body
            found[name] = RegionReport.decode(body)
        except CorruptionError:
            damaged.append(name)
    return Reports(found, tuple(damaged))


def jar_of(report: RegionReport) -> int:
    """Checksum of the jar that the region runs."""
    return report.counters.get(JAR_CRC32C, UNKNOWN)


def version_text(number: int) -> str:
    """A version that a counter holds as one number: 2_006_001 is 2.6.1."""
    if number < 0:
        return "unknown"
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
