"""One marker's payload: what is written is read, and anything else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.markers import TASKS_MAX, Marker, decode_marker, encode_marker
from basalt.errors import CorruptionError
from tests.vector_lines import cases

TASKS = st.text(min_size=1, max_size=20)
MARKERS = st.builds(Marker, TASKS, st.integers(1, TASKS_MAX), st.none() | st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize(("data", "meaning"), cases("markers"))
def test_the_documented_bytes_are_what_is_written_and_read(data: bytes, meaning: Any) -> None:
    marker = Marker(meaning["task"], meaning["taskCount"], meaning["eventTimeMs"])
    assert encode_marker(marker) == data
    assert decode_marker(marker.kind, data) == marker


@given(MARKERS)
def test_every_marker_survives_its_payload(marker: Marker) -> None:
    assert decode_marker(marker.kind, encode_marker(marker)) == marker


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("watermark", b""),
        ("watermark", b"{}"),
        ("watermark", b'{"v":2,"task":"a","taskCount":1,"eventTimeMs":1}'),
        ("watermark", b'{"v":1,"task":"a","taskCount":1}'),
        ("end_of_stream", b'{"v":1,"task":"a","taskCount":1,"eventTimeMs":1}'),
        ("end_of_stream", b'{"v":1,"task":"","taskCount":1}'),
        ("end_of_stream", b'{"v":1,"task":"a","taskCount":0}'),
        ("end_of_stream", b'{"v":1,"task":"a","taskCount":1001}'),
        ("end_of_stream", b'{"v":1,"task":"a","taskCount":"1"}'),
        ("end_of_stream", b'{"v":1,"task":"a","taskCount":1,"more":1}'),
        ("end_of_stream", b'{"v":1,"task":"\xff","taskCount":1}'),
    ],
)
def test_what_is_no_marker_is_corruption(kind: str, payload: bytes) -> None:
    with pytest.raises(CorruptionError, match=kind):
        decode_marker(kind, payload)
