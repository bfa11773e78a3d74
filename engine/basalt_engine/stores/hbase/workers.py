"""The store's threads that fetch ahead, and which scans a thread has opened and not yet read from.

A scan by itself is fetched by the thread that reads it. But one that opens several, as over the salt buckets of a topic,
and then reads from one of them, will want the others too: they are fetched side by side.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Begins(Protocol):
    """A scan, as far as it matters here."""

    def begin(self) -> None:
        """Fetch what comes first, on another thread."""
        ...


class Workers:
    """A bounded number of threads, started when they are needed."""

    def __init__(self, threads_max: int) -> None:
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="basalt-hbase")
        self._opened = threading.local()

    def submit(self, fetch: Callable[[], T]) -> Future[T] | None:
        """Fetch soon; None when the store is closing, and it must be fetched (and fail) where it is wanted."""
        try:
            return self._executor.submit(fetch)
        except RuntimeError:
            return None

    def opened(self, scan: Begins) -> None:
        """This thread has a scan that nobody has read from yet."""
        others = [other for other in getattr(self._opened, "scans", ()) if other() is not None]
        self._opened.scans = [*others, weakref.ref(scan)]

    def reading(self, scan: Begins) -> None:
        """This thread reads from one of its scans: the others begin too."""
        opened = getattr(self._opened, "scans", ())
        self._opened.scans = []
        for other in (reference() for reference in opened):
            if other is not None and other is not scan:
                other.begin()

    def close(self) -> None:
        """End the threads as soon as they have what they are fetching."""
        self._executor.shutdown(wait=False, cancel_futures=True)
