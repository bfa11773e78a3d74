"""Clients of a world of members: what they send to whichever member they know, and how they try again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.members.hbase import TABLES, TOPICS
from tests.sim.members.history import Act, Reader, SnapshotRead, StableEnd
from tests.sim.members.ledger import View
from tests.sim.members.play import AbortedError, CallError, RefusedError

if TYPE_CHECKING:
    from tests.sim.members.world import MembersWorld

TRIES = 12
PAUSE_MS = 60


class Client:
    """One client, which does one thing after the other."""

    def __init__(self, world: MembersWorld, name: str) -> None:
        self.world, self.name = world, name
        self.play, self.history = world.play, world.history
        self.chances = world.play.chances
        self._sessions = 0

    async def work(self) -> None:
        """Do some of everything."""
        acts = [self.publish, self.one_shot, self.transaction, self.snapshot, self.stable_end]
        for _ in range(self.world.acts):
            await self.play.sleep(self.chances.uniform(0, self.world.rests_ms))
            try:
                await self.chances.choices(acts, self.world.mix)[0]()
            except CallError:
                continue
        self.world.working -= 1

    async def ask(self, method: str, *arguments: object) -> Any:
        """A call of some member."""
        members = [member for member in self.world.members.values() if member.process.alive]
        if not members:
            raise RefusedError("no member answers")
        return await self.world.links.ask_as_client(self.chances.choice(members), method, *arguments)

    async def ask_again(self, method: str, *arguments: object) -> Any:
        """The same, again while nothing was done."""
        for _ in range(TRIES):
            try:
                return await self.ask(method, *arguments)
            except RefusedError:
                await self.play.sleep(PAUSE_MS)
        raise RefusedError(f"{method} {arguments}: nobody did it")

    # What they do.

    async def publish(self) -> None:
        """A plain message."""
        topic, text = self.chances.choice(TOPICS), self.history.text()
        act = self.history.act({text: topic}, self.play.now_ms)
        try:
            act.place = await self.ask_again("serve", "publish", topic, text)
            act.tell("done", self.play.now_ms)
        except RefusedError:
            act.tell("refused", self.play.now_ms)

    async def one_shot(self) -> None:
        """A one-shot, sent again under its request id until it is done."""
        topics = self.chances.sample(TOPICS, self.chances.choice([1, 1, 2]))
        texts = {topic: self.history.text() for topic in topics}
        act = self.history.act({text: topic for topic, text in texts.items()}, self.play.now_ms)
        request = f"request {next(iter(act.texts))}"
        for _ in range(TRIES):
            try:
                act.writer = await self.ask("serve_one_shot", texts, request)
                act.tell("done", self.play.now_ms)
                break
            except CallError:
                await self.play.sleep(PAUSE_MS)
        if act.writer is not None:
            await self._look_after(act)

    async def transaction(self) -> None:
        """Begin, write here and there, then commit or abort."""
        session = self._next_session()
        sent_ms = self.play.now_ms
        writer, _ = await self.ask_again("serve_transaction", "begin", *(session or ()))
        act = self.history.act({}, sent_ms)
        act.writer, act.session = writer, session
        parts: dict[str, tuple[str, ...]] = {}
        try:
            for shard in self.chances.sample((*TOPICS, *TABLES), self.chances.randint(1, 3)):
                await self._write(act, shard, parts)
        except CallError:
            await self._abort(act)
            return
        if self.chances.random() < self.world.abort_rate:
            await self._abort(act)
        else:
            await self._commit(act, parts)
        if act.told == "done":
            await self._look_after(act)
        if act.told != "nothing":
            await self._write_late(act)

    def _next_session(self) -> tuple[str, int] | None:
        if self.chances.random() < 0.7:
            return None
        self._sessions += self.chances.choice([0, 1, 1])
        return self.name, max(self._sessions, 1)

    async def _write(self, act: Act, shard: str, parts: dict[str, tuple[str, ...]]) -> None:
        text = self.history.text()
        act.texts[text] = shard
        how = "cell" if shard in TABLES else self.chances.choice(["payload", "row", "with the commit", "with a marker"])
        if how.startswith("with"):
            parts[shard] = (text,)
            if how == "with a marker":  # a row of the commit as any other
                marker = self.history.text()
                act.texts[marker] = shard
                parts[shard] = (text, marker)
        else:
            await self.ask_again("serve", "write_early", shard, act.writer, how, text)

    async def _abort(self, act: Act) -> None:
        for _ in range(TRIES):
            try:
                outcome = await self.ask("serve_transaction", "abort", act.writer)
                act.tell("done" if outcome == "committed" else "refused", self.play.now_ms)
                return
            except CallError:
                await self.play.sleep(PAUSE_MS)

    async def _commit(self, act: Act, parts: dict[str, tuple[str, ...]]) -> None:
        for _ in range(TRIES):
            try:
                await self.ask("commit", act.writer, parts)
                act.tell("done", self.play.now_ms)
                return
            except AbortedError:
                act.tell("refused", self.play.now_ms)
                return
            except CallError:
                await self.play.sleep(PAUSE_MS)

    async def _look_after(self, act: Act) -> None:
        """Who reads after an answer is not held up by what was answered."""
        topic = self.chances.choice([*act.texts.values()])
        if topic in TOPICS and self.chances.random() < 0.7:
            page = await self.ask("serve", "committed", topic, 0)
            if page.held_by == act.writer and page.is_fresh:
                self.history.broken.append(f"{act} was answered, and readers of {topic} are held by it")

    async def _write_late(self, act: Act) -> None:
        """A write after the end of its transaction was answered is refused."""
        if not act.texts or self.chances.random() < 0.5:
            return
        shard, text = self.chances.choice([*act.texts.values()]), self.history.text()
        self.history.act({text: shard}, self.play.now_ms).tell("refused", self.play.now_ms)
        kind = "cell" if shard in TABLES else "row"
        await self.ask("serve", "write_early", shard, act.writer, kind, text)
        self.history.broken.append(f"{act} was answered, and a late write to {shard} was taken")

    async def snapshot(self) -> None:
        """Read several topics and tables by one snapshot."""
        asked_ms = self.play.now_ms
        view: View
        writer, view = await self.ask_again("serve_transaction", "begin")
        read = SnapshotRead(asked_ms, self.play.now_ms, writer)
        self.history.snapshots.append(read)
        for _ in range(self.chances.randint(2, 6)):
            try:
                if self.chances.random() < 0.2:
                    table = self.chances.choice(TABLES)
                    read.cells.append((table, await self.ask("serve", "read_cells", table, view)))
                else:
                    topic = self.chances.choice(TOPICS)
                    read.pages.append((topic, await self.ask("serve", "committed", topic, 0, view)))
            except CallError:
                pass
            await self.play.sleep(self.chances.uniform(0, 200))
        await self.ask("serve_transaction", "abort", writer)

    async def stable_end(self) -> None:
        """Ask where a topic is decided up to."""
        topic, asked_ms = self.chances.choice(TOPICS), self.play.now_ms
        place, texts = await self.ask("serve", "stable_end", topic)
        self.history.stable_ends.append(StableEnd(topic, asked_ms, self.play.now_ms, place, texts))

    async def follow(self, reader: Reader) -> None:
        """Read a topic for ever, from where the last page ended."""
        while True:
            await self.play.sleep(self.chances.uniform(60, 500))
            try:
                page = await self.ask("serve", "raw" if reader.is_raw else "committed", reader.topic, reader.cursor)
            except CallError:
                continue
            reader.cursor, reader.held_by = page.cursor, page.held_by
            reader.texts += [text for _, _, texts in page.rows for text in texts]
            reader.plain += [text for _, writer, texts in page.rows if writer is None for text in texts]
