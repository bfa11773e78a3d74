"""A permit says to another server what the leader knows of a range, and nothing is lost on the way."""

from __future__ import annotations

import msgspec
import pytest

from basalt.catalog.topics import Topic, topic_name
from basalt.errors import ProtocolError
from basalt.messaging.read.range_permit import VIEW_ENTRIES_MAX, Asked, RangePermit, View
from basalt_engine.keys import TopicKeys, topic_prefix
from basalt_engine.metadata import TopicMetadata
from basalt_engine.retention import OnInvalid
from basalt_engine.snapshot import InvalidList, PointerRuns, TransactionSnapshot, Visibility

SNAPSHOT = TransactionSnapshot(
    1_000, in_progress=(900, 950), invalid=InvalidList((1, 5), runs=PointerRuns([(10, 20)])),
    in_progress_runs=PointerRuns([(960, 970)]),
)  # fmt: skip


def permit(**changed: object) -> RangePermit:
    metadata = TopicMetadata.decode(_metadata().encode(), topic_prefix("shop", "orders"))
    keys = TopicKeys(topic_prefix("shop", "orders"), metadata.generation, 16, metadata.spread)
    topic = Topic(topic_name("shop", "orders"), metadata, keys, keys, None)
    asked = Asked(None, b"\x01" * 20, 8 << 20, ("id", "value"))
    made = RangePermit.of(topic, asked, View.of(SNAPSHOT), coordinator="0" * 16, now_ms=77, oldest_ms=5)
    return msgspec.structs.replace(made, **changed)


def _metadata(**changed: object) -> TopicMetadata:
    return TopicMetadata(3, 86_400_000, OnInvalid.DROP, 1, 1, 1, 1, {})._replace(**changed)  # type: ignore[arg-type]


def test_a_permit_is_read_as_it_was_written():
    made = permit()
    again = RangePermit.decode(made.encode())
    assert again == made
    assert again.title == ("shop", "orders")
    assert again.stored() == _metadata()
    assert again.view is not None
    assert again.view.snapshot() == SNAPSHOT


@pytest.mark.parametrize(
    ("writer", "seen"),
    [
        (None, Visibility.VISIBLE), (100, Visibility.VISIBLE), (900, Visibility.HOLD), (965, Visibility.HOLD),
        (1_001, Visibility.HOLD), (1, Visibility.SKIP), (15, Visibility.SKIP), (-100, Visibility.SKIP),
    ],
)  # fmt: skip
def test_a_view_judges_as_the_snapshot_does(writer: int | None, seen: Visibility):
    view = View.of(SNAPSHOT)
    assert view is not None
    assert view.snapshot().judge(writer) is SNAPSHOT.judge(writer) is seen


def test_a_view_that_is_too_long_is_none():
    entries = VIEW_ENTRIES_MAX - 1
    fits = TransactionSnapshot(1, in_progress=(1,), invalid=InvalidList(tuple(range(2, 2 + entries))))
    too_long = fits._replace(in_progress_runs=PointerRuns([(1 << 40, 1 << 41)]))
    assert View.of(fits) is not None
    assert View.of(too_long) is None


def test_a_permit_holds_while_the_topic_is_the_same_and_nothing_was_taken_from_it():
    made = permit()
    assert made.still_holds(_metadata())
    assert made.still_holds(_metadata(updated_ms=9, created_by="token:a"))
    for changed in ({"generation": 4}, {"generation": -3}, {"truncated_before_ms": 9}, {"ttl_ms": 5_000}):
        assert not made.still_holds(_metadata(**changed)), changed
    assert not made.still_holds(None)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", permit().encode()[:-1], permit(version=2).encode(), permit(metadata=b"short").encode()],
)
def test_what_is_no_permit_is_refused(data: bytes):
    with pytest.raises(ProtocolError, match="permit"):
        RangePermit.decode(data)
