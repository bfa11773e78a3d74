"""`basalt`, with a ticker in its event loop: `python -m bench.ticking_server FILE serve …`.

Every millisecond the loop is asked for a tick. How late the latest of them came is how long nobody else was served. It is kept in a
file that both processes have mapped, so that whoever measures asks nothing of the server.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

TICK_S = 0.001
SEEN_TICKS = 3  # after the end of what is measured: by then its last stall is noted
WAIT_S = 60.0

_NOTES = struct.Struct("<Qdd")


class Stall(NamedTuple):
    """The latest tick (ms late), and the most processor time of the loop's thread between two ticks (ms)."""

    late_ms: float
    cpu_ms: float


class Ticks:
    """The file in which the ticks are noted."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_NOTES.size))
        with path.open("r+b") as file:
            self._notes = mmap.mmap(file.fileno(), _NOTES.size)

    def note(self, late_ms: float, cpu_ms: float) -> None:
        count, late_most_ms, cpu_most_ms = _NOTES.unpack(self._notes[:])
        self._notes[:] = _NOTES.pack(count + 1, max(late_most_ms, late_ms), max(cpu_most_ms, cpu_ms))

    def longest(self) -> Stall:
        """The longest stall since the last `start_over`, once the loop ticks again; `RuntimeError` when it does not."""
        self._await(SEEN_TICKS)
        return Stall(*_NOTES.unpack(self._notes[:])[1:])

    def start_over(self) -> None:
        """Forget what was; from here on the loop is watched."""
        self._await(SEEN_TICKS)
        self._notes[:] = bytes(_NOTES.size)

    def _await(self, count: int) -> None:
        (first,), give_up_s = struct.unpack_from("<Q", self._notes), time.monotonic() + WAIT_S
        while struct.unpack_from("<Q", self._notes)[0] < first + count:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"the server's loop has not ticked for {WAIT_S:g} s; is it run by uvloop.run?")
            time.sleep(TICK_S)


def start_ticking(ticks: Ticks) -> None:
    """Have the running loop tick for as long as it runs."""
    loop = asyncio.get_running_loop()
    last_s, last_cpu_s = time.perf_counter(), time.thread_time()

    def tick() -> None:
        nonlocal last_s, last_cpu_s
        now_s, cpu_s = time.perf_counter(), time.thread_time()
        ticks.note((now_s - last_s - TICK_S) * 1_000, (cpu_s - last_cpu_s) * 1_000)
        last_s, last_cpu_s = now_s, cpu_s
        loop.call_later(TICK_S, tick)

    loop.call_later(TICK_S, tick)


def ticking(run: Callable[..., Any], ticks: Ticks) -> Callable[..., Any]:
    """`uvloop.run` or `asyncio.run`, of a loop that ticks."""

    def run_ticking(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def whole() -> Any:
            start_ticking(ticks)
            return await main

        return run(whole(), **options)

    return run_ticking


if __name__ == "__main__":
    uvloop.run = ticking(uvloop.run, Ticks(Path(sys.argv.pop(1))))
    from basalt.cli.main import main

    sys.exit(main())
