"""Open streams are bounded for each login and in all, and a place that was given back is free."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from basalt.errors import ThrottledError
from basalt.http.asgi.open_streams import RETRY_MS, STREAMS_MAX, STREAMS_OF_LOGIN_MAX, OpenStreams


def test_a_login_has_so_many_streams_and_others_have_theirs():
    streams = OpenStreams()
    with ExitStack() as open_ones:
        for _ in range(STREAMS_OF_LOGIN_MAX):
            open_ones.enter_context(streams.one_more("ada"))
        with pytest.raises(ThrottledError, match="4 open streams of yours") as refused:
            open_ones.enter_context(streams.one_more("ada"))
        assert refused.value.retry_after_ms == RETRY_MS
        open_ones.enter_context(streams.one_more("bob"))
        assert len(streams) == STREAMS_OF_LOGIN_MAX + 1
    assert len(streams) == 0
    with streams.one_more("ada"):
        assert len(streams) == 1


def test_a_server_has_so_many_streams():
    streams = OpenStreams()
    with ExitStack() as open_ones:
        for number in range(STREAMS_MAX):
            open_ones.enter_context(streams.one_more(f"user {number}"))
        with pytest.raises(ThrottledError):
            open_ones.enter_context(streams.one_more("one more"))
    with streams.one_more("one more"):
        pass
