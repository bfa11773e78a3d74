"""The manifest of an archive, and the digests in it."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import CorruptionError, InputError, NotFoundError
from basalt_engine.keys import NAME_PATTERN
from basalt_spark.jobs import archive_folder
from basalt_spark.jobs.archive_folder import Columns, Folder, Place, columns_of, digest_of, total
from tests.pipeline.test_archive import archived, rows


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "archive"))


def test_a_manifest_that_was_changed_is_refused(folder: Folder):
    data = archived(folder, rows([1])).encode()
    with pytest.raises(CorruptionError, match="checksum"):
        archive_folder.decode_manifest(data.replace(b'"messages": 1', b'"messages": 2'), "m")
    with pytest.raises(CorruptionError, match="damaged"):
        archive_folder.decode_manifest(data[:-10], "m")
    with pytest.raises(NotFoundError):
        archive_folder.read_manifest(folder, "other")


def test_a_manifest_of_a_later_version_is_refused_before_it_is_read(folder: Folder):
    body = msgspec.json.encode({"format": "basalt-archive", "version": 2, "new": []})
    sealed = b'{"manifest":%s,"sha256":"%s"}' % (body, hashlib.sha256(body).hexdigest().encode())
    with pytest.raises(InputError, match="version 2"):
        archive_folder.decode_manifest(sealed, "m")


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "a b", "x" * 129])
def test_a_job_id_that_could_name_another_file_is_refused(job_id: str):
    with pytest.raises(InputError, match="cannot be the id of a job"):
        archive_folder.checked_job_id(job_id)


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
    assert archive_folder.decode_manifest(data, "example").encode() == data


def test_the_content_digest_is_the_same_in_another_topic():
    one, other = rows([1, 2, 3]), rows([7, 8, 9])
    moved = other.set_column(0, "id", pa.array([b"x" * 20] * 3, pa.binary()))
    left, right = digest_of(columns_of(one)), digest_of(columns_of(moved))
    assert (left.content, left.rows == right.rows) == (right.content, False)


NAMES = st.from_regex(NAME_PATTERN, fullmatch=True)


@given(NAMES, NAMES)
def test_files_of_a_topic_lie_below_the_folder_and_apart_from_those_of_others(namespace: str, topic: str):
    path = PurePosixPath(Place(namespace, topic, 1).file("2026-11-23", "job", "00" * 20))
    assert path.parts[:3] == ("data", f"namespace={namespace}", f"topic={topic}")
    assert len(path.parts) == 6
