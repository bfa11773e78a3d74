"""Truncating behind an archive, over a store in this process and without Spark: only what the archive holds goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.positions import END, START, Position, at_time
from basalt.errors import ConflictError, GenerationError
from basalt_spark import connection
from basalt_spark.connection import QualifiedTopic, Server, client_of
from basalt_spark.jobs import archive_folder
from basalt_spark.jobs.archive import archive, before_ms, require_acknowledged, require_nothing_before, truncate_behind
from basalt_spark.jobs.archive_folder import Folder, Manifest
from basalt_spark.jobs.topic_rows import TopicRows, before
from tests.pipeline.runner import in_this_process


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[TopicRows]:
    made = Server(f"embedded:{tmp_path / 'data'}", "shop")
    with client_of(made) as client:
        client.topics.create("orders")
        yield TopicRows(made, QualifiedTopic("shop", "orders"))
    del connection._clients[made]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "archive"))


def published(rows: TopicRows, *payloads: str) -> list[int]:
    """Publish each in a millisecond of its own; when each was published."""
    times = []
    for payload in payloads:
        rows.topic.publish(payload)
        times.append(rows.topic.stats().newest_ms or 0)
        while int(time.time() * 1_000) <= times[-1]:
            pass
    return times


def archived(
    rows: TopicRows, folder: Folder, start: Position = START, stop: Position = END, job_id: str = "job"
) -> Manifest:
    wanted = rows.decided(start, stop)
    parts = rows.parts(wanted, 2)
    archive(
        rows, folder, in_this_process, lambda _n: None, wanted=wanted, parts=parts, job_id=job_id, now_ms=1
    )  # fmt: skip
    return archive_folder.read_manifest(folder, job_id)


def contents(rows: TopicRows) -> list[str]:
    return [bytes(message.payload).decode() for message in rows.topic.poll()]


def test_what_the_archive_holds_goes_and_nothing_else(rows: TopicRows, folder: Folder):
    times = published(rows, "a", "b", "c", "d")
    known = archived(rows, folder, stop=at_time(times[2]))
    done = truncate_behind(rows, known)
    assert done == {"truncated": True, "truncated_before_ms": times[2]}
    assert contents(rows) == ["c", "d"]
    assert archived(rows, folder, stop=at_time(times[2])) == known  # the same command again
    assert truncate_behind(rows, known) == {"truncated": False, "truncated_before_ms": times[2]}
    audit = rows.client.admin.audit()
    assert [(line.act, line.what, line.reason) for line in audit][-1] == (
        "truncate", "topic shop:orders", "archived by job job",
    )  # fmt: skip


def test_of_an_archive_up_to_the_end_the_last_millisecond_stays(rows: TopicRows, folder: Folder):
    times = published(rows, "a", "b", "c")
    assert truncate_behind(rows, archived(rows, folder)) == {"truncated": True, "truncated_before_ms": times[2]}
    assert contents(rows) == ["c"]


def test_archives_that_follow_each_other_truncate_one_after_the_other(rows: TopicRows, folder: Folder):
    times = published(rows, "a", "b", "c", "d")
    first = archived(rows, folder, stop=at_time(times[1]), job_id="first")
    second = archived(rows, folder, at_time(times[1]), at_time(times[3]), job_id="second")
    with pytest.raises(ConflictError, match="before the archive begins"):
        truncate_behind(rows, second)
    assert contents(rows) == ["a", "b", "c", "d"]
    truncate_behind(rows, first)
    assert truncate_behind(rows, second) == {"truncated": True, "truncated_before_ms": times[3]}
    assert contents(rows) == ["d"]


def test_an_archive_that_begins_too_late_is_refused_before_anything_is_written(rows: TopicRows):
    times = published(rows, "a", "b")
    require_nothing_before(rows, None)
    require_nothing_before(rows, before(at_time(times[0])))
    with pytest.raises(ConflictError):
        require_nothing_before(rows, before(at_time(times[1])))


def test_what_a_group_has_not_acknowledged_is_not_truncated(rows: TopicRows, folder: Folder):
    """The message that stays, of the archive's last millisecond, may be unacknowledged."""
    times = published(rows, "a", "b", "c")
    with rows.client.consumer("orders", group="billing") as billing:
        known = archived(rows, folder)
        assert known.through is not None
        batches = billing.batches(limit=1)
        for _ in range(2):
            with pytest.raises(ConflictError, match="group billing has not acknowledged"):
                require_acknowledged(rows, bytes.fromhex(known.through))
            with pytest.raises(ConflictError, match="group billing has not acknowledged"):
                truncate_behind(rows, known)
            billing.acknowledge(next(batches))
    assert contents(rows) == ["a", "b", "c"]
    require_acknowledged(rows, bytes.fromhex(known.through))
    assert truncate_behind(rows, known) == {"truncated": True, "truncated_before_ms": times[2]}


def test_a_topic_that_was_created_again_is_not_truncated(rows: TopicRows, folder: Folder):
    published(rows, "a", "b")
    known = archived(rows, folder)
    rows.client.topics.delete("orders")
    rows.client.topics.create("orders")
    published(rows, "c")
    with pytest.raises(GenerationError):
        truncate_behind(rows, known)
    assert contents(rows) == ["c"]


def test_an_archive_of_nothing_truncates_nothing(rows: TopicRows, folder: Folder):
    assert truncate_behind(rows, archived(rows, folder)) == {"truncated": False, "truncated_before_ms": None}


@given(st.binary(min_size=20, max_size=20).filter(lambda id_: id_[:8] < b"\x7f"), st.binary(min_size=12, max_size=12))
def test_every_message_before_the_time_is_in_the_archive_and_no_later_time_is_sure(through: bytes, tail: bytes):
    found_ms = before_ms(through)
    if found_ms:
        assert (found_ms - 1).to_bytes(8, "big") + tail <= through
    assert found_ms.to_bytes(8, "big") + b"\xff" * 12 > through
