"""The way of a replay through a topic: portions that end where a publish ends, versions that are places, and positions as ids."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import ConflictError
from basalt_engine.keys import MessageId
from basalt_spark.jobs import copies
from basalt_spark.jobs.copies import next_portion, place_of, rounded, version_at
from basalt_spark.jobs.topic_rows import TopicRange
from tests.pipeline.test_topic_rows import PaperTopic, rows

IDS = st.builds(
    MessageId, st.integers(1, 1 << 46), st.integers(0, 0xFFFF), st.integers(0, 1 << 46), st.integers(0, 0xFFFF)
)


@given(st.lists(IDS, max_size=30, unique=True), st.integers(1, 7), st.integers(1, 9), st.data())
def test_portions_cover_the_range_once_and_never_part_a_publish(ids, most, looks, data):
    encoded = sorted(each.encode() for each in ids)
    source = rows(PaperTopic(encoded, looks=looks))
    stop = data.draw(st.sampled_from(encoded)) if encoded else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "PORTION_MESSAGES", most)
        after, portions = None, []
        while portion := next_portion(source, TopicRange(1, None, stop), after):
            portions.append(portion)
            after = place_of(version_at(portion.through))
            assert after == portion.through, "a version says where its portion ended"
    assert [portion.after for portion in portions][1:] == [portion.through for portion in portions][:-1]
    covered = [each for each in encoded if portions and each <= portions[-1].through]
    assert covered == [each for each in encoded if stop is not None and each <= rounded(stop)]
    versions = [version_at(portion.through) for portion in portions]
    assert all(one < other for one, other in pairwise(versions))
    for portion in portions:
        assert not any(each[:10] == portion.through[:10] and each > portion.through for each in encoded)


def test_a_topic_that_was_made_anew_ends_the_job():
    source = rows(PaperTopic([MessageId(1, 0).encode()]))
    with pytest.raises(ConflictError, match="of generation 1 now, the range of 2"):
        next_portion(source, TopicRange(2, None, MessageId(1, 0).encode()), None)
