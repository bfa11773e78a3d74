"""Archives without Spark or a server: files, checksums, and what verify finds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from basalt.errors import CorruptionError
from basalt_spark.jobs import archive as archives
from basalt_spark.jobs import archive_folder
from basalt_spark.jobs.archive_folder import PARTIAL, ArchiveFile, Digest, Folder, Manifest, Place
from basalt_spark.jobs.copies import GROUP_MESSAGES, checked_batches, groups
from tests.pipeline.runner import in_this_process

DAY_US = 86_400_000_000
HEADERS = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("id", pa.binary()),
        ("publish_time", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("tx_id", pa.utf8()),
        ("headers", HEADERS),
        ("event_time", pa.timestamp("us", "UTC")),
    ]
)
PLACE = Place("shop", "orders", 3)


def rows(times_us: list[int], *, first: int = 0, value_bytes: int = 5) -> pa.RecordBatch:
    count = range(first, first + len(times_us))
    columns = {
        "id": [number.to_bytes(20, "big") for number in count],
        "publish_time": times_us,
        "key": [None if number % 2 else b"key %d" % number for number in count],
        "value": [b"%d" % number * value_bytes for number in count],
        "tx_id": [None if number % 3 else f"{number:032x}" for number in count],
        "headers": [[{"name": "h", "value": b"%d" % number}] * (number % 3) for number in count],
        "event_time": [None if number % 2 else number * 1_000 for number in count],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def files_in(folder: Folder, under: str = "") -> list[str]:
    """The files anywhere below a folder, sorted."""
    found = Path(folder.place, under).rglob("*")
    return sorted(str(path.relative_to(folder.place)) for path in found if path.is_file())


def archived(folder: Folder, *batches: pa.RecordBatch, job_id: str = "job") -> Manifest:
    files = archives.write_files(iter(batches), folder, PLACE, job_id)
    manifest = archive_folder.manifest_of(PLACE, job_id, 1, None, "ff" * 20, tuple(files))
    folder.write(archive_folder.manifest_path(job_id), manifest.encode())
    return manifest


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "archive"))


def verified(folder: Folder, manifest: Manifest) -> list[str]:
    return list(archives.verify(folder, manifest, in_this_process, lambda _n: None).faults)


def test_each_day_has_a_file_and_reading_it_gives_exactly_what_was_archived(folder: Folder):
    first, second = rows([1, 2, DAY_US - 1, DAY_US, DAY_US + 1]), rows([DAY_US + 2, 2 * DAY_US], first=5)
    manifest = archived(folder, first, second)
    assert [(file.day, file.messages) for file in manifest.files] == [
        ("1970-01-01", 3), ("1970-01-02", 3), ("1970-01-03", 1),
    ]  # fmt: skip
    assert manifest.files[0].path == (
        f"data/namespace=shop/topic=orders/generation=3/day=1970-01-01/job.{'00' * 20}.parquet"
    )
    back = pa.Table.from_batches([each for file in manifest.files for each in archives.read_file(folder, file)])
    assert back.equals(pa.Table.from_batches([first, second]))
    assert archive_folder.read_manifest(folder, "job") == manifest
    assert verified(folder, manifest) == []
    assert files_in(folder) == sorted([*(file.path for file in manifest.files), "manifests/job.json"])


def test_the_same_messages_make_the_same_bytes(folder: Folder, tmp_path: Path):
    one = archived(folder, rows([1, 2, 3]))
    other = archived(Folder(str(tmp_path / "other")), rows([1, 2, 3]))
    assert one == other


def test_every_damage_is_found(folder: Folder):
    manifest = archived(folder, rows([1, 2]), rows([DAY_US, 2 * DAY_US], first=2))
    whole = Path(folder.place)
    files = [whole / file.path for file in manifest.files]
    body = bytearray(files[0].read_bytes())
    body[len(body) // 2] ^= 1
    files[0].write_bytes(body)
    files[1].unlink()
    first, second = verified(folder, manifest)
    assert "day=1970-01-01" in first
    assert "not as it was written" in first
    assert second.endswith("is missing")
    with pytest.raises(CorruptionError, match="not as it was written"):
        list(checked_batches(folder, manifest.files[0]))


def test_other_messages_under_a_right_checksum_are_found(folder: Folder):
    (file,) = archived(folder, rows([1, 2])).files
    told = msgspec.structs.replace(file, digest=Digest(rows=int(file.digest, 16) + 1).digest)
    assert list(archives.faults_of(folder, told)) == [f"{file.path} holds other messages than the manifest says"]


def test_a_file_that_fails_half_way_is_not_there(folder: Folder):
    def failing():
        yield rows([1, 2])
        raise RuntimeError("the server is away")

    with pytest.raises(RuntimeError):
        archives.write_files(failing(), folder, PLACE, "job")
    assert files_in(folder) == []


def test_a_file_is_written_under_another_name_until_it_is_whole(folder: Folder):
    with folder.writing("one/file") as sink:
        sink.write(b"whole")
        assert [name.endswith(PARTIAL) for name in files_in(folder)] == [True]
    assert folder.read("one/file") == b"whole"
    assert sink.written == folder.checksum("one/file")


def test_groups_hold_every_file_once_in_order_and_are_bounded():
    def file(number: int, messages: int) -> ArchiveFile:
        return ArchiveFile("p", "d", 1, "s", messages, 0, f"{number:040x}", "", f"{number:032x}", "0" * 32)

    sizes = [GROUP_MESSAGES // 2, GROUP_MESSAGES // 2, 1, 3 * GROUP_MESSAGES, 1, 1]
    manifest = archive_folder.manifest_of(PLACE, "j", 1, None, None, tuple(file(*each) for each in enumerate(sizes)))
    found = groups(manifest)
    assert [file for group in found for file in group] == list(manifest.files)
    assert [[file.messages for file in group] for group in found] == [sizes[:2], [1], [sizes[3]], [1, 1]]
