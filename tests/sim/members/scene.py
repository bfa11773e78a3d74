"""A quiet world of three members, in which one thing goes wrong, at a moment that a test names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.members.hbase import SHARDS, TOPICS
from tests.sim.members.history import Act
from tests.sim.members.ledger import Ledger
from tests.sim.members.member import Member
from tests.sim.members.play import Answer, CallError
from tests.sim.members.reign import Page
from tests.sim.members.world import MembersWorld

SETTLED_MS = 20_000  # whatever is waited for has come by then


class QuietWorld(MembersWorld):
    """Nothing happens by chance; clocks agree."""

    move_every_ms = (1e9, 1e9)
    rates = (1.0,)
    wrong_by_ms = (0,)


class Scene:
    """Topics a and t belong to one member, b to another, c, d and u to the one that leads."""

    def __init__(self) -> None:
        self.world = QuietWorld(1)
        self.play, self.hbase, self.history = self.world.play, self.world.hbase, self.world.history
        self.wait(lambda: self._served() == set(SHARDS))
        self.leader = next(member for member in self.world.alive() if member.leader is not None)
        self.first, self.second = (member for member in self.world.alive() if member is not self.leader)
        wanted = {"a": self.first, "t": self.first, "b": self.second}
        term = self.leader.leader
        assert term is not None
        for shard in SHARDS:
            self.wait(lambda: self.leader.map == self.hbase.system["owners:map"])
            self.do(term.move(shard, wanted.get(shard, self.leader).instance))
        self.wait(lambda: self._served() == set(SHARDS))

    # Time.

    def wait(self, done: Callable[[], bool], within_ms: float = SETTLED_MS) -> float:
        """Let things happen until this is so; the time that it took."""
        before_ms = self.play.now_ms
        self.play.run(before_ms + within_ms, done)
        assert done(), f"it did not happen in {within_ms} ms"
        return self.play.now_ms - before_ms

    def pass_ms(self, ms: float) -> None:
        """Let time pass."""
        self.play.run(self.play.now_ms + ms)

    def begin(self, call: Coroutine[Any, Any, Any]) -> Answer[Any]:
        """Have a call run; its answer comes later."""
        answer: Answer[Any] = self.play.answer()

        async def run() -> None:
            try:
                answer.give(await call)
            except CallError as error:
                answer.give(error=error)

        self.play.start(run())
        return answer

    def do(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have a call run, and wait for its answer, or its error."""
        answer = self.begin(call)
        self.wait(lambda: answer.done)
        if answer._error is not None:
            raise answer._error
        return answer._value

    def finish(self) -> None:
        """All ends, and no promise is broken."""
        self.world.follow_topics()
        self.world.finish()

    # What goes wrong.

    def dies(self, victim: Member, where: object, method: str, call: str | None = None, *, after: bool = False) -> None:
        """The member is killed as it is about to do this, or once it has done it and before it goes on."""
        original = getattr(where, method)

        async def dying(*arguments: Any) -> Any:
            if call is not None and arguments[0] != call:
                return await original(*arguments)
            if after:
                await original(*arguments)
            victim.process.kill()
            return await self.play.sleep(0)

        setattr(where, method, dying)

    def ended(self, member: Member) -> bool:
        """True when the log says that the member is over."""
        return member.instance in self.ledger().ended_members

    # Clients.

    def call(self, to: Member, method: str, *arguments: object, patience_ms: float = 2_000) -> Coroutine[Any, Any, Any]:
        """A client's call of a member."""
        return self.world.links.ask_as_client(to, method, *arguments, patience_ms=patience_ms)

    def publish(self, text: str, topic: str) -> None:
        """A plain message, answered."""
        act = self.history.act({text: topic}, self.play.now_ms)
        self.do(self.call(self.leader, "serve", "publish", topic, text))
        act.tell("done", self.play.now_ms)

    def transaction(self, **texts: str) -> Act:
        """A transaction with early rows and cells: text by shard."""
        writer, _ = self.do(self.call(self.leader, "serve_transaction", "begin"))
        act = self.history.act({text: shard for shard, text in texts.items()}, self.play.now_ms)
        act.writer = writer
        for shard, text in texts.items():
            kind = "row" if shard in TOPICS else "cell"
            self.do(self.call(self.leader, "serve", "write_early", shard, writer, kind, text))
        return act

    def committed(self, by: Member, topic: str) -> Page:
        """What a committed reader gets from the beginning on."""
        page: Page = self.do(self.call(by, "serve", "committed", topic, 0))
        return page

    def texts(self, by: Member, topic: str, kind: str = "committed") -> list[str]:
        """The texts that a reader gets."""
        page = self.do(self.call(by, "serve", kind, topic, 0))
        return [text for _, _, texts in page.rows for text in texts]

    def ledger(self) -> Ledger:
        """All that the log says by now."""
        ledger = Ledger()
        for entry in self.hbase.log:
            ledger.apply(entry)  # type: ignore[arg-type]
        return ledger

    def coordinates(self, but: Member | None = None) -> bool:
        """True when some member, other than this one, serves transactions, and the others know."""
        others = [member for member in self.world.alive() if member is not but]
        leaders = [
            each
            for each in others
            if each.leader is not None and each.leader.is_on() and each.leader.coordinator.is_open
        ]
        known = {member.lead.lease.record.instance for member in others if member.lead.lease.record is not None}
        return len(leaders) == 1 and known == {leaders[0].instance}

    def serves(self, topic: str, but: Member | None = None) -> bool:
        """True when some member, other than this one, serves the topic, and the others know."""
        others = [member for member in self.world.alive() if member is not but]
        knows = all(member.map == self.hbase.system["owners:map"] for member in others)
        return knows and any(topic in self._served_by(member) for member in others)

    def _served(self) -> set[str]:
        return {shard for member in self.world.alive() for shard in self._served_by(member)}

    @staticmethod
    def _served_by(member: Member) -> set[str]:
        return {shard for shard, reign in member.reigns.items() if reign.phase == "serving" and member.is_on()}
