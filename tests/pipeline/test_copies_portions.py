"""The way of a replay through a topic: steps that end where a publish ends, versions that are places, and positions as ids."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import Advance, StableEnd
from basalt.api.positions import END, START, at_id, at_time
from basalt.errors import ConflictError
from basalt_engine.keys import MessageId
from basalt_spark.connection import Server, TopicName
from basalt_spark.jobs import copies
from basalt_spark.jobs.copies import next_portion, place_of, rounded, version_at
from basalt_spark.jobs.topic_rows import TopicRange, TopicRows, before

IDS = st.builds(
    MessageId, st.integers(1, 1 << 46), st.integers(0, 0xFFFF), st.integers(0, 1 << 46), st.integers(0, 0xFFFF)
)


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
    made = PaperRows(Server("http://nowhere"), TopicName("shop", "orders"))
    made.paper = paper
    return made


@given(st.lists(IDS, max_size=30, unique=True), st.integers(1, 7), st.integers(1, 9), st.data())
def test_steps_cover_the_range_once_and_never_part_a_publish(ids, most, looks, data):
    encoded = sorted(each.encode() for each in ids)
    source = rows(PaperTopic(encoded, looks=looks))
    stop = data.draw(st.sampled_from(encoded)) if encoded else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "PORTION_MESSAGES", most)
        after, steps = None, []
        while step := next_portion(source, TopicRange(1, None, stop), after):
            steps.append(step)
            after = place_of(version_at(step.through))
            assert after == step.through, "a version says where its step ended"
    assert [step.after for step in steps][1:] == [step.through for step in steps][:-1]
    covered = [each for each in encoded if steps and each <= steps[-1].through]
    assert covered == [each for each in encoded if stop is not None and each <= rounded(stop)]
    versions = [version_at(step.through) for step in steps]
    assert all(one < other for one, other in pairwise(versions))
    for step in steps:
        assert not any(each[:10] == step.through[:10] and each > step.through for each in encoded)


def test_a_topic_that_was_made_anew_ends_the_job():
    source = rows(PaperTopic([MessageId(1, 0).encode()]))
    with pytest.raises(ConflictError, match="of generation 1 now, the range of 2"):
        next_portion(source, TopicRange(2, None, MessageId(1, 0).encode()), None)


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


def test_the_id_before_a_position_is_right_before_it():
    assert before(at_time(0)) is None
    assert before(START) is None
    assert before(at_time(1)) == bytes(8) + b"\xff" * 12
    assert before(at_id(bytes(19) + b"\1")) == bytes(20)
