"""Clients that publish to a server while its HBase is disturbed, and what they were told."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType

from basalt.api.bodies.messages import ConsumeRequest, PublishRequest
from basalt.api.codecs import avro
from tests.control.api.codecs import client_codecs
from tests.hbase.mini_cluster import wait_until
from tests.system.caller import AVRO, Caller

PUBLISHERS = 3
BATCH = 20
PAGE = 5_000
PAUSE_SECONDS = 0.02  # between two calls of a client: they are to be there all the time, not to keep both cores busy
NOT_NOW = {429, 500, 503, 504}  # may or may not have been done; nothing else is expected


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
            for message_id, payload in page or ():
                self.seen[message_id] = payload
                last = message_id
            if not page:
                self._stop.wait(0.02)
        caller.close()

    def _page(self, caller: Caller, last: bytes | None) -> list[tuple[bytes, bytes]] | None:
        body = avro.encode_consume_request(ConsumeRequest(last, last is None, PAGE, None))
        reply = caller.ask("POST", f"{self._topic}/poll", body, AVRO)
        if reply is None or reply.status in NOT_NOW:
            return None
        if reply.status != 200:
            self.wrong.append(f"poll: {reply}")
            return None
        return [(bytes(one.id), bytes(one.payload)) for one in client_codecs.decode_avro_messages(reply.body)]

    def check_all(self) -> None:
        """Of all messages of the topic each that was acknowledged is there once, in order, and under the id under which it was seen."""
        messages = self.all_messages()
        assert self.wrong == []
        ids = [message_id for message_id, _ in messages]
        assert ids == sorted(set(ids))
        counts = Counter(payload for _, payload in messages)
        assert {payload for payload in self.done if payload not in counts} == set()
        assert {payload: times for payload, times in counts.items() if times > 1} == {}
        assert set(counts) <= self.done | self.unknown
        found = dict(messages)
        assert {each: text for each, text in self.seen.items() if found.get(each) != text} == {}

    def all_messages(self) -> list[tuple[bytes, bytes]]:
        """The topic from its start to its end: ids and payloads."""
        caller = Caller(self._port)
        found: list[tuple[bytes, bytes]] = []
        while page := self._page(caller, found[-1][0] if found else None):
            found += page
        caller.close()
        return found
