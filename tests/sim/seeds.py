"""Running seeds, one after the other, in a process of their own."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable

from basalt import group_commit
from tests.sim.shared_world import SharedWorld
from tests.sim.world import World


def first_failure(seeds: Iterable[int]) -> str | None:
    """The first seed that breaks a promise, and how; None when none does."""
    return _first_failure(seeds, World)


def first_failure_of_several_servers(seeds: Iterable[int]) -> str | None:
    """The same of servers that lead one store in turn."""
    return _first_failure(seeds, SharedWorld)


def first_failure_without_epochs(seeds: Iterable[int]) -> str | None:
    """The same on a store that lets former leaders write."""
    return _first_failure(seeds, lambda seed: SharedWorld(seed, fenced=False))


def _first_failure(seeds: Iterable[int], world: Callable[[int], World]) -> str | None:
    group_commit.INLINE_CALLERS_MAX = 1 << 30  # no threads, whose order no seed decides
    group_commit.INLINE_BYTES_MAX = 1 << 30
    logging.getLogger("basalt").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a process that dies is part of the play
    try:
        for seed in seeds:
            try:
                loop.run_until_complete(world(seed).run())
            except BaseException:
                return f"seed {seed}:\n{traceback.format_exc(limit=-4)}"
    finally:
        loop.close()
    return None
