"""What the API accepts of a record is what a record batch can hold: nothing is lost or refused later."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import HEADER_NAME_BYTES_MAX, LONG_MAX, RecordIn, check_record
from basalt.errors import InputError
from basalt_engine.records import Extras, decode, encode

TIMES = st.none() | st.integers(-(2**63) - 1, 2**63) | st.sampled_from([-LONG_MAX - 1, -LONG_MAX, LONG_MAX])
NAMES = st.text(min_size=1, max_size=3) | st.sampled_from(
    [1, HEADER_NAME_BYTES_MAX, HEADER_NAME_BYTES_MAX + 1, HEADER_NAME_BYTES_MAX // 2 + 1]
).flatmap(lambda length: st.sampled_from(["n" * length, "ü" * length]))
RECORDS = st.builds(
    RecordIn,
    st.binary(max_size=3),
    key=st.none() | st.binary(max_size=3),
    headers=st.lists(st.tuples(NAMES, st.binary(max_size=3)), max_size=2).map(tuple),
    event_time_ms=TIMES,
    ttl_ms=TIMES,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_an_accepted_record_is_stored_as_it_is(records: list[RecordIn]) -> None:
    accepted = []
    for record in records:
        try:
            check_record(record, "records[0]")
        except InputError:
            continue
        accepted.append(record)
    if accepted:
        extras = [Extras(each.key, each.headers, each.event_time_ms, each.ttl_ms) for each in accepted]  # type: ignore[arg-type]
        batch = decode(encode([record.payload for record in accepted], extras))
        assert batch.extras() == extras


@pytest.mark.parametrize(
    "record",
    [
        RecordIn(b"", headers=(("n" * (HEADER_NAME_BYTES_MAX + 1), b""),)),
        RecordIn(b"", headers=(("ü" * (HEADER_NAME_BYTES_MAX // 2 + 1), b""),)),
        RecordIn(b"", headers=(("", b""),)),
        RecordIn(b"", event_time_ms=-LONG_MAX - 1),
        RecordIn(b"", event_time_ms=LONG_MAX + 1),
        RecordIn(b"", ttl_ms=0),
        RecordIn(b"", ttl_ms=LONG_MAX + 1),
    ],
)
def test_what_a_batch_cannot_hold_is_refused(record: RecordIn) -> None:
    with pytest.raises(InputError):
        check_record(record, "records[0]")
