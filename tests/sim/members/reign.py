"""One member's ownership of one shard under one epoch: whatever is known of its topic or table begins with it and ends with it.

Here each shard has one topic or one table. The order of taking is the rule: fence every region first, then read where the topic ends, at its
first use. What the former owner has sent is there by then, or never will be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from basalt_engine.snapshot import Visibility
from tests.sim.members.hbase import DATA_REGIONS, TABLES, Cell, Row, Stamp, messages_of
from tests.sim.members.ledger import View
from tests.sim.members.play import AbortedError, CallError, FencedError, Lane, RefusedError, UnansweredError

if TYPE_CHECKING:
    from tests.sim.members.member import Member

EXPECT_WAIT_MS = 60  # an `expect` and the carrier's `place` come over two links


class Pointer:
    """A transaction that writes here before its commit: it has joined once the coordinator has said so, until it is closed."""

    __slots__ = ("is_closed", "is_joined")

    def __init__(self) -> None:
        self.is_joined = self.is_closed = False


class Page(NamedTuple):
    """Rows that a reader gets, where it goes on, and the writer at whose row it has to wait, if any."""

    rows: tuple[tuple[int, int | None, tuple[str, ...]], ...]
    cursor: int
    held_by: int | None = None
    held_at: int = 0
    is_fresh: bool = True  # `held_by` was undecided when the coordinator was asked, after the reader had come


class Reign:
    """One shard of one member."""

    def __init__(self, member: Member, shard: str, epoch: int) -> None:
        self.member, self.shard, self.epoch = member, shard, epoch
        self.hbase, self.play = member.hbase, member.play
        self.phase = "taking"
        self.lane = Lane(self.play)
        self.end: int | None = None  # the last place given out
        self.last_row = 0  # the last place that surely has had a row
        self.doubtful: dict[int, bool] = {}  # places of rows under way or in doubt; True once the row's delete was sent
        self.pointers: dict[int, Pointer] = {}
        self.expected: set[int] = set()
        self.prepared: dict[str, tuple[str, ...]] = {}  # the messages that a commit brings, by its carrier's token
        self.has_view = False
        self._number = 0

    # Taking and ending.

    async def take(self) -> None:
        """Make sure that nobody else writes any more, then serve."""
        try:
            await self.fence_all_regions()
        except FencedError:
            self.stop()
            return
        if self.phase == "taking":
            self.phase = "serving"

    async def fence_all_regions(self) -> None:
        """A fence that is lost is sent again, until each region has it."""
        waiting = list(DATA_REGIONS)
        while waiting and self.phase == "taking":
            region = waiting[0]
            try:
                await self.member.ask_hbase(
                    region, lambda region=region: self.hbase.raise_floor(region, self.shard, self.epoch)
                )
            except UnansweredError:
                continue
            except FencedError:
                raise
            except RefusedError:  # the lease is not on
                await self.play.sleep(20)
                continue
            waiting.pop(0)

    def stop(self) -> None:
        """The reign is over; all that it knew goes with it."""
        self.phase = "over"
        if self.member.reigns.get(self.shard) is self:
            del self.member.reigns[self.shard]

    async def release(self) -> None:
        """A planned move: take no more, do what was taken; rows in doubt call it off."""
        self.serve()
        self.phase = "releasing"
        async with self.lane:
            if self.doubtful and self.phase == "releasing":
                self.phase = "serving"
                raise RefusedError("rows are in doubt")
            self.stop()

    def serve(self) -> None:
        """Refuse a new call unless this reign serves."""
        if self.phase != "serving" or not self.member.is_on():
            raise RefusedError(f"{self.member.instance} does not serve {self.shard}")

    def go_on(self) -> None:
        """Refuse the next step of a call that was taken, unless the reign is still on."""
        if self.phase not in ("serving", "releasing") or not self.member.is_on():
            raise RefusedError(f"{self.member.instance} does not serve {self.shard} any more")

    # Rows, in the lane.

    async def append(self, writer: int | None, texts: tuple[str, ...]) -> int:
        """One row at the end of the topic, and its place."""
        await self.settle()
        await self._find_end()
        self.go_on()
        assert self.end is not None
        self.end = place = max(self.end + 1, self.member.clock.wall_ms())
        self.doubtful[place] = False
        row = Row(writer, texts, self._stamp())
        try:
            await self._write(messages_of(self.shard), lambda: self.hbase.put_row(self.shard, place, row))
        except FencedError as error:
            raise UnansweredError("the reign is over") from error
        except RefusedError:
            self.doubtful.pop(place, None)
            raise
        self.doubtful.pop(place, None)
        self.last_row = place
        return place

    async def settle(self) -> None:
        """Decide about rows in doubt: those that are there stay, the others are deleted before anyone can have seen them.

        A row whose delete was sent is deleted, whatever a later look finds: the delete may still be under way.
        """
        for place, is_deleted in list(self.doubtful.items()):
            there = await self._read(messages_of(self.shard), lambda place=place: place in self.hbase.rows[self.shard])
            if is_deleted or not there:
                self.doubtful[place] = True
                stamp = self._stamp()
                await self._write(
                    messages_of(self.shard),
                    lambda place=place, stamp=stamp: self.hbase.delete_row(self.shard, place, stamp),
                )
            else:
                self.last_row = max(self.last_row, place)
            self.doubtful.pop(place, None)

    async def find_end(self) -> None:
        """Read where the topic ends, at its first use."""
        if self.end is None:
            async with self.lane:
                await self._find_end()

    async def _find_end(self) -> None:
        if self.end is None:
            end = await self._read(messages_of(self.shard), lambda: self.hbase.end_of(self.shard))
            self.go_on()
            self.end = self.last_row = end

    async def note_end(self) -> None:
        """Keep where the topic ends, so that its last row may be dropped."""
        self.serve()
        async with self.lane:
            await self._find_end()
            end = self.end
            assert end is not None
            await self._write("notes", lambda: self.hbase.note_end(self.shard, end))

    async def publish(self, text: str) -> int:
        """A plain message."""
        self.serve()
        async with self.lane:
            place = await self.append(None, (text,))
        self.member.check_answer()
        return place

    # Transactions: what comes before the commit.

    async def join(self, writer: int) -> Pointer:
        """The pointer, open here: the coordinator knows of it before anything is written; later writes go by memory."""
        pointer = self.pointers.setdefault(writer, Pointer())
        if not pointer.is_joined:
            await self.member.ask_leader("join", writer, self.shard)
            pointer.is_joined = True
        return pointer

    async def write_early(self, writer: int, kind: str, text: str) -> None:
        """A stored payload, an early row or a cell."""
        self.serve()
        pointer = await self.join(writer)
        async with self.lane:
            self.go_on()
            if pointer.is_closed:
                raise AbortedError(f"transaction {writer} takes no more")
            if kind == "row":
                await self.append(writer, (text,))
            elif kind == "payload":
                await self._write("payloads", lambda: self.hbase.payloads[self.shard, writer].append(text))
            else:
                cell = Cell(writer, text)
                await self._write("cells", lambda: self.hbase.cells[self.shard, text].append(cell))
        self.member.check_answer()

    def close(self, writer: int) -> None:
        """Nothing more is written under this pointer, though the answer to its join be still on its way."""
        pointer = self.pointers.pop(writer, None)
        if pointer is not None:
            pointer.is_closed = True

    # Transactions: the commit.

    async def prepare(self, token: str, texts: tuple[str, ...]) -> int | None:
        """Keep the messages that a commit brings; the answer tells the topic's newest place that is known."""
        self.serve()
        self.prepared[token] = texts
        return self.end

    def expect(self, writer: int) -> None:
        """The coordinator says that it has logged the intent: a `place` may come, once."""
        self.expected.add(writer)

    async def place(self, writer: int, token: str, brings: int) -> None:
        """Close the pointer, and give its messages their places. Only when it is expected, and once."""
        self.serve()
        for _ in range(EXPECT_WAIT_MS // 10):
            if writer not in self.expected:
                await self.play.sleep(10)
        async with self.lane:
            self.go_on()
            self.take_expected(writer)
            self.close(writer)
            brought = self.prepared.pop(token, ())
            if len(brought) != brings:
                raise RefusedError("what was prepared is gone")
            if self.shard not in TABLES:
                stored = await self._read("payloads", lambda: tuple(self.hbase.payloads.get((self.shard, writer), ())))
                if stored or brought:
                    await self.append(writer, (*stored, *brought))
        self.member.check_answer()

    def take_expected(self, writer: int) -> None:
        """Refuse a `place` that comes late, or a second time."""
        if writer not in self.expected:
            raise RefusedError(f"transaction {writer} is not expected")
        self.expected.discard(writer)

    async def roll_back(self, writer: int, keeps_rows: bool) -> None:
        """Nothing of it shows any more; where the writer becomes invalid, its rows stay and are skipped."""
        self.serve()
        async with self.lane:
            self.go_on()
            self.expected.discard(writer)
            self.close(writer)
            if keeps_rows or self.shard in TABLES:
                return
            await self.settle()
            rows = await self._read(messages_of(self.shard), lambda: list(self.hbase.rows[self.shard].items()))
            for at, row in rows:
                if row.writer == writer and not row.is_rolled_back:
                    undone = row._replace(stamp=self._stamp(), is_rolled_back=True)
                    await self._write(
                        messages_of(self.shard), lambda at=at, undone=undone: self.hbase.put_row(self.shard, at, undone)
                    )
            await self._write("payloads", lambda: self.hbase.payloads.pop((self.shard, writer), None))

    # Reading.

    async def raw(self, cursor: int) -> Page:
        """What a plain reader gets: it is never held up by a transaction."""
        self.serve()
        await self.find_end()
        rows = await self._rows_after(cursor)
        shown = tuple((at, row.writer, row.texts) for at, row in rows if not row.is_rolled_back)
        return Page(shown, rows[-1][0] if rows else cursor)

    async def committed(self, cursor: int, snapshot: View | None = None) -> Page:
        """What a committed reader gets: of now, or of its transaction's snapshot."""
        self.serve()
        await self.find_end()
        page = await self.read_by(snapshot or await self.first_view(), cursor)
        if page.held_by is None or snapshot is not None:
            return page
        try:
            view = await self.member.newer_view()
        except CallError:
            return page._replace(is_fresh=False)
        more = await self.read_by(view, page.cursor)
        return more._replace(rows=page.rows + more.rows)

    async def read_by(self, view: View, cursor: int) -> Page:
        """Rows that were read after the view that judges them: a row that is rolled back in between would show."""
        rows = await self._rows_after(cursor)
        return judged(rows, view, cursor)

    async def stable_end(self) -> tuple[int, tuple[str, ...]]:
        """The place up to which all is decided for ever, and what a committed reader sees up to there.

        Where nothing is open it is the last place that is known to have had a row: the last one given out may have none, for its row was in
        doubt and deleted, and the next owner would not know of it. It is never a place of a row before an open one, for that may be dropped.
        """
        self.serve()
        await self.find_end()
        view = await self.first_view()
        last_row = self.last_row
        page = await self.read_by(view, 0)
        end = last_row if page.held_by is None else page.held_at - 1
        return end, tuple(text for at, _, texts in page.rows for text in texts if at <= end)

    async def read_cells(self, snapshot: View) -> tuple[int, ...]:
        """The writers of the cells that a snapshot shows."""
        self.serve()
        versions = await self._read(
            "cells", lambda: [each for at, each in self.hbase.cells.items() if at[0] == self.shard]
        )
        cells = [cell for each in versions for cell in each]
        return tuple(cell.writer for cell in cells if snapshot.judge(cell.writer) is Visibility.VISIBLE)

    async def first_view(self) -> View:
        """The member's view, asked for once since this reign began: the owner before may have shown what an older one leaves open."""
        if not self.has_view:
            await self.member.newer_view()
            self.has_view = True
        return self.member.view

    async def _rows_after(self, cursor: int) -> list[tuple[int, Row]]:
        if self.doubtful and not self.lane.busy:
            async with self.lane:
                await self.settle()
        self.go_on()
        assert self.end is not None
        stop = min((*self.doubtful, self.end + 1))
        read = lambda: self.hbase.rows_between(self.shard, cursor, stop)  # noqa: E731
        rows: list[tuple[int, Row]] = await self._read(messages_of(self.shard), read)
        self.go_on()
        return rows

    # HBase.

    def _stamp(self) -> Stamp:
        self._number += 1
        return Stamp(self.epoch, self._number)

    async def _read(self, region: str, read: Callable[[], Any]) -> Any:
        return await self.member.ask_hbase(region, read)

    async def _write(self, region: str, change: Callable[[], object]) -> None:
        self.member.check_lease()
        try:
            await self.hbase.write(self.member.process, region, self.shard, self.epoch, lambda: (change(), None)[1])
        except FencedError:
            self.stop()
            raise


def judged(rows: list[tuple[int, Row]], view: View, cursor: int) -> Page:
    """The rows that a view shows, up to the first that it leaves open."""
    shown = []
    for at, row in rows:
        seen = Visibility.SKIP if row.is_rolled_back else view.judge(row.writer)
        if seen is Visibility.HOLD:
            return Page(tuple(shown), cursor, row.writer, at)
        if seen is Visibility.VISIBLE:
            shown.append((at, row.writer, row.texts))
        cursor = at
    return Page(tuple(shown), cursor)
