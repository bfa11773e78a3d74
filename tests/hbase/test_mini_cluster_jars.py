"""The coprocessor from its jar, as on a real cluster: installed by path, and replaced by a newer one without downtime."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from crc32c import crc32c

from basalt_engine.stores.hbase.tables import CoprocessorJar
from tests.hbase.bare_installation import DAY_MS, OPTIONS, RULED_TABLES, BareInstallation, now_ms
from tests.hbase.mini_cluster import MiniCluster, wait_until

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

NEWER, NEWER_NUMBER = "9.8.7", 9_008_007


def as_newer_version(jar: Path, target: Path) -> Path:
    """The same classes, told as a version to come."""
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(target, "w") as made:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename == "META-INF/MANIFEST.MF":
                lines = [line for line in data.split(b"\r\n") if not line.startswith(b"Implementation-Version")]
                data = b"\r\n".join([lines[0], b"Implementation-Version: " + NEWER.encode(), *lines[1:]])
            made.writestr(entry, data)
    return target


def test_a_newer_jar_takes_over_while_rows_are_written(
    mini_cluster: MiniCluster, coprocessor_jar: Path, tmp_path: Path
) -> None:
    newer = as_newer_version(coprocessor_jar, tmp_path / "basalt-coprocessor-newer.jar")
    keys = BareInstallation.keys()
    start_ms = now_ms()
    with BareInstallation(mini_cluster, "jar", jar=f"file://{coprocessor_jar}") as installation:
        installation.put_topic("orders")
        installation.wait_until_known()
        reports = installation.wait_for_reports()
        assert {report.counters["jar.crc32c"] for report in reports.values()} == {crc32c(coprocessor_jar.read_bytes())}
        expired = {keys.message_key(start_ms - 9 * DAY_MS, number): {b"p": b"old"} for number in range(3)}
        kept = {keys.message_key(start_ms, number): {b"p": b"%d" % number} for number in range(3)}
        installation.write(expired | kept)
        for name in RULED_TABLES:
            upgraded = CoprocessorJar(f"file://{newer}", OPTIONS).of(name).encode()
            mini_cluster.set_coprocessor(installation.table(name), upgraded)
            more = {keys.message_key(now_ms(), 100 + len(kept)): {b"p": name.encode()}}
            installation.write(more)
            kept |= more
        wait_until(
            lambda: (
                {report.counters["jar.crc32c"] for report in installation.wait_for_reports().values()}
                == {crc32c(newer.read_bytes())}
            ),
            "every region has the newer jar",
        )
        reports = installation.wait_for_reports()
        assert {report.counters["jar.version"] for report in reports.values()} == {NEWER_NUMBER}
        installation.write({keys.message_key(start_ms - 9 * DAY_MS, 9): {b"p": b"old"}})
        installation.flush()
        installation.compact(major=True)
        assert installation.stored() == kept
    assert mini_cluster.aborted() == []
