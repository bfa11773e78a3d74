"""A group against a model of sets: whatever members, transactions, time and restarts do, no message is lost, dealt to two, or handled twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.groups import GroupOptions, SeekRequest
from basalt.errors import ConflictError, InputError
from basalt.groups.live_group import GroupFetch
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.spans.spans import Spans
from basalt_engine.stores.memory import MemoryStore
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired

STEPS = (
    ["publish"] * 4 + ["fetch"] * 6 + ["acknowledge"] * 4 + ["acknowledge ids"] * 2 + ["release"] * 2 + ["begin"]
    + ["acknowledge in"] * 3 + ["commit"] * 2 + ["abort", "wait", "run out", "restart", "read log again", "seek", "keep up", "publish early"]
)  # fmt: skip
MEMBERS = ("mary", "john", "anna")


@dataclass
class World:
    """One group in one topic, and what a member could know of it."""

    shop: Wired
    chance: random.Random
    billing: Billing
    pages: list[GroupFetch] = field(default_factory=list)  # whose claims may still be held
    open: list[Transaction] = field(default_factory=list)
    early: set[int] = field(default_factory=set)  # transactions that have published, and hold readers up
    done: set[bytes] = field(default_factory=set)  # acknowledged
    pending: dict[int, set[bytes]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    published: int = 0

    async def step(self, what: str) -> None:
        await getattr(self, "do_" + what.replace(" ", "_"))()
        await self.check()

    async def do_publish(self) -> None:
        count = self.chance.randrange(1, 5)
        self.published += count
        await self.shop.publish(A, *(f"{self.published}-{each}" for each in range(count)))

    async def do_publish_early(self) -> None:
        tx = await self.shop.transactions.begin()
        await self.shop.publish(A, "early", tx=tx)
        self.open.append(tx)
        self.early.add(tx.id)

    async def do_fetch(self) -> None:
        member = self.chance.choice(MEMBERS)
        tx = self.chance.choice([None, *self.open])
        page = await self.billing.fetch(
            member,
            self.chance.randrange(1, 6),
            epoch=self.epochs.get(member, 0),
            transaction_id=None if tx is None else tx.id,
        )
        self.epochs[member] = page.member_epoch
        if page.claim is None:
            return
        taken = set().union(*self.pending.values()) if self.pending else set()
        assert not set(ids_of(page)) & (self.done | taken), "a message that is acknowledged, or may be, is not dealt"
        self.pages.append(page)

    def page(self) -> GroupFetch | None:
        return self.chance.choice(self.pages) if self.pages else None

    def ids(self) -> list[bytes]:
        page = self.page()
        if page is None:
            return []
        known = ids_of(page)
        return self.chance.sample(known, self.chance.randrange(1, len(known) + 1))

    async def do_acknowledge(self) -> None:
        page = self.page()
        if page is not None:
            await self.acknowledged(ids_of(page), claims=(page.claim,))

    async def do_acknowledge_ids(self) -> None:
        known = self.ids()
        if known:
            await self.acknowledged(known, ids=known, member=self.chance.choice(MEMBERS))

    async def do_acknowledge_in(self) -> None:
        known = self.ids()
        if known and self.open:
            tx = self.chance.choice(self.open)
            try:
                await self.billing.acknowledge(ids=known, tx=tx.id, member=self.chance.choice(MEMBERS))
            except (ConflictError, InputError):
                return
            mine = self.pending.setdefault(tx.id, set())
            others = [held for key, held in self.pending.items() if key != tx.id]
            assert not any(set(known) & held for held in others), "two transactions have one message"
            assert not set(known) & self.done, "what is acknowledged is not pending"
            mine |= set(known)

    async def acknowledged(self, known: list[bytes], *, claims: tuple[int | None, ...] = (), **asked: object) -> None:
        try:
            await self.billing.acknowledge(*claims, **asked)  # type: ignore[arg-type]
        except (ConflictError, InputError):
            return
        held = set().union(*self.pending.values()) if self.pending else set()
        assert not set(known) & held, "what is pending is nobody else's"
        self.done |= set(known)

    async def do_release(self) -> None:
        page = self.page()
        if page is not None:
            try:
                await self.billing.release(page.claim, counts=self.chance.random() < 0.5)
            except (ConflictError, InputError):
                return

    async def do_begin(self) -> None:
        self.open.append(await self.shop.transactions.begin())

    async def do_commit(self) -> None:
        if self.open:
            tx = self.open.pop(self.chance.randrange(len(self.open)))
            mine = self.pending.pop(tx.id, set())
            try:
                await self.shop.transactions.commit(tx.id)
            except ConflictError:
                await self.shop.transactions.abort(tx.id)
                return
            assert not mine & self.done, "effects are single"
            self.done |= mine

    async def do_abort(self) -> None:
        if self.open:
            tx = self.open.pop(self.chance.randrange(len(self.open)))
            self.pending.pop(tx.id, None)
            await self.shop.transactions.abort(tx.id)

    async def do_wait(self) -> None:
        self.shop.clock.advance(1_000)

    async def do_run_out(self) -> None:
        self.shop.clock.advance(6_000)

    async def do_restart(self) -> None:
        self.shop.clock.advance(1)  # or claims would have numbers of before
        self.shop = await self.shop.restarted(cached=self.chance.random() < 0.5)
        self.billing = Billing(self.shop)

    async def do_read_log_again(self) -> None:
        self.shop.transactions.manager.lost()
        await self.shop.transactions.manager.ensure_known()

    async def do_seek(self) -> None:
        if self.chance.random() < 0.3:
            await self.billing.groups.seek(A, "billing", SeekRequest("start"), force=True)
            self.done.clear()
            for held in self.pending.values():
                held.clear()

    async def do_keep_up(self) -> None:
        await self.billing.groups.upkeep.run()

    async def check(self) -> None:
        live = self.billing.live
        dispatcher, state, table = live.dispatcher, live.state, self.shop.transactions.state.groups
        pending = Spans()
        for spans in table.pending_in(state.number).values():
            pending.update(spans)
        assert dispatcher.pending == pending
        returned = Spans()
        for after, through, _ in state.returns:
            returned.add(after, through)
        assert dispatcher.retries.spans == returned
        for after, through in dispatcher.claims.taken:
            assert not state.acknowledged.overlaps(after, through)
            assert not pending.overlaps(after, through)
        assert dispatcher.unacked >= 0
        for message_id in self.done:
            assert state.acknowledged.covers(message_id)

    async def finish(self) -> None:
        """All that is open ends, all that was claimed runs out; then all that nobody acknowledged is dealt, once."""
        for tx in list(self.open):
            await self.shop.transactions.abort(tx.id)
        self.pending.clear()
        committed = [
            message_id
            for piece in (await self.shop.messaging.fetch(A, None, True, committed=True, messages_max=10_000)).slices
            for message_id in piece.ids()
        ]
        assert self.done <= set(committed)
        dealt = list[bytes]()
        for _ in range(4 * len(committed) + 8):
            self.shop.clock.advance(400_000)
            while (page := await self.billing.fetch("last", epoch=self.epochs.get("last", 0))).claim is not None:
                self.epochs["last"] = page.member_epoch
                dealt += ids_of(page)
                await self.billing.acknowledge(page.claim, member="last", epoch=page.member_epoch)
                await self.check()
            if page.waiting_for == "no_messages":
                break
        assert sorted(dealt) == sorted(set(committed) - self.done)
        await self.billing.groups.upkeep.run()
        state = self.billing.live.state
        assert len(state.acknowledged) <= 1
        assert self.billing.live.dispatcher.unacked == 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(STEPS), max_size=60),
    st.integers(0, 1 << 32),
    st.booleans(),
    st.sampled_from([2, 10, 10_000]),
)
def test_each_message_is_handled_once(steps: list[str], seed: int, atomic: bool, unacked_max: int) -> None:
    async def story() -> None:
        shop = await Wired.start(MemoryStore(atomic=atomic))
        await shop.topics.create(A, {})
        options = GroupOptions(
            claim_ms=5_000, member_ms=20_000, attempts_max=0, unacked_max=unacked_max, retry_delay_ms=500
        )
        world = World(shop, random.Random(seed), await Billing.made(shop, options))
        for what in steps:
            await world.step(what)
        await world.finish()
        await world.shop.services.close()

    asyncio.run(story())
