"""Threads that decode a body of a kind for the first time do so at the same time, and none of them crashes the process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import msgspec

from basalt.api.bodies import json

THREADS = 4
SECONDS = 0.2


def test_threads_that_decode_a_body_for_the_first_time_do_not_crash():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1" * THREADS)


def number() -> type[int]:
    """The type of a field, which takes a while to be found, as on a busy machine; other threads go on meanwhile."""
    time.sleep(SECONDS)
    return int


class Inner(msgspec.Struct):
    """A body in a body."""

    number: number()  # type: ignore[valid-type]


class Outer(msgspec.Struct):
    """A body that msgspec knows, and whose field it does not know yet, while it looks at the inner one."""

    inner: Inner


def decode_all_at_once() -> None:
    def run(index: int) -> None:
        time.sleep(index * SECONDS / THREADS)
        sys.stdout.write(str(json.decode(b'{"inner": {"number": 1}}', Outer).inner.number))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    decode_all_at_once()
