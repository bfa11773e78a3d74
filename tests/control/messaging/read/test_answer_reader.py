"""Pages of stretches against pages of rows: whatever happens to a topic, every reader is answered the same by both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn, Work, WorkPublish
from basalt.api.codecs import batches, encoded
from basalt.api.codecs.encoded import AvroMessages, BatchedMessages, Encoding
from basalt.api.markers import Marker
from basalt.errors import BasaltError
from basalt.http.routes.polls import avro_parts, batch_parts
from basalt.messaging.log.answers import STRETCH_BYTES
from basalt.messaging.read import answer_reader
from basalt.messaging.read.log_reader import Fetch, SliceLimits
from basalt.settings import MessagingSettings, Settings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import NO_EXTRAS, Extras, RecordKind
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.stores.memory import MemoryStore
from tests.control.api.codecs import client_codecs
from tests.control.retention.readers import LIFETIME_MS
from tests.wiring import A, Wired

FIELDS = ("held_by", "held_at", "messages", "payload_bytes", "generation", "tasks")
ENCODINGS: tuple[Encoding, ...] = (AvroMessages, BatchedMessages)
LIMITS = [(1_000, 1 << 20), (7, 1 << 20), (3, 1 << 20), (1_000, 150), (1, 40)]

Step = tuple[str, int]
Message = tuple[bytes, bytes, Extras | None]


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_reader, "STRETCH_BYTES_MIN", 140)
    monkeypatch.setattr(answer_reader, "STRETCH_MESSAGES_MIN", 8)
    monkeypatch.setattr(answer_reader, "STRETCH_ROWS_MIN", 4)
    monkeypatch.setattr(answer_reader, "RUN_MESSAGES_MIN", 2)
    monkeypatch.setattr(answer_reader, "ROWS_AROUND", 1)
    monkeypatch.setattr(encoded, "RUN_MESSAGES_MIN", 5)


def in_avro(page: Fetch) -> list[Message]:
    found = client_codecs.decode_avro_messages(b"".join(avro_parts(page.encoded)))
    return [(bytes(each.id), bytes(each.payload), None) for each in found]


def in_batches(page: Fetch) -> list[Message]:
    body, found = b"".join(batch_parts(page.encoded)), list[Message]()
    for frame in batches.decode_marked(body):
        if isinstance(frame, batches.MarkerFrame):
            found.append((frame.id, frame.payload, NO_EXTRAS))
            continue
        carried = frame.carried(body)
        extras = [NO_EXTRAS] * frame.count
        if carried is not None:
            extras = [Extras(each.key, each.headers, each.event_time_ms, each.ttl_ms) for each in carried]
        found += zip(frame.ids(body), frame.payloads(body), extras, strict=True)
    return found


def in_slices(page: Fetch, encoding: Encoding) -> list[Message]:
    return [
        (message_id, bytes(payload), extras if encoding is BatchedMessages else None)
        for piece in page.slices
        for message_id, payload, extras in zip(piece.ids(), piece.payloads(), piece.extras(), strict=True)
        if encoding is BatchedMessages or piece.batch.kind is RecordKind.USER
    ]


def goes_on_at(page: Fetch) -> bytes | None:
    """Where the reader goes on. Behind a row's last message that is said in two ways: rows become one while they are in the tail."""
    end = b"\xff" * POSITION_BYTES
    if page.next_id is not None and page.next_id.endswith(end):
        return page.next_id[:POSITION_BYTES] + bytes(MESSAGE_ID_BYTES - POSITION_BYTES)
    return page.next_id


class Shop:
    """A topic, what open transactions published last, and the snapshots that somebody holds."""

    def __init__(self, wired: Wired, given: Settings) -> None:
        self.wired = wired
        self.given = given
        self.open: list[tuple[Any, Any]] = []
        self.held: list[TransactionSnapshot] = []
        self.pages = 0

    @classmethod
    async def start(cls, cached: bool, answers_bytes_max: int) -> Shop:
        given = Settings(
            transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS),
            messaging=MessagingSettings(
                cache_bytes_max=(1 << 20) if cached else 0, answers_bytes_max=answers_bytes_max
            ),
        )
        shop = cls(await Wired.start(MemoryStore(), settings=given), given)
        await shop.wired.topics.create(A, {"ttl": "7200"})
        return shop

    async def do(self, what: str, size: int) -> None:
        step: Callable[[int], Coroutine[Any, Any, None]] = getattr(self, f"_{what}")
        with suppress(BasaltError):  # a publish behind an end, a truncation of what is open, a writer that timed out
            await step(size)

    async def _publish(self, size: int) -> None:
        self._tick(size % 2)
        await self.wired.publish(A, *("m" * number for number in range(1, size + 1)))

    async def _singles(self, size: int) -> None:
        for number in range(2 * size):
            self._tick(number % 2)
            await self.wired.publish(A, f"single {number}")

    async def _records(self, size: int) -> None:
        records = [RecordIn(b"record", key=b"k", ttl_ms=60_000 * size if size % 2 else None) for _ in range(size)]
        await self.wired.messaging.publish_records(A, records)

    async def _mark(self, size: int) -> None:
        await self.wired.services.markers.publish(A, Marker("map", 1, size))

    async def _begin(self, size: int) -> None:
        tx = await self.wired.transactions.begin()
        published = await self.wired.messaging.publish(A, [b"early"] * size, tx.write_pointer)
        self.open.append((tx, published))

    async def _aside(self, size: int) -> None:
        for tx, _ in self.open[-1:]:
            await self.wired.store_aside(A, *(f"aside {number}" for number in range(size)), tx=tx)

    async def _roll_back(self, size: int) -> None:
        for _, published in self.open[-size:][:1]:
            await self.wired.messaging.roll_back(A, published)

    async def _end(self, size: int) -> None:
        if self.open:
            tx, _ = self.open.pop(size % len(self.open))
            await getattr(self.wired.transactions, ("commit", "abort", "invalidate")[size % 3])(tx.id)

    async def _commit(self, size: int) -> None:
        for _ in range(size):
            tx = await self.wired.transactions.begin()
            await self.wired.transactions.commit(tx.id, Work(publish=[WorkPublish(*A, [b"late"])]))

    async def _hold(self, size: int) -> None:
        self.held = [*self.held, self.wired.transactions.manager.current()][-2:]

    async def _wait(self, size: int) -> None:
        self._tick(size * size * 60_000)

    async def _keep(self, size: int) -> None:
        kept = ("drop", "retain")[size % 2]
        await self.wired.topics.update(A, {"onInvalid": kept, "ttl": str(size * 1_000)})

    async def _compress(self, size: int) -> None:
        await self.wired.topics.merge(A, {"compression": "zstd"})

    async def _truncate(self, size: int) -> None:
        await self.wired.topics.truncate(A, self.wired.clock.now_ms() - (size - 1) * 60_000)

    async def _recreate(self, size: int) -> None:
        await self.wired.topics.delete(A)
        await self.wired.topics.create(A, {"ttl": "7200"})

    async def _clean(self, size: int) -> None:
        run = await self.wired.services.scheduler.run_now("retention")
        assert run.outcome == "ok", run

    async def _forget(self, size: int) -> None:
        await self.wired.transactions.truncate(self.wired.clock.now_ms())

    def _tick(self, ms: int) -> None:
        assert isinstance(self.wired.clock, ManualClock)
        self.wired.clock.advance(ms)

    async def compare(self, turn: int) -> None:
        """Read through the topic in several ways, each of them by stretches, again, and by rows."""
        views: list[dict[str, Any]] = [{}, {"committed": True}, *({"snapshot": each} for each in self.held)]
        views += [{"snapshot": tx.snapshot()} for tx, _ in self.open[-1:]]
        for number, view in enumerate(views):
            for encoding in ENCODINGS:
                limits = LIMITS[(turn + number) % len(LIMITS)]
                marked = (turn + number) % 3 == 0 and encoding is BatchedMessages
                await self._walk(view, encoding, limits, marked)
                await self._walk(view, encoding, LIMITS[0], marked)

    async def _walk(self, view: dict[str, Any], encoding: Encoding, limits: tuple[int, int], marked: bool) -> None:
        messaging = self.wired.messaging
        messaging.limits = SliceLimits(*limits)
        start: bytes | None = None
        while True:
            fast, again, slow = [
                await messaging.fetch(A, start, start is None, markers=marked, encoding=each, **view)
                for each in (encoding, encoding, None)
            ]
            for page in (fast, again):
                assert {name: getattr(page, name) for name in FIELDS} == {name: getattr(slow, name) for name in FIELDS}
                assert goes_on_at(page) == goes_on_at(slow)
                assert (in_avro if encoding is AvroMessages else in_batches)(page) == in_slices(slow, encoding)
                assert not page.slices
            self.pages += 1
            if slow.next_id is None or slow.next_id == start:
                return
            start = slow.next_id


words = [
    "publish", "singles", "singles", "records", "mark", "begin", "aside", "roll_back", "end", "commit", "hold", "wait", "keep", "compress",
    "truncate", "recreate", "clean", "forget",
]  # fmt: skip
steps = st.lists(st.tuples(st.sampled_from(words), st.integers(1, 7)), max_size=14)


async def story(taken: list[Step], cached: bool, answers_bytes_max: int) -> Shop:
    shop = await Shop.start(cached, answers_bytes_max)
    for turn, (what, size) in enumerate(taken):
        await shop.do(what, size)
        await shop.compare(turn)
    return shop


@pytest.mark.parametrize("cached", [True, False])
@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from([1 << 20, 3 * STRETCH_BYTES, 0]))
@example([("hold", 1), ("commit", 6), ("singles", 4)], 1 << 20)  # a snapshot older than writers that others see
@example([("singles", 6), ("keep", 1), ("wait", 1), ("clean", 1), ("keep", 7_200)], 1 << 20)  # a TTL that comes back
@example([("singles", 6), ("truncate", 1), ("singles", 2), ("clean", 1), ("recreate", 1), ("singles", 3)], 1 << 20)
@example(
    [("begin", 3), ("end", 2), ("forget", 1), ("singles", 3), ("clean", 1)], 1 << 20
)  # an invalid writer, forgotten
@example([("records", 3), ("singles", 5), ("wait", 2), ("mark", 1), ("singles", 2), ("aside", 2)], 1 << 20)
def test_readers_are_answered_the_same_by_stretches_and_by_rows(
    cached: bool, taken: list[Step], answers_bytes_max: int
) -> None:
    asyncio.run(story(taken, cached, answers_bytes_max))
