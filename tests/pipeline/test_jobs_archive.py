"""Archives without Spark or a server: files, manifest, checksums; what verify finds; and the bodies that are published again."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import CorruptionError, InputError, NotFoundError
from basalt_spark.jobs import archive as archives
from basalt_spark.jobs import manifest as manifests
from basalt_spark.jobs import publishing
from basalt_spark.jobs.backfill import GROUP_MESSAGES, checked_batches, groups
from basalt_spark.jobs.digest import Columns, Digest, columns_of, digest_of, total
from basalt_spark.jobs.folder import PARTIAL, Folder
from basalt_spark.jobs.manifest import ArchiveFile, Manifest, Place
from basalt_spark.jobs.running import in_this_process
from basalt_spark.jobs.server_rows import by_day
from basalt_spark.jobs.statistics import DayCounts, by_days

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


def archived(folder: Folder, *batches: pa.RecordBatch, job_id: str = "job") -> Manifest:
    files = archives.write_files(iter(batches), folder, PLACE, job_id)
    manifest = manifests.made(PLACE, job_id, 1, None, "ff" * 20, tuple(files))
    folder.write(manifests.path_of(job_id), manifest.encode())
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
    assert manifests.read(folder, "job") == manifest
    assert verified(folder, manifest) == []
    assert folder.files("", "") == sorted([*(file.path for file in manifest.files), "manifests/job.json"])


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


def test_a_manifest_that_was_changed_is_refused(folder: Folder):
    data = archived(folder, rows([1])).encode()
    with pytest.raises(CorruptionError, match="checksum"):
        manifests.decode(data.replace(b'"messages": 1', b'"messages": 2'), "m")
    with pytest.raises(CorruptionError, match="damaged"):
        manifests.decode(data[:-10], "m")
    with pytest.raises(NotFoundError):
        manifests.read(folder, "other")


def test_a_manifest_of_a_later_version_is_refused_before_it_is_read(folder: Folder):
    body = msgspec.json.encode({"format": "basalt-archive", "version": 2, "new": []})
    sealed = b'{"manifest":%s,"sha256":"%s"}' % (body, hashlib.sha256(body).hexdigest().encode())
    with pytest.raises(InputError, match="version 2"):
        manifests.decode(sealed, "m")


def test_a_file_that_fails_half_way_is_not_there(folder: Folder):
    def failing():
        yield rows([1, 2])
        raise RuntimeError("the server is away")

    with pytest.raises(RuntimeError):
        archives.write_files(failing(), folder, PLACE, "job")
    assert folder.files("", "") == []


def test_a_file_is_written_under_another_name_until_it_is_whole(folder: Folder):
    with folder.writing("one/file") as sink:
        sink.write(b"whole")
        assert [name.endswith(PARTIAL) for name in folder.files("", "")] == [True]
    assert folder.read("one/file") == b"whole"
    assert sink.written == folder.checksum("one/file")


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "a b", "x" * 129])
def test_a_job_id_that_could_name_another_file_is_refused(job_id: str):
    with pytest.raises(InputError, match="cannot be the id of a job"):
        manifests.checked_job_id(job_id)


TEXTS = st.text(alphabet="ab", max_size=2)
MESSAGES = st.lists(
    st.tuples(
        st.binary(min_size=20, max_size=20), st.integers(0, 9), st.none() | st.binary(max_size=2), st.binary(max_size=2),
        st.none() | TEXTS, st.lists(st.fixed_dictionaries({"name": TEXTS, "value": st.binary(max_size=2)}), max_size=2),
        st.none() | st.integers(0, 9),
    ),
    max_size=6,
)  # fmt: skip


def columns(messages) -> Columns:
    return Columns(*map(list, zip(*messages, strict=True))) if messages else Columns(*([] for _ in Columns._fields))


@given(MESSAGES, st.integers(0, 6), st.randoms())
def test_a_digest_does_not_depend_on_parts_or_their_order(messages, cut, random):
    whole = digest_of(columns(messages))
    parts = [digest_of(columns(messages[:cut])), digest_of(columns(messages[cut:]))]
    random.shuffle(parts)
    assert total(parts) == whole


@given(MESSAGES, MESSAGES)
def test_digests_are_equal_only_of_equal_messages(one, other):
    def plain(messages):
        return sorted(repr(message) for message in messages)

    def contents(messages):
        return sorted(repr((key, value, headers, event)) for _, _, key, value, _, headers, event in messages)

    left, right = digest_of(columns(one)), digest_of(columns(other))
    assert (left.rows == right.rows) == (plain(one) == plain(other))
    assert (left.content == right.content) == (contents(one) == contents(other))


VECTORS = Path(__file__).parents[1] / "vectors"


@pytest.mark.parametrize("line", (VECTORS / "archive-digests.tsv").read_text().splitlines(), ids=lambda line: line[:20])
def test_digests_are_as_the_format_says(line: str):
    _, content, digest, content_digest, told = line.split("\t")
    message = msgspec.json.decode(told)
    key, value = message["key"], bytes.fromhex(message["value"])
    made = digest_of(
        Columns(
            [bytes.fromhex(message["id"])],
            [message["publish_time"]],
            [None if key is None else bytes.fromhex(key)],
            [value],
            [message["tx_id"]],
            [[{"name": name, "value": bytes.fromhex(value)} for name, value in message["headers"]]],
            [message["event_time"]],
        )
    )
    assert (made.digest, made.content_digest) == (digest, content_digest)
    assert hashlib.blake2b(bytes.fromhex(content), digest_size=16).hexdigest() == content_digest


def test_the_manifest_of_the_format_is_read_and_written_byte_for_byte():
    data = (VECTORS / "archive-manifest.json").read_bytes()
    assert manifests.decode(data, "example").encode() == data


def test_the_content_digest_is_the_same_in_another_topic():
    one, other = rows([1, 2, 3]), rows([7, 8, 9])
    moved = other.set_column(0, "id", pa.array([b"x" * 20] * 3, pa.binary()))
    left, right = digest_of(columns_of(one)), digest_of(columns_of(moved))
    assert (left.content, left.rows == right.rows) == (right.content, False)


def test_bodies_are_bounded_keep_the_order_and_hold_each_message_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(publishing, "BODY_BYTES", 2_000)
    monkeypatch.setattr(publishing, "BODY_ROWS", 10)
    batches = [rows([1] * 37, value_bytes=40), rows([1] * 3, first=37), rows([1], first=40, value_bytes=9_000)]
    found = list(publishing.bodies(iter(batches)))
    back = [pa.ipc.open_stream(io.BytesIO(body)).read_all() for body, _, _ in found]
    assert pa.concat_tables(back).equals(pa.Table.from_batches(batches).select(list(publishing.COLUMNS)))
    assert all(table.num_rows <= 10 for table in back)
    assert [rows_ for _, rows_, _ in found] == [table.num_rows for table in back]
    assert all(size <= 6_000 for size in (len(body) for body, _, _ in found[:-1]))


def test_groups_hold_every_file_once_in_order_and_are_bounded():
    def file(number: int, messages: int) -> ArchiveFile:
        return ArchiveFile("p", "d", 1, "s", messages, 0, f"{number:040x}", "", f"{number:032x}", "0" * 32)

    sizes = [GROUP_MESSAGES // 2, GROUP_MESSAGES // 2, 1, 3 * GROUP_MESSAGES, 1, 1]
    manifest = manifests.made(PLACE, "j", 1, None, None, tuple(file(*each) for each in enumerate(sizes)))
    found = groups(manifest)
    assert [file for group in found for file in group] == list(manifest.files)
    assert [[file.messages for file in group] for group in found] == [sizes[:2], [1], [sizes[3]], [1, 1]]


def test_days_are_counted_with_what_a_message_has():
    found = by_days([rows([1, 2, DAY_US]), rows([DAY_US + 1], first=3, value_bytes=200)])
    assert [(day, counts.messages) for day, counts in found.items()] == [("1970-01-01", 2), ("1970-01-02", 2)]
    second = found["1970-01-02"]
    assert (second.keyed, second.with_headers, second.in_transactions) == (1, 1, 1)
    assert (second.first_us, second.last_us, second.event_first_us) == (DAY_US, DAY_US + 1, 2_000)
    assert (second.largest, second.value_bytes, second.sizes[:2]) == (200, 205, (1, 1))
    assert DayCounts().merged(second) == second


def test_a_batch_is_cut_at_midnight():
    assert [(day, piece.num_rows) for day, piece in by_day(rows([1, DAY_US - 1, DAY_US]))] == [
        ("1970-01-01", 2), ("1970-01-02", 1),
    ]  # fmt: skip
