"""Clients that publish to a server while its HBase is disturbed, and what they were told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from types import TracebackType
from typing import NamedTuple

from basalt.api.bodies.messages import ConsumeRequest, PublishRequest
from basalt.api.codecs import avro
from tests.control.api.codecs import client_codecs
from tests.hbase.mini_cluster import wait_until
from tests.system.caller import AVRO, Caller

PUBLISHERS = 3
BATCH = 20
PAGE = 5_000
SHOWN = 10  # of what is wrong, when a test fails
PAUSE_SECONDS = 0.02  # between two calls of a client: they are to be there all the time, not to keep both cores busy
NOT_NOW = {429, 500, 503, 504}  # may or may not have been done; nothing else is expected
FAULT = 500  # expected of no call once nothing is disturbed any more


class Page(NamedTuple):
    """The answer to a reader: ids and payloads, and the transaction that holds it at what comes next."""

    messages: list[tuple[bytes, bytes]]
    held_by: str | None


class Publishers:
    """Threads that publish batches to one topic, and one that reads it on and on."""

    def __init__(self, port: int, topic: str) -> None:
        self._port = port
        self._topic = topic
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.done: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.seen: dict[bytes, bytes] = {}
        self.wrong: list[str] = []
        self._last_told = ""  # to who was told neither messages nor the end
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(PUBLISHERS)]
        self._threads.append(threading.Thread(target=self._read))

    def __enter__(self) -> Publishers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, batches: int = 5) -> None:
        """Return once so many more batches were taken: service is back."""
        enough = len(self.done) + batches * BATCH
        wait_until(lambda: len(self.done) >= enough or self.wrong, "publishing goes on")
        assert self.wrong == []

    def _publish(self, number: int) -> None:
        caller = Caller(self._port)
        sent = 0
        while not self._stop.is_set():
            batch = [b"%d-%d" % (number, sent + index) for index in range(BATCH)]
            sent += BATCH
            body = avro.encode_publish_request(PublishRequest(None, batch))
            reply = caller.ask("POST", f"{self._topic}/publish", body, AVRO)
            with self._lock:
                if reply is not None and reply.status == 200:
                    self.done.update(batch)
                elif reply is None or reply.status in NOT_NOW:
                    self.unknown.update(batch)
                else:
                    self.wrong.append(f"publish: {reply}")
            self._stop.wait(PAUSE_SECONDS)
        caller.close()

    def _read(self) -> None:
        """What a reader has seen once stays as it is, and nothing turns up behind it."""
        caller = Caller(self._port)
        last: bytes | None = None
        while not self._stop.is_set():
            page = self._page(caller, last)
            for message_id, payload in page.messages if page else ():
                self.seen[message_id] = payload
                last = message_id
            if not page or not page.messages:
                self._stop.wait(0.02)
        caller.close()

    def _page(self, caller: Caller, last: bytes | None, not_now: Collection[int] = frozenset(NOT_NOW)) -> Page | None:
        """What comes behind an id; None: the server does not say so now."""
        body = avro.encode_consume_request(ConsumeRequest(last, last is None, PAGE, None))
        reply = caller.ask("POST", f"{self._topic}/poll", body, AVRO)
        if reply is None or reply.status in not_now:
            self._last_told = f"{reply}"
            return None
        if reply.status != 200:
            self.wrong.append(f"poll: {reply}")
            return None
        messages = [(bytes(one.id), bytes(one.payload)) for one in client_codecs.decode_avro_messages(reply.body)]
        return Page(messages, reply.headers.get("basalt-held-by"))

    def check_all(self) -> None:
        """Of all messages of the topic each that was acknowledged is there once, in order, and under the id under which it was seen."""
        messages = self.all_messages()
        assert self.wrong == [], self.wrong[:SHOWN]
        ids = [message_id for message_id, _ in messages]
        assert ids == sorted(set(ids)), "positions went back"
        counts = Counter(payload for _, payload in messages)
        lost = sorted(self.done - set(counts))
        end = messages[-1][1] if messages else b""
        assert not lost, (
            f"{len(lost)} of {len(self.done)} acknowledged messages are gone, the last is {end!r}: {lost[:SHOWN]}"
        )
        doubled = [payload for payload, times in counts.items() if times > 1]
        assert not doubled, f"messages came twice: {doubled[:SHOWN]}"
        extra = sorted(set(counts) - self.done - self.unknown)
        assert not extra, f"messages are there that nobody sent: {extra[:SHOWN]}"
        found = dict(messages)
        changed = [(each.hex(), text, found.get(each)) for each, text in self.seen.items() if found.get(each) != text]
        assert not changed, f"what was seen is not what is there: {changed[:SHOWN]}"

    def all_messages(self) -> list[tuple[bytes, bytes]]:
        """The topic from its start to its end: ids and payloads.

        A call that is refused has not come to the end, and neither has a reader that is held: a server may have nobody to pass it on to for
        some seconds, while a lease is renewed late. It is asked again, as long as anything here is waited for.
        """
        caller = Caller(self._port)
        found: list[tuple[bytes, bytes]] = []
        while messages := self._more(caller, found[-1][0] if found else None):
            found += messages
        caller.close()
        return found

    def _more(self, caller: Caller, last: bytes | None) -> list[tuple[bytes, bytes]]:
        """The next messages; none where the topic surely ends, or a server says what none may."""
        pages: list[Page] = []
        self._last_told = "nothing"

        def is_told() -> bool:
            page = self._page(caller, last, NOT_NOW - {FAULT})
            if page is not None and not page.messages and page.held_by is not None:
                self._last_told = f"held by {page.held_by}"
                page = None
            pages.extend([] if page is None else [page])
            return bool(pages or self.wrong)

        try:
            wait_until(is_told, f"the reader of {self._topic} comes to its end")
        except AssertionError as error:
            error.add_note(f"behind {last.hex() if last else 'nothing'} it was told: {self._last_told}")
            raise
        return pages[0].messages if pages else []
