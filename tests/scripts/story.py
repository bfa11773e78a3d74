"""Runs the commands of a story over the real services, with a clock that moves only when the story says so.

Times are milliseconds since the story's beginning. A message's place is written `@TIME/SEQUENCE`, and of one that was
stored ahead of its commit `@TIME/SEQUENCE<TIME/SEQUENCE`, with the place where it was stored. Transactions have the names
that the story gives them.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable

from basalt.api.bodies.messages import PublishResponse, Work, WorkPublish
from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import TableCatalog, TableName, table_name
from basalt.catalog.topics import Topic, TopicName, topic_name
from basalt.errors import BasaltError
from basalt.messaging.read.log_reader import Fetch
from basalt.tables.tables import CellWrites
from basalt.transactions.rules.transaction import Kind, Transaction, VisibilityLevel
from basalt_engine.cells.names import change_key
from basalt_engine.cells.table import CellTable, CellVersion
from basalt_engine.clock import ManualClock
from basalt_engine.keys import MessageId
from basalt_engine.messages import MessageTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.table import Store
from tests.scripts.story_markers import marker, markers_shown, work_marker
from tests.scripts.story_named import NamedCommands, with_segments
from tests.scripts.story_store import StoryStore
from tests.scripts.story_words import Words, milliseconds
from tests.wiring import Wired, encoded

START_MS = 1_700_000_000_000
LEVELS = {
    "snapshot": VisibilityLevel.SNAPSHOT,
    "exclude-current": VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT,
    "all": VisibilityLevel.SNAPSHOT_ALL,
}
FAULTS = ("refuse", "lose-answer", "lose-write", "die-before", "die-after")

_PLACE = re.compile(r"@(\d+)/(\d+)(?:<(\d+)/(\d+))?")


class Story(NamedCommands):
    """One run of one script."""

    def __init__(self, open_store: Callable[[], Store], *, cached: bool) -> None:
        self._store = StoryStore(open_store)
        self._clock = ManualClock(START_MS)
        self._cached = cached
        self._wired: Wired
        self._transactions: dict[str, Transaction] = {}
        self._names: dict[int, str] = {}
        self._published: dict[tuple[str, TopicName], PublishResponse] = {}

    async def start(self) -> None:
        """Open the store and the services."""
        self._wired = await Wired.start(self._store, self._clock, cached=self._cached)

    def close(self) -> None:
        """Let go of the store."""
        self._store.reopen()
        self._store._inner.close()

    async def run(self, line: str) -> list[str]:
        """Run one command; the lines that it answers."""
        name, *words = shlex.split(line)
        command = getattr(self, f"do_{name.replace('-', '_')}", None)
        if command is None:
            raise AssertionError(f"there is no command {name}")
        if name == "restart":
            self._store.reopen()
        given = Words.of(words)
        task = asyncio.ensure_future(command(given))
        while not task.done() and not self._store.dead:
            await asyncio.sleep(0)
        if self._store.dead:
            task.cancel()
            return ["the server died"]
        try:
            answer: list[str] | None = task.result()
        except BasaltError as error:
            return [f"error: {error.code}"]
        assert not given.named, f"{line}: nothing takes {given.named}"
        return answer or []

    # Time, and what goes wrong.

    async def do_advance(self, words: Words) -> None:
        self._clock.advance(milliseconds(words.plain[0]))

    async def do_set_clock(self, words: Words) -> None:
        self._clock.step(self._clock.now_ms() + milliseconds(words.plain[0]))

    async def do_next_write(self, words: Words) -> None:
        """What becomes of the next write, or with `after=N` of a later one."""
        assert words.plain[0] in FAULTS, f"a write can {FAULTS}"
        self._store.fault, self._store.writes_before_fault = words.plain[0], int(words.take("after") or 0)

    async def do_restart(self, words: Words) -> None:
        await self.start()

    # Topics.

    async def do_create(self, words: Words) -> list[str]:
        return shown(await self._wired.topics.create(topic(words), properties(words)))

    async def do_update(self, words: Words) -> list[str]:
        return shown(await self._wired.topics.update(topic(words), properties(words)))

    async def do_delete(self, words: Words) -> None:
        await self._wired.topics.delete(topic(words))

    async def do_list(self, words: Words) -> list[str]:
        return [" ".join(await self._wired.topics.catalog.list("shop")) or "no topics"]

    # Messages.

    async def do_publish(self, words: Words) -> list[str]:
        title, name = topic(words), words.take("tx")
        pointer = None if name is None else self._transactions[name].write_pointer
        placed = await self._wired.messaging.publish(title, encoded(words.plain[1:]), pointer)
        if name is not None:
            self._published[name, title] = placed
        first = place(MessageId(placed.start_ms, placed.start_sequence))
        last = place(MessageId(placed.end_ms, placed.end_sequence))
        return [first if first == last else f"{first} to {last}"]

    async def do_store(self, words: Words) -> None:
        pointer = self._transactions[words.take("tx") or ""].write_pointer
        await self._wired.messaging.store(topic(words), encoded(words.plain[1:]), pointer)

    async def do_roll_back(self, words: Words) -> None:
        title = topic(words)
        await self._wired.messaging.roll_back(title, self._published[words.take("tx") or "", title])

    async def do_poll(self, words: Words) -> list[str]:
        start, inclusive = position(words)
        reader = words.take("as")
        found = await self._wired.messaging.fetch(
            topic(words),
            start,
            inclusive,
            messages_max=int(words.take("limit") or "1000"),
            committed=reader == "committed",
            snapshot=None if reader in (None, "committed") else self._transactions[reader].snapshot(),
        )
        return self._shown(found)

    def _shown(self, found: Fetch) -> list[str]:
        lines = [
            f"{place(MessageId.decode(message_id))} {bytes(payload).decode()}"
            for piece in found.slices
            for message_id, payload in zip(piece.ids(), piece.payloads(), strict=True)
        ]
        if found.held_by is not None:
            lines.append(f"waits for {self._name_of(found.held_by)}")
        return lines or ["nothing"]

    async def do_peek(self, words: Words) -> list[str]:
        page = await self._wired.services.peek.peek(topic(words), None, True)
        return [
            f"{place(MessageId.decode(one.id))} {bytes(one.payload).decode()}: {one.state}"
            + ("" if one.write_pointer is None else f", by {self._name_of(one.write_pointer)}")
            for one in page.messages
        ] or ["nothing"]

    async def do_rows(self, words: Words) -> list[str]:
        """How many rows of all topics there are, whoever may see them."""
        tables = [self._store.table(name) for name in (MessageTable.name, PayloadTable.name)]
        return [", ".join(f"{sum(1 for _ in table.scan(b'', None))} {table.name} rows" for table in tables)]

    # Markers.

    async def do_mark(self, words: Words) -> None:
        """`mark orders a/2 700`, and `mark orders a/2 end`."""
        await self._wired.services.markers.publish(topic(words), marker(*words.plain[1:]))

    async def do_markers(self, words: Words) -> list[str]:
        return markers_shown(await self._wired.services.markers.facts(topic(words)))

    async def do_save_markers(self, words: Words) -> None:
        await self._wired.services.markers.save(everything=True)

    # Tables.

    async def do_create_table(self, words: Words) -> list[str]:
        made = await self._catalog.create(table(words), words.take("conflict") or "row")
        return [f"conflict={made.conflict} generation={made.generation}"]

    async def do_delete_table(self, words: Words) -> None:
        await self._catalog.delete(table(words))

    async def do_list_tables(self, words: Words) -> list[str]:
        return [" ".join(await self._catalog.list("shop")) or "no tables"]

    async def do_put(self, words: Words) -> None:
        """`put stock tx=A chair/count=5 chair/colour=red`."""
        title, name = table(words), words.take("tx") or ""
        puts = [CellPut(*cell(place), value[0].encode()) for place, value in words.named.items()]
        words.named.clear()
        await self._wired.services.tables.write(title, self._transactions[name].id, CellWrites(puts))

    async def do_delete_cells(self, words: Words) -> None:
        title, name = table(words), words.take("tx") or ""
        writes = CellWrites(deletes=[cell(place) for place in words.plain[1:]])
        await self._wired.services.tables.write(title, self._transactions[name].id, writes)

    async def do_delete_rows(self, words: Words) -> None:
        title, name = table(words), words.take("tx") or ""
        writes = CellWrites(delete_rows=encoded(words.plain[1:]))
        await self._wired.services.tables.write(title, self._transactions[name].id, writes)

    async def do_get(self, words: Words) -> list[str]:
        """Whole rows, as somebody sees them; `level=` says which of its own writes a transaction wants."""
        title, reader, level = table(words), words.take("as"), LEVELS[words.take("level") or "snapshot"]
        transaction_id = None if reader in (None, "committed") else self._transactions[reader].id
        cells = await self._wired.services.tables.read(title, encoded(words.plain[1:]), None, transaction_id, level)
        return self._cells_shown(cells)

    async def do_scan(self, words: Words) -> list[str]:
        """All pages; `limit=` cells each, where the story wants more than one."""
        title, reader = table(words), words.take("as")
        transaction_id = None if reader in (None, "committed") else self._transactions[reader].id
        start, stop = (words.take("from") or "").encode(), words.take("to")
        limit = int(words.take("limit") or "1000")
        cells: list[CellVersion] = []
        following: bytes | None = start
        while following is not None:
            page = await self._wired.services.tables.scan(
                title, following, None if stop is None else stop.encode(), None, limit, transaction_id
            )
            cells += page.cells
            following = page.next
        return self._cells_shown(cells)

    async def do_change_rows(self, words: Words) -> None:
        """Tell which rows of a table the transaction is about to change, as a client does before it writes them."""
        title, name = table(words), words.take("tx") or ""
        keys = (await self._catalog.get(title)).keys
        changes = [change_key(keys.prefix, keys.generation, row) for row in encoded(words.plain[1:])]
        await self._wired.transactions.set_changes(self._transactions[name].id, changes)

    async def do_versions(self, words: Words) -> list[str]:
        """How many versions of cells there are, whoever may see them."""
        return [f"{sum(1 for _ in self._store.table(CellTable.name).scan(b'', None))} versions"]

    @property
    def _catalog(self) -> TableCatalog:
        return self._wired.services.tables.catalog

    def _cells_shown(self, cells: list[CellVersion]) -> list[str]:
        shown = [
            f"{one.row.decode()}/{one.column.decode()} {'deleted' if one.value is None else one.value.decode()}"
            for one in cells
        ]
        return shown or ["nothing"]

    # Transactions.

    async def do_begin(self, words: Words) -> None:
        name, *how = words.plain
        timeout = words.take("timeout")
        self._name(
            name,
            await self._wired.transactions.begin(
                Kind.LONG if "long" in how else Kind.SHORT,
                None if timeout is None else milliseconds(timeout),
                external_writes="outside" in how,
                request_id=words.take("request"),
            ),
        )

    def _name(self, name: str, transaction: Transaction) -> None:
        self._transactions[name] = transaction
        self._names |= dict.fromkeys(transaction.pointers, name)

    def _name_of(self, pointer: int) -> str:
        return self._names.get(pointer, "one of which no client knows")

    async def do_checkpoint(self, words: Words) -> None:
        name = words.plain[0]
        self._name(name, await self._wired.transactions.checkpoint(self._transactions[name].id))

    async def do_changes(self, words: Words) -> None:
        name, *keys = words.plain
        await self._wired.transactions.set_changes(self._transactions[name].id, encoded(keys))

    async def do_commit(self, words: Words) -> list[str]:
        transaction, request_id = self._transactions[words.plain[0]], words.take("request")
        segments = words.take("segments")
        asked = with_segments(work(words), segments, self._transactions)
        outcome = await self._wired.transactions.commit(transaction.id, asked, request_id)
        return [outcome.state.name]

    async def do_one_shot(self, words: Words) -> list[str]:
        """Named when it is new; one that was done before tells its name."""
        request_id = words.take("request")
        outcome = await self._wired.transactions.one_shot(work(words), "story", request_id)
        before = self._names.setdefault(outcome.id, words.plain[0])
        return [f"{outcome.state.name} as {before}"]

    async def do_abort(self, words: Words) -> list[str]:
        return [(await self._wired.transactions.abort(self._transactions[words.plain[0]].id)).state.name]

    async def do_invalidate(self, words: Words) -> list[str]:
        done = await self._wired.transactions.invalidate(self._transactions[words.plain[0]].id)
        return ["INVALID" if done else "it was not in progress"]

    async def do_outcome(self, words: Words) -> list[str]:
        return [(await self._wired.transactions.outcome(self._transactions[words.plain[0]].id)).state.name]

    # Jobs.

    async def do_expire(self, words: Words) -> list[str]:
        await self._wired.transactions.carry_through()  # what was given up is being rolled back already
        return [f"{await self._wired.transactions.expire()} ended"]

    async def do_clean_up(self, words: Words) -> None:
        await self._wired.services.scheduler.run_now("retention")

    async def do_snapshot_the_log(self, words: Words) -> None:
        await self._wired.transactions.write_log_snapshot()


def topic(words: Words) -> TopicName:
    return topic_name("shop", words.plain[0])


def table(words: Words) -> TableName:
    return table_name("shop", words.plain[0])


def cell(place: str) -> tuple[bytes, bytes]:
    """`chair/count`: a row and a column of it."""
    row, _, column = place.partition("/")
    return row.encode(), column.encode()


def properties(words: Words) -> dict[str, object]:
    return {name: words.named.pop(name)[0] for name in list(words.named)}


def shown(made: Topic) -> list[str]:
    return [" ".join(f"{name}={value}" for name, value in sorted(made.properties.items()))]


def work(words: Words) -> Work:
    """`orders=one orders=two invoices=three mark=orders:a/2:700`: what happens at the commit."""
    markers = [work_marker(*entry.split(":")) for entry in words.named.pop("mark", [])]
    parts = [WorkPublish("shop", name, encoded(words.named.pop(name))) for name in list(words.named)]
    return Work(publish=parts, markers=markers)


def position(words: Words) -> tuple[bytes | int | None, bool]:
    """`from=PLACE` includes it, `after=PLACE` does not; a place is a message's, or a time."""
    start, after = words.take("from"), words.take("after")
    text = start if start is not None else after
    if text is None:
        return None, True
    found = _PLACE.fullmatch(text)
    if found is None:
        return START_MS + int(text), start is not None
    publish, sequence, written, written_sequence = (int(group or 0) for group in found.groups())
    stored_ms = START_MS + written if found[3] else 0
    return MessageId(START_MS + publish, sequence, stored_ms, written_sequence).encode(), start is not None


def place(message: MessageId) -> str:
    stored = f"<{message.write_ms - START_MS}/{message.payload_sequence}" if message.write_ms else ""
    return f"@{message.publish_ms - START_MS}/{message.sequence}{stored}"
