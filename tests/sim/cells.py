"""Writers of table cells, each of which tells in a topic what it wrote; and readers who compare the two.

In every snapshot the table holds just what the writers whose message shows there have written. The retention sweep and
pruning run in between, in small steps, so that crashes and other calls come between any two of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import table_name
from basalt.catalog.topics import topic_name
from basalt.retention import cells as sweep
from basalt.tables.tables import CellWrites
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.cells.names import change_key
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import TransactionSnapshot
from tests.sim.history import Ending, Told
from tests.wiring import Wired, texts

if TYPE_CHECKING:
    from tests.sim.world import World

TABLE = table_name("sim", "rows")
TOLD_IN = topic_name("sim", "told")  # where each writer tells that it wrote; never deleted
GUARDED = (b"a", b"b", b"c")  # rows whose writers tell their change set: of two at once one is refused
FREE = b"free"  # whose writers tell none: the newer write pointer is what is seen
COLUMN = b"v"
TIMEOUT_MS = 2_000

Shown = dict[bytes, bytes]  # values by row


class Version(NamedTuple):
    """What a writer left in a row; `value` is None when it deleted the cell."""

    write_pointer: int
    value: bytes | None


@dataclass(slots=True)
class CellWriter:
    """One transaction: what it found in its rows, and what it wrote to which generation of the table."""

    generation: int = 0
    found: Shown = field(default_factory=dict)
    wrote: dict[bytes, Version] = field(default_factory=dict)

    def value(self, row: bytes) -> bytes | None:
        """The row as this transaction must see it."""
        return self.wrote[row].value if row in self.wrote else self.found.get(row)


class Cells:
    """The writers and readers of one table."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._writers: dict[str, CellWriter] = {}  # by their message
        self._sweeping: Wired | None = None
        self.compared = 0

    async def prepare(self) -> None:
        await self._world.wired.services.tables.catalog.create(TABLE)

    async def step(self) -> None:
        """Write, look, or let a job run."""
        steps = [self._write, self._look, self._sweep, self._prune, self._recreate]
        await self._world.chances.choices(steps, [8, 5, 4, 2, 0.3])[0]()

    # Writers.

    async def _write(self) -> None:
        world, wired = self._world, self._world.wired
        writer = CellWriter()
        with suppress(BasaltError):
            tx = await wired.transactions.begin(timeout_ms=TIMEOUT_MS)
            world.history.pointers.append(tx.id)
            ending = world.history.transactions[tx.id] = Ending()
            try:
                await self._write_under(wired, tx, writer)
            except BasaltError:  # refused, or nobody knows whether it was written
                if world.chances.random() < 0.5:
                    await wired.transactions.abort(tx.id)
                return
            await self._end(wired, tx, ending, writer)

    async def _write_under(self, wired: Wired, tx: Transaction, writer: CellWriter) -> None:
        world, tables = self._world, wired.services.tables
        guarded = world.chances.random() < 0.8
        rows = world.chances.sample(GUARDED, world.chances.randint(1, 2)) if guarded else [FREE]
        table = await tables.catalog.get(TABLE)
        writer.generation = table.generation
        writer.found = {cell.row: cell.value or b"" for cell in await tables.read(TABLE, rows, None, tx.id)}
        if guarded:
            keys = [change_key(table.keys.prefix, table.generation, row) for row in rows]
            await wired.transactions.set_changes(tx.id, keys, external_writes=False)
        for row in rows:
            await self._put(wired, tx, writer, row)
            if world.chances.random() < 0.2:
                tx = await wired.transactions.checkpoint(tx.id)
                await self._put(wired, tx, writer, world.chances.choice(rows))
        own = {cell.row: cell.value for cell in await tables.read(TABLE, rows, None, tx.id)}
        if (await tables.catalog.get(TABLE)).generation == writer.generation:
            seen = {row: value for row in rows if (value := writer.value(row)) is not None}
            assert own == seen, f"transaction {tx.id} sees {own}, not {seen}"

    async def _put(self, wired: Wired, tx: Transaction, writer: CellWriter, row: bytes) -> None:
        world = self._world
        world.texts += 1
        value = None if world.chances.random() < 0.25 else b"c%d" % world.texts
        writes = CellWrites(deletes=[(row, COLUMN)]) if value is None else CellWrites([CellPut(row, COLUMN, value)])
        writer.wrote[row] = Version(tx.write_pointer, value)
        for repeats_left in (1, 0):
            try:
                await wired.services.tables.write(TABLE, tx.id, writes, writer.generation)
                return
            except BasaltError:
                if not repeats_left or world.chances.random() < 0.5:
                    raise
            await asyncio.sleep(0)

    async def _end(self, wired: Wired, tx: Transaction, ending: Ending, writer: CellWriter) -> None:
        world, choice = self._world, self._world.chances.random()
        if choice < 0.15:
            return  # abandoned
        if choice < 0.3:
            ending.asked = "abort"
            await wired.transactions.abort(tx.id)
        else:
            await self._commit(wired, tx, ending, writer)
        if (ending.asked == "abort" or ending.told is Told.DONE) and world.chances.random() < 0.3:
            with suppress(BasaltError):
                late = CellWrites([CellPut(FREE, COLUMN, b"late")])
                await wired.services.tables.write(TABLE, tx.id, late, writer.generation)
                raise AssertionError(f"transaction {tx.id} had ended, and wrote a cell")

    async def _commit(self, wired: Wired, tx: Transaction, ending: Ending, writer: CellWriter) -> None:
        world = self._world
        ending.asked = "commit"
        messages = [world.message(TOLD_IN, tx.id)]
        self._writers[messages[0].text] = writer
        if world.chances.random() < 0.3:
            messages.append(world.message(world.chances.choice(world.topics), tx.id))
        work = Work(publish=[WorkPublish(*message.title, [message.text.encode()]) for message in messages])
        for _ in range(2):  # the second is the retry of a lost answer
            ending.told = await world.tell(messages, wired.transactions.commit(tx.id, work, f"commit-{tx.id}"))
            if ending.told is not Told.NOTHING:
                return

    # Readers.

    async def _look(self) -> None:
        """A transaction that looks several times: it sees what it saw, and what the messages say."""
        world, wired = self._world, self._world.wired
        first: tuple[int, Shown, frozenset[str]] | None = None
        with suppress(BasaltError):
            tx = await wired.transactions.begin(timeout_ms=TIMEOUT_MS)
            world.history.pointers.append(tx.id)
            for _ in range(world.chances.randint(1, 3)):
                seen = await self._seen(wired, tx.snapshot(), tx.id)
                if wired is not world.wired:
                    return  # another server leads: what this one answers now, it refuses to (LedCells)
                if seen is not None:
                    assert first is None or seen == first or seen[0] != first[0], (
                        f"{first} became {seen} in one snapshot"
                    )
                    first = seen
                    self._compare(*seen)
                for _ in range(world.chances.randint(0, 6)):
                    await asyncio.sleep(0)
            await wired.transactions.abort(tx.id)

    async def _seen(
        self, wired: Wired, snapshot: TransactionSnapshot, tx: int | None
    ) -> tuple[int, Shown, frozenset[str]] | None:
        """Generation and rows of the table, and the messages, in one snapshot; None when that cannot be had now."""
        tables = wired.services.tables
        generation = (await tables.catalog.get(TABLE)).generation
        shown: Shown = {}
        start: bytes | None = b""
        while start is not None:
            page = await tables.scan(TABLE, start, cells=self._world.chances.randint(1, 4), transaction_id=tx)
            shown |= {cell.row: cell.value or b"" for cell in page.cells}
            start = page.next
            await asyncio.sleep(0)
        told: list[str] = []
        after: bytes | None = None
        while fetched := await wired.messaging.fetch(TOLD_IN, after, after is None, snapshot=snapshot):
            told += texts(fetched)
            if not fetched.messages:
                break
            after = fetched.slices[-1].last_id()
        if fetched.held_by is not None or (await tables.catalog.get(TABLE)).generation != generation:
            return None
        return generation, shown, frozenset(told)

    def _compare(self, generation: int, shown: Shown, told: frozenset[str]) -> None:
        """The table is what its visible writers left."""
        newest: dict[bytes, Version] = {}
        for writer in map(self._writers.__getitem__, told):
            if writer.generation == generation:
                for row, version in writer.wrote.items():
                    newest[row] = max(newest.get(row, version), version, key=lambda one: one.write_pointer)
        expected = {row: version.value for row, version in newest.items() if version.value is not None}
        assert shown == expected, f"the table holds {shown}, its writers wrote {expected}"
        self._check_none_was_lost(generation, told)
        self.compared += 1

    def _check_none_was_lost(self, generation: int, told: frozenset[str]) -> None:
        """Each writer of a guarded row found there what the one before it had left."""
        writers = [self._writers[text] for text in told if self._writers[text].generation == generation]
        for row in GUARDED:
            before: bytes | None = None
            for writer in sorted((w for w in writers if row in w.wrote), key=lambda w: w.wrote[row].write_pointer):
                assert writer.found.get(row) == before, f"row {row!r}: an update was lost, {before!r} was not seen"
                before = writer.wrote[row].value

    # Jobs.

    async def _sweep(self) -> None:
        await self._run_job("retention")

    async def _prune(self) -> None:
        await self._run_job("prune")

    async def _run_job(self, name: str) -> None:
        """One run of a job, which never overlaps itself."""
        wired = self._world.wired
        if self._sweeping is wired:
            return
        self._sweeping = wired
        try:
            with suppress(BasaltError):
                await wired.services.scheduler._jobs[name].job.run()
        finally:
            self._sweeping = None

    async def _recreate(self) -> None:
        catalog = self._world.wired.services.tables.catalog
        with suppress(BasaltError):
            await catalog.delete(TABLE)
        with suppress(BasaltError):
            await catalog.create(TABLE)

    # What must be true.

    async def check(self) -> None:
        """With a server that does not fail, and no transaction left: before and after all that jobs have to do."""
        wired = self._world.wired
        with suppress(BasaltError):
            await wired.services.tables.catalog.create(TABLE)
        before = await self._seen(wired, wired.transactions.manager.current(), None)
        assert before is not None, "readers wait, and nothing is in progress"
        self._compare(*before)
        rows = wired.store.table("cell")
        runs = sum(1 for _ in rows.scan(b"", None)) // sweep.ROWS_MAX + 2
        for job in ("prune", *["retention"] * runs, "prune"):
            await wired.services.scheduler._jobs[job].job.run()
        assert await self._seen(wired, wired.transactions.manager.current(), None) == before, (
            "retention changed what is seen"
        )
        left = sum(1 for _ in rows.scan(b"", None))
        assert left == len(before[1]), f"retention left {left} versions of {len(before[1])} cells"
