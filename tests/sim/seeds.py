"""Running seeds, one after the other, in a process of their own."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable

from basalt import group_commit
from tests.sim.world import World


def first_failure(seeds: Iterable[int]) -> str | None:
    """The first seed that breaks a promise, and how; None when none does."""
    group_commit.INLINE_CALLERS_MAX = 1 << 30  # no threads, whose order no seed decides
    group_commit.INLINE_BYTES_MAX = 1 << 30
    logging.getLogger("basalt").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a process that dies is part of the play
    try:
        for seed in seeds:
            try:
                loop.run_until_complete(World(seed).run())
            except BaseException:
                return f"seed {seed}:\n{traceback.format_exc(limit=-4)}"
    finally:
        loop.close()
    return None
