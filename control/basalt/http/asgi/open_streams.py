"""The streams that are open: answers that go on for as long as somebody looks. Bounded for each login, and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from basalt.errors import ThrottledError

STREAMS_MAX = 64  # of a server: each reads on for somebody who may have gone to lunch
STREAMS_OF_LOGIN_MAX = 4  # so that nobody takes all of them, by tabs that were forgotten
RETRY_MS = 5_000


class OpenStreams:
    """Counts the open streams of one server."""

    def __init__(self) -> None:
        self._of_login: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of_login.total()

    @contextmanager
    def one_more(self, login: str) -> Iterator[None]:
        """Hold a place while a stream is open; `ThrottledError` when all are taken."""
        if self._of_login[login] >= STREAMS_OF_LOGIN_MAX or len(self) >= STREAMS_MAX:
            refused = ThrottledError(
                f"there are {self._of_login[login]} open streams of yours, and {len(self)} in all; the limits are"
                f" {STREAMS_OF_LOGIN_MAX} and {STREAMS_MAX}",
                hint="Close a page that follows a topic.",
            )
            refused.retry_after_ms = RETRY_MS
            raise refused
        self._of_login[login] += 1
        try:
            yield
        finally:
            self._of_login[login] -= 1
            if not self._of_login[login]:
                del self._of_login[login]
