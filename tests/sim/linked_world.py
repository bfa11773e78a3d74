"""One simulated run of one-shot transactions at several servers at a time, while links, answers, writes, leaders and members are lost.

What clients were told must hold: who was told that it is committed shows everywhere, once, whole and in order, and nothing of one that was refused does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from basalt.catalog.topics import TopicName, topic_name
from basalt.cluster.links.frames import Kind
from basalt.transactions.rules.loans import LOAN_POINTERS
from basalt_engine.clock import ManualClock
from basalt_engine.errors import BasaltError, UnknownOutcomeError
from tests.control.commits.linked_shops import Installation, Member
from tests.control.commits.test_recovery_lost_one_shots import is_entry, is_rows
from tests.wiring import A as LEADERS
from tests.wiring import shop_work

NAMES = ("a", "b")
CLIENTS = 4
CALLS = 8  # of each client
TRIES_MAX = 3
LOOKS, LOOKS_AS_MEMBERS = 0.3, 0.3
CALLS_OF_MEMBERS = (Kind.DECIDE_ONE_SHOTS, Kind.DECIDE_ONE_SHOTS, Kind.LEND, Kind.GIVE_BACK, Kind.ASK, Kind.FOLLOW)
COMMITTED, REFUSED, UNKNOWN = "committed", "refused", "unknown"


class LinkedWorld:
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        self.chances = random.Random(seed)
        self.lots = random.Random(~seed)  # of its own, so that who looks changes nothing
        self.clock = ManualClock()
        self.hurry = self.chances.choice([0, 0.01])
        self.steady = self.chances.random() < 0.5
        self.titles = {name: (topic_name("shop", name), topic_name("shop", f"{name}-2")) for name in NAMES}
        self.told: dict[str, str] = {}  # by request
        self.texts: dict[str, set[tuple[TopicName, str]]] = {}  # all that a request may have written
        self.order: list[tuple[str, str]] = []  # a request, and one that was asked for after its answer
        self.seen: dict[TopicName, list[str]] = {}
        self.seen_by: dict[tuple[str, TopicName], int] = {}
        self.working = True
        self.shop: Installation
        self.owners: dict[str, Member] = {}

    async def run(self) -> None:
        """Have clients work while things are lost, then look at what there is."""
        self.shop = await Installation.start(*NAMES, clock=self.clock)
        self.shop.keys[LEADERS] = (await self.shop.leader.topics.create(LEADERS, {})).keys
        self.owners = dict(zip(NAMES, self.shop.members, strict=True))
        clients = [asyncio.ensure_future(self._client(number)) for number in range(CLIENTS)]
        trouble = asyncio.ensure_future(self._trouble())
        await asyncio.gather(*clients)
        self.working = False
        await trouble
        await self._settle()
        self._check()

    # Clients.

    async def _client(self, number: int) -> None:
        before: str | None = None
        for call in range(CALLS):
            await asyncio.sleep(self.chances.choice([0, 0, 0.001, 0.2, 1.5]))
            request = f"{number}.{call}"
            self.texts[request] = set()
            if before is not None:
                self.order.append((before, request))
            has_id = self.chances.random() < 0.7
            self.told[request] = await self._tried(request, has_id)
            before = request if self.told[request] == COMMITTED else None

    async def _tried(self, request: str, has_id: bool) -> str:
        told = REFUSED
        for _ in range(TRIES_MAX if has_id else 1):
            asked = [self._ask(request, has_id) for _ in range(1 + (has_id and self.chances.random() < 0.3))]
            answers = [await each for each in asyncio.as_completed(asked)]
            if COMMITTED in answers:
                return COMMITTED
            if UNKNOWN in answers:
                told = UNKNOWN
        return told

    async def _ask(self, request: str, has_id: bool) -> str:
        name = self.chances.choice([*NAMES, "leader"])
        request_id = request if has_id else None
        self.look()
        try:
            await self._carried_out(name, request, request_id)
        except UnknownOutcomeError:
            return UNKNOWN
        except BasaltError:
            return REFUSED
        finally:
            self.look()
        return COMMITTED

    async def _carried_out(self, name: str, request: str, request_id: str | None) -> None:
        text = f"{request}@{name}"
        if name == "leader":
            self.texts[request].add((LEADERS, text))
            await self.shop.leader.transactions.one_shot(shop_work(orders=[text]), request_id=request_id)
            return
        titles = self.titles[name][: self.chances.choice([1, 2])]
        if (self.titles[name][1], text) in self.texts[request]:
            titles = self.titles[name]  # as the first time
        elif (titles[0], text) in self.texts[request]:
            titles = titles[:1]
        self.texts[request].update((title, text) for title in titles)
        owner = self.owners[name]
        call: asyncio.Future[object] = asyncio.ensure_future(
            owner.work({title: [text] for title in titles}, request_id)
        )
        waiting: set[asyncio.Future[object]] = {call, owner.died}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            call.cancel()
            raise UnknownOutcomeError("its server has died")
        await call

    # What goes wrong.

    async def _trouble(self) -> None:
        troubles: dict[Callable[[], Awaitable[None]], int] = {
            self._cut: 4,
            self._lose_answer: 4,
            self._lose_question: 4,
            self._lose_rows: 3,
            self._lose_entry: 2,
            self._jobs: 6,
            self._lead_anew: 1,
            self._end_member: 1,
        }
        while self.working:
            await asyncio.sleep(self.chances.choice([0, 0, 0.001, 0.1]))
            await self.chances.choices(list(troubles), list(troubles.values()))[0]()
            self.look()
            for member in self.owners.values():
                if self.chances.random() < 0.7 and (not member.is_linked):
                    await member.connect()

    def _any(self) -> Member:
        return self.chances.choice(list(self.owners.values()))

    async def _cut(self) -> None:
        self._any().wire.cut()

    async def _lose_answer(self) -> None:
        self._any().lose(self.chances.choice(CALLS_OF_MEMBERS), answer=True)

    async def _lose_question(self) -> None:
        self._any().lose(self.chances.choice(CALLS_OF_MEMBERS))

    async def _lose_rows(self) -> None:
        store = self._any().store
        store.arrive()
        store.faults.lose, store.faults.before = is_rows, self.chances.random() < 0.5

    async def _lose_entry(self) -> None:
        faults = self.shop.store.faults
        faults.lose, faults.before, faults.late = is_entry, self.chances.random() < 0.5, []

    async def _jobs(self) -> None:
        with suppress(BasaltError):
            await self.shop.leader.transactions.expire()
        for member in self.owners.values():
            with suppress(BasaltError):
                await member.one_shots.give_back()

    async def _lead_anew(self) -> None:
        self.shop.store.faults.lose = None
        await self.shop.lead_anew()
        self._check_loans()

    async def _end_member(self) -> None:
        """Its process ends, or another one takes its topics: what is under way comes before the fence, or never."""
        name = self.chances.choice(NAMES)
        former = self.owners[name]
        if self.chances.random() < 0.5:
            former.store.arrive()
        former.store.faults.late = []
        await former.die()
        self.shop.over.add(former.name)
        self.shop.members.remove(former)
        self.owners[name] = Member(self.shop, f"{name} {len(self.shop.over)}")
        self.shop.members.append(self.owners[name])
        await self.owners[name].connect()

    # What must hold.

    def look(self) -> None:
        """A committed reader sees what it saw before, and then more."""
        if self.working and self.lots.random() > LOOKS:
            return
        with suppress(BasaltError):
            view = self.shop.leader.transactions.manager.current()
            for title in self.shop.keys:
                shown = self.shop.shown(title, view)
                before = self.seen.get(title, [])
                assert shown[: len(before)] == before, f"of {title} {before} was shown, and now {shown}"
                self.seen[title] = shown
                if self.lots.random() < LOOKS_AS_MEMBERS:
                    self._look_as_members(title)

    def _look_as_members(self, title: TopicName) -> None:
        """Who follows sees no more than the leader, and what it saw before."""
        for member in self.owners.values():
            shown = self.shop.shown(title, member.followed.current())
            assert self.seen[title][: len(shown)] == shown, f"{member.name} shows {shown} of {title}"
            before = self.seen_by.get((member.name, title), 0)
            assert before <= len(shown), f"{member.name} showed {before} of {title}, and now {shown}"
            self.seen_by[member.name, title] = len(shown)

    def _check_loans(self) -> None:
        for loan in self.shop.leader.transactions.state.loans:
            assert loan.last - loan.undecided < LOAN_POINTERS

    async def _settle(self) -> None:
        self.shop.store.faults.lose = None
        for member in self.shop.members:
            member.lose_nothing()
            member.store.faults.lose = None
            await member.connect()
        await self._jobs()
        async with asyncio.timeout(600):
            while any(member.linked._learning for member in self.shop.members):
                await asyncio.sleep(0.1)
        for name, member in self.owners.items():
            await member.one_shot(self.titles[name][0], "end")
            assert member.followed.state.in_flight.first is None
            await member.one_shots.give_back_all()
        await self.shop.leader.transactions.give_back_loans()
        self.look()
        assert not list(self.shop.leader.transactions.state.loans), "a loan is left of which nobody knows"
        await self.shop.lead_anew()
        self.look()

    def _check(self) -> None:
        shown = {(title, text) for title, texts in self.seen.items() for text in texts}
        assert len(shown) == sum(map(len, self.seen.values())), "something shows twice"
        for request, told in self.told.items():
            there = self.texts[request] & shown
            by = {text for _, text in there}
            assert len(by) <= 1, f"{request} was carried out by {by}"
            whole = {each for each in self.texts[request] if each[1] in by}
            assert there == whole, f"{request} shows in part: {there}"
            if told == COMMITTED:
                assert there, f"{request} was told to be committed, and does not show"
            if told == REFUSED:
                assert not there, f"{request} was told not to be carried out, and shows {there}"
        for first, then in self.order:
            self._check_order(first, then)

    def _check_order(self, first: str, then: str) -> None:
        for texts in self.seen.values():
            places = {text.partition("@")[0]: place for place, text in enumerate(texts)}
            if first in places and then in places:
                assert places[first] < places[then], f"{then} was asked for after {first} was answered"
