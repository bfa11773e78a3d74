"""The messages of a topic as a job reads them: ranges of what is decided, and batches cut into days."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.api.bodies.ranges import Advance, Split, StableEnd
from basalt.api.positions import END, START, at_id, at_time
from basalt.errors import ConflictError
from basalt_engine.keys import MessageId
from basalt_spark.connection import QualifiedTopic, Server
from basalt_spark.jobs import topic_rows
from basalt_spark.jobs.topic_rows import TopicRange, TopicRows, before, by_day
from tests.pipeline.test_archive import DAY_US
from tests.pipeline.test_archive import rows as message_rows


class PaperTopic:
    """Ids in order; `advance` answers as the server does, at most `looks` messages at a time."""

    def __init__(self, ids: list[bytes], *, looks: int = 1_000, undecided: int = 0) -> None:
        self.ids, self.looks, self.generation = ids, looks, 1
        self.decided = ids[: len(ids) - undecided]

    def stable_end(self, isolation: str = "committed") -> StableEnd:
        ids = self.decided if isolation == "committed" else self.ids
        return StableEnd(ids[-1] if ids else None, self.generation)

    def advance(self, after, *, through=None, messages_max=None, bytes_max=None, isolation="committed") -> Advance:
        ids = self.decided if isolation == "committed" else self.ids
        stop = through or ids[-1]
        found = [each for each in ids if (after is None or each > after) and each <= stop]
        taken = found[: min(self.looks, messages_max or self.looks)]
        at_end = len(taken) == len(found)
        end = stop if at_end else taken[-1]
        return Advance(end, len(taken), len(taken), at_end, self.generation, False, None, None, ())


class PaperRows(TopicRows):
    """A topic on paper behind no server."""

    paper: PaperTopic

    @property
    def topic(self) -> Any:
        return self.paper


def rows(paper: PaperTopic) -> PaperRows:
    made = PaperRows(Server("http://nowhere"), QualifiedTopic("shop", "orders"))
    made.paper = paper
    return made


def test_a_range_ends_at_what_is_decided_and_is_refused_where_more_may_come():
    ids = [MessageId(ms, 0).encode() for ms in (100, 200, 300)]
    source = rows(PaperTopic(ids, undecided=1))
    assert source.decided() == TopicRange(1, None, ids[1])
    assert source.decided(at_time(150), at_time(250)) == TopicRange(1, before(at_time(150)), ids[1])
    assert source.decided(START, at_id(ids[1])) == TopicRange(1, None, before(at_id(ids[1])))
    with pytest.raises(ConflictError, match="undecided before @400"):
        source.decided(START, at_time(400))
    assert source.decided(END).through is None
    assert source.decided(at_time(260)).through is None
    assert rows(PaperTopic([])).decided(START, at_time(400)) == TopicRange(1, None, None)


def test_what_is_not_decided_is_found_however_little_the_server_looks_at_in_one_call():
    class Slow(PaperTopic):
        """Moves on by one id a call, and counts only the last one as a message."""

        def advance(self, after, *, through=None, **_limits) -> Advance:
            found = [each for each in self.ids if (after is None or each > after) and each <= (through or b"")]
            rows_found = int(found[:1] == self.ids[-1:])
            return Advance(found[0], rows_found, 0, len(found) == 1, 1, False, None, None, ())

    source = rows(Slow([MessageId(ms, 0).encode() for ms in (100, 200, 300)], undecided=2))
    with pytest.raises(ConflictError, match="undecided before @400"):
        source.decided(START, at_time(400))


def test_a_topic_of_more_parts_than_the_limit_is_cut_into_that_many_and_none_is_lost(monkeypatch: pytest.MonkeyPatch):
    class Cut(PaperTopic):
        """Cuts as the server does, into as many parts as are asked for."""

        def splits(self, after: bytes | None, through: bytes, count: int) -> list[Split]:
            inside = [each for each in self.ids if (after is None or each > after) and each <= through]
            ends = sorted({inside[(number + 1) * len(inside) // count - 1] for number in range(count)})
            return [Split(start, end, 1, 1) for start, end in zip([after, *ends], ends, strict=False)]

    monkeypatch.setattr(topic_rows, "PARTS_MAX", 2)
    monkeypatch.setattr(topic_rows, "PART_BYTES", 1)
    source = rows(Cut([MessageId(ms, 0).encode() for ms in range(1, 10)], looks=2))
    wanted = source.decided()
    found = source.parts(wanted)
    assert (len(found), found[0].after, found[-1].through) == (2, None, wanted.through)
    assert found[0].through == found[1].after


def test_the_id_before_a_position_is_right_before_it():
    assert before(at_time(0)) is None
    assert before(START) is None
    assert before(at_time(1)) == bytes(8) + b"\xff" * 12
    assert before(at_id(bytes(19) + b"\1")) == bytes(20)


def test_a_batch_is_cut_at_midnight():
    assert [(day, piece.num_rows) for day, piece in by_day(message_rows([1, DAY_US - 1, DAY_US]))] == [
        ("1970-01-01", 2), ("1970-01-02", 1),
    ]  # fmt: skip
