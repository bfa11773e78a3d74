"""Behaviour as stories: each `.story` file is run and must answer what it says. `UPDATE=1` rewrites the files instead.

They run over every kind of store, with and without the tail cache, and tell the same each time. But an `.atomic.story` needs a
store that writes a group of rows as one, and a `.one-by-one.story` one that does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Store
from tests.scripts.script_files import Block, is_command, parse, write
from tests.scripts.story import Story

STORIES = sorted(Path(__file__).parent.glob("*.story"))
UPDATE = bool(os.environ.get("UPDATE"))
ONE_BY_ONE = "memory, rows written one by one"
HBASE = "hbase"
SURROUNDINGS = ("memory", "memory, nothing cached", ONE_BY_ONE, "rocks", HBASE)
BY_ROW = (ONE_BY_ONE, HBASE)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A process that dies leaves its tasks behind, of which asyncio complains."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def opener(surroundings: str, folder: Path) -> Callable[[], Store]:
    """What opens the store, again and again."""
    if surroundings == "rocks":
        return lambda: RocksStore.open(folder / "data")
    store = _Kept(atomic=surroundings != ONE_BY_ONE)
    return lambda: store


class _Kept(MemoryStore):
    """A memory store that outlives its processes."""

    def close(self) -> None:
        """Keep everything."""


async def told(blocks: list[Block], story: Story) -> list[Block]:
    """The blocks with what is answered now."""
    await story.start()
    told = []
    for block in blocks:
        lines = [line for command in block.commands if is_command(command) for line in await story.run(command)]
        told.append(Block(block.commands, lines or ["ok"]))
    return told


def cases() -> list[object]:
    return [
        pytest.param(
            file,
            surroundings,
            id=f"{file.stem}: {surroundings}",
            marks=[pytest.mark.hbase] if surroundings == HBASE else [],
        )
        for file in STORIES
        for surroundings in SURROUNDINGS
        if not (surroundings in BY_ROW and ".atomic" in file.suffixes)
        if not (surroundings not in BY_ROW and ".one-by-one" in file.suffixes)
    ]


@pytest.mark.parametrize(("file", "surroundings"), cases())
def test_the_story_is_true(file: Path, surroundings: str, tmp_path: Path, request: pytest.FixtureRequest):
    blocks = parse(file.read_text())
    if surroundings == HBASE:
        tables = request.getfixturevalue("hbase_tables")
        tables.emptied().close()
        story = Story(tables.open, cached=True)
    else:
        story = Story(opener(surroundings, tmp_path), cached="nothing cached" not in surroundings)
    try:
        now = write(asyncio.run(told(blocks, story)))
    finally:
        story.close()
    if UPDATE and surroundings in (SURROUNDINGS[0], ONE_BY_ONE):
        file.write_text(now)
    assert now == file.read_text()


def test_there_are_stories():
    assert len(STORIES) >= 10


def test_a_file_is_written_as_it_was_read():
    for file in STORIES:
        assert write(parse(file.read_text())) == file.read_text()
