"""The blocking client is what the script makes of the async one, and the script says when it is not."""

from __future__ import annotations

import re

from deploy import blocking_twin

ASYNC = '''"""Asks and answers."""

from collections.abc import AsyncIterator, Coroutine
from typing import Any


class AsyncTopic:
    """`async with` it."""

    async def __aenter__(self) -> "AsyncTopic":
        await self.open()
        return self

    async def pages(self) -> AsyncIterator[bytes]:
        yield await self.poll()

    async def pause(self) -> None:
        await self.told  # blocking: raise self.refused()
        # blocking: self.rest()
'''


def test_the_blocking_client_is_generated_from_the_async_one(capsys):
    assert blocking_twin.main(["--check"]) == 0, capsys.readouterr()


def test_words_of_async_go_and_names_lose_their_prefix():
    twin = blocking_twin.twin_of(ASYNC, "client.py")
    assert not re.search(r"\b(async|await|Async\w*)\b", twin)
    assert "class Topic:" in twin
    assert '    def __enter__(self) -> "Topic":\n        self.open()\n' in twin
    assert "    def pages(self) -> Iterator[bytes]:\n        yield self.poll()\n" in twin


def test_the_first_line_says_where_it_comes_from():
    assert blocking_twin.twin_of(ASYNC, "client.py").startswith(
        "# Generated from basalt/client/asynchronous/client.py by deploy/blocking_twin.py"
    )


def test_what_only_the_async_module_imports_is_left_out():
    assert "Coroutine" not in blocking_twin.twin_of(ASYNC, "client.py")


def test_a_comment_says_what_blocking_code_does_instead():
    twin = blocking_twin.twin_of(ASYNC, "client.py")
    assert "    def pause(self) -> None:\n        raise self.refused()\n        self.rest()\n" in twin


def test_a_twin_that_was_edited_fails_the_check_and_is_written_again(tmp_path, monkeypatch, capsys):
    sources, twins = tmp_path / "asynchronous", tmp_path / "blocking"
    sources.mkdir()
    twins.mkdir()
    (sources / "client.py").write_text(ASYNC)
    (twins / "client.py").write_text("edited = True\n")
    (twins / "former.py").write_text("left = True\n")
    monkeypatch.setattr(blocking_twin, "SOURCES", sources)
    monkeypatch.setattr(blocking_twin, "TWINS", twins)

    assert blocking_twin.main(["--check"]) == 1
    said = capsys.readouterr()
    assert "-edited = True" in said.out
    assert "-left = True" in said.out
    assert "make format" in said.err
    assert blocking_twin.main([]) == 0
    assert [path.name for path in twins.iterdir()] == ["client.py"]
    assert blocking_twin.main(["--check"]) == 0
