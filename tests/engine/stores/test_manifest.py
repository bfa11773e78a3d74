"""RocksDB's manifest, read without RocksDB."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from crc32c import crc32c

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.manifest import current_manifest, read_manifest
from basalt_engine.table import Delete, DeleteRange, Put


def test_the_manifest_is_read_as_rocksdb_reads_it(place: Path):
    """After overwriting, deleting, compacting and collecting of blobs its list of files is RocksDB's."""
    draw = random.Random(7)
    seen = set()
    for opening in range(4):
        store = RocksStore.open(place / "churned", sync=False)
        table = store.table("message")
        for _ in range(60):
            key = b"k%05d" % draw.randrange(100)
            table.write([Put(key, {b"p": draw.randbytes(100_000)})])
            if draw.random() < 0.2:
                table.write([Delete(key)])
            if draw.random() < 0.03:
                table.write([DeleteRange(b"k00020", b"k%05d" % draw.randrange(21, 100))])
        database = store._durable.database
        database.large("message").flush()
        if opening % 2:
            database.large("message").compact_range(None, None)
        listed = "".join(database._files(family) for family in database._families.values())
        theirs = {f"{int(number):06d}.sst" for number in re.findall(r"^ (\d+):\d+\[", listed, re.MULTILINE)}
        theirs |= {f"{int(n):06d}.blob" for n in re.findall(r"^blob_file_number: (\d+)", listed, re.MULTILINE)}
        assert {file.name for file in read_manifest(current_manifest(database.path)).files} == theirs
        seen |= theirs
        store.close()
    assert len(seen) > 8
    folder = place / "churned" / "rocks"
    for file in read_manifest(current_manifest(folder)).files:
        content = (folder / file.name).read_bytes()
        assert (len(content), crc32c(content)) == (file.size_bytes, file.crc)


def test_a_field_that_is_not_known_is_refused(tmp_path: Path):
    manifest = tmp_path / "MANIFEST-000001"
    manifest.write_bytes(bytes((0, 0, 0, 0, 1, 0, 1, 99)))
    with pytest.raises(CorruptionError, match="unknown field 99"):
        read_manifest(manifest)
    manifest.write_bytes(bytes((0, 0, 0, 0, 2, 0, 1, 1, 9)))  # a text of nine bytes that is not there
    with pytest.raises(CorruptionError, match="cannot be read"):
        read_manifest(manifest)


@pytest.mark.parametrize("content", [b"", b"MANIFEST-000001", b"MANIFEST-x\n", b"../FORMAT\n", b"MANIFEST-000002\n"])
def test_a_current_file_that_names_no_manifest_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "MANIFEST-000001").touch()
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(CorruptionError):
        current_manifest(tmp_path)
