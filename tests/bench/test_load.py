"""What measures load knows when an answer is whole."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from bench.load import Connection

SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef"
IN_CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [SIZED, IN_CHUNKS])
def test_an_answer_is_whole_with_its_last_byte_and_the_next_call_has_its_own(answer):
    async def story() -> None:
        connection = Connection()
        connection.connection_made(Mock())
        for _ in range(2):
            call = asyncio.ensure_future(connection.call(b""))
            await asyncio.sleep(0)
            for number in range(len(answer)):
                assert not call.done()
                connection.data_received(answer[number : number + 1])
            assert await call == answer

    asyncio.run(story())
