"""Clients that consume with a group and publish what they made of it, in one decision: two topics, one group.

They handle a batch in a one-shot transaction, in the commit of a transaction, or acknowledge plainly what they drop; they give back, vanish,
and come back as zombies with a batch that others have had since. Whatever dies in between, the effects are there once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from basalt.api.bodies.groups import AcknowledgeRequest, GroupMode, GroupOptions, ReleaseRequest
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.catalog.topics import topic_name
from basalt.errors import ClaimLostError, MemberFencedError
from basalt.groups.fetches import FetchAsk
from basalt.groups.groups import Groups
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import BasaltError, InputError
from basalt_engine.records import Extras
from tests.sim.history import Told
from tests.wiring import ids, texts

if TYPE_CHECKING:
    from tests.sim.world import World

CONSUMED, HANDLED = topic_name("sim", "consumed"), topic_name("sim", "handled")
GROUP = "exact"
MODES: tuple[GroupMode, ...] = ("stream", "keyed", "shared", "shared")
KEYS = 3
TIMEOUT_MS = 2_000
ROUNDS_MAX = 200  # of the last consumer, which is alone


@dataclass(slots=True)
class Batch:
    """What a client was dealt."""

    claim: int
    ids: list[bytes]
    texts: list[str]
    member: str
    epoch: int


@dataclass(slots=True)
class Output:
    """What was made of one input, once: `sent` and `told_at` are moments, as in `history.Sent`."""

    of: str
    sent: int
    told: Told = Told.NOTHING
    may_show: bool = True  # its client did ask for a commit


@dataclass(slots=True)
class Begun:
    """A transaction in which a batch is handled: `before` of its messages are acknowledged, and their outputs stored."""

    tx: Transaction
    batch: Batch
    before: int
    stored: dict[str, Output]
    rest: dict[str, Output]


class Consumers:
    """The clients, and what they were told."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._mode = MODES[seed % len(MODES)]
        self._keys: dict[str, bytes] = {}  # by input
        self._alone: tuple[str, int] | None = None  # the last consumer and its epoch
        self._inputs = 0
        self._outputs: dict[str, Output] = {}
        self._dropped: dict[str, tuple[Told, int]] = {}  # by input: what was told of a plain acknowledgement, and when
        self._kept: list[Batch] = []  # zombies' batches
        self._left: list[Begun] = []

    async def prepare(self) -> None:
        for title in (CONSUMED, HANDLED):
            await self._world.wired.topics.create(title, {"ttl": "31536000"})
        # Nothing is parked: all must come in the end.
        options = GroupOptions(self._mode, claim_ms=1_000, member_ms=1_000, attempts_max=0, retry_delay_ms=0)
        await self._groups.make(CONSUMED, GROUP, options)

    @property
    def _groups(self) -> Groups:
        return self._world.wired.services.groups

    async def step(self) -> None:
        """Send something to handle, or handle something."""
        chances = self._world.chances
        try:
            if chances.random() < 0.35:
                await self._send()
                return
            if self._left and chances.random() < 0.3:
                await self._end(self._left.pop(0))
                return
            batch = self._kept.pop(0) if self._kept and chances.random() < 0.3 else await self._fetched()
            if batch is not None:
                if chances.random() < 0.1:
                    batch.member, batch.epoch = "", 0  # a client that does not say who it is
                if chances.random() < 0.2:
                    self._kept.append(batch)
                await self._handle(batch)
        except BasaltError:
            return

    async def _send(self) -> None:
        wired, chances = self._world.wired, self._world.chances
        sent = []
        for _ in range(chances.randint(1, 3)):
            self._inputs += 1
            sent.append(f"i{self._inputs}".encode())
            self._keys[f"i{self._inputs}"] = b"k%d" % chances.randint(1, KEYS)
        extras = [Extras(self._keys[text.decode()]) for text in sent]
        if chances.random() < 0.7:
            await wired.messaging.publish(CONSUMED, sent, extras=extras)
            return
        tx = await wired.transactions.begin(timeout_ms=TIMEOUT_MS)  # its row holds readers up until it is decided
        self._world.history.pointers.append(tx.id)
        await wired.messaging.publish(CONSUMED, sent, tx.write_pointer, extras=extras)
        await asyncio.sleep(0)
        if chances.random() < 0.6:
            await wired.transactions.commit(tx.id)

    async def _fetched(self, transaction_id: int | None = None) -> Batch | None:
        # Without an epoch: who had the name before is fenced.
        member, epoch = self._alone or (f"w{self._world.chances.randint(1, 4)}", 0)
        ask = FetchAsk(member, epoch, self._world.chances.randint(1, 4), transaction_id=transaction_id)
        page = await self._groups.fetch(CONSUMED, GROUP, ask)
        if self._alone is not None:
            self._alone = member, page.member_epoch
        if page.claim is None:
            return None
        return Batch(page.claim, ids(page.fetch), texts(page.fetch), member, page.member_epoch)

    async def _handle(self, batch: Batch) -> None:
        for _ in range(self._world.chances.randint(0, 3)):
            await asyncio.sleep(0)
        ways = [self._by_one_shot, self._by_transaction, self._plainly, self._give_back, _vanish]
        await self._world.chances.choices(ways, [4, 6, 1, 1, 1])[0](batch)

    def _made_of(self, batch: Batch, part: slice = slice(None)) -> dict[str, Output]:
        """Outputs of the messages, to be published."""
        history = self._world.history
        made = {}
        for text in batch.texts[part]:
            made[f"{text}/{len(self._outputs) + len(made)}"] = Output(text, history.now())
        self._outputs.update(made)
        return made

    async def _by_one_shot(self, batch: Batch) -> None:
        made = self._made_of(batch)
        for by_claim in (self._world.chances.random() < 0.5, False):
            work = self._work(made, batch, batch.ids, by_claim)
            call = self._world.wired.transactions.one_shot
            request = f"handle-{next(iter(made))}-{by_claim}"
            told, error = await self._told(made, call(work, "sim", request))
            if told is Told.NOTHING:
                told, error = await self._told(made, self._world.wired.transactions.one_shot(work, "sim", request))
            if not isinstance(error, ClaimLostError | MemberFencedError):  # by its ids, once
                return
            batch.member, batch.epoch = "", 0

    async def _by_transaction(self, batch: Batch) -> None:
        wired, chances = self._world.wired, self._world.chances
        tx = await wired.transactions.begin(timeout_ms=TIMEOUT_MS, external_writes=chances.random() < 0.2)
        self._world.history.pointers.append(tx.id)
        before = chances.randint(0, len(batch.ids))  # so many are acknowledged ahead of the commit
        stored, rest = self._made_of(batch, slice(before)), self._made_of(batch, slice(before, None))
        for output in (*stored.values(), *rest.values()):
            output.may_show = False
        if stored:
            await wired.messaging.store(HANDLED, [text.encode() for text in stored], tx.write_pointer)
            await self._acknowledge(batch, batch.ids[:before], transaction_id=tx.id)
        if chances.random() < 0.2:
            more = await self._fetched(tx.id)  # its claim ends with the transaction
            if more is not None:
                self._kept.append(more)
        begun = Begun(tx, batch, before, stored, rest)
        if chances.random() < 0.4:
            self._left.append(begun)  # its client thinks for long; the server may die meanwhile
        else:
            await self._end(begun)

    async def _end(self, begun: Begun) -> None:
        tx, batch, choice = begun.tx, begun.batch, self._world.chances.random()
        if choice < 0.15:
            self._world.abandoned.append(tx)
            return
        if choice < 0.3:
            await self._world.wired.transactions.abort(tx.id)
            return
        made = begun.stored | begun.rest
        for output in made.values():
            output.may_show = True
        work = self._work(begun.rest, batch, batch.ids[begun.before :], by_claim=False)
        told, _ = await self._told(made, self._world.wired.transactions.commit(tx.id, work))
        if told is Told.NOTHING:
            await self._told(made, self._world.wired.transactions.commit(tx.id, work))

    async def _plainly(self, batch: Batch) -> None:
        history = self._world.history
        for text in batch.texts:
            self._dropped.setdefault(text, (Told.NOTHING, history.now()))
        await self._acknowledge(batch, batch.ids)
        for text in batch.texts:
            if self._dropped[text][0] is not Told.DONE:
                self._dropped[text] = (Told.DONE, history.now())

    async def _acknowledge(self, batch: Batch, found: Sequence[bytes], transaction_id: int | None = None) -> None:
        asked = AcknowledgeRequest(tuple(map(HexMessageId, found)), member=batch.member, epoch=batch.epoch)
        await self._groups.acknowledge(CONSUMED, GROUP, asked, transaction_id)

    async def _give_back(self, batch: Batch) -> None:
        counts = self._world.chances.random() < 0.7
        await self._groups.release(
            CONSUMED,
            GROUP,
            ReleaseRequest(claims=(batch.claim,), member=batch.member, epoch=batch.epoch, counts=counts),
        )

    @staticmethod
    def _work(made: dict[str, Output], batch: Batch, found: Sequence[bytes], by_claim: bool) -> Work:
        publish = [WorkPublish(*HANDLED, [text.encode() for text in made])] if made else []
        who = {"member": batch.member, "epoch": batch.epoch}
        named = WorkAcknowledge(
            *CONSUMED, GROUP, () if by_claim else tuple(found), claims=(batch.claim,) if by_claim else (), **who
        )
        return Work(publish=publish, acknowledge=[named] if by_claim or found else [])

    async def _told(self, made: dict[str, Output], call: Awaitable[object]) -> tuple[Told, BasaltError | None]:
        """Make the call, and note of the outputs what its answer says."""
        told, error = Told.DONE, None
        for output in made.values():
            output.told = Told.NOTHING
        try:
            await call
        except InputError as refused:
            told, error = Told.REFUSED, refused
        except BasaltError as unknown:
            told, error = Told.NOTHING, unknown
        for output in made.values():
            output.told = told
        return told, error

    # What must be true.

    async def check(self) -> None:
        """Handle what is left, with a server that does not fail, and compare."""
        (state,) = self._world.wired.transactions.state.groups.by_number.values()
        # What came back before the clock stepped back is delayed until it has come as far again.
        last_ms = max((attempt.not_before_ms for _, _, attempt in state.returns), default=0)
        self._world.clock.step(max(last_ms, self._world.clock.now_ms()))
        self._alone = ("last", 0)
        for _ in range(ROUNDS_MAX):
            batch = await self._fetched()
            if batch is None:
                break
            await self._by_one_shot(batch)
        wired = self._world.wired
        sent = await wired.page_through(CONSUMED, 16, committed=True)
        shown = await wired.page_through(HANDLED, 16, committed=True)
        effects = Counter(self._outputs[text].of for text in shown)
        assert len(set(shown)) == len(shown), "an output came twice"
        for text in sent:
            told, told_at = self._dropped.get(text, (Told.REFUSED, 0))
            assert effects[text] <= 1, f"{text} was handled {effects[text]} times"
            assert effects[text] or told is not Told.REFUSED, f"{text} was never handled"
            for name in shown:
                output = self._outputs[name]
                assert output.of != text or told is not Told.DONE or output.sent < told_at, (
                    f"{text} was dropped, and handled"
                )
        assert effects.keys() <= set(sent), "what nobody sent was handled"
        self._check_order(sent, shown)
        for name, output in self._outputs.items():
            assert name in shown or output.told is not Told.DONE or not output.may_show, (
                f"{name} was committed and is gone"
            )
            assert name not in shown or (output.told is not Told.REFUSED and output.may_show), (
                f"{name} should be hidden"
            )
        await self._check_group()

    def _check_order(self, sent: list[str], shown: list[str]) -> None:
        """Of a stream effects come in the order of the messages, of a keyed group so for each key."""
        if self._mode == "shared":
            return
        last: dict[bytes, int] = {}
        for name in shown:
            text = self._outputs[name].of
            lane = self._keys[text] if self._mode == "keyed" else b""
            assert last.get(lane, -1) < sent.index(text), f"{text} was handled behind one that came after it"
            last[lane] = sent.index(text)

    async def _check_group(self) -> None:
        """All is acknowledged, and the log says what the working state says."""
        wired = self._world.wired
        (state,) = wired.transactions.state.groups.by_number.values()
        page = await self._groups.fetch(CONSUMED, GROUP, FetchAsk(*self._alone or ()))
        assert (page.claim, page.waiting_for) == (None, "no_messages"), f"the group waits for {page.waiting_for}"
        assert len(state.acknowledged) <= 1, "no gap is left"
        image = wired.transactions.state.image()
        assert (image.acknowledging, len(state.returns)) == ((), 0)
        read = TransactionLog(self._world.inner.table("transaction_log"), wired.transactions.state.limits).recover()
        assert read.image().groups == image.groups, "the log says otherwise"


async def _vanish(batch: Batch) -> None:
    """Nobody hears of the batch again, unless it was kept."""
