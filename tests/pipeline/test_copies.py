"""The jobs that write, over a store in this process and without Spark: attempts that are lost, jobs that are repeated or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from basalt.api.positions import END, START, at_id, at_time
from basalt.client import RecordIn
from basalt.errors import CorruptionError, InputError, SessionFencedError, SessionForeignError, TransactionEndedError
from basalt_spark import connection
from basalt_spark.connection import QualifiedTopic, Server, client_of
from basalt_spark.jobs import archive_folder, copies
from basalt_spark.jobs.archive import archive, verify
from basalt_spark.jobs.archive_folder import Folder
from basalt_spark.jobs.copies import backfill, ledger_of, publish, replay
from basalt_spark.jobs.job_run import JobReport
from basalt_spark.jobs.topic_rows import TopicRange, TopicRows, before
from basalt_spark.sink.commit import SinkWork
from tests.pipeline.runner import in_this_process
from tests.pipeline.test_archive import files_in

MESSAGES = 40


class Cut(Exception):
    """The driver died."""


def every_first_attempt_is_lost(parts, work, advance):
    """A runner whose tasks all run twice, the first time for nothing; later parts first."""
    for part in reversed(parts):
        work(part)
    return in_this_process(parts, work, advance)


def nobody_looks(_amount: int) -> None:
    pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(f"embedded:{tmp_path / 'data'}", "shop")
    with client_of(made):
        yield made
    del connection._clients[made]


@pytest.fixture
def rows(server: Server) -> TopicRows:
    client = client_of(server)
    client.topics.create("orders")
    records = [
        RecordIn(
            b"value %d" % number,
            key=b"key %d" % number if number % 2 else None,
            headers=(("h", b"%d" % number),) if number % 3 else (),
            event_time_ms=number if number % 4 else None,
        )
        for number in range(MESSAGES - 10)
    ]
    for start in range(0, len(records), 7):
        client.topic("orders").publish_records(records[start : start + 7])
    lost = client.transactions.begin()
    client.topic("orders").publish(b"never seen", write_pointer=lost.write_pointer)
    client.transactions.abort(lost)
    with client.transaction() as tx:
        tx.store("orders", [b"stored %d" % number for number in range(10)])
    return TopicRows(server, QualifiedTopic("shop", "orders"))


def topic(rows: TopicRows, name: str) -> TopicRows:
    rows.client.topics.create(name)
    return rows._replace(name=QualifiedTopic("shop", name))


def contents(rows: TopicRows) -> list[dict[str, Any]]:
    """The parts of each message that its publisher gave, in order."""
    wanted = rows.decided()
    columns = ("key", "value", "headers", "event_time")
    parts = rows.parts(wanted, 1)
    return [
        row for part in parts for batch in rows.batches(wanted.generation, part, columns) for row in batch.to_pylist()
    ]


def archived(rows: TopicRows, folder: Folder, job_id: str, run=in_this_process, count: int = 3) -> JobReport:
    wanted = rows.decided()
    return archived_range(rows, folder, wanted, job_id, run, count, open_end=True)


def archived_range(
    rows: TopicRows, folder: Folder, wanted: TopicRange, job_id: str, run=in_this_process, count: int = 1, **more: bool
) -> JobReport:
    parts = rows.parts(wanted, count)
    return archive(rows, folder, run, nobody_looks, wanted=wanted, parts=parts, job_id=job_id, now_ms=1, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "archive"))


def test_an_archive_holds_what_readers_see_and_is_written_once(rows: TopicRows, folder: Folder):
    first = archived(rows, folder, "first", every_first_attempt_is_lost)
    known = archive_folder.read_manifest(folder, "first")
    assert (known.messages, first.facts["done_before"]) == (MESSAGES, False)
    assert verify(folder, known, in_this_process, nobody_looks, source=rows).faults == []
    stored = [row["value"] for file in known.files for batch in _batches(folder, file) for row in batch.to_pylist()]
    assert stored == [row["value"] for row in contents(rows)]
    rows.topic.publish("later")
    assert archived(rows, folder, "first").facts["done_before"]
    assert archive_folder.read_manifest(folder, "first") == known


def test_a_job_that_archived_one_range_is_not_done_for_another(rows: TopicRows, folder: Folder):
    whole = rows.decided()
    ids = [message.id for message in rows.topic.read(isolation="committed")]
    early, late = rows.decided(START, at_id(ids[9])), rows.decided(at_id(ids[9]), END)
    assert archived_range(rows, folder, early, "early").facts["messages"] == 9
    assert archived_range(rows, folder, early, "early").facts["done_before"]
    for other in (whole, late, rows.decided(START, at_id(ids[8])), rows.decided(END), early._replace(generation=2)):
        with pytest.raises(InputError, match="which is another range"):
            archived_range(rows, folder, other, "early")
    archived(rows, folder, "whole")
    with pytest.raises(InputError, match="which is another range"):
        archived_range(rows, folder, late, "whole", open_end=True)
    with pytest.raises(InputError, match="which is another range"):
        archived_range(rows, folder, early, "whole")


def test_a_range_whose_start_moved_over_no_message_is_the_same(rows: TopicRows, folder: Folder):
    whole = rows.decided()
    assert not archived_range(rows, folder, whole, "first").facts["done_before"]
    moved = whole._replace(after=before(at_time(1)))
    assert archived_range(rows, folder, moved, "first").facts["done_before"]


def _batches(folder: Folder, file: archive_folder.ArchiveFile):
    return copies.checked_batches(folder, file)


def test_parts_do_not_change_what_an_archive_says(rows: TopicRows, folder: Folder):
    archived(rows, folder, "one", count=1)
    archived(rows, folder, "many", count=8)
    one, many = archive_folder.read_manifest(folder, "one"), archive_folder.read_manifest(folder, "many")
    assert len(many.files) > len(one.files)
    assert (one.digest, one.content_digest) == (many.digest, many.content_digest)


def test_files_of_a_run_that_was_cut_off_are_no_part_of_the_archive(rows: TopicRows, folder: Folder):
    def cut(parts, work, advance):
        in_this_process(parts, work, advance)
        raise Cut

    with pytest.raises(Cut):
        archived(rows, folder, "first", cut, count=4)
    assert files_in(folder)
    archived(rows, folder, "first", count=2)
    files = {file.path for file in archive_folder.read_manifest(folder, "first").files}
    assert set(files_in(folder, "data")) == files


def test_verify_finds_that_the_topic_has_other_messages(rows: TopicRows, folder: Folder):
    archived(rows, folder, "first")
    known = archive_folder.read_manifest(folder, "first")
    rows.client.topics.delete("orders")
    again = topic(rows, "orders")
    assert "generation 2 now" in verify(folder, known, in_this_process, nobody_looks, source=again).faults[0]


def test_an_archive_comes_back_in_order_and_once(rows: TopicRows, folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "GROUP_MESSAGES", 12)
    archived(rows, folder, "first", count=5)
    known, back = archive_folder.read_manifest(folder, "first"), topic(rows, "back")
    assert len(copies.groups(known)) > 2
    rounds: list[int] = []

    def cut_at_the_second_group(parts, work, advance):
        rounds.append(len(parts))
        if len(rounds) == 2:
            every_first_attempt_is_lost(parts, work, advance)
            raise Cut
        return every_first_attempt_is_lost(parts, work, advance)

    with pytest.raises(Cut):
        backfill(folder, known, back, cut_at_the_second_group, nobody_looks, job_id="fill")
    begun = contents(back)
    assert 0 < len(begun) < MESSAGES
    report = backfill(folder, known, back, in_this_process, nobody_looks, job_id="fill")
    assert (report.facts["done_before"], report.facts["published_now"]) == (1, MESSAGES - len(begun))
    assert contents(back) == contents(rows)
    archived(back, folder, "second", count=1)
    assert archive_folder.read_manifest(folder, "second").content_digest == known.content_digest
    with pytest.raises(SessionForeignError):
        backfill(
            folder, archive_folder.read_manifest(folder, "second"), back, in_this_process, nobody_looks, job_id="fill"
        )
    assert contents(back) == contents(rows)


def test_a_damaged_file_publishes_nothing(rows: TopicRows, folder: Folder):
    archived(rows, folder, "first")
    known, back = archive_folder.read_manifest(folder, "first"), topic(rows, "back")
    path = Path(folder.place) / known.files[-1].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        backfill(folder, known, back, in_this_process, nobody_looks, job_id="fill")
    assert contents(back) == []


def test_a_replay_copies_a_range_once_and_goes_on_behind_it(rows: TopicRows, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "PORTION_MESSAGES", 9)
    copy = topic(rows, "copy")
    told: list[int] = []
    cut: list[int] = []

    def cut_in_the_third_step(parts, work, advance):
        cut.append(1)
        made = every_first_attempt_is_lost(parts, work, advance)
        if len(cut) == 3:
            raise Cut
        return made

    def once(run) -> JobReport:
        return replay(rows, copy, run, told.append, wanted=rows.decided(), job_id="copy")

    with pytest.raises(Cut):
        once(cut_in_the_third_step)
    assert contents(copy) == contents(rows)[: sum(told)]
    assert once(in_this_process).facts["went_on"]
    assert contents(copy) == contents(rows)
    assert once(in_this_process).facts["messages"] == 0
    rows.topic.publish(["later", "still"])
    assert once(in_this_process).facts["messages"] == 2
    assert contents(copy) == contents(rows)
    assert sum(told) == MESSAGES + 2


def replayed(rows: TopicRows, copy: TopicRows, wanted: TopicRange | None = None) -> JobReport:
    wanted = wanted or rows.decided()
    return replay(rows, copy, in_this_process, nobody_looks, wanted=wanted, job_id="copy")


def test_a_replay_from_a_time_counted_from_now_leaves_out_nothing_when_it_is_repeated(rows: TopicRows):
    copy = topic(rows, "copy")
    replayed(rows, copy, rows.decided(at_time(1)))
    rows.topic.publish("later")
    now_ms = 1 + int.from_bytes((rows.decided().through or b"")[:8])
    again = rows.decided(at_time(now_ms))
    rows.topic.publish("and later still")
    report = replayed(rows, copy, again._replace(through=rows.decided().through))
    assert report.facts["messages"] == 2
    assert contents(copy) == contents(rows)


def test_a_replay_that_would_end_within_a_publish_is_refused_for_its_rest_would_never_be_copied(rows: TopicRows):
    copy = topic(rows, "copy")
    within = rows.decided(START, at_id(list(rows.topic.read(isolation="committed"))[-4].id))
    with pytest.raises(InputError, match="ends within one publish"):
        replayed(rows, copy, within)
    assert contents(copy) == []


def test_a_replays_id_is_of_one_source_also_where_nothing_is_left_to_copy(rows: TopicRows):
    other, copy = topic(rows, "other"), topic(rows, "copy")
    other.topic.publish("never copied")
    rows.topic.publish("later")
    replayed(rows, copy)
    with pytest.raises(InputError, match="of this job id was written by"):
        replayed(other, copy)


def test_names_that_are_too_long_for_a_counter_owner_are_kept_as_a_digest():
    assert ledger_of("replay", "one", "two") == "replay one two"
    long = ledger_of("replay", "x" * 255, "one")
    assert len(long) <= 255
    assert long != ledger_of("replay", "x" * 255, "two")


def test_a_job_that_was_taken_over_cannot_commit(rows: TopicRows):
    copy = topic(rows, "copy")
    wanted = rows.decided()
    parts = rows.parts(wanted, 2)

    def batches(part):
        return rows.batches(wanted.generation, part)

    def another_takes_over(parts, work, advance):
        made = in_this_process(parts, work, advance)
        newer = SinkWork("jobs-x", "newer", 1, "x")
        assert publish(copy, newer, parts, batches, in_this_process, nobody_looks).messages == MESSAGES
        return made

    with pytest.raises((SessionFencedError, TransactionEndedError)):
        publish(copy, SinkWork("jobs-x", "older", 1, "x"), parts, batches, another_takes_over, nobody_looks)
    assert contents(copy) == contents(rows)
